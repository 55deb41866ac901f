//! Turns: what the person or a loop says to the agent, and what comes of it.

use heeler_model::JobId;
use serde_json::Value as Json;
use uuid::Uuid;

use super::Talk;
use crate::command::{self, Command};
use crate::row::{self, FAILED, INTERRUPTED, Prompts};
use crate::{
    Asked, BookError, Entry, JobFacts, JobState, Role, SessionChoice, Shown, Source, Speaker, Turn,
    Unheard,
};

/// Who began a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    Person,
    /// The loop of this number.
    Loop(usize),
}

/// A turn that is under way.
pub(super) struct Running {
    pub(super) job: JobId,
    pub(super) by: By,
    state: JobState,
    doing: String,
    pub(super) interrupts: u32,
    /// The transcript's last word of it is how it ended.
    pub(super) tells_end: bool,
    /// What the transcript has of what the agent was told in it.
    pub(super) known: Vec<String>,
    /// The agent may have been told more.
    pub(super) is_unsure: bool,
}

impl Running {
    /// Says whether a row has words of the person's that the transcript lacks: whoever said them was cut
    /// off before they were kept, or did not hear that they arrived.
    fn is_news(&self, row: &Json) -> bool {
        let first = |text: &str| text.trim().lines().next().unwrap_or_default().to_owned();
        let is_said = row["subtype"] == "user_input" && row["synthetic"] != Json::Bool(true);
        let heard = first(row["content"].as_str().unwrap_or_default());
        self.is_unsure && is_said && !self.known.iter().any(|known| first(known) == heard)
    }

    /// Says what the agent does, for the status line.
    pub(super) fn doing(&self) -> &str {
        &self.doing
    }
}

/// Words that are to be asked once their entry is on disk.
pub(super) struct Asking {
    /// [`Turn::id`].
    id: Uuid,
    text: String,
    by: By,
}

/// What is said when the turn before is over.
pub(super) struct Waiting {
    text: String,
    by: By,
}

impl Talk {
    /// Takes a line of the person's.
    pub(super) fn say(&mut self, line: &str) {
        if line.trim().is_empty() {
            return;
        }
        let command = command::read(line);
        let writes = command.as_ref().is_none_or(|it| it.as_ref().is_ok_and(Command::writes));
        let is_to_worker = command.is_none() && self.view != Speaker::Coordinator;
        if writes && self.forking.is_some() && !is_to_worker {
            return self.held.push(line.to_owned());
        }
        if writes && !self.is_ours_for(line) {
            return;
        }
        match command {
            Some(Ok(command)) => self.command(command),
            Some(Err(error)) => self.failed(error.to_string()),
            None => {
                let text =
                    line.strip_prefix("//").map_or(line.to_owned(), |rest| format!("/{rest}"));
                match self.view.clone() {
                    Speaker::Coordinator => self.say_to_agent(text),
                    Speaker::Worker(name) => self.say_to_worker(&name, &text),
                }
            }
        }
    }

    /// Says whether a line that writes something can be taken now. Another program's session is copied
    /// first; if that takes long the line is held meanwhile.
    fn is_ours_for(&mut self, line: &str) -> bool {
        match self.book.prepare() {
            Ok(None) if self.held.is_empty() => return true,
            Ok(None) => {}
            Ok(Some(bytes)) if self.held.is_empty() => {
                let size = bytes as f64 / 1e6;
                self.told(format!(
                    "this session is another program's: its {size:.0} MB are copied, then your words are sent"
                ));
            }
            Ok(Some(_)) => {}
            Err(error) => {
                self.failed(format!("the session cannot be copied to be ours: {error}"));
                self.out.push(Shown::Suggested(line.to_owned()));
                return false;
            }
        }
        self.held.push(line.to_owned());
        false
    }

    /// Takes the lines that were held, once the session is ours.
    pub(super) fn say_held(&mut self) {
        if self.held.is_empty() || self.leaving.is_some() || self.forking.is_some() {
            return;
        }
        match self.book.prepare() {
            Ok(Some(_)) => {}
            Ok(None) => std::mem::take(&mut self.held).iter().for_each(|line| self.say(line)),
            Err(error) => {
                self.failed(format!("the session cannot be copied to be ours: {error}"));
                self.give_back_held();
            }
        }
    }

    /// Takes what the person said and nobody heard: whoever leaves is told.
    pub(super) fn unsaid(&mut self) -> Vec<String> {
        let asking = self.asking.take().map(|asking| (asking.text, asking.by));
        let queue = self.queue.drain(..).map(|waiting| (waiting.text, waiting.by));
        let words = asking.into_iter().chain(queue);
        let words = words.filter(|(_, by)| *by == By::Person).map(|(text, _)| text);
        words.chain(self.held.drain(..)).collect()
    }

