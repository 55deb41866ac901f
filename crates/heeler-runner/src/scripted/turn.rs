//! One turn: a prompt comes in, the script is followed, a result goes out.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use heeler_config::script::{AgentScript, ScriptApiError, ScriptCondition, ScriptExit, ScriptStep};
use serde_json::{Value as Json, json};
use uuid::Uuid;

use super::agent::ScriptedAgent;
use super::assistant_message::failure_names;
use super::commands::spawn_detached;
use super::event::{ScriptedStopReason, ScriptedWaitOutcome};
use super::output::{MODEL, ScriptedTokenUsage, ScriptedUserMessage, merge_objects, write_stderr};
use super::session::ScriptedSpending;
use super::turn_state::{ScriptedBackgroundTask, ScriptedPrompt, ScriptedTurn};

/// Total number of retries, as reported by `api_retry`.
const RETRIES_MAX: u32 = 10;

impl ScriptedAgent {
    /// Follows the script for a prompt.
    pub(super) fn run_prompt_turn(
        &mut self,
        prompt: ScriptedPrompt,
    ) -> Result<(), ScriptedStopReason> {
        let ScriptedPrompt { text, uuid } = prompt;
        self.write_lifecycle(uuid, "started");
        let entry = uuid.unwrap_or_else(Uuid::new_v4);
        let message = ScriptedUserMessage::new(json!(text));
        let timestamp = self.timestamp();
        // The prompt is saved first, so that a killed turn can be resumed with it.
        self.append_to_session("user", entry, &message, &timestamp)?;
        self.variables.remembered = self.session.prompts.clone();
        self.variables.turn = self.session.prompts.len() as u64 + 1;
        self.variables.prompt = text.clone();
        self.session.prompts.push(text);
        // The clone ends the borrow of the agent, which runs the steps.
        let script: Arc<AgentScript> = Arc::clone(&self.script);
        self.run_turn(&script.steps, None)?;
        self.write_lifecycle(uuid, "completed");
        Ok(())
    }

    /// Reports the end of a background command and runs the steps that follow it.
    pub(super) fn run_task_turn(
        &mut self,
        task: ScriptedBackgroundTask,
    ) -> Result<(), ScriptedStopReason> {
        let code = self.ended.remove(&task.running.number).unwrap_or(1);
        let status = if code == 0 { "completed" } else { "failed" };
        let done = task.running.read_output(code, &self.redactor);
        self.variables.output = done.map_or_else(|error| error.to_string(), |done| done.output);
        self.write_system_message(
            "task_updated",
            json!({"task_id": task.id, "patch": {"status": status}}),
        );
        let command = &task.command;
        self.write_system_message(
            "task_notification",
            json!({
                "task_id": task.id, "tool_use_id": task.tool_use_id, "status": status,
                "summary": format!("Background command \"{command}\" {status} (exit code {code})"),
            }),
        );
        self.write_task_list();
        self.run_turn(&task.then, Some(json!({"kind": "task-notification"})))
    }

    pub(super) fn write_task_list(&mut self) {
        let task = |task: &ScriptedBackgroundTask| json!({"task_id": task.id, "task_type": "local_bash", "description": task.command});
        let tasks: Vec<_> = self.tasks.iter().map(task).collect();
        self.write_system_message("background_tasks_changed", json!({"tasks": tasks}));
    }

    fn run_turn(
        &mut self,
        steps: &[ScriptStep],
        origin: Option<Json>,
    ) -> Result<(), ScriptedStopReason> {
        self.interrupted = false;
        let began = Some(Instant::now());
        self.turn = ScriptedTurn {
            is_running: true,
            began,
            spent_before: self.spent,
            ..ScriptedTurn::default()
        };
        self.write_init();
        let played = self.run_steps(steps);
        // A step sets this for its own turn only.
        self.ignores_interrupts = false;
        // A stop reason may come from a sub-agent.
        self.parent = None;
        let mut result = match played {
            Ok(()) => {
                self.end_message("end_turn");
                success_result(&self.turn)
            }
            Err(stop) => self.stop_result(stop)?,
        };
        for prompt in std::mem::take(&mut self.turn.steered) {
            self.write_lifecycle(Some(prompt), "completed");
        }
        if let Some(origin) = origin {
            result["origin"] = origin;
        }
        self.write_result(result)
    }

