//! Random sequences of user actions, fleet events, disk faults and crashes. Nothing may panic, and the
//! invariants of [`check_invariants`] and [`ConversationModel::check_end`] hold.
//!
//! The model is the fleet: it has the rows of every job, and sends those that the conversation follows.

mod fleet;

use std::collections::{BTreeMap, BTreeSet, HashSet};

use proptest::prelude::*;

use self::fleet::{
    ModelJob, ModelJobKind, ModelRow, WORKER_JOB, end_job, job_number, new_job, next_event,
    prompt_row, row_json,
};
use super::disk::FillableDiskFault;
use super::leaving::worker;
use super::*;
use crate::conversation::turn_phase::TurnPhase;

/// More entries than a sequence can create.
const ENTRIES_MAX: usize = 10_000;
/// More steps than the end of a sequence needs.
const END_STEPS_MAX: usize = 500;

#[derive(Debug, Clone)]
enum ModelEvent {
    /// A new message of the person.
    Message,
    Command(&'static str),
    Interrupt,
    Exit,
    HangUp,
    /// Answer the oldest open question.
    Answer,
    Tick(i64),
    /// The job with this index, among those that run, writes a row.
    JobWrites(usize, ModelRow),
    JobStarts(usize),
    JobEnds(usize, bool),
    JobAsks(usize),
    /// The conversation receives this number of outstanding events.
    Deliver(usize),
    WorkerStarts,
    Disk(Option<FillableDiskFault>),
    FleetRefuses(bool),
    Delivery(ModelDelivery),
    Crash,
}

/// Fate of messages to a running agent.
#[derive(Debug, Clone, Copy, PartialEq)]
enum ModelDelivery {
    Confirmed,
    Refused,
    /// Not confirmed, but received.
    Unconfirmed,
    /// Not confirmed and not received.
    Lost,
}

fn any_event() -> impl Strategy<Value = ModelEvent> {
    let command = prop::sample::select(vec![
        "/loop \"reach it\" 10s",
        "/start 10s",
        "/stop",
        "/stop 1",
        "/restart",
        "/tasks add t",
        "/tasks done 1",
        "/fork",
        "/undo",
        "/rewind",
        "/view coder-1",
        "/view main",
        "/permissions",
        "/search m",
        "/status",
        "/model fast",
        "stay",
        "stop",
        "leave",
        "/exit",
    ]);
    let row = prop::sample::select(vec![
        ModelRow::Reply,
        ModelRow::GoalReached,
        ModelRow::TaskDone,
        ModelRow::ToolCall,
        ModelRow::TasksAdded,
        ModelRow::RunFailed,
    ]);
    let fault = prop::sample::select(vec![
        None,
        Some(FillableDiskFault::Full),
        Some(FillableDiskFault::NoFiles),
    ]);
    let delivery = prop::sample::select(vec![
        ModelDelivery::Confirmed,
        ModelDelivery::Refused,
        ModelDelivery::Unconfirmed,
        ModelDelivery::Lost,
    ]);
    prop_oneof![
        8 => Just(ModelEvent::Message),
        8 => command.prop_map(ModelEvent::Command),
        2 => Just(ModelEvent::Interrupt),
        2 => Just(ModelEvent::Exit),
        2 => Just(ModelEvent::Command("stay")),
        1 => Just(ModelEvent::HangUp),
        1 => Just(ModelEvent::Answer),
        4 => (0..30_i64).prop_map(ModelEvent::Tick),
        6 => (0..3_usize, row).prop_map(|(at, row)| ModelEvent::JobWrites(at, row)),
        6 => (0..3_usize).prop_map(ModelEvent::JobStarts),
        4 => (0..3_usize, any::<bool>()).prop_map(|(at, fails)| ModelEvent::JobEnds(at, fails)),
        4 => (0..3_usize).prop_map(ModelEvent::JobAsks),
        12 => (1..8_usize).prop_map(ModelEvent::Deliver),
        3 => Just(ModelEvent::WorkerStarts),
        3 => fault.prop_map(ModelEvent::Disk),
        1 => any::<bool>().prop_map(ModelEvent::FleetRefuses),
        2 => delivery.prop_map(ModelEvent::Delivery),
        2 => Just(ModelEvent::Crash),
    ]
}

struct ConversationModel {
    rig: ConversationFixture,
    jobs: BTreeMap<usize, ModelJob>,
    with_insights: bool,
    delivery: ModelDelivery,
    questions: usize,
    messages: usize,
    /// Messages that the conversation accepted and has to account for.
    accepted: BTreeSet<String>,
    /// Messages that were shown as not sent or not confirmed, or returned to the input.
    returned: HashSet<String>,
    /// Messages that the agent received.
    received: Vec<String>,
    /// Messages that the worker received.
    received_by_worker: HashSet<String>,
    /// Files are being restored.
    is_restoring: bool,
    restorations: usize,
}

impl ConversationModel {
    fn new(with_insights: bool) -> ConversationModel {
        let mut rig = ConversationFixture::new();
        rig.conversation().options.insights = with_insights;
        ConversationModel {
            rig,
            jobs: BTreeMap::new(),
            with_insights,
            delivery: ModelDelivery::Confirmed,
            questions: 0,
            messages: 0,
            accepted: BTreeSet::new(),
            returned: HashSet::new(),
            received: Vec::new(),
            received_by_worker: HashSet::new(),
            is_restoring: false,
            restorations: 0,
        }
    }

