//! What a daemon can be asked, and what it answers.
//!
//! These are also the bodies of its HTTP interface, so every type is serde and every word is snake
//! case. Start at [`DaemonHandle`], which brings a [`DaemonCommand`] to the dispatcher.

mod reply;
mod status;

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

pub(crate) use reply::PendingReply;
pub use reply::{
    CommandReply, DaemonCommandError, DaemonCommandErrorKind, DispatcherStoppedError, ReplyCallback,
};
pub use status::{
    BudgetStatus, DaemonMode, DaemonScheduleStatus, DaemonStatus, ParkedCredential, RunningJob,
    ScheduleOverride, WaitingJob,
};

/// How many commands and events may wait for the dispatcher; whoever sends one more waits too.
pub(crate) const INPUTS_MAX: usize = 1024;

/// The largest payload of a webhook.
pub const WEBHOOK_BYTES_MAX: usize = 1 << 20;

/// A request under a name of the asker's own. The same again does nothing, and gets the first answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// Who asks; names of others are others.
    pub caller: String,
    /// The name.
    pub key: String,
    /// Tells this request from another under the same name.
    pub fingerprint: String,
}

/// Something that a daemon is asked to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DaemonCommand {
    /// Do a job.
    Trigger(Box<JobRequest>),
    /// End a job.
    Cancel {
        /// The job.
        job: JobId,
        /// At once, not gracefully.
        now: bool,
        /// Who wants it.
        by: String,
    },
    /// Say something more to the agent that is at a job.
    Say {
        /// The job.
        job: JobId,
        /// What.
        text: String,
        /// Who says it.
        by: String,
    },
    /// Let a job that failed, was cancelled or was interrupted go on in its session.
    Resume {
        /// The job, which keeps its id.
        job: JobId,
        /// What the agent is told; else that it was interrupted.
        prompt: Option<String>,
        /// Who wants it.
        by: String,
    },
    /// Ask for the same again: a new job.
    Retry {
        /// The job to take it from.
        job: JobId,
        /// Who wants it.
        by: String,
    },
    /// Change or fire a schedule.
    Schedule {
        /// The agent that has it.
        agent: String,
        /// Its name.
        schedule: String,
        /// What to do with it.
        change: ScheduleChange,
        /// Who wants it.
        by: String,
    },
    /// Start a schedule from outside.
    Webhook(Box<WebhookCall>),
    /// Change an agent.
    Agent {
        /// The agent.
        agent: String,
        /// What to do with it.
        change: AgentChange,
        /// Who wants it.
        by: String,
    },
    /// Do something with sessions.
    Session {
        /// What.
        order: SessionOperation,
        /// Who wants it.
        by: String,
    },
    /// Do something with workflows.
    Workflow {
        /// What.
        order: WorkflowOperation,
        /// Who wants it.
        by: String,
    },
    /// Answer what people are asked.
    Approval {
        /// What.
        approval: ApprovalId,
        /// The answer.
        answer: ApprovalAnswer,
        /// Who answers.
        by: String,
    },
    /// Change who may do what.
    Access {
        /// What.
        order: AccessOperation,
        /// Who wants it.
        by: String,
    },
    /// Read the config again.
    Reload,
    /// End the daemon. The answer comes when jobs are done or left.
    Stop(StopMode),
    /// Say what goes on.
    Status,
}

/// A call of a schedule of type `webhook`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WebhookCall {
    /// The agent that has it.
    pub agent: String,
    /// Its name.
    pub schedule: String,
    /// What the caller sent: at most [`WEBHOOK_BYTES_MAX`], JSON or text.
    pub payload: String,
    /// What the caller calls this delivery. The same again starts nothing.
    pub delivery: Option<String>,
}

/// What to do with a schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleChange {
    /// Let it run, whatever the config says.
    Enable,
    /// Do not let it run, whatever the config says.
    Disable,
    /// Let it run at other times than the config says.
    Set {
        /// A cron expression or an interval.
        text: String,
    },
    /// Let the config decide again.
    Reset,
    /// Run it now.
    Trigger,
}

/// What to do with an agent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentChange {
    /// Let its jobs start.
    Enable,
    /// Do not let its jobs start.
    Disable,
    /// Forget that its last job failed.
    Reset,
}

