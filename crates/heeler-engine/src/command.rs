//! What a daemon can be asked, and what it answers.
//!
//! These are also the bodies of its HTTP interface, so every type is serde and every word is snake
//! case. Start at [`Handle`], which brings a [`Command`] to the dispatcher.

mod answer;
mod status;

use std::fmt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use camino::Utf8PathBuf;
use heeler_model::run::{Closed, RunResult};
use heeler_model::{ApprovalAnswer, ApprovalId, JobId, RunId, Wanted};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::access::AccessOrder;
use crate::asks::RunAsks;
use crate::dispatch::Prepared;
use crate::hooks::HookOutcome;
use crate::origin::Origin;
use crate::sessions::{Change, SessionOrder};
use crate::workflows::WorkflowOrder;

pub(crate) use answer::Owed;
pub use answer::{Answer, Refused, RefusedKind, Reply, Stopped};
pub use status::{
    BudgetStatus, DaemonMode, DaemonStatus, ParkedCredential, RunningJob, ScheduleOverride,
    ScheduleStatus, WaitingJob,
};

/// How many commands and events may wait for the dispatcher; whoever sends one more waits too.
pub(crate) const INPUTS_MAX: usize = 1024;

/// The largest payload of a webhook.
pub const WEBHOOK_BYTES_MAX: usize = 1 << 20;

/// A request under a name of the asker's own. The same again does nothing, and gets the first answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestKey {
    /// Who asks; names of others are others.
    pub asker: String,
    /// The name.
    pub name: String,
    /// Tells this request from another under the same name.
    pub print: String,
}

/// Something that a daemon is asked to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Do a job.
    Trigger(Box<Wanted>),
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
    Webhook(Box<Call>),
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
        order: SessionOrder,
        /// Who wants it.
        by: String,
    },
    /// Do something with workflows.
    Workflow {
        /// What.
        order: WorkflowOrder,
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
        order: AccessOrder,
        /// Who wants it.
        by: String,
    },
    /// Read the config again.
    Reload,
    /// End the daemon. The answer comes when jobs are done or left.
    Stop(Stopping),
    /// Say what goes on.
    Status,
}

/// A call of a schedule of type `webhook`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
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
pub enum Stopping {
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

impl fmt::Display for Stopping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stopping::Wait { timeout: None } => f.write_str("when its jobs have ended"),
            Stopping::Wait { timeout: Some(timeout) } => {
                write!(f, "when its jobs have ended, at most {} s", timeout.as_secs())
            }
            Stopping::Force => f.write_str("when its jobs are cancelled"),
            Stopping::KeepJobs => f.write_str("without its jobs, which go on"),
        }
    }
}

/// What reaches the dispatcher.
pub(crate) enum Input {
    /// Somebody asks.
    Asked {
        /// What.
        command: Command,
        /// Whose process asks.
        by: Origin,
        /// Who hears the answer.
        owed: Owed,
    },
    /// A run can be started, or cannot.
    Prepared {
        /// What.
        prepared: Box<Prepared>,
        /// Who hears of it.
        owed: Option<Owed>,
    },
    /// What an order about sessions needs is made, or it is refused.
    Session {
        /// The change.
        change: Box<Change>,
        /// Who wants it.
        by: String,
        /// Who hears of it.
        owed: Owed,
    },
    /// A run has ended.
    Ended(Box<Gone>),
    /// How a run ended cannot be found out now.
    Unsettled {
        /// The run.
        run: RunId,
        /// Why; none if it may just be too early.
        why: Option<String>,
        /// When to try again.
        again: Duration,
    },
    /// A schedule fires that time does not start.
    Fired {
        /// What is wanted then.
        wanted: Box<Wanted>,
        /// The files that changed.
        changed: Vec<Utf8PathBuf>,
    },
    /// A run asks something, or was answered.
    Questions {
        /// The run.
        run: RunId,
        /// What it asks and asked.
        asks: Box<RunAsks>,
        /// What it was given the answer to.
        delivered: Option<ApprovalId>,
    },
    /// What came of hooks.
    Hook(HookOutcome),
}

/// A run that has ended.
#[derive(Debug)]
pub(crate) struct Gone {
    /// What it did.
    pub(crate) result: RunResult,
    /// What its agent wrote down for its hooks.
    pub(crate) metadata: Option<Json>,
    /// How its questions ended.
    pub(crate) closed: Vec<Closed>,
}

/// A way to the dispatcher. Whoever has one may ask.
#[derive(Clone)]
pub struct Handle {
    inputs: SyncSender<Input>,
    by: Origin,
}

impl Handle {
    /// Makes a handle and the end that the dispatcher reads.
    pub(crate) fn channel() -> (Handle, Receiver<Input>) {
        let (sender, receiver) = sync_channel(INPUTS_MAX);
        (Handle { inputs: sender, by: Origin::Person }, receiver)
    }

