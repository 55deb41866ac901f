//! The real claude in a sandbox: tools, our own servers, and a session that moves in and out.
//!
//! The sandbox has no network. Claude reaches the API through the egress proxy of the run.

use heeler_testkit::ModelScript;
use serde_json::json;

use super::contained::sandboxed;
use super::{BOTH, Cli, Rig, RuntimeType, Sdk, succeeded, told, tool_results};

fn a_session_goes_into_a_sandbox_and_out_again(runtime: RuntimeType) {
    let rig = Rig::new();
    let say = |prompt: &str, script: ModelScript| rig.plan(runtime, &format!("{prompt} {script}"));
    let first = rig.run(say("one", ModelScript::new().text("Outside.")));
    succeeded(&first);
    let script = ModelScript::new()
        .tool("Bash", json!({"command": "echo made > made; touch /etc/nope || echo denied; ls /proc | grep -c '^[0-9]'"}))
        .text("Inside.");
    let mut plan = sandboxed(say("two", script).resume(&first));
    plan.claude().permission_mode = "bypassPermissions".to_owned();
    let second = rig.run(plan);
    succeeded(&second);
    assert_eq!(second.session_id(), first.session_id());
    assert!(told(&second).contains("assistant: Outside.\nuser: two"), "{}", told(&second));
    assert!(told(&second).contains("Read-only file system"), "{}", told(&second));
    assert_eq!(std::fs::read_to_string(rig.work("made")).unwrap(), "made\n");
    let third = rig.run(say("three", ModelScript::new().text("Out.")).resume(&second));
    succeeded(&third);
    assert_eq!(third.session_id(), first.session_id());
    let told = told(&third);
    assert!(told.contains("user: one") && told.contains("Inside.\nuser: three"), "{told}");
    assert_eq!(third.session[..second.session.len()], second.session, "a log only grows");
}

#[test]
fn a_session_of_the_sdk_goes_into_a_sandbox_and_out_again() {
    a_session_goes_into_a_sandbox_and_out_again(Sdk);
}

#[test]
fn a_session_of_the_cli_goes_into_a_sandbox_and_out_again() {
    a_session_goes_into_a_sandbox_and_out_again(Cli);
}

#[test]
fn our_own_tools_work_in_a_sandbox() {
    for runtime in BOTH {
        let rig = Rig::new();
        std::fs::write(rig.work("report.txt"), "all is well").unwrap();
        let script = ModelScript::new()
            .tool("mcp__heeler__report_progress", json!({"message": "half way", "percent": 50}))
            .tool("mcp__heeler-files__send_file", json!({"file_path": "report.txt"}))
            .text("Sent.");
        let mut plan = sandboxed(rig.script(runtime, &script));
        plan.brief.send_files_to = Some(rig.path("sent"));
        plan.claude().allowed_tools = Some(vec!["Read".to_owned()]);
        let end = rig.run(plan);
        succeeded(&end);
        let worked: Vec<bool> =
            tool_results(&end).into_iter().map(|(_, success)| success).collect();
        assert_eq!(worked, [true, true], "{runtime}: {:#?}", end.rows);
        let sockets: Vec<_> = std::fs::read_dir(rig.path("sockets")).unwrap().collect();
        assert!(sockets.is_empty(), "{sockets:?}");
    }
}
