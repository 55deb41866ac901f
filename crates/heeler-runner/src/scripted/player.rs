//! The scripted agent itself: prompts and control messages in, Claude's stream out.
//!
//! One thread plays; others only wait (for a line, for a child) and tell it what happened through
//! one bounded channel, on which the player itself never sends. It never pretends to be a model:
//! it names itself `scripted`, and every text is the script's. Start at [`Player::perform`].

use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use heeler_model::iso_millis;
use heeler_model::redact::Redactor;
use heeler_model::script::{Exit, Script, Step};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value as Json, json};
use uuid::Uuid;

use super::children::{Children, Running};
use super::input::forward_lines;
use super::session::{Memory, MemoryError, Spent};
use super::speak::Message;
use super::template::Words;
use super::turn::Turn;
use super::wire::{Line, Wire};

/// How many happenings wait for the player before lines are left in the pipe.
const EVENTS_MAX: usize = 256;

/// The name that stands where the stream has a model.
pub(super) const MODEL: &str = "scripted";

/// What is fixed for the life of a player.
pub(super) struct Setting {
    /// Our own program.
    pub(super) program: Utf8PathBuf,
    pub(super) cwd: Utf8PathBuf,
    pub(super) max_turns: Option<u32>,
    pub(super) max_budget_usd: Option<f64>,
    /// Pieces of text are told while they are said.
    pub(super) partial: bool,
    /// Somebody answers permission requests and questions.
    pub(super) asks: bool,
    /// There are tools.
    pub(super) tools: bool,
    pub(super) now: fn() -> Timestamp,
}

/// Something that happened outside.
pub(super) enum Event {
    /// A line of the standard input.
    Line(Vec<u8>),
    /// The end of the standard input.
    Eof,
    /// A command ended.
    Ended { number: u32, code: i32 },
}

/// Why a player stops in the middle.
#[derive(Debug)]
pub(super) enum Stop {
    /// It was interrupted; some of a text may have been said, or a tool was at work.
    Interrupted { said: Option<Json>, in_tool: bool },
    /// The API failed, as the script says.
    Failed { message: String, status: Option<u16>, kind: &'static str },
    /// Too many turns.
    MaxTurns,
    /// Too much money.
    Budget,
    /// The process is to end without a result.
    Exit(Exit),
    /// The session cannot be kept.
    Memory(MemoryError),
    /// Nobody reads what is said.
    Closed,
    /// What was sent is not the protocol; the message is for the standard error.
    Protocol(String),
}

impl From<MemoryError> for Stop {
    fn from(error: MemoryError) -> Stop {
        Stop::Memory(error)
    }
}

/// A message of the user that waits for its turn.
pub(super) struct Prompt {
    pub(super) text: String,
    pub(super) uuid: Option<Uuid>,
}

/// A command that runs beside the turns.
pub(super) struct Task {
    pub(super) id: String,
    pub(super) tool_use_id: String,
    pub(super) command: String,
    pub(super) running: Running,
    pub(super) then: Vec<Step>,
}

/// What ended a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waited {
    Ready,
    TimedOut,
    Interrupted,
}

pub(super) struct Player {
    pub(super) setting: Setting,
    pub(super) script: Arc<Script>,
    pub(super) wire: Wire,
    pub(super) memory: Memory,
    /// None where there are no secrets.
    pub(super) redactor: Option<Redactor>,
    pub(super) children: Children,
    pub(super) events: Receiver<Event>,
    pub(super) sender: SyncSender<Event>,
    pub(super) words: Words,
    pub(super) queue: VecDeque<Prompt>,
    /// Replies to requests of ours, by request id.
    pub(super) replies: HashMap<String, Json>,
    /// The request that waits for a person.
    pub(super) pending: Option<String>,
    /// Ends of commands that nobody has looked at yet.
    pub(super) ended: HashMap<u32, i32>,
    pub(super) tasks: Vec<Task>,
    /// MCP servers that were greeted.
    pub(super) greeted: Vec<String>,
    pub(super) turn: Turn,
    pub(super) message: Option<Message>,
    /// The tool use of the sub-agent that speaks.
    pub(super) parent: Option<String>,
    /// What was spent by this process.
    pub(super) spent: Spent,
    pub(super) results: u64,
    pub(super) failed: bool,
    pub(super) eof: bool,
    pub(super) interrupted: bool,
    /// Interrupts are neither answered nor obeyed.
    pub(super) deaf: bool,
    /// SIGTERM and its like do nothing; shared with whoever gets them.
    pub(super) stubborn: Arc<AtomicBool>,
}

impl Player {
    pub(super) fn new(
        setting: Setting,
        script: Script,
        memory: Memory,
        redactor: Option<Redactor>,
        out: Box<dyn Write>,
    ) -> Player {
        let (sender, events) = sync_channel(EVENTS_MAX);
        let words = Words {
            session: memory.id.to_string(),
            cwd: setting.cwd.to_string(),
            ..Words::default()
        };
        Player {
            setting,
            script: Arc::new(script),
            wire: Wire::new(out),
            memory,
            redactor,
            children: Children::default(),
            events,
            sender,
            words,
            queue: VecDeque::new(),
            replies: HashMap::new(),
            pending: None,
            ended: HashMap::new(),
            tasks: Vec::new(),
            greeted: Vec::new(),
            turn: Turn::default(),
            message: None,
            parent: None,
            spent: Spent::default(),
            results: 0,
            failed: false,
            eof: false,
            interrupted: false,
            deaf: false,
            stubborn: Arc::default(),
        }
    }

