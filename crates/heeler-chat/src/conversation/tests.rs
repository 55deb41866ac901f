//! Tests of conversations with a fake fleet.

use std::sync::{Arc, Mutex};

use camino::Utf8PathBuf;
use heeler_model::job_row::JobRow;
use heeler_model::run::{AgentQuestion, QuestionAnswer};
use heeler_model::{AgentSessionId, JobId};
use heeler_testkit::HookedDisk;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value as Json, json};
use uuid::Uuid;

mod commands;
mod disk;
mod forks;
mod leaving;
mod loops;
mod model;
mod phases;
mod undo;

use super::*;
use crate::{
    ChatAgentInfo, ChatJobInfo, ChatJobState, ConversationState, MessageDeliveryError, TurnRequest,
    TurnSessionChoice,
};

/// Commands sent to the fake fleet, and its next replies.
#[derive(Default)]
struct FakeChatFleetState {
    permissions: Vec<heeler_model::permission_grant::PermissionGrant>,
    calls: Vec<String>,
    turns: Vec<(Uuid, JobId)>,
    refuses: Option<String>,
    unheard: Option<MessageDeliveryError>,
    sessions: Vec<TurnSessionChoice>,
    prompts: Vec<String>,
}

#[derive(Clone, Default)]
struct FakeChatFleet(Arc<Mutex<FakeChatFleetState>>);

impl FakeChatFleet {
    fn with<T>(&self, act: impl FnOnce(&mut FakeChatFleetState) -> T) -> T {
        act(&mut self.0.lock().unwrap())
    }

    fn calls(&self) -> Vec<String> {
        self.with(|played| std::mem::take(&mut played.calls))
    }

    fn last_session(&self) -> TurnSessionChoice {
        self.with(|played| played.sessions.last().cloned()).unwrap()
    }

    /// Returns the native session of a job; a fork gets a new one.
    fn session(&self, number: usize) -> AgentSessionId {
        let forks = self.with(|played| {
            let is_fork = |it: &&TurnSessionChoice| matches!(it, TurnSessionChoice::Fork(..));
            played.sessions.iter().take(number).filter(is_fork).count()
        });
        Uuid::from_u128(forks as u128).to_string().parse().unwrap()
    }

    fn facts_of(&self, number: usize) -> ChatJobInfo {
        ChatJobInfo {
            job: job(number),
            agent: "boss".to_owned(),
            state: ChatJobState::Done,
            reason: None,
            session: Some(self.session(number)),
            cost_usd: Some(0.5),
            context_tokens: None,
            context_window: None,
            model: None,
        }
    }
}

fn job(number: usize) -> JobId {
    format!("job-2026-01-02-aaaa{number:02}").parse().unwrap()
}

impl ChatFleetClient for FakeChatFleet {
    fn agents(&self) -> Vec<ChatAgentInfo> {
        Vec::new()
    }

    fn describe_permissions(&self, agent: &str, attended: bool) -> Vec<String> {
        vec![format!("{agent} may do anything, attended: {attended}")]
    }

    fn start_turn(&mut self, turn: &TurnRequest) -> Result<JobId, String> {
        self.with(|played| {
            if let Some(why) = &played.refuses {
                return Err(why.clone());
            }
            let id = job(played.turns.len() + 1);
            played.turns.push((turn.id, id.clone()));
            played.sessions.push(turn.session.clone());
            played.prompts.push(turn.prompt.clone());
            played.permissions.push(turn.permissions.clone());
            played.calls.push(format!("ask {}", turn.prompt.lines().next().unwrap_or_default()));
            Ok(id)
        })
    }

    fn find_turn_job(&mut self, turn: Uuid) -> Result<Option<JobId>, String> {
        Ok(self.with(|played| {
            played.turns.iter().find(|(id, _)| *id == turn).map(|(_, job)| job.clone())
        }))
    }

    fn send_message(&mut self, job: &JobId, text: &str) -> Result<(), MessageDeliveryError> {
        self.with(|played| played.calls.push(format!("say {job} {text}")));
        self.with(|played| played.unheard.clone().map_or(Ok(()), Err))
    }

    fn answer_question(
        &mut self,
        job: &JobId,
        ask: &str,
        _: &QuestionAnswer,
        shown: Option<String>,
    ) -> Result<(), String> {
        self.with(|played| played.calls.push(format!("answer {job} {ask} {shown:?}")));
        Ok(())
    }

    fn cancel_job(&mut self, job: &JobId, now: bool) -> Result<(), String> {
        self.with(|played| played.calls.push(format!("cancel {job} {now}")));
        Ok(())
    }

