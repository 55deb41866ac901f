//! Transfer of bytes between the agent's connection and the host's.
//!
//! A direction begins with a small buffer, which is fast for short messages. As soon as it is filled by
//! one read, the kernel moves the data through a pipe (`splice`), without copies into this process.
//! Start at [`pump`].

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::Shutdown;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

use crate::meter::ActivityMeter;

/// Size of the buffer of one direction, in bytes.
const BUFFER_BYTES: usize = 16 << 10;

/// Wanted capacity of a pipe, in bytes. The kernel may give less.
const PIPE_BYTES: usize = 256 << 10;

/// Wanted send buffer of a Unix socket that transfers much, in bytes. The kernel may give less. With its
/// default of 208 KiB, both sides often wait for each other.
const SEND_BUFFER_BYTES: usize = 512 << 10;

/// Socket whose readiness is awaited.
pub(crate) trait RelaySocket: AsFd {
    /// Performs an operation as soon as the socket is ready for it.
    fn when_ready<R>(
        &self,
        interest: Interest,
        operation: impl FnMut() -> io::Result<R>,
    ) -> impl Future<Output = io::Result<R>>;

    /// Prepares the socket for much data that will be written to it.
    fn prepare_for_bulk(&self) {}
}

impl RelaySocket for UnixStream {
    async fn when_ready<R>(
        &self,
        interest: Interest,
        operation: impl FnMut() -> io::Result<R>,
    ) -> io::Result<R> {
        self.async_io(interest, operation).await
    }

    fn prepare_for_bulk(&self) {
        // A small buffer works too. The kernel adapts those of TCP itself.
        let _ = set_socket_send_buffer_size(self, SEND_BUFFER_BYTES);
    }
}

impl RelaySocket for TcpStream {
    async fn when_ready<R>(
        &self,
        interest: Interest,
        operation: impl FnMut() -> io::Result<R>,
    ) -> io::Result<R> {
        self.async_io(interest, operation).await
    }
}

/// Relays one direction to its end, and ends the other socket's input then.
pub(crate) async fn pump(
    from: &impl RelaySocket,
    to: &impl RelaySocket,
    meter: &ActivityMeter,
) -> io::Result<()> {
    let is_bulk = copy_until_bulk(from, to, meter).await?;
    if is_bulk {
        to.prepare_for_bulk();
        // Without free file descriptors for a pipe, the buffer still works.
        match RelayPipe::open() {
            Ok(pipe) => pipe.transfer(from, to, meter).await?,
            Err(_) => while copy_until_bulk(from, to, meter).await? {},
        }
    }
    match rustix::net::shutdown(to, Shutdown::Write) {
        // The other side has closed already.
        Ok(()) | Err(Errno::NOTCONN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Copies until the end (false), or until one read fills the buffer (true).
async fn copy_until_bulk(
    from: &impl RelaySocket,
    to: &impl RelaySocket,
    meter: &ActivityMeter,
) -> io::Result<bool> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = || Ok(rustix::io::read(from, &mut buffer[..])?);
        let count = from.when_ready(Interest::READABLE, read).await?;
        meter.record();
        if count == 0 {
            return Ok(false);
        }
        write_all(to, &buffer[..count]).await?;
        if count == BUFFER_BYTES {
            return Ok(true);
        }
    }
}

/// Writes all bytes.
pub(crate) async fn write_all(to: &impl RelaySocket, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let write = || Ok(rustix::net::send(to, bytes, rustix::net::SendFlags::NOSIGNAL)?);
        let count = to.when_ready(Interest::WRITABLE, write).await?;
        bytes = &bytes[count..];
    }
    Ok(())
}

/// Pipe that is empty between two transfers.
struct RelayPipe {
    output: OwnedFd,
    input: OwnedFd,
}

impl RelayPipe {
    fn open() -> io::Result<RelayPipe> {
        let (output, input) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // The kernel limits the pipes of a user; a small one works too.
        let _ = fcntl_setpipe_size(&input, PIPE_BYTES);
        Ok(RelayPipe { output, input })
    }

    async fn transfer(
        &self,
        from: &impl RelaySocket,
        to: &impl RelaySocket,
        meter: &ActivityMeter,
    ) -> io::Result<()> {
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        loop {
            let fill = || Ok(splice(from, None, &self.input, None, PIPE_BYTES, flags)?);
            let mut left = from.when_ready(Interest::READABLE, fill).await?;
            meter.record();
            if left == 0 {
                return Ok(());
            }
            while left > 0 {
                let drain = || Ok(splice(&self.output, None, to, None, left, flags)?);
                left -= to.when_ready(Interest::WRITABLE, drain).await?;
            }
        }
    }
}
