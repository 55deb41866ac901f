//! One turn: a prompt comes in, the script is played, a result goes out.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use heeler_model::script::{Condition, Exit, Failure, Script, Step};
use serde_json::{Value as Json, json};
use uuid::Uuid;

use super::children::leave_behind;
use super::player::{MODEL, Player, Prompt, Stop, Task, Waited, merge, to_stderr};
use super::session::Spent;
use super::speak::words_of;
use super::wire::{Tokens, User};

/// How many retries there are in all, as `api_retry` tells it.
const RETRIES_MAX: u32 = 10;

/// What one turn has come to so far.
#[derive(Default)]
pub(super) struct Turn {
    pub(super) playing: bool,
    /// The last text that was said.
    pub(super) text: String,
    /// How often tools were used: after each, the model would be asked again.
    pub(super) rounds: u32,
    pub(super) denials: Vec<Json>,
    /// Messages of the user that came into this turn while a tool ran.
    pub(super) steered: Vec<Uuid>,
    began: Option<Instant>,
    /// What this process had spent before.
    before: Spent,
}

impl Player {
    /// Plays the script for a prompt.
    pub(super) fn prompt_turn(&mut self, prompt: Prompt) -> Result<(), Stop> {
        let Prompt { text, uuid } = prompt;
        self.lifecycle(uuid, "started");
        let entry = uuid.unwrap_or_else(Uuid::new_v4);
        let message = User::new(json!(text));
        let timestamp = self.timestamp();
        self.remember("user", entry, &message, &timestamp)?;
        self.words.remembered = self.memory.prompts.clone();
        self.words.turn = self.memory.prompts.len() as u64 + 1;
        self.words.prompt = text.clone();
        self.memory.prompts.push(text);
        let script: Arc<Script> = Arc::clone(&self.script);
        self.turn(&script.steps, None)?;
        self.lifecycle(uuid, "completed");
        Ok(())
    }

    /// Tells that a command in the background has ended, and plays what comes then.
    pub(super) fn task_turn(&mut self, task: Task) -> Result<(), Stop> {
        let code = self.ended.remove(&task.running.number).unwrap_or(1);
        let status = if code == 0 { "completed" } else { "failed" };
        let done = task.running.done(code, self.redactor.as_ref());
        self.words.output = done.map_or_else(|error| error.to_string(), |done| done.output);
        self.system("task_updated", json!({"task_id": task.id, "patch": {"status": status}}));
        let command = &task.command;
        self.system(
            "task_notification",
            json!({
                "task_id": task.id, "tool_use_id": task.tool_use_id, "status": status,
                "summary": format!("Background command \"{command}\" {status} (exit code {code})"),
            }),
        );
        self.tell_tasks();
        self.turn(&task.then, Some(json!({"kind": "task-notification"})))
    }

    pub(super) fn tell_tasks(&mut self) {
        let task = |task: &Task| json!({"task_id": task.id, "task_type": "local_bash", "description": task.command});
        let tasks: Vec<_> = self.tasks.iter().map(task).collect();
        self.system("background_tasks_changed", json!({"tasks": tasks}));
    }

    fn turn(&mut self, steps: &[Step], origin: Option<Json>) -> Result<(), Stop> {
        self.interrupted = false;
        let began = Some(Instant::now());
        self.turn = Turn { playing: true, began, before: self.spent, ..Turn::default() };
        self.init();
        let played = self.play(steps);
        self.deaf = false;
        // A stop may come out of a sub-agent.
        self.parent = None;
        let mut result = match played {
            Ok(()) => {
                self.end_message("end_turn");
                succeeded(&self.turn)
            }
            Err(stop) => self.stopped(stop)?,
        };
        for prompt in std::mem::take(&mut self.turn.steered) {
            self.lifecycle(Some(prompt), "completed");
        }
        if let Some(origin) = origin {
            result["origin"] = origin;
        }
        self.result(result)
    }