    /// Turns the stop reason of a turn into its result; reasons that end the process are returned
    /// as errors.
    fn stop_result(&mut self, stop: ScriptedStopReason) -> Result<Json, ScriptedStopReason> {
        let failed = |turn: &ScriptedTurn, subtype: &str, reason: &str, error: String| {
            json!({
                "subtype": subtype, "is_error": true, "terminal_reason": reason,
                "stop_reason": "tool_use", "errors": [error], "num_turns": turn.tool_rounds + 1,
            })
        };
        Ok(match stop {
            ScriptedStopReason::Interrupted { partial, in_tool } => {
                self.write_interruption(partial, in_tool)?;
                let reason = if in_tool { "aborted_tools" } else { "aborted_streaming" };
                let error = "the turn was interrupted".to_owned();
                let mut result = failed(&self.turn, "error_during_execution", reason, error);
                result["stop_reason"] = Json::Null;
                result
            }
            ScriptedStopReason::Failed { message, status, kind } => json!({
                "subtype": "success", "is_error": true, "terminal_reason": "api_error",
                "stop_reason": "stop_sequence", "api_error_status": status,
                "api_error_type": kind, "result": message, "num_turns": self.turn.tool_rounds + 1,
            }),
            ScriptedStopReason::MaxTurns => {
                let max = self.settings.max_turns.unwrap_or(0);
                let error = format!("Reached maximum number of turns ({max})");
                failed(&self.turn, "error_max_turns", "max_turns", error)
            }
            ScriptedStopReason::Budget => {
                self.end_message("tool_use");
                let max = self.settings.max_budget_usd.unwrap_or(0.0);
                let error = format!("Reached maximum budget (${max})");
                failed(&self.turn, "error_max_budget_usd", "budget_exhausted", error)
            }
            ScriptedStopReason::Exit(_)
            | ScriptedStopReason::Session(_)
            | ScriptedStopReason::Closed
            | ScriptedStopReason::Protocol(_) => return Err(stop),
        })
    }

    fn write_init(&mut self) {
        let mut tools = vec!["Task", "Bash", "Edit", "Read", "Write"];
        if self.settings.can_ask {
            tools.push("AskUserQuestion");
        }
        let cwd = self.settings.cwd.clone();
        self.write_system_message(
            "init",
            json!({
                "cwd": cwd, "tools": tools, "mcp_servers": [], "model": MODEL,
                "slash_commands": [],
                "apiKeySource": "none", "output_style": "default", "agents": [], "skills": [],
                "plugins": [],
            }),
        );
    }

    fn write_result(&mut self, outcome: Json) -> Result<(), ScriptedStopReason> {
        // Taking it also ends the turn: an interrupt has no effect from now on.
        let turn = std::mem::take(&mut self.turn);
        let of_turn = subtract_spending(self.spent, turn.spent_before);
        let in_all = add_spending(self.session.spent, self.spent);
        // The cost is saved before the result is seen, so that a resumed session continues from it.
        self.session.write_spending(in_all)?;
        self.failed = outcome["is_error"] == true;
        let tokens = ScriptedTokenUsage {
            input_tokens: of_turn.input,
            output_tokens: of_turn.output,
            ..ScriptedTokenUsage::default()
        };
        let began = turn.began.map_or(Duration::ZERO, |began| began.elapsed());
        let mut line = json!({"type": "result"});
        merge_objects(&mut line, outcome);
        merge_objects(
            &mut line,
            json!({
                "duration_ms": u64::try_from(began.as_millis()).unwrap_or(u64::MAX),
                "duration_api_ms": 0,
                "total_cost_usd": in_all.usd,
                "usage": tokens,
                "modelUsage": model_usage(in_all),
                "model_usage_since_last_result": model_usage(of_turn),
                "permission_denials": turn.denials,
                "session_id": self.session.id,
                "uuid": Uuid::new_v4(),
                "queued_turn_count": self.queue.len(),
                "result_index": self.results,
            }),
        );
        self.results += 1;
        self.output.write_line(&line);
        Ok(())
    }

