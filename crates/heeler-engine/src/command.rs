//! Commands to the daemon, and its replies.
//!
//! These types are also the bodies of the HTTP API: they implement serde, with snake-case names.
//! Start at [`DaemonHandle`], which sends a [`DaemonCommand`] to the dispatcher.

mod reply;

use std::fmt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use camino::Utf8PathBuf;
use heeler_model::run::{ClosedQuestion, RunResult};
use heeler_model::{ApprovalAnswer, ApprovalId, JobId, JobRequest, RunId};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::access::AccessOperation;
use crate::caller::Caller;
use crate::dispatch::PreparedJob;
use crate::hooks::HookOutcome;
use crate::run_questions::RunQuestionFiles;
use crate::sessions::{SessionChange, SessionOperation};
use crate::workflows::WorkflowOperation;

pub use heeler_model::daemon_status::{
    BudgetStatus, DaemonMode, DaemonScheduleStatus, DaemonStatus, ParkedCredential, RunningJob,
    ScheduleOverride, WaitingJob,
};
pub(crate) use reply::PendingReply;
pub use reply::{
    CommandReply, DaemonCommandError, DaemonCommandErrorKind, DispatcherStoppedError, ReplyCallback,
};

/// Capacity of the dispatcher's input channel. Senders block while it is full.
pub(crate) const INPUTS_MAX: usize = 1024;

/// Maximum size of a webhook payload.
pub const WEBHOOK_BYTES_MAX: usize = 1 << 20;

/// Idempotency key of a request. A repeated request has no effect and gets the first reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// Owner of the key; callers do not share keys.
    pub caller: String,
    pub key: String,
    /// Distinguishes this request from a different one with the same key.
    pub fingerprint: String,
}

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
    /// Reload the config.
    Reload,
    /// Stop the daemon. The reply follows when all jobs have ended or are left to their runners.
    Stop(StopMode),
    /// Report the daemon's status.
    Status,
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

/// Input of the dispatcher.
pub(crate) enum DispatchInput {
    /// A caller sent a command.
    Command {
        command: DaemonCommand,
        /// Identity of the calling process.
        caller: Caller,
        pending: PendingReply,
    },
    /// Preparation of a job's run succeeded or failed.
    JobPrepared {
        prepared: Box<PreparedJob>,
        /// Caller that waits for the job to start.
        pending: Option<PendingReply>,
    },
    /// The files for a session operation are ready, or the operation was refused.
    SessionChange {
        change: Box<SessionChange>,
        /// Requester.
        by: String,
        pending: PendingReply,
    },
    /// A run has ended.
    RunEnded(Box<RunExit>),
    /// The end of a run cannot be determined now.
    RunUnsettled {
        run: RunId,
        /// The cause; `None` if it may just be too early.
        why: Option<String>,
        /// Delay before the next attempt.
        retry_after: Duration,
    },
    /// A `watch` schedule fired.
    WatchFired {
        /// The job to create.
        request: Box<JobRequest>,
        changed: Vec<Utf8PathBuf>,
    },
    /// A run asked a question, or received an answer.
    QuestionsChanged {
        run: RunId,
        /// Open and closed questions of the run.
        questions: Box<RunQuestionFiles>,
        /// Approval that was delivered to the run.
        delivered: Option<ApprovalId>,
    },
    /// A hook has finished.
    HookOutcome(HookOutcome),
}

/// A run that has ended.
#[derive(Debug)]
pub(crate) struct RunExit {
    pub(crate) result: RunResult,
    /// Metadata that the agent wrote for its hooks.
    pub(crate) metadata: Option<Json>,
    /// Outcomes of its questions.
    pub(crate) closed_questions: Vec<ClosedQuestion>,
}

/// Cloneable handle to the dispatcher. Every holder may send commands.
#[derive(Clone)]
pub struct DaemonHandle {
    inputs: SyncSender<DispatchInput>,
    caller: Caller,
}

impl DaemonHandle {
    /// Creates a handle and the receiver for the dispatcher.
    pub(crate) fn channel() -> (DaemonHandle, Receiver<DispatchInput>) {
        let (sender, receiver) = sync_channel(INPUTS_MAX);
        (DaemonHandle { inputs: sender, caller: Caller::Person }, receiver)
    }

    /// Creates a handle that passes every command to a function on a separate thread, which ends
    /// with the last handle. For tests of code that sends commands.
    #[cfg(any(test, feature = "fault-points"))]
    pub fn scripted(
        mut each: impl FnMut(DaemonCommand, ReplyCallback) + Send + 'static,
    ) -> DaemonHandle {
        let (handle, inputs) = DaemonHandle::channel();
        std::thread::spawn(move || {
            for input in inputs {
                if let DispatchInput::Command { command, pending: owed, .. } = input {
                    each(command, owed.reply);
                }
            }
        });
        handle
    }

