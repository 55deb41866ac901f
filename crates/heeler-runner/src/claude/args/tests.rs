//! Claude's command lines, as golden texts.

use std::fmt::Write as _;

use expect_test::{Expect, expect};
use uuid::Uuid;

use super::*;
use crate::claude::{ClaudeCliRuntime, SdkRuntime};
use crate::runtime::AgentRuntime as _;

fn setup() -> ClaudeLaunchOptions {
    let brief = ClaudeLaunchSpec {
        program: "/opt/claude".into(),
        permission_mode: "acceptEdits".to_owned(),
        setting_sources: vec!["project".to_owned()],
        ..ClaudeLaunchSpec::default()
    };
    let (limits, mcp) = (RunLimits::default(), json!({ "mcpServers": {} }));
    ClaudeLaunchOptions { brief, limits, mcp, injected: Vec::new(), long_running: false }
}

fn fresh() -> SessionStart {
    SessionStart::Fresh { id: "5f0a9b3e-0000-4000-8000-000000000001".parse().unwrap() }
}

fn list(entries: &[&str]) -> Vec<String> {
    entries.iter().map(|entry| (*entry).to_owned()).collect()
}

/// Writes a launch down: an option and its values a line, files by their content.
fn shown(launch: &LaunchSpec) -> String {
    let mut shown = launch.program.to_string();
    for arg in &launch.args {
        match arg {
            LaunchArg::Text(text) if text.starts_with('-') => write!(shown, "\n{text}").unwrap(),
            LaunchArg::Text(text) | LaunchArg::ConfigText(_, text) => {
                write!(shown, " {text:?}").unwrap();
            }
            LaunchArg::File(bytes) => {
                write!(shown, " file:{}", std::str::from_utf8(bytes).unwrap()).unwrap();
            }
        }
    }
    for (name, value) in &launch.env {
        write!(shown, "\n{name}={value}").unwrap();
    }
    shown + "\n"
}

#[track_caller]
fn check_sdk(setup: ClaudeLaunchOptions, session: &SessionStart, expected: Expect) {
    let mut sdk = SdkRuntime::claude("the prompt".to_owned(), setup).unwrap();
    expected.assert_eq(&shown(&sdk.launch_spec(session)));
}

#[track_caller]
fn check_cli(setup: ClaudeLaunchOptions, session: &SessionStart, expected: Expect) {
    let mut cli = ClaudeCliRuntime::new("the prompt".to_owned(), setup).unwrap();
    expected.assert_eq(&shown(&cli.launch_spec(session)));
}

/// Only what differs from the plain start.
#[track_caller]
fn check_adds(setup: ClaudeLaunchOptions, session: &SessionStart, expected: Expect) {
    let plain =
        shown(&SdkRuntime::claude(String::new(), self::setup()).unwrap().launch_spec(&fresh()));
    let mut sdk = SdkRuntime::claude(String::new(), setup).unwrap();
    let more = shown(&sdk.launch_spec(session));
    let added = more.lines().filter(|line| !plain.lines().any(|other| other == *line));
    expected.assert_eq(&added.map(|line| format!("{line}\n")).collect::<String>());
}

#[test]
fn protected_files_have_rules_in_every_mode_and_with_every_list() {
    let lists = [None, Some(list(&["Write"])), Some(list(&["Write", "Bash"]))];
    for mode in ["default", "acceptEdits", "dontAsk", "auto", "bypassPermissions"] {
        for allowed in &lists {
            let mut setup = setup();
            setup.brief.permission_mode = mode.to_owned();
            setup.brief.allowed_tools.clone_from(allowed);
            setup.brief.protected = vec!["/my (fleet)/.env".into()];
            setup.brief.instructed = vec!["/other".into()];
            setup.brief.unreadable = vec!["/fleet/.heeler/api-token".into()];
            let policy = CallPolicy::from_brief(&setup.brief, &[]).unwrap();
            let deny = &setup.settings(&policy)["permissions"]["deny"];
            let deny: Vec<&str> =
                deny.as_array().unwrap().iter().flat_map(|it| it.as_str()).collect();
            let expected = [
                "Edit(//my**fleet*/.env)",
                "Edit(//my**fleet*/.env/**)",
                "Edit(//other/**/CLAUDE.md)",
                "Edit(//other/**/CLAUDE.md/**)",
                "Edit(//other/**/CLAUDE.local.md)",
                "Edit(//other/**/CLAUDE.local.md/**)",
                "Edit(//other/**/.claude)",
                "Edit(//other/**/.claude/**)",
                "Read(//fleet/.heeler/api-token)",
                "Read(//fleet/.heeler/api-token/**)",
                "Edit(//**/.git)",
                "Edit(//**/.git/**)",
            ];
            assert_eq!(deny[..12], expected, "{mode} {allowed:?}");
            for launch in [setup.sdk_launch(&policy, &fresh()), setup.cli_launch(&policy, &fresh())]
            {
                assert!(shown(&launch).contains("--settings file:"), "{mode} {allowed:?}");
            }
        }
    }
}

