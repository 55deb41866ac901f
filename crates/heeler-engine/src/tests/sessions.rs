//! Changes of a session's row by a run.

use heeler_config::RuntimeType;
use heeler_model::fleet::QueuedJobRecord;
use heeler_model::redact::SecretRedactor;
use heeler_model::run::{RunEnd, RunResult, SessionEnd};
use heeler_model::session_choice::SessionChoice;
use heeler_model::{JobStatus, NativeSessionPosition, Session, SessionMode, SessionStatus};
use heeler_store::{DatabaseError, SessionFilter};
use serde_json::json;
use uuid::Uuid;

use super::{EngineFixture, clock, run_without_daemon};
use crate::recovery::{RunFolderCheck, recover_runs};
use crate::{ResolvedJobRequest, RunStartError};

impl EngineFixture {
    /// A command of a workflow, in the name of an agent.
    fn phase_command(&self) -> ResolvedJobRequest {
        let mut request = ResolvedJobRequest { is_phase_command: true, ..self.persistent() };
        (request.session, request.runtime) = (SessionChoice::Fresh, RuntimeType::Command);
        request
    }

    fn all_sessions(&self) -> Vec<Session> {
        self.reader().sessions(&SessionFilter::default(), None, 9).unwrap()
    }

    /// Changes the record of a session.
    fn change(&self, session: &Session, change: impl FnOnce(&mut Session)) -> Session {
        let mut session = self.reader().session(&session.id).unwrap().unwrap();
        change(&mut session);
        let changed = session.clone();
        let written = self.store().write::<_, DatabaseError, _>(move |tx| tx.put_session(&session));
        written.unwrap();
        changed
    }

    fn found(&self, session: &Session) -> Session {
        self.reader().session(&session.id).unwrap().unwrap()
    }

    /// A persistent session of the agent, after its first job.
    fn kept(&self) -> Session {
        self.session_of(&self.conducted(&self.persistent()).job)
    }

    fn given(&self, session: &Session) -> ResolvedJobRequest {
        let id = session.agent_session_id.clone().unwrap();
        ResolvedJobRequest { session: SessionChoice::Given { id }, ..self.persistent() }
    }

    fn in_channel(&self) -> ResolvedJobRequest {
        let mut request = self.persistent();
        request.rules.mode = SessionMode::PerChannel;
        request.channel = Some("C1".to_owned());
        request
    }

    /// A channel's session with a context beyond the limit of these requests.
    fn full(&self) -> (Session, ResolvedJobRequest) {
        let full = self.session_of(&self.conducted(&self.in_channel()).job);
        let full = self.change(&full, |session| session.token_estimate = 1_000_000);
        let mut request = self.in_channel();
        request.rules.max_context_tokens = std::num::NonZeroU32::new(1000);
        (full, request)
    }
}

#[test]
fn a_mark_of_the_agents_own_record_does_not_outlive_a_run_that_left_none() {
    let place = EngineFixture::new("success");
    let session = place.kept();
    let mark = NativeSessionPosition { bytes: 9, last: Uuid::from_u128(1), hash: None };
    place.change(&session, |session| session.own = Some(mark));
    // This run's rows are after the old mark, which would make them external messages.
    place.conducted(&place.persistent());
    assert_eq!(place.found(&session).own, None);
}

#[test]
fn whoever_succeeds_a_session_has_its_worktree() {
    let place = EngineFixture::new("success");
    let worktree = place.root.join("worktree");
    let gone = place.kept();
    place.change(&gone, |session| session.workspace = Some(worktree.clone()));
    place.behave("in 33333333-fresh");
    let fresh = place.session_of(&place.conducted(&place.given(&gone)).job);
    assert_ne!(fresh.id, gone.id);
    assert_eq!(fresh.workspace.as_ref(), Some(&worktree));
    assert_eq!((place.found(&gone).workspace, place.found(&gone).status), {
        (None, SessionStatus::Expired)
    });
}

