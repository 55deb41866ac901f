//! Changes of a session's row by a run.

use heeler_model::redact::SecretRedactor;
use heeler_model::run::{RunEnd, RunResult};
use heeler_model::session_choice::SessionChoice;
use heeler_model::{JobStatus, NativeSessionPosition, Session, SessionMode, SessionStatus};
use heeler_store::DatabaseError;
use uuid::Uuid;

use super::{EngineFixture, clock, run_without_daemon};
use crate::ResolvedJobRequest;

impl EngineFixture {
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
    let mark = NativeSessionPosition { bytes: 9, last: Uuid::from_u128(1) };
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
    run_without_daemon::begin(&place.fleet, &store, &ours, None).unwrap();
    let late = run_without_daemon::begin(&place.fleet, &store, &ours, None).unwrap();
    let result = RunResult::never_started(late.run, late.job, "busy", clock());
    let result = RunResult { end: RunEnd::SessionBusy, ..result };
    crate::commit::commit(&store, result, &SecretRedactor::new(&[])).unwrap();
    assert_eq!(place.found(&session).status, SessionStatus::Active);
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
