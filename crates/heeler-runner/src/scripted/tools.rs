//! Tools that the player uses: commands and files for real, results that the script gives, servers
//! that the runner offers, sub-agents, and commands in the background.

use std::fs;

use heeler_model::script::{Doing, Step, ToolUse};
use serde_json::{Value as Json, json};
use uuid::Uuid;

use super::ask::Decision;
use super::children::Place;
use super::player::{Player, Stop, Task, Waited};
use super::wire::User;

/// What a tool gave back.
pub(super) struct Outcome {
    pub(super) text: String,
    pub(super) fails: bool,
}

impl Outcome {
    fn good(text: impl Into<String>) -> Outcome {
        Outcome { text: text.into(), fails: false }
    }

    pub(super) fn bad(text: impl Into<String>) -> Outcome {
        Outcome { text: text.into(), fails: true }
    }
}

impl Player {
    /// Uses a tool: says so, asks if it must, does it, says what came of it.
    pub(super) fn use_tool(&mut self, tool: &ToolUse) -> Result<(), Stop> {
        let is_command = tool.name == "Bash" && tool.doing == Doing::Real;
        let mut input = tool.input.clone();
        if !is_command {
            self.fill_texts(&mut input);
        }
        let id = self.tool_use(&tool.name, &input)?;
        let outcome = match tool.ask_permission {
            true => match self.ask(&tool.name, &input, &id)? {
                Decision::Allowed(changed) => {
                    input = changed.unwrap_or(input);
                    self.perform_tool(tool, &input)?
                }
                Decision::Denied(message) => Some(Outcome::bad(message)),
                Decision::Interrupted => return self.rejected(&id),
            },
            false => self.perform_tool(tool, &input)?,
        };
        match outcome {
            Some(outcome) => self.tool_result(&id, &outcome),
            None => self.rejected(&id),
        }
    }

    /// Says which tool is used; returns the id of this use.
    pub(super) fn tool_use(&mut self, name: &str, input: &Json) -> Result<String, Stop> {
        let id = format!("toolu_{}", Uuid::new_v4().simple());
        self.begin_block(&json!({"type": "tool_use", "id": id, "name": name, "input": {}}));
        self.block(json!({"type": "tool_use", "id": id, "name": name, "input": input}))?;
        self.end_message("tool_use");
        Ok(id)
    }

    /// Says what came of a tool. A message of the user that came meanwhile joins the turn.
    pub(super) fn tool_result(&mut self, id: &str, outcome: &Outcome) -> Result<(), Stop> {
        let Outcome { text, fails } = outcome;
        let content = json!([{
            "tool_use_id": id, "type": "tool_result", "content": text, "is_error": fails,
        }]);
        let more = match fails {
            true => json!({"tool_use_result": format!("Error: {text}")}),
            false => {
                json!({"tool_use_result": {"stdout": text, "stderr": "", "interrupted": false}})
            }
        };
        self.words.output.clone_from(text);
        self.converse("user", &User::new(content), &more)?;
        if self.parent.is_some() {
            return Ok(());
        }
        self.turn.rounds += 1;
        self.drain()?;
        self.steer()?;
        match self.setting.max_turns {
            Some(max) if max > 0 && self.turn.rounds >= max => Err(Stop::MaxTurns),
            _ => Ok(()),
        }
    }

    /// Takes messages of the user into the running turn, as Claude does after a tool.
    fn steer(&mut self) -> Result<(), Stop> {
        while let Some(prompt) = self.queue.pop_front() {
            let uuid = prompt.uuid.unwrap_or_else(Uuid::new_v4);
            // Blocks, not a text: it is no turn of its own when the session is resumed.
            let content = json!([{"type": "text", "text": prompt.text}]);
            let timestamp = self.timestamp();
            self.remember("user", uuid, &User::new(content), &timestamp)?;
            self.lifecycle(prompt.uuid, "started");
            self.turn.steered.extend(prompt.uuid);
            self.words.prompt = prompt.text;
        }
        Ok(())
    }

    /// Ends the turn because a person stopped a tool.
    pub(super) fn rejected(&mut self, id: &str) -> Result<(), Stop> {
        let text = "The user doesn't want to proceed with this tool use. It was not done, or not \
                    to its end.";
        let content = json!([{
            "type": "tool_result", "content": text, "is_error": true, "tool_use_id": id,
        }]);
        let more = json!({"tool_use_result": "User rejected tool use"});
        self.converse("user", &User::new(content), &more)?;
        Err(Stop::Interrupted { said: None, in_tool: true })
    }

