//! A job that is asked for, with everything that its run needs.

use std::fmt;
use std::num::NonZeroU32;

use camino::Utf8PathBuf;
use heeler_model::config::{RuntimeType, SessionRules};
use heeler_model::run::{AgentLaunchSpec, QuestionPolicy, RunLimits};
use heeler_model::session_choice::SessionChoice;
use heeler_model::{AgentName, ApprovalMode, TriggerType};
use serde::{Deserialize, Serialize};

/// A job that is asked for.
///
/// It holds secrets, so it is never a file: it passes between processes through a pipe.
#[derive(Clone, Serialize, Deserialize)]
pub struct ResolvedJobRequest {
    /// Who is to do it.
    pub agent: AgentName,
    /// The agents that the config has. A session of any other name is nobody's.
    pub fleet_agents: Vec<AgentName>,
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
    pub session: SessionChoice,
    /// How context is kept.
    pub rules: SessionRules,
    /// The chat channel that it comes from.
    pub channel: Option<String>,
    /// What is told of the session beside why it was chosen.
    pub note: Option<String>,
    /// Whether to go on although somebody else has gone on with the session meanwhile.
    pub take_in: bool,
    /// Who approves.
    pub approvals: ApprovalMode,
    /// The most jobs of the agent at once.
    pub max_concurrent: NonZeroU32,
    /// The most jobs of the fleet at once.
    pub fleet_max_concurrent: Option<NonZeroU32>,
    /// When the run is ended.
    pub limits: RunLimits,
    /// Whether somebody can answer.
    pub attendance: QuestionPolicy,
    /// Whether each row is synced before it counts.
    pub sync_each_row: bool,
    /// Whether what the agent says at last is kept with the job.
    #[serde(default)]
    pub keep_output: bool,
    /// What the agent is told and given.
    pub brief: AgentLaunchSpec,
}

impl fmt::Debug for ResolvedJobRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobRequest({}, …)", self.agent)
    }
}
