//! Rules for resuming sessions.

use super::*;
use crate::ApprovalMode;
use std::time::Duration;

const NOW: &str = "2024-01-20T09:00:00Z";

fn session() -> Session {
    Session {
        id: "sess-a1b2c3d4".parse().unwrap(),
        agent_session_id: Some("earlier".parse().unwrap()),
        agent: "coder".to_owned(),
        mode: SessionMode::Persistent,
        approvals: ApprovalMode::Autonomous,
        status: SessionStatus::Paused,
        channel_id: None,
        created_at: "2024-01-19T00:00:00Z".parse().unwrap(),
        last_active_at: "2024-01-20T08:00:00Z".parse().unwrap(),
        message_count: 2,
        token_estimate: 0,
        job_count: 1,
        working_directory: Some("/srv/demo".into()),
        runtime: "sdk".to_owned(),
        ..Session::new("sess-a1b2c3d4".parse().unwrap(), "coder", NOW.parse().unwrap())
    }
}

fn rules() -> SessionRules {
    SessionRules {
        mode: SessionMode::Persistent,
        expires_after: Some("24h".parse().unwrap()),
        idle_timeout: None,
        auto_resume_within: None,
        max_context_tokens: None,
        context_window: None,
        snapshots: true,
        keep_agent_for: None,
    }
}

fn plan(wish: &SessionChoice, known: Option<&Session>, rules: &SessionRules) -> SessionPlan {
    let context = SessionChoiceContext {
        working_directory: "/srv/demo".into(),
        runtime: RuntimeType::Sdk,
        docker: false,
        rules,
        now: NOW.parse().unwrap(),
    };
    choose_session(wish, known, &context, "minted".parse().unwrap())
}

/// Checks the reason why an agent's session is not resumed.
#[track_caller]
fn refused(change: impl FnOnce(&mut Session), why: &str) {
    let mut session = session();
    change(&mut session);
    let plan = plan(&SessionChoice::Usual, Some(&session), &rules());
    assert_eq!(plan.start, SessionStart::Fresh { id: "minted".parse().unwrap() });
    assert_eq!(plan.reason, format!("new session: {why}"));
}

#[track_caller]
fn resumed(change: impl FnOnce(&mut Session)) {
    let mut session = session();
    change(&mut session);
    let plan = plan(&SessionChoice::Usual, Some(&session), &rules());
    assert_eq!(plan.start, SessionStart::Resume { id: "earlier".parse().unwrap() });
    assert_eq!(plan.reason, "session sess-a1b2c3d4 is resumed");
}

#[test]
fn a_session_that_fits_is_resumed() {
    resumed(|_| {});
    resumed(|session| session.status = SessionStatus::Active);
}

#[test]
fn without_a_session_a_fresh_one_begins() {
    let plan = plan(&SessionChoice::Usual, None, &rules());
    assert_eq!(plan.start, SessionStart::Fresh { id: "minted".parse().unwrap() });
    assert_eq!(plan.reason, "new session: there is none to resume");
    refused(|session| session.agent_session_id = None, "the agent never started sess-a1b2c3d4");
}

#[test]
fn a_session_expires_after_its_timeout_and_not_at_it() {
    let now: Timestamp = NOW.parse().unwrap();
    let day = Duration::from_secs(24 * 60 * 60);
    resumed(|session| session.last_active_at = now - day);
    refused(
        |session| session.last_active_at = now - day - Duration::from_millis(1),
        "sess-a1b2c3d4 was last used at 2024-01-19T08:59:59.999Z, longer than its timeout of 1d ago",
    );
    refused(|session| session.status = SessionStatus::Expired, "sess-a1b2c3d4 has expired");
    refused(|session| session.status = SessionStatus::Completed, "sess-a1b2c3d4 has ended");
}

#[test]
fn a_clock_that_went_back_does_not_expire_a_session() {
    let now: Timestamp = NOW.parse().unwrap();
    resumed(|session| session.last_active_at = now + Duration::from_secs(1_000_000));
}

