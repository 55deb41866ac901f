//! The runner's end of the socket to the first process of a sandbox. Start at
//! [`SandboxControl`].

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::sync::atomic::Ordering;

use heeler_inside::{InsideCommand, InsideReport, read_frame, write_frame};
use rustix::process::Signal;
use tokio::net::UnixStream;

use super::running_container::ContainerFlags;

/// Connection to the first process of a sandbox that has started its agent.
#[derive(Debug)]
pub(super) struct SandboxControl {
    stream: UnixStream,
    /// Received bytes of an incomplete message.
    received: Vec<u8>,
    status: Option<ExitStatus>,
    is_closed: bool,
    /// Present if the sandbox is a container, which is no child of this process.
    container: Option<ContainerFlags>,
}

impl SandboxControl {
    pub(super) fn new(
        stream: std::os::unix::net::UnixStream,
        container: Option<ContainerFlags>,
    ) -> io::Result<SandboxControl> {
        stream.set_nonblocking(true)?;
        let stream = UnixStream::from_std(stream)?;
        let (received, status, is_closed) = (Vec::new(), None, false);
        Ok(SandboxControl { stream, received, status, is_closed, container })
    }

    /// Waits until the first process may have reported something. Cancel-safe.
    pub(super) async fn changed(&self) {
        if self.is_closed || self.stream.readable().await.is_err() {
            // The end of the sandbox is noticed by the end of its process.
            std::future::pending::<()>().await;
        }
    }

    /// Returns the reported exit status of the agent, if it has ended.
    pub(super) fn exit_status(&mut self) -> Option<ExitStatus> {
        let mut buffer = [0; 256];
        while !self.is_closed && self.status.is_none() {
            match self.stream.try_read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Ok(0) | Err(_) => self.is_closed = true,
                Ok(count) => self.received.extend(&buffer[..count]),
            }
            self.status = self.take_status();
        }
        // The end of a container is noticed here only, because its processes are no children.
        if let (true, None, Some(container)) = (self.is_closed, self.status, &self.container) {
            container.is_lost.store(true, Ordering::Relaxed);
            self.status = Some(ExitStatus::from_raw(Signal::KILL.as_raw()));
        }
        self.status
    }

    fn take_status(&self) -> Option<ExitStatus> {
        // An incomplete message cannot be read yet. The only message at this time is the last one.
        match read_frame(self.received.as_slice()) {
            Ok(Some(InsideReport::Ended { status, out_of_memory })) => {
                let status = ExitStatus::from_raw(status);
                let has_failed = !status.success();
                if let Some(container) =
                    self.container.as_ref().filter(|_| out_of_memory && has_failed)
                {
                    container.out_of_memory.store(true, Ordering::Relaxed);
                }
                Some(status)
            }
            _ => None,
        }
    }

    /// Sends a signal to the agent.
    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        let mut frame = Vec::new();
        write_frame(&mut frame, &InsideCommand::Signal { number: signal.as_raw() })?;
        // A few bytes fit into the socket unless the sandbox has stopped reading for long.
        match self.stream.try_write(&frame)? == frame.len() {
            true => Ok(()),
            false => Err(io::ErrorKind::WriteZero.into()),
        }
    }
}
