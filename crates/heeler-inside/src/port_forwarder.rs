//! Forwards TCP ports of the sandbox's loopback interface to sockets of the runner.
//!
//! The sandbox has a network of its own without any other interface, so these ports are its only
//! way out. Start at [`PortForwarder::bind`].

use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::protocol::LoopbackForward;

/// Maximum number of connections at a time. Each one takes two threads.
const CONNECTIONS_MAX: usize = 256;

/// Stack of a thread that copies bytes.
const STACK_BYTES: usize = 128 << 10;

/// Listening ports that are not served yet.
pub(crate) struct PortForwarder {
    listeners: Vec<(TcpListener, String)>,
}

impl PortForwarder {
    /// Listens on every port, so that the agent can connect as soon as it starts.
    pub(crate) fn bind(forwards: &[LoopbackForward]) -> io::Result<PortForwarder> {
        let bind = |forward: &LoopbackForward| {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, forward.port))?;
            Ok((listener, forward.socket.clone()))
        };
        Ok(PortForwarder { listeners: forwards.iter().map(bind).collect::<io::Result<_>>()? })
    }

    /// Serves the ports in threads until this process exits.
    pub(crate) fn serve(self) -> io::Result<()> {
        let open = Arc::new(AtomicUsize::new(0));
        for (listener, socket) in self.listeners {
            let open = Arc::clone(&open);
            spawn(move || {
                // A failed accept concerns one connection.
                for stream in listener.incoming().flatten() {
                    // A connection beyond the limit is closed, which its client sees at once.
                    if open.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX
                        || forward(stream, &socket, &open).is_err()
                    {
                        open.fetch_sub(1, Ordering::Relaxed);
                    }
                }
            })?;
        }
        Ok(())
    }
}

/// Connects both ends and copies in both directions.
fn forward(inside: TcpStream, socket: &str, open: &Arc<AtomicUsize>) -> io::Result<()> {
    let outside = UnixStream::connect(socket)?;
    // Small writes of a protocol such as TLS must not wait for each other.
    inside.set_nodelay(true)?;
    let (inside_writer, outside_writer) = (inside.try_clone()?, outside.try_clone()?);
    let open = Arc::clone(open);
    spawn(move || {
        let copied = spawn(move || {
            let _sent = io::copy(&mut &inside, &mut &outside_writer);
            let _closed = outside_writer.shutdown(Shutdown::Write);
        });
        let _received = io::copy(&mut &outside, &mut &inside_writer);
        let _closed = inside_writer.shutdown(Shutdown::Write);
        if let Ok(copier) = copied {
            // A copier that panicked has nothing more to copy either.
            let _joined = copier.join();
        }
        open.fetch_sub(1, Ordering::Relaxed);
    })?;
    Ok(())
}

fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<thread::JoinHandle<()>> {
    thread::Builder::new().stack_size(STACK_BYTES).spawn(work)
}
