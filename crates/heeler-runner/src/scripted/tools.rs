//! Tools of the scripted agent: real commands and files, scripted results, MCP servers of the
//! runner, sub-agents, and background commands.

use std::fs;

use heeler_config::script::{ScriptStep, ScriptToolCall, ToolResultSource};
use serde_json::{Value as Json, json};
use uuid::Uuid;

use super::agent::ScriptedAgent;
use super::commands::ScriptedCommandContext;
use super::event::{ScriptedStopReason, ScriptedWaitOutcome};
use super::host_requests::ScriptedPermissionDecision;
use super::output::ScriptedUserMessage;
use super::turn_state::ScriptedBackgroundTask;

/// Result of a tool.
pub(super) struct ScriptedToolResult {
    pub(super) text: String,
    pub(super) is_error: bool,
}

impl ScriptedToolResult {
    fn success(text: impl Into<String>) -> ScriptedToolResult {
        ScriptedToolResult { text: text.into(), is_error: false }
    }

    pub(super) fn failure(text: impl Into<String>) -> ScriptedToolResult {
        ScriptedToolResult { text: text.into(), is_error: true }
    }
}

impl ScriptedAgent {
    /// Uses a tool: writes the tool call, asks for permission if required, executes it, writes the
    /// result.
    pub(super) fn use_tool(&mut self, tool: &ScriptToolCall) -> Result<(), ScriptedStopReason> {
        let is_command = tool.name == "Bash" && tool.result_source == ToolResultSource::Execution;
        let mut input = tool.input.clone();
        // Values reach a command as variables and never as a part of its text.
        if !is_command {
            self.fill_texts(&mut input);
        }
        let id = self.write_tool_use(&tool.name, &input)?;
        let outcome = match tool.ask_permission {
            true => match self.ask_permission(&tool.name, &input, &id)? {
                ScriptedPermissionDecision::Allowed(changed) => {
                    input = changed.unwrap_or(input);
                    self.execute_tool(tool, &input)?
                }
                ScriptedPermissionDecision::Denied(message) => {
                    Some(ScriptedToolResult::failure(message))
                }
                ScriptedPermissionDecision::Interrupted => return self.reject_tool(&id),
            },
            false => self.execute_tool(tool, &input)?,
        };
        match outcome {
            Some(outcome) => self.write_tool_result(&id, &outcome),
            None => self.reject_tool(&id),
        }
    }

    /// Writes a tool call; returns its ID.
    pub(super) fn write_tool_use(
        &mut self,
        name: &str,
        input: &Json,
    ) -> Result<String, ScriptedStopReason> {
        let id = format!("toolu_{}", Uuid::new_v4().simple());
        self.begin_block(&json!({"type": "tool_use", "id": id, "name": name, "input": {}}));
        self.write_block(json!({"type": "tool_use", "id": id, "name": name, "input": input}))?;
        self.end_message("tool_use");
        Ok(id)
    }

    /// Writes the result of a tool. A message of the user that arrived meanwhile joins the turn.
    pub(super) fn write_tool_result(
        &mut self,
        id: &str,
        outcome: &ScriptedToolResult,
    ) -> Result<(), ScriptedStopReason> {
        let ScriptedToolResult { text, is_error: fails } = outcome;
        let content = json!([{
            "tool_use_id": id, "type": "tool_result", "content": text, "is_error": fails,
        }]);
        let more = match fails {
            true => json!({"tool_use_result": format!("Error: {text}")}),
            false => {
                json!({"tool_use_result": {"stdout": text, "stderr": "", "interrupted": false}})
            }
        };
        self.variables.output.clone_from(text);
        self.write_message("user", &ScriptedUserMessage::new(content), &more)?;
        // Rounds of a sub-agent do not count, and messages wait for the main agent.
        if self.parent.is_some() {
            return Ok(());
        }
        self.turn.tool_rounds += 1;
        self.process_events()?;
        self.add_queued_prompts()?;
        match self.settings.max_turns {
            Some(max) if max > 0 && self.turn.tool_rounds >= max => {
                Err(ScriptedStopReason::MaxTurns)
            }
            _ => Ok(()),
        }
    }

