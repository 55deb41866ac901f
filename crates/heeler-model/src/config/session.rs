//! How an agent keeps context between jobs.
//!
//! [`SessionKeys`] is what is written; [`SessionRules`] is what it means. The same `timeout` is a
//! job's time limit when each job starts fresh, and the session's expiry otherwise.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use super::duration::ConfigDuration;
use super::shape::section;
use super::yaml::{YamlKind, YamlNode};
use crate::SessionMode;

section! {
    /// How the agent keeps its conversation between jobs.
    pub(crate) struct SessionKeys ("session") {
        /// How context is kept: `fresh_per_job` starts each job with an empty conversation,
        /// `persistent` continues one conversation, `per_channel` keeps one for each chat channel.
        mode: SessionMode = "fresh_per_job",
        /// With `mode: fresh_per_job` the time limit of a job (the agent's own `timeout` wins);
        /// otherwise how long after its last use a session is still resumed (24h if not set).
        timeout: Option<ConfigDuration>,
        /// How long a session may lie idle between two jobs before a new one is started.
        idle_timeout: Option<ConfigDuration>,
        /// Whether a job that was cut off by a crash or restart goes on by itself.
        auto_resume: bool = "false",
        /// How long after the interruption a job may still go on by itself.
        resume_timeout: ConfigDuration = "1h",
        /// The most turns of one job; the agent's own `max_turns` wins.
        max_turns: Option<NonZeroU32>,
        /// The model for this session; the agent's own `model` wins.
        model: Option<String>,
        /// When the conversation has grown beyond this many tokens, the next job goes on in a new session
        /// with a summary, which the agent is asked for, and the last messages.
        max_context_tokens: Option<NonZeroU32>,
        /// How many of the last messages are kept in full when the conversation is summarised.
        context_window: Option<NonZeroU32>,
        /// Whether the files of the working directory are recorded before the first turn and after
        /// each, where it is in a git repository: `session fork --workspace` and `session diff` need
        /// that.
        snapshots: bool = "true",
    }
}

/// How long a session is resumed after its last use, unless `session.timeout` says otherwise.
const EXPIRY_DEFAULT: &str = "24h";

/// How context is kept between jobs, checked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionRules {
    /// How context is kept.
    pub mode: SessionMode,
    /// How long after its last use a session is resumed; `None` when each job starts fresh.
    pub expires_after: Option<ConfigDuration>,
    /// How long a session may lie idle between jobs.
    pub idle_timeout: Option<ConfigDuration>,
    /// Within what time an interrupted job goes on by itself; `None` if it does not.
    pub auto_resume_within: Option<ConfigDuration>,
    /// Summarise beyond this many tokens.
    pub max_context_tokens: Option<NonZeroU32>,
    /// Keep this many messages in full when summarising.
    pub context_window: Option<NonZeroU32>,
    /// Record the files of the working directory after each turn.
    pub snapshots: bool,
}

impl SessionKeys {
    /// Returns what the keys mean under a mode: their own, or the one a schedule asks for.
    pub(crate) fn to_rules(&self, mode: SessionMode) -> SessionRules {
        let day = || EXPIRY_DEFAULT.parse().expect("a day is within the limits of a period");
        SessionRules {
            mode,
            expires_after: match mode {
                SessionMode::FreshPerJob => None,
                SessionMode::Persistent | SessionMode::PerChannel => {
                    Some(self.timeout.unwrap_or_else(day))
                }
            },
            idle_timeout: self.idle_timeout,
            auto_resume_within: self.auto_resume.then_some(self.resume_timeout),
            max_context_tokens: self.max_context_tokens,
            context_window: self.context_window,
            snapshots: self.snapshots,
        }
    }

    /// Returns the job's time limit that the session sets, if it does.
    pub(crate) fn job_timeout(&self, mode: SessionMode) -> Option<ConfigDuration> {
        self.timeout.filter(|_| mode == SessionMode::FreshPerJob)
    }
}

/// Puts a schedule's session over the agent's. A `timeout` is not inherited across a change of
/// mode that would change its meaning from expiry to time limit or back.
pub(crate) fn inherit_session(agent: Option<&YamlNode>, schedule: YamlNode) -> YamlNode {
    let Some(agent) = agent else { return schedule };
    let fresh = |node: &YamlNode| {
        let mode = node.get("mode").map(|mode| &mode.kind);
        !matches!(mode, Some(YamlKind::Scalar(word)) if word.text != SessionMode::FreshPerJob.as_str())
    };
    let mut base = agent.clone();
    if schedule.get("mode").is_some()
        && fresh(agent) != fresh(&schedule)
        && let YamlKind::Map(entries) = &mut base.kind
    {
        entries.retain(|(key, _)| key.text != "timeout");
    }
    super::loader::merge_trees(base, schedule)
}