    pub(super) fn give_back_held(&mut self) {
        if !self.held.is_empty() {
            let lines = std::mem::take(&mut self.held).join("\n");
            self.out.push(Shown::Suggested(lines));
        }
    }

    fn say_to_agent(&mut self, text: String) {
        if self.turn.is_none() && self.asking.is_none() {
            return self.start_turn(&text, By::Person);
        }
        if let Some(turn) = &mut self.turn
            && turn.state == JobState::Running
            && turn.interrupts == 0
        {
            match self.fleet.say(&turn.job, &text) {
                Ok(()) => {
                    turn.known.push(text.clone());
                    let entry = Entry::new(Role::User, text, self.now);
                    return self.keep(Speaker::Coordinator, entry);
                }
                // Said again it might be heard twice.
                Err(Unheard::Unsure(why)) => {
                    turn.is_unsure = true;
                    return self.failed(format!(
                        "whether this was heard is not known, it is shown if it was: {text} ({why})"
                    ));
                }
                Err(Unheard::Refused(_)) => {}
            }
        }
        self.queue.push_back(Waiting { text, by: By::Person });
    }

    /// Asks the agent. What the person said is kept first, under the name by which it is asked. Words of
    /// before that may be on their way have both already: by their name they are not heard twice.
    pub(super) fn start_turn(&mut self, text: &str, by: By) {
        let unsent = self.unsent.take().filter(|unsent| unsent.text == text.trim());
        let id = unsent.as_ref().map_or_else(Uuid::new_v4, |unsent| unsent.turn);
        if unsent.is_none() {
            let entry = Entry { turn: Some(id), ..Entry::new(Role::User, text, self.now) };
            self.keep(Speaker::Coordinator, entry);
        }
        self.asking = Some(Asking { id, text: text.to_owned(), by });
        self.ask_kept();
    }

    /// Asks what is on disk. What is not yet waits: nobody hears words that a crash would lose.
    pub(super) fn ask_kept(&mut self) {
        if !self.is_stuck()
            && self.leaving.is_none()
            && let Some(asking) = self.asking.take()
        {
            self.ask(&asking);
        }
    }

    fn ask(&mut self, asking: &Asking) {
        let &Asking { id, ref text, by } = asking;
        self.last_words.clear();
        let about = self.book.about();
        let is_first = about.turns.is_empty();
        let learned = self.manner.learned.as_ref().filter(|_| is_first);
        let prompt = match learned {
            Some(learned) => format!("{text}\n\n(What earlier sessions have taught:\n{learned})"),
            None => text.clone(),
        };
        let session = match &about.session {
            None => SessionChoice::New,
            Some(session) if about.is_fork || about.cut.is_some() => {
                SessionChoice::ForkOf(session.clone(), about.cut)
            }
            Some(session) => SessionChoice::Given(session.clone()),
        };
        let (agent, model) = (about.agent().to_owned(), about.model.clone());
        let attended = self.manner.attended;
        let turn = Turn { id, agent, prompt, session, model, attended };
        match self.fleet.ask(&turn) {
            Ok(job) => {
                let by_loop = match by {
                    By::Person => None,
                    By::Loop(at) => Some(at),
                };
                let task = self.asked_task.clone().filter(|_| by_loop.is_some());
                self.save(|about| {
                    about.turns.push(Asked { turn: id, job: Some(job.clone()), by_loop, task });
                });
                self.fleet.watch_workers(&self.book.about().jobs());
                if let Err(error) = self.follow(job, by) {
                    self.failed(format!("{error}"));
                }
                self.turn.iter_mut().for_each(|turn| turn.known.push(text.clone()));
            }
            Err(why) => {
                // It has the turn's name: these words are not looked for again.
                let entry = Entry::new(Role::System, format!("not sent: {why}"), self.now);
                self.keep(Speaker::Coordinator, Entry { turn: Some(id), ..entry });
                match by {
                    By::Person => self.out.push(Shown::Suggested(text.clone())),
                    By::Loop(at) => self.loop_failed(at),
                }
            }
        }
    }

    /// Follows a job of the agent from the first row that the transcript does not have.
    pub(super) fn follow(&mut self, job: JobId, by: By) -> Result<(), BookError> {
        let from = self.book.last_source(&Speaker::Coordinator, &job)?.map_or(0, |row| row + 1);
        self.speakers.insert(job.clone(), Speaker::Coordinator);
        self.next_rows.insert(job.clone(), from);
        let doing = "starting".to_owned();
        self.turn = Some(Running {
            job: job.clone(),
            by,
            state: JobState::Waiting,
            doing,
            interrupts: 0,
            tells_end: false,
            known: Vec::new(),
            is_unsure: false,
        });
        self.fleet.follow(&job, from);
        Ok(())
    }