    fn follow_job(&mut self, job: &JobId, from: u64) {
        self.with(|played| played.calls.push(format!("follow {job} {from}")));
    }

    fn watch_workers(&mut self, _: &[JobId]) {}

    fn run_shell(&mut self, command: &str) -> Result<(), String> {
        self.with(|played| played.calls.push(format!("run {command}")));
        self.with(|played| played.refuses.clone().map_or(Ok(()), Err))
    }

    fn stop_shell(&mut self) {
        self.with(|played| played.calls.push("stop".to_owned()));
    }

    fn load_diff(&mut self, session: &AgentSessionId) {
        self.with(|played| played.calls.push(format!("diff {session}")));
    }

    fn restore_files(&mut self, session: &AgentSessionId, after: Option<Uuid>) {
        let after = after.map(|entry| entry.as_u128());
        self.with(|played| played.calls.push(format!("restore {session} {after:?}")));
    }

    fn job_info(&mut self, wanted: &JobId) -> Result<Option<ChatJobInfo>, String> {
        let count = self.with(|played| played.turns.len().max(played.sessions.len()));
        let number = (1..=count).find(|number| job(*number) == *wanted);
        Ok(number.map(|number| self.facts_of(number)))
    }
}

struct ConversationFixture {
    temp: tempfile::TempDir,
    disk: Arc<HookedDisk<disk::FillableDisk>>,
    stage: FakeChatFleet,
    conversation: Option<Conversation>,
    now: Timestamp,
}

impl ConversationFixture {
    fn new() -> ConversationFixture {
        let temp = tempfile::tempdir().unwrap();
        let (disk, stage) = (Arc::default(), FakeChatFleet::default());
        let mut rig = ConversationFixture {
            temp,
            disk,
            stage,
            conversation: None,
            now: Timestamp::UNIX_EPOCH,
        };
        let state =
            ConversationState { agent: Some("boss".to_owned()), ..ConversationState::default() };
        let session_file = rig.directory().create(state, rig.now).unwrap();
        rig.begin(session_file, |_| {});
        rig
    }

    fn folder(&self) -> Utf8PathBuf {
        Utf8PathBuf::from_path_buf(self.temp.path().to_owned()).unwrap()
    }

    fn directory(&self) -> SessionDirectory {
        SessionDirectory::new(self.folder().join("sessions"), Vec::new())
            .with_disk(self.disk.clone())
    }

    fn begin(&mut self, session_file: SessionFile, change: impl FnOnce(&mut ConversationOptions)) {
        let mut options = ConversationOptions {
            attended: true,
            worker_exit_policy: WorkerExitPolicy::Ask,
            insights: false,
            earlier_insights: None,
            restart_loops: false,
            permission_mode: Some("default".to_owned()),
            model: None,
            context_tokens: Some(0),
            agent_folder: None,
            branch: None,
            folder: self.folder(),
            agent_commands: vec![crate::AgentSlashCommand {
                name: "compact".to_owned(),
                about: "shorten the context".to_owned(),
            }],
            keys: &[("Ctrl+X", "does nothing")],
        };
        change(&mut options);
        let fleet = Box::new(self.stage.clone());
        self.conversation = Some(
            Conversation::begin(self.directory(), session_file, fleet, options, self.now).unwrap(),
        );
    }

    /// Drops the conversation like a killed process, and resumes from disk.
    fn crash(&mut self) {
        let id = self.conversation.take().unwrap().id().to_owned();
        let session_file = self
            .directory()
            .open(&id, self.now, crate::OldFormatPolicy::Migrate)
            .unwrap()
            .session_file;
        self.begin(session_file, |_| {});
    }

    fn conversation(&mut self) -> &mut Conversation {
        self.conversation.as_mut().unwrap()
    }

    fn say(&mut self, line: &str) {
        let now = self.now;
        self.conversation().handle_action(UserAction::SendLine(line.to_owned()), now);
    }

    fn leave(&mut self) {
        let now = self.now;
        self.conversation().handle_action(UserAction::Exit, now);
    }

    fn row(&mut self, number: usize, at: u64, row: Json) {
        let now = self.now;
        self.conversation().handle_fleet_event(
            ChatFleetEvent::Row { job: job(number), at, row: JobRow::new(row) },
            now,
        );
    }

    fn said(&mut self, number: usize, at: u64, text: &str) {
        let uuid = Uuid::from_u128(u128::from(at) + number as u128 * 100);
        self.row(number, at, json!({"type": "assistant", "content": text, "uuid": uuid}));
    }

