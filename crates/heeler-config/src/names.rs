//! Names and words that both config files and records contain.

use crate::id_syntax::{ID_LEN_MAX, check_plain_id, check_session_id, is_minted_job_id, text_id};
use crate::words::words;

text_id! {
    /// One segment of a name: an agent within its fleet, a fleet or a schedule.
    LocalName, "a name", check_name
}

text_id! {
    /// Agent name, qualified by its fleets: `coder`, `website.coder`.
    AgentName, "an agent name", check_agent_name
}

words! {
    /// Reuse of sessions between jobs.
    pub enum SessionMode ("session mode") {
        /// Each job starts with an empty session.
        FreshPerJob = "fresh_per_job",
        /// Jobs continue one session.
        Persistent = "persistent",
        /// Each chat channel has its own session.
        PerChannel = "per_channel",
    }
}

words! {
    /// Approval of an agent's actions.
    pub enum ApprovalMode ("approvals mode") {
        /// No approval: the agent runs on its own.
        Autonomous = "autonomous",
        /// A person takes part.
        Interactive = "interactive",
        /// A person approves each action.
        Review = "review",
    }
}

fn check_name(text: &str) -> Result<(), &'static str> {
    check_plain_id(text)?;
    // Commands accept names and IDs in the same place.
    if check_session_id(text).is_ok() {
        return Err("it looks like a session id");
    }
    if is_minted_job_id(text) {
        return Err("it looks like a job id");
    }
    Ok(())
}

fn check_agent_name(text: &str) -> Result<(), &'static str> {
    if text.len() > ID_LEN_MAX {
        return Err("it is longer than 128 characters");
    }
    text.split('.').try_for_each(check_name)
}

impl AgentName {
    /// Returns the name within its fleet: `coder` for `website.coder`.
    pub fn local(&self) -> &str {
        self.0.rsplit('.').next().unwrap_or(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refusal(text: &str) -> &'static str {
        text.parse::<AgentName>().unwrap_err().reason
    }

    #[test]
    fn agents_may_not_look_like_sessions_or_jobs() {
        assert_eq!(refusal("sess-a1b2c3d4"), "it looks like a session id");
        assert_eq!(refusal("job-2024-01-19-abc123"), "it looks like a job id");
        assert_eq!(refusal("a..b"), "it is empty");
        assert_eq!("web.site.coder".parse::<AgentName>().unwrap().local(), "coder");
    }
}
