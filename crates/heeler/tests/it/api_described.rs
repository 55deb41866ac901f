//! The API against its description: whatever it is sent, it replies as that says.
//!
//! Requests are made up by schemathesis, over the socket and over TCP. Streams, which have no end
//! that it could wait for, are asked by hand.

use std::io::copy;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Command;

use camino::Utf8PathBuf;
use heeler_store::DaemonFile;
use heeler_store::StateDir;
use heeler_testkit::ProofSettings;
use serde_json::Value as Json;

use crate::api::{FLEET, WORKFLOW};
use crate::browser::Site;
use crate::fleet::Fleet;
use crate::trigger::wait_for;

/// What schemathesis is installed by `cargo xtask setup` under.
const SCHEMATHESIS: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/schemathesis/bin/schemathesis");

/// What is looked at in each reply.
const CHECKS: &str = "not_a_server_error,content_type_conformance,status_code_conformance,\
    response_schema_conformance";

/// How many requests of each kind are made up for each route, at CI size.
const EXAMPLES: u64 = 6;

/// How many at most: each takes some milliseconds, and there are dozens of routes.
const EXAMPLES_MAX: u64 = 200;

/// What is left out: the daemon is to live on, and a stream has no end.
const LEFT_OUT: &str = "/daemon/stop$|/stream$";

/// A fleet with a job, a session, a run and a question on record, and its daemon.
struct Served {
    site: Site,
    url: String,
    token: String,
    job: String,
    session: String,
    run: String,
}

impl Served {
    fn new() -> Served {
        let fleet = Fleet::empty();
        fleet.write("heeler.yaml", &format!("web: {{port: auto, token_file: true}}\n{FLEET}"));
        fleet.write("workflows/build.yaml", WORKFLOW);
        let site = Site::start(fleet);
        let fleet = &site.fleet;
        fleet.run(&["trigger", "coder", "-q", "-p", "Hello."]).ok();
        fleet.run(&["workflow", "run", "build", "-q", "-i", "task=a hut"]).ok();
        let first = |list: &[&str], noun: &str| {
            let found = fleet.json(list)[noun][0]["id"].as_str().map(str::to_owned);
            found.unwrap_or_else(|| panic!("no {noun}"))
        };
        let job = first(&["jobs", "--json"], "jobs");
        let session = first(&["session", "list", "--json"], "sessions");
        let run = first(&["workflow", "runs", "--json"], "runs");
        let token = fleet.read(".heeler/api-token").trim().to_owned();
        fleet.run(&["trigger", "asker", "-q", "-p", "Ask.", "--detach"]).ok();
        let ask = wait_for("a question", || {
            let asked = fleet.json(&["approvals", "list", "--json"]);
            asked["approvals"][0]["id"].as_str().map(str::to_owned)
        });
        let there =
            [("jobs", &*job), ("sessions", &*session), ("runs", &*run), ("approvals", &*ask)];
        fleet.write("schemathesis.toml", &what_is_there(&there));
        // Not every program resolves the name that browsers use.
        let url = format!("http://127.0.0.1:{}", site.url().rsplit_once(':').unwrap().1);
        Served { site, url, token, job, session, run }
    }

    /// Has requests made up for every route at an address, and every reply judged.
    #[track_caller]
    fn holds(&self, address: &str, headers: &[&str]) {
        let proof = ProofSettings::new(EXAMPLES);
        let (examples, seed) = (proof.rounds.min(EXAMPLES_MAX).to_string(), proof.seed.to_string());
        let mut command = Command::new(SCHEMATHESIS);
        command
            .args(["run", &format!("{address}/api/v1/openapi.json"), "--url", address])
            .args(["--exclude-path-regex", LEFT_OUT])
            .args(["--checks", CHECKS, "--generation-with-security-parameters", "false"])
            .args(["--phases", "examples,coverage,fuzzing", "--max-examples", &examples])
            .args(["--seed", &seed, "--no-color", "--request-timeout", "20"])
            .args(headers.iter().flat_map(|header| ["-H", header]))
            .current_dir(self.site.fleet.path());
        let ran = command.output().expect("`cargo xtask setup` installs schemathesis");
        let told = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success(), "{told}\n{}", String::from_utf8_lossy(&ran.stderr));
        // What it was sent has left no mark on what was there.
        let shown = self.site.fleet.json(&["jobs", "show", &self.job, "--json"]);
        assert_eq!(shown["job"]["status"], "completed");
    }

    /// Asks for something, and returns the code and the media type of the reply.
    #[track_caller]
    fn ask(&self, path: &str, token: &str) -> (u16, String) {
        let agent: ureq::Agent =
            ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let request = agent.get(format!("{}{path}", self.url));
        let reply = request.header("authorization", format!("Bearer {token}")).call().unwrap();
        let kind = reply.headers()["content-type"].to_str().unwrap().to_owned();
        (reply.status().as_u16(), kind)
    }
}