    fn apply(&mut self, event: &ModelEvent) {
        let now = self.rig.now;
        match event {
            // The person starts the program again.
            ModelEvent::Message if self.rig.conversation().has_ended() => self.crash(),
            ModelEvent::Message => self.send_message(),
            ModelEvent::Command(line) => self.rig.say(line),
            ModelEvent::Interrupt => {
                self.rig.conversation().handle_action(UserAction::Interrupt, now);
            }
            ModelEvent::Exit => self.rig.leave(),
            ModelEvent::HangUp => self.rig.conversation().handle_action(UserAction::HangUp, now),
            ModelEvent::Answer => self.answer(),
            ModelEvent::Tick(seconds) => self.rig.pass(*seconds),
            ModelEvent::JobWrites(at, row) => {
                if let Some(job) = self.live_job(*at) {
                    let number = job.rows.len();
                    job.rows.push(row_json(*row, number));
                }
            }
            ModelEvent::JobStarts(at) => {
                self.live_job(*at).into_iter().for_each(|job| job.state = ChatJobState::Running);
            }
            ModelEvent::JobEnds(at, fails) => {
                let state = if *fails { ChatJobState::Failed } else { ChatJobState::Done };
                self.live_job(*at).into_iter().for_each(|job| end_job(job, state));
            }
            ModelEvent::JobAsks(at) => {
                self.questions += 1;
                let id = format!("q{}", self.questions);
                self.live_job(*at).into_iter().for_each(|job| job.questions.push(id.clone()));
            }
            ModelEvent::Deliver(count) => {
                let _sent = (0..*count).all(|_| self.deliver_one());
            }
            ModelEvent::WorkerStarts => self.start_worker(),
            ModelEvent::Disk(fault) => self.rig.disk.has(*fault),
            ModelEvent::FleetRefuses(refuses) => {
                let reason = refuses.then(|| "the budget is spent".to_owned());
                self.rig.stage.with(|played| played.refuses = reason);
            }
            ModelEvent::Delivery(delivery) => self.set_delivery(*delivery),
            ModelEvent::Crash => self.crash(),
        }
        self.observe();
    }

    fn live_job(&mut self, at: usize) -> Option<&mut ModelJob> {
        let live: Vec<usize> = self
            .jobs
            .iter()
            .filter(|(_, job)| !job.has_ended())
            .map(|(number, _)| *number)
            .collect();
        let number = live.get(at % live.len().max(1))?;
        self.jobs.get_mut(number)
    }

    fn send_message(&mut self) {
        self.messages += 1;
        // The dot ends the number: no message is part of another.
        let text = format!("m{}.", self.messages);
        // In the other phases a line is an answer, or is refused.
        if self.rig.conversation().phase.is_open() {
            self.accepted.insert(text.clone());
        }
        self.rig.say(&text);
    }