    pub(super) fn run_steps(&mut self, steps: &[ScriptStep]) -> Result<(), ScriptedStopReason> {
        steps.iter().try_for_each(|step| {
            self.stop_if_interrupted()?;
            self.run_step(step)
        })
    }

    pub(super) fn stop_if_interrupted(&mut self) -> Result<(), ScriptedStopReason> {
        self.process_events()?;
        match self.interrupted {
            true => Err(ScriptedStopReason::Interrupted { partial: None, in_tool: false }),
            false => Ok(()),
        }
    }

    fn run_step(&mut self, step: &ScriptStep) -> Result<(), ScriptedStopReason> {
        if !self.settings.tools && needs_tools(step) {
            return Ok(());
        }
        match step {
            ScriptStep::Say(speech) => self.write_text(speech),
            ScriptStep::Think(speech) => self.write_thinking(speech),
            ScriptStep::Tool(tool) => self.use_tool(tool),
            ScriptStep::Question(question) => self.ask_question(question),
            ScriptStep::SubAgent { description: about, prompt, steps } => {
                self.run_sub_agent(about, prompt, steps)
            }
            ScriptStep::Background { command, then } => self.start_task(command, then),
            ScriptStep::Retry { times, failure, delay } => {
                self.write_retries(*times, *failure, *delay)
            }
            ScriptStep::Error { failure, message } => {
                self.write_api_failure(*failure, message.as_deref())
            }
            ScriptStep::Hang { ignore_interrupt, ignore_term } => {
                self.ignores_interrupts = *ignore_interrupt;
                // An earlier step may have set it, which a later step does not undo.
                self.ignores_signals.fetch_or(*ignore_term, Ordering::SeqCst);
                self.pause(None)
            }
            ScriptStep::Sleep(length) => self.pause(Some(*length)),
            ScriptStep::Flood { messages, size_bytes } => self.write_flood(*messages, *size_bytes),
            ScriptStep::Garbage { kind, size_bytes } => {
                self.write_garbage(*kind, *size_bytes);
                Ok(())
            }
            ScriptStep::Raw(line) => {
                self.output.write_bytes(format!("{}\n", self.variables.expand(line)).as_bytes());
                Ok(())
            }
            ScriptStep::Stderr(text) => {
                write_stderr(&self.variables.expand(text));
                Ok(())
            }
            ScriptStep::Exit(exit) => Err(ScriptedStopReason::Exit(*exit)),
            ScriptStep::Spawn(spawn) => {
                let context = self.command_context();
                match spawn_detached(spawn, &context, &self.settings.program) {
                    Ok(()) => Ok(()),
                    Err(error) => {
                        write_stderr(&format!("cannot spawn `{}`: {error}", spawn.command));
                        Err(ScriptedStopReason::Exit(ScriptExit::Code(1)))
                    }
                }
            }
            ScriptStep::Cost(usd) => self.spend(*usd),
            ScriptStep::Usage { input, output } => {
                self.spent.input += input;
                self.spent.output += output;
                Ok(())
            }
            ScriptStep::When { condition, steps, otherwise } => {
                let holds = self.condition_holds(condition);
                self.run_steps(if holds { steps } else { otherwise })
            }
            ScriptStep::Repeat { times, steps } => self.repeat_steps(*times, steps),
        }
    }

