//! The scripted agent itself: prompts and control messages in, Claude's stream out.
//!
//! One thread plays; others only wait (for a line, for a child) and tell it what happened through
//! one bounded channel, on which the player itself never sends. It never pretends to be a model:
//! it names itself `scripted`, and every text is the script's. Start at [`ScriptedAgent::run_to_end`].

use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use heeler_model::iso_millis;
use heeler_model::redact::SecretRedactor;
use heeler_model::script::{AgentScript, ScriptExit, ScriptStep};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value as Json, json};
use uuid::Uuid;

use super::assistant_message::ScriptedPartialMessage;
use super::commands::{ScriptedCommandHandle, ScriptedCommandRegistry};
use super::input::forward_lines;
use super::output::{ScriptedOutput, ScriptedStreamLine};
use super::session::{ScriptedSession, ScriptedSessionError, ScriptedSpending};
use super::template::ScriptedTemplateVariables;
use super::turn::ScriptedTurn;

/// How many happenings wait for the player before lines are left in the pipe.
const EVENTS_MAX: usize = 256;

/// The name that stands where the stream has a model.
pub(super) const MODEL: &str = "scripted";

/// What is fixed for the life of a player.
pub(super) struct ScriptedAgentSettings {
    /// Our own program.
    pub(super) program: Utf8PathBuf,
    pub(super) cwd: Utf8PathBuf,
    pub(super) max_turns: Option<u32>,
    pub(super) max_budget_usd: Option<f64>,
    /// Pieces of text are told while they are said.
    pub(super) partial: bool,
    /// Somebody answers permission requests and questions.
    pub(super) can_ask: bool,
    /// There are tools.
    pub(super) tools: bool,
    pub(super) now: fn() -> Timestamp,
}

/// Something that happened outside.
pub(super) enum ScriptedEvent {
    /// A line of the standard input.
    Line(Vec<u8>),
    /// The end of the standard input.
    Eof,
    /// A command ended.
    Ended { number: u32, code: i32 },
}

/// Why a player stops in the middle.
#[derive(Debug)]
pub(super) enum ScriptedStopReason {
    /// It was interrupted; some of a text may have been said, or a tool was at work.
    Interrupted { said: Option<Json>, in_tool: bool },
    /// The API failed, as the script says.
    Failed { message: String, status: Option<u16>, kind: &'static str },
    /// Too many turns.
    MaxTurns,
    /// Too much money.
    Budget,
    /// The process is to end without a result.
    Exit(ScriptExit),
    /// The session cannot be kept.
    Session(ScriptedSessionError),
    /// Nobody reads what is said.
    Closed,
    /// What was sent is not the protocol; the message is for the standard error.
    Protocol(String),
}

impl From<ScriptedSessionError> for ScriptedStopReason {
    fn from(error: ScriptedSessionError) -> ScriptedStopReason {
        ScriptedStopReason::Session(error)
    }
}

/// A message of the user that waits for its turn.
pub(super) struct ScriptedPrompt {
    pub(super) text: String,
    pub(super) uuid: Option<Uuid>,
}

/// A command that runs beside the turns.
pub(super) struct ScriptedBackgroundTask {
    pub(super) id: String,
    pub(super) tool_use_id: String,
    pub(super) command: String,
    pub(super) running: ScriptedCommandHandle,
    pub(super) then: Vec<ScriptStep>,
}

/// What ended a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScriptedWaitOutcome {
    Ready,
    TimedOut,
    Interrupted,
}

