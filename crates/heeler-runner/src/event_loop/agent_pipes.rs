//! Waiting for the pipes of an agent. Start at [`fill_lines`].

use std::future::pending;
use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use tokio::process::{ChildStderr, ChildStdout};
use tokio::time::sleep_until;

use crate::line_reader::AgentLineReader;
use crate::stderr_log::AgentStderrLog;

pub(super) async fn fill_lines(
    lines: &mut AgentLineReader,
    stdout: &mut Option<ChildStdout>,
) -> io::Result<usize> {
    match stdout {
        Some(stdout) => lines.fill(stdout).await,
        // A stream that has ended must not win the selection again and again.
        None => pending().await,
    }
}

pub(super) async fn fill_stderr(
    complaints: &mut AgentStderrLog,
    stderr: &mut Option<ChildStderr>,
) -> io::Result<usize> {
    match stderr {
        Some(stderr) => complaints.fill(stderr).await,
        None => pending().await,
    }
}

pub(super) async fn wait_until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at.into()).await,
        None => pending().await,
    }
}

/// Returns the number of bytes a pipe holds.
pub(super) fn buffered_bytes(pipe: &impl AsFd) -> usize {
    // A pipe always supports this ioctl; an error means that it is at its end.
    rustix::io::ioctl_fionread(pipe).map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
}
