//! Session settings: how an agent's conversation continues between jobs.
//!
//! [`SessionKeys`] is the written form; [`SessionRules`] is the checked form. `timeout` is the time
//! limit of a job if each job starts a new session, and the expiry of the session otherwise.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::SessionMode;
use crate::duration::ConfigDuration;
use crate::shape::section;
use crate::yaml::{YamlKind, YamlNode, merge_trees};

section! {
    /// Session settings: how the agent's conversation continues between jobs.
    pub(crate) struct SessionKeys ("session") {
        /// Session mode: `fresh_per_job` starts each job with an empty conversation, `persistent`
        /// continues one conversation, `per_channel` keeps one conversation for each chat channel.
        mode: SessionMode = "fresh_per_job",
        /// With `mode: fresh_per_job`, time limit of a job; the agent's own `timeout` takes
        /// precedence. In the other modes, a session that was not used for longer than this is
        /// not resumed; defaults to `24h`.
        timeout: Option<ConfigDuration>,
        /// Start a new session if no job has used the current one for longer than this.
        idle_timeout: Option<ConfigDuration>,
        /// Continue a job automatically after a crash or restart interrupted it.
        auto_resume: bool = "false",
        /// Longest time after an interruption at which a job is still continued automatically.
        resume_timeout: ConfigDuration = "1h",
        /// Maximum number of turns in one job; the agent's own `max_turns` takes precedence.
        max_turns: Option<NonZeroU32>,
        /// Model of this session; the agent's own `model` takes precedence.
        model: Option<String>,
        /// If the conversation exceeds this many tokens, the next job starts a new session with a
        /// summary, which the agent writes, and the last messages.
        max_context_tokens: Option<NonZeroU32>,
        /// Number of most recent messages that are kept in full when the conversation is
        /// summarised.
        context_window: Option<NonZeroU32>,
        /// Take a snapshot of the working directory before the first turn and after each turn, if
        /// it is in a git repository. `session fork --workspace` and `session diff` need the
        /// snapshots.
        snapshots: bool = "true",
        /// Keep Claude's process between the turns of a conversation in `heeler chat`
        /// (`runtime: sdk`), so that the next turn need not start it. It ends with the conversation.
        keep_agent: bool = "true",
        /// Longest time without a turn after which a kept process ends.
        keep_agent_for: ConfigDuration = "5m",
    }
}

/// Time after its last use until which a session is resumed, if `session.timeout` is not set.
const EXPIRY_DEFAULT: &str = "24h";

/// Checked session settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionRules {
    pub mode: SessionMode,
    /// Time after its last use until which a session is resumed; `None` if each job starts a new
    /// session.
    pub expires_after: Option<ConfigDuration>,
    /// Longest idle time of a session between jobs.
    pub idle_timeout: Option<ConfigDuration>,
    /// Longest time after an interruption at which a job is continued automatically; `None` turns
    /// this off.
    pub auto_resume_within: Option<ConfigDuration>,
    /// Number of tokens beyond which the conversation is summarised.
    pub max_context_tokens: Option<NonZeroU32>,
    /// Number of messages kept in full when summarising.
    pub context_window: Option<NonZeroU32>,
    /// Take a snapshot of the working directory after each turn.
    pub snapshots: bool,
    /// Longest time for which the agent's process is kept between two turns of a conversation;
    /// `None` ends it with each turn.
    #[serde(default)]
    pub keep_agent_for: Option<ConfigDuration>,
}

impl SessionKeys {
    /// Returns the rules under a mode: the mode in the keys, or the one that a schedule requests.
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
            // The time limit alone must not enable it.
            auto_resume_within: self.auto_resume.then_some(self.resume_timeout),
            max_context_tokens: self.max_context_tokens,
            context_window: self.context_window,
            snapshots: self.snapshots,
            keep_agent_for: self.keep_agent.then_some(self.keep_agent_for),
        }
    }

    /// Returns the time limit of a job if the session settings define it.
    pub(crate) fn job_timeout(&self, mode: SessionMode) -> Option<ConfigDuration> {
        // In the other modes the same key is the expiry of the session.
        self.timeout.filter(|_| mode == SessionMode::FreshPerJob)
    }
}

/// Merges a schedule's session over the agent's. `timeout` is not inherited across a change of mode
/// that would change its meaning between expiry and time limit.
pub(crate) fn inherit_session(agent: Option<&YamlNode>, schedule: YamlNode) -> YamlNode {
    let Some(agent) = agent else { return schedule };
    let fresh = |node: &YamlNode| {
        let mode = node.get("mode").map(|mode| &mode.kind);
        // A missing mode is the default, which is a fresh session.
        !matches!(mode, Some(YamlKind::Scalar(word)) if word.text != SessionMode::FreshPerJob.as_str())
    };
    let mut base = agent.clone();
    if schedule.get("mode").is_some()
        // The number would otherwise change its meaning without anybody having written that.
        && fresh(agent) != fresh(&schedule)
        && let YamlKind::Map(entries) = &mut base.kind
    {
        entries.retain(|(key, _)| key.text != "timeout");
    }
    merge_trees(base, schedule)
}
