//! Containers that outlive their run: those that a session keeps, those that nothing needs any more,
//! and the image in which they run.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use heeler_testkit::{TEST_IMAGE, TEST_VOLUME, TestEngine};
use serde_json::Value as Json;

use crate::fleet::Fleet;
use crate::trigger::wait_for;

/// Counts its runs in a file of the container, and tells the number. Waits if it is asked to.
const COUNT: &str = "echo run >> /etc/runs; wc -l < /etc/runs > seen; \
                     test ! -e hold || { touch ready; while test -e hold; do sleep 0.05; done; }";

/// A fleet whose agent counts its runs in its container.
fn fleet(engine: &TestEngine, docker: &str) -> Fleet {
    let fleet = Fleet::empty();
    configure(&fleet, docker);
    fleet.write("count.sh", COUNT);
    fleet.write(".env", &engine.dotenv());
    // The first run would make it, and then it is another mount.
    for folder in ["home", ".claude"] {
        std::fs::create_dir_all(fleet.file(folder)).unwrap();
    }
    fleet
}

fn configure(fleet: &Fleet, docker: &str) {
    fleet.write(
        "heeler.yaml",
        &format!(
            "agents:\n  - name: boxed\n    runtime: scripted\n    instances: {{max_concurrent: 5}}\n    \
             script: [{{run: 'sh count.sh'}}, {{say: done}}]\n    docker: {{enabled: true, \
             image: '{TEST_IMAGE}', volumes: ['{TEST_VOLUME}'], ephemeral: false, {docker}}}\n"
        ),
    );
}

/// Starts a session, and returns its ID.
fn new_session(fleet: &Fleet) -> String {
    fleet.run(&["trigger", "boxed", "-p", "x"]).ok();
    newest_session(fleet)
}

fn newest_session(fleet: &Fleet) -> String {
    let sessions = fleet.json(&["session", "list", "--json"]);
    sessions["sessions"][0]["id"].as_str().unwrap().to_owned()
}

/// Continues a session, and returns how often its container has run.
fn resume(fleet: &Fleet, session: &str) -> String {
    fleet.run(&["session", "resume", session, "-p", "y"]).ok();
    seen(fleet)
}

fn seen(fleet: &Fleet) -> String {
    fleet.read("seen").trim().to_owned()
}

/// Names of all containers. None of them runs.
fn idle(engine: &TestEngine) -> Vec<String> {
    let containers = engine.containers();
    assert!(containers.iter().all(|it| it.ends_with(" exited")), "{containers:?}");
    containers.iter().map(|it| it.split(' ').next().unwrap().to_owned()).collect()
}

#[test]
fn a_session_keeps_the_files_of_its_container() {
    let mut engine = TestEngine::start();
    let kept = fleet(&engine, "memory: 64m");
    let session = new_session(&kept);
    assert_eq!(seen(&kept), "1");
    let first = idle(&engine);
    assert_eq!(first.len(), 1, "{first:?}");
    assert_eq!(resume(&kept, &session), "2");
    assert_eq!(idle(&engine), first, "the same container was started again");

    // Settings of a container cannot be changed, so another one gets its files.
    configure(&kept, "memory: 96m");
    assert_eq!(resume(&kept, &session), "3");
    let second = idle(&engine);
    assert_eq!(second.len(), 1);
    assert_ne!(second, first);
    let memory = engine.docker(&["inspect", "--format", "{{.HostConfig.Memory}}", &second[0]]);
    assert_eq!(memory.trim(), (96 << 20).to_string());
    assert_eq!(resume(&kept, &session), "4");

    // A runner that is killed takes its agent with it, and leaves the files.
    kept.write("hold", "");
    let held = ["session", "resume", session.as_str(), "--detach", "-q", "-p", "y"];
    kept.run(&held).ok();
    wait_for("the agent", || kept.file("ready").exists().then_some(()));
    kept.kill("runner");
    std::fs::remove_file(kept.file("hold")).unwrap();
    kept.wait_until_ended();
    engine.kill();
    engine.restart();
    let number: u32 = resume(&kept, &session).parse().unwrap();
    // The job that was cut off may have been continued.
    assert!((6..=7).contains(&number), "{number}");

    // The files belong to the session: another one has its own.
    let other = new_session(&kept);
    assert_eq!(seen(&kept), "1");
    assert_ne!(other, session);
    assert_eq!(idle(&engine).len(), 2);
    kept.run(&["stop", "-q"]);

    // Another image has other files.
    let root = engine.data().parent().unwrap().join("image");
    let archive = engine.data().parent().unwrap().join("image.tar");
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(&root).arg("-cf").arg(&archive).arg(".");
    assert!(tar.status().unwrap().success());
    engine.docker(&["import", archive.to_str().unwrap(), TEST_IMAGE]);
    assert_eq!(resume(&kept, &session), "1");
    let jobs = kept.json(&["jobs", "--json"]);
    let logs = kept.run(&["jobs", "logs", jobs["jobs"][0]["id"].as_str().unwrap()]).ok();
    assert!(logs.contains("the image has changed"), "{logs}");
    kept.run(&["stop", "-q"]);
}

