//! Signals to the runner itself, which ask it to end the run.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

#[derive(Debug)]
pub(crate) struct RunnerSignals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl RunnerSignals {
    /// Starts catching the signals.
    pub(crate) fn listen() -> io::Result<RunnerSignals> {
        Ok(RunnerSignals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Returns the name of the next signal. Cancel-safe.
    pub(crate) async fn next_signal(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.hang_up.recv() => "SIGHUP",
        }
    }
}
