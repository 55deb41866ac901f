//! Stream that fails if the other end does not read for a while.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// Longest time in which the other end may read nothing.
pub(crate) const WRITE_WAIT: Duration = Duration::from_secs(30);

/// Stream with a write timeout.
pub(crate) struct WriteTimeoutStream<S> {
    stream: S,
    /// Runs while a write is pending.
    timeout: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteTimeoutStream<S> {
    pub(crate) fn new(stream: S) -> WriteTimeoutStream<S> {
        WriteTimeoutStream { stream, timeout: None }
    }

    fn check_timeout<T>(
        &mut self,
        cx: &mut Context<'_>,
        done: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        // A completed write proves that the other end reads, so the time starts anew.
        if done.is_ready() {
            self.timeout = None;
            return done;
        }
        // Created only when a write has to wait, because most writes do not.
        let late = self.timeout.get_or_insert_with(|| Box::pin(sleep(WRITE_WAIT)));
        if late.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        // Keeps the timer expired, so that a further poll fails again.
        late.as_mut().reset(Instant::now());
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the other end does not read")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeoutStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeoutStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.check_timeout(cx, done)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.check_timeout(cx, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Sockets have no buffer of their own to flush, so this never waits.
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn whoever_takes_nothing_for_a_while_is_cut_and_whoever_is_slow_is_not() {
        let (ours, mut theirs) = duplex(8);
        let mut ours = WriteTimeoutStream::new(ours);
        ours.write_all(&[0; 8]).await.unwrap();
        let slow = async {
            for _ in 0..5 {
                tokio::time::sleep(WRITE_WAIT - Duration::from_secs(1)).await;
                theirs.read_exact(&mut [0; 4]).await.unwrap();
            }
            theirs
        };
        let (written, _theirs) = tokio::join!(ours.write_all(&[1; 20]), slow);
        written.unwrap();
        let error = ours.write_all(&[2; 40]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