#[test]
fn surplus_containers_are_removed_oldest_first_and_never_one_that_runs() {
    let engine = TestEngine::start();
    let kept = fleet(&engine, "memory: 64m, max_containers: 2");
    kept.run(&["start", "--detach"]).ok();
    let [first, second] = [(); 2].map(|()| new_session(&kept));
    let names = |sessions: &[&str]| -> Vec<String> {
        let name = |session: &&str| {
            let shown = kept.json(&["session", "show", session, "--json"]);
            let id = shown["session"]["agentSessionId"].as_str().unwrap().to_owned();
            let filter = format!("label=heeler.session={id}");
            engine.docker(&["ps", "-a", "--filter", &filter, "--format", "{{.Names}}"])
        };
        sessions.iter().map(name).map(|name| name.trim().to_owned()).collect()
    };
    let [oldest, younger]: [String; 2] = names(&[&first, &second]).try_into().unwrap();
    assert!(!oldest.is_empty() && !younger.is_empty());

    // The first one runs again, so the second one is idle for the longest time.
    kept.write("hold", "");
    kept.run(&["session", "resume", &first, "--detach", "-q", "-p", "y"]).ok();
    wait_for("the agent", || kept.file("ready").exists().then_some(()));
    std::fs::rename(kept.file("count.sh"), kept.file("held.sh")).unwrap();
    kept.write("count.sh", "echo run >> /etc/runs; wc -l < /etc/runs > seen");
    let third = new_session(&kept);
    assert_eq!(names(&[&first, &second])[1], "", "the idle one was removed");
    let containers = engine.containers();
    assert!(containers.contains(&format!("{oldest} running")), "{containers:?}");
    assert_eq!(containers.len(), 2, "{containers:?}");
    let fourth = new_session(&kept);
    assert_eq!(names(&[&third]), [""], "idle ones make room");
    assert!(engine.containers().contains(&format!("{oldest} running")));
    std::fs::remove_file(kept.file("hold")).unwrap();
    wait_for("the end of the first one", || {
        let jobs = kept.json(&["jobs", "--status", "running", "--json"]);
        (jobs["total"] == 0).then_some(())
    });
    // Its container has all of its files.
    assert_eq!(resume(&kept, &first), "3");
    assert_eq!(names(&[&first, &fourth]).iter().filter(|it| !it.is_empty()).count(), 2);
    kept.run(&["stop", "-q"]);
}

#[test]
fn containers_that_nothing_needs_are_removed_at_the_start_if_they_are_ours() {
    let engine = TestEngine::start();
    let own = fleet(&engine, "memory: 64m");
    own.run(&["status"]).ok();
    let session = new_session(&own);
    own.run(&["stop", "-q"]);
    let state = own.state_dir().canonicalize_utf8().unwrap();
    let run = "heeler.run=01890000-0000-7000-8000-000000000000";
    let create = |name: &str, state: &str| {
        let state = format!("heeler.state={state}");
        engine.docker(&[
            "create", "--name", name, "--label", &state, "--label", run, TEST_IMAGE, "x",
        ]);
    };
    create("left", state.as_str());
    create("abandoned", "/nowhere/.heeler");
    create("others", "/tmp");
    engine.docker(&["create", "--name", "foreign", TEST_IMAGE, "x"]);
    let listed = own.run(&["doctor"]);
    let listed = format!("{}{}", listed.stdout, listed.stderr);
    assert!(listed.contains("orphan   left of agent"), "{listed}");
    assert!(listed.contains("orphan   abandoned of agent"), "{listed}");
    assert!(!listed.contains("others") && !listed.contains("foreign"), "{listed}");
    let docker = own.json(&["doctor", "docker", "--json"]);
    assert_eq!(docker["orphans"].as_array().unwrap().len(), 2, "{docker}");
    assert_eq!(docker["kept"].as_array().unwrap().len(), 1, "{docker}");
    let names = || -> Vec<String> {
        let listed = engine.containers().into_iter();
        listed.map(|it| it.split(' ').next().unwrap().to_owned()).collect()
    };
    own.run(&["start", "--detach"]).ok();
    wait_for("the removal", || (!names().contains(&"left".to_owned())).then_some(()));
    for name in ["abandoned", "others", "foreign"] {
        assert!(names().contains(&name.to_owned()), "{name} is not ours");
    }
    assert_eq!(resume(&own, &session), "2", "the container of a session is needed");
    own.run(&["stop", "-q"]);
}

