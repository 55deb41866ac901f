//! The HTTP API of a real daemon: every noun, paging, what did not change, what goes wrong.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use heeler_engine::{DaemonCommand, StopMode};
use heeler_server::DaemonClient;
use heeler_store::DaemonFile;
use heeler_store::StateDir;
use serde_json::Value as Json;

use crate::daemon_kills::{Herd, Life};
use crate::trigger::wait_for;

/// A reply.
#[derive(Debug)]
pub(crate) struct Replied {
    pub(crate) code: u16,
    headers: Vec<(String, String)>,
    pub(crate) json: Json,
}

impl Replied {
    /// Returns a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// Sends a request to a fleet's daemon and returns the reply; none if it broke off.
pub(crate) fn try_send(
    dir: &StateDir,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Option<Replied> {
    let socket = DaemonFile::read(dir).unwrap().unwrap().socket;
    let mut stream = UnixStream::connect(socket).unwrap();
    let headers: String =
        headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).ok()?;
    let (head, body) = reply.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let code = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let header = |line: &str| {
        let (name, value) = line.split_once(": ")?;
        Some((name.to_ascii_lowercase(), value.to_owned()))
    };
    let headers = lines.filter_map(header).collect();
    let json = if body.is_empty() { Json::Null } else { serde_json::from_str(body).unwrap() };
    Some(Replied { code, headers, json })
}

/// The same, of a daemon that answers.
#[track_caller]
pub(crate) fn send(
    dir: &StateDir,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Replied {
    try_send(dir, method, path, headers, body).expect("it answers")
}

/// A fleet with agents, a schedule and a workflow.
pub(crate) const FLEET: &str = "fleet: {name: farm}
agents:
  - {name: coder, runtime: scripted, description: Writes code,
     script: [{say: 'You said {prompt}'}, {cost: 0.01}],
     env: {API_KEY: sk-very-secret-value},
     schedules: {nightly: {cron: '0 3 * * *', prompt: Tidy up.}, hook: {type: webhook, prompt: Look.}}}
  - {name: asker, runtime: scripted, approvals: interactive, script: [{question: 'Which?', header: C, options: [red, blue]}, {say: 'Took {answer}.'}]}
";

/// Its workflow.
pub(crate) const WORKFLOW: &str = "name: build
agent: coder
inputs: {task: {description: What to build}}
phases:
  - {name: plan, prompt: 'Plan {{ task }}'}
  - {name: work, prompt: Do it, depends_on: [plan]}
";

/// That fleet, and its daemon.
struct Served {
    herd: Herd,
    life: Life,
}

impl Served {
    fn new() -> Served {
        let herd = Herd::of(FLEET);
        herd.fleet.write("workflows/build.yaml", WORKFLOW);
        let (life, _) = herd.begin(&[]);
        Served { herd, life }
    }

    #[track_caller]
    fn get(&self, path: &str) -> Json {
        let replied = send(&self.herd.dir(), "GET", path, &[], "");
        assert_eq!(replied.code, 200, "{path}: {replied:?}");
        replied.json
    }

    #[track_caller]
    fn post(&self, path: &str, body: &str) -> Json {
        let replied = send(&self.herd.dir(), "POST", path, &[], body);
        assert_eq!(replied.code, 200, "{path} {body}: {replied:?}");
        replied.json
    }

    /// Starts a job and waits for its end; returns its id.
    fn job(&self, prompt: &str) -> String {
        let body = serde_json::json!({ "agent": "coder", "prompt": prompt }).to_string();
        let id = self.post("/api/v1/jobs", &body)["id"].as_str().unwrap().to_owned();
        wait_for("the end of a job", || {
            let job = self.get(&format!("/api/v1/jobs/{id}"));
            (job["status"] == "completed").then_some(())
        });
        id
    }

    fn stop(mut self) {
        // One that has said nothing for a while was hung up on.
        let socket = DaemonFile::read(&self.herd.dir()).unwrap().unwrap().socket;
        let mut client = DaemonClient::connect(&socket, self.herd.dir().root()).unwrap();
        client.send_command(&DaemonCommand::Stop(StopMode::Wait { timeout: None }), None).unwrap();
        assert!(!self.life.ended(), "it ended by itself");
    }
}

#[test]
fn every_noun_can_be_read() {
    let served = Served::new();
    let job = served.job("Hello.");
    let jobs = served.get("/api/v1/jobs");
    assert_eq!((&jobs["total"], &jobs["jobs"][0]["id"]), (&1.into(), &job.as_str().into()));
    let rows = served.get(&format!("/api/v1/jobs/{job}/rows?limit=2"));
    assert_eq!(rows["rows"].as_array().unwrap().len(), 2);
    let last = rows["rows"][1]["line"].as_u64().unwrap();
    assert_eq!(last + 1, rows["lines"].as_u64().unwrap());
    let session = served.get("/api/v1/sessions?tree=true")["sessions"][0].clone();
    assert_eq!((&session["agentId"], &session["depth"]), (&"coder".into(), &0.into()));
    let id = session["id"].as_str().unwrap();
    assert_eq!(served.get(&format!("/api/v1/sessions/{id}"))["jobs"][0], job.as_str());
    let said = served.get(&format!("/api/v1/sessions/{id}/messages"));
    assert_eq!(said["messages"][0]["role"], "user", "{said:#}");
    assert_eq!(said["messages"][1]["safeCut"], true, "{said:#}");
    assert_eq!(served.get("/api/v1/agents")["total"], 2);
    assert_eq!(served.get("/api/v1/agents/coder")["lastJob"], job.as_str());
    assert_eq!(served.get("/api/v1/schedules?agent=coder")["total"], 2);
    assert_eq!(served.get("/api/v1/schedules/coder/nightly")["when"], "0 3 * * *");
    assert_eq!(served.get("/api/v1/workflows")["workflows"][0]["name"], "build");
    assert_eq!(served.get("/api/v1/workflows/build")["inputs"][0]["name"], "task");
    assert_eq!(served.get("/api/v1/runs")["total"], 0);
    assert_eq!(served.get("/api/v1/approvals")["total"], 0);
    assert_eq!(served.get("/api/v1/costs?by=agent")["costs"][0]["agent"], "coder");
    let found = served.get("/api/v1/search?text=Hello");
    assert!(found["hits"].as_array().unwrap().iter().any(|hit| hit["id"] == job.as_str()));
    let config = served.get("/api/v1/config").to_string();
    assert!(config.contains("coder") && !config.contains("sk-very-secret"), "{config}");
    assert_eq!(served.get("/api/v1/health")["ok"], true);
    assert_eq!(served.get("/api/v1/version")["api"], 1);
    let examined = served.get("/api/v1/doctor");
    // What is just being written is told as a warning.
    let found = examined["findings"].as_array().unwrap();
    assert!(found.iter().all(|it| it["severity"] != "error"), "{examined:#}");
    let fleet = served.get("/api/v1/fleet");
    assert_eq!((&fleet["fleet"]["name"], &fleet["jobsTotal"]), (&"farm".into(), &1.into()));
    assert_eq!(fleet["daemon"]["stopping"], false);
    served.stop();
}

#[test]
fn what_the_command_line_prints_is_what_the_api_replies() {
    let served = Served::new();
    let job = served.job("Hello.");
    let fleet = &served.herd.fleet;
    let reply = |path: &str| {
        let mut reply = served.get(path);
        write_millis(&mut reply);
        reply
    };
    assert_eq!(fleet.json(&["jobs", "--json"]), reply("/api/v1/jobs"));
    let shown = fleet.json(&["jobs", "show", &job, "--json"])["job"].clone();
    assert_eq!(shown, reply(&format!("/api/v1/jobs/{job}")));
    for (args, path) in [
        (&["agent", "list", "--json"][..], "/api/v1/agents"),
        (&["schedule", "list", "--json"], "/api/v1/schedules"),
        (&["session", "list", "--json"], "/api/v1/sessions"),
        (&["workflow", "list", "--json"], "/api/v1/workflows"),
        (&["workflow", "runs", "--json"], "/api/v1/runs"),
        (&["costs", "--json"], "/api/v1/costs"),
    ] {
        assert_eq!(fleet.json(args), reply(path), "{path}");
    }
    served.stop();
}

/// Writes the times of a reply as commands do: always with milliseconds. The API has the shortest form.
fn write_millis(reply: &mut Json) {
    match reply {
        Json::Array(items) => items.iter_mut().for_each(write_millis),
        Json::Object(fields) => {
            for (key, value) in fields {
                let at = value.as_str().filter(|_| key.ends_with("At"));
                match at.and_then(|text| text.parse::<jiff::Timestamp>().ok()) {
                    Some(at) => *value = heeler_model::iso_millis(at).into(),
                    None => write_millis(value),
                }
            }
        }
        _ => {}
    }
}

#[test]
fn pages_follow_each_other_and_a_page_that_did_not_change_is_not_sent_again() {
    let served = Served::new();
    let mut asked: Vec<String> = (0..5).map(|n| served.job(&format!("Job {n}."))).collect();
    asked.reverse();
    let mut seen = Vec::new();
    let mut path = "/api/v1/jobs?limit=2".to_owned();
    loop {
        let page = served.get(&path);
        let jobs = page["jobs"].as_array().unwrap().iter();
        seen.extend(jobs.map(|job| job["id"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/api/v1/jobs?limit=2&before={next}");
    }
    assert_eq!(seen, asked);
    let dir = served.herd.dir();
    let first = send(&dir, "GET", "/api/v1/jobs", &[], "");
    let tag = first.header("etag").unwrap().to_owned();
    let same = send(&dir, "GET", "/api/v1/jobs", &[("if-none-match", &tag)], "");
    assert_eq!((same.code, &same.json), (304, &Json::Null));
    served.job("One more.");
    let other = send(&dir, "GET", "/api/v1/jobs", &[("if-none-match", &tag)], "");
    assert_eq!(other.code, 200);
    served.stop();
}

#[test]
fn what_goes_wrong_is_a_problem_with_its_code() {
    let served = Served::new();
    let job = served.job("Hello.");
    let cases: [(&str, String, &str, u16); 9] = [
        ("GET", "/api/v1/jobs/job-none".to_owned(), "", 404),
        ("GET", "/api/v1/jobs?limit=0".to_owned(), "", 400),
        ("GET", "/api/v1/jobs?limit=101".to_owned(), "", 400),
        ("GET", "/api/v1/jobs?status=lost".to_owned(), "", 400),
        ("GET", "/api/v1/agents/nobody".to_owned(), "", 404),
        ("POST", "/api/v1/jobs".to_owned(), r#"{"agent": "coder", "fork": true}"#, 400),
        ("POST", format!("/api/v1/jobs/{job}/cancel"), "", 409),
        ("PUT", "/api/v1/schedules/coder/nightly".to_owned(), r#"{"when": "soon"}"#, 400),
        ("POST", "/api/v1/approvals/ask-none".to_owned(), r#"{"approve": true}"#, 404),
    ];
    for (method, path, body, code) in cases {
        let replied = send(&served.herd.dir(), method, &path, &[], body);
        assert_eq!(replied.code, code, "{method} {path}: {replied:?}");
        assert_eq!(replied.header("content-type"), Some("application/problem+json"), "{path}");
        assert_eq!(replied.json["status"], code, "{path}");
    }
    served.stop();
}

#[test]
fn a_fleet_is_steered_over_http() {
    let served = Served::new();
    let job = served.job("Hello.");
    let forked = served.post(&format!("/api/v1/jobs/{job}/fork"), "{}");
    let fork = forked["id"].as_str().unwrap();
    let talked =
        served.post(&format!("/api/v1/sessions/{fork}/messages"), r#"{"prompt": "More."}"#);
    wait_for("the end of a talk", || {
        let job = served.get(&format!("/api/v1/jobs/{}", talked["id"].as_str().unwrap()));
        (job["status"] == "completed").then_some(())
    });
    for id in [job.as_str(), talked["id"].as_str().unwrap()] {
        assert_eq!(served.get(&format!("/api/v1/jobs/{id}"))["triggerType"], "api", "{id}");
    }
    assert_ne!(served.post(&format!("/api/v1/jobs/{job}/retry"), "")["id"], job.as_str());
    served.post("/api/v1/agents/coder/disable", "");
    assert_eq!(served.get("/api/v1/agents/coder")["enabled"], false);
    served.post("/api/v1/agents/coder/enable", "");
    let put = r#"{"when": "30m"}"#;
    let set = send(&served.herd.dir(), "PUT", "/api/v1/schedules/coder/nightly", &[], put);
    assert_eq!(set.code, 200, "{set:?}");
    assert_eq!(served.get("/api/v1/schedules/coder/nightly")["when"], "every 30m");
    served.post("/api/v1/schedules/coder/nightly/reset", "");
    let run = served.post("/api/v1/workflows/build/runs", r#"{"inputs": {"task": "a hut"}}"#);
    let run = run["id"].as_str().unwrap();
    let done = wait_for("the end of a run", || {
        let run = served.get(&format!("/api/v1/runs/{run}"));
        (run["status"] == "succeeded").then_some(run)
    });
    assert_eq!(done["phases"][1]["name"], "work");
    let body = r#"{"agent": "asker", "prompt": "Choose.", "attended": true}"#;
    let asking = served.post("/api/v1/jobs", body)["id"].as_str().unwrap().to_owned();
    let asked = wait_for("a question", || {
        let page = served.get(&format!("/api/v1/approvals?status=pending&run={asking}"));
        page["approvals"][0]["id"].as_str().map(str::to_owned)
    });
    served.post(&format!("/api/v1/approvals/{asked}"), r#"{"approve": true, "text": "blue"}"#);
    let answered = served.get(&format!("/api/v1/approvals/{asked}"));
    assert_eq!(answered["status"], "approved", "{answered:#}");
    served.post("/api/v1/daemon/reload", "");
    served.stop();
}
