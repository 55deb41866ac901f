//! Agents that do not open their session, or whose reply is damaged.

use heeler_config::{ClientTools, PermissionMode};

use super::*;
use crate::acp::{AcpLaunchOptions, AcpRuntime};
use crate::program_policy::ProgramPolicy;
use crate::token_budget::TokenBudget;

fn acp_of_script(context: &RuntimeContext<'_>) -> Result<Box<dyn AgentRuntime>, String> {
    let RuntimeLaunchSpec::Command { command } = &context.host.brief.work else {
        return Err("no script".to_owned());
    };
    let script = LaunchArg::File(command.clone().into_bytes());
    let mode = PermissionMode::BypassPermissions;
    let directory = context.spec.working_directory.clone();
    let options = AcpLaunchOptions {
        launch: LaunchSpec { program: "/bin/sh".into(), args: vec![script], env: Vec::new() },
        agent: "a script".to_owned(),
        known: None,
        mode,
        policy: ProgramPolicy::new(mode, Vec::new(), Vec::new(), directory.clone()),
        client_tools: ClientTools::NONE,
        system_prompt: None,
        model: None,
        mcp_servers: IndexMap::new(),
        injected: Vec::new(),
        working_directory: directory,
        native_session: None,
        fork: None,
        budget: TokenBudget::default(),
    };
    Ok(Box::new(AcpRuntime::new(context.host.brief.prompt.clone(), options)))
}

/// A run of a shell script that is an ACP agent.
fn acp_fixture(script: &str) -> RunFixture {
    let mut trial = command_fixture(script);
    trial.spec.runtime = RuntimeType::Scripted;
    trial.means.runtime = acp_of_script;
    trial
}

#[test]
fn a_mute_agent_does_not_open_its_session_for_ever() {
    let mut trial = acp_fixture("cat > /dev/null");
    trial.means.opening_time_max = LIMIT;
    let result = trial.run();
    assert_eq!(class(&result), Some(ErrorClass::Stalled));
    let message = result.error.unwrap().message;
    assert_eq!(message, "the agent opened no session within 0.2 s");
}

#[test]
fn an_agent_that_says_other_things_does_not_open_its_session_for_ever() {
    let notification = r#"{"jsonrpc":"2.0","method":"_x/alive"}"#;
    let script = format!("while :; do echo '{notification}'; sleep 0.02; done");
    let mut trial = acp_fixture(&script);
    trial.means.opening_time_max = LIMIT;
    assert_eq!(class(&trial.run()), Some(ErrorClass::Stalled));
}

/// The time limit is that of a real run, so these end because of the reply.
#[test]
fn a_damaged_reply_to_the_opening_ends_the_run_at_once() {
    let initialized = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1}}"#;
    for reply in [
        r#"echo '{"jsonrpc":"2.0","id":1,"resu'"#.to_owned(),
        r#"echo '"2.0","id":1,"result":{"protocolVersion":1}}'"#.to_owned(),
        r#"echo '{"jsonrpc":"2.0","id":9,"result":{"protocolVersion":1}}'"#.to_owned(),
        r#"echo '{"jsonrpc":"2.0","id":"1","result":{"protocolVersion":1}}'"#.to_owned(),
        r#"echo '{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"bad"}}'"#.to_owned(),
        format!("echo '{initialized}'; read -r line; echo '{{\"jsonrpc\":\"2.0\",\"id\":2}}'"),
    ] {
        let result = acp_fixture(&format!("read -r line; {reply}; cat > /dev/null")).run();
        assert_eq!(class(&result), Some(ErrorClass::AgentFailed), "{reply}: {:?}", result.error);
        let message = result.error.unwrap().message;
        assert!(message.contains("its reply was damaged or had a wrong ID"), "{message}");
    }
}

#[test]
fn words_before_the_protocol_begins_are_no_damage() {
    let script = r#"
        echo 'Welcome to the agent'; read -r line
        echo '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1}}'; read -r line
        echo '{"jsonrpc":"2.0","id":2,"result":{"sessionId":"s"}}'; read -r line
        echo '{"jsonrpc":"2.0","id":3,"result":{"stopReason":"end_turn"}}'; cat > /dev/null"#;
    let result = acp_fixture(script).run();
    assert_eq!(class(&result), None, "{:?}", result.error);
}