/// Tells schemathesis what is on record, so that what it asks for is there.
fn what_is_there(there: &[(&str, &str)]) -> String {
    let mut told = String::from("[parameters]\n");
    for (name, value) in [("agent", "coder"), ("schedule", "nightly"), ("workflow", "build")] {
        told += &format!("'path.{name}' = '{value}'\n");
    }
    for (noun, id) in there {
        told += &format!(
            "[[operations]]\ninclude-name-regex = '^(GET|POST) .*/{noun}/'\n\
             parameters = {{'path.id' = '{id}'}}\n"
        );
    }
    told
}

/// Lets a program talk to a daemon's socket that only knows TCP; returns where.
fn over_tcp(dir: &StateDir) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let socket = DaemonFile::read(dir).unwrap().unwrap().socket;
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(stream), Ok(daemon)) = (stream, UnixStream::connect(&socket)) else { return };
            pass_on(stream, daemon);
        }
    });
    format!("http://{address}")
}

/// Passes on what one end says to the other, until one of them ends.
fn pass_on(web: TcpStream, daemon: UnixStream) {
    let (mut from_web, mut to_web) = (web.try_clone().unwrap(), web);
    let (mut from_daemon, mut to_daemon) = (daemon.try_clone().unwrap(), daemon);
    std::thread::spawn(move || {
        drop(copy(&mut from_web, &mut to_daemon));
        drop(to_daemon.shutdown(Shutdown::Write));
    });
    std::thread::spawn(move || {
        drop(copy(&mut from_daemon, &mut to_web));
        drop(to_web.shutdown(Shutdown::Write));
    });
}

#[test]
fn proof_the_api_keeps_to_its_description_on_the_socket() {
    let served = Served::new();
    // Here what is asked for is made up too, so that most of it is missing.
    std::fs::remove_file(served.site.fleet.file("schemathesis.toml")).unwrap();
    let state = Utf8PathBuf::from_path_buf(served.site.fleet.file(".heeler")).unwrap();
    let address = over_tcp(&StateDir::open(&state).unwrap());
    served.holds(&address, &[]);
}

#[test]
fn proof_the_api_keeps_to_its_description_over_tcp_with_a_token() {
    let served = Served::new();
    let header = format!("authorization: Bearer {}", served.token);
    served.holds(&served.url, &[&header]);
}

#[test]
fn every_stream_of_the_description_is_one_and_says_what_is_wrong_as_the_rest_does() {
    const PROBLEM: &str = "application/problem+json";
    let served = Served::new();
    let described: Json =
        serde_json::from_str(include_str!("../../../../docs/openapi.json")).unwrap();
    let paths = described["paths"].as_object().unwrap();
    let streams: Vec<&String> = paths.keys().filter(|path| path.ends_with("/stream")).collect();
    assert_eq!(streams.len(), 5, "{streams:?}");
    for path in streams {
        let said = &paths[path]["get"]["responses"];
        assert!(said["200"]["content"]["text/event-stream"].is_object(), "{path}");
        assert!(said["default"]["content"][PROBLEM].is_object(), "{path}");
        let of = |noun: &str, id: &str| path.contains(noun).then(|| path.replace("{id}", id));
        let ids =
            [("/jobs/", &served.job), ("/sessions/", &served.session), ("/runs/", &served.run)];
        let named = ids.iter().find_map(|(noun, id)| of(noun, id));
        let found = named.clone().unwrap_or_else(|| path.clone());
        let (code, kind) = served.ask(&found, &served.token);
        assert_eq!((code, kind.as_str()), (200, "text/event-stream"), "{found}");
        let mut wrong = vec![(401, found.clone(), "no token")];
        let asked = paths[path]["get"]["parameters"].as_array().map_or(&[][..], Vec::as_slice);
        let asked = asked.iter().filter(|it| it["in"] == "query");
        wrong.extend(asked.map(|it| {
            let name = it["name"].as_str().unwrap();
            (400, format!("{found}?{name}=%21"), served.token.as_str())
        }));
        wrong.extend(named.map(|_| (404, path.replace("{id}", "none"), served.token.as_str())));
        for (code, path, token) in wrong {
            assert_eq!(served.ask(&path, token), (code, PROBLEM.to_owned()), "{path}");
        }
    }
}
