//! Being the first process of a container: the daemon is a child, and whatever is left by processes
//! that died is waited for here, so that no zombies pile up.

use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use tokio::signal::unix::{SignalKind, signal};

use crate::context;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::output;

/// The signals that are passed on to the daemon.
const FORWARDED_SIGNALS: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];

/// Says whether nobody else waits for orphans.
pub(super) fn is_needed(wanted: bool) -> bool {
    wanted || std::process::id() == 1
}

/// Starts the daemon and ends with it.
#[expect(clippy::disallowed_methods, reason = "this process becomes the parent of itself")]
pub(super) fn run() -> CommandResult {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(std::io::Error::from)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let guard = runtime.enter();
    let mut deaths = signal(SignalKind::child())?;
    let mut passed_on = Vec::new();
    for number in FORWARDED_SIGNALS {
        passed_on.push((number, signal(SignalKind::from_raw(number.as_raw()))?));
    }
    drop(guard);
    let args = std::env::args_os().skip(1).filter(|arg| arg != "--as-init");
    let child = Command::new(context::program()?).args(args).stdin(Stdio::null()).spawn()?;
    let daemon = Pid::from_raw(child.id().cast_signed()).expect("a child has a process id");
    let status = runtime.block_on(async {
        loop {
            if let Some(status) = reap(daemon) {
                return status;
            }
            tokio::select! {
                _ = deaths.recv() => {}
                number = next(&mut passed_on) => {
                    // It may have ended just now.
                    let _gone = rustix::process::kill_process(daemon, number);
                }
            }
        }
    });
    // What is left of it is ours now, and ends with the first process.
    if std::process::id() == 1 && matches!(rustix::process::wait(WaitOptions::NOHANG), Ok(None)) {
        // It ends whether or not somebody hears of it.
        drop(output::print_note(
            "the jobs that run end with this container; the next start records them as interrupted",
        ));
    }
    match status.exit_status() {
        Some(0) => Ok(()),
        Some(code) => std::process::exit(code),
        None => {
            let signal = status.terminating_signal().unwrap_or_default();
            let message = format!("the daemon was ended by signal {signal}");
            Err(CommandFailure::message(FailureCode::Failed, message))
        }
    }
}

/// Waits for the next signal that is to be passed on.
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

/// Takes every process that has ended off the list; returns how the daemon did, if it was among them.
fn reap(daemon: Pid) -> Option<WaitStatus> {
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        if pid == daemon {
            return Some(status);
        }
    }
    None
}