    /// Turns what stopped the turn into its result; what stops the process goes on up.
    fn stopped(&mut self, stop: Stop) -> Result<Json, Stop> {
        let failed = |turn: &Turn, subtype: &str, reason: &str, error: String| {
            json!({
                "subtype": subtype, "is_error": true, "terminal_reason": reason,
                "stop_reason": "tool_use", "errors": [error], "num_turns": turn.rounds + 1,
            })
        };
        Ok(match stop {
            Stop::Interrupted { said, in_tool } => {
                self.abort(said, in_tool)?;
                let reason = if in_tool { "aborted_tools" } else { "aborted_streaming" };
                let error = "the turn was interrupted".to_owned();
                let mut result = failed(&self.turn, "error_during_execution", reason, error);
                result["stop_reason"] = Json::Null;
                result
            }
            Stop::Failed { message, status, kind } => json!({
                "subtype": "success", "is_error": true, "terminal_reason": "api_error",
                "stop_reason": "stop_sequence", "api_error_status": status,
                "api_error_type": kind, "result": message, "num_turns": self.turn.rounds + 1,
            }),
            Stop::MaxTurns => {
                let max = self.setting.max_turns.unwrap_or(0);
                let error = format!("Reached maximum number of turns ({max})");
                failed(&self.turn, "error_max_turns", "max_turns", error)
            }
            Stop::Budget => {
                self.end_message("tool_use");
                let max = self.setting.max_budget_usd.unwrap_or(0.0);
                let error = format!("Reached maximum budget (${max})");
                failed(&self.turn, "error_max_budget_usd", "budget_exhausted", error)
            }
            Stop::Exit(_) | Stop::Memory(_) | Stop::Closed | Stop::Protocol(_) => return Err(stop),
        })
    }

    fn init(&mut self) {
        let mut tools = vec!["Task", "Bash", "Edit", "Read", "Write"];
        if self.setting.asks {
            tools.push("AskUserQuestion");
        }
        let cwd = self.setting.cwd.clone();
        self.system(
            "init",
            json!({
                "cwd": cwd, "tools": tools, "mcp_servers": [], "model": MODEL,
                "slash_commands": [],
                "apiKeySource": "none", "output_style": "default", "agents": [], "skills": [],
                "plugins": [],
            }),
        );
    }

    fn result(&mut self, outcome: Json) -> Result<(), Stop> {
        let turn = std::mem::take(&mut self.turn);
        let of_turn = less(self.spent, turn.before);
        let in_all = plus(self.memory.spent, self.spent);
        self.memory.keep_spent(in_all)?;
        self.failed = outcome["is_error"] == true;
        let tokens = Tokens {
            input_tokens: of_turn.input,
            output_tokens: of_turn.output,
            ..Tokens::default()
        };
        let began = turn.began.map_or(Duration::ZERO, |began| began.elapsed());
        let mut line = json!({"type": "result"});
        merge(&mut line, outcome);
        merge(
            &mut line,
            json!({
                "duration_ms": u64::try_from(began.as_millis()).unwrap_or(u64::MAX),
                "duration_api_ms": 0,
                "total_cost_usd": in_all.usd,
                "usage": tokens,
                "modelUsage": model_usage(in_all),
                "model_usage_since_last_result": model_usage(of_turn),
                "permission_denials": turn.denials,
                "session_id": self.memory.id,
                "uuid": Uuid::new_v4(),
                "queued_turn_count": self.queue.len(),
                "result_index": self.results,
            }),
        );
        self.results += 1;
        self.wire.line(&line);
        Ok(())
    }

    pub(super) fn play(&mut self, steps: &[Step]) -> Result<(), Stop> {
        steps.iter().try_for_each(|step| {
            self.stop_if_interrupted()?;
            self.step(step)
        })
    }

