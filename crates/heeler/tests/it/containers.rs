//! Agents in containers of a real engine.

use std::process::Command;

use heeler_testkit::{EngineRestart, PodmanEngine, TEST_IMAGE, TEST_VOLUME, TestEngine};

use crate::fleet::{Fleet, Ran};
use crate::trigger::wait_for;

/// Value that no file of the engine may contain.
const SECRET: &str = "canary-5512-of-the-agent";

#[test]
fn the_static_first_process_is_built_from_these_sources() {
    let program =
        std::path::Path::new(env!("CARGO_BIN_EXE_heeler")).with_file_name("heeler-inside-static");
    let output = Command::new(&program).arg("--version").output();
    let output = output.unwrap_or_else(|error| {
        panic!("{} is missing, run `cargo xtask inside`: {error}", program.display())
    });
    let said = String::from_utf8_lossy(&output.stdout);
    let sources = format!("{:016x}", heeler_inside::SOURCES_HASH);
    assert!(said.trim().ends_with(&sources), "it is old, run `cargo xtask inside`: {output:?}");
}

/// A fleet with one agent in a container, whose command is a file of the fleet.
fn fleet(engine: &TestEngine, script: &str, docker: &str, more: &str) -> Fleet {
    fleet_of(&engine.dotenv(), script, docker, more)
}

/// Like [`fleet`], with the engine that this `.env` names.
fn fleet_of(dotenv: &str, script: &str, docker: &str, more: &str) -> Fleet {
    let image =
        if docker.contains("image:") { String::new() } else { format!("image: '{TEST_IMAGE}', ") };
    let fleet = Fleet::empty();
    fleet.write(
        "heeler.yaml",
        &format!(
            "agents:\n  - name: boxed\n    runtime: command\n    command: exec sh work.sh\n    \
             docker: {{enabled: true, {image}volumes: ['{TEST_VOLUME}'], {docker}}}\n{more}"
        ),
    );
    fleet.write("work.sh", script);
    fleet.write(".env", dotenv);
    std::fs::create_dir_all(fleet.file("home")).unwrap();
    fleet
}

fn said(ran: &Ran) -> String {
    format!("{}{}", ran.stdout, ran.stderr)
}

/// Prints what an agent sees in its container.
const LOOK: &str = r#"
echo "first: $(cat /proc/1/comm)"
echo "user: $(id -u):$(id -g)"
echo "interfaces: $(grep -c : /proc/net/dev)"
echo "privileges: $(grep NoNewPrivs /proc/self/status | tr -d '\t') $(grep CapBnd /proc/self/status | tr -d '\t')"
echo "here: $PWD"
echo "state: $(ls -A .heeler | wc -l)"
echo "dotenv: $(wc -c < .env)"
echo "engine: $(ls $(dirname "$ENGINE") 2> /dev/null | wc -l)"
echo forged >> heeler.yaml || echo "config: closed"
echo "home: $HOME, path: $PATH"
touch "$HOME/file" && echo "home: writable"
echo "secret: $(printf %s "$DEPLOY_TOKEN" | wc -c)"
echo "memory: $(cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2> /dev/null)"
echo made > made
touch ready
while test ! -e go; do sleep 0.05; done
exit 3
"#;

#[test]
fn an_agent_works_in_its_container_and_the_engine_knows_no_secret() {
    let engine = TestEngine::start();
    let more = "    secrets: [DEPLOY_TOKEN]\n    env: {ENGINE: '/nowhere/s'}\n";
    let fleet = fleet(&engine, LOOK, "memory: 64m, labels: {team: a}", more);
    let mut trigger = fleet.command(&["trigger", "boxed", "-p", "x"]);
    trigger.env("DEPLOY_TOKEN", SECRET);
    trigger.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let trigger = trigger.spawn().unwrap();
    wait_for("the agent", || fleet.file("ready").exists().then_some(()));
    let containers = engine.containers();
    assert_eq!(containers.len(), 1, "{containers:?}");
    let name = containers[0].split(' ').next().unwrap();
    let inspected = engine.docker(&["inspect", name]);
    assert!(inspected.contains("\"heeler.state\"") && inspected.contains("\"team\": \"a\""));
    let mut grep = Command::new("grep");
    grep.args(["-r", "-l", "-a", SECRET]).arg(engine.data());
    let found = grep.output().unwrap();
    assert!(found.stdout.is_empty(), "{}", String::from_utf8_lossy(&found.stdout));
    assert!(!inspected.contains(SECRET));
    fleet.write("go", "");
    let ran = Ran::from(trigger.wait_with_output().unwrap());
    let said = said(&ran);
    let root = fleet.path().canonicalize().unwrap();
    for line in [
        "first: .heeler-inside".to_owned(),
        "user: 0:0".to_owned(),
        "interfaces: 1".to_owned(),
        "privileges: NoNewPrivs:1 CapBnd:0000000000000000".to_owned(),
        format!("here: {}", root.display()),
        "state: 0".to_owned(),
        "dotenv: 0".to_owned(),
        "config: closed".to_owned(),
        "home: /home/agent, path: /usr/local/sbin:".to_owned(),
        "home: writable".to_owned(),
        format!("secret: {}", SECRET.len()),
        "memory: 67108864".to_owned(),
        "exited with code 3".to_owned(),
    ] {
        assert!(said.contains(&line), "{line}: {said}");
    }
    assert_eq!(fleet.read("made"), "made\n", "the working directory is the real one");
    wait_for("the removal of the container", || engine.containers().is_empty().then_some(()));
    fleet.run(&["stop", "-q"]);
}

