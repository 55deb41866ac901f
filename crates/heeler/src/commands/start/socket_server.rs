//! Threads next to the dispatcher: the socket server and the signal handler. Start at
//! [`SocketServer`].

use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::thread::JoinHandle;

use heeler_engine::{DaemonCommand, DaemonHandle, StopMode};
use heeler_server::{ConnectionCounter, DaemonListeners, SharedServerState, serve};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use crate::output;

/// Server threads.
const WORKERS: usize = 2;

/// Threads for requests that wait for the disk or the dispatcher. Further ones wait for a thread;
/// the limits of connections and of expensive reads are reached first.
const BLOCKING_THREADS_MAX: usize = 512;

/// Server of the socket and the web listener, on a thread of its own.
pub(super) struct SocketServer {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl SocketServer {
    pub(super) fn start(
        socket: UnixListener,
        web: Option<TcpListener>,
        app: SharedServerState,
        connections: ConnectionCounter,
    ) -> io::Result<SocketServer> {
        // tokio requires it of a listener that it takes over.
        socket.set_nonblocking(true)?;
        // One thread for short requests and one for slow ones, whatever the number of cores.
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(WORKERS).max_blocking_threads(BLOCKING_THREADS_MAX);
        let runtime = builder.enable_all().build()?;
        // The listeners are registered here, so that an error is returned and not only logged.
        let guard = runtime.enter();
        let socket = tokio::net::UnixListener::from_std(socket)?;
        let web = web.map(tokio::net::TcpListener::from_std).transpose()?;
        let listeners = DaemonListeners { socket, web };
        drop(guard);
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("server".to_owned()).spawn(move || {
            // A dropped sender stops the server too.
            let stopped = async { drop(stopped.await) };
            let served = serve(listeners, app, &connections, stopped);
            if let Err(error) = runtime.block_on(served) {
                tracing::error!(%error, "the server failed: this daemon no longer accepts connections");
            }
            // Do not wait for requests: their dispatcher may have ended.
            runtime.shutdown_background();
        })?;
        Ok(SocketServer { stop, thread })
    }

    /// Stops the server after its last answers.
    pub(super) fn end(self) {
        // Fails only if the server has already ended.
        let _ended = self.stop.send(());
        if self.thread.join().is_err() {
            tracing::error!("the server panicked");
        }
    }
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Starts a thread that turns signals into daemon commands.
pub(super) fn handle_signals(handle: DaemonHandle, is_attended: bool) -> io::Result<()> {
    let runtime = runtime()?;
    let guard = runtime.enter();
    let mut signals = DaemonSignals {
        interrupts: signal(SignalKind::interrupt())?,
        terminates: signal(SignalKind::terminate())?,
        hang_ups: signal(SignalKind::hangup())?,
        interrupted: 0,
        is_attended,
    };
    drop(guard);
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        runtime.block_on(async {
            loop {
                let command = signals.next().await;
                let callback: heeler_engine::ReplyCallback = Box::new(|answer| {
                    if let Err(refused) = answer {
                        tracing::warn!(
                            reason = refused.message,
                            "the command requested by a signal failed"
                        );
                    }
                });
                // The dispatcher has ended, so there is nothing left to control.
                if handle.send(command, callback).is_err() {
                    return;
                }
            }
        });
    })?;
    Ok(())
}

/// Signals that a daemon handles.
struct DaemonSignals {
    interrupts: Signal,
    terminates: Signal,
    hang_ups: Signal,
    interrupted: u32,
    /// True if the daemon runs on a user's terminal.
    is_attended: bool,
}

impl DaemonSignals {
    /// Waits for the next signal, and returns its command.
    async fn next(&mut self) -> DaemonCommand {
        tokio::select! {
            _ = self.interrupts.recv() => self.interrupt(),
            // A service manager that stops or restarts the daemon must not end the agents' work.
            _ = self.terminates.recv() => DaemonCommand::Stop(StopMode::KeepJobs),
            // A daemon rereads its config at SIGHUP, but a closed terminal sends it too.
            _ = self.hang_ups.recv() => match self.is_attended && is_terminal_gone() {
                true => DaemonCommand::Stop(StopMode::KeepJobs),
                false => DaemonCommand::Reload,
            },
        }
    }

    /// Handles Ctrl-C: the first waits for running jobs, the second leaves them running.
    fn interrupt(&mut self) -> DaemonCommand {
        self.interrupted += 1;
        if self.interrupted > 1 {
            return DaemonCommand::Stop(StopMode::KeepJobs);
        }
        if self.is_attended {
            // The daemon must stop even if this note cannot be written.
            drop(output::print_note(
                "stopping after running jobs have finished; Ctrl-C again leaves them to the next daemon",
            ));
        }
        DaemonCommand::Stop(StopMode::Wait { timeout: None })
    }
}

/// Returns true if the terminal that started the daemon was closed.
fn is_terminal_gone() -> bool {
    // A terminal that was closed answers with EIO; one that is open, or no terminal, does not.
    matches!(rustix::termios::tcgetattr(io::stderr()), Err(rustix::io::Errno::IO))
}