    fn answer(&mut self) {
        let now = self.rig.now;
        let Some(question) = self.rig.conversation().open_questions().into_iter().next() else {
            return;
        };
        let answer = QuestionAnswer::Allow { input: None };
        let (job, ask) = (question.job, question.ask.id);
        self.rig.conversation().handle_action(UserAction::Answer { job, ask, answer }, now);
    }

    fn start_worker(&mut self) {
        self.jobs.entry(WORKER_JOB).or_insert_with(|| new_job(ModelJobKind::Worker));
        self.send_workers();
    }

    /// Reports the worker, as the fleet does after each start of the program.
    fn send_workers(&mut self) {
        if let Some(job) = self.jobs.get(&WORKER_JOB) {
            let (event, now) = (worker(job.state), self.rig.now);
            self.rig.conversation().handle_fleet_event(event, now);
        }
    }

    fn set_delivery(&mut self, delivery: ModelDelivery) {
        self.delivery = delivery;
        let error = match delivery {
            ModelDelivery::Confirmed => None,
            ModelDelivery::Refused => Some(MessageDeliveryError::Refused("it ends".to_owned())),
            ModelDelivery::Unconfirmed | ModelDelivery::Lost => {
                Some(MessageDeliveryError::Unconfirmed("no reply".to_owned()))
            }
        };
        self.rig.stage.with(|played| played.unheard = error);
    }

    fn crash(&mut self) {
        self.rig.disk.has(None);
        self.is_restoring = false;
        // Messages that only the killed process had are lost with it.
        let kept: HashSet<String> = self.user_texts().into_iter().collect();
        self.accepted.retain(|text| kept.contains(text) || self.received.contains(text));
        for job in self.jobs.values_mut() {
            (job.cursor, job.sent_state) = (None, None);
            job.sent_questions.clear();
        }
        self.rig.crash();
        self.rig.conversation().options.insights = self.with_insights;
        self.send_workers();
    }

    /// Sends the next outstanding event of a followed job; returns false if there is none.
    fn deliver_one(&mut self) -> bool {
        let now = self.rig.now;
        if std::mem::take(&mut self.is_restoring) {
            self.restorations += 1;
            // Every other one fails.
            let result = match self.restorations % 2 {
                0 => Err("no snapshot was taken".to_owned()),
                _ => Ok("1 file restored.".to_owned()),
            };
            let event = ChatFleetEvent::FilesRestored(result);
            self.rig.conversation().handle_fleet_event(event, now);
            self.observe();
            return true;
        }
        let next = self
            .jobs
            .iter_mut()
            .find_map(|(number, job)| Some((*number, next_event(*number, job)?)));
        let Some((number, event)) = next else { return false };
        let event = match event {
            ChatFleetEvent::Job(info) if number != WORKER_JOB => {
                let known = self.rig.stage.facts_of(number);
                ChatFleetEvent::Job(ChatJobInfo { state: info.state, reason: info.reason, ..known })
            }
            other => other,
        };
        self.rig.conversation().handle_fleet_event(event, now);
        self.observe();
        true
    }

    /// Takes the calls and the output of the conversation into the model, and checks the invariants.
    fn observe(&mut self) {
        for call in self.rig.stage.calls() {
            self.observe_call(&call);
        }
        for output in self.rig.conversation().take_output() {
            let text = match &output {
                ChatOutput::SuggestedInput(text)
                | ChatOutput::ExitMessage(text)
                | ChatOutput::Error(text) => text.as_str(),
                _ => continue,
            };
            self.returned.extend(self.accepted.iter().filter(|it| text.contains(*it)).cloned());
        }
        check_invariants(self.rig.conversation());
        self.check_messages();
    }

