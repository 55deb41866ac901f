//! Signals to the runner itself: whoever sends one wants the run to end.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals to this process.
#[derive(Debug)]
pub(crate) struct RunnerSignals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl RunnerSignals {
    /// Catches them from now on.
    pub(crate) fn listen() -> io::Result<RunnerSignals> {
        Ok(RunnerSignals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Returns the name of the next one. Loses nothing when it is dropped before it is ready.
    pub(crate) async fn next_signal(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.hang_up.recv() => "SIGHUP",
        }
    }
}
