//! Inputs of the dispatcher: commands, and results of the work that others did for it.
//!
//! Start at [`DispatchInput`].

use std::time::Duration;

use camino::Utf8PathBuf;
use heeler_connect::ChatEvent;
use heeler_model::run::{ClosedQuestion, RunResult};
use heeler_model::{ApprovalId, JobId, JobRequest, RunId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::caller::Caller;
use crate::chat::{
    ChatGapChange, ChatPostResult, RunCardChange, SaidMessageResult, WaitingSlackCall,
};
use crate::command::{DaemonCommand, DaemonCommandError, PendingReply};
use crate::github::GithubTaskResult;
use crate::hooks::HookOutcome;
use crate::notices::NoticeResult;
use crate::resolved_request::ResolvedJobRequest;
use crate::run_questions::RunQuestionFiles;
use crate::sessions::SessionChange;

/// Metadata key of the time up to which webhook deliveries were fetched from GitHub.
pub(crate) const DELIVERIES_FETCHED_UNTIL: &str = "github deliveries until";

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
    /// A task on GitHub was attempted.
    GithubTaskAttempted(Box<GithubTaskResult>),
    /// Webhook deliveries up to a time were fetched from GitHub, and handled.
    DeliveriesFetched { until: Timestamp },
    /// A chat platform delivered an event.
    ChatEvent {
        event: Box<ChatEvent>,
        /// The link, which acknowledges the event after the commit. A daemon that stops refuses it, and the
        /// next one receives it again.
        pending: PendingReply,
    },
    /// Slack called the daemon. The caller waits until the event is recorded.
    SlackCall(Box<WaitingSlackCall>),
    /// A webhook of GitHub was called, so there may be messages to read.
    GithubChanged,
    /// A link begins or ends to read the messages of a gap.
    ChatGap {
        change: Box<ChatGapChange>,
        /// The link, which goes on after the commit.
        pending: PendingReply,
    },
    /// A post to a chat was attempted.
    ChatPostAttempted(Box<ChatPostResult>),
    /// A run card was posted or finished.
    RunCardChanged(RunCardChange),
    /// A message of a chat was sent to its run, or was not taken.
    SaidMessageAttempted(SaidMessageResult),
    /// A notice to a person was attempted.
    NoticeAttempted(Box<NoticeResult>),
    /// A notice is due later, at a time that the dispatcher did not know when it went to sleep.
    NoticePlanned,
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
    /// Runs of hosts that were silent for longer than the lease of the run.
    LeasesOver(Vec<RunId>),
    /// Moves of sessions have been done by their hosts, or are late.
    MovesDue,
    /// Another host has the lead, or the database lacks commits of this process.
    LeadLost,
    /// The leader may have given a run to this host, or the lead away.
    HostHint,
}

/// A run that has ended.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RunExit {
    pub(crate) result: RunResult,
    /// Metadata that the agent wrote for its hooks.
    pub(crate) metadata: Option<Json>,
    /// Outcomes of its questions.
    pub(crate) closed_questions: Vec<ClosedQuestion>,
}

/// A job with the outcome of preparing its run.
#[derive(Debug)]
pub(crate) struct PreparedJob {
    /// The job; `None` for a job that has not been created yet.
    pub(crate) job: Option<JobId>,
    pub(crate) job_request: JobRequest,
    pub(crate) resolved: Result<Box<ResolvedJobRequest>, DaemonCommandError>,
}