    /// Adds queued messages of the user to the running turn, as Claude does after a tool.
    fn add_queued_prompts(&mut self) -> Result<(), ScriptedStopReason> {
        while let Some(prompt) = self.queue.pop_front() {
            let uuid = prompt.uuid.unwrap_or_else(Uuid::new_v4);
            // Blocks instead of a string: the message must not count as a turn of its own when the
            // session is resumed.
            let content = json!([{"type": "text", "text": prompt.text}]);
            let timestamp = self.timestamp();
            self.append_to_session("user", uuid, &ScriptedUserMessage::new(content), &timestamp)?;
            self.write_lifecycle(prompt.uuid, "started");
            self.turn.steered.extend(prompt.uuid);
            self.variables.prompt = prompt.text;
        }
        Ok(())
    }

    /// Ends the turn because a person stopped a tool.
    pub(super) fn reject_tool(&mut self, id: &str) -> Result<(), ScriptedStopReason> {
        let text = "The user doesn't want to proceed with this tool use. It was not done, or not \
                    to its end.";
        let content = json!([{
            "type": "tool_result", "content": text, "is_error": true, "tool_use_id": id,
        }]);
        let more = json!({"tool_use_result": "User rejected tool use"});
        self.write_message("user", &ScriptedUserMessage::new(content), &more)?;
        Err(ScriptedStopReason::Interrupted { partial: None, in_tool: true })
    }

    /// Executes a tool; `None` if it is interrupted.
    fn execute_tool(
        &mut self,
        tool: &ScriptToolCall,
        input: &Json,
    ) -> Result<Option<ScriptedToolResult>, ScriptedStopReason> {
        let text = |key: &str| input[key].as_str().unwrap_or_default().to_owned();
        let path = self.settings.cwd.join(text("file_path"));
        Ok(Some(match (&tool.result_source, tool.name.as_str()) {
            (ToolResultSource::Canned { result, fails }, _) => {
                ScriptedToolResult { text: self.variables.expand(result), is_error: *fails }
            }
            (ToolResultSource::Mcp { server, tool }, _) => {
                return self.call_mcp_tool(server, tool, input);
            }
            (ToolResultSource::Execution, "Bash") => return self.run_command(&text("command")),
            (ToolResultSource::Execution, "Read") => match fs::read(&path) {
                Ok(bytes) => ScriptedToolResult::success(String::from_utf8_lossy(&bytes)),
                Err(error) => ScriptedToolResult::failure(format!("cannot read {path}: {error}")),
            },
            (ToolResultSource::Execution, "Write") => match fs::write(&path, text("content")) {
                Ok(()) => {
                    ScriptedToolResult::success(format!("File created successfully at: {path}"))
                }
                Err(error) => ScriptedToolResult::failure(format!("cannot write {path}: {error}")),
            },
            (ToolResultSource::Execution, _) => {
                match edit_file(&path, &text("old_string"), &text("new_string")) {
                    Ok(()) => {
                        ScriptedToolResult::success(format!("The file {path} has been updated."))
                    }
                    Err(reason) => {
                        ScriptedToolResult::failure(format!("cannot edit {path}: {reason}"))
                    }
                }
            }
        }))
    }

    fn run_command(
        &mut self,
        command: &str,
    ) -> Result<Option<ScriptedToolResult>, ScriptedStopReason> {
        let context = self.command_context();
        let running = match self.children.start(command, &context, &self.sender) {
            Ok(running) => running,
            Err(error) => {
                return Ok(Some(ScriptedToolResult::failure(format!("cannot run it: {error}"))));
            }
        };
        let number = running.number;
        if self.wait(None, |player| player.ended.contains_key(&number))?
            == ScriptedWaitOutcome::Interrupted
        {
            self.children.kill(&running);
            return Ok(None);
        }
        let code = self.ended.remove(&number).unwrap_or(1);
        let done = match running.read_output(code, &self.redactor) {
            Ok(done) => done,
            Err(error) => {
                return Ok(Some(ScriptedToolResult::failure(format!(
                    "cannot read its output: {error}"
                ))));
            }
        };
        Ok(Some(match (done.code, done.output.as_str()) {
            // Claude uses the same words for a command without output.
            (0, "") => ScriptedToolResult::success("(Bash completed with no output)"),
            (0, output) => ScriptedToolResult::success(output),
            (code, output) => {
                ScriptedToolResult::failure(format!("Exit code {code}\n{output}").trim_end())
            }
        }))
    }