#[test]
fn a_session_that_is_succeeded_by_one_on_record_keeps_its_worktree() {
    let place = EngineFixture::new("success");
    let worktree = place.root.join("worktree");
    let gone = place.kept();
    place.change(&gone, |session| session.workspace = Some(worktree.clone()));
    let known = place.session_of(&place.conducted(&place.request()).job);
    place.behave(&format!("in {}", known.agent_session_id.as_ref().unwrap()));
    place.conducted(&place.given(&gone));
    assert_eq!(place.found(&gone).workspace, Some(worktree));
    assert_eq!(place.found(&known).workspace, None);
}

#[test]
fn a_session_that_another_fleet_is_at_rests_and_one_that_our_own_job_is_at_does_not() {
    let place = EngineFixture::new("success");
    let session = place.kept();
    place.behave("busy");
    let done = place.conducted(&place.persistent());
    assert_eq!(done.status, JobStatus::Failed);
    assert_eq!(place.found(&session).status, SessionStatus::Paused);

    let store = place.store();
    let mut ours = place.persistent();
    ours.max_concurrent = std::num::NonZeroU32::new(9).unwrap();
    let first = run_without_daemon::begin(&place.fleet, &store, &ours, None).unwrap();
    let late = run_without_daemon::begin(&place.fleet, &store, &ours, None).unwrap_err();
    let RunStartError::SessionBusy { job, .. } = late else { panic!("{late:?}") };
    assert_eq!(job, Some(first.job));
    assert_eq!(place.found(&session).status, SessionStatus::Active);
}

/// The lock of a session is free as soon as the processes of its run are dead. The native session may
/// have grown by then, and only the result of that run says how far.
#[test]
fn no_run_starts_in_a_session_whose_last_run_is_not_settled() {
    let place = EngineFixture::new("success");
    let session = place.kept();
    let mark = NativeSessionPosition { bytes: 9, last: Uuid::from_u128(1), hash: None };
    place.change(&session, |session| session.own = Some(mark));
    let store = place.store();
    let mut request = place.given(&session);
    request.max_concurrent = std::num::NonZeroU32::new(9).unwrap();
    let dead = run_without_daemon::begin(&place.fleet, &store, &request, None).unwrap();
    let early = run_without_daemon::begin(&place.fleet, &store, &request, None).map(|it| it.spec);
    let Err(RunStartError::SessionBusy { job, holder, .. }) = early else { panic!("{early:?}") };
    assert_eq!(job.as_ref(), Some(&dead.job));
    assert!(holder.contains(dead.job.as_str()), "{holder}");

    let settled = NativeSessionPosition { bytes: 99, last: Uuid::from_u128(2), hash: None };
    let mut result = RunResult::never_started(dead.run, dead.job, "died", clock());
    result.end = RunEnd::Interrupted;
    result.session = Some(SessionEnd {
        id: session.agent_session_id.clone().unwrap(),
        log: place.root.join("log.jsonl"),
        messages: 6,
        tokens: 6,
        resumable: true,
        own: Some(settled),
    });
    crate::commit::commit(&store, result, &SecretRedactor::new(&[])).unwrap();
    let next = run_without_daemon::begin(&place.fleet, &store, &request, None).unwrap();
    assert_eq!(next.spec.session.own, Some(settled));
}

/// The last message of such a run is unknown, so its messages must not count as external.
#[test]
fn a_run_with_a_lost_result_leaves_no_position_in_its_session() {
    let place = EngineFixture::new("success");
    let session = place.kept();
    let mark = NativeSessionPosition { bytes: 9, last: Uuid::from_u128(1), hash: None };
    for (end, left) in [(RunEnd::NeverStarted, Some(mark)), (RunEnd::Interrupted, None)] {
        place.change(&session, |session| session.own = Some(mark));
        let store = place.store();
        let dead = run_without_daemon::begin(&place.fleet, &store, &place.persistent(), None);
        let dead = dead.unwrap();
        let result = RunResult::never_started(dead.run, dead.job, "its folder is gone", clock());
        let result = RunResult { end, ..result };
        crate::commit::commit(&store, result, &SecretRedactor::new(&[])).unwrap();
        assert_eq!(place.found(&session).own, left, "{end}");
    }
}

