//! Config files that a person edits through the API, as the dashboard does.

use heeler_engine::{DaemonCommand, StopMode};
use heeler_server::DaemonClient;
use heeler_store::DaemonFile;
use serde_json::{Value as Json, json};

use crate::api::{Replied, send};
use crate::daemon_kills::{Herd, Life};
use crate::trigger::wait_for;

const FLEET: &str = "# The fleet of the farm.
fleet: {name: farm}
agents:
  # The first of them.
  - {name: coder, runtime: scripted, script: [{say: Hi.}]}
  - {name: slow, runtime: scripted, script: [{run: 'while ! test -e go; do sleep 0.05; done'}]}
";

const WORKFLOW: &str = "name: sweep\nagent: coder\nphases:\n  - {name: first, prompt: Go.}\n";

const AGENT: &str = "name: tidy\nruntime: scripted\nscript: [{say: Tidied.}]\n";

/// A fleet without secrets in its files, and its daemon.
struct EditedFleet {
    herd: Herd,
    life: Life,
}

impl EditedFleet {
    fn new(config: &str) -> EditedFleet {
        let herd = Herd::of(config);
        let (life, _) = herd.begin(&[]);
        EditedFleet { herd, life }
    }

    fn get(&self, path: &str) -> Replied {
        send(&self.herd.dir(), "GET", path, &[], "")
    }

    fn post(&self, path: &str, body: &Json) -> Replied {
        send(&self.herd.dir(), "POST", path, &[], &body.to_string())
    }

    /// Returns a file with its hash.
    fn open(&self, path: &str) -> Json {
        let replied = self.get(&format!("/api/v1/config/files/text?path={path}"));
        assert_eq!(replied.code, 200, "{replied:?}");
        replied.json
    }

    fn agents(&self) -> Vec<String> {
        let agents = self.get("/api/v1/agents").json;
        let names = agents["agents"].as_array().unwrap().iter();
        names.map(|agent| agent["name"].as_str().unwrap().to_owned()).collect()
    }

    fn stop(mut self) {
        let socket = DaemonFile::read(&self.herd.dir()).unwrap().unwrap().socket;
        let mut client = DaemonClient::connect(&socket, self.herd.dir().root()).unwrap();
        client.send_command(&DaemonCommand::Stop(StopMode::Force), None).unwrap();
        assert!(!self.life.ended(), "it ended by itself");
    }
}

#[test]
fn an_agent_is_added_edited_and_removed_and_comments_stay() {
    let edited = EditedFleet::new(FLEET);
    let files = edited.get("/api/v1/config/files").json;
    let config = files["files"][0].clone();
    assert_eq!(config["isFleet"], true, "{files}");
    let config = config["path"].as_str().unwrap().to_owned();

    let add = json!({"addAgent": "tidy", "text": AGENT});
    let checked = edited.post("/api/v1/config/check", &add);
    assert_eq!((checked.code, &checked.json["errors"]), (200, &json!([])), "{checked:?}");
    assert_eq!(checked.json["changes"].as_array().unwrap().len(), 2, "{checked:?}");
    assert_eq!(edited.agents(), ["coder", "slow"], "a check writes nothing");
    let saved = edited.post("/api/v1/config/save", &add);
    assert_eq!(saved.code, 200, "{saved:?}");
    assert_eq!(edited.agents(), ["coder", "slow", "tidy"]);
    assert_eq!(edited.herd.fleet.read("agents/tidy.yaml"), AGENT);
    let text = edited.herd.fleet.read(&config);
    assert!(
        text.starts_with("# The fleet of the farm.\n") && text.contains("# The first"),
        "{text}"
    );
    let again = edited.post("/api/v1/config/save", &add);
    assert_eq!(again.code, 409, "{again:?}");

    let file = edited.open("agents/tidy.yaml");
    let text = AGENT.replace("Tidied.", "Swept.");
    let replace =
        |text: &str, hash: &Json| json!({"path": "agents/tidy.yaml", "text": text, "hash": hash});
    let checked = edited.post("/api/v1/config/check", &replace(&text, &file["hash"]));
    let lines = json!(["- script: [{say: Tidied.}]", "+ script: [{say: Swept.}]"]);
    assert_eq!(checked.json["changes"][0]["lines"], lines, "{checked:?}");
    let saved = edited.post("/api/v1/config/save", &replace(&text, &file["hash"]));
    assert_eq!(saved.code, 200, "{saved:?}");
    assert_eq!(edited.herd.fleet.read("agents/tidy.yaml"), text);
    let stale = edited.post("/api/v1/config/save", &replace(AGENT, &file["hash"]));
    assert_eq!(stale.code, 409, "{stale:?}");
    assert!(stale.json["detail"].as_str().unwrap().contains("was changed meanwhile"));

    let removed = edited.post("/api/v1/config/save", &json!({"removeAgent": "tidy"}));
    assert_eq!(removed.code, 200, "{removed:?}");
    assert_eq!(edited.agents(), ["coder", "slow"]);
    assert_eq!(edited.herd.fleet.read(&config), FLEET, "the file is as it was");
    assert!(!edited.herd.fleet.file("agents/tidy.yaml").exists());
    let trash = edited.herd.dir().root().join("trash/config");
    assert_eq!(std::fs::read_dir(trash).unwrap().count(), 1);
    edited.stop();
}