pub(super) struct ScriptedAgent {
    pub(super) settings: ScriptedAgentSettings,
    pub(super) script: Arc<AgentScript>,
    pub(super) output: ScriptedOutput,
    pub(super) session: ScriptedSession,
    /// None where there are no secrets.
    pub(super) redactor: Option<SecretRedactor>,
    pub(super) children: ScriptedCommandRegistry,
    pub(super) events: Receiver<ScriptedEvent>,
    pub(super) sender: SyncSender<ScriptedEvent>,
    pub(super) variables: ScriptedTemplateVariables,
    pub(super) queue: VecDeque<ScriptedPrompt>,
    /// Replies to requests of ours, by request id.
    pub(super) replies: HashMap<String, Json>,
    /// The request that waits for a person.
    pub(super) pending: Option<String>,
    /// Ends of commands that nobody has looked at yet.
    pub(super) ended: HashMap<u32, i32>,
    pub(super) tasks: Vec<ScriptedBackgroundTask>,
    /// MCP servers that were greeted.
    pub(super) initialized_servers: Vec<String>,
    pub(super) turn: ScriptedTurn,
    pub(super) message: Option<ScriptedPartialMessage>,
    /// The tool use of the sub-agent that speaks.
    pub(super) parent: Option<String>,
    /// What was spent by this process.
    pub(super) spent: ScriptedSpending,
    pub(super) results: u64,
    pub(super) failed: bool,
    pub(super) eof: bool,
    pub(super) interrupted: bool,
    /// Interrupts are neither answered nor obeyed.
    pub(super) ignores_interrupts: bool,
    /// SIGTERM and its like do nothing; shared with whoever gets them.
    pub(super) ignores_signals: Arc<AtomicBool>,
}

impl ScriptedAgent {
    pub(super) fn new(
        setting: ScriptedAgentSettings,
        script: AgentScript,
        memory: ScriptedSession,
        redactor: Option<SecretRedactor>,
        out: Box<dyn Write>,
    ) -> ScriptedAgent {
        let (sender, events) = sync_channel(EVENTS_MAX);
        let words = ScriptedTemplateVariables {
            session: memory.id.to_string(),
            cwd: setting.cwd.to_string(),
            ..ScriptedTemplateVariables::default()
        };
        ScriptedAgent {
            settings: setting,
            script: Arc::new(script),
            output: ScriptedOutput::new(out),
            session: memory,
            redactor,
            children: ScriptedCommandRegistry::default(),
            events,
            sender,
            variables: words,
            queue: VecDeque::new(),
            replies: HashMap::new(),
            pending: None,
            ended: HashMap::new(),
            tasks: Vec::new(),
            initialized_servers: Vec::new(),
            turn: ScriptedTurn::default(),
            message: None,
            parent: None,
            spent: ScriptedSpending::default(),
            results: 0,
            failed: false,
            eof: false,
            interrupted: false,
            ignores_interrupts: false,
            ignores_signals: Arc::default(),
        }
    }

    /// Plays until the input ends and nothing is left to do; returns how the process ends.
    pub(super) fn run_to_end(&mut self, input: Box<dyn Read + Send>) -> ScriptExit {
        let sender = self.sender.clone();
        std::thread::spawn(move || forward_lines(input, &sender));
        let ended = self.run_turns();
        drop(self.children.kill_all());
        self.output.flush();
        match ended {
            Ok(()) => ScriptExit::Code(u8::from(self.failed)),
            Err(ScriptedStopReason::Exit(exit)) => exit,
            Err(ScriptedStopReason::Session(error)) => exit_with_error(&error.to_string()),
            Err(ScriptedStopReason::Protocol(message)) => exit_with_error(&message),
            Err(_) => ScriptExit::Code(1),
        }
    }

    fn run_turns(&mut self) -> Result<(), ScriptedStopReason> {
        loop {
            self.process_events()?;
            if let Some(number) = self.tasks.iter().position(|task| self.has_ended(task)) {
                let task = self.tasks.swap_remove(number);
                self.run_task_turn(task)?;
            } else if let Some(prompt) = self.queue.pop_front() {
                self.run_prompt_turn(prompt)?;
            } else if self.eof {
                return Ok(());
            } else {
                self.wait(None, |player| player.has_work())?;
            }
        }
    }

    fn has_work(&self) -> bool {
        self.eof || !self.queue.is_empty() || self.tasks.iter().any(|task| self.has_ended(task))
    }

    fn has_ended(&self, task: &ScriptedBackgroundTask) -> bool {
        self.ended.contains_key(&task.running.number)
    }

    /// Takes in what has happened, without waiting. An interrupt is left for the caller to see.
    pub(super) fn process_events(&mut self) -> Result<(), ScriptedStopReason> {
        while let Ok(event) = self.events.try_recv() {
            self.handle_event(event)?;
        }
        if self.output.is_closed() { Err(ScriptedStopReason::Closed) } else { Ok(()) }
    }

