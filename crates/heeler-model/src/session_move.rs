//! The move of a session's files to another host of the fleet.
//!
//! Pure functions of what is on record. Until a move is done, the session is on its source: every
//! other outcome leaves it there. Only the leader decides. Start at [`check_move`] and
//! [`settle_move`].

use heeler_config::{HostChoice, words};

use crate::placement::HostCandidate;

words! {
    /// Progress of a session's move.
    pub enum SessionMoveState ("state of a move") {
        /// The source makes the bundle.
        Packing = "packing",
        /// The bundle is in the database; the target places its files.
        Placing = "placing",
        /// The target has the files; the leader has not recorded that.
        Placed = "placed",
        /// The session is on the target.
        Done = "done",
        /// It was given up: the session is on the source.
        Ended = "ended",
    }
}

impl SessionMoveState {
    /// Returns true if the move goes on: no run uses the session.
    pub fn is_open(self) -> bool {
        !matches!(self, SessionMoveState::Done | SessionMoveState::Ended)
    }
}

/// Reason that the present state of a session does not allow a move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionMoveObstacle {
    /// A job uses it, or has no recorded result.
    AtWork { job: String },
    /// It works in a worktree or directory of its own, which is on its host.
    OwnDirectory,
    /// It has a transcript outside of the state directory.
    Conversation,
    /// It is a fork that has not started, so it has no files of its own.
    UnstartedFork,
}

/// Facts that decide about a move.
#[derive(Debug, Clone, Copy)]
pub struct SessionMoveFacts<'f> {
    pub session: &'f str,
    pub agent: &'f str,
    /// The agent's setting `host`; `None` stands for the host that leads.
    pub choice: Option<&'f HostChoice>,
    /// The host that has the files; `None` if no run of a host on record has used the session.
    pub source: Option<&'f str>,
    pub target: &'f str,
    pub obstacle: Option<&'f SessionMoveObstacle>,
    /// Target of the session's open move.
    pub open_target: Option<&'f str>,
    pub hosts: &'f [HostCandidate],
}

/// Answer to a request to move a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionMoveDecision {
    Begin,
    /// The same move is under way.
    UnderWay,
}

/// Kind of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveRefusalKind {
    /// The target is not on record.
    UnknownHost,
    /// It may pass by itself.
    Busy,
    NotAllowed,
}

/// Reason that a session is not moved, and what a person can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionMoveRefusal {
    pub kind: MoveRefusalKind,
    pub reason: String,
    pub cure: String,
}

fn refuse<T>(
    kind: MoveRefusalKind,
    reason: String,
    cure: impl Into<String>,
) -> Result<T, SessionMoveRefusal> {
    Err(SessionMoveRefusal { kind, reason, cure: cure.into() })
}

/// Decides if a session may be moved.
pub fn check_move(facts: &SessionMoveFacts<'_>) -> Result<SessionMoveDecision, SessionMoveRefusal> {
    let SessionMoveFacts { session, source, target, hosts, .. } = *facts;
    let Some(to) = hosts.iter().find(|host| host.name == target) else {
        let reason = format!("there is no host `{target}`");
        return refuse(MoveRefusalKind::UnknownHost, reason, "heeler host list");
    };
    if let Some(open) = facts.open_target {
        if open == target {
            return Ok(SessionMoveDecision::UnderWay);
        }
        let reason = format!("session {session} is being moved to host `{open}`");
        let cure = format!("heeler session move {session} --cancel");
        return refuse(MoveRefusalKind::Busy, reason, cure);
    }
    let Some(from) = source.and_then(|source| hosts.iter().find(|host| host.name == source)) else {
        let reason = format!("no run of a host on record has used session {session}");
        return refuse(MoveRefusalKind::NotAllowed, reason, "its next run chooses its host");
    };
    if from.name == to.name {
        let reason = format!("session {session} is on host `{target}` already");
        return refuse(MoveRefusalKind::NotAllowed, reason, "heeler host list");
    }
    check_obstacle(facts)?;
    check_hosts(from, to)?;
    check_choice(facts, to)?;
    Ok(SessionMoveDecision::Begin)
}

