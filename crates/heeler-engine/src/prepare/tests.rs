//! The environment and settings of an agent's run.

use std::collections::BTreeMap;

use heeler_config::LoadedConfig;
use heeler_model::permission_grant::{PermissionGrant, PermissionRule};
use heeler_model::run::{ClaudeLaunchSpec, McpServerSpec, RuntimeLaunchSpec, SandboxSpec};

use super::*;

/// A directory that contains a `claude`.
struct PrepareFixture {
    _temp: tempfile::TempDir,
    root: Utf8PathBuf,
    env: BTreeMap<String, String>,
    home: Utf8PathBuf,
    is_root: bool,
}

impl PrepareFixture {
    fn new() -> PrepareFixture {
        use std::os::unix::fs::PermissionsExt as _;
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(temp.path().canonicalize().unwrap()).unwrap();
        let claude = root.join("claude");
        std::fs::write(&claude, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&claude, std::fs::Permissions::from_mode(0o700)).unwrap();
        let env = BTreeMap::from([("PATH".to_owned(), format!("/nowhere:{root}"))]);
        let home = "/home/me/.heeler".into();
        PrepareFixture { _temp: temp, root, env, home, is_root: false }
    }

    fn set(&mut self, name: &str, value: &str) {
        self.env.insert(name.to_owned(), value.to_owned());
    }

    fn load(&self, agent: &str) -> LoadedConfig {
        let text = format!("agents:\n  - {{name: a, {agent}}}\n");
        let file = self.root.join("heeler.yaml");
        let read = |path: &Utf8Path| {
            assert_eq!(path, file);
            Ok(text.clone())
        };
        heeler_config::load(&file, &read, &self.env)
            .unwrap_or_else(|faults| panic!("{}", faults.summary()))
    }

    fn prepare(&self, agent: &str, wanted: JobRequest) -> Result<ResolvedJobRequest, PrepareError> {
        let loaded = self.load(agent);
        let around = PrepareContext {
            directory: None,
            env: &self.env,
            home: &self.home,
            sockets: Utf8Path::new("/run/user/1000/heeler"),
            durability: LogDurability::Interval,
            max_concurrent: None,
            agents: &loaded.agents,
            protected: &ProtectedFiles {
                unwritable: vec!["/fleet/heeler.yaml".into()],
                unreadable: vec!["/fleet/.env".into()],
                ..ProtectedFiles::default()
            },
            is_root: self.is_root,
        };
        prepare_request(&loaded.agents[0], &wanted, &around)
    }

    #[track_caller]
    fn brief(&self, agent: &str) -> AgentLaunchSpec {
        self.prepare(agent, asked("hi")).unwrap().brief
    }

    #[track_caller]
    fn claude(&self, agent: &str) -> ClaudeLaunchSpec {
        match self.brief(agent).work {
            RuntimeLaunchSpec::Claude(brief) => *brief,
            _ => panic!("not claude"),
        }
    }
}

fn unasked() -> JobRequest {
    JobRequest::new("coder".parse().unwrap())
}

fn asked(prompt: &str) -> JobRequest {
    JobRequest { prompt: Some(prompt.to_owned()), ..unasked() }
}

#[test]
fn claude_is_told_what_it_must_not_write() {
    let place = PrepareFixture::new();
    for keys in ["allowed_tools: [Write, Bash]", "permission_mode: bypassPermissions", "model: x"] {
        let claude = place.claude(keys);
        assert_eq!(claude.protected, ["/fleet/heeler.yaml"], "{keys}");
        assert_eq!(claude.unreadable, ["/fleet/.env"], "{keys}");
    }
}

#[test]
fn a_review_takes_no_answer_from_a_mode_and_waits_for_a_person() {
    let place = PrepareFixture::new();
    for (mode, expected) in [
        ("bypassPermissions", "default"),
        ("acceptEdits", "default"),
        ("auto", "default"),
        ("plan", "plan"),
        ("dontAsk", "dontAsk"),
    ] {
        let keys = format!("approvals: review, permission_mode: {mode}");
        let claude = place.claude(&keys);
        assert!(claude.review);
        assert_eq!(claude.permission_mode, expected);
        let request = place.prepare(&keys, asked("hi")).unwrap();
        assert!(matches!(request.attendance, QuestionPolicy::Person { .. }));
    }
    assert!(!place.claude("approvals: interactive").review);
}