#[test]
fn a_workflow_is_added_drawn_edited_and_removed() {
    let edited = EditedFleet::new(FLEET);
    assert_eq!(edited.get("/api/v1/config/files").json["workflowFolder"], "workflows");
    let add = json!({"addWorkflow": "sweep", "text": WORKFLOW});
    let checked = edited.post("/api/v1/config/check", &add);
    assert_eq!((checked.code, &checked.json["errors"]), (200, &json!([])), "{checked:?}");
    assert_eq!(checked.json["phases"][0]["name"], "first");
    let graph = checked.json["graph"].as_str().unwrap();
    assert!(graph.contains("<svg") && graph.contains("first"), "{graph}");
    assert_eq!(checked.json["values"]["phases"][0]["prompt"], "Go.");
    assert!(!edited.herd.fleet.file("workflows").exists(), "a check writes nothing");

    // Also while a job runs: the person who saves it confirms it.
    let job = edited.post("/api/v1/jobs", &json!({"agent": "slow", "prompt": "go"})).json;
    let job = format!("/api/v1/jobs/{}", job["id"].as_str().unwrap());
    wait_for("a running job", || (edited.get(&job).json["status"] == "running").then_some(()));
    let saved = edited.post("/api/v1/config/save", &add);
    assert_eq!(saved.code, 200, "{saved:?}");
    assert_eq!(edited.herd.fleet.read("workflows/sweep.yaml"), WORKFLOW);
    assert_eq!(edited.get("/api/v1/workflows/sweep").json["phases"][0]["name"], "first");
    assert_eq!(edited.get("/api/v1/fleet").json["configChange"], Json::Null);
    let again = edited.post("/api/v1/config/save", &add);
    assert_eq!(again.code, 409, "{again:?}");

    let file = edited.open("workflows/sweep.yaml");
    let changed = edited.post(
        "/api/v1/config/value",
        &json!({"text": file["text"], "path": ["phases", 0, "prompt"], "value": "Sweep."}),
    );
    assert_eq!(changed.json["text"], WORKFLOW.replace("Go.", "Sweep."), "{changed:?}");
    let text = WORKFLOW.replace("coder", "nobody");
    let wrong = json!({"path": "workflows/sweep.yaml", "text": text, "hash": file["hash"]});
    let checked = edited.post("/api/v1/config/check", &wrong);
    assert_eq!(checked.json["errors"][0]["line"], 2, "{checked:?}");
    assert_eq!(checked.json["graph"], Json::Null);

    let removed = edited.post("/api/v1/config/save", &json!({"removeWorkflow": "sweep"}));
    assert_eq!(removed.code, 200, "{removed:?}");
    assert_eq!(edited.get("/api/v1/workflows/sweep").code, 404);
    assert_eq!(edited.get("/api/v1/fleet").json["configChange"], Json::Null);
    assert!(!edited.herd.fleet.file("workflows/sweep.yaml").exists());
    let trash = edited.herd.dir().root().join("trash/config");
    assert_eq!(std::fs::read_dir(trash).unwrap().count(), 1);
    edited.herd.fleet.write("go", "");
    edited.stop();
}

