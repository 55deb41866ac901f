//! Events that a watch of a job or workflow run handles: [`JobWatchEvent`].

use heeler_engine::CommandReply;
use heeler_query::job_feed::JobFeedEvent;

use crate::failure::CommandResult;

/// Event of a watched job.
pub(crate) enum JobWatchEvent {
    Feed(JobFeedEvent),
    /// Answer of the daemon.
    DaemonAnswer(CommandResult<CommandReply>),
    /// No daemon has the job, and none could be started: the reason.
    Unattended(String),
    Interrupt,
    /// A cancel request failed: the reason.
    CancelFailed(String),
    /// A line typed after the question of this number; `None` at the end of input.
    LineTyped(u64, Option<String>),
}
