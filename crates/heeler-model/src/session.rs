//! A session: the conversation that one or more jobs continue, and its life.

use camino::Utf8PathBuf;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::words::words;
use crate::{AgentSessionId, SessionId};

words! {
    /// How context is kept between jobs.
    pub enum SessionMode ("session mode") {
        /// Each job starts with an empty conversation.
        FreshPerJob = "fresh_per_job",
        /// Jobs continue one conversation.
        Persistent = "persistent",
        /// Each chat channel has a conversation of its own.
        PerChannel = "per_channel",
    }
}

words! {
    /// Who approves what the agent does.
    pub enum ApprovalMode ("approvals mode") {
        /// Nobody: the agent runs by itself.
        Autonomous = "autonomous",
        /// A person takes part.
        Interactive = "interactive",
        /// A person approves each action.
        Review = "review",
    }
}

words! {
    /// Where a session is in its life.
    pub enum SessionStatus ("session status") {
        /// Made, not used yet.
        Created = "created",
        /// An agent is at it.
        Active = "active",
        /// At rest, ready to resume.
        Paused = "paused",
        /// Ended.
        Completed = "completed",
        /// Not used for too long.
        Expired = "expired",
    }
}

words! {
    /// What happens to a session.
    pub enum SessionEvent ("session event") {
        /// A run of a job goes to work in it.
        Begin = "begin",
        /// The run has ended, and another may go on.
        Rest = "rest",
        /// The run has ended, and nobody is expected to go on: a job that has its own session is
        /// done, or another session took its place.
        Finish = "finish",
        /// It was not used for as long as its rules say.
        Expire = "expire",
    }
}

impl SessionStatus {
    /// Returns where a session is after something happened to it; `None` if that cannot happen.
    ///
    /// Whatever is not in use can be gone on with by whoever names it: an expired or completed
    /// session is only one that no rule chooses.
    pub fn after(self, event: SessionEvent) -> Option<SessionStatus> {
        match (self, event) {
            (SessionStatus::Active, SessionEvent::Begin | SessionEvent::Expire) => None,
            (_, SessionEvent::Begin) => Some(SessionStatus::Active),
            (SessionStatus::Active | SessionStatus::Paused, SessionEvent::Rest) => {
                Some(SessionStatus::Paused)
            }
            (SessionStatus::Active | SessionStatus::Paused, SessionEvent::Finish) => {
                Some(SessionStatus::Completed)
            }
            (SessionStatus::Created | SessionStatus::Paused, SessionEvent::Expire) => {
                Some(SessionStatus::Expired)
            }
            _ => None,
        }
    }
}

/// What a fork that has not begun is to take over from its source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PendingFork {
    /// The agent's own id of the source.
    pub source: AgentSessionId,
    /// The last entry that is taken over; all of them if left out.
    pub at: Option<Uuid>,
}

/// Where the agent's own record of a session ended when we left it. If it ends elsewhere when we come
/// back, somebody else has gone on with the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NativeSessionPosition {
    /// The length of its file.
    pub bytes: u64,
    /// The last entry of the conversation in it.
    pub last: Uuid,
}

/// A session and what is known of it without reading its log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// Our id.
    pub id: SessionId,
    /// The agent's own id, once it has one; it names the event log.
    pub agent_session_id: Option<AgentSessionId>,
    /// The agent it belongs to.
    pub agent: String,
    /// How context is kept.
    pub mode: SessionMode,
    /// Who approves.
    pub approvals: ApprovalMode,
    /// Where it is.
    pub status: SessionStatus,
    /// The chat channel, for [`SessionMode::PerChannel`].
    pub channel_id: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last used.
    pub last_active_at: Timestamp,
    /// User and assistant messages so far.
    pub message_count: i64,
    /// A rough size of its context.
    pub token_estimate: i64,
    /// How many jobs ran in it.
    pub job_count: i64,
    /// Where its agent works; a session does not move.
    pub working_directory: Option<Utf8PathBuf>,
    /// The runtime it was made with: `sdk`, `cli`, …
    pub runtime: String,
    /// Whether it was made in a container.
    pub docker_enabled: bool,
    /// The session it was forked from.
    pub parent: Option<SessionId>,
    /// The message it was forked at.
    pub forked_at_message: Option<i64>,
    /// What it takes over when it begins, if it is a fork that has not begun.
    pub fork: Option<PendingFork>,
    /// The session that it goes on from, because that one's context had grown too large.
    pub continues: Option<SessionId>,
    /// The worktree of ours that it has to itself.
    pub workspace: Option<Utf8PathBuf>,
    /// Where the agent's own record of it ended when we left it.
    pub own: Option<NativeSessionPosition>,
    /// Its event log: relative to the state directory, or absolute when it lives elsewhere.
    pub log_path: Option<Utf8PathBuf>,
    /// Where the record came from, when it was imported.
    pub origin: Option<String>,
    /// Grows by one with each change.
    pub version: i64,
}

impl Session {
    /// Returns a session of which nothing is known but whose it is.
    pub fn new(id: SessionId, agent: &str, at: Timestamp) -> Session {
        Session {
            id,
            agent_session_id: None,
            agent: agent.to_owned(),
            mode: SessionMode::FreshPerJob,
            approvals: ApprovalMode::Autonomous,
            status: SessionStatus::Created,
            channel_id: None,
            created_at: at,
            last_active_at: at,
            message_count: 0,
            token_estimate: 0,
            job_count: 0,
            working_directory: None,
            runtime: String::new(),
            docker_enabled: false,
            parent: None,
            forked_at_message: None,
            fork: None,
            continues: None,
            workspace: None,
            own: None,
            log_path: None,
            origin: None,
            version: 1,
        }
    }

    /// Lets something happen to it. What cannot happen in its state changes nothing.
    pub fn apply_event(&mut self, event: SessionEvent) {
        self.status = self.status.after(event).unwrap_or(self.status);
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn a_session_lives_by_this_table() {
        let mut table = String::from("state     |");
        SessionEvent::ALL.iter().for_each(|event| table += &format!(" {event:<10}|"));
        for state in SessionStatus::ALL {
            table += &format!("\n{state:<10}|");
            for event in SessionEvent::ALL {
                let after = state.after(*event).map_or("", SessionStatus::as_str);
                table += &format!(" {after:<10}|");
            }
        }
        expect![[r#"
            state     | begin     | rest      | finish    | expire    |
            created   | active    |           |           | expired   |
            active    |           | paused    | completed |           |
            paused    | active    | paused    | completed | expired   |
            completed | active    |           |           |           |
            expired   | active    |           |           |           |"#]]
        .assert_eq(&table);
    }
}