    /// Makes a handle whose commands go to a function on a thread of its own, for those who test
    /// what stands in front of a dispatcher.
    pub fn scripted(mut each: impl FnMut(Command, Reply) + Send + 'static) -> Handle {
        let (handle, inputs) = Handle::channel();
        std::thread::spawn(move || {
            for input in inputs {
                if let Input::Asked { command, owed, .. } = input {
                    each(command, owed.reply);
                }
            }
        });
        handle
    }

    /// Returns a handle for somebody. A process of a run may start jobs and end those; it may not
    /// steer the fleet that steers it.
    pub fn of(&self, by: Origin) -> Handle {
        Handle { by, ..self.clone() }
    }

    /// Sends a command. Waits while the dispatcher has more to do than it can remember.
    ///
    /// If the dispatcher ends before it has done it, the answer is that it has [`Stopped`].
    pub fn send(&self, command: Command, reply: Reply) -> Result<(), Stopped> {
        self.send_once(command, None, reply)
    }

    /// Sends a command under a name: what was done already under that is not done again.
    pub fn send_once(
        &self,
        command: Command,
        key: Option<RequestKey>,
        reply: Reply,
    ) -> Result<(), Stopped> {
        let mut unanswered = Unanswered(Some(reply));
        let reply: Reply = Box::new(move |answer| unanswered.answer(answer));
        let (by, owed) = (self.by, Owed { reply, key });
        self.inputs.send(Input::Asked { command, by, owed }).map_err(|_| Stopped)
    }

    /// Tells the dispatcher something.
    pub(crate) fn input(&self, input: Input) -> Result<(), Stopped> {
        self.inputs.send(input).map_err(|_| Stopped)
    }

    /// Asks and waits for the answer.
    pub fn ask(&self, command: Command) -> Result<Answer, Refused> {
        let (sender, receiver) = sync_channel(1);
        // Nobody waits any more only if this thread is gone.
        let reply: Reply = Box::new(move |answer| drop(sender.send(answer)));
        self.send(command, reply)?;
        let lost = || Refused::new(RefusedKind::Trouble, "the daemon ended before it answered");
        receiver.recv().unwrap_or_else(|_| Err(lost()))
    }
}

/// A reply that is owed. The dispatcher answers all that it does; what it drops it has not done,
/// unless it dies of it.
struct Unanswered(Option<Reply>);

impl Unanswered {
    fn answer(&mut self, answer: Result<Answer, Refused>) {
        if let Some(reply) = self.0.take() {
            reply(answer);
        }
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        // Of what a panic cut off nobody knows whether it was done: it is not to be tried again.
        if !std::thread::panicking() {
            self.answer(Err(Stopped.into()));
        }
    }
}

impl std::fmt::Debug for Handle {
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
    fn check(command: &Command, text: &str) {
        assert_eq!(serde_json::to_string(command).unwrap(), text);
        assert_eq!(serde_json::from_str::<Command>(text).unwrap(), *command);
    }

    #[test]
    fn commands_have_one_spelling() {
        check(&Command::Reload, r#""reload""#);
        let timeout = Some(Duration::from_secs(5));
        check(
            &Command::Stop(Stopping::Wait { timeout }),
            r#"{"stop":{"wait":{"timeout_ms":5000}}}"#,
        );
        check(&Command::Stop(Stopping::KeepJobs), r#"{"stop":"keep_jobs"}"#);
        let change = ScheduleChange::Set { text: "5m".to_owned() };
        let (agent, schedule, by) = ("a".to_owned(), "s".to_owned(), "me".to_owned());
        check(
            &Command::Schedule { agent, schedule, change, by },
            r#"{"schedule":{"agent":"a","schedule":"s","change":{"set":{"text":"5m"}},"by":"me"}}"#,
        );
    }

    #[test]
    fn whoever_asks_hears_the_answer() {
        let handle = Handle::scripted(|command, reply| {
            reply(match command {
                Command::Reload => Ok(Answer::Reloaded { changes: Vec::new() }),
                _ => Err(Refused::new(RefusedKind::NotFound, "no")),
            });
        });
        assert_eq!(handle.ask(Command::Reload), Ok(Answer::Reloaded { changes: Vec::new() }));
        let refused = handle.ask(Command::Status).unwrap_err();
        assert_eq!(refused.kind, RefusedKind::NotFound);
    }

    #[test]
    fn a_dispatcher_that_ends_refuses_what_it_did_not_answer() {
        let (handle, inputs) = Handle::channel();
        let ending = std::thread::spawn(move || drop(inputs.recv()));
        assert_eq!(handle.ask(Command::Reload), Err(Stopped.into()));
        ending.join().unwrap();
        assert_eq!(handle.send(Command::Reload, Box::new(|_| {})), Err(Stopped));
        assert_eq!(handle.ask(Command::Reload), Err(Stopped.into()));
    }

    #[test]
    fn of_what_a_dispatcher_dies_of_nobody_knows_whether_it_was_done() {
        let handle = Handle::scripted(|_, _reply| panic!("it dies of it"));
        let lost = handle.ask(Command::Reload).unwrap_err();
        assert_eq!(lost.message, "the daemon ended before it answered");
    }
}