fn check_obstacle(facts: &SessionMoveFacts<'_>) -> Result<(), SessionMoveRefusal> {
    let session = facts.session;
    let Some(obstacle) = facts.obstacle else { return Ok(()) };
    let not_allowed = MoveRefusalKind::NotAllowed;
    match obstacle {
        SessionMoveObstacle::AtWork { job } => {
            let reason = format!("job {job} uses session {session}");
            let cure = format!("move it when the job has ended, or heeler jobs cancel {job}");
            refuse(MoveRefusalKind::Busy, reason, cure)
        }
        SessionMoveObstacle::OwnDirectory => {
            let reason = format!(
                "session {session} works in a directory of its own, whose files are on its host"
            );
            refuse(not_allowed, reason, "fork it, and move the fork after its first run")
        }
        SessionMoveObstacle::Conversation => {
            let reason = format!("session {session} is a conversation of `heeler chat`");
            refuse(not_allowed, reason, "heeler session export, and import it on the other machine")
        }
        SessionMoveObstacle::UnstartedFork => {
            let reason = format!("session {session} is a fork that has not started");
            refuse(not_allowed, reason, "move it after its first run")
        }
    }
}

fn check_hosts(from: &HostCandidate, to: &HostCandidate) -> Result<(), SessionMoveRefusal> {
    let (source, target) = (&from.name, &to.name);
    if !(from.is_alive || from.is_leader) {
        let reason = format!("host `{source}`, which has the files of the session, is away");
        let cure =
            format!("start its daemon: the files are nowhere else (heeler host show {source})");
        return refuse(MoveRefusalKind::Busy, reason, cure);
    }
    if to.is_drained {
        let cure = format!("heeler host drain {target} --undo");
        return refuse(MoveRefusalKind::NotAllowed, format!("host `{target}` is drained"), cure);
    }
    if !(to.is_alive || to.is_leader) {
        let cure = format!("start its daemon (heeler host show {target})");
        return refuse(MoveRefusalKind::Busy, format!("host `{target}` is away"), cure);
    }
    Ok(())
}

/// Refuses a target on which the agent's next run would not be placed.
fn check_choice(
    facts: &SessionMoveFacts<'_>,
    to: &HostCandidate,
) -> Result<(), SessionMoveRefusal> {
    let (agent, target) = (facts.agent, facts.target);
    let not_allowed = MoveRefusalKind::NotAllowed;
    match facts.choice {
        None if to.is_leader => Ok(()),
        None => {
            let reason = format!("{agent} has no `host`, so the host that leads executes its jobs");
            let cure = format!("set `host: {target}` or `host: {{labels: []}}` in the config");
            refuse(not_allowed, reason, cure)
        }
        Some(HostChoice::Named(name)) if name.as_str() == target => Ok(()),
        Some(HostChoice::Named(name)) => {
            let reason = format!("{agent} works on host `{name}` only");
            refuse(not_allowed, reason, format!("set `host: {target}` in the config"))
        }
        Some(HostChoice::Labels { labels, .. }) => {
            match labels.iter().find(|label| !to.labels.contains(label)) {
                None => Ok(()),
                Some(label) => {
                    let reason =
                        format!("host `{target}` lacks the label {label}, which {agent} needs");
                    refuse(not_allowed, reason, format!("heeler start --label {label} on {target}"))
                }
            }
        }
    }
}

/// Facts that decide the end of an open move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenMoveFacts<'f> {
    pub state: SessionMoveState,
    pub source: &'f str,
    pub target: &'f str,
    /// True if its time limit is over.
    pub is_overdue: bool,
    /// Last run of the session when the move began.
    pub after_run: &'f str,
    /// Last run of the session now; `None` if the session is not on record.
    pub last_run: Option<&'f str>,
}

/// Outcome of a look at an open move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MoveSettlement {
    /// A host is at work.
    Waits,
    /// The session is on the target from now on.
    Done,
    /// The session stays on the source, for this reason.
    Ended(String),
}