#[test]
fn an_agent_without_memory_is_told_so() {
    let engine = TestEngine::start();
    let script = "exec python3 -c 'x = bytearray(1 << 30)'";
    let fleet = fleet(&engine, script, "memory: 48m", "");
    let ran = fleet.run(&["trigger", "boxed", "-p", "x"]);
    assert_ne!(ran.code, Some(0), "{}", said(&ran));
    let said = said(&ran);
    assert!(said.contains("out of memory: the container has 48 MiB"), "{said}");
    assert_eq!(engine.containers(), [""; 0]);
    fleet.run(&["stop", "-q"]);
}

#[test]
fn an_agent_is_refused_where_its_container_cannot_be_had() {
    let engine = TestEngine::start();
    let refused = |docker: &str, dotenv: Option<&str>, wanted: &str| {
        let fleet = fleet(&engine, "touch ran", docker, "");
        if let Some(dotenv) = dotenv {
            fleet.write(".env", dotenv);
        }
        let ran = fleet.run(&["trigger", "boxed", "-p", "x"]);
        let said = said(&ran);
        assert_ne!(ran.code, Some(0), "{said}");
        assert!(said.contains(wanted), "{wanted}: {said}");
        assert!(!fleet.file("ran").exists(), "it ran without its container: {said}");
        fleet.run(&["stop", "-q"]);
    };
    let nowhere = Some("DOCKER_HOST=unix:///nowhere/s\n");
    refused("memory: 64m", nowhere, "cannot reach the container engine at /nowhere/s");
    refused("memory: 64m", Some("DOCKER_HOST=tcp://127.0.0.1:1\n"), "an engine on this machine");
    refused("image: 'localhost/none', memory: 64m", None, "lacks the image localhost/none");
    refused("image: 'none.invalid/x', pull: never", None, "lacks the image none.invalid/x");
    refused("image: 'none.invalid/x'", None, "cannot pull the image none.invalid/x");
    refused("user: '4242'", None, "its container");
    assert_eq!(engine.containers(), [""; 0]);
}

/// Detaches from everything, and waits.
const DETACHED: &str = r#"
python3 - "$MARK" <<'END'
import os, sys, time
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve('/bin/sleep', ['sleep', sys.argv[1]], {})
        os._exit(0)
open('ready', 'w').close()
time.sleep(600)
END
"#;

/// Number of processes of this machine with this text in their command line.
fn processes_with(text: &str) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(text)).count()
}

#[test]
fn nothing_of_a_container_outlives_its_runner_whatever_is_killed() {
    let mut engine = TestEngine::start();
    for (kills_daemon, kills_engine) in [(false, false), (true, false), (true, true)] {
        let mark = format!("600.{}", fastrand::u32(1_000_000_000..));
        let fleet =
            fleet(&engine, DETACHED, "memory: 128m", &format!("    env: {{MARK: '{mark}'}}\n"));
        fleet.run(&["start", "--detach"]).ok();
        fleet.run(&["trigger", "boxed", "--detach", "-q", "-p", "x"]).ok();
        wait_for("the agent", || fleet.file("ready").exists().then_some(()));
        wait_for("its children", || (processes_with(&mark) >= 3).then_some(()));
        if kills_engine {
            engine.kill();
        }
        if kills_daemon {
            fleet.kill("start");
        }
        fleet.kill("runner");
        wait_for("the end of all processes", || (processes_with(&mark) == 0).then_some(()));
        if kills_engine {
            engine.restart();
        }
        fleet.run(&["start", "--detach"]);
        let status = || {
            let jobs = fleet.json(&["jobs", "--json"]);
            let job = &jobs["jobs"][0];
            (job["status"] != "running" && job["status"] != "pending").then(|| job.clone())
        };
        let job = wait_for("the end of the job", status);
        assert_eq!(job["agent"], "boxed", "{job}");
        wait_for("the removal of the container", || engine.containers().is_empty().then_some(()));
        fleet.run(&["stop", "--force", "-q"]);
    }
}

