//! An agent of the conformance suite: how its program is started, and the settings with which it uses
//! the fake API.

use camino::Utf8Path;
use heeler_config::{CertifiedAgent, RuntimeType};
use heeler_model::run::{ProgramLaunchSpec, RuntimeLaunchSpec};
use heeler_testkit::{
    ModelScript, ModelScriptStep, claude_acp, codex, codex_acp, copilot, gemini, goose, grok, kimi,
    node, opencode, qwen, vibe,
};
use indexmap::IndexMap;
use serde_json::json;

use crate::rig::{Plan, Rig};

fn write_file(file: &Utf8Path, text: &str) {
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, text).unwrap();
}

fn qwen_settings() -> serde_json::Value {
    json!({
        "security": { "auth": { "selectedType": "openai" }, "folderTrust": { "enabled": false } },
        "general": { "enableAutoUpdate": false },
        "privacy": { "usageStatisticsEnabled": false },
        "model": { "name": "mock-model", "generationConfig": { "maxRetries": 0 } },
        // Otherwise it asks the model about its memory after a turn.
        "memory": { "enableManagedAutoMemory": false, "enableManagedAutoDream": false },
    })
}

fn gemini_settings() -> serde_json::Value {
    json!({
        "security": { "auth": { "selectedType": "gemini-api-key" } },
        "general": { "enableAutoUpdate": false, "maxAttempts": 1 },
        "privacy": { "usageStatisticsEnabled": false },
        "telemetry": { "enabled": false },
    })
}

fn opencode_config(api: &str) -> serde_json::Value {
    let limits = json!({ "context": 200_000, "output": 8192 });
    let model = json!({ "name": "Mock", "tool_call": true, "limit": limits });
    json!({
        "autoupdate": false, "share": "disabled",
        "model": "mock/mock-model", "small_model": "mock/mock-model",
        "provider": { "mock": {
            "npm": "@ai-sdk/openai-compatible", "name": "Mock",
            "options": { "baseURL": format!("{api}/v1"), "apiKey": "mock-api-key" },
            "models": { "mock-model": model },
        } },
    })
}

fn codex_config(api: &str) -> String {
    format!(
        "model = \"gpt-5.5\"\nmodel_provider = \"mock\"\n\
         [model_providers.mock]\nname = \"mock\"\nbase_url = \"{api}/v1\"\n\
         env_key = \"MOCK_KEY\"\nwire_api = \"responses\"\n\
         request_max_retries = 0\nstream_max_retries = 0\n"
    )
}

fn grok_config(api: &str) -> String {
    format!(
        "[models]\ndefault = \"mock\"\n\
         [model.mock]\nmodel = \"mock-model\"\nname = \"Mock\"\nbase_url = \"{api}/v1\"\n\
         api_key = \"mock-api-key\"\ncontext_window = 200000\n\
         [cli]\nauto_update = false\n"
    )
}

fn kimi_config(api: &str) -> String {
    format!(
        "default_model = \"mock\"\n\
         [providers.mock]\ntype = \"openai\"\nbase_url = \"{api}/v1\"\n\
         api_key = \"mock-api-key\"\n\
         [models.mock]\nprovider = \"mock\"\nmodel = \"mock-model\"\n\
         max_context_size = 200000\ncapabilities = [\"thinking\"]\n"
    )
}

fn vibe_config(api: &str) -> String {
    format!(
        "active_model = \"mock\"\nenable_telemetry = false\nenable_update_checks = false\n\
         enable_auto_update = false\napi_retry_max_elapsed_time = 0.0\n\
         [[providers]]\nname = \"mock\"\napi_base = \"{api}/v1\"\n\
         api_key_env_var = \"MOCK_KEY\"\napi_style = \"openai\"\nbackend = \"generic\"\n\
         [[models]]\nname = \"mock-model\"\nprovider = \"mock\"\nalias = \"mock\"\n"
    )
}

/// Agent under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TestedAgent(pub(super) CertifiedAgent);

impl TestedAgent {
    pub(super) const CODEX: TestedAgent = TestedAgent(CertifiedAgent::Codex);
    pub(super) const GEMINI: TestedAgent = TestedAgent(CertifiedAgent::Gemini);
    pub(super) const GOOSE: TestedAgent = TestedAgent(CertifiedAgent::Goose);

