//! Configs that people have: the examples of the documentation and a herdctl project.

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};
use expect_test::expect;
use heeler_model::config::{Faults, Loaded, Style, load};

fn folder(name: &str) -> Utf8PathBuf {
    Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config/fixtures").join(name)
}

fn load_fixture(folder: &Utf8Path, file: &str, env: &[(&str, &str)]) -> Result<Loaded, Faults> {
    let env: BTreeMap<String, String> =
        env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    load(&folder.join(file), &|path| std::fs::read_to_string(path), &env)
}

/// Shows a config without what differs between machines.
fn shown(loaded: &Loaded, folder: &Utf8Path) -> String {
    let text = serde_json::to_string_pretty(&loaded.show()).unwrap();
    text.replace(folder.parent().unwrap().as_str(), "")
}

#[test]
fn the_examples_of_the_sessions_page_load_and_only_keys_without_effect_are_warned_about() {
    let folder = folder("seed");
    let loaded = load_fixture(&folder, "heeler.yaml", &[]).unwrap();
    let warnings: Vec<&str> =
        loaded.warnings.list.iter().map(|fault| fault.message.as_str()).collect();
    expect![[r#"
        `repo` has no effect yet
        these keys have no effect yet: `repo`, `session.max_context_tokens`, `session.context_window`
        these keys have no effect yet: `repo`, `chat`
        `repo` has no effect yet
        these keys have no effect yet: `repo`, `chat`"#]].assert_eq(&warnings.join("\n"));
    let sessions: Vec<String> = loaded
        .agents
        .iter()
        .map(|agent| {
            let schedules: Vec<String> = agent
                .schedules
                .iter()
                .map(|schedule| {
                    let limit = schedule.timeout.map(|limit| limit.to_string());
                    let expiry = schedule.session.expires_after.map(|expiry| expiry.to_string());
                    let limit = limit.unwrap_or_default();
                    format!("{} {} [{limit}] {expiry:?}", schedule.name, schedule.session.mode)
                })
                .collect();
            format!("{}: {} {schedules:?}", agent.name, agent.session.mode)
        })
        .collect();
    expect![[r#"
        stateless-coder: fresh_per_job ["issue-check fresh_per_job [30m] None"]
        research-agent: persistent ["daily-analysis persistent [] Some(\"1d\")"]
        support-bot: per_channel []
        hybrid-agent: persistent ["continuous-work persistent [] Some(\"1h\")", "fresh-review fresh_per_job [] None"]
        project-support: per_channel []"#]].assert_eq(&sessions.join("\n"));
}

#[test]
fn a_herdctl_project_loads_as_it_stands() {
    let folder = folder("herdctl");
    let env = [("HOOK_URL", "https://hooks.example.com/T0/x"), ("HOOK_TOKEN", "s3cr3t")];
    let loaded = load_fixture(&folder, "herdctl.yaml", &env).unwrap();
    let warnings = loaded.warnings.render(Style::Plain, &folder);
    expect![[r#"
        warning: these keys have no effect yet: `web`, `docker`
         --> herdctl.yaml:7:1
          |
        7 | web:
          | ^^^ accepted, not used

        warning: these keys have no effect yet: `docker`, `plugins`, `work_source`
         --> agents/janitor.yaml:6:1
          |
        6 | docker:
          | ^^^^^^ accepted, not used

        warning: these keys have no effect yet: `identity.role`, `chat`
         --> agents/helper.yaml:4:3
          |
        4 |   role: support
          |   ^^^^ accepted, not used

        warning: unknown key `made_up_by_a_newer_herdctl` in attachments
          --> agents/helper.yaml:41:7
           |
        41 |       made_up_by_a_newer_herdctl: true
           |       ^^^^^^^^^^^^^^^^^^^^^^^^^^
           |
           = help: known keys: enabled, max_file_size_mb, max_files_per_message, allowed_types, download_dir, cleanup_after_processing"#]].assert_eq(&warnings);
    expect![[r##"
        {
          "fleet": {
            "version": 1,
            "fleet": {
              "name": "company",
              "description": "Agents that look after our code"
            },
            "durability": "interval",
            "web": {
              "enabled": true,
              "port": 3232,
              "host": "localhost",
              "session_expiry_hours": 24,
              "open_browser": false,
              "tool_results": true,
              "message_grouping": "separate"
            },
            "webhooks": {
              "enabled": false,
              "port": 8081,
              "secret_env": "WEBHOOK_SECRET"
            }
          },
          "agents": [
            {
              "name": "janitor",
              "description": "Keeps dependencies fresh",
              "runtime": "cli",
              "working_directory": "/janitor-workspace",
              "default_prompt": "Update one dependency and run the tests.",
              "model": "claude-sonnet-4-5",
              "schedules": {
                "nightly update": {
                  "type": "cron",
                  "cron": "0 3 * * *",
                  "prompt": "Update what is out of date.",
                  "enabled": true,
                  "resume_session": false,
                  "outputToFile": true
                },
                "hook": {
                  "type": "webhook",
                  "prompt": "Something happened.",
                  "enabled": true,
                  "resume_session": false,
                  "outputToFile": false
                }
              },
              "session": {
                "mode": "fresh_per_job",
                "timeout": "12h",
                "auto_resume": false,
                "resume_timeout": "1h"
              },
              "approvals": "autonomous",
              "permission_mode": "acceptEdits",
              "setting_sources": [
                "user",
                "project"
              ],
              "mcp_servers": {
                "files": {
                  "command": "npx",
                  "args": [
                    "-y",
                    "@modelcontextprotocol/server-filesystem",
                    "/data"
                  ],
                  "env": {},
                  "headers": {}
                },
                "search": {
                  "args": [],
                  "env": {},
                  "url": "https://mcp.example.com/mcp",
                  "headers": {
                    "X-Key": "${HOOK_TOKEN}"
                  },
                  "timeout": "30s",
                  "alwaysLoad": true
                }
              },
              "plugins": [
                {
                  "type": "local",
                  "path": "/herdctl/agents/plugins/review",
                  "skipMcpDiscovery": false
                },
                {
                  "type": "local",
                  "path": "/herdctl/agents/plugins/deploy",
                  "skipMcpDiscovery": true
                }
              ],
              "max_turns": 50,
              "instances": {
                "max_concurrent": 3
              },
              "env": {},
              "secrets": [],
              "hooks": {
                "after_run": [
                  {
                    "type": "shell",
                    "continue_on_error": true,
                    "command": "./notify.sh",
                    "timeout": "5s"
                  },
                  {
                    "type": "webhook",
                    "continue_on_error": true,
                    "when": "metadata.shouldNotify",
                    "url": "${HOOK_URL}",
                    "headers": {
                      "Authorization": "Bearer ${HOOK_TOKEN}"
                    }
                  }
                ],
                "on_error": [
                  {
                    "type": "discord",
                    "continue_on_error": true,
                    "channel_id": "222333444",
                    "bot_token_env": "DISCORD_TOKEN"
                  }
                ]
              },
              "work_source": {
                "type": "github",
                "repo": "acme/website",
                "labels": {
                  "ready": "ready-for-agent",
                  "in_progress": "agent-working"
                },
                "exclude_labels": [
                  "blocked",
                  "wip"
                ],
                "cleanup_on_failure": true,
                "auth": {
                  "token_env": "GITHUB_TOKEN"
                }
              },
              "docker": {
                "enabled": true,
                "ephemeral": true,
                "memory": "4g",
                "max_containers": 5,
                "workspace_mode": "rw",
                "tmpfs": [],
                "pids_limit": 50,
                "labels": {},
                "image": "herdctl/runtime:latest",
                "network": "bridge",
                "volumes": [
                  "/srv/cache:/cache:ro"
                ],
                "env": {
                  "CI": "1"
                },
                "ports": []
              },
              "qualified_name": "janitor",
              "file": "/herdctl/agents/janitor.yaml"
            },
            {
              "name": "helper",
              "runtime": "sdk",
              "identity": {
                "name": "Helper",
                "role": "support"
              },
              "system_prompt": "Be brief.",
              "model": "claude-sonnet-4-5",
              "schedules": {
                "check": {
                  "type": "interval",
                  "interval": "15m",
                  "enabled": true,
                  "resume_session": true,
                  "outputToFile": false
                }
              },
              "session": {
                "mode": "fresh_per_job",
                "timeout": "12h",
                "auto_resume": false,
                "resume_timeout": "1h"
              },
              "approvals": "autonomous",
              "permission_mode": "acceptEdits",
              "allowed_tools": [
                "Read",
                "Grep"
              ],
              "denied_tools": [
                "Bash(rm *)"
              ],
              "mcp_servers": {},
              "plugins": [],
              "max_turns": 10,
              "instances": {
                "max_concurrent": 3
              },
              "env": {},
              "secrets": [],
              "hooks": {
                "after_run": [],
                "on_error": []
              },
              "chat": {
                "discord": {
                  "bot_token_env": "HELPER_DISCORD_TOKEN",
                  "session_expiry_hours": 24,
                  "log_level": "standard",
                  "guilds": [
                    {
                      "id": "123456789012345678",
                      "channels": [
                        {
                          "id": "987654321098765432",
                          "name": "#support",
                          "mode": "auto",
                          "context_messages": 5
                        }
                      ],
                      "default_channel_mode": "mention",
                      "dm": {
                        "enabled": true,
                        "mode": "auto",
                        "allowlist": [
                          "111"
                        ],
                        "blocklist": []
                      }
                    }
                  ],
                  "channels": [],
                  "presence": {
                    "activity_type": "watching",
                    "activity_message": "for questions"
                  },
                  "output": {
                    "tool_results": true,
                    "tool_result_max_length": 900,
                    "system_status": true,
                    "errors": true,
                    "result_summary": false,
                    "typing_indicator": true,
                    "acknowledge_emoji": "eyes",
                    "assistant_messages": "answers",
                    "progress_indicator": true
                  },
                  "voice": {
                    "enabled": false,
                    "provider": "openai",
                    "api_key_env": "OPENAI_API_KEY",
                    "model": "whisper-1"
                  },
                  "attachments": {
                    "enabled": true,
                    "max_file_size_mb": 10,
                    "max_files_per_message": 5,
                    "allowed_types": [
                      "image/*",
                      "application/pdf",
                      "text/*"
                    ],
                    "download_dir": ".discord-attachments",
                    "cleanup_after_processing": true
                  },
                  "skills": []
                },
                "slack": {
                  "bot_token_env": "SLACK_BOT_TOKEN",
                  "app_token_env": "SLACK_APP_TOKEN",
                  "session_expiry_hours": 24,
                  "log_level": "standard",
                  "channels": [
                    {
                      "id": "C0123456789",
                      "name": "#support",
                      "mode": "mention",
                      "context_messages": 10
                    }
                  ],
                  "dm": {
                    "enabled": false,
                    "mode": "auto",
                    "blocklist": []
                  },
                  "output": {
                    "tool_results": true,
                    "tool_result_max_length": 900,
                    "system_status": true,
                    "errors": true
                  }
                }
              },
              "docker": {
                "enabled": true,
                "ephemeral": true,
                "memory": "4g",
                "max_containers": 5,
                "workspace_mode": "rw",
                "tmpfs": [],
                "labels": {},
                "image": "herdctl/runtime:latest",
                "network": "bridge",
                "volumes": [
                  "/srv/cache:/cache:ro"
                ],
                "env": {
                  "CI": "1"
                },
                "ports": []
              },
              "working_directory": "/herdctl/agents",
              "qualified_name": "helper",
              "file": "/herdctl/agents/helper.yaml"
            },
            {
              "name": "writer",
              "runtime": "sdk",
              "working_directory": "/herdctl/website/site",
              "model": "claude-opus-4-5",
              "schedules": {
                "weekly": {
                  "type": "cron",
                  "cron": "@weekly",
                  "prompt": "Write a post.",
                  "enabled": true,
                  "resume_session": false,
                  "outputToFile": false
                }
              },
              "session": {
                "mode": "fresh_per_job",
                "timeout": "12h",
                "auto_resume": false,
                "resume_timeout": "1h"
              },
              "approvals": "autonomous",
              "permission_mode": "acceptEdits",
              "mcp_servers": {},
              "plugins": [],
              "max_turns": 50,
              "instances": {
                "max_concurrent": 3
              },
              "env": {},
              "secrets": [],
              "hooks": {
                "after_run": [],
                "on_error": []
              },
              "docker": {
                "enabled": true,
                "ephemeral": true,
                "memory": "4g",
                "max_containers": 5,
                "workspace_mode": "rw",
                "tmpfs": [],
                "labels": {},
                "image": "herdctl/runtime:latest",
                "network": "bridge",
                "volumes": [
                  "/srv/cache:/cache:ro"
                ],
                "env": {
                  "CI": "1"
                },
                "ports": []
              },
              "qualified_name": "website.writer",
              "file": "/herdctl/website/agents/writer.yaml"
            }
          ]
        }"##]]
    .assert_eq(&shown(&loaded, &folder));
}

#[test]
fn a_herdctl_project_without_its_variables_says_which() {
    let folder = folder("herdctl");
    let faults = load_fixture(&folder, "herdctl.yaml", &[]).unwrap_err();
    let messages: Vec<String> = faults
        .list
        .iter()
        .filter(|fault| fault.message.contains("variable"))
        .map(|fault| {
            format!("{}:{} {}", fault.path().file_name().unwrap(), fault.line(), fault.message)
        })
        .collect();
    expect![[r#"
        janitor.yaml:23 the variable `HOOK_URL` is not set
        janitor.yaml:25 the variable `HOOK_TOKEN` is not set
        janitor.yaml:38 the variable `HOOK_TOKEN` is not set"#]]
    .assert_eq(&messages.join("\n"));
}