#[test]
fn an_agent_goes_on_while_the_engine_is_dead_and_its_end_by_the_engine_is_told() {
    let mut engine = TestEngine::start();
    let script = "touch ready; n=0\nwhile test ! -e go; do n=$((n+1)); echo $n > ticks; sleep 0.05; done; echo finished";
    let fleet = fleet(&engine, script, "memory: 64m", "");
    fleet.run(&["start", "--detach"]).ok();
    let ready = || fleet.file("ready").exists().then_some(());
    let ended = || {
        let jobs = fleet.json(&["jobs", "--json"]);
        let job = &jobs["jobs"][0];
        (job["status"] != "running" && job["status"] != "pending").then(|| job.clone())
    };
    // The file is missing or empty at times.
    let ticks = || {
        let text = std::fs::read_to_string(fleet.file("ticks")).unwrap_or_default();
        text.trim().parse::<u32>().unwrap_or(0)
    };
    fleet.run(&["trigger", "boxed", "--detach", "-q", "-p", "x"]).ok();
    wait_for("the agent", ready);
    engine.kill();
    let before = ticks();
    wait_for("the agent's work", || (ticks() > before + 2).then_some(()));
    fleet.write("go", "");
    let job = wait_for("the end of the job", ended);
    assert_eq!(job["status"], "completed", "{job}");
    engine.restart();
    wait_for("the removal of the container", || engine.containers().is_empty().then_some(()));

    // Without `live-restore`, an engine that starts ends the containers of its predecessor.
    for name in ["go", "ready"] {
        std::fs::remove_file(fleet.file(name)).unwrap();
    }
    fleet.run(&["trigger", "boxed", "--detach", "-q", "-p", "x"]).ok();
    wait_for("the agent", ready);
    engine.kill();
    engine.restart();
    let job = wait_for("the end of the job", ended);
    assert_eq!(job["status"], "failed", "{job}");
    let shown = fleet.run(&["job", job["id"].as_str().unwrap()]);
    assert!(said(&shown).contains("was ended from outside"), "{}", said(&shown));
    wait_for("the removal of the container", || engine.containers().is_empty().then_some(()));
    fleet.run(&["stop", "--force", "-q"]);
}

#[test]
fn an_agent_does_not_notice_the_restart_of_an_engine_that_keeps_its_containers() {
    let mut engine = TestEngine::start_with(EngineRestart::KeepsContainers);
    let script = "touch ready; n=0\nwhile test ! -e go; do n=$((n+1)); echo tick $n; echo $n > ticks; sleep 0.05; done; echo finished";
    let fleet = fleet(&engine, script, "memory: 64m", "");
    fleet.run(&["start", "--detach"]).ok();
    fleet.run(&["trigger", "boxed", "--detach", "-q", "-p", "x"]).ok();
    wait_for("the agent", || fleet.file("ready").exists().then_some(()));
    let ticks = || {
        let text = std::fs::read_to_string(fleet.file("ticks")).unwrap_or_default();
        text.trim().parse::<u32>().unwrap_or(0)
    };
    for _ in 0..2 {
        engine.kill();
        let before = ticks();
        wait_for("work without an engine", || (ticks() > before + 2).then_some(()));
        engine.restart();
        let before = ticks();
        wait_for("work with the next engine", || (ticks() > before + 2).then_some(()));
        assert_eq!(engine.containers().len(), 1);
    }
    fleet.write("go", "");
    let ended = || {
        let jobs = fleet.json(&["jobs", "--json"]);
        let job = &jobs["jobs"][0];
        (job["status"] != "running" && job["status"] != "pending").then(|| job.clone())
    };
    let job = wait_for("the end of the job", ended);
    assert_eq!(job["status"], "completed", "{job}");
    // Every row is there, in order.
    let rows = fleet.read(&format!(".heeler/jobs/{}.jsonl", job["id"].as_str().unwrap()));
    let seen: Vec<u32> = rows
        .split("tick ")
        .skip(1)
        .filter_map(|rest| {
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().ok()
        })
        .collect();
    // The last row repeats the output.
    let expected: Vec<u32> = (1..=ticks()).collect();
    assert_eq!(seen[..expected.len()], expected, "{rows}");
    wait_for("the removal of the container", || engine.containers().is_empty().then_some(()));

    // The engine does not remove the container of a dead runner, but the daemon does.
    for name in ["go", "ready"] {
        std::fs::remove_file(fleet.file(name)).unwrap();
    }
    fleet.run(&["trigger", "boxed", "--detach", "-q", "-p", "x"]).ok();
    wait_for("the agent", || fleet.file("ready").exists().then_some(()));
    fleet.kill("runner");
    let job = wait_for("the end of the job", ended);
    assert_ne!(job["status"], "completed", "{job}");
    wait_for("the removal of the container", || engine.containers().is_empty().then_some(()));
    fleet.run(&["stop", "--force", "-q"]);
}