    pub(super) fn stop_if_interrupted(&mut self) -> Result<(), Stop> {
        self.drain()?;
        match self.interrupted {
            true => Err(Stop::Interrupted { said: None, in_tool: false }),
            false => Ok(()),
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), Stop> {
        if !self.setting.tools && needs_tools(step) {
            return Ok(());
        }
        match step {
            Step::Say(speech) => self.say(speech),
            Step::Think(speech) => self.think(speech),
            Step::Tool(tool) => self.use_tool(tool),
            Step::Question(question) => self.ask_question(question),
            Step::SubAgent { about, prompt, steps } => self.sub_agent(about, prompt, steps),
            Step::Background { command, then } => self.start_task(command, then),
            Step::Retry { times, failure, delay } => self.retry(*times, *failure, *delay),
            Step::Error { failure, message } => self.fail(*failure, message.as_deref()),
            Step::Hang { ignore_interrupt, ignore_term } => {
                self.deaf = *ignore_interrupt;
                self.stubborn.fetch_or(*ignore_term, Ordering::SeqCst);
                self.pause(None)
            }
            Step::Sleep(length) => self.pause(Some(*length)),
            Step::Flood { messages, size_bytes } => self.flood(*messages, *size_bytes),
            Step::Garbage { kind, size_bytes } => {
                self.garbage(*kind, *size_bytes);
                Ok(())
            }
            Step::Raw(line) => {
                self.wire.bytes(format!("{}\n", self.words.fill(line)).as_bytes());
                Ok(())
            }
            Step::Stderr(text) => {
                to_stderr(&self.words.fill(text));
                Ok(())
            }
            Step::Exit(exit) => Err(Stop::Exit(*exit)),
            Step::Spawn(spawn) => {
                let place = self.place();
                match leave_behind(spawn, &place, &self.setting.program) {
                    Ok(()) => Ok(()),
                    Err(error) => {
                        to_stderr(&format!("cannot spawn `{}`: {error}", spawn.command));
                        Err(Stop::Exit(Exit::Code(1)))
                    }
                }
            }
            Step::Cost(usd) => self.spend(*usd),
            Step::Usage { input, output } => {
                self.spent.input += input;
                self.spent.output += output;
                Ok(())
            }
            Step::When { condition, steps, otherwise } => {
                let holds = self.holds(condition);
                self.play(if holds { steps } else { otherwise })
            }
            Step::Repeat { times, steps } => self.repeat(*times, steps),
        }
    }

    fn repeat(&mut self, times: u64, steps: &[Step]) -> Result<(), Stop> {
        let outer = self.words.n;
        for number in 1..=times {
            self.words.n = number;
            self.play(steps)?;
        }
        self.words.n = outer;
        Ok(())
    }

    fn pause(&mut self, length: Option<Duration>) -> Result<(), Stop> {
        match self.wait(length, |_| false)? {
            Waited::Interrupted => Err(Stop::Interrupted { said: None, in_tool: false }),
            Waited::Ready | Waited::TimedOut => Ok(()),
        }
    }

    fn retry(&mut self, times: u32, failure: Failure, delay: Duration) -> Result<(), Stop> {
        for attempt in 1..=times {
            // In retries, unlike in the end, Claude names an overload as such.
            let error = match failure {
                Failure::Overloaded => "overloaded",
                other => words_of(other).0,
            };
            self.system(
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

    /// Spends money. Like Claude's, the budget is that of the process, and is looked at afterwards.
    fn spend(&mut self, usd: f64) -> Result<(), Stop> {
        self.spent.usd += usd;
        match self.setting.max_budget_usd {
            Some(max) if self.spent.usd >= max => Err(Stop::Budget),
            _ => Ok(()),
        }
    }

    fn holds(&self, condition: &Condition) -> bool {
        let has = |text: &str, part: &Option<String>| match part {
            Some(part) => text.to_lowercase().contains(&part.to_lowercase()),
            None => true,
        };
        has(&self.words.prompt, &condition.prompt)
            && has(&self.words.answer, &condition.answer)
            && condition.turn.is_none_or(|turn| turn == self.words.turn)
            && condition.session.is_none_or(|kind| kind == self.memory.kind)
    }
}

fn succeeded(turn: &Turn) -> Json {
    json!({
        "subtype": "success", "is_error": false, "terminal_reason": "completed",
        "stop_reason": "end_turn", "result": turn.text, "num_turns": turn.rounds + 1,
    })
}

fn model_usage(spent: Spent) -> Json {
    if spent == Spent::default() {
        return json!({});
    }
    json!({MODEL: {
        "inputTokens": spent.input, "outputTokens": spent.output, "cacheReadInputTokens": 0,
        "cacheCreationInputTokens": 0, "webSearchRequests": 0, "costUSD": spent.usd,
    }})
}

fn plus(a: Spent, b: Spent) -> Spent {
    Spent { usd: a.usd + b.usd, input: a.input + b.input, output: a.output + b.output }
}

fn less(a: Spent, b: Spent) -> Spent {
    Spent { usd: a.usd - b.usd, input: a.input - b.input, output: a.output - b.output }
}

/// Says whether a step does something beside saying it.
fn needs_tools(step: &Step) -> bool {
    matches!(
        step,
        Step::Tool(_)
            | Step::Question(_)
            | Step::SubAgent { .. }
            | Step::Background { .. }
            | Step::Spawn(_)
    )
}