#[test]
fn root_skips_permissions_only_where_the_config_claims_a_sandbox() {
    let mut place = PrepareFixture::new();
    let bypass = "permission_mode: bypassPermissions";
    place.brief(bypass);
    place.is_root = true;
    let refused = place.prepare(bypass, asked("hi")).unwrap_err().to_string();
    assert!(refused.contains("run the fleet as another user"), "{refused}");
    // A variable of the daemon's own environment is no decision about this agent.
    place.set("IS_SANDBOX", "1");
    place.prepare(bypass, asked("hi")).unwrap_err();
    place.brief(&format!("{bypass}, env: {{IS_SANDBOX: '1'}}"));
    place.brief(&format!("{bypass}, approvals: review"));
    place.brief(&format!("{bypass}, runtime: command, command: date"));
    place.brief("permission_mode: acceptEdits");
}

#[test]
fn an_agent_gets_what_every_program_needs_and_what_is_named() {
    let mut place = PrepareFixture::new();
    for name in ["HOME", "LC_ALL", "TZ", "ANTHROPIC_API_KEY", "CLAUDE_CODE_MAX_RETRIES"] {
        place.set(name, "passed");
    }
    for name in ["AWS_SECRET_ACCESS_KEY", "HEELER_RUN", "SHELL", "CLAUDECODE", "SSH_AUTH_SOCK"] {
        place.set(name, "not for agents");
    }
    place.set("DEPLOY_TOKEN", "deploy-deploy");
    let brief = place.brief("env: {MODE: fast, HEELER_RUN: x}, secrets: [DEPLOY_TOKEN]");
    let mut names: Vec<&str> = brief.env.keys().map(String::as_str).collect();
    names.sort_unstable();
    let expected = [
        "ANTHROPIC_API_KEY",
        "CLAUDE_CODE_MAX_RETRIES",
        "DEPLOY_TOKEN",
        "HOME",
        "LC_ALL",
        "MODE",
        "PATH",
        "TZ",
    ];
    assert_eq!(names, expected);
    assert_eq!(brief.env["MODE"], "fast");
}

#[test]
fn without_a_path_there_is_one() {
    let mut place = PrepareFixture::new();
    place.env.clear();
    place.set("X", "y");
    assert_eq!(
        place.brief("runtime: command, command: x").env["PATH"],
        "/usr/local/bin:/usr/bin:/bin"
    );
}

#[test]
fn whatever_may_be_a_secret_is_kept_out_of_what_we_write() {
    let mut place = PrepareFixture::new();
    place.set("DEPLOY", "deploy-deploy");
    place.set("GITHUB_TOKEN", "github-github");
    place.set("SHORT_KEY", "short");
    place.set("PLAIN", "plain-plain");
    let brief = place.brief(
        "secrets: [DEPLOY], env: {MY_PASSWORD: password-1, PLAIN: plain-plain}, mcp_servers: { \
         one: {command: x, env: {API_KEY: mcp-env-key, HOST: localhost-1}}, \
         two: {url: 'https://u:url-password@h/x?token=url-token-1&page=page-page', headers: { \
           Authorization: 'Bearer bearer-1234', X-Api-Key: header-key-1, Accept: application/json, \
           Cookie: 'a=cookie-1234; b=\"cookie-5678\", c=short'}}}",
    );
    let expected = [
        "Bearer bearer-1234",
        "a=cookie-1234; b=\"cookie-5678\", c=short",
        "bearer-1234",
        "cookie-1234",
        "cookie-5678",
        "deploy-deploy",
        "github-github",
        "header-key-1",
        "mcp-env-key",
        "password-1",
        "url-password",
        "url-token-1",
    ];
    assert_eq!(brief.secrets, expected);
}