#[test]
fn a_hand_over_that_came_to_nothing_leaves_the_channel_to_the_old_session() {
    for behave in ["hopeless", "lost", "busy", "die"] {
        let place = EngineFixture::new("success");
        let (full, request) = place.full();
        place.behave(behave);
        let failed = place.conducted(&request);
        assert_eq!(failed.status, JobStatus::Failed, "{behave}");
        let of_channel = place.reader().session_of_channel("coder", "C1").unwrap();
        assert_eq!(of_channel.map(|session| session.id), Some(full.id.clone()), "{behave}");
        assert_eq!(place.found(&full).status, SessionStatus::Paused, "{behave}");

        place.behave("success");
        let next = place.session_of(&place.conducted(&request).job);
        assert_eq!(next.continues, Some(full.id.clone()), "{behave}");
        let of_channel = place.reader().session_of_channel("coder", "C1").unwrap();
        assert_eq!(of_channel.map(|session| session.id), Some(next.id), "{behave}");
        assert_eq!(place.found(&full).status, SessionStatus::Completed, "{behave}");
    }
}

#[test]
fn a_command_of_a_workflow_has_no_session() {
    let place = EngineFixture::new("success");
    let store = place.store();
    let begun =
        run_without_daemon::begin(&place.fleet, &store, &place.phase_command(), None).unwrap();
    let log = place.fleet.dir.run(begun.run).join("session.log");
    assert_eq!(begun.spec.session.log, Some(log));
    assert!(begun.spec.session.reason.starts_with("no session"), "{:?}", begun.spec.session);
    assert_eq!(place.job(&begun.job).head.session_id, None);

    // As the daemon records a part. The runner of an earlier release reports a session.
    let command = json!({"kind": "command", "command": "true", "env": []});
    let phase = json!({"run": "wf-2026-11-15-k3v9q1", "work": command});
    let queued = QueuedJobRecord {
        job: begun.job.clone(),
        priority: 0,
        requested_at: clock(),
        not_before: None,
        expires_at: None,
        request_json: json!({"agent": "coder", "phase": phase}).to_string(),
        reason: String::new(),
    };
    let mut job = place.job(&begun.job);
    job.seq = Some(0);
    let written = store.write::<_, DatabaseError, _>(move |tx| {
        tx.enqueue(&queued)?;
        tx.update_job(&job).map(drop)
    });
    written.unwrap();
    let mut result = RunResult::never_started(begun.run, begun.job.clone(), "died", clock());
    result.end = RunEnd::Interrupted;
    result.session = Some(SessionEnd {
        id: begun.spec.session.start.id().clone(),
        log: place.root.join("log.jsonl"),
        messages: 2,
        tokens: 2,
        resumable: false,
        own: None,
    });
    crate::commit::commit(&store, result, &SecretRedactor::new(&[])).unwrap();
    let job = place.job(&begun.job);
    assert_eq!((job.head.status, job.head.session_id), (JobStatus::Failed, None));
    assert_eq!(place.reader().run_result(begun.run).unwrap().unwrap().session, None);
    assert_eq!(place.all_sessions(), []);
    let agent = place.reader().agent("coder").unwrap().unwrap();
    assert_eq!(agent.current_job, None);
}

#[test]
fn a_command_that_only_its_folder_knows_is_adopted_without_a_session() {
    let place = EngineFixture::new("success");
    let request = place.phase_command();
    let begun = run_without_daemon::begin(&place.fleet, &place.store(), &request, None).unwrap();
    // As a restore of an earlier backup leaves it: the directory exists, the rows do not.
    let other = EngineFixture::new("success");
    let mut spec = begun.spec;
    spec.job_log = other.fleet.dir.job_transcript(&begun.job);
    spec.projects = other.fleet.dir.projects();
    let folder = other.fleet.dir.run(begun.run);
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("spec.json"), serde_json::to_vec_pretty(&spec).unwrap()).unwrap();
    let recovered = recover_runs(&other.fleet, &other.store(), RunFolderCheck::WhenDue).unwrap();
    assert_eq!(recovered.adopted, [begun.run]);
    assert_eq!(other.job(&begun.job).head.session_id, None);
    assert_eq!(other.all_sessions(), []);
}