    /// Plans a run in which the agent asks before it runs commands.
    pub(super) fn plan(self, rig: &Rig, script: &ModelScript) -> Plan {
        let prompt = format!("Please. {script}");
        let (runtime, program, args) = match self.0 {
            CertifiedAgent::Claude => {
                let mut plan = rig.plan(RuntimeType::Sdk, &prompt);
                plan.claude().permission_mode = "default".to_owned();
                return plan;
            }
            CertifiedAgent::Codex => (RuntimeType::Codex, codex(), vec![]),
            CertifiedAgent::Gemini => (RuntimeType::Acp, gemini(), vec!["--acp".to_owned()]),
            CertifiedAgent::Goose => (RuntimeType::Acp, goose(), vec!["acp".to_owned()]),
            CertifiedAgent::Qwen => {
                (RuntimeType::Acp, node(), vec![qwen().into_string(), "--acp".to_owned()])
            }
            CertifiedAgent::QwenSdk => (RuntimeType::Qwen, node(), vec![qwen().into_string()]),
            CertifiedAgent::Opencode => (RuntimeType::Acp, opencode(), vec!["acp".to_owned()]),
            CertifiedAgent::Copilot => (RuntimeType::Acp, copilot(), vec!["--acp".to_owned()]),
            CertifiedAgent::Grok => {
                (RuntimeType::Acp, grok(), ["agent", "stdio"].map(str::to_owned).to_vec())
            }
            CertifiedAgent::Kimi => {
                (RuntimeType::Acp, node(), vec![kimi().into_string(), "acp".to_owned()])
            }
            CertifiedAgent::Vibe => {
                let (python, script) = vibe();
                (RuntimeType::Acp, python, vec![script.into_string()])
            }
            CertifiedAgent::ClaudeAcp => {
                (RuntimeType::Acp, node(), vec![claude_acp().into_string()])
            }
            CertifiedAgent::CodexAcp => (RuntimeType::Acp, node(), vec![codex_acp().into_string()]),
        };
        let mut plan = rig.plan(runtime, &prompt);
        let spec = Box::new(ProgramLaunchSpec {
            program,
            args,
            agent: self.program_name().to_owned(),
            permission_mode: "default".to_owned(),
            // The test machine need not be able to run Codex's own sandbox.
            is_isolated: true,
            ..ProgramLaunchSpec::default()
        });
        plan.brief.work = match runtime {
            RuntimeType::Codex => RuntimeLaunchSpec::Codex(spec),
            RuntimeType::Qwen => RuntimeLaunchSpec::Qwen(spec),
            _ => RuntimeLaunchSpec::Acp(spec),
        };
        let env = self.write_settings(&rig.path("agent-home"), rig.api.url());
        plan.brief.env.extend(env);
        plan
    }