#[test]
fn a_workflow_with_an_active_run_or_a_wrong_name_stays_as_it_is() {
    let edited = EditedFleet::new(FLEET);
    let text = WORKFLOW.replace("coder", "slow");
    let saved = edited.post("/api/v1/config/save", &json!({"addWorkflow": "sweep", "text": text}));
    assert_eq!(saved.code, 200, "{saved:?}");
    let run = edited.post("/api/v1/workflows/sweep/runs", &json!({})).json;
    let id = run["id"].as_str().unwrap_or_else(|| panic!("{run}")).to_owned();
    let refused = edited.post("/api/v1/config/save", &json!({"removeWorkflow": "sweep"}));
    assert_eq!(refused.code, 409, "{refused:?}");
    assert!(refused.json["detail"].as_str().unwrap().contains(&id), "{refused:?}");
    for (body, code) in [
        (json!({"addWorkflow": "../x", "text": WORKFLOW}), 400),
        (json!({"addWorkflow": "other", "text": WORKFLOW}), 400),
        (json!({"addWorkflow": "other", "addAgent": "other", "text": WORKFLOW}), 400),
        (json!({"removeWorkflow": "nothing"}), 404),
    ] {
        let replied = edited.post("/api/v1/config/save", &body);
        assert_eq!(replied.code, code, "{body}: {replied:?}");
    }
    for (path, code) in [(json!([]), 400), (json!([1.5]), 400), (json!(["name", "x"]), 400)] {
        let body = json!({"text": WORKFLOW, "path": path, "value": "x"});
        let replied = edited.post("/api/v1/config/value", &body);
        assert_eq!(replied.code, code, "{body}: {replied:?}");
    }
    edited.herd.fleet.write("go", "");
    edited.stop();
}

#[test]
fn faults_are_told_with_their_lines_and_nothing_is_written() {
    let edited = EditedFleet::new(FLEET);
    let config = edited.get("/api/v1/config/files").json["files"][0]["path"].clone();
    let file = edited.open(config.as_str().unwrap());
    let text = FLEET.replace("runtime: scripted, script: [{say: Hi.}]", "runtim: scripted");
    let edit = json!({"path": config, "text": text, "hash": file["hash"]});
    let checked = edited.post("/api/v1/config/check", &edit);
    let error = &checked.json["errors"][0];
    assert_eq!((checked.code, &error["line"]), (200, &json!(5)), "{checked:?}");
    let saved = edited.post("/api/v1/config/save", &edit);
    assert_eq!(saved.code, 400, "{saved:?}");
    assert_eq!(edited.herd.fleet.read(config.as_str().unwrap()), FLEET);
    for (body, code) in [
        (json!({"path": "../outside.yaml", "text": "", "hash": ""}), 404),
        (json!({"path": "/etc/passwd", "text": "", "hash": ""}), 404),
        (json!({"addAgent": "../x", "text": AGENT}), 400),
        (json!({"addAgent": "tidy", "text": "name: other\n"}), 400),
        (json!({"removeAgent": "nobody"}), 409),
        (json!({"removeAgent": "coder"}), 409),
        (json!({"text": ""}), 400),
    ] {
        let replied = edited.post("/api/v1/config/save", &body);
        assert_eq!(replied.code, code, "{body}: {replied:?}");
    }
    assert!(
        !edited.herd.fleet.file("agents/tidy.yaml").exists(),
        "nothing is left of a refused agent"
    );
    edited.stop();
}

