//! The real claude in a sandbox: tools, our own servers, and a session that moves in and out.
//!
//! The sandbox has no network. A wrapper of claude forwards a port to a socket in the working
//! directory, behind which a thread of the test forwards to the API.

use std::io;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;

use heeler_model::run::SandboxSpec;
use heeler_testkit::{ModelScript, claude};
use serde_json::json;

use super::{BOTH, Rig, RuntimeType, Sdk, succeeded, told, tool_results};
use crate::rig::Plan;

/// Forwards a port to the socket in the working directory, and executes claude.
const WRAPPER: &str = r#"#!/bin/sh
python3 -c '
import socket, threading
listener = socket.create_server(("127.0.0.1", 8765))
print("ready", file=open("/tmp/ready", "w"))
def copy(a, b):
    try:
        while data := a.recv(65536): b.sendall(data)
        b.shutdown(1)
    except OSError: pass
while True:
    inside, _ = listener.accept()
    outside = socket.socket(socket.AF_UNIX)
    outside.connect("api.sock")
    for ends in ((inside, outside), (outside, inside)):
        threading.Thread(target=copy, args=ends, daemon=True).start()
' < /dev/null > /dev/null 2>&1 &
until test -e /tmp/ready; do sleep 0.01; done
exec CLAUDE "$@"
"#;

/// Forwards connections to the socket to the API until the test ends.
fn serve_api(rig: &Rig) {
    let listener = UnixListener::bind(rig.work("api.sock")).unwrap();
    let address = rig.api.url().trim_start_matches("http://").to_owned();
    std::thread::spawn(move || {
        for inside in listener.incoming().flatten() {
            let outside = TcpStream::connect(&address).unwrap();
            let (inside_writer, outside_writer) =
                (inside.try_clone().unwrap(), outside.try_clone().unwrap());
            std::thread::spawn(move || {
                let _copied = io::copy(&mut &inside, &mut &outside_writer);
                let _closed = outside_writer.shutdown(std::net::Shutdown::Write);
            });
            std::thread::spawn(move || {
                let _copied = io::copy(&mut &outside, &mut &inside_writer);
                let _closed = inside_writer.shutdown(std::net::Shutdown::Write);
            });
        }
    });
}

/// A rig whose sandboxed runs reach the API.
fn rig() -> Rig {
    let rig = Rig::new();
    let wrapper = rig.work("claude.sh");
    std::fs::write(&wrapper, WRAPPER.replace("CLAUDE", claude().as_str())).unwrap();
    std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755)).unwrap();
    serve_api(&rig);
    rig
}

/// The plan, in a sandbox.
fn sandboxed(rig: &Rig, mut plan: Plan) -> Plan {
    plan.claude().program = rig.work("claude.sh");
    let address = "http://127.0.0.1:8765".to_owned();
    plan.brief.env.insert("ANTHROPIC_BASE_URL".to_owned(), address);
    // Claude itself is behind the wrapper, in a directory that may be hidden.
    let readable = vec![claude()];
    plan.brief.sandbox = Some(SandboxSpec { readable, ..SandboxSpec::default() });
    plan
}

fn a_session_goes_into_a_sandbox_and_out_again(runtime: RuntimeType) {
    let rig = rig();
    let say = |prompt: &str, script: ModelScript| rig.plan(runtime, &format!("{prompt} {script}"));
    let first = rig.run(say("one", ModelScript::new().text("Outside.")));
    succeeded(&first);
    let script = ModelScript::new()
        .tool("Bash", json!({"command": "echo made > made; touch /etc/nope || echo denied; ls /proc | grep -c '^[0-9]'"}))
        .text("Inside.");
    let mut plan = sandboxed(&rig, say("two", script).resume(&first));
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
fn our_own_tools_work_in_a_sandbox() {
    for runtime in BOTH {
        let rig = rig();
        std::fs::write(rig.work("report.txt"), "all is well").unwrap();
        let script = ModelScript::new()
            .tool("mcp__heeler__report_progress", json!({"message": "half way", "percent": 50}))
            .tool("mcp__heeler-files__send_file", json!({"file_path": "report.txt"}))
            .text("Sent.");
        let mut plan = sandboxed(&rig, rig.script(runtime, &script));
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
