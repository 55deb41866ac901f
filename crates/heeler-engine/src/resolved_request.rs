//! A job request with everything that its run needs.
//!
//! Start at [`ResolvedJobRequest`].

use std::fmt;
use std::num::NonZeroU32;

use camino::Utf8PathBuf;
use heeler_config::{GithubPermission, workflow::SkillFile};
use heeler_config::{HostChoice, RuntimeType, SessionRules};
use heeler_model::placement::RunPlacement;
use heeler_model::run::{AgentLaunchSpec, KeptAgentLimits, QuestionPolicy, RunLimits};
use heeler_model::session_choice::SessionChoice;
use heeler_model::{AgentName, ApprovalMode, JobId, TriggerType};
use serde::{Deserialize, Serialize};

/// A resolved job request.
///
/// It holds secrets, so it is never written to a file: it passes between processes through a pipe.
#[derive(Clone, Serialize, Deserialize)]
pub struct ResolvedJobRequest {
    pub agent: AgentName,
    /// Agents of the config. A session of any other agent has no owner.
    pub fleet_agents: Vec<AgentName>,
    pub trigger: TriggerType,
    /// Schedule that created the job.
    pub schedule: Option<String>,
    pub runtime: RuntimeType,
    /// Canonical path of the working directory.
    pub working_directory: Utf8PathBuf,
    /// The agent's choice of a host, in a fleet with several hosts.
    #[serde(default)]
    pub host_choice: Option<HostChoice>,
    /// True if the host that executes the job resolves the request again for itself. This one has
    /// neither an environment nor a working directory that was looked at.
    #[serde(default)]
    pub is_assigned: bool,
    /// Host of an assigned run, and the reason for it.
    #[serde(skip)]
    pub host: Option<RunPlacement>,
    /// True if rows are also written as text.
    pub output_file: bool,
    /// The user's home directory.
    pub home: Utf8PathBuf,
    /// Directory for control sockets.
    pub sockets: Utf8PathBuf,
    pub session: SessionChoice,
    /// True for a command of a workflow, which has no session.
    #[serde(default)]
    pub is_phase_command: bool,
    /// Rules for continuing sessions.
    pub rules: SessionRules,
    /// Job at whose end, or within which, the session that is forked was cut.
    #[serde(default)]
    pub forked_from: Option<JobId>,
    /// Chat channel of the request.
    pub channel: Option<String>,
    /// True if the prompt has the transcript of a voice message, which the job's record lacks.
    #[serde(default)]
    pub has_transcript: bool,
    /// Note about the session for people, besides the reason for its choice.
    pub note: Option<String>,
    /// True to resume even if the session was continued outside Heeler, and import those messages.
    pub take_in: bool,
    pub approvals: ApprovalMode,
    /// The agent's limit on concurrent jobs.
    pub max_concurrent: NonZeroU32,
    /// The fleet's limit on concurrent jobs.
    pub fleet_max_concurrent: Option<NonZeroU32>,
    pub limits: RunLimits,
    /// Policy for questions: whether a person can answer.
    pub attendance: QuestionPolicy,
    /// True if each row is synced to disk before it counts.
    pub sync_each_row: bool,
    /// True if the agent's final answer is stored with the job.
    #[serde(default)]
    pub keep_output: bool,
    /// Limits of the agent's process if it stays for the next turn of the conversation.
    #[serde(default)]
    pub keep_agent: Option<KeptAgentLimits>,
    /// Files of skills, which the agent may read.
    #[serde(default)]
    pub skill_files: Vec<SkillFile>,
    /// Permissions of the agent's token for GitHub; empty for none. The token is created when the run
    /// starts.
    #[serde(default)]
    pub github_token: Vec<GithubPermission>,
    /// Prompt, environment and secrets for the agent.
    pub brief: AgentLaunchSpec,
}

impl fmt::Debug for ResolvedJobRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobRequest({}, …)", self.agent)
    }
}
