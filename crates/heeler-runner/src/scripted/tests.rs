//! Conversations with a player in this process, over pipes. What needs a process of its own
//! (signals, exit codes, processes left behind) is tested with the program.

mod conversations;
mod session;
mod steps;

use std::io::{BufRead as _, BufReader, PipeReader, PipeWriter, Write as _};
use std::thread::JoinHandle;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::script::ScriptExit;
use heeler_model::run::SessionStart;
use jiff::Timestamp;
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use super::{ScriptedAgentOptions, ScriptedFileContent, run_agent_on};

const ID: &str = "5e550000-0000-4000-8000-000000000001";
const OTHER: &str = "5e550000-0000-4000-8000-000000000002";

/// A folder with a home and a working directory.
pub(super) struct ScriptedFixture {
    _dir: TempDir,
    root: Utf8PathBuf,
}

/// One process's worth of a player.
pub(super) struct ScriptedAgentHandle {
    input: Option<PipeWriter>,
    lines: BufReader<PipeReader>,
    player: JoinHandle<ScriptExit>,
    /// Everything that was read so far.
    pub(super) seen: Vec<Json>,
}

impl ScriptedFixture {
    pub(super) fn new() -> ScriptedFixture {
        let dir = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(dir.path()).unwrap().canonicalize_utf8().unwrap();
        std::fs::create_dir(root.join("work")).unwrap();
        ScriptedFixture { _dir: dir, root }
    }

    pub(super) fn work(&self) -> Utf8PathBuf {
        self.root.join("work")
    }

    pub(super) fn play(&self, yaml: &str, session: SessionStart) -> ScriptedAgentOptions {
        self.play_with(yaml, session, &[])
    }

    pub(super) fn play_with(
        &self,
        yaml: &str,
        session: SessionStart,
        secrets: &[&str],
    ) -> ScriptedAgentOptions {
        let steps = heeler_config::parse_script_file("script.yaml".into(), yaml).unwrap();
        let secrets = secrets.iter().map(ToString::to_string).collect();
        let script = self.root.join("script.json");
        std::fs::write(
            &script,
            serde_json::to_vec(&ScriptedFileContent { steps, secrets }).unwrap(),
        )
        .unwrap();
        ScriptedAgentOptions {
            script,
            home: self.root.join("home"),
            cwd: self.work(),
            program: "/nonexistent".into(),
            session,
            max_turns: None,
            max_budget_usd: None,
            partial: false,
            can_ask: true,
            persists_session: true,
            tools: true,
            now: || Timestamp::UNIX_EPOCH,
        }
    }

    /// Plays a script in a new session for one prompt; returns what was seen and how it ended.
    pub(super) fn perform(&self, yaml: &str) -> (String, ScriptExit) {
        let mut talk = start(self.play(yaml, fresh()));
        talk.prompt("do it");
        let exit = talk.end();
        (talk.shown(), exit)
    }

    /// Says one prompt in a session; returns the last text.
    pub(super) fn turn(&self, yaml: &str, session: SessionStart, prompt: &str) -> String {
        let mut talk = start(self.play(yaml, session));
        talk.prompt(prompt);
        assert_eq!(talk.end(), ScriptExit::Code(0), "{}", talk.shown());
        talk.result()["result"].as_str().unwrap().to_owned()
    }

    pub(super) fn session_file(&self, id: &str) -> Utf8PathBuf {
        let slug = heeler_model::project_slug(&self.work());
        self.root.join("home/scripted/projects").join(slug).join(format!("{id}.jsonl"))
    }
}

pub(super) fn fresh() -> SessionStart {
    SessionStart::Fresh { id: ID.parse().unwrap() }
}

pub(super) fn resume(id: &str) -> SessionStart {
    SessionStart::Resume { id: id.parse().unwrap() }
}

pub(super) fn start(play: ScriptedAgentOptions) -> ScriptedAgentHandle {
    let (input, agent_input) = swapped(std::io::pipe().unwrap());
    let (output, agent_output) = std::io::pipe().unwrap();
    let player = std::thread::spawn(move || {
        run_agent_on(&play, Box::new(agent_input), Box::new(agent_output))
    });
    ScriptedAgentHandle {
        input: Some(input),
        lines: BufReader::new(output),
        player,
        seen: Vec::new(),
    }
}

fn swapped((reader, writer): (PipeReader, PipeWriter)) -> (PipeWriter, PipeReader) {
    (writer, reader)
}

impl ScriptedAgentHandle {
    pub(super) fn send(&mut self, line: Json) {
        self.raw(&format!("{line}\n"));
    }

    pub(super) fn raw(&mut self, text: &str) {
        // A player that has ended does not read any more.
        let _sent = self.input.as_mut().unwrap().write_all(text.as_bytes());
    }

    pub(super) fn prompt(&mut self, text: &str) {
        self.send(json!({"type": "user", "message": {"role": "user", "content": text}}));
    }