#[test]
fn an_agent_works_in_a_container_of_podman_which_learns_no_secret() {
    let engine = PodmanEngine::start();
    let more = "    secrets: [DEPLOY_TOKEN]\n    env: {ENGINE: '/nowhere/s'}\n";
    let fleet = fleet_of(&engine.dotenv(), LOOK, "memory: 64m", more);
    let doctor = said(&fleet.run(&["doctor", "docker"]));
    assert!(doctor.contains("Podman"), "{doctor}");
    let mut trigger = fleet.command(&["trigger", "boxed", "-p", "x"]);
    trigger.env("DEPLOY_TOKEN", SECRET);
    trigger.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let trigger = trigger.spawn().unwrap();
    wait_for("the agent", || fleet.file("ready").exists().then_some(()));
    let containers = engine.containers();
    assert_eq!(containers.len(), 1, "{containers:?}");
    let inspected = engine.podman(&["inspect", &containers[0]]);
    assert!(inspected.contains("\"heeler.state\"") && !inspected.contains(SECRET), "{inspected}");
    // Not the merged file systems of containers, which have the files of this machine.
    let mut grep = Command::new("grep");
    grep.args(["-r", "-l", "-a", "--include=*.json", "--include=*.db", SECRET]).arg(engine.data());
    let found = grep.output().unwrap();
    assert!(found.stdout.is_empty(), "{}", String::from_utf8_lossy(&found.stdout));
    fleet.write("go", "");
    let said = said(&Ran::from(trigger.wait_with_output().unwrap()));
    let root = fleet.path().canonicalize().unwrap();
    for line in [
        "first: .heeler-inside".to_owned(),
        "user: 0:0".to_owned(),
        "interfaces: 1".to_owned(),
        "privileges: NoNewPrivs:1 CapBnd:0000000000000000".to_owned(),
        format!("here: {}", root.display()),
        "state: 0".to_owned(),
        "dotenv: 0".to_owned(),
        "config: closed".to_owned(),
        format!("secret: {}", SECRET.len()),
        "exited with code 3".to_owned(),
    ] {
        assert!(said.contains(&line), "{line}: {said}");
    }
    assert_eq!(fleet.read("made"), "made\n", "the working directory is the real one");
    wait_for("the removal of the container", || engine.containers().is_empty().then_some(()));
    fleet.run(&["stop", "-q"]);
}

#[test]
fn nothing_of_a_container_of_podman_outlives_its_runner() {
    let mut engine = PodmanEngine::start();
    for kills_all in [false, true] {
        let mark = format!("600.{}", fastrand::u32(1_000_000_000..));
        let env = format!("    env: {{MARK: '{mark}'}}\n");
        let fleet = fleet_of(&engine.dotenv(), DETACHED, "memory: 128m", &env);
        fleet.run(&["start", "--detach"]).ok();
        fleet.run(&["trigger", "boxed", "--detach", "-q", "-p", "x"]).ok();
        wait_for("the agent", || fleet.file("ready").exists().then_some(()));
        wait_for("its children", || (processes_with(&mark) >= 3).then_some(()));
        if kills_all {
            engine.kill();
            fleet.kill("start");
        }
        fleet.kill("runner");
        wait_for("the end of all processes", || (processes_with(&mark) == 0).then_some(()));
        if kills_all {
            engine.restart();
        }
        fleet.run(&["start", "--detach"]);
        wait_for("the end of the job", || {
            let jobs = fleet.json(&["jobs", "--json"]);
            let status = &jobs["jobs"][0]["status"];
            (status != "running" && status != "pending").then_some(())
        });
        wait_for("the removal of the container", || engine.containers().is_empty().then_some(()));
        fleet.run(&["stop", "--force", "-q"]);
    }
}
