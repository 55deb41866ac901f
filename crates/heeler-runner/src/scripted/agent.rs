//! The scripted agent itself: prompts and control messages in, Claude's stream out.
//!
//! One thread follows the script; others only wait (for a line, for a child) and report events
//! through one bounded channel, on which the agent thread itself never sends. It never pretends to
//! be a model: it names itself `scripted`, and every text comes from the script. Start at
//! [`ScriptedAgent::run_to_end`].

use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use heeler_config::script::{AgentScript, ScriptExit};
use heeler_model::iso_millis;
use heeler_model::redact::SecretRedactor;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value as Json, json};
use uuid::Uuid;

use super::commands::ScriptedCommandRegistry;
use super::event::{ScriptedEvent, ScriptedStopReason, ScriptedWaitOutcome, forward_lines};
use super::output::{ScriptedOutput, ScriptedStreamLine, merge_objects, write_stderr};
use super::session::{ScriptedSession, ScriptedSpending};
use super::template::ScriptedTemplateVariables;
use super::turn_state::{
    ScriptedBackgroundTask, ScriptedPartialMessage, ScriptedPrompt, ScriptedTurn,
};

/// Limit on events queued for the agent; beyond it, lines stay in the pipe.
const EVENTS_MAX: usize = 256;

/// Settings fixed for the life of an agent.
pub(super) struct ScriptedAgentSettings {
    /// Path of the Heeler binary.
    pub(super) program: Utf8PathBuf,
    pub(super) cwd: Utf8PathBuf,
    pub(super) max_turns: Option<u32>,
    pub(super) max_budget_usd: Option<f64>,
    /// Send pieces of text while they are generated.
    pub(super) partial: bool,
    /// Permission requests and questions can be answered.
    pub(super) can_ask: bool,
    /// Tools are available.
    pub(super) tools: bool,
    pub(super) now: fn() -> Timestamp,
}

pub(super) struct ScriptedAgent {
    pub(super) settings: ScriptedAgentSettings,
    pub(super) script: Arc<AgentScript>,
    pub(super) output: ScriptedOutput,
    pub(super) session: ScriptedSession,
    pub(super) redactor: SecretRedactor,
    pub(super) children: ScriptedCommandRegistry,
    pub(super) events: Receiver<ScriptedEvent>,
    pub(super) sender: SyncSender<ScriptedEvent>,
    pub(super) variables: ScriptedTemplateVariables,
    pub(super) queue: VecDeque<ScriptedPrompt>,
    /// Replies to requests of the agent, by request ID.
    pub(super) replies: HashMap<String, Json>,
    /// Request that waits for a person.
    pub(super) pending: Option<String>,
    /// Exit codes of commands that have not been collected yet.
    pub(super) ended: HashMap<u32, i32>,
    pub(super) tasks: Vec<ScriptedBackgroundTask>,
    /// MCP servers that were initialized.
    pub(super) initialized_servers: Vec<String>,
    pub(super) turn: ScriptedTurn,
    pub(super) message: Option<ScriptedPartialMessage>,
    /// Tool call of the active sub-agent.
    pub(super) parent: Option<String>,
    /// Cost and usage of this process.
    pub(super) spent: ScriptedSpending,
    pub(super) results: u64,
    pub(super) failed: bool,
    pub(super) eof: bool,
    pub(super) interrupted: bool,
    /// Interrupts are neither answered nor obeyed.
    pub(super) ignores_interrupts: bool,
    /// SIGTERM and similar signals are ignored; shared with the signal handler.
    pub(super) ignores_signals: Arc<AtomicBool>,
}

impl ScriptedAgent {
    pub(super) fn new(
        settings: ScriptedAgentSettings,
        script: AgentScript,
        session: ScriptedSession,
        redactor: SecretRedactor,
        out: Box<dyn Write>,
    ) -> ScriptedAgent {
        let (sender, events) = sync_channel(EVENTS_MAX);
        let variables = ScriptedTemplateVariables {
            session: session.id.to_string(),
            cwd: settings.cwd.to_string(),
            ..ScriptedTemplateVariables::default()
        };
        ScriptedAgent {
            settings,
            script: Arc::new(script),
            output: ScriptedOutput::new(out),
            session,
            redactor,
            children: ScriptedCommandRegistry::default(),
            events,
            sender,
            variables,
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

    /// Runs until the input ends and no work is left; returns the way the process ends.
    pub(super) fn run_to_end(&mut self, input: Box<dyn Read + Send>) -> ScriptExit {
        let sender = self.sender.clone();
        std::thread::spawn(move || forward_lines(input, &sender));
        let ended = self.run_turns();
        // The commands of Claude end with it, so those of a script do too.
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
                // Background commands that still run are killed with the process.
                return Ok(());
            } else {
                self.wait(None, |agent| agent.has_work())?;
            }
        }
    }

    fn has_work(&self) -> bool {
        self.eof || !self.queue.is_empty() || self.tasks.iter().any(|task| self.has_ended(task))
    }

    fn has_ended(&self, task: &ScriptedBackgroundTask) -> bool {
        self.ended.contains_key(&task.running.number)
    }

    /// Processes available events without waiting. An interrupt is left for the caller to detect.
    pub(super) fn process_events(&mut self) -> Result<(), ScriptedStopReason> {
        while let Ok(event) = self.events.try_recv() {
            self.handle_event(event)?;
        }
        if self.output.is_closed() { Err(ScriptedStopReason::Closed) } else { Ok(()) }
    }

    /// Waits until a condition holds, an interrupt arrives, or time is up. Pending output is
    /// written first.
    pub(super) fn wait(
        &mut self,
        length: Option<Duration>,
        ready: impl Fn(&ScriptedAgent) -> bool,
    ) -> Result<ScriptedWaitOutcome, ScriptedStopReason> {
        let until = length.map(|length| Instant::now() + length);
        // The reader must have seen everything before a pause.
        self.output.flush();
        loop {
            self.process_events()?;
            if self.interrupted {
                return Ok(ScriptedWaitOutcome::Interrupted);
            }
            if ready(self) {
                return Ok(ScriptedWaitOutcome::Ready);
            }
            // Processing the events may have written replies.
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
                    unreachable!("the agent holds a sender itself")
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

    /// Writes a message of the conversation after saving it to the session.
    pub(super) fn write_message(
        &mut self,
        kind: &str,
        message: &impl Serialize,
        more: &Json,
    ) -> Result<(), ScriptedStopReason> {
        let uuid = Uuid::new_v4();
        let timestamp = self.timestamp();
        // The session comes first, so that every message that was seen can be resumed.
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

    /// Appends to the session file, without secrets. Messages of sub-agents are not saved.
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
        let mut message = serde_json::to_value(message).expect("JSON is written to memory");
        self.redactor.redact_json(&mut message);
        self.session.append_entry(kind, uuid, &message, timestamp)?;
        Ok(())
    }

    pub(super) fn timestamp(&self) -> String {
        iso_millis((self.settings.now)())
    }
}

/// Writes the reason that the process ends to the standard error.
pub(super) fn exit_with_error(message: &str) -> ScriptExit {
    write_stderr(message);
    ScriptExit::Code(1)
}