    pub(super) fn prompt_as(&mut self, uuid: &str, text: &str) {
        let message = json!({"role": "user", "content": text});
        self.send(json!({"type": "user", "message": message, "uuid": uuid}));
    }

    pub(super) fn request(&mut self, id: &str, request: Json) {
        self.send(json!({"type": "control_request", "request_id": id, "request": request}));
    }

    pub(super) fn reply(&mut self, to: &Json, response: Json) {
        let response = json!({
            "subtype": "success", "request_id": to["request_id"], "response": response,
        });
        self.send(json!({"type": "control_response", "response": response}));
    }

    /// Reads up to a line that is shown like this.
    #[track_caller]
    pub(super) fn until(&mut self, start: &str) -> Json {
        loop {
            let mut line = Vec::new();
            self.lines.read_until(b'\n', &mut line).unwrap();
            assert!(!line.is_empty(), "no line starts with `{start}`:\n{}", self.shown());
            let line = read(&line);
            self.seen.push(line.clone());
            if show(&line).starts_with(start) {
                return line;
            }
        }
    }

    pub(super) fn close(&mut self) {
        self.input = None;
    }

    /// Closes the input and reads the rest.
    pub(super) fn end(&mut self) -> ScriptExit {
        self.close();
        let mut line = Vec::new();
        while self.lines.read_until(b'\n', &mut line).unwrap() > 0 {
            self.seen.push(read(&line));
            line.clear();
        }
        let done = std::mem::replace(&mut self.player, std::thread::spawn(|| ScriptExit::Code(0)));
        done.join().unwrap()
    }

    #[track_caller]
    pub(super) fn result(&self) -> &Json {
        let result = self.seen.iter().rev().find(|line| line["type"] == "result");
        result.unwrap_or_else(|| panic!("no result:\n{}", self.shown()))
    }

    pub(super) fn shown(&self) -> String {
        self.seen.iter().map(show).collect::<Vec<_>>().join("\n")
    }
}

fn read(line: &[u8]) -> Json {
    serde_json::from_slice(line).unwrap_or_else(|_| {
        json!({"type": "no message", "bytes": line.len(), "start": String::from_utf8_lossy(&line[..line.len().min(40)])})
    })
}

/// Shows a line in short, without ids.
pub(super) fn show(line: &Json) -> String {
    let text = |value: &Json| value.as_str().unwrap_or("?").to_owned();
    let within = if line["parent_tool_use_id"].is_string() { "  within: " } else { "" };
    let kind = text(&line["type"]);
    let rest = match kind.as_str() {
        "system" => show_system(line),
        "assistant" | "user" => {
            let aborted = if line["aborted"] == true { " (aborted)" } else { "" };
            let error = line["error"].as_str().map_or(String::new(), |error| format!(" ({error})"));
            format!("{}{aborted}{error}", show_content(&line["message"]["content"]))
        }
        "stream_event" => {
            let event = &line["event"];
            let delta =
                if event["delta"].is_null() { String::new() } else { event["delta"].to_string() };
            format!("{} {delta}", text(&event["type"])).trim().to_owned()
        }
        "result" => {
            let said = match &line["errors"] {
                Json::Null => line["result"].to_string(),
                errors => errors.to_string(),
            };
            let (turns, reason) = (&line["num_turns"], text(&line["terminal_reason"]));
            format!("{} {reason}, {turns} turns: {said}", text(&line["subtype"]))
        }
        "command_lifecycle" => text(&line["state"]),
        "control_request" => {
            let request = &line["request"];
            format!("{} {} {}", text(&request["subtype"]), request["tool_name"], request["input"])
        }
        "control_response" => line["response"]["subtype"].to_string(),
        "no message" => format!("{} bytes {}", line["bytes"], line["start"]),
        _ => String::new(),
    };
    format!("{within}{kind} {rest}").trim_end().to_owned()
}

fn show_system(line: &Json) -> String {
    let mut rest = String::new();
    for key in ["model", "attempt", "error", "status", "description", "summary", "message"] {
        if !line[key].is_null() {
            rest.push_str(&format!(" {key}={}", line[key]));
        }
    }
    format!("{}{rest}", line["subtype"].as_str().unwrap_or("?"))
}

fn show_content(content: &Json) -> String {
    let block = |block: &Json| match block["type"].as_str() {
        Some("tool_use") => format!("tool_use {} {}", block["name"], block["input"]),
        Some("tool_result") => {
            let kind = if block["is_error"] == true { "error" } else { "result" };
            format!("{kind} {}", block["content"])
        }
        Some("thinking") => format!("thinks {}", block["thinking"]),
        _ => block["text"].to_string(),
    };
    match content {
        Json::Array(blocks) => blocks.iter().map(block).collect::<Vec<_>>().join(" + "),
        other => other.to_string(),
    }
}
