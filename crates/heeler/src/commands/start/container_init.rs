//! First process of a container: runs the daemon as a child, forwards signals to it, and reaps
//! orphaned processes, so that no zombies remain. Start at [`run`].

use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::output;
use crate::process_env;

/// Signals that are forwarded to the daemon.
const FORWARDED_SIGNALS: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];

/// Returns true if this process is the one that must reap orphans.
pub(super) fn is_needed(wanted: bool) -> bool {
    wanted || std::process::id() == 1
}

/// Starts the daemon, and exits with its exit code.
#[expect(clippy::disallowed_methods, reason = "this process becomes the parent of itself")]
pub(super) fn run() -> CommandResult {
    // PID 1 gets orphans anyway; with `--as-init` another process must ask for them.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(std::io::Error::from)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let guard = runtime.enter();
    // Registered before the child starts, so that its death cannot be missed.
    let mut deaths = signal(SignalKind::child())?;
    let mut passed_on = Vec::new();
    for number in FORWARDED_SIGNALS {
        passed_on.push((number, signal(SignalKind::from_raw(number.as_raw()))?));
    }
    drop(guard);
    // The child must not become an init again; its process ID is not 1.
    let args = std::env::args_os().skip(1).filter(|arg| arg != "--as-init");
    let child = Command::new(process_env::program()?).args(args).stdin(Stdio::null()).spawn()?;
    let daemon = Pid::from_raw(child.id().cast_signed()).expect("a child has a process id");
    let status = runtime.block_on(async {
        loop {
            // Signals of several deaths are merged into one, so all are reaped each time.
            if let Some(status) = reap(daemon) {
                return status;
            }
            tokio::select! {
                _ = deaths.recv() => {}
                number = next(&mut passed_on) => {
                    // Fails only if the daemon has just ended.
                    let _gone = rustix::process::kill_process(daemon, number);
                }
            }
        }
    });
    // The daemon's remaining children now belong to this process, and end with it if it is PID 1.
    if std::process::id() == 1 && matches!(rustix::process::wait(WaitOptions::NOHANG), Ok(None)) {
        // The container ends even if this note cannot be written.
        drop(output::print_note(
            "running jobs end with this container; the next start records them as interrupted",
        ));
    }
    match status.exit_status() {
        Some(0) => Ok(()),
        // The container's exit code must be the daemon's: service managers act on it.
        Some(code) => std::process::exit(code),
        None => {
            let signal = status.terminating_signal().unwrap_or_default();
            let message = format!("the daemon was ended by signal {signal}");
            Err(CommandFailure::message(FailureCode::Failed, message))
        }
    }
}

/// Waits for the next signal to forward.
async fn next(signals: &mut [(Signal, tokio::signal::unix::Signal)]) -> Signal {
    std::future::poll_fn(|context| {
        for (number, signal) in signals.iter_mut() {
            if signal.poll_recv(context).is_ready() {
                return std::task::Poll::Ready(*number);
            }
        }
        std::task::Poll::Pending
    })
    .await
}

/// Reaps all ended processes; returns the daemon's status if it was among them.
fn reap(daemon: Pid) -> Option<WaitStatus> {
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        if pid == daemon {
            return Some(status);
        }
    }
    None
}
