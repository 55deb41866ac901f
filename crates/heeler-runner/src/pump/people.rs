//! What people ask of the run, and what the agent asks of people.
//!
//! Every client gets a reply. An answer counts for the first who gives it, and is a row before the
//! agent hears of it. Start at [`Pump::asked`].

use std::io;
use std::time::{Duration, Instant};

use heeler_model::run::{
    Answer, Ask, Attendance, Closing, Happening, Op, PROTOCOL, ReplyBody, RunState,
};
use heeler_model::{chain, iso_millis, question};
use heeler_transcript::DiskError;
use serde_json::Value as Json;
use uuid::Uuid;

use super::Pump;
use super::steps::DiskFull;
use crate::asks::{ASK_BYTES_MAX, AskEnd};
use crate::control::Asked;
use crate::files::FileError;
use crate::mcp::{ASK_HUMAN, Inquiry};
use crate::runtime::{AskKind, Step};

/// Why a process of the run is refused: it would answer for the people whom its agent asks.
const OWN_PROCESS: &str = "this comes from a process of the run itself, which may only look; ask \
                           from outside of it";

impl Pump<'_> {
    /// Does what a client asks.
    pub(super) fn asked(&mut self, asked: &Asked) {
        let only_looks = matches!(asked.op, Op::Status | Op::Subscribe);
        if !only_looks && asked.peer.is_some_and(|peer| self.tree.holds(peer)) {
            return asked.refuse(OWN_PROCESS);
        }
        match &asked.op {
            Op::Cancel { now, by } => {
                self.cancel(by.clone(), *now);
                asked.reply(ReplyBody::Done);
            }
            Op::Message { text } => match self.say(text) {
                Ok(()) => asked.reply(ReplyBody::Done),
                Err(reason) => asked.refuse(reason),
            },
            Op::Answer { ask, answer, by } => match self.answer(ask, answer, by) {
                Ok(()) => asked.reply(ReplyBody::Done),
                Err(reason) => asked.refuse(reason),
            },
            Op::Status => asked.reply(ReplyBody::Status(self.state())),
            Op::Subscribe => self.run.control.subscribe(asked),
        }
    }

    fn state(&self) -> RunState {
        RunState {
            run: self.run.spec.run,
            job: self.run.spec.job.clone(),
            session: self.run.session.clone(),
            agent_pid: self.exit.is_none().then(|| self.agent.pid.as_raw_pid().cast_unsigned()),
            started_at: self.run.started_at,
            last_line_at: self.run.last_line_at,
            rows: self.run.journal.job_rows(),
            cost_usd: self.run.tally.cost_usd(),
            asks: self.run.asks.list(),
            cancelling: self.run.ending.is_some(),
            disk_trouble: self.run.disk.as_ref().map(|trouble| trouble.reason.clone()),
        }
    }

    /// Says why nothing new can begin, if so.
    fn refusal(&self) -> Option<String> {
        if let Some(trouble) = &self.run.disk {
            return Some(format!(
                "the disk takes no rows ({}); try again when there is space",
                trouble.reason
            ));
        }
        if self.run.aside.is_some() {
            return Some(
                "the agent sums the session up before it goes on; try again in a moment".to_owned(),
            );
        }
        let ending = self.done || self.run.ending.is_some() || self.ended;
        ending.then(|| "the run is ending; start another job to say more".to_owned())
    }

    fn say(&mut self, text: &str) -> Result<(), String> {
        if let Some(reason) = self.refusal() {
            return Err(reason);
        }
        if !self.input.has_room(text.len().saturating_mul(2)) {
            return Err("the agent has not read what it was told before; wait for it".to_owned());
        }
        let uuid = Uuid::new_v4();
        let steps = self.run.runtime.say(uuid, text).filter(|_| self.input.is_open());
        let Some(steps) = steps else {
            return Err("this agent takes no further message; start another job".to_owned());
        };
        self.run.prompt(uuid, text);
        self.todo.extend(steps);
        Ok(())
    }

    fn answer(&mut self, id: &str, answer: &Answer, by: &str) -> Result<(), String> {
        let Some(open) = self.run.asks.get(id) else {
            return Err(self.run.asks.refusal(id));
        };
        if let Some(reason) = self.refusal() {
            return Err(reason);
        }
        let tool = &open.ask.tool;
        let said = match answer {
            Answer::Allow { input: None } => format!("{by} allowed {tool}"),
            Answer::Allow { input: Some(_) } => {
                format!("{by} allowed {tool} with an input of theirs")
            }
            Answer::Deny { message, .. } => format!("{by} denied {tool}: {message}"),
        };
        let (how, text) = match answer {
            Answer::Allow { input } => {
                (Closing::Allowed, input.as_ref().and_then(question::answers))
            }
            Answer::Deny { message, .. } => (Closing::Denied, Some(message.clone())),
        };
        let end = Some(self.ask_end(how, Some(by), text.as_deref()));
        self.close_ask(id, end, "answered", &said, Some(answer));
        Ok(())
    }

    /// Closes a question: file, row, agent, subscribers. Without an answer the agent hears nothing.
    fn close_ask(
        &mut self,
        id: &str,
        end: Option<AskEnd>,
        subtype: &str,
        said: &str,
        answer: Option<&Answer>,
    ) {
        let told = format!("too late: {said}, at {}", iso_millis((self.run.now)()));
        let Some(open) = self.run.asks.close(id, end, told) else { return };
        self.run.note(subtype, &format!("{said} (question {id})"));
        match answer {
            Some(answer) => self.hand(&open.agent_id, answer),
            None => drop(self.run.inquiring.remove(&open.agent_id)),
        }
        self.tell_after_rows(&Happening::Settled { ask: id.to_owned() });
    }

    fn ask_end(&self, how: Closing, by: Option<&str>, text: Option<&str>) -> AskEnd {
        let clean = |text: &str| self.run.redactor.text(text).into_owned();
        AskEnd { how, by: by.map(clean), text: text.map(clean), at: (self.run.now)() }
    }

    /// Asks a person, or denies where none is there.
    pub(super) fn ask(
        &mut self,
        agent_id: String,
        kind: AskKind,
        tool: String,
        mut input: Json,
    ) -> Result<(), DiskFull> {
        let timeout_ms = match self.may_ask(&input) {
            Ok(timeout_ms) => timeout_ms,
            Err(reason) => {
                self.deny(&agent_id, &tool, reason);
                return Ok(());
            }
        };
        let again =
            Step::Ask { id: agent_id.clone(), kind, tool: tool.clone(), input: input.clone() };
        self.run.redactor.json(&mut input);
        let at = (self.run.now)();
        let wait = Duration::from_millis(timeout_ms);
        let ask = Ask {
            protocol: PROTOCOL,
            // With a secret in it, it is no name for a file.
            id: self.run.asks.name(&self.run.redactor.text(&agent_id)),
            at,
            kind: kind.as_str().to_owned(),
            tool: self.run.redactor.text(&tool).into_owned(),
            input,
            until: at.checked_add(wait).ok(),
        };
        let until = Instant::now().checked_add(wait);
        match self.run.asks.add(ask.clone(), agent_id.clone(), until) {
            Ok(()) => {}
            Err(error) if is_full(&error) => {
                self.todo.push_front(again);
                return Err(DiskFull(chain(&error)));
            }
            Err(error) => {
                self.deny(&agent_id, &tool, chain(&error));
                return Ok(());
            }
        }
        crate::fault::point(crate::fault::Point::Asked);
        let what = if kind == AskKind::Question { "asks a question with" } else { "wants to use" };
        self.run.note("asked", &format!("the agent {what} {tool} (question {})", ask.id));
        self.tell_after_rows(&Happening::Asked { ask });
        Ok(())
    }

    /// Tells something once its row is there; a full disk, which is told too, does not hold it back.
    fn tell_after_rows(&mut self, happening: &Happening) {
        drop(self.flush());
        self.run.control.tell(happening);
    }

    /// Returns how long a person has, or why none is asked.
    fn may_ask(&self, input: &Json) -> Result<u64, String> {
        let Attendance::Person { timeout_ms } = self.run.spec.attendance else {
            return Err("nobody attends this run, so nobody can allow or answer it".to_owned());
        };
        if self.run.aside.is_some() {
            return Err("the agent is only to sum the session up".to_owned());
        }
        if self.run.ending.is_some() {
            return Err("the run is being ended".to_owned());
        }
        if !self.run.asks.has_room() {
            return Err("too many questions are open".to_owned());
        }
        if input.to_string().len() > ASK_BYTES_MAX {
            return Err(format!("its input has more than {ASK_BYTES_MAX} bytes"));
        }
        Ok(timeout_ms)
    }

    /// Denies at once, and records it.
    fn deny(&mut self, agent_id: &str, tool: &str, reason: String) {
        self.run.note("denied", &format!("{tool} was denied: {reason}"));
        self.hand(agent_id, &Answer::Deny { message: reason, interrupt: false });
    }

    /// Puts to people what a tool of ours asks.
    pub(super) fn inquire(&mut self, Inquiry { input, reply }: Inquiry) {
        let (id, kind, tool) =
            (Uuid::new_v4().to_string(), AskKind::Question, ASK_HUMAN.to_owned());
        self.run.inquiring.insert(id.clone(), reply);
        self.todo.push_back(Step::Ask { id, kind, tool, input });
    }

    /// Hands an answer to whoever asked: a tool of ours, or the agent.
    fn hand(&mut self, agent_id: &str, answer: &Answer) {
        match self.run.inquiring.remove(agent_id) {
            // The call may have been given up.
            Some(reply) => drop(reply.send(answer.clone())),
            None => {
                let steps = self.run.runtime.answer(agent_id, answer);
                self.todo.extend(steps);
            }
        }
    }

    /// Denies what nobody has answered in time.
    pub(super) fn expire_ask(&mut self, id: &str) {
        let message = "nobody answered in time".to_owned();
        let answer = Answer::Deny { message: message.clone(), interrupt: false };
        let end = Some(self.ask_end(Closing::Expired, None, None));
        self.close_ask(id, end, "denied", &message, Some(&answer));
    }

    /// The agent does not want to know any more.
    pub(super) fn withdraw(&mut self, agent_id: &str) {
        if let Some(id) = self.run.asks.find(agent_id) {
            let end = Some(self.ask_end(Closing::Withdrawn, None, None));
            self.close_ask(&id, end, "withdrawn", "the agent withdrew it", None);
        }
    }

    /// Closes what is still open when the agent is gone.
    pub(super) fn close_asks(&mut self) {
        for ask in self.run.asks.list() {
            self.close_ask(&ask.id, None, "withdrawn", "the agent ended before an answer", None);
        }
    }
}

/// Says whether it may succeed when there is space again.
fn is_full(error: &FileError) -> bool {
    let FileError::Disk(DiskError { source, .. }) = error else { return false };
    matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
