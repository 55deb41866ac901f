//! Sessions of real agents besides Claude Code that move to another machine: another home, another path.

use camino::Utf8Path;
use heeler_config::CertifiedAgent;
use heeler_testkit::{ApiRequest, MessagesApi, ModelScript, codex, gemini, node, qwen};
use serde_json::{Value as Json, json};

use super::{TestedAgent, age_gemini_chats};
use crate::fleet::{Fleet, Ran};

/// A machine with a home of its own, and a fleet with an agent named `coder`.
struct Machine {
    fleet: Fleet,
    api: MessagesApi,
}

impl Machine {
    fn new(agent: TestedAgent) -> Machine {
        let machine = Machine { fleet: Fleet::new(), api: MessagesApi::start() };
        let home = machine.fleet.path().join("agent-home");
        let env = agent.write_settings(Utf8Path::from_path(&home).unwrap(), machine.api.url());
        let mut config = match agent.0 {
            CertifiedAgent::Codex => json!({ "runtime": "codex", "program": codex() }),
            CertifiedAgent::Gemini => {
                json!({ "runtime": "acp", "program": { "agent": "gemini", "path": gemini() } })
            }
            _ => json!({ "runtime": "sdk",
                "program": { "agent": "qwen", "path": node(), "args": [qwen()] } }),
        };
        config["name"] = "coder".into();
        config["env"] = json!(env);
        config["session"] = json!({ "mode": "persistent" });
        machine.fleet.write("heeler.yaml", &json!({ "agents": [config] }).to_string());
        machine
    }

    /// Has the agent say something; returns what the model was sent.
    #[track_caller]
    fn say(&self, args: &[&str], answer: &str) -> Vec<String> {
        let prompt = format!("Please. {}", ModelScript::new().text(answer));
        let command = self.fleet.command(&[args, &["-p", &prompt]].concat()).output().unwrap();
        Ran::from(command).ok();
        let sent = self.api.messages();
        // An agent may make further requests of its own.
        let is_turn = |history: &Vec<String>| history.iter().any(|line| line.contains(answer));
        sent.iter().map(ApiRequest::history).rfind(is_turn).unwrap()
    }

    fn native_sessions(&self) -> Json {
        let mut list = self.fleet.command(&["session", "list", "--native", "--json"]);
        let listed = list.env("HOME", self.fleet.file("agent-home")).output().unwrap();
        serde_json::from_str(&Ran::from(listed).ok()).unwrap()
    }
}

fn remembers(history: &[String], answer: &str) -> bool {
    let is_native = !history.iter().any(|line| line.contains("The record ends here."));
    is_native && history.iter().any(|line| line.ends_with(&format!(": {answer}")))
}

#[test]
fn an_exported_session_continues_in_the_program_of_another_machine() {
    let qwen = TestedAgent(CertifiedAgent::QwenSdk);
    for agent in [TestedAgent::CODEX, qwen, TestedAgent::GEMINI] {
        let (there, here) = (Machine::new(agent), Machine::new(agent));
        there.say(&["trigger", "coder"], "Said there.");
        let listed = there.fleet.json(&["session", "list", "--json"]);
        let id = listed["sessions"][0]["id"].as_str().unwrap();
        if agent == TestedAgent::GEMINI {
            let projects = there.fleet.file("agent-home/.gemini/tmp");
            age_gemini_chats(Utf8Path::from_path(&projects).unwrap());
        }
        let exported = there.fleet.run(&["session", "export", id, "-o", "session.json"]);
        assert!(!exported.stderr.contains("not continue it"), "{agent:?}: {}", exported.stderr);
        exported.ok();
        let bundle = there.fleet.read("session.json");
        assert!(bundle.contains("\n\"native\":["), "{agent:?}");

        here.fleet.write("session.json", &bundle);
        let imported = here.fleet.run(&["session", "import", "session.json"]);
        assert!(imported.stderr.contains("session resume"), "{agent:?}: {}", imported.stderr);
        imported.ok();
        let natives = here.native_sessions();
        let (work, native) = (here.fleet.path().canonicalize().unwrap(), &natives["sessions"][0]);
        assert_eq!(native["workingDirectory"].as_str(), work.to_str());
        assert_eq!(native["messageCount"], 2, "{natives:#}");

        let history = here.say(&["session", "resume", id], "Said here.");
        assert!(remembers(&history, "Said there."), "{agent:?}: {history:#?}");
        let now = here.native_sessions();
        let is_longer =
            |it: &Json| it["agentSessionId"] == native["agentSessionId"] && it["messageCount"] == 4;
        let all = now["sessions"].as_array().unwrap();
        assert!(all.iter().any(is_longer), "{agent:?} continued the same session: {now:#}");
        // And it moves on from there.
        let again = here.fleet.run(&["session", "export", id]).ok();
        assert!(again.contains("\n\"native\":[") && again.contains("Said here."), "{agent:?}");
    }
}

/// An agent of another program has the messages, and gets them as text.
#[test]
fn an_exported_session_is_given_to_another_program_as_text() {
    let there = Machine::new(TestedAgent::CODEX);
    there.say(&["trigger", "coder"], "Said there.");
    let listed = there.fleet.json(&["session", "list", "--json"]);
    let id = listed["sessions"][0]["id"].as_str().unwrap();
    there.fleet.run(&["session", "export", id, "-o", "session.json"]).ok();
    let here = Machine::new(TestedAgent(CertifiedAgent::QwenSdk));
    here.fleet.write("session.json", &there.fleet.read("session.json"));
    let imported = here.fleet.run(&["session", "import", "session.json"]);
    assert!(imported.stderr.contains("as text: heeler session fork"), "{}", imported.stderr);
    imported.ok();
    assert!(!here.fleet.file("agent-home/.codex").exists());
    let history = here.say(&["session", "fork", id, "--run"], "Said here.");
    let told = history.join("\n");
    assert!(told.contains("Said there.") && told.contains("The record ends here."), "{told}");
}
