//! Sessions: conversations of agents that jobs continue, and their life cycle.
//!
//! Start at [`Session`].

use camino::Utf8PathBuf;
use heeler_config::words;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{AgentSessionId, ApprovalMode, NativePrefixHash, SessionId, SessionMode};

words! {
    /// Position of a session in its life cycle.
    pub enum SessionStatus ("session status") {
        /// Created but not used yet.
        Created = "created",
        /// A run is using it.
        Active = "active",
        /// Idle and ready to resume.
        Paused = "paused",
        /// Ended, and no longer chosen by rules.
        Completed = "completed",
        /// Not used for too long.
        Expired = "expired",
    }
}

words! {
    /// Event in the life cycle of a session.
    pub enum SessionEvent ("session event") {
        /// A run starts to use it.
        Begin = "begin",
        /// The run has ended, and another may follow.
        Rest = "rest",
        /// The run has ended, and no other is expected: the job of a single-job session is done, or
        /// another session took its place.
        Finish = "finish",
        /// It was unused for as long as its rules allow.
        Expire = "expire",
    }
}

impl SessionStatus {
    /// Returns the status after an event, or `None` if the event cannot happen in this status.
    ///
    /// Any session that is not in use can be resumed by naming it: an expired or completed session
    /// is merely not chosen by the rules.
    pub fn after(self, event: SessionEvent) -> Option<SessionStatus> {
        match (self, event) {
            // A session in use cannot be used twice, nor expire.
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
            // Such events come late, for example after a person has ended the session.
            _ => None,
        }
    }
}

/// History that a fork copies from its source when it starts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PendingFork {
    /// Native session ID of the source.
    pub source: AgentSessionId,
    /// Last message to copy. `None` copies all.
    pub at: Option<Uuid>,
}

/// End of a native session when Heeler last used it. If the native session now ends elsewhere, it
/// has external messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NativeSessionPosition {
    /// Length of the file.
    pub bytes: u64,
    /// Last message in the file.
    pub last: Uuid,
    /// Hash of the file. `None` if an earlier release, or a run beside other writers, left it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<NativePrefixHash>,
}

/// Record of a session. It is complete without reading the transcript.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// Heeler's ID.
    pub id: SessionId,
    /// Native session ID, once assigned. It names the transcript.
    pub agent_session_id: Option<AgentSessionId>,
    pub agent: String,
    pub mode: SessionMode,
    pub approvals: ApprovalMode,
    pub status: SessionStatus,
    /// Chat channel, for [`SessionMode::PerChannel`].
    pub channel_id: Option<String>,
    pub created_at: Timestamp,
    pub last_active_at: Timestamp,
    /// Number of user and agent messages.
    pub message_count: i64,
    /// Estimate of the context size.
    pub token_estimate: i64,
    /// Number of jobs that used the session.
    pub job_count: i64,
    /// Working directory. A session never moves.
    pub working_directory: Option<Utf8PathBuf>,
    /// Runtime that created it: `sdk`, `cli`, …
    pub runtime: String,
    /// True if it was created in a container.
    pub docker_enabled: bool,
    /// Session from which it was forked.
    pub parent: Option<SessionId>,
    /// Number of the message at the fork point.
    pub forked_at_message: Option<i64>,
    /// Set while the session is a fork that has not started.
    pub fork: Option<PendingFork>,
    /// Session that it continues because the context of that one grew too large.
    pub continues: Option<SessionId>,
    /// Worktree that belongs to this session.
    pub workspace: Option<Utf8PathBuf>,
    /// End of the native session when Heeler last used it.
    pub own: Option<NativeSessionPosition>,
    /// Path of the transcript, relative to the state directory, or absolute if it is elsewhere.
    pub log_path: Option<Utf8PathBuf>,
    /// Source system of an imported record.
    pub origin: Option<String>,
    /// Increases by one with each change.
    pub version: i64,
}

impl Session {
    /// Creates a session with default values.
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

    /// Applies an event. An event that cannot happen in the current status is ignored.
    pub fn apply_event(&mut self, event: SessionEvent) {
        // Events arrive after crashes and in any order, so an impossible one is no error.
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