    fn is(&mut self, number: usize, state: ChatJobState) {
        let now = self.now;
        let reason = (state == ChatJobState::Failed).then(|| "no login".to_owned());
        let facts = ChatJobInfo { state, reason, ..self.stage.facts_of(number) };
        self.conversation().handle_fleet_event(ChatFleetEvent::Job(facts), now);
    }

    fn pass(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
        let now = self.now;
        self.conversation().tick(now);
    }

    /// Returns the output, without the status line.
    fn shown(&mut self) -> Vec<String> {
        let line = |entry: &ConversationEntry| match &entry.name {
            Some(name) => format!("{:?} {name}", entry.role),
            None => format!("{:?} {}", entry.role, entry.text()),
        };
        let shown = self.conversation().take_output();
        shown
            .iter()
            .filter_map(|shown| match shown {
                ChatOutput::Status(_) => None,
                ChatOutput::Entry { of: ChatSpeaker::Coordinator, entry } => Some(line(entry)),
                ChatOutput::Entry { of: ChatSpeaker::Worker(name), entry } => {
                    Some(format!("{name}: {}", line(entry)))
                }
                ChatOutput::OlderEntries { entries, .. } => {
                    Some(entries.iter().map(line).collect::<Vec<_>>().join(" | "))
                }
                ChatOutput::Notice(text)
                | ChatOutput::Error(text)
                | ChatOutput::ExitMessage(text) => Some(text.clone()),
                ChatOutput::SuggestedInput(text) => Some(format!("suggested: {text}")),
                ChatOutput::DeltaEnded { .. } => None,
                other => Some(format!("{other:?}")),
            })
            .filter(|line| !line.is_empty())
            .collect()
    }
}

#[test]
fn what_is_said_is_kept_then_asked_and_what_comes_is_kept_then_shown() {
    let mut rig = ConversationFixture::new();
    rig.say("hello");
    assert_eq!(rig.stage.calls(), ["ask hello", "follow job-2026-01-02-aaaa01 0"]);
    rig.row(1, 0, json!({"type": "system", "subtype": "user_input", "content": "hello"}));
    rig.said(1, 1, "Hi.");
    // A repeated row is not shown again.
    rig.said(1, 1, "Hi.");
    rig.is(1, ChatJobState::Done);
    assert_eq!(rig.shown(), ["User hello", "Assistant Hi."]);
    rig.crash();
    assert_eq!(rig.shown(), ["User hello | Assistant Hi."]);
    assert_eq!(rig.stage.calls(), ["follow job-2026-01-02-aaaa01 2"]);
}

#[test]
fn words_that_are_heard_after_their_entry_was_read_from_the_log_do_not_stay() {
    let mut rig = ConversationFixture::new();
    rig.say("hello");
    rig.said(1, 1, "Hi.");
    rig.conversation().take_output();
    let now = rig.now;
    rig.conversation()
        .handle_fleet_event(ChatFleetEvent::Delta { job: job(1), text: "Hi.".to_owned() }, now);
    rig.said(1, 1, "Hi.");
    let of = ChatSpeaker::Coordinator;
    let delta = ChatOutput::Delta { of: of.clone(), text: "Hi.".to_owned() };
    assert_eq!(rig.conversation().take_output(), [delta, ChatOutput::DeltaEnded { of }]);
}

#[test]
fn the_second_turn_goes_on_in_the_session_of_the_first() {
    let mut rig = ConversationFixture::new();
    rig.say("one");
    rig.is(1, ChatJobState::Done);
    rig.say("two");
    let sessions = rig.stage.with(|played| played.sessions.clone());
    assert!(
        matches!(&sessions[..], [TurnSessionChoice::New, TurnSessionChoice::Existing(_)]),
        "{sessions:?}"
    );
}

#[test]
fn a_turn_that_was_cut_off_is_completed_from_where_the_transcript_ends() {
    let mut rig = ConversationFixture::new();
    rig.say("count");
    rig.said(1, 1, "1");
    rig.crash();
    assert_eq!(rig.stage.calls()[2..], ["follow job-2026-01-02-aaaa01 2"]);
    rig.said(1, 2, "2");
    rig.is(1, ChatJobState::Done);
    assert_eq!(rig.shown(), ["User count | Assistant 1", "Assistant 2"]);
}