    /// Starts a command that may outlast the turn.
    pub(super) fn start_task(
        &mut self,
        command: &str,
        then: &[ScriptStep],
    ) -> Result<(), ScriptedStopReason> {
        let input = json!({"command": command, "run_in_background": true});
        let tool_use_id = self.write_tool_use("Bash", &input)?;
        let context = self.command_context();
        let running = match self.children.start(command, &context, &self.sender) {
            Ok(running) => running,
            Err(error) => {
                let outcome = ScriptedToolResult::failure(format!("cannot run it: {error}"));
                return self.write_tool_result(&tool_use_id, &outcome);
            }
        };
        let id = format!("b{}", &Uuid::new_v4().simple().to_string()[..8]);
        let about = json!({
            "task_id": id, "tool_use_id": tool_use_id, "description": command,
            "is_backgrounded": true, "task_type": "local_bash",
        });
        let text = format!("Command running in background with ID: {id}.");
        self.tasks.push(ScriptedBackgroundTask {
            id,
            tool_use_id: tool_use_id.clone(),
            command: command.to_owned(),
            running,
            then: then.to_vec(),
        });
        self.write_task_list();
        self.write_system_message("task_started", about);
        self.write_tool_result(&tool_use_id, &ScriptedToolResult::success(text))
    }

    /// Runs the steps of a sub-agent.
    pub(super) fn run_sub_agent(
        &mut self,
        about: &str,
        prompt: &str,
        steps: &[ScriptStep],
    ) -> Result<(), ScriptedStopReason> {
        let (about, prompt) = (self.variables.expand(about), self.variables.expand(prompt));
        let kind = "general-purpose";
        let input = json!({"description": about, "prompt": prompt, "subagent_type": kind});
        let id = self.write_tool_use("Agent", &input)?;
        let task = format!("a{}", &Uuid::new_v4().simple().to_string()[..16]);
        self.write_system_message(
            "task_started",
            json!({
                "task_id": task, "tool_use_id": id, "description": about, "subagent_type": kind,
                "is_backgrounded": false, "task_type": "local_agent", "prompt": prompt,
            }),
        );
        // The last text of the sub-agent is its report and must not replace that of the turn.
        let outer_text = std::mem::take(&mut self.turn.text);
        let outer = self.parent.replace(id.clone());
        let content = json!([{"type": "text", "text": prompt}]);
        self.write_message("user", &ScriptedUserMessage::new(content), &Json::Null)?;
        self.run_steps(steps)?;
        self.end_message("end_turn");
        self.parent = outer;
        let report = std::mem::replace(&mut self.turn.text, outer_text);
        self.write_system_message(
            "task_updated",
            json!({"task_id": task, "patch": {"status": "completed"}}),
        );
        self.write_system_message(
            "task_notification",
            json!({
                "task_id": task, "tool_use_id": id, "status": "completed", "summary": report,
            }),
        );
        self.write_tool_result(&id, &ScriptedToolResult::success(report))
    }

    pub(super) fn command_context(&self) -> ScriptedCommandContext {
        ScriptedCommandContext {
            cwd: self.settings.cwd.clone(),
            variables: self.variables.environment_variables(),
        }
    }

    fn fill_texts(&self, json: &mut Json) {
        match json {
            Json::String(text) => *text = self.variables.expand(text),
            Json::Array(items) => items.iter_mut().for_each(|item| self.fill_texts(item)),
            Json::Object(map) => map.values_mut().for_each(|value| self.fill_texts(value)),
            _ => {}
        }
    }
}

/// Replaces a text that occurs exactly once.
fn edit_file(path: &camino::Utf8Path, old: &str, new: &str) -> Result<(), String> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    match text.matches(old).count() {
        1 => fs::write(path, text.replacen(old, new, 1)).map_err(|error| error.to_string()),
        0 => Err("the old text is not in it".to_owned()),
        count => Err(format!("the old text is in it {count} times")),
    }
}