    /// Plays until the input ends and nothing is left to do; returns how the process ends.
    pub(super) fn perform(&mut self, input: Box<dyn Read + Send>) -> Exit {
        let sender = self.sender.clone();
        std::thread::spawn(move || forward_lines(input, &sender));
        let ended = self.turns();
        drop(self.children.kill_all());
        self.wire.flush();
        match ended {
            Ok(()) => Exit::Code(u8::from(self.failed)),
            Err(Stop::Exit(exit)) => exit,
            Err(Stop::Memory(error)) => complain(&error.to_string()),
            Err(Stop::Protocol(message)) => complain(&message),
            Err(_) => Exit::Code(1),
        }
    }

    fn turns(&mut self) -> Result<(), Stop> {
        loop {
            self.drain()?;
            if let Some(number) = self.tasks.iter().position(|task| self.has_ended(task)) {
                let task = self.tasks.swap_remove(number);
                self.task_turn(task)?;
            } else if let Some(prompt) = self.queue.pop_front() {
                self.prompt_turn(prompt)?;
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

    fn has_ended(&self, task: &Task) -> bool {
        self.ended.contains_key(&task.running.number)
    }

    /// Takes in what has happened, without waiting. An interrupt is left for the caller to see.
    pub(super) fn drain(&mut self) -> Result<(), Stop> {
        while let Ok(event) = self.events.try_recv() {
            self.take(event)?;
        }
        if self.wire.is_closed() { Err(Stop::Closed) } else { Ok(()) }
    }

    /// Waits until something holds, an interrupt comes, or the time is up. What was said is
    /// written first.
    pub(super) fn wait(
        &mut self,
        length: Option<Duration>,
        ready: impl Fn(&Player) -> bool,
    ) -> Result<Waited, Stop> {
        let until = length.map(|length| Instant::now() + length);
        self.wire.flush();
        loop {
            self.drain()?;
            if self.interrupted {
                return Ok(Waited::Interrupted);
            }
            if ready(self) {
                return Ok(Waited::Ready);
            }
            // Draining may have answered something.
            self.wire.flush();
            let event = match until {
                None => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(until) => {
                    self.events.recv_timeout(until.saturating_duration_since(Instant::now()))
                }
            };
            match event {
                Ok(event) => self.take(event)?,
                Err(RecvTimeoutError::Timeout) => return Ok(Waited::TimedOut),
                Err(RecvTimeoutError::Disconnected) => {
                    unreachable!("the player holds a sender itself")
                }
            }
        }
    }

    fn take(&mut self, event: Event) -> Result<(), Stop> {
        match event {
            Event::Line(line) => self.take_line(&line),
            Event::Eof => {
                self.eof = true;
                Ok(())
            }
            Event::Ended { number, code } => {
                self.ended.insert(number, code);
                Ok(())
            }
        }
    }

    pub(super) fn lifecycle(&mut self, prompt: Option<Uuid>, state: &str) {
        let Some(prompt) = prompt else { return };
        self.wire.line(&json!({
            "type": "command_lifecycle", "command_uuid": prompt, "state": state,
            "uuid": Uuid::new_v4(), "session_id": self.memory.id,
        }));
    }

    /// Writes a `system` message.
    pub(super) fn system(&mut self, subtype: &str, more: Json) {
        let mut line = json!({"type": "system", "subtype": subtype});
        merge(&mut line, more);
        line["session_id"] = json!(self.memory.id);
        line["uuid"] = json!(Uuid::new_v4());
        self.wire.line(&line);
    }

    /// Writes a message of the conversation, which is remembered first.
    pub(super) fn converse(
        &mut self,
        kind: &str,
        message: &impl Serialize,
        more: &Json,
    ) -> Result<(), Stop> {
        let uuid = Uuid::new_v4();
        let timestamp = self.timestamp();
        self.remember(kind, uuid, message, &timestamp)?;
        self.wire.line(&Line {
            r#type: kind,
            message,
            parent_tool_use_id: self.parent.as_deref(),
            session_id: &self.memory.id,
            uuid,
            timestamp: &timestamp,
            more: more.as_object(),
        });
        Ok(())
    }

    /// Adds to the session's file, without the secrets. What a sub-agent says is not remembered.
    pub(super) fn remember(
        &mut self,
        kind: &str,
        uuid: Uuid,
        message: &impl Serialize,
        timestamp: &str,
    ) -> Result<(), Stop> {
        if self.parent.is_some() {
            return Ok(());
        }
        match &self.redactor {
            None => self.memory.add(kind, uuid, message, timestamp)?,
            Some(redactor) => {
                let mut message = serde_json::to_value(message).expect("JSON is written to memory");
                redactor.json(&mut message);
                self.memory.add(kind, uuid, &message, timestamp)?;
            }
        }
        Ok(())
    }

    pub(super) fn timestamp(&self) -> String {
        iso_millis((self.setting.now)())
    }
}

/// Tells the standard error why the process ends.
pub(super) fn complain(message: &str) -> Exit {
    to_stderr(message);
    Exit::Code(1)
}

/// Writes a line to the standard error; where nobody reads it, there is nobody to tell.
pub(super) fn to_stderr(line: &str) {
    drop(writeln!(std::io::stderr(), "{line}"));
}

/// Adds the keys of one object to another.
pub(super) fn merge(line: &mut Json, more: Json) {
    if let (Some(line), Json::Object(more)) = (line.as_object_mut(), more) {
        line.extend(more);
    }
}