#[test]
fn an_edit_of_a_person_is_loaded_also_while_a_job_runs() {
    let edited = EditedFleet::new(FLEET);
    let job = edited.post("/api/v1/jobs", &json!({"agent": "slow", "prompt": "go"})).json;
    let job = format!("/api/v1/jobs/{}", job["id"].as_str().unwrap());
    wait_for("a running job", || (edited.get(&job).json["status"] == "running").then_some(()));
    let saved = edited.post("/api/v1/config/save", &json!({"addAgent": "tidy", "text": AGENT}));
    assert_eq!(saved.code, 200, "{saved:?}");
    assert_eq!(edited.agents(), ["coder", "slow", "tidy"]);
    assert_eq!(edited.get("/api/v1/fleet").json["configChange"], Json::Null);
    edited.stop();
}

#[test]
fn an_edit_of_a_person_does_not_confirm_a_change_that_is_held() {
    let edited = EditedFleet::new(FLEET);
    let config = edited.get("/api/v1/config/files").json["files"][0]["path"].clone();
    let config = config.as_str().unwrap();
    let job = edited.post("/api/v1/jobs", &json!({"agent": "slow", "prompt": "go"})).json;
    let job = format!("/api/v1/jobs/{}", job["id"].as_str().unwrap());
    wait_for("a running job", || (edited.get(&job).json["status"] == "running").then_some(()));
    // An agent adds one of its own. The difference that the person is shown does not have it.
    let planted =
        format!("{FLEET}  - {{name: planted, runtime: scripted, script: [{{say: Hi.}}]}}\n");
    edited.herd.fleet.write(config, &planted);
    let add = json!({"addAgent": "tidy", "text": AGENT});
    let saved = edited.post("/api/v1/config/save", &add);
    assert_ne!(saved.code, 200, "{saved:?}");
    assert_eq!(edited.agents(), ["coder", "slow"], "nothing of it is loaded");
    let held = edited.get("/api/v1/fleet").json["configChange"].to_string();
    assert!(held.contains("planted"), "a person is shown all of it: {held}");
    edited.herd.fleet.write("go", "");
    edited.stop();
}

#[test]
fn files_with_secrets_and_files_elsewhere_stay_where_they_are() {
    let config = FLEET.replace(
        "script: [{say: Hi.}]",
        "script: [{say: Hi.}], env: {API_KEY: sk-very-secret-value}",
    );
    let edited = EditedFleet::new(&config);
    let path = edited.get("/api/v1/config/files").json["files"][0]["path"].clone();
    let replied = edited.get(&format!("/api/v1/config/files/text?path={}", path.as_str().unwrap()));
    assert_eq!(replied.code, 409, "{replied:?}");
    assert!(!replied.json.to_string().contains("sk-very"), "{replied:?}");
    edited.stop();
}

#[test]
fn a_running_agent_gets_a_message_and_others_are_refused() {
    let edited = EditedFleet::new(FLEET);
    let job = edited.post("/api/v1/jobs", &json!({"agent": "slow", "prompt": "go"})).json;
    let job = format!("/api/v1/jobs/{}", job["id"].as_str().unwrap());
    wait_for("a running job", || (edited.get(&job).json["status"] == "running").then_some(()));
    let messages = format!("{job}/messages");
    let empty = edited.post(&messages, &json!({"text": "  "}));
    assert_eq!(empty.code, 400, "{empty:?}");
    // The runner needs a moment until it accepts messages.
    wait_for("a message", || {
        (edited.post(&messages, &json!({"text": "Be quick."})).code == 200).then_some(())
    });
    wait_for("its row", || {
        let rows = edited.get(&format!("{job}/rows")).json.to_string();
        rows.contains("Be quick.").then_some(())
    });
    edited.herd.fleet.write("go", "");
    wait_for("the end", || (edited.get(&job).json["status"] == "completed").then_some(()));
    let late = edited.post(&messages, &json!({"text": "Too late."}));
    assert_eq!(late.code, 409, "{late:?}");
    edited.stop();
}