#[test]
fn what_is_taken_in_from_outside_is_cleaned_of_the_secrets_of_the_whole_fleet() {
    let mut place = PrepareFixture::new();
    place.set("DEPLOY", "deploy-deploy");
    // The other one could not even run: it lacks a secret.
    let fleet = "env: {MY_PASSWORD: password-1}}\n  - {name: b, secrets: [DEPLOY, MISSING], \
        env: {OTHER_TOKEN: other-token-1}";
    let secrets = |take_in: bool| {
        place.prepare(fleet, JobRequest { take_in, ..asked("hi") }).unwrap().brief.secrets
    };
    assert_eq!(secrets(false), ["deploy-deploy", "password-1"]);
    assert_eq!(secrets(true), ["deploy-deploy", "other-token-1", "password-1"]);
}

#[test]
fn a_secret_that_is_missing_or_too_short_is_refused() {
    let mut place = PrepareFixture::new();
    let refused = |place: &PrepareFixture| {
        place.prepare("secrets: [DEPLOY]", asked("x")).unwrap_err().to_string()
    };
    assert!(refused(&place).contains("a needs the secret DEPLOY"));
    place.set("DEPLOY", "");
    assert!(refused(&place).contains("a needs the secret DEPLOY"));
    place.set("DEPLOY", "hunter2");
    let told = refused(&place);
    assert!(told.contains("shorter than 8 bytes") && !told.contains("hunter2"), "{told}");
}

#[test]
fn claude_is_found_on_path_or_where_the_config_says() {
    let place = PrepareFixture::new();
    assert_eq!(place.claude("model: m").program, place.root.join("claude"));
    assert_eq!(place.claude("claude_path: ./claude").program, place.root.join("claude"));
    let error = place.prepare("claude_path: claude-next", asked("x")).unwrap_err().to_string();
    assert!(error.starts_with("cannot find `claude-next` on PATH: install"), "{error}");
    let error = place.prepare("claude_path: ./none", asked("x")).unwrap_err().to_string();
    assert!(error.contains("none`: install Claude Code"), "{error}");
}

#[test]
fn permissions_of_a_conversation_stay_within_the_config() {
    let place = PrepareFixture::new();
    let rule = PermissionRule { tool: "Bash".to_owned(), content: Some("npm test:*".to_owned()) };
    let claude = |keys: &str, mode: &str| {
        let permissions =
            PermissionGrant { mode: Some(mode.to_owned()), allow: vec![rule.clone()] };
        let prepared = place.prepare(keys, JobRequest { permissions, ..asked("x") }).unwrap();
        match prepared.brief.work {
            RuntimeLaunchSpec::Claude(claude) => *claude,
            _ => panic!("it is Claude"),
        }
    };
    let brief = claude("model: m", "acceptEdits");
    assert_eq!(brief.permission_mode, "acceptEdits");
    assert_eq!(brief.granted, ["Bash(npm test:*)"]);
    assert_eq!(claude("permission_mode: acceptEdits", "plan").permission_mode, "plan");
    // Only the config skips permissions, and a review stays one.
    assert_eq!(claude("permission_mode: plan", "bypassPermissions").permission_mode, "plan");
    let reviewed = claude("approvals: review", "acceptEdits");
    assert_eq!(reviewed.permission_mode, "default");
    assert!(reviewed.granted.is_empty());
}

#[test]
fn what_the_config_says_of_claude_is_handed_over() {
    let place = PrepareFixture::new();
    let brief = place.claude(
        "permission_mode: plan, allowed_tools: [Read, 'mcp__x__*'], denied_tools: [Bash], tools: [Read], \
         system_prompt: Be brief., model: m, plugins: [./p], mcp_servers: {web: {url: 'https://h/', \
         timeout: 3s, alwaysLoad: true, headers: {A: b}}, local: {command: c, args: [d], env: {E: f}}}",
    );
    assert_eq!(brief.permission_mode, "plan");
    assert_eq!(brief.allowed_tools.unwrap(), ["Read", "mcp__x__*"]);
    assert_eq!(
        (brief.denied_tools, brief.tools.unwrap()),
        (vec!["Bash".to_owned()], vec!["Read".to_owned()])
    );
    assert_eq!(
        (brief.system_prompt.unwrap().as_str(), brief.model.unwrap().as_str()),
        ("Be brief.", "m")
    );
    assert_eq!(brief.plugins, [place.root.join("p")]);
    let McpServerSpec::Http { url, headers, timeout_ms, always_load } = &brief.mcp_servers["web"]
    else {
        panic!()
    };
    assert_eq!((url.as_str(), headers["A"].as_str()), ("https://h/", "b"));
    assert_eq!((*timeout_ms, *always_load), (Some(3000), Some(true)));
    let McpServerSpec::Stdio { command, args, env, .. } = &brief.mcp_servers["local"] else {
        panic!()
    };
    assert_eq!((command.as_str(), args[0].as_str(), env["E"].as_str()), ("c", "d", "f"));
}

