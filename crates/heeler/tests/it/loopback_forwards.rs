//! Local addresses that an isolated agent reaches at a port of its own.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use heeler_testkit::{TEST_IMAGE, TEST_VOLUME, TestEngine};

use crate::fleet::{Fleet, Ran};

/// Talks to the forwarded port, then to one that is not forwarded.
const TALK: &str = r#"
import socket, sys
def talk(port):
    try:
        with socket.create_connection(('127.0.0.1', port), timeout=60) as it:
            it.sendall(b'ping'); it.shutdown(socket.SHUT_WR)
            return it.makefile().read()
    except OSError as error:
        return f'failed: {error}'
open('said', 'w').write(talk(int(sys.argv[1])))
open('other', 'w').write(talk(int(sys.argv[2])))
"#;

/// A server that answers every connection with what it got, in capitals.
fn serve() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            stream.write_all(text.to_uppercase().as_bytes()).unwrap();
        }
    });
    port
}

fn check(isolation: &str, dotenv: &str) {
    let (port, other) = (serve(), serve());
    let fleet = Fleet::empty();
    fleet.write(
        "heeler.yaml",
        &format!(
            "agents:\n  - name: coder\n    runtime: command\n    working_directory: work\n    \
             command: 'exec python3 talk.py {port} {other}'\n    {isolation}\n    \
             sandbox: {{network: none, forward: ['127.0.0.1:{port}']}}\n"
        ),
    );
    fleet.write("work/talk.py", TALK);
    fleet.write(".env", dotenv);
    let ran = fleet.command(&["trigger", "coder", "-p", "x"]).output().unwrap();
    Ran::from(ran).ok();
    assert_eq!(fleet.read("work/said"), "PING");
    assert!(fleet.read("work/other").starts_with("failed: "), "{}", fleet.read("work/other"));
    let jobs = fleet.jobs();
    let log = fleet.run(&["jobs", "logs", &jobs[0].head.id.to_string()]).ok();
    assert!(log.contains(&format!("allowed 127.0.0.1:{port}")), "{log}");
}

#[test]
fn a_sandboxed_agent_reaches_a_forwarded_address_and_no_other() {
    check("description: A coder.", "");
}

#[test]
fn an_agent_in_a_container_reaches_a_forwarded_address_and_no_other() {
    let engine = TestEngine::start();
    let docker =
        format!("docker: {{enabled: true, image: '{TEST_IMAGE}', volumes: ['{TEST_VOLUME}']}}");
    check(&docker, &engine.dotenv());
}

#[test]
fn a_forward_without_a_network_of_the_run_is_refused_with_the_cure() {
    let engine = TestEngine::start();
    let fleet = Fleet::empty();
    fleet.write(
        "heeler.yaml",
        &format!(
            "agents:\n  - name: coder\n    runtime: command\n    command: touch ran\n    \
             docker: {{enabled: true, image: '{TEST_IMAGE}', volumes: ['{TEST_VOLUME}'], network: bridge}}\n    \
             sandbox: {{forward: ['127.0.0.1:5432']}}\n"
        ),
    );
    fleet.write(".env", &engine.dotenv());
    let said = fleet.run(&["trigger", "coder", "-p", "x"]).fails(1);
    assert!(said.contains("network: none"), "{said}");
    assert!(!fleet.file("ran").exists());
}