#[test]
fn a_plain_agent_is_started_with_the_protocol() {
    check_sdk(
        setup(),
        &fresh(),
        expect![[r#"
        /opt/claude
        -p
        --input-format "stream-json"
        --output-format "stream-json"
        --verbose
        --include-partial-messages
        --session-id "5f0a9b3e-0000-4000-8000-000000000001"
        --permission-mode "acceptEdits"
        --setting-sources "project"
        --permission-prompt-tool "stdio"
        CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS=1
    "#]],
    );
}

#[test]
fn a_plain_agent_is_started_for_one_prompt() {
    check_cli(
        setup(),
        &fresh(),
        expect![[r#"
        /opt/claude
        -p
        --output-format "stream-json"
        --verbose
        --include-partial-messages
        --session-id "5f0a9b3e-0000-4000-8000-000000000001"
        --permission-mode "acceptEdits"
        --setting-sources "project"
        CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS=1
    "#]],
    );
}

#[test]
fn a_reasoning_effort_is_passed_on() {
    let mut setup = setup();
    setup.brief.effort = Some(heeler_config::ReasoningEffort::Xhigh);
    check_adds(
        setup,
        &fresh(),
        expect![[r#"
        --effort "xhigh"
    "#]],
    );
}

#[test]
fn no_setting_source_is_said_too() {
    let mut setup = setup();
    setup.brief.setting_sources.clear();
    check_adds(
        setup,
        &fresh(),
        expect![[r#"
        --setting-sources ""
    "#]],
    );
}

#[test]
fn a_session_is_continued_or_forked() {
    let source: heeler_model::AgentSessionId =
        "5f0a9b3e-0000-4000-8000-000000000002".parse().unwrap();
    let SessionStart::Fresh { id } = fresh() else { unreachable!() };
    let resume = SessionStart::Resume { id: id.clone() };
    check_adds(
        setup(),
        &resume,
        expect![[r#"
        --resume "5f0a9b3e-0000-4000-8000-000000000001"
    "#]],
    );
    let fork = SessionStart::Fork { source: source.clone(), id: id.clone(), at: None };
    check_adds(
        setup(),
        &fork,
        expect![[r#"
        --resume "5f0a9b3e-0000-4000-8000-000000000002"
        --fork-session
    "#]],
    );
    let at = SessionStart::Fork { source, id, at: Some(Uuid::from_u128(7)) };
    check_adds(
        setup(),
        &at,
        expect![[r#"
        --resume "5f0a9b3e-0000-4000-8000-000000000002"
        --fork-session
        --resume-session-at "00000000-0000-0000-0000-000000000007"
    "#]],
    );
}

#[test]
fn limits_model_and_plugins_are_passed_on() {
    let mut setup = setup();
    setup.limits.max_turns = Some(12);
    setup.limits.budget_usd = Some(0.25);
    setup.brief.model = Some("opus".to_owned());
    setup.brief.plugins = vec!["/p/one".into(), "/p/two".into()];
    check_adds(
        setup,
        &fresh(),
        expect![[r#"
        --model "opus"
        --plugin-dir "/p/one"
        --plugin-dir "/p/two"
        --max-turns "12"
        --max-budget-usd "0.25"
    "#]],
    );
}

#[test]
fn what_may_hold_secrets_is_a_file_in_memory() {
    let mut setup = setup();
    setup.brief.system_prompt = Some("Use the key k-123.".to_owned());
    setup.mcp = json!({ "mcpServers": { "github": { "env": { "TOKEN": "t-123" } } } });
    let launch =
        SdkRuntime::claude("prompt p-123".to_owned(), setup).unwrap().launch_spec(&fresh());
    let texts = launch.args.iter().filter_map(|arg| match arg {
        LaunchArg::Text(text) | LaunchArg::ConfigText(_, text) => Some(text),
        LaunchArg::File(_) => None,
    });
    assert!(texts.clone().all(|text| !text.contains("-123")), "{launch:?}");
    assert!(shown(&launch).contains("--system-prompt-file file:Use the key k-123."));
    assert!(shown(&launch).contains(r#"--mcp-config file:{"mcpServers":{"github""#));
}

#[test]
fn denied_and_given_tools_are_passed_on() {
    let mut setup = setup();
    setup.brief.tools = Some(list(&["Read", "Bash"]));
    setup.brief.denied_tools = list(&["Bash(rm *)", "mcp__postgres__execute_query"]);
    check_adds(
        setup,
        &fresh(),
        expect![[r#"
        --tools "Read,Bash"
        --disallowedTools "Bash(rm *),mcp__postgres__execute_query"
    "#]],
    );
    let mut setup = self::setup();
    setup.brief.tools = Some(Vec::new());
    check_adds(
        setup,
        &fresh(),
        expect![[r#"
        --tools ""
    "#]],
    );
}

#[test]
fn a_list_of_allowed_tools_leaves_no_other_built_in_tool() {
    let mut setup = setup();
    setup.brief.allowed_tools = Some(list(&["Read", "Bash(git *)", "Bash(npm test)", "mcp__x__*"]));
    setup.injected = list(&["fleet"]);
    check_adds(
        setup.clone(),
        &fresh(),
        expect![[r#"
            --tools "Read,Bash"
            --allowedTools "Read,Bash(git *),Bash(npm test),mcp__x__*,mcp__fleet__*"
            --settings file:{"env":{"CLAUDE_CODE_SIMPLE":"0"},"disableSkillShellExecution":true}
            CLAUDE_CODE_SIMPLE=0
        "#]],
    );
    setup.brief.tools = Some(list(&["Read", "Write"]));
    check_adds(
        setup.clone(),
        &fresh(),
        expect![[r#"
            --tools "Read"
            --allowedTools "Read,Bash(git *),Bash(npm test),mcp__x__*,mcp__fleet__*"
            --settings file:{"env":{"CLAUDE_CODE_SIMPLE":"0"},"disableSkillShellExecution":true}
            CLAUDE_CODE_SIMPLE=0
        "#]],
    );
    setup.brief.allowed_tools = Some(Vec::new());
    setup.brief.tools = None;
    setup.injected.clear();
    check_adds(
        setup,
        &fresh(),
        expect![[r#"
            --tools ""
            --settings file:{"env":{"CLAUDE_CODE_SIMPLE":"0"},"disableSkillShellExecution":true}
            CLAUDE_CODE_SIMPLE=0
        "#]],
    );
}

#[test]
fn nobody_is_asked_about_our_own_tools_where_there_is_no_list() {
    let mut setup = setup();
    setup.injected = list(&["heeler-files", "heeler"]);
    check_adds(
        setup.clone(),
        &fresh(),
        expect![[r#"
            --allowedTools "mcp__heeler-files__*,mcp__heeler__*"
        "#]],
    );
    let cli = shown(&ClaudeCliRuntime::new(String::new(), setup).unwrap().launch_spec(&fresh()));
    assert!(cli.contains("--allowedTools \"mcp__heeler-files__*,mcp__heeler__*\""), "{cli}");
}

#[test]
fn for_one_prompt_only_listed_servers_are_there() {
    let mut setup = setup();
    setup.brief.allowed_tools = Some(list(&["Task", "mcp__github"]));
    setup.injected = list(&["fleet"]);
    setup.mcp = json!({ "mcpServers": { "github": {}, "postgres": {}, "fleet": {} } });
    check_cli(
        setup,
        &fresh(),
        expect![[r#"
            /opt/claude
            -p
            --output-format "stream-json"
            --verbose
            --include-partial-messages
            --session-id "5f0a9b3e-0000-4000-8000-000000000001"
            --permission-mode "acceptEdits"
            --setting-sources "project"
            --tools "Agent"
            --allowedTools "Task,mcp__github,mcp__fleet__*"
            --settings file:{"env":{"CLAUDE_CODE_SIMPLE":"0"},"disableSkillShellExecution":true}
            --mcp-config file:{"mcpServers":{"github":{},"fleet":{}}}
            --strict-mcp-config
            CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS=1
        "#]],
    );
}

#[test]
fn no_mode_claims_a_sandbox() {
    for mode in ["bypassPermissions", "acceptEdits"] {
        let mut setup = setup();
        setup.brief.permission_mode = mode.to_owned();
        let launch = SdkRuntime::claude(String::new(), setup).unwrap().launch_spec(&fresh());
        assert!(!launch.env.iter().any(|(name, _)| name == "IS_SANDBOX"), "{mode}");
    }
}

#[test]
fn a_tool_that_takes_its_time_keeps_the_streams_open() {
    let mut setup = setup();
    setup.long_running = true;
    check_adds(
        setup,
        &fresh(),
        expect![[r#"
        CLAUDE_CODE_STREAM_CLOSE_TIMEOUT=120000
    "#]],
    );
}

#[test]
fn a_list_is_not_opened_by_settings() {
    for (mode, entries, expected) in [
        (
            "acceptEdits",
            ["Write", "Bash(git *)"],
            expect![[
                r#"--settings file:{"env":{"CLAUDE_CODE_SIMPLE":"0"},"disableSkillShellExecution":true}"#
            ]],
        ),
        (
            "bypassPermissions",
            ["Write", "Bash(git *)"],
            expect![[
                r#"--settings file:{"env":{"CLAUDE_CODE_SIMPLE":"0"},"disableSkillShellExecution":true,"permissions":{"deny":["Edit(//**/.claude/**)","Edit(//**/.mcp.json)"]}}"#
            ]],
        ),
        (
            "bypassPermissions",
            ["Write", "Bash"],
            expect![[r#"--settings file:{"env":{"CLAUDE_CODE_SIMPLE":"0"}}"#]],
        ),
    ] {
        let mut setup = setup();
        setup.brief.permission_mode = mode.to_owned();
        setup.brief.allowed_tools = Some(list(&entries));
        let launch =
            shown(&SdkRuntime::claude(String::new(), setup).unwrap().launch_spec(&fresh()));
        let settings = launch.lines().find(|line| line.starts_with("--settings"));
        expected.assert_eq(settings.expect("a list has settings"));
    }
}