    /// Returns the name of the agent's program in a config.
    pub(super) fn program_name(self) -> &'static str {
        match self.0 {
            CertifiedAgent::QwenSdk => "qwen",
            other => other.as_str(),
        }
    }

    /// Returns the name by which the model calls a tool of an MCP server.
    pub(super) fn server_tool(self, server: &str, tool: &str) -> String {
        let separator = match self.0 {
            CertifiedAgent::Claude
            | CertifiedAgent::ClaudeAcp
            | CertifiedAgent::Qwen
            | CertifiedAgent::QwenSdk
            | CertifiedAgent::Kimi => return format!("mcp__{server}__{tool}"),
            CertifiedAgent::Codex | CertifiedAgent::CodexAcp => {
                return format!("mcp__{server}::{tool}");
            }
            CertifiedAgent::Gemini => return format!("mcp_{server}_{tool}"),
            CertifiedAgent::Goose | CertifiedAgent::Grok => "__",
            CertifiedAgent::Opencode => "_",
            CertifiedAgent::Copilot => "-",
            CertifiedAgent::Vibe => panic!("it accepts no servers by HTTP"),
        };
        format!("{server}{separator}{tool}")
    }

    /// Returns a part of the text by which the agent says that it shortened an output of three
    /// megabytes.
    pub(super) fn shortened_output_note(self) -> &'static str {
        match self.0 {
            CertifiedAgent::Claude | CertifiedAgent::ClaudeAcp => "Output too large (2.9MB)",
            CertifiedAgent::Copilot => "Output too large to read at once (2.9 MB",
            CertifiedAgent::Qwen => "[... truncated for ACP transport ...]",
            CertifiedAgent::QwenSdk => "Output too long and was saved to: ",
            CertifiedAgent::Opencode => "...output truncated...",
            CertifiedAgent::Vibe => "The tool output is large.",
            CertifiedAgent::Codex
            | CertifiedAgent::CodexAcp
            | CertifiedAgent::Gemini
            | CertifiedAgent::Goose
            | CertifiedAgent::Grok
            | CertifiedAgent::Kimi => panic!("it reports the whole output"),
        }
    }

    /// Returns a call by which the agent lets a sub-agent work on a prompt, and waits for it.
    pub(super) fn sub_agent(self, prompt: &str) -> ModelScriptStep {
        let described = |mut input: serde_json::Value| {
            input["description"] = "a short task".into();
            input["prompt"] = prompt.into();
            input
        };
        let (tool, input) = match self.0 {
            CertifiedAgent::Claude | CertifiedAgent::ClaudeAcp => {
                ("Agent", described(json!({ "run_in_background": false })))
            }
            CertifiedAgent::Qwen | CertifiedAgent::QwenSdk => {
                ("agent", described(json!({ "run_in_background": false })))
            }
            CertifiedAgent::Kimi => ("Agent", described(json!({}))),
            CertifiedAgent::Grok => ("spawn_subagent", described(json!({ "background": false }))),
            CertifiedAgent::Copilot => {
                let input =
                    json!({ "name": "helper", "agent_type": "general-purpose", "mode": "sync" });
                ("task", described(input))
            }
            CertifiedAgent::Opencode => ("task", described(json!({ "subagent_type": "general" }))),
            CertifiedAgent::Goose => ("delegate", json!({ "instructions": prompt })),
            CertifiedAgent::Gemini => {
                ("invoke_agent", json!({ "agent_name": "generalist", "prompt": prompt }))
            }
            CertifiedAgent::Codex | CertifiedAgent::CodexAcp | CertifiedAgent::Vibe => {
                panic!("it has no sub-agents")
            }
        };
        ModelScriptStep::tools([(tool, input)])
    }

    /// Returns a call of the agent's shell that it asks about in a mode that asks.
    pub(super) fn asked_shell(self, command: &str) -> ModelScriptStep {
        let mut input = json!({ "command": command });
        // It runs commands in its own read-only sandbox, and asks about those that shall leave it.
        if self.0 == CertifiedAgent::CodexAcp {
            input["sandbox_permissions"] = "require_escalated".into();
            input["justification"] = "It writes.".into();
        }
        ModelScriptStep::tools([("sh", input)])
    }

    /// Writes the agent's own settings into its home directory; returns its environment.
    pub(super) fn write_settings(self, home: &Utf8Path, api: &str) -> IndexMap<String, String> {
        let mut env = IndexMap::new();
        let mut set = |name: &str, value: &str| drop(env.insert(name.to_owned(), value.to_owned()));
        let write = |path: &str, text: &str| write_file(&home.join(path), text);
        std::fs::create_dir_all(home).unwrap();
        set("HOME", home.as_str());
        match self.0 {
            CertifiedAgent::Claude => {}
            // The rig sets the API.
            CertifiedAgent::ClaudeAcp => {
                let config = home.join(".claude");
                std::fs::create_dir_all(&config).unwrap();
                set("CLAUDE_CONFIG_DIR", config.as_str());
            }
            CertifiedAgent::Codex | CertifiedAgent::CodexAcp => {
                write(".codex/config.toml", &codex_config(api));
                set("CODEX_HOME", home.join(".codex").as_str());
                set("MOCK_KEY", "mock-api-key");
            }
            CertifiedAgent::Gemini => {
                write(".gemini/settings.json", &gemini_settings().to_string());
                set("GEMINI_API_KEY", "mock-api-key");
                set("GOOGLE_GEMINI_BASE_URL", api);
            }
            CertifiedAgent::Goose => {
                set("GOOSE_PROVIDER", "openai");
                set("GOOSE_MODEL", "mock-model");
                set("GOOSE_DISABLE_KEYRING", "1");
                set("GOOSE_TELEMETRY_OFF", "1");
                set("OPENAI_HOST", api);
                set("OPENAI_API_KEY", "mock-api-key");
            }
            CertifiedAgent::Qwen | CertifiedAgent::QwenSdk => {
                write(".qwen/settings.json", &qwen_settings().to_string());
                set("OPENAI_API_KEY", "mock-api-key");
                set("OPENAI_BASE_URL", &format!("{api}/v1"));
                set("OPENAI_MODEL", "mock-model");
                // As in the table of known agents.
                set("QWEN_CODE_LEGACY_MCP_BLOCKING", "1");
            }
            CertifiedAgent::Opencode => {
                write(".config/opencode/opencode.json", &opencode_config(api).to_string());
                for name in ["MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS"] {
                    set(&format!("OPENCODE_DISABLE_{name}"), "1");
                }
            }
            CertifiedAgent::Copilot => {
                set("COPILOT_PROVIDER_BASE_URL", &format!("{api}/v1"));
                set("COPILOT_PROVIDER_API_KEY", "mock-api-key");
                set("COPILOT_MODEL", "gpt-5.5");
                set("COPILOT_OFFLINE", "true");
            }
            CertifiedAgent::Grok => {
                write(".grok/config.toml", &grok_config(api));
                set("GROK_HOME", home.join(".grok").as_str());
                set("XAI_API_KEY", "mock-api-key");
                set("GROK_FOLDER_TRUST", "0");
                set("GROK_TELEMETRY_ENABLED", "false");
                set("GROK_MAX_RETRIES", "0");
            }
            CertifiedAgent::Kimi => {
                write(".kimi-code/config.toml", &kimi_config(api));
                set("KIMI_CODE_HOME", home.join(".kimi-code").as_str());
            }
            CertifiedAgent::Vibe => {
                write(".vibe/config.toml", &vibe_config(api));
                set("VIBE_HOME", home.join(".vibe").as_str());
                set("MOCK_KEY", "mock-api-key");
                set("MISTRAL_API_KEY", "mock-api-key");
            }
        }
        env
    }
}
