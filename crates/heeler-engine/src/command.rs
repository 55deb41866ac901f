//! Commands to the daemon, and its replies.
//!
//! These types are also the bodies of the HTTP API: they implement serde, with snake-case names.
//! Start at [`DaemonCommand`]; [`crate::DaemonHandle`] sends it to the dispatcher.

mod reply;

use std::fmt;
use std::time::Duration;

use heeler_model::{ApprovalAnswer, ApprovalId, JobId, JobRequest, SessionId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use crate::access::AccessOperation;
use crate::browser_operation::BrowserOperation;
use crate::session_operation::SessionOperation;
use crate::workflows::{WorkflowOperation, WorkflowSubject};

pub use heeler_model::daemon_status::{
    BudgetStatus, DaemonMode, DaemonScheduleStatus, DaemonStatus, ParkedCredential, RunningJob,
    ScheduleOverride, WaitingJob,
};
pub use reply::{
    CommandReply, DaemonCommandError, DaemonCommandErrorKind, DispatcherStoppedError,
    IdempotencyKey, ReplyCallback,
};
pub(crate) use reply::{PendingReply, job_not_running};

/// Maximum size of a webhook payload.
pub const WEBHOOK_BYTES_MAX: usize = 1 << 20;

/// Command to the daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DaemonCommand {
    /// Create a job.
    Trigger(Box<JobRequest>),
    /// Cancel a job.
    Cancel {
        job: JobId,
        /// Cancel immediately instead of gracefully.
        now: bool,
        /// Requester.
        by: String,
    },
    /// Send a message to the agent of a running job.
    Say {
        job: JobId,
        text: String,
        /// Sender.
        by: String,
    },
    /// Resume a failed, cancelled or interrupted job in its session.
    Resume {
        /// The job; it keeps its ID.
        job: JobId,
        /// Prompt for the agent; the default says that it was interrupted.
        prompt: Option<String>,
        /// Requester.
        by: String,
    },
    /// Create a new job with the same request.
    Retry {
        /// The job to copy.
        job: JobId,
        /// Requester.
        by: String,
    },
    /// Change or trigger a schedule.
    Schedule {
        /// Agent that owns the schedule.
        agent: String,
        schedule: String,
        change: ScheduleChange,
        /// Requester.
        by: String,
    },
    /// Trigger a webhook schedule.
    Webhook(Box<WebhookCall>),
    /// Change an agent.
    Agent {
        agent: String,
        change: AgentChange,
        /// Requester.
        by: String,
    },
    /// Change sessions.
    Session {
        order: SessionOperation,
        /// Requester.
        by: String,
    },
    /// Control workflow runs.
    Workflow {
        order: WorkflowOperation,
        /// Requester.
        by: String,
    },
    /// Answer an approval.
    Approval {
        approval: ApprovalId,
        answer: ApprovalAnswer,
        /// Person or program that answers.
        by: String,
    },
    /// Change users, tokens and logins.
    Access {
        order: AccessOperation,
        /// Requester.
        by: String,
    },
    /// Change the browsers that receive notices.
    Browser {
        order: BrowserOperation,
        /// Requester, to whom an added browser belongs.
        by: String,
    },
    /// Let a host get no new runs, or get them again.
    DrainHost {
        host: String,
        change: HostDrain,
        /// Requester.
        by: String,
    },
    /// End the runs of a host that does not return.
    GiveUpHost {
        host: String,
        /// Requester.
        by: String,
    },
    /// Replace the amount that counts for a job whose agent reported no cost.
    SetJobCost {
        job: JobId,
        /// Cost of the whole job, in millionths of a US dollar.
        micros: i64,
        /// Person who knows the cost.
        by: String,
    },
    /// Set the title of a job or session.
    Rename {
        item: RenamedItem,
        title: String,
        /// Requester.
        by: String,
    },
    /// Reload the config.
    Reload,
    /// Confirm a change of the config that was held.
    AcceptConfig {
        /// Hash of the content that the person was shown, or has written.
        fingerprint: String,
        /// Load it at once.
        load: bool,
        /// Person who confirms it.
        by: String,
    },
    /// Stop the daemon. The reply follows when all jobs have ended or are left to their runners.
    Stop(StopMode),
    /// Report the daemon's status.
    Status,
}