#[test]
fn the_idle_timeout_counts_beside_the_expiry() {
    let rules = SessionRules { idle_timeout: Some("30m".parse().unwrap()), ..rules() };
    let plan = plan(&SessionChoice::Usual, Some(&session()), &rules);
    assert_eq!(
        plan.reason,
        "new session: sess-a1b2c3d4 was last used at 2024-01-20T08:00:00.000Z, longer than its \
         idle_timeout of 30m ago"
    );
}

#[test]
fn a_session_does_not_move_to_another_folder_runtime_or_container() {
    refused(
        |session| session.working_directory = Some("/srv/other".into()),
        "sess-a1b2c3d4 belongs to /srv/other, the agent now works in /srv/demo",
    );
    refused(
        |session| session.runtime = "cli".to_owned(),
        "sess-a1b2c3d4 was made by runtime cli, the agent now has sdk",
    );
    refused(
        |session| session.docker_enabled = true,
        "sess-a1b2c3d4 was made in a container, the agent now runs without",
    );
}

#[test]
fn a_session_does_not_move_into_a_container() {
    let (session, rules) = (session(), rules());
    let context = SessionChoiceContext {
        working_directory: "/srv/demo".into(),
        runtime: RuntimeType::Sdk,
        docker: true,
        rules: &rules,
        now: NOW.parse().unwrap(),
    };
    let plan =
        choose_session(&SessionChoice::Usual, Some(&session), &context, "minted".parse().unwrap());
    assert_eq!(plan.start, SessionStart::Fresh { id: "minted".parse().unwrap() });
    assert_eq!(
        plan.reason,
        "new session: sess-a1b2c3d4 was made without a container, the agent now runs in one"
    );
}

#[test]
fn what_an_imported_session_does_not_say_is_not_held_against_it() {
    resumed(|session| session.working_directory = None);
    resumed(|session| session.runtime = String::new());
}

#[test]
fn each_job_starts_fresh_where_the_agent_keeps_no_context() {
    let rules = SessionRules { mode: SessionMode::FreshPerJob, expires_after: None, ..rules() };
    let plan = plan(&SessionChoice::Usual, Some(&session()), &rules);
    assert_eq!(plan.start, SessionStart::Fresh { id: "minted".parse().unwrap() });
    assert_eq!(plan.reason, "new session: each job of this agent has its own");
}

#[test]
fn what_a_caller_asks_for_is_trusted_whatever_the_rules_say() {
    let rules = SessionRules { mode: SessionMode::FreshPerJob, expires_after: None, ..rules() };
    let at = uuid::uuid!("de03ca1e-3bc8-43f1-b418-f7403063818f");
    let source: AgentSessionId = "theirs".parse().unwrap();
    let given = plan(&SessionChoice::Given { id: source.clone() }, None, &rules);
    assert_eq!(given.start, SessionStart::Resume { id: source.clone() });
    assert_eq!(given.reason, "session theirs is resumed, as requested");
    let known = plan(&SessionChoice::Given { id: source.clone() }, Some(&session()), &rules);
    assert_eq!(known.start, SessionStart::Resume { id: source.clone() });
    assert_eq!(known.reason, "session sess-a1b2c3d4 is resumed, as requested");
    let fork = plan(&SessionChoice::Fork { source: source.clone(), at: Some(at) }, None, &rules);
    let id = "minted".parse().unwrap();
    assert_eq!(fork.start, SessionStart::Fork { source, id, at: Some(at) });
    assert_eq!(
        fork.reason,
        "new session with the history of theirs up to de03ca1e-3bc8-43f1-b418-f7403063818f, as requested"
    );
    let fresh = plan(&SessionChoice::Fresh, None, &rules);
    assert_eq!(fresh.start, SessionStart::Fresh { id: "minted".parse().unwrap() });
    assert_eq!(fresh.reason, "new session, as requested");
}
