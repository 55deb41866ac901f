//! The end of a process that this process did not start. Start at [`ProcessEnd`].

use std::io;
use std::time::Duration;

use rustix::process::Pid;

use super::os::ProcessHandle;

/// Interval of the checks whether the process has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Process whose end can be waited for.
#[derive(Debug)]
pub(crate) struct ProcessEnd(ProcessHandle);

impl ProcessEnd {
    pub(crate) fn open(pid: u32) -> io::Result<ProcessEnd> {
        let pid = Pid::from_raw(pid.cast_signed()).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(ProcessEnd(ProcessHandle::open(pid)?))
    }

    /// Waits until the process has ended. Cancel-safe.
    pub(crate) async fn wait(&self) {
        while !self.0.has_ended() {
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }
}