/// A registry that says what it is, and then never sends an image.
struct SilentRegistry {
    port: u16,
    is_over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl SilentRegistry {
    fn start() -> SilentRegistry {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let is_over = Arc::new(AtomicBool::new(false));
        let known = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let mut held = Vec::new();
            for connection in listener.incoming() {
                if known.load(Ordering::Relaxed) {
                    return;
                }
                held.extend(connection.ok().and_then(answer_registry_request));
            }
        });
        SilentRegistry { port, is_over, thread: Some(thread) }
    }
}

impl Drop for SilentRegistry {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(("127.0.0.1", self.port)));
        drop(self.thread.take().map(std::thread::JoinHandle::join));
    }
}

/// Answers the question for the version of the API. Returns a connection that asks for more.
fn answer_registry_request(mut connection: TcpStream) -> Option<TcpStream> {
    let mut start = [0; 8];
    // The engine tries TLS first, which this registry has not.
    connection.read_exact(&mut start).ok().filter(|()| start[0].is_ascii_uppercase())?;
    let mut line = String::from_utf8_lossy(&start).into_owned();
    let mut byte = [0];
    while !line.ends_with("\r\n\r\n") && connection.read_exact(&mut byte).is_ok() {
        line.push(char::from(byte[0]));
    }
    if !line.starts_with("GET /v2/ ") {
        return Some(connection);
    }
    let reply = "HTTP/1.1 200 OK\r\nDocker-Distribution-Api-Version: registry/2.0\r\n\
                 Connection: close\r\nContent-Length: 2\r\n\r\n{}";
    drop(connection.write_all(reply.as_bytes()));
    None
}

#[test]
fn a_run_says_that_its_image_is_pulled() {
    let engine = TestEngine::start();
    let registry = SilentRegistry::start();
    let port = registry.port;
    let fleet = Fleet::empty();
    fleet.write(
        "heeler.yaml",
        &format!(
            "agents:\n  - name: boxed\n    runtime: command\n    command: 'true'\n    \
             docker: {{enabled: true, image: '127.0.0.1:{port}/agent:1'}}\n"
        ),
    );
    fleet.write(".env", &engine.dotenv());
    fleet.run(&["start", "--detach"]).ok();
    fleet.run(&["trigger", "boxed", "--detach", "-q", "-p", "x"]).ok();
    let job = || -> Json {
        let jobs = fleet.json(&["jobs", "--json"]);
        let id = jobs["jobs"][0]["id"].as_str().unwrap();
        fleet.json(&["jobs", "show", id, "--json"])["job"].clone()
    };
    let pulling = wait_for("the pull", || {
        let job = job();
        (job["runs"][0]["status"] == "pulling").then_some(job)
    });
    assert_eq!(pulling["status"], "running", "{pulling}");
    let listed = fleet.json(&["jobs", "--json"])["jobs"][0].clone();
    assert_eq!((&listed["status"], &listed["pulling"]), (&"running".into(), &true.into()));
    let listed = fleet.run(&["jobs"]).ok();
    assert!(listed.contains("running, pulling"), "{listed}");
    let shown = fleet.run(&["jobs", "show", pulling["id"].as_str().unwrap()]).ok();
    assert!(shown.contains("running (pulling the image of its container)"), "{shown}");
    fleet.run(&["jobs", "cancel", pulling["id"].as_str().unwrap()]).ok();
    let ended = wait_for("the end", || {
        let job = job();
        (job["status"] != "running").then_some(job)
    });
    assert_eq!(ended["status"], "cancelled", "{ended}");
    assert_ne!(ended["runs"][0]["status"], "pulling", "{ended}");
    fleet.run(&["stop", "-q"]);
}