    /// Waits until something holds, an interrupt comes, or the time is up. What was said is
    /// written first.
    pub(super) fn wait(
        &mut self,
        length: Option<Duration>,
        ready: impl Fn(&ScriptedAgent) -> bool,
    ) -> Result<ScriptedWaitOutcome, ScriptedStopReason> {
        let until = length.map(|length| Instant::now() + length);
        self.output.flush();
        loop {
            self.process_events()?;
            if self.interrupted {
                return Ok(ScriptedWaitOutcome::Interrupted);
            }
            if ready(self) {
                return Ok(ScriptedWaitOutcome::Ready);
            }
            // Draining may have answered something.
            self.output.flush();
            let event = match until {
                None => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(until) => {
                    self.events.recv_timeout(until.saturating_duration_since(Instant::now()))
                }
            };
            match event {
                Ok(event) => self.handle_event(event)?,
                Err(RecvTimeoutError::Timeout) => return Ok(ScriptedWaitOutcome::TimedOut),
                Err(RecvTimeoutError::Disconnected) => {
                    unreachable!("the player holds a sender itself")
                }
            }
        }
    }

    fn handle_event(&mut self, event: ScriptedEvent) -> Result<(), ScriptedStopReason> {
        match event {
            ScriptedEvent::Line(line) => self.handle_line(&line),
            ScriptedEvent::Eof => {
                self.eof = true;
                Ok(())
            }
            ScriptedEvent::Ended { number, code } => {
                self.ended.insert(number, code);
                Ok(())
            }
        }
    }

    pub(super) fn write_lifecycle(&mut self, prompt: Option<Uuid>, state: &str) {
        let Some(prompt) = prompt else { return };
        self.output.write_line(&json!({
            "type": "command_lifecycle", "command_uuid": prompt, "state": state,
            "uuid": Uuid::new_v4(), "session_id": self.session.id,
        }));
    }

    /// Writes a `system` message.
    pub(super) fn write_system_message(&mut self, subtype: &str, more: Json) {
        let mut line = json!({"type": "system", "subtype": subtype});
        merge_objects(&mut line, more);
        line["session_id"] = json!(self.session.id);
        line["uuid"] = json!(Uuid::new_v4());
        self.output.write_line(&line);
    }

    /// Writes a message of the conversation, which is remembered first.
    pub(super) fn write_message(
        &mut self,
        kind: &str,
        message: &impl Serialize,
        more: &Json,
    ) -> Result<(), ScriptedStopReason> {
        let uuid = Uuid::new_v4();
        let timestamp = self.timestamp();
        self.append_to_session(kind, uuid, message, &timestamp)?;
        self.output.write_line(&ScriptedStreamLine {
            r#type: kind,
            message,
            parent_tool_use_id: self.parent.as_deref(),
            session_id: &self.session.id,
            uuid,
            timestamp: &timestamp,
            more: more.as_object(),
        });
        Ok(())
    }

    /// Adds to the session's file, without the secrets. What a sub-agent says is not remembered.
    pub(super) fn append_to_session(
        &mut self,
        kind: &str,
        uuid: Uuid,
        message: &impl Serialize,
        timestamp: &str,
    ) -> Result<(), ScriptedStopReason> {
        if self.parent.is_some() {
            return Ok(());
        }
        match &self.redactor {
            None => self.session.append_entry(kind, uuid, message, timestamp)?,
            Some(redactor) => {
                let mut message = serde_json::to_value(message).expect("JSON is written to memory");
                redactor.redact_json(&mut message);
                self.session.append_entry(kind, uuid, &message, timestamp)?;
            }
        }
        Ok(())
    }

    pub(super) fn timestamp(&self) -> String {
        iso_millis((self.settings.now)())
    }
}

/// Tells the standard error why the process ends.
pub(super) fn exit_with_error(message: &str) -> ScriptExit {
    write_stderr(message);
    ScriptExit::Code(1)
}

/// Writes a line to the standard error; where nobody reads it, there is nobody to tell.
pub(super) fn write_stderr(line: &str) {
    drop(writeln!(std::io::stderr(), "{line}"));
}

/// Adds the keys of one object to another.
pub(super) fn merge_objects(line: &mut Json, more: Json) {
    if let (Some(line), Json::Object(more)) = (line.as_object_mut(), more) {
        line.extend(more);
    }
}