    fn repeat_steps(&mut self, times: u64, steps: &[ScriptStep]) -> Result<(), ScriptedStopReason> {
        // Repetitions may be nested.
        let outer = self.variables.n;
        for number in 1..=times {
            self.variables.n = number;
            self.run_steps(steps)?;
        }
        self.variables.n = outer;
        Ok(())
    }

    fn pause(&mut self, length: Option<Duration>) -> Result<(), ScriptedStopReason> {
        match self.wait(length, |_| false)? {
            ScriptedWaitOutcome::Interrupted => {
                Err(ScriptedStopReason::Interrupted { partial: None, in_tool: false })
            }
            ScriptedWaitOutcome::Ready | ScriptedWaitOutcome::TimedOut => Ok(()),
        }
    }

    fn write_retries(
        &mut self,
        times: u32,
        failure: ScriptApiError,
        delay: Duration,
    ) -> Result<(), ScriptedStopReason> {
        for attempt in 1..=times {
            // In retries, unlike in the final error, Claude names an overload as such.
            let error = match failure {
                ScriptApiError::Overloaded => "overloaded",
                other => failure_names(other).0,
            };
            self.write_system_message(
                "api_retry",
                json!({
                    "attempt": attempt, "max_retries": RETRIES_MAX.max(times),
                    "retry_delay_ms": u64::try_from(delay.as_millis()).unwrap_or(u64::MAX),
                    "error_status": failure.status(), "error": error,
                }),
            );
            if !delay.is_zero() {
                self.pause(Some(delay))?;
            }
        }
        Ok(())
    }

    /// Spends money. As in Claude, the budget applies to the process and is checked afterwards.
    fn spend(&mut self, usd: f64) -> Result<(), ScriptedStopReason> {
        self.spent.usd += usd;
        match self.settings.max_budget_usd {
            Some(max) if self.spent.usd >= max => Err(ScriptedStopReason::Budget),
            _ => Ok(()),
        }
    }

    fn condition_holds(&self, condition: &ScriptCondition) -> bool {
        let has = |text: &str, part: &Option<String>| match part {
            Some(part) => text.to_lowercase().contains(&part.to_lowercase()),
            None => true,
        };
        has(&self.variables.prompt, &condition.prompt)
            && has(&self.variables.answer, &condition.answer)
            && condition.turn.is_none_or(|turn| turn == self.variables.turn)
            && condition.session.is_none_or(|kind| kind == self.session.kind)
    }
}

fn success_result(turn: &ScriptedTurn) -> Json {
    json!({
        "subtype": "success", "is_error": false, "terminal_reason": "completed",
        "stop_reason": "end_turn", "result": turn.text, "num_turns": turn.tool_rounds + 1,
    })
}

fn model_usage(spent: ScriptedSpending) -> Json {
    if spent == ScriptedSpending::default() {
        return json!({});
    }
    json!({MODEL: {
        "inputTokens": spent.input, "outputTokens": spent.output, "cacheReadInputTokens": 0,
        "cacheCreationInputTokens": 0, "webSearchRequests": 0, "costUSD": spent.usd,
    }})
}

fn add_spending(a: ScriptedSpending, b: ScriptedSpending) -> ScriptedSpending {
    ScriptedSpending { usd: a.usd + b.usd, input: a.input + b.input, output: a.output + b.output }
}

fn subtract_spending(a: ScriptedSpending, b: ScriptedSpending) -> ScriptedSpending {
    ScriptedSpending { usd: a.usd - b.usd, input: a.input - b.input, output: a.output - b.output }
}

/// Returns true if a step does more than write text.
fn needs_tools(step: &ScriptStep) -> bool {
    matches!(
        step,
        ScriptStep::Tool(_)
            | ScriptStep::Question(_)
            | ScriptStep::SubAgent { .. }
            | ScriptStep::Background { .. }
            | ScriptStep::Spawn(_)
    )
}