    /// Does what a tool does; nothing comes of it when it is interrupted.
    fn perform_tool(&mut self, tool: &ToolUse, input: &Json) -> Result<Option<Outcome>, Stop> {
        let text = |key: &str| input[key].as_str().unwrap_or_default().to_owned();
        let path = self.setting.cwd.join(text("file_path"));
        Ok(Some(match (&tool.doing, tool.name.as_str()) {
            (Doing::Canned { result, fails }, _) => {
                Outcome { text: self.words.fill(result), fails: *fails }
            }
            (Doing::Mcp { server, tool }, _) => return self.call(server, tool, input),
            (Doing::Real, "Bash") => return self.run(&text("command")),
            (Doing::Real, "Read") => match fs::read(&path) {
                Ok(bytes) => Outcome::good(String::from_utf8_lossy(&bytes)),
                Err(error) => Outcome::bad(format!("cannot read {path}: {error}")),
            },
            (Doing::Real, "Write") => match fs::write(&path, text("content")) {
                Ok(()) => Outcome::good(format!("File created successfully at: {path}")),
                Err(error) => Outcome::bad(format!("cannot write {path}: {error}")),
            },
            (Doing::Real, _) => match edit(&path, &text("old_string"), &text("new_string")) {
                Ok(()) => Outcome::good(format!("The file {path} has been updated.")),
                Err(reason) => Outcome::bad(format!("cannot edit {path}: {reason}")),
            },
        }))
    }

    fn run(&mut self, command: &str) -> Result<Option<Outcome>, Stop> {
        let place = self.place();
        let running = match self.children.run(command, &place, &self.sender) {
            Ok(running) => running,
            Err(error) => return Ok(Some(Outcome::bad(format!("cannot run it: {error}")))),
        };
        let number = running.number;
        if self.wait(None, |player| player.ended.contains_key(&number))? == Waited::Interrupted {
            self.children.kill(&running);
            return Ok(None);
        }
        let code = self.ended.remove(&number).unwrap_or(1);
        let done = match running.done(code, self.redactor.as_ref()) {
            Ok(done) => done,
            Err(error) => {
                return Ok(Some(Outcome::bad(format!("cannot read its output: {error}"))));
            }
        };
        Ok(Some(match (done.code, done.output.as_str()) {
            (0, "") => Outcome::good("(Bash completed with no output)"),
            (0, output) => Outcome::good(output),
            (code, output) => Outcome::bad(format!("Exit code {code}\n{output}").trim_end()),
        }))
    }

    /// Starts a command that may outlast the turn.
    pub(super) fn start_task(&mut self, command: &str, then: &[Step]) -> Result<(), Stop> {
        let input = json!({"command": command, "run_in_background": true});
        let tool_use_id = self.tool_use("Bash", &input)?;
        let place = self.place();
        let running = match self.children.run(command, &place, &self.sender) {
            Ok(running) => running,
            Err(error) => {
                let outcome = Outcome::bad(format!("cannot run it: {error}"));
                return self.tool_result(&tool_use_id, &outcome);
            }
        };
        let id = format!("b{}", &Uuid::new_v4().simple().to_string()[..8]);
        let about = json!({
            "task_id": id, "tool_use_id": tool_use_id, "description": command,
            "is_backgrounded": true, "task_type": "local_bash",
        });
        let text = format!("Command running in background with ID: {id}.");
        self.tasks.push(Task {
            id,
            tool_use_id: tool_use_id.clone(),
            command: command.to_owned(),
            running,
            then: then.to_vec(),
        });
        self.tell_tasks();
        self.system("task_started", about);
        self.tool_result(&tool_use_id, &Outcome::good(text))
    }

    /// Has a sub-agent play steps.
    pub(super) fn sub_agent(
        &mut self,
        about: &str,
        prompt: &str,
        steps: &[Step],
    ) -> Result<(), Stop> {
        let (about, prompt) = (self.words.fill(about), self.words.fill(prompt));
        let kind = "general-purpose";
        let input = json!({"description": about, "prompt": prompt, "subagent_type": kind});
        let id = self.tool_use("Agent", &input)?;
        let task = format!("a{}", &Uuid::new_v4().simple().to_string()[..16]);
        self.system(
            "task_started",
            json!({
                "task_id": task, "tool_use_id": id, "description": about, "subagent_type": kind,
                "is_backgrounded": false, "task_type": "local_agent", "prompt": prompt,
            }),
        );
        let said = std::mem::take(&mut self.turn.text);
        let outer = self.parent.replace(id.clone());
        let content = json!([{"type": "text", "text": prompt}]);
        self.converse("user", &User::new(content), &Json::Null)?;
        self.play(steps)?;
        self.end_message("end_turn");
        self.parent = outer;
        let report = std::mem::replace(&mut self.turn.text, said);
        self.system("task_updated", json!({"task_id": task, "patch": {"status": "completed"}}));
        self.system(
            "task_notification",
            json!({
                "task_id": task, "tool_use_id": id, "status": "completed", "summary": report,
            }),
        );
        self.tool_result(&id, &Outcome::good(report))
    }

    pub(super) fn place(&self) -> Place {
        Place { cwd: self.setting.cwd.clone(), variables: self.words.variables() }
    }

    fn fill_texts(&self, json: &mut Json) {
        match json {
            Json::String(text) => *text = self.words.fill(text),
            Json::Array(items) => items.iter_mut().for_each(|item| self.fill_texts(item)),
            Json::Object(map) => map.values_mut().for_each(|value| self.fill_texts(value)),
            _ => {}
        }
    }
}

/// Replaces a text that occurs once.
fn edit(path: &camino::Utf8Path, old: &str, new: &str) -> Result<(), String> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    match text.matches(old).count() {
        1 => fs::write(path, text.replacen(old, new, 1)).map_err(|error| error.to_string()),
        0 => Err("the old text is not in it".to_owned()),
        count => Err(format!("the old text is in it {count} times")),
    }
}