#[test]
fn a_turn_whose_job_is_not_on_record_any_more_is_not_waited_for() {
    let mut rig = ConversationFixture::new();
    rig.say("one");
    rig.stage.with(|played| (played.turns.clear(), played.sessions.clear()));
    rig.stage.calls();
    rig.crash();
    assert!(rig.shown()[1].contains("is no longer recorded"));
    assert_eq!(rig.stage.calls(), [""; 0], "nobody follows it");
    rig.say("two");
    assert_eq!(rig.stage.calls()[..1], ["ask two"]);
}

#[test]
fn another_agent_that_goes_on_with_a_session_gets_a_conversation_of_its_own() {
    let mut rig = ConversationFixture::new();
    rig.say("one");
    rig.is(1, ChatJobState::Done);
    let take_over = |state: &mut ConversationState| {
        (state.agent, state.session) = (Some("other".to_owned()), None);
    };
    rig.conversation().record.session_file.save(take_over).unwrap();
    rig.crash();
    rig.is(1, ChatJobState::Done);
    rig.say("two");
    assert_eq!(rig.stage.last_session(), TurnSessionChoice::New);
}

#[test]
fn words_that_were_kept_and_not_sent_are_offered_again() {
    let mut rig = ConversationFixture::new();
    rig.say("first");
    rig.is(1, ChatJobState::Done);
    // A crash between writing the message and sending it.
    let entry = ConversationEntry {
        turn: Some(Uuid::from_u128(9)),
        ..ConversationEntry::new(EntryRole::User, "lost?", rig.now)
    };
    rig.conversation().record.session_file.append(&ChatSpeaker::Coordinator, &entry).unwrap();
    rig.shown();
    rig.crash();
    let shown = rig.shown();
    assert_eq!(shown.last().unwrap(), "suggested: lost?");
    assert!(shown[1].contains("was not sent"), "{shown:?}");

    rig.is(1, ChatJobState::Done);
    // The fleet may be executing it: it is sent again with its own ID, which starts nothing twice.
    rig.say("lost?");
    let asked = rig.stage.with(|played| played.turns.last().map(|(turn, _)| *turn));
    assert_eq!(asked, Some(Uuid::from_u128(9)));
    rig.is(2, ChatJobState::Done);
    assert_eq!(rig.shown(), [""; 0], "they are in the transcript");
    rig.say("lost?");
    assert_eq!(rig.shown(), ["User lost?"]);
}

#[test]
fn words_that_were_not_sent_and_are_changed_are_other_words() {
    let mut rig = ConversationFixture::new();
    let entry = ConversationEntry {
        turn: Some(Uuid::from_u128(9)),
        ..ConversationEntry::new(EntryRole::User, "lost?", rig.now)
    };
    rig.conversation().record.session_file.append(&ChatSpeaker::Coordinator, &entry).unwrap();
    rig.crash();
    rig.shown();
    rig.say("lost");
    assert_eq!(rig.shown(), ["User lost"]);
    assert_ne!(rig.stage.with(|played| played.turns[0].0), Uuid::from_u128(9));
}

#[test]
fn words_that_a_fleet_has_forgotten_are_not_taken_for_unsent() {
    let mut rig = ConversationFixture::new();
    rig.say("first");
    rig.said(1, 1, "done");
    rig.is(1, ChatJobState::Done);
    rig.stage.with(|played| played.turns.clear());
    rig.now += TURN_LOOKUP_WINDOW * 2;
    rig.crash();
    assert_eq!(rig.shown(), ["User first | Assistant done"]);
    rig.say("/fork");
    rig.shown();
    rig.crash();
    assert_eq!(rig.shown().len(), 1, "a copy asks nothing either");
    let entry = ConversationEntry {
        turn: Some(Uuid::from_u128(9)),
        ..ConversationEntry::new(EntryRole::User, "lost?", rig.now)
    };
    rig.conversation().record.session_file.append(&ChatSpeaker::Coordinator, &entry).unwrap();
    rig.now += TURN_LOOKUP_WINDOW * 2;
    rig.crash();
    let shown = rig.shown();
    assert!(shown.last().unwrap().contains("it is no longer known"), "{shown:?}");
}

#[test]
fn a_job_that_was_asked_for_just_before_a_crash_is_found_by_its_turn() {
    let mut rig = ConversationFixture::new();
    let id = Uuid::from_u128(5);
    let entry = ConversationEntry {
        turn: Some(id),
        ..ConversationEntry::new(EntryRole::User, "go", rig.now)
    };
    rig.conversation().record.session_file.append(&ChatSpeaker::Coordinator, &entry).unwrap();
    rig.stage.with(|played| played.turns.push((id, job(1))));
    rig.crash();
    assert_eq!(rig.stage.calls(), ["follow job-2026-01-02-aaaa01 0"]);
    rig.said(1, 0, "Went.");
    assert_eq!(rig.shown(), ["User go", "Assistant Went."]);
}