#[test]
fn settings_come_from_a_working_directory_that_is_named() {
    let place = PrepareFixture::new();
    assert_eq!(place.claude("model: m").setting_sources, [""; 0]);
    assert_eq!(place.claude("working_directory: .").setting_sources, ["project"]);
    assert_eq!(place.claude("runtime: cli").setting_sources, ["project"]);
    assert_eq!(place.claude("setting_sources: [user, local]").setting_sources, ["user", "local"]);
    assert_eq!(place.claude("working_directory: ., setting_sources: []").setting_sources, [""; 0]);
    assert_eq!(place.claude("model: m").allowed_tools, None);
    assert_eq!(place.claude("allowed_tools: []").allowed_tools, Some(Vec::new()));
}

#[test]
fn the_prompt_is_the_given_one_the_schedules_or_the_default() {
    let place = PrepareFixture::new();
    let agent = "default_prompt: default, schedules: {s: {interval: 1h, prompt: scheduled}, t: {interval: 1h}}";
    let prompt = |wanted| place.prepare(agent, wanted).unwrap().brief.prompt;
    let on = |schedule: &str| JobRequest { schedule: Some(schedule.to_owned()), ..unasked() };
    assert_eq!(prompt(asked("given")), "given");
    assert_eq!(prompt(on("s")), "scheduled");
    assert_eq!(prompt(JobRequest { schedule: Some("s".to_owned()), ..asked("given") }), "given");
    assert_eq!(prompt(on("t")), "default");
    assert_eq!(prompt(unasked()), "default");
    assert!(
        place.prepare("model: m", unasked()).unwrap_err().to_string().contains("no prompt for a")
    );
    assert!(matches!(place.prepare("model: m", asked(" ")), Err(PrepareError::Prompt { .. })));
    assert_eq!(place.prepare("runtime: command, command: x", unasked()).unwrap().brief.prompt, "");
    let error = place.prepare(agent, on("u")).unwrap_err().to_string();
    assert_eq!(error, "a has no schedule `u`; it has s, t");
}

#[test]
fn an_agent_with_a_model_may_be_silent_for_an_hour() {
    let place = PrepareFixture::new();
    let limit = |agent: &str| place.prepare(agent, asked("x")).unwrap().limits.stall_timeout_ms;
    assert_eq!(limit("model: m"), Some(3_600_000));
    assert_eq!(limit("stall_timeout: 2h"), Some(7_200_000));
    assert_eq!(limit("runtime: command, command: 'true'"), None);
    assert_eq!(limit("runtime: scripted, script: [{say: hi}]"), None);
}

#[test]
fn limits_sessions_and_attendance_follow_the_config() {
    let place = PrepareFixture::new();
    let agent = "timeout: 1h, stall_timeout: 5m, max_turns: 7, budget: {job: 1.5}, session: {mode: persistent}, \
                 schedules: {s: {interval: 1h, prompt: p, timeout: 2h, outputToFile: true, session: {mode: fresh_per_job}}}";
    let request = place.prepare(agent, asked("x")).unwrap();
    let limits = &request.limits;
    assert_eq!((limits.timeout_ms, limits.stall_timeout_ms), (Some(3_600_000), Some(300_000)));
    assert_eq!((limits.max_turns, limits.budget_usd), (Some(7), Some(1.5)));
    assert_eq!(request.rules.mode, SessionMode::Persistent);
    assert_eq!(request.rules.expires_after, Some("24h".parse().unwrap()));
    assert_eq!((request.attendance, request.output_file), (QuestionPolicy::Nobody, false));

    let scheduled = JobRequest { schedule: Some("s".to_owned()), attended: true, ..unasked() };
    let request = place.prepare(agent, scheduled).unwrap();
    assert_eq!(request.limits.timeout_ms, Some(7_200_000));
    assert_eq!(request.rules.mode, SessionMode::FreshPerJob);
    assert_eq!((request.schedule.as_deref(), request.output_file), (Some("s"), true));
    assert!(matches!(request.attendance, QuestionPolicy::Person { .. }));

    let in_channel = JobRequest { channel: Some("C1".to_owned()), ..asked("x") };
    let rules = place.prepare("model: m", in_channel).unwrap().rules;
    assert_eq!(
        (rules.mode, rules.expires_after),
        (SessionMode::PerChannel, Some("24h".parse().unwrap()))
    );
}

