//! Sizes of the executor's pools, and limits of the work that waits for them.
//!
//! The dispatcher never waits for a pool. At a limit it refuses a caller's request, or leaves the
//! work where it is recorded and looks again later. Work that belongs to a run needs no limit here:
//! there is a fixed number of pieces for each run, and `max_concurrent` limits the runs. These are
//! the launch of its runner, its adoption, its end, a reading of its questions, and a graceful and
//! an immediate cancellation.

use heeler_model::JobId;

use crate::command::{DaemonCommandError, DaemonCommandErrorKind};

/// Threads that prepare and start runners.
pub(super) const STARTERS: usize = 4;

/// Threads that collect results and settle dead runs.
pub(super) const COLLECTORS: usize = 4;

/// Threads that clone repositories and create worktrees for jobs. Each clone has a time limit.
pub(super) const CLONERS: usize = 4;

/// Threads that prepare session operations.
pub(super) const SESSION_PREPARERS: usize = 4;

/// Threads that decide about cancellations, answers and messages. They never wait for a run.
pub(super) const DELIVERERS: usize = 2;

/// Readers of the database that stay open for the pools. More are opened while more threads read.
pub(super) const IDLE_READERS_MAX: usize = 2;

/// Connections to runs at a time, for each kind of request. Further requests wait for one of these
/// to end, which takes no longer than its time limit.
pub(super) const CONNECTIONS_PER_LANE_MAX: usize = 128;

/// Jobs that are being prepared to start. At the limit a caller's request is refused, and a queued
/// job stays in the queue.
pub(super) const PREPARATIONS_MAX: usize = 1024;

/// Requests of callers that wait for a clone or a worktree. Further ones are refused. A queued job
/// is not refused: `max_concurrent` of its agent limits those.
pub(super) const CLONES_MAX: usize = 256;

/// Session operations that are being prepared. Further ones are refused.
pub(super) const SESSION_CHANGES_MAX: usize = 256;

/// Messages to agents that are being sent. Further ones are refused.
pub(super) const MESSAGES_MAX: usize = 256;

/// Messages to one run that are being sent, so that a run that hangs does not take the place of all
/// others. Further ones are refused.
pub(super) const MESSAGES_PER_RUN_MAX: usize = 16;

/// Lines of agent logs that wait to be written. Further ones are lost, and the log says how many.
pub(super) const LOG_LINES_MAX: usize = 4096;

/// Returns the error of a request at a limit.
pub(super) fn limit_error(description: &str, limit: usize) -> DaemonCommandError {
    let message = format!("too many requests: {description}, and the limit is {limit}");
    DaemonCommandError::new(DaemonCommandErrorKind::Busy, message)
        .with_hint("repeat the command later")
}

pub(super) fn message_limit_error(job: &JobId) -> DaemonCommandError {
    let description = format!("earlier messages to {job} are still being sent");
    limit_error(&description, MESSAGES_PER_RUN_MAX)
}