    fn observe_call(&mut self, call: &str) {
        let words: Vec<&str> = call.splitn(3, ' ').collect();
        match words[..] {
            ["ask", ..] => {
                let prompt = call.trim_start_matches("ask ").to_owned();
                let is_of_agent = |number: &&usize| **number < WORKER_JOB;
                let number = self.jobs.keys().filter(is_of_agent).count() + 1;
                let is_insights = prompt.starts_with("The session ends.");
                let kind = if is_insights { ModelJobKind::Insights } else { ModelJobKind::Agent };
                let running = self.running_jobs();
                assert!(is_insights || running.is_empty(), "a second turn: {running:?}");
                let mut job = new_job(kind);
                job.rows.push(prompt_row(&prompt));
                assert!(self.jobs.insert(number, job).is_none(), "one call at a time: {call}");
                self.received.push(prompt);
            }
            ["follow", job, from] => {
                let number = job_number(job);
                let job = self.jobs.get_mut(&number).expect("only known jobs are followed");
                (job.cursor, job.sent_state) = (Some(from.parse().unwrap()), None);
            }
            ["say", job, text] => self.observe_delivery(job_number(job), text),
            ["cancel", job, now] => {
                let job = self.jobs.get_mut(&job_number(job)).unwrap();
                if now == "true" {
                    end_job(job, ChatJobState::Failed);
                }
            }
            ["answer", job, ask] => {
                let ask = ask.split(' ').next().unwrap();
                let job = self.jobs.get_mut(&job_number(job)).unwrap();
                job.questions.retain(|known| known != ask);
            }
            ["restore", ..] => {
                assert!(self.running_jobs().is_empty(), "an agent works in the files");
                assert!(!std::mem::replace(&mut self.is_restoring, true), "a second restoration");
            }
            _ => panic!("unknown call: {call}"),
        }
    }

    fn observe_delivery(&mut self, number: usize, text: &str) {
        if !matches!(self.delivery, ModelDelivery::Confirmed | ModelDelivery::Unconfirmed) {
            return;
        }
        let job = self.jobs.get_mut(&number).unwrap();
        if job.has_ended() {
            // The conversation has not heard of the end: the message goes nowhere.
            self.returned.insert(text.to_owned());
            return;
        }
        job.rows.push(prompt_row(text));
        match number {
            WORKER_JOB => drop(self.received_by_worker.insert(text.to_owned())),
            _ => self.received.push(text.to_owned()),
        }
    }

    /// Returns the numbers of the agent's jobs whose end was not sent.
    fn running_jobs(&self) -> Vec<usize> {
        let is_running = |job: &ModelJob| {
            job.kind == ModelJobKind::Agent
                && job.cursor.is_some()
                && !matches!(job.sent_state, Some(ChatJobState::Done | ChatJobState::Failed))
        };
        self.jobs.iter().filter(|(_, job)| is_running(job)).map(|(number, _)| *number).collect()
    }

    fn entries(&mut self) -> Vec<ConversationEntry> {
        let of = ChatSpeaker::Coordinator;
        self.rig
            .conversation()
            .record
            .session_file
            .entries_before(&of, None, ENTRIES_MAX)
            .unwrap()
            .entries
    }

    fn user_texts(&mut self) -> Vec<String> {
        let entries = self.entries().into_iter();
        entries.filter(|entry| entry.role == EntryRole::User).map(|entry| entry.text()).collect()
    }

    /// Checks that no accepted message was lost: each is in the transcript, waits, was returned to the
    /// person, or was received by the worker that it was sent to.
    fn check_messages(&mut self) {
        let written = self.user_texts();
        let conversation = self.rig.conversation.as_ref().unwrap();
        let mut known: HashSet<&str> = written.iter().map(String::as_str).collect();
        let unwritten: Vec<String> =
            conversation.record.unwritten_entries().map(ConversationEntry::text).collect();
        known.extend(unwritten.iter().map(String::as_str));
        known.extend(conversation.outbox.waiting().map(String::as_str));
        known.extend(self.returned.iter().map(String::as_str));
        known.extend(self.received_by_worker.iter().map(String::as_str));
        // After a crash, a delivered message is recovered from its row.
        known.extend(self.received.iter().map(String::as_str));
        let lost: Vec<&String> =
            self.accepted.iter().filter(|text| !known.contains(text.as_str())).collect();
        assert!(lost.is_empty(), "lost: {lost:?}");
        // The agent never has a message that a crash would lose.
        for text in self.received.iter().filter(|text| text.starts_with('m')) {
            let count = self.received.iter().filter(|it| *it == text).count();
            assert_eq!(count, 1, "sent twice: {text}");
        }
    }