    /// Returns a handle with another caller. A process of a run may create jobs and cancel those;
    /// it may not control the fleet that runs it.
    pub fn with_caller(&self, by: Caller) -> DaemonHandle {
        DaemonHandle { caller: by, ..self.clone() }
    }

    /// Sends a command. Blocks while the dispatcher's input channel is full.
    ///
    /// If the dispatcher stops before it has executed the command, the reply is
    /// [`DispatcherStoppedError`].
    pub fn send(
        &self,
        command: DaemonCommand,
        reply: ReplyCallback,
    ) -> Result<(), DispatcherStoppedError> {
        self.send_once(command, None, reply)
    }

    /// Sends a command with an idempotency key: a command that was already executed under the key
    /// is not executed again.
    pub fn send_once(
        &self,
        command: DaemonCommand,
        key: Option<IdempotencyKey>,
        reply: ReplyCallback,
    ) -> Result<(), DispatcherStoppedError> {
        let mut unanswered = ReplyGuard(Some(reply));
        let reply: ReplyCallback = Box::new(move |answer| unanswered.send(answer));
        let (by, owed) = (self.caller, PendingReply { reply, key });
        self.inputs
            .send(DispatchInput::Command { command, caller: by, pending: owed })
            .map_err(|_| DispatcherStoppedError)
    }

    pub(crate) fn send_input(&self, input: DispatchInput) -> Result<(), DispatcherStoppedError> {
        self.inputs.send(input).map_err(|_| DispatcherStoppedError)
    }

    /// Sends a command and waits for its reply.
    pub fn send_and_wait(
        &self,
        command: DaemonCommand,
    ) -> Result<CommandReply, DaemonCommandError> {
        let (sender, receiver) = sync_channel(1);
        // Sending fails only if this thread has ended, and then no reply is needed.
        let reply: ReplyCallback = Box::new(move |answer| drop(sender.send(answer)));
        self.send(command, reply)?;
        let lost = || {
            DaemonCommandError::new(
                DaemonCommandErrorKind::Trouble,
                "the daemon ended before it answered",
            )
        };
        receiver.recv().unwrap_or_else(|_| Err(lost()))
    }
}

/// Replies with an error when dropped unused. The dispatcher replies to every command it executes,
/// so a dropped command was not executed, unless the dispatcher panicked.
struct ReplyGuard(Option<ReplyCallback>);

impl ReplyGuard {
    fn send(&mut self, answer: Result<CommandReply, DaemonCommandError>) {
        if let Some(reply) = self.0.take() {
            reply(answer);
        }
    }
}

impl Drop for ReplyGuard {
    fn drop(&mut self) {
        // After a panic it is unknown whether the command was executed. No error is sent, because
        // the caller would retry.
        if !std::thread::panicking() {
            self.send(Err(DispatcherStoppedError.into()));
        }
    }
}

impl std::fmt::Debug for DaemonHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Handle")
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

    #[test]
    fn whoever_asks_hears_the_answer() {
        let handle = DaemonHandle::scripted(|command, reply| {
            reply(match command {
                DaemonCommand::Reload => Ok(CommandReply::Reloaded { changes: Vec::new() }),
                _ => Err(DaemonCommandError::new(DaemonCommandErrorKind::NotFound, "no")),
            });
        });
        assert_eq!(
            handle.send_and_wait(DaemonCommand::Reload),
            Ok(CommandReply::Reloaded { changes: Vec::new() })
        );
        let refused = handle.send_and_wait(DaemonCommand::Status).unwrap_err();
        assert_eq!(refused.kind, DaemonCommandErrorKind::NotFound);
    }

    #[test]
    fn a_dispatcher_that_ends_refuses_what_it_did_not_answer() {
        let (handle, inputs) = DaemonHandle::channel();
        let ending = std::thread::spawn(move || drop(inputs.recv()));
        assert_eq!(handle.send_and_wait(DaemonCommand::Reload), Err(DispatcherStoppedError.into()));
        ending.join().unwrap();
        assert_eq!(
            handle.send(DaemonCommand::Reload, Box::new(|_| {})),
            Err(DispatcherStoppedError)
        );
        assert_eq!(handle.send_and_wait(DaemonCommand::Reload), Err(DispatcherStoppedError.into()));
    }

    #[test]
    fn of_what_a_dispatcher_dies_of_nobody_knows_whether_it_was_done() {
        let handle = DaemonHandle::scripted(|_, _reply| panic!("it dies of it"));
        let lost = handle.send_and_wait(DaemonCommand::Reload).unwrap_err();
        assert_eq!(lost.message, "the daemon ended before it answered");
    }
}
