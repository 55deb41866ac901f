//! What goes on beside the dispatcher: the socket, and signals.

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

/// How many threads talk.
const WORKERS: usize = 2;

/// The socket's server, on a thread of its own.
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
        socket.set_nonblocking(true)?;
        // One thread to talk and one for whatever takes a while, however many cores there are.
        let runtime = Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
        let guard = runtime.enter();
        let socket = tokio::net::UnixListener::from_std(socket)?;
        let web = web.map(tokio::net::TcpListener::from_std).transpose()?;
        let listeners = DaemonListeners { socket, web };
        drop(guard);
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("server".to_owned()).spawn(move || {
            let stopped = async { drop(stopped.await) };
            let served = serve(listeners, app, &connections, stopped);
            if let Err(error) = runtime.block_on(served) {
                tracing::error!(%error, "nobody can talk to this daemon any more");
            }
            // A request may wait for a dispatcher that is gone.
            runtime.shutdown_background();
        })?;
        Ok(SocketServer { stop, thread })
    }

    /// Ends it, after the last answers.
    pub(super) fn end(self) {
        // It may have ended by itself.
        let _ended = self.stop.send(());
        if self.thread.join().is_err() {
            tracing::error!("the server panicked");
        }
    }
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Turns signals into commands, from now on.
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
                let told: heeler_engine::ReplyCallback = Box::new(|answer| {
                    if let Err(refused) = answer {
                        tracing::warn!(reason = refused.message, "what a signal asked for failed");
                    }
                });
                if handle.send(command, told).is_err() {
                    return;
                }
            }
        });
    })?;
    Ok(())
}

/// The signals that mean something to a daemon.
struct DaemonSignals {
    interrupts: Signal,
    terminates: Signal,
    hang_ups: Signal,
    interrupted: u32,
    /// Somebody looks at a terminal.
    is_attended: bool,
}

impl DaemonSignals {
    /// Waits for the next signal and says what it asks for.
    async fn next(&mut self) -> DaemonCommand {
        tokio::select! {
            _ = self.interrupts.recv() => self.interrupt(),
            _ = self.terminates.recv() => DaemonCommand::Stop(StopMode::KeepJobs),
            _ = self.hang_ups.recv() => match self.is_attended && is_terminal_gone() {
                true => DaemonCommand::Stop(StopMode::KeepJobs),
                false => DaemonCommand::Reload,
            },
        }
    }

    /// Ctrl-C first waits for the jobs that run, then leaves them.
    fn interrupt(&mut self) -> DaemonCommand {
        self.interrupted += 1;
        if self.interrupted > 1 {
            return DaemonCommand::Stop(StopMode::KeepJobs);
        }
        if self.is_attended {
            // The daemon stops whether or not this can be said.
            drop(output::print_note(
                "stopping: jobs that run are waited for; Ctrl-C again leaves them to the next daemon",
            ));
        }
        DaemonCommand::Stop(StopMode::Wait { timeout: None })
    }
}

/// Says whether the terminal that we were started in was closed.
fn is_terminal_gone() -> bool {
    matches!(rustix::termios::tcgetattr(io::stderr()), Err(rustix::io::Errno::IO))
}