#[test]
fn an_agent_never_runs_without_the_isolation_that_it_asks_for() {
    let place = PrepareFixture::new();
    let refused = |place: &PrepareFixture, keys: &str| {
        let agent = format!("docker: {{enabled: true{keys}}}");
        heeler_model::error_chain(&place.prepare(&agent, asked("x")).unwrap_err())
    };
    let mut place = place;
    place.set("DOCKER_HOST", "tcp://10.0.0.1:2375");
    let error = refused(&place, "");
    assert!(
        error.starts_with("a cannot run in its container") && error.contains("tcp:"),
        "{error}"
    );
    place.set("DOCKER_HOST", "unix:///nowhere/engine.sock");
    let error = refused(&place, ", volumes: ['/nowhere/x:/x']");
    assert!(error.contains("the volume /nowhere/x cannot be mounted"), "{error}");
    for agent in ["docker: {enabled: false}", "sandbox: false", "sandbox: {enabled: false}"] {
        assert_eq!(place.brief(agent).sandbox, None, "{agent}");
    }
    for (keys, kept_max) in [
        ("", None),
        (", max_containers: 3", None),
        (", ephemeral: false", Some(5)),
        (", ephemeral: false, max_containers: 3", Some(3)),
    ] {
        let brief = place.brief(&format!("docker: {{enabled: true{keys}}}"));
        assert_eq!(brief.sandbox.unwrap().container.unwrap().kept_max, kept_max, "{keys}");
    }
}

#[test]
fn a_container_has_the_isolation_of_a_sandbox_and_programs_of_its_image() {
    let mut place = PrepareFixture::new();
    place.set("DOCKER_HOST", "unix:///nowhere/engine.sock");
    place.set("HOME", "/home/ann");
    place.is_root = true;
    let keys = "permission_mode: bypassPermissions, env: {A: agent}, docker: {enabled: true, \
                image: i, volumes: ['/usr:/u:ro', 'cache:/c'], env: {A: docker, B: docker, PATH: /x}}";
    let brief = place.brief(keys);
    let sandbox = brief.sandbox.unwrap();
    assert!(sandbox.hidden.iter().any(|it| it == "/home/ann/.ssh"), "{:?}", sandbox.hidden);
    let container = sandbox.container.unwrap();
    assert_eq!(
        (container.engine.as_str(), container.image.as_str()),
        ("/nowhere/engine.sock", "i")
    );
    let sources: Vec<&str> = container.volumes.iter().map(|it| it.source.as_str()).collect();
    assert_eq!(sources, ["/usr", "cache"]);
    assert_eq!((brief.env["A"].as_str(), brief.env["B"].as_str()), ("agent", "docker"));
    // The runner needs its own for programs of this machine.
    assert_ne!(brief.env["PATH"], "/x");
    assert_eq!(container.local_env["PATH"].as_deref(), Some("/x"));
    assert_eq!(container.local_env["HOME"], None);
    // The image has the program, so it need not be on this machine.
    place.set("PATH", "/nowhere");
    assert_eq!(place.claude("docker: {enabled: true}").program, "claude");
}

#[test]
fn a_volume_with_files_of_heeler_is_refused() {
    let mut place = PrepareFixture::new();
    place.set("DOCKER_HOST", "unix:///nowhere/engine.sock");
    std::fs::create_dir_all(place.root.join("a/home")).unwrap();
    place.home = place.root.join("a/home");
    for folder in ["a", "a/home", ""] {
        let path = place.root.join(folder);
        let keys = format!("docker: {{enabled: true, volumes: ['{path}:/x']}}");
        let error = place.prepare(&keys, asked("x")).unwrap_err();
        let error = heeler_model::error_chain(&error);
        assert!(error.contains("which belongs to Heeler"), "{folder}: {error}");
    }
}

