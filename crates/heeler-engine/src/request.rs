//! A job that is asked for, with everything that its run needs.

use std::fmt;
use std::num::NonZeroU32;

use camino::Utf8PathBuf;
use heeler_model::config::RuntimeType;
use heeler_model::run::{Attendance, Brief, Limits};
use heeler_model::{AgentName, AgentSessionId, Approvals, SessionMode, TriggerType};
use serde::{Deserialize, Serialize};

/// A job that is asked for.
///
/// It holds secrets, so it is never a file: it passes between processes through a pipe.
#[derive(Clone, Serialize, Deserialize)]
pub struct JobRequest {
    /// [`heeler_model::run::PROTOCOL`].
    pub protocol: u32,
    /// Who is to do it.
    pub agent: AgentName,
    /// What started it.
    pub trigger: TriggerType,
    /// The schedule that it is a run of.
    pub schedule: Option<String>,
    /// What runs the agent.
    pub runtime: RuntimeType,
    /// Where the agent works: a real path.
    pub working_directory: Utf8PathBuf,
    /// Whether its rows are also written as text.
    pub output_file: bool,
    /// The user's folder.
    pub home: Utf8PathBuf,
    /// The folder of control sockets.
    pub sockets: Utf8PathBuf,
    /// Which conversation.
    pub session: SessionWish,
    /// How context is kept.
    pub keeping: Keeping,
    /// The chat channel that it comes from.
    pub channel: Option<String>,
    /// Who approves.
    pub approvals: Approvals,
    /// The most jobs of the agent at once.
    pub max_concurrent: NonZeroU32,
    /// The most jobs of the fleet at once.
    pub fleet_max_concurrent: Option<NonZeroU32>,
    /// When the run is ended.
    pub limits: Limits,
    /// Whether somebody can answer.
    pub attendance: Attendance,
    /// Whether each row is synced before it counts.
    pub sync_each_row: bool,
    /// What the agent is told and given.
    pub brief: Brief,
}

impl fmt::Debug for JobRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobRequest({}, …)", self.agent)
    }
}

/// Which conversation a job is to continue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum SessionWish {
    /// The one that the config's rules choose.
    ByRules,
    /// A new one.
    Fresh,
    /// This one.
    Given {
        /// Its id.
        id: AgentSessionId,
    },
    /// A new one with the history of this one.
    Fork {
        /// The one that stays as it is.
        source: AgentSessionId,
    },
}

/// How context is kept between jobs: the part of the config's rules that a start needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keeping {
    /// How.
    pub mode: SessionMode,
    /// How long after its last use a session is resumed.
    pub expires_after_ms: Option<u64>,
    /// How long a session may lie idle.
    pub idle_timeout_ms: Option<u64>,
}