    /// Lets everything come to an end: the conversation then has every row and every message once.
    fn check_end(&mut self) {
        for event in [
            ModelEvent::Disk(None),
            ModelEvent::FleetRefuses(false),
            ModelEvent::Delivery(ModelDelivery::Confirmed),
        ] {
            self.apply(&event);
        }
        for _ in 0..END_STEPS_MAX {
            if self.rig.conversation().has_ended() {
                self.apply(&ModelEvent::Crash);
            }
            if self.rig.conversation().phase == ConversationPhase::AskingAboutWorkers {
                self.apply(&ModelEvent::Command("stay"));
            }
            self.apply(&ModelEvent::Command("/stop all"));
            self.jobs.values_mut().filter(|job| !job.has_ended()).for_each(|job| {
                end_job(job, ChatJobState::Done);
            });
            while self.deliver_one() {}
            self.apply(&ModelEvent::Tick(1));
            let conversation = self.rig.conversation();
            if conversation.phase.is_open() && conversation.turn.is_idle() {
                break;
            }
        }
        let conversation = self.rig.conversation();
        assert!(conversation.phase.is_open() && conversation.turn.is_idle(), "it does not end");
        assert_eq!(conversation.outbox.waiting().count(), 0);
        assert!(!conversation.has_unwritten_entries());
        assert!(conversation.open_questions().is_empty());
        self.check_transcript();
    }

    fn check_transcript(&mut self) {
        let entries = self.entries();
        for (number, known) in self.jobs.iter().filter(|(_, job)| job.kind == ModelJobKind::Agent) {
            let id = job(*number);
            let rows = entries.iter().filter_map(|entry| entry.source.as_ref());
            let rows: Vec<u64> = rows.filter(|it| it.job == id).map(|it| it.row).collect();
            assert!(rows.is_sorted_by(|a, b| a < b), "{id}: {rows:?}");
            for (at, row) in known.rows.iter().enumerate() {
                let is_prompt = row["subtype"] == "user_input";
                assert!(is_prompt || rows.contains(&(at as u64)), "{id} lacks row {at}: {rows:?}");
            }
        }
        let texts = self.user_texts();
        for text in self.received.iter().filter(|text| text.starts_with('m')) {
            let count = texts.iter().filter(|it| *it == text).count();
            assert_eq!(count, 1, "{text} in {texts:?}");
        }
    }
}

/// Invariants of a conversation between two events.
fn check_invariants(conversation: &Conversation) {
    let is_open = conversation.phase.is_open();
    let waiting: Vec<&String> = conversation.outbox.waiting().collect();
    if conversation.turn.is_idle() && is_open {
        assert_eq!(conversation.outbox.queued(), 0, "nothing will send {waiting:?}");
    }
    if conversation.has_ended() {
        assert!(conversation.turn.is_idle() && waiting.is_empty(), "{waiting:?}");
    }
    if matches!(conversation.turn, TurnPhase::Submitting(_)) {
        assert!(conversation.has_unwritten_entries() || !is_open, "nothing will submit it");
    }
    for question in conversation.open_questions() {
        match &question.of {
            ChatSpeaker::Coordinator => {
                let running = conversation.turn.running().map(|turn| &turn.job);
                assert_eq!(running, Some(&question.job), "no agent waits for an answer");
            }
            ChatSpeaker::Worker(name) => {
                let mut workers = conversation.workers.iter();
                let asks = workers.find(|worker| worker.name() == name).unwrap();
                assert!(!asks.has_recorded(&question.job), "no worker waits for an answer");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 8))]

    #[test]
    fn no_sequence_of_events_breaks_a_conversation_or_loses_a_message(
        with_insights in any::<bool>(),
        events in prop::collection::vec(any_event(), 1..160),
    ) {
        let mut model = ConversationModel::new(with_insights);
        events.iter().for_each(|event| model.apply(event));
        model.check_end();
    }
}