#[test]
fn a_sandbox_hides_credentials_and_what_belongs_to_others() {
    let mut place = PrepareFixture::new();
    place.set("HOME", "/home/ann");
    let hides = |sandbox: &SandboxSpec, path: &str| sandbox.hidden.iter().any(|it| it == path);
    let sandbox = place.brief("sandbox: true").sandbox.unwrap();
    for path in ["/home/ann/.ssh", "/home/ann/.aws", "/fleet/.env", "/etc/shadow"] {
        assert!(hides(&sandbox, path), "{path}: {:?}", sandbox.hidden);
    }
    // The login of another agent program, unless the config grants its directory.
    let (codex, gemini) = ("/home/ann/.codex/auth.json", "/home/ann/.gemini/oauth_creds.json");
    assert!(hides(&sandbox, codex) && hides(&sandbox, gemini), "{:?}", sandbox.hidden);
    let granted = place.brief("sandbox: {write: [/home/ann/.codex]}").sandbox.unwrap();
    assert!(!hides(&granted, codex) && hides(&granted, gemini), "{:?}", granted.hidden);
    assert!(sandbox.protected.iter().any(|it| it == "/fleet/heeler.yaml"));
    let keys = "sandbox: {write: [/w], read_only: [/r], deny_read: [/d], unix_sockets: deny}";
    let sandbox = place.brief(keys).sandbox.unwrap();
    assert_eq!((sandbox.writable, sandbox.readable), (vec!["/w".into()], vec!["/r".into()]));
    assert!(sandbox.hidden.iter().any(|it| it == "/d") && sandbox.denies_unix_sockets);
    // A sandbox is what root needs to bypass permissions.
    place.is_root = true;
    place.brief("permission_mode: bypassPermissions, sandbox: true");
}

#[test]
fn a_working_directory_is_a_real_folder() {
    let place = PrepareFixture::new();
    std::fs::create_dir(place.root.join("real")).unwrap();
    std::os::unix::fs::symlink("real", place.root.join("link")).unwrap();
    let request = place.prepare("working_directory: link", asked("x")).unwrap();
    assert_eq!(request.working_directory, place.root.join("real"));
    for folder in ["none", "claude"] {
        let agent = format!("working_directory: {folder}");
        let error = place.prepare(&agent, asked("x")).unwrap_err().to_string();
        assert!(error.contains("make that folder"), "{error}");
    }
}

#[test]
fn a_sandbox_is_not_moved_by_a_link_of_another_agent() {
    let place = PrepareFixture::new();
    for folder in ["shared/own", "elsewhere"] {
        std::fs::create_dir_all(place.root.join(folder)).unwrap();
    }
    let other = "}\n  - {name: b, runtime: command, command: date, working_directory: shared";
    let prepare = |folder: &str, sandbox: &str| {
        let agent = format!("working_directory: {folder}, sandbox: {sandbox}{other}");
        place.prepare(&agent, asked("x")).map(|request| request.working_directory)
    };
    assert_eq!(prepare("shared/own", "true").unwrap(), place.root.join("shared/own"));
    std::os::unix::fs::symlink("../elsewhere", place.root.join("shared/link")).unwrap();
    let refused = prepare("shared/link", "true").unwrap_err().to_string();
    assert!(refused.contains("behind a link in the working directory of b"), "{refused}");
    assert!(prepare("shared/link", "false").is_ok(), "without a sandbox it may write anything");
    std::os::unix::fs::symlink("own", place.root.join("shared/inner")).unwrap();
    assert_eq!(prepare("shared/inner", "true").unwrap(), place.root.join("shared/own"));
}

#[test]
fn a_request_survives_its_pipe() {
    let place = PrepareFixture::new();
    let request = place.prepare("model: m, secrets: [], env: {A: b}", asked("x")).unwrap();
    let text = serde_json::to_string(&request).unwrap();
    let read: ResolvedJobRequest = serde_json::from_str(&text).unwrap();
    assert!(read.brief == request.brief && read.limits == request.limits);
    assert_eq!(format!("{read:?}"), "JobRequest(a, …)");
}