impl DaemonCommand {
    /// Replaces the requester that the command names. What a client claims does not count.
    pub fn set_requester(&mut self, name: &str) {
        match self {
            DaemonCommand::Cancel { by, .. }
            | DaemonCommand::Say { by, .. }
            | DaemonCommand::Resume { by, .. }
            | DaemonCommand::Retry { by, .. }
            | DaemonCommand::Schedule { by, .. }
            | DaemonCommand::Agent { by, .. }
            | DaemonCommand::Session { by, .. }
            | DaemonCommand::Workflow { by, .. }
            | DaemonCommand::Approval { by, .. }
            | DaemonCommand::Access { by, .. }
            | DaemonCommand::Browser { by, .. }
            | DaemonCommand::DrainHost { by, .. }
            | DaemonCommand::GiveUpHost { by, .. }
            | DaemonCommand::SetJobCost { by, .. }
            | DaemonCommand::Rename { by, .. }
            | DaemonCommand::AcceptConfig { by, .. } => name.clone_into(by),
            DaemonCommand::Trigger(_)
            | DaemonCommand::Webhook(_)
            | DaemonCommand::Reload
            | DaemonCommand::Stop(_)
            | DaemonCommand::Status => {}
        }
    }
}

/// Item with a title.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RenamedItem {
    Job(JobId),
    Session(SessionId),
}

/// Call of a schedule of type `webhook`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WebhookCall {
    /// Agent that owns the schedule.
    pub agent: String,
    pub schedule: String,
    /// Payload of the caller: JSON or text, at most [`WEBHOOK_BYTES_MAX`].
    pub payload: String,
    /// The caller's delivery ID. A repeated delivery creates no job.
    pub delivery: Option<String>,
    /// Digest of the call's signature, by which a replayed call is recognized. `None` if the caller
    /// is known otherwise.
    #[serde(default)]
    pub mac: Option<String>,
    /// Inputs and subject for the workflow of the schedule, if it starts one. Without them they are
    /// read from the payload.
    #[serde(default)]
    pub workflow: Option<WebhookWorkflowInputs>,
}

/// Inputs and subject that a webhook call has for a workflow.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WebhookWorkflowInputs {
    pub inputs: Map<String, Json>,
    pub subject: WorkflowSubject,
    /// Word of a person that chooses the workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intent: Option<String>,
}

/// Change to a schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleChange {
    /// Enable it, overriding the config.
    Enable,
    /// Disable it, overriding the config.
    Disable,
    /// Override its times.
    Set {
        /// Cron expression or interval.
        text: String,
    },
    /// Remove all overrides of the config.
    Reset,
    /// Trigger it now.
    Trigger,
}

/// Change to the use of a host.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostDrain {
    /// Give it no new runs.
    Begin,
    /// Give it new runs again.
    Undo,
}

/// Change to an agent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentChange {
    /// Allow its jobs to start.
    Enable,
    /// Keep its jobs from starting.
    Disable,
    /// Clear the error status of its last job.
    Reset,
    /// Remove the hosts that people allowed it to reach in later runs.
    ForgetHosts,
    /// Remove the permissions that people gave it for all later runs.
    ForgetPermissions,
}

/// Treatment of running jobs when the daemon stops.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopMode {
    /// Wait for them.
    Wait {
        /// Time limit; jobs that still run after it are cancelled.
        #[serde(rename = "timeout_ms", default, with = "millis")]
        timeout: Option<Duration>,
    },
    /// Cancel them immediately.
    Force,
    /// Leave them running; the next daemon adopts them.
    KeepJobs,
}

impl fmt::Display for StopMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StopMode::Wait { timeout: None } => f.write_str("when its jobs have ended"),
            StopMode::Wait { timeout: Some(timeout) } => {
                write!(f, "when its jobs have ended, at most {} s", timeout.as_secs())
            }
            StopMode::Force => f.write_str("when its jobs are cancelled"),
            StopMode::KeepJobs => f.write_str("without its jobs, which continue"),
        }
    }
}

/// Serializes a duration as milliseconds.
mod millis {
    use std::time::Duration;

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    #[expect(clippy::ref_option, reason = "serde hands over the field as it is")]
    pub(super) fn serialize<S: Serializer>(
        duration: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let millis = |duration: &Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        duration.as_ref().map(millis).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(Duration::from_millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(command: &DaemonCommand, text: &str) {
        assert_eq!(serde_json::to_string(command).unwrap(), text);
        assert_eq!(serde_json::from_str::<DaemonCommand>(text).unwrap(), *command);
    }

    #[test]
    fn commands_have_one_spelling() {
        check(&DaemonCommand::Reload, r#""reload""#);
        let timeout = Some(Duration::from_secs(5));
        check(
            &DaemonCommand::Stop(StopMode::Wait { timeout }),
            r#"{"stop":{"wait":{"timeout_ms":5000}}}"#,
        );
        check(&DaemonCommand::Stop(StopMode::KeepJobs), r#"{"stop":"keep_jobs"}"#);
        let change = ScheduleChange::Set { text: "5m".to_owned() };
        let (agent, schedule, by) = ("a".to_owned(), "s".to_owned(), "me".to_owned());
        check(
            &DaemonCommand::Schedule { agent, schedule, change, by },
            r#"{"schedule":{"agent":"a","schedule":"s","change":{"set":{"text":"5m"}},"by":"me"}}"#,
        );
    }
}