    /// Takes a row of a job.
    pub(super) fn row(&mut self, job: &JobId, at: u64, row: &Json) {
        if self.is_insight(job) {
            if let Some(text) = row["content"].as_str().filter(|_| row["type"] == "assistant") {
                text.clone_into(&mut self.last_words);
            }
            return;
        }
        let Some(of) = self.speakers.get(job).cloned() else { return };
        let next = self.next_rows.entry(job.clone()).or_default();
        if at < *next {
            if row["type"] == "assistant" {
                self.out.push(Shown::DeltaEnded { of });
            }
            return;
        }
        *next = at + 1;
        let is_news = |turn: &Running| turn.job == *job && turn.is_news(row);
        let prompts = match of {
            Speaker::Coordinator if !self.turn.as_ref().is_some_and(is_news) => Prompts::Known,
            _ => Prompts::Told,
        };
        if of == Speaker::Coordinator {
            self.take_tasks(job, at, row);
            let doing = row["tool_name"].as_str().filter(|_| row["type"] == "tool_use");
            if let Some(turn) = self.turn.as_mut().filter(|turn| turn.job == *job) {
                turn.doing = doing.unwrap_or("thinking").to_owned();
            }
        }
        let Some(entry) = row::entry(job, at, row, prompts) else { return };
        if of == Speaker::Coordinator && entry.role == Role::Assistant {
            self.last_words = entry.text();
        }
        if let Some(turn) = self.turn.as_mut().filter(|turn| turn.job == *job) {
            turn.tells_end = row::tells_end(&entry);
        }
        self.keep(of, entry);
    }

    /// Takes where a job is.
    pub(super) fn job(&mut self, facts: &JobFacts) {
        if let Some(cost) = facts.cost_usd {
            self.costs.insert(facts.job.clone(), cost);
        }
        if self.is_insight(&facts.job) {
            return self.insight_job(facts);
        }
        match self.turn.as_mut().filter(|turn| turn.job == facts.job) {
            Some(turn) => turn.state = facts.state,
            None => return self.worker_job(facts),
        }
        // A turn of before may be another agent's, which has a conversation of its own.
        let about = self.book.about();
        if let Some(session) = &facts.session
            && facts.agent == about.agent()
            && about.session.as_ref() != Some(session)
        {
            let session = session.clone();
            self.save(|about| {
                about.session = Some(session);
                about.cut = None;
                about.is_fork = false;
            });
        }
        self.status.context_tokens = facts.context_tokens.or(self.status.context_tokens);
        self.status.model = facts.model.clone().or(self.status.model.take());
        match facts.state {
            JobState::Waiting => {
                let doing = facts.reason.clone().unwrap_or_else(|| "waiting".to_owned());
                self.turn.iter_mut().for_each(|turn| turn.doing.clone_from(&doing));
            }
            JobState::Running => {}
            JobState::Done | JobState::Failed => self.turn_ended(facts),
        }
    }

    fn turn_ended(&mut self, facts: &JobFacts) {
        let Some(turn) = self.turn.take() else { return };
        self.out.push(Shown::DeltaEnded { of: Speaker::Coordinator });
        self.asks.retain(|question| question.job != turn.job);
        if facts.state == JobState::Failed && !turn.tells_end {
            let why = facts.reason.as_deref().unwrap_or("it did not end well");
            let text = match turn.interrupts {
                0 => format!("{FAILED}{why}"),
                _ => INTERRUPTED.to_owned(),
            };
            // In the place of the row that would have told it, so that it is told once.
            let row = self.next_rows.get(&turn.job).copied().unwrap_or_default();
            let source = Some(Source { job: turn.job.clone(), row });
            let entry = Entry { source, ..Entry::new(Role::System, text, self.now) };
            self.keep(Speaker::Coordinator, entry);
        }
        if let By::Loop(at) = turn.by {
            self.loop_turn_ended(at, facts.state == JobState::Done);
        }
        if self.leaving.is_some() {
            return self.leave_on();
        }
        if let Some(next) = self.queue.pop_front() {
            self.start_turn(&next.text, next.by);
        }
    }

    /// Interrupts who is looked at; the second time harder.
    pub(super) fn interrupt(&mut self) {
        if let Speaker::Worker(name) = self.view.clone() {
            return self.stop_worker(&name);
        }
        self.give_up_fork();
        self.give_up_errand();
        self.give_back_held();
        let Some(turn) = self.turn.as_mut() else { return };
        let (job, now) = (turn.job.clone(), turn.interrupts > 0);
        turn.interrupts += 1;
        // What waits was meant for the turn that is interrupted: it comes back to be changed.
        let waiting: Vec<String> = self.queue.drain(..).map(|one| one.text).collect();
        if !waiting.is_empty() {
            self.out.push(Shown::Suggested(waiting.join("\n")));
        }
        if let Err(why) = self.fleet.cancel(&job, now) {
            self.failed(why);
        }
    }
}
