//! The real claude in a container: tools, our own servers, and a session that moves through a sandbox
//! and a container and out again.
//!
//! The container has no network. Claude reaches the API through the egress proxy of the run.

use heeler_config::{ImagePull, MountMode};
use heeler_model::run::{ContainerSpec, ContainerVolume, SandboxSpec};
use heeler_testkit::{ModelScript, TEST_IMAGE, TestEngine, claude};
use serde_json::json;

use super::{BOTH, Rig, RuntimeType, Sdk, succeeded, told, tool_results};
use crate::fleet::{Fleet, Ran};
use crate::rig::Plan;

/// The plan, in a container.
pub(super) fn contained(mut plan: Plan, engine: &TestEngine) -> Plan {
    let local = ["PATH", "HOME", "USER", "TMPDIR"].map(|name| (name.to_owned(), None));
    let container = ContainerSpec {
        pull: ImagePull::Never,
        // The image has no programs.
        volumes: vec![ContainerVolume {
            source: "/usr".to_owned(),
            is_named: false,
            target: "/usr".to_owned(),
            mode: MountMode::ReadOnly,
        }],
        local_env: local.into_iter().collect(),
        ..ContainerSpec::new(engine.socket(), TEST_IMAGE.to_owned())
    };
    let readable = vec![claude()];
    let container = Some(container);
    plan.brief.sandbox = Some(SandboxSpec { readable, container, ..SandboxSpec::default() });
    plan
}

/// The plan, in a sandbox.
pub(super) fn sandboxed(mut plan: Plan) -> Plan {
    // Claude may be in a directory that is hidden.
    plan.brief.sandbox = Some(SandboxSpec { readable: vec![claude()], ..SandboxSpec::default() });
    plan
}

#[test]
fn a_session_goes_through_a_sandbox_and_a_container_and_out_again() {
    let (engine, rig) = (TestEngine::start(), Rig::new());
    let say = |prompt: &str, text: &str| {
        rig.plan(Sdk, &format!("{prompt} {}", ModelScript::new().text(text)))
    };
    let first = rig.run(say("one", "Outside."));
    succeeded(&first);
    let second = rig.run(sandboxed(say("two", "Sandboxed.").resume(&first)));
    succeeded(&second);
    let script = ModelScript::new()
        .tool(
            "Bash",
            json!({"command": "cat /proc/1/comm > made; grep -c : /proc/net/dev >> made"}),
        )
        .text("Contained.");
    let plan = rig.plan(Sdk, &format!("three {script}")).resume(&second);
    let mut plan = contained(plan, &engine);
    plan.claude().permission_mode = "bypassPermissions".to_owned();
    let third = rig.run(plan);
    succeeded(&third);
    assert_eq!(std::fs::read_to_string(rig.work("made")).unwrap(), ".heeler-inside\n1\n");
    let fourth = rig.run(say("four", "Out.").resume(&third));
    succeeded(&fourth);
    assert_eq!(fourth.session_id(), first.session_id());
    let told = told(&fourth);
    for part in
        ["user: one", "Outside.\nuser: two", "Sandboxed.\nuser: three", "Contained.\nuser: four"]
    {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert_eq!(engine.containers(), [""; 0]);
}

#[test]
fn our_own_tools_work_in_a_container() {
    let engine = TestEngine::start();
    for runtime in BOTH {
        let rig = Rig::new();
        std::fs::write(rig.work("report.txt"), "all is well").unwrap();
        let script = ModelScript::new()
            .tool("mcp__heeler__report_progress", json!({"message": "half way", "percent": 50}))
            .tool("mcp__heeler-files__send_file", json!({"file_path": "report.txt"}))
            .text("Sent.");
        let mut plan = contained(rig.script(runtime, &script), &engine);
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

#[test]
fn a_cancelled_agent_leaves_no_container() {
    let (engine, rig) = (TestEngine::start(), Rig::new());
    let (tool, input) = rig.endless();
    let script = ModelScript::new().tool(tool, input).text("Never.");
    let mut plan = contained(rig.script(RuntimeType::Sdk, &script), &engine);
    plan.claude().permission_mode = "bypassPermissions".to_owned();
    let mut live = rig.start(plan);
    rig.pids();
    assert_eq!(engine.containers().len(), 1);
    live.cancel();
    live.finish();
    assert_eq!(engine.containers(), [""; 0]);
}

#[test]
fn an_image_that_was_built_has_the_claude_of_this_machine() {
    let (engine, rig) = (TestEngine::start(), Rig::new());
    let fleet = Fleet::empty();
    let program = claude();
    let build = |more: &[&str]| {
        let tag = ["image", "build", "--tag", "localhost/made:1", "--from", TEST_IMAGE];
        let mut command = fleet.command(&[&tag, more].concat());
        command.env("DOCKER_HOST", format!("unix://{}", engine.socket()));
        Ran::from(command.output().unwrap())
    };
    let said = build(&["--no-packages", "--claude", program.as_str()]).ok();
    assert!(said.contains("built localhost/made:1"), "{said}");
    let labels = engine.docker(&["inspect", "--format", "{{.Config.Labels}}", "localhost/made:1"]);
    assert!(labels.contains("heeler.claude:sha256:"), "{labels}");
    let script = ModelScript::new()
        .tool("Bash", json!({"command": "readlink /proc/$PPID/exe > made"}))
        .text("Built in.");
    let mut plan = contained(rig.script(Sdk, &script), &engine);
    let sandbox = plan.brief.sandbox.as_mut().unwrap();
    sandbox.readable.clear();
    sandbox.container.as_mut().unwrap().image = "localhost/made:1".to_owned();
    plan.claude().program = "claude".into();
    plan.claude().permission_mode = "bypassPermissions".to_owned();
    succeeded(&rig.run(plan));
    assert_eq!(std::fs::read_to_string(rig.work("made")).unwrap(), "/opt/heeler/bin/claude\n");

    // A failure of the engine is told, and builds nothing.
    let said = build(&["--npm", "1.0.0", "--network", "none", "--package", "none-such"]).fails(1);
    assert!(said.contains("cannot build the image localhost/made:1"), "{said}");
}