/// What happens to the jobs that run when a daemon ends.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopMode {
    /// They are waited for.
    Wait {
        /// For so long; after that they are cancelled.
        #[serde(rename = "timeout_ms", default, with = "millis")]
        timeout: Option<Duration>,
    },
    /// They are cancelled at once.
    Force,
    /// They go on, and the next daemon takes them over.
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
            StopMode::KeepJobs => f.write_str("without its jobs, which go on"),
        }
    }
}

/// What reaches the dispatcher.
pub(crate) enum DispatchInput {
    /// Somebody asks.
    Command {
        /// What.
        command: DaemonCommand,
        /// Whose process asks.
        caller: Caller,
        /// Who hears the answer.
        pending: PendingReply,
    },
    /// A run can be started, or cannot.
    JobPrepared {
        /// What.
        prepared: Box<PreparedJob>,
        /// Who hears of it.
        pending: Option<PendingReply>,
    },
    /// What an order about sessions needs is made, or it is refused.
    SessionChange {
        /// The change.
        change: Box<SessionChange>,
        /// Who wants it.
        by: String,
        /// Who hears of it.
        pending: PendingReply,
    },
    /// A run has ended.
    RunEnded(Box<RunExit>),
    /// How a run ended cannot be found out now.
    RunUnsettled {
        /// The run.
        run: RunId,
        /// Why; none if it may just be too early.
        why: Option<String>,
        /// When to try again.
        retry_after: Duration,
    },
    /// A schedule fires that time does not start.
    WatchFired {
        /// What is wanted then.
        request: Box<JobRequest>,
        /// The files that changed.
        changed: Vec<Utf8PathBuf>,
    },
    /// A run asks something, or was answered.
    QuestionsChanged {
        /// The run.
        run: RunId,
        /// What it asks and asked.
        questions: Box<RunQuestionFiles>,
        /// What it was given the answer to.
        delivered: Option<ApprovalId>,
    },
    /// What came of hooks.
    HookOutcome(HookOutcome),
}

/// A run that has ended.
#[derive(Debug)]
pub(crate) struct RunExit {
    /// What it did.
    pub(crate) result: RunResult,
    /// What its agent wrote down for its hooks.
    pub(crate) metadata: Option<Json>,
    /// How its questions ended.
    pub(crate) closed_questions: Vec<ClosedQuestion>,
}

/// A way to the dispatcher. Whoever has one may ask.
#[derive(Clone)]
pub struct DaemonHandle {
    inputs: SyncSender<DispatchInput>,
    caller: Caller,
}

impl DaemonHandle {
    /// Makes a handle and the end that the dispatcher reads.
    pub(crate) fn channel() -> (DaemonHandle, Receiver<DispatchInput>) {
        let (sender, receiver) = sync_channel(INPUTS_MAX);
        (DaemonHandle { inputs: sender, caller: Caller::Person }, receiver)
    }

    /// Makes a handle whose commands go to a function on a thread of its own, for those who test
    /// what stands in front of a dispatcher.
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

    /// Returns a handle for somebody. A process of a run may start jobs and end those; it may not
    /// steer the fleet that steers it.
    pub fn with_caller(&self, by: Caller) -> DaemonHandle {
        DaemonHandle { caller: by, ..self.clone() }
    }

    /// Sends a command. Waits while the dispatcher has more to do than it can remember.
    ///
    /// If the dispatcher ends before it has done it, the answer is that it has [`DispatcherStoppedError`].
    pub fn send(
        &self,
        command: DaemonCommand,
        reply: ReplyCallback,
    ) -> Result<(), DispatcherStoppedError> {
        self.send_once(command, None, reply)
    }

    /// Sends a command under a name: what was done already under that is not done again.
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

    /// Tells the dispatcher something.
    pub(crate) fn send_input(&self, input: DispatchInput) -> Result<(), DispatcherStoppedError> {
        self.inputs.send(input).map_err(|_| DispatcherStoppedError)
    }

    /// Asks and waits for the answer.
    pub fn send_and_wait(
        &self,
        command: DaemonCommand,
    ) -> Result<CommandReply, DaemonCommandError> {
        let (sender, receiver) = sync_channel(1);
        // Nobody waits any more only if this thread is gone.
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

/// A reply that is owed. The dispatcher answers all that it does; what it drops it has not done,
/// unless it dies of it.
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
        // Of what a panic cut off nobody knows whether it was done: it is not to be tried again.
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

/// A duration as a number of milliseconds.
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
