//! Recognition of idle connections.
//!
//! Every byte of a connection, in either direction, moves its [`ActivityMeter`]. A connection whose
//! meter stays where it is, is closed.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

/// Activity of one connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct ActivityMeter(Arc<MeterState>);

#[derive(Debug, Default)]
struct MeterState {
    count: AtomicU64,
    holds: AtomicUsize,
}

/// While it exists, the connection is not idle.
#[derive(Debug)]
pub(crate) struct MeterHold(Arc<MeterState>);

impl Drop for MeterHold {
    fn drop(&mut self) {
        self.0.holds.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ActivityMeter {
    pub(crate) fn record(&self) {
        self.0.count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn hold(&self) -> MeterHold {
        self.0.holds.fetch_add(1, Ordering::Relaxed);
        MeterHold(Arc::clone(&self.0))
    }

    /// Waits until nothing has happened for this long, and at most twice as long.
    pub(crate) async fn wait_idle(&self, time: Duration) {
        let mut before = self.0.count.load(Ordering::Relaxed);
        loop {
            tokio::time::sleep(time).await;
            let now = self.0.count.load(Ordering::Relaxed);
            if now == before && self.0.holds.load(Ordering::Relaxed) == 0 {
                return;
            }
            before = now;
        }
    }
}

/// Connection of the agent. Its first byte was read to recognize the protocol.
#[derive(Debug)]
pub(crate) struct AgentStream {
    first: Option<u8>,
    pub(crate) stream: UnixStream,
    meter: ActivityMeter,
}

impl AgentStream {
    pub(crate) fn new(first: u8, stream: UnixStream, meter: ActivityMeter) -> AgentStream {
        AgentStream { first: Some(first), stream, meter }
    }
}

impl AsyncRead for AgentStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() > 0
            && let Some(first) = self.first.take()
        {
            buffer.put_slice(&[first]);
            return Poll::Ready(Ok(()));
        }
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        self.meter.record();
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for AgentStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        self.meter.record();
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, bytes))?;
        self.meter.record();
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