#[test]
fn what_is_refused_is_said_and_comes_back_to_the_input() {
    let mut rig = ConversationFixture::new();
    rig.stage.with(|played| played.refuses = Some("the budget is spent".to_owned()));
    rig.say("hello");
    assert_eq!(
        rig.shown(),
        ["User hello", "System not sent: the budget is spent", "suggested: hello"]
    );
    rig.crash();
    assert_eq!(rig.shown(), ["User hello | System not sent: the budget is spent"]);
}

#[test]
fn words_for_an_agent_at_work_reach_it_and_an_interrupt_gives_back_what_waits() {
    let mut rig = ConversationFixture::new();
    rig.say("one");
    // The job has not started: the message waits.
    rig.say("two");
    rig.is(1, ChatJobState::Running);
    rig.say("three");
    rig.stage.calls();
    let now = rig.now;
    rig.conversation().handle_action(UserAction::Interrupt, now);
    rig.conversation().handle_action(UserAction::Interrupt, now);
    let job = job(1);
    assert_eq!(rig.stage.calls(), [format!("cancel {job} false"), format!("cancel {job} true")]);
    rig.is(1, ChatJobState::Failed);
    assert_eq!(rig.shown(), ["User one", "User three", "suggested: two", "System interrupted"]);
}

#[test]
fn words_of_which_nobody_knows_whether_they_were_heard_are_said_once_and_kept_if_they_were() {
    let heard = |text: &str| json!({"type": "system", "subtype": "user_input", "content": text});
    let mut rig = ConversationFixture::new();
    rig.say("one");
    rig.row(1, 0, heard("one"));
    rig.is(1, ChatJobState::Running);
    rig.shown();
    rig.stage.with(|played| {
        played.unheard = Some(MessageDeliveryError::Unconfirmed("no reply".to_owned()));
    });
    rig.say("two");
    assert!(rig.shown()[0].contains("it is not known if this arrived"));
    rig.row(1, 1, heard("two"));
    assert_eq!(rig.shown(), ["User two"]);
    rig.stage
        .with(|played| played.unheard = Some(MessageDeliveryError::Refused("it ends".to_owned())));
    rig.say("three");
    // A crash after a message was sent and before it was written.
    rig.crash();
    rig.row(1, 2, heard("one"));
    rig.row(1, 3, heard("four"));
    rig.is(1, ChatJobState::Done);
    assert_eq!(rig.shown(), ["User one | User two", "User four"]);
    // Unsent messages belong to no turn.
    rig.stage.with(|played| played.refuses = Some("the budget is spent".to_owned()));
    rig.say("five");
    rig.crash();
    rig.shown();
    rig.row(1, 4, heard("one"));
    assert_eq!(rig.shown(), [""; 0]);
}

#[test]
fn how_a_turn_ended_badly_is_told_once_however_often_it_is_resumed() {
    let cancelled = || json!({"type": "error", "message": "cancelled by ann", "code": "cancelled"});
    let mut rig = ConversationFixture::new();
    rig.say("one");
    rig.is(1, ChatJobState::Running);
    rig.leave();
    rig.row(1, 3, cancelled());
    rig.is(1, ChatJobState::Failed);
    assert_eq!(rig.shown()[..2], ["User one", "System interrupted"]);
    rig.crash();
    rig.is(1, ChatJobState::Failed);
    assert_eq!(rig.shown(), ["User one | System interrupted"]);

    // No row reports it: the job had not started, or its runner was killed.
    rig.say("two");
    rig.is(2, ChatJobState::Failed);
    assert_eq!(rig.shown(), ["User two", "System failed: no login"]);
    for _ in 0..2 {
        rig.crash();
        rig.is(2, ChatJobState::Failed);
        assert_eq!(
            rig.shown(),
            ["User one | System interrupted | User two | System failed: no login"]
        );
    }

    // A failed run, and a retry after it.
    rig.say("three");
    rig.row(3, 1, json!({"type": "error", "message": "broken"}));
    rig.said(3, 2, "Again.");
    rig.is(3, ChatJobState::Failed);
    assert_eq!(
        rig.shown(),
        ["User three", "System error: broken", "Assistant Again.", "System failed: no login"]
    );
}