/// Decides the next step of an open move.
pub fn settle_move(facts: &OpenMoveFacts<'_>) -> MoveSettlement {
    let Some(last_run) = facts.last_run else {
        return MoveSettlement::Ended("the session was deleted".to_owned());
    };
    // A leader of an earlier release does not know that the session must wait.
    if last_run != facts.after_run {
        return MoveSettlement::Ended("a run used the session meanwhile".to_owned());
    }
    let waits_for = match facts.state {
        // Late, but complete.
        SessionMoveState::Placed => return MoveSettlement::Done,
        SessionMoveState::Packing => facts.source,
        SessionMoveState::Placing => facts.target,
        SessionMoveState::Done | SessionMoveState::Ended => return MoveSettlement::Waits,
    };
    match facts.is_overdue {
        true => MoveSettlement::Ended(format!("host `{waits_for}` did not do its part in time")),
        false => MoveSettlement::Waits,
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use heeler_config::PlacementOrder;

    use super::*;

    fn host(text: &str) -> HostCandidate {
        // NAME [leader|away|drained|full|LABEL]…
        let mut words = text.split(' ');
        let mut host = HostCandidate {
            name: words.next().unwrap().to_owned(),
            is_alive: true,
            is_drained: false,
            is_leader: false,
            labels: Vec::new(),
            runs: 1,
            max_concurrent: None,
        };
        for word in words {
            match word {
                "leader" => host.is_leader = true,
                "away" => host.is_alive = false,
                "drained" => host.is_drained = true,
                "full" => host.max_concurrent = NonZeroU32::new(1),
                label => host.labels.push(label.parse().unwrap()),
            }
        }
        host
    }

    fn labels(text: &str) -> HostChoice {
        let labels = text.split_whitespace().map(|label| label.parse().unwrap()).collect();
        HostChoice::Labels { labels, order: PlacementOrder::Spread }
    }

    struct MoveCase<'c> {
        choice: Option<HostChoice>,
        source: Option<&'c str>,
        obstacle: Option<SessionMoveObstacle>,
        open_target: Option<&'c str>,
        hosts: &'c [&'c str],
    }

    const CASE: MoveCase<'static> = MoveCase {
        choice: None,
        source: Some("x"),
        obstacle: None,
        open_target: None,
        hosts: &["x", "y leader", "z"],
    };

    /// Moves to `y`.
    #[track_caller]
    fn check(case: &MoveCase<'_>, expected: &str) {
        let hosts: Vec<HostCandidate> = case.hosts.iter().map(|text| host(text)).collect();
        let decision = check_move(&SessionMoveFacts {
            session: "s",
            agent: "a",
            choice: case.choice.as_ref(),
            source: case.source,
            target: "y",
            obstacle: case.obstacle.as_ref(),
            open_target: case.open_target,
            hosts: &hosts,
        });
        let text = match decision {
            Ok(decision) => format!("{decision:?}"),
            Err(refused) => format!("{:?}: {}; {}", refused.kind, refused.reason, refused.cure),
        };
        assert_eq!(text, expected);
    }

    #[test]
    fn a_session_moves_to_a_host_on_which_its_agent_works() {
        check(&CASE, "Begin");
        check(&MoveCase { choice: Some(labels("")), hosts: &["x", "y"], ..CASE }, "Begin");
        check(&MoveCase { choice: Some(labels("gpu")), hosts: &["x", "y gpu"], ..CASE }, "Begin");
        let named = Some(HostChoice::Named("y".parse().unwrap()));
        check(&MoveCase { choice: named, hosts: &["x leader", "y"], ..CASE }, "Begin");
        // A full host has room later, and the files of a drained host can be fetched.
        check(
            &MoveCase { choice: Some(labels("")), hosts: &["x drained", "y full"], ..CASE },
            "Begin",
        );
        // The host that decides lives, even if its sign of life is late.
        check(&MoveCase { hosts: &["x", "y leader away"], ..CASE }, "Begin");
    }

    #[test]
    fn a_target_without_a_use_for_the_session_is_refused_with_the_cure() {
        check(
            &MoveCase { hosts: &["x leader"], ..CASE },
            "UnknownHost: there is no host `y`; heeler host list",
        );
        check(
            &MoveCase { source: Some("y"), ..CASE },
            "NotAllowed: session s is on host `y` already; heeler host list",
        );
        for source in [None, Some("removed")] {
            check(
                &MoveCase { source, ..CASE },
                "NotAllowed: no run of a host on record has used session s; its next run chooses \
                 its host",
            );
        }
        check(
            &MoveCase { choice: Some(labels("")), hosts: &["x", "y away"], ..CASE },
            "Busy: host `y` is away; start its daemon (heeler host show y)",
        );
        check(
            &MoveCase { hosts: &["x", "y leader drained"], ..CASE },
            "NotAllowed: host `y` is drained; heeler host drain y --undo",
        );
        check(
            &MoveCase { hosts: &["x leader", "y"], ..CASE },
            "NotAllowed: a has no `host`, so the host that leads executes its jobs; set `host: y` or \
             `host: {labels: []}` in the config",
        );
        check(
            &MoveCase { choice: Some(HostChoice::Named("x".parse().unwrap())), ..CASE },
            "NotAllowed: a works on host `x` only; set `host: y` in the config",
        );
        check(
            &MoveCase { choice: Some(labels("gpu os=linux")), hosts: &["x", "y gpu"], ..CASE },
            "NotAllowed: host `y` lacks the label os=linux, which a needs; heeler start --label \
             os=linux on y",
        );
    }

    #[test]
    fn a_session_that_cannot_leave_its_host_is_refused_with_the_cure() {
        check(
            &MoveCase { hosts: &["x away", "y leader"], ..CASE },
            "Busy: host `x`, which has the files of the session, is away; start its daemon: the \
             files are nowhere else (heeler host show x)",
        );
        let at_work = SessionMoveObstacle::AtWork { job: "job-1".to_owned() };
        check(
            &MoveCase { obstacle: Some(at_work), ..CASE },
            "Busy: job job-1 uses session s; move it when the job has ended, or heeler jobs cancel \
             job-1",
        );
        check(
            &MoveCase { obstacle: Some(SessionMoveObstacle::OwnDirectory), ..CASE },
            "NotAllowed: session s works in a directory of its own, whose files are on its host; \
             fork it, and move the fork after its first run",
        );
        check(
            &MoveCase { obstacle: Some(SessionMoveObstacle::Conversation), ..CASE },
            "NotAllowed: session s is a conversation of `heeler chat`; heeler session export, and \
             import it on the other machine",
        );
        check(
            &MoveCase { obstacle: Some(SessionMoveObstacle::UnstartedFork), ..CASE },
            "NotAllowed: session s is a fork that has not started; move it after its first run",
        );
    }

    #[test]
    fn a_second_request_finds_the_first_move() {
        check(&MoveCase { open_target: Some("y"), ..CASE }, "UnderWay");
        check(
            &MoveCase { open_target: Some("z"), ..CASE },
            "Busy: session s is being moved to host `z`; heeler session move s --cancel",
        );
    }

    #[test]
    fn a_move_ends_by_this_table() {
        use SessionMoveState::{Packing, Placed, Placing};
        let settle = |state, is_overdue, last_run| {
            let (source, target) = ("x", "y");
            let facts =
                OpenMoveFacts { state, source, target, is_overdue, after_run: "run-1", last_run };
            settle_move(&facts)
        };
        let ended = |reason: &str| MoveSettlement::Ended(reason.to_owned());
        for state in [Packing, Placing] {
            assert_eq!(settle(state, false, Some("run-1")), MoveSettlement::Waits);
        }
        let late = |host: &str| ended(&format!("host `{host}` did not do its part in time"));
        assert_eq!(settle(Packing, true, Some("run-1")), late("x"));
        assert_eq!(settle(Placing, true, Some("run-1")), late("y"));
        for is_overdue in [false, true] {
            assert_eq!(settle(Placed, is_overdue, Some("run-1")), MoveSettlement::Done);
            for state in [Packing, Placing, Placed] {
                let used = ended("a run used the session meanwhile");
                assert_eq!(settle(state, is_overdue, Some("run-2")), used);
                assert_eq!(settle(state, is_overdue, None), ended("the session was deleted"));
            }
        }
    }

    #[test]
    fn only_moves_without_an_end_are_open() {
        let open: Vec<&str> = SessionMoveState::ALL
            .iter()
            .filter(|state| state.is_open())
            .map(|state| state.as_str())
            .collect();
        assert_eq!(open, ["packing", "placing", "placed"]);
    }
}
