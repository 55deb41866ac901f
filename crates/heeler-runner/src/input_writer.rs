//! The agent's standard input, written as fast as the agent reads it.
//!
//! An agent may not read while it writes, so input waits in a bounded queue here while the event
//! loop continues to read. Start at [`AgentInputWriter::push`].

use std::collections::VecDeque;
use std::io;

use tokio::io::{AsyncWrite, AsyncWriteExt as _};

/// Limit on bytes queued for an agent that does not read.
pub(crate) const INPUT_BYTES_MAX: usize = 32 << 20;

/// The queue of the agent's input is full.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AgentInputFullError;

#[derive(Debug)]
pub(crate) struct AgentInputWriter<W> {
    /// `None` once it is closed.
    input: Option<W>,
    queue: VecDeque<Vec<u8>>,
    /// Number of bytes of the first line already written.
    written: usize,
    /// Number of queued bytes.
    waiting: usize,
    /// No more input will follow: close once everything is written.
    close_when_written: bool,
}

impl<W: AsyncWrite + Unpin> AgentInputWriter<W> {
    pub(crate) fn new(input: Option<W>) -> AgentInputWriter<W> {
        AgentInputWriter {
            input,
            queue: VecDeque::new(),
            written: 0,
            waiting: 0,
            close_when_written: false,
        }
    }

    /// Queues bytes for the agent. Bytes pushed after the close are dropped.
    pub(crate) fn push(&mut self, bytes: Vec<u8>) -> Result<(), AgentInputFullError> {
        if self.input.is_none() || self.close_when_written || bytes.is_empty() {
            return Ok(());
        }
        if self.waiting + bytes.len() > INPUT_BYTES_MAX {
            // Nothing is dropped silently: the caller ends an agent that does not read.
            return Err(AgentInputFullError);
        }
        self.waiting += bytes.len();
        self.queue.push_back(bytes);
        Ok(())
    }

    /// Returns true if `bytes` more would fit into the queue.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.waiting + bytes <= INPUT_BYTES_MAX
    }

    /// Closes the input once everything is written.
    pub(crate) fn close(&mut self) {
        self.close_when_written = true;
        if self.queue.is_empty() {
            self.input = None;
        }
    }

    /// Returns true if the agent still accepts input.
    pub(crate) fn is_open(&self) -> bool {
        self.input.is_some() && !self.close_when_written
    }

    /// Returns true if bytes are queued.
    pub(crate) fn is_waiting(&self) -> bool {
        self.input.is_some() && !self.queue.is_empty()
    }

    /// Writes part of the queue. Cancel-safe.
    ///
    /// A closed reading end is not an error: the agent will report its own end.
    pub(crate) async fn write_some(&mut self) {
        let (Some(input), Some(first)) = (&mut self.input, self.queue.front()) else {
            return std::future::pending().await;
        };
        match input.write(&first[self.written..]).await {
            Ok(len) if len > 0 => self.advance(len),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The agent reads no more, so the rest of its input is useless.
            _ => self.discard(),
        }
    }

    fn advance(&mut self, len: usize) {
        self.written += len;
        self.waiting -= len;
        if self.queue.front().is_some_and(|first| self.written >= first.len()) {
            self.queue.pop_front();
            self.written = 0;
        }
        if self.close_when_written && self.queue.is_empty() {
            self.input = None;
        }
    }

    fn discard(&mut self) {
        self.input = None;
        self.queue.clear();
        (self.written, self.waiting) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[tokio::test]
    async fn what_is_pushed_arrives_in_order_and_then_the_input_is_closed() {
        let (ours, mut theirs) = tokio::io::duplex(4);
        let mut writer = AgentInputWriter::new(Some(ours));
        writer.push(b"one\n".to_vec()).unwrap();
        writer.push(b"two and more\n".to_vec()).unwrap();
        writer.close();
        let mut read = Vec::new();
        let reading = theirs.read_to_end(&mut read);
        tokio::pin!(reading);
        loop {
            tokio::select! {
                done = &mut reading => { done.unwrap(); break }
                () = writer.write_some(), if writer.is_waiting() => {}
            }
        }
        assert_eq!(read, b"one\ntwo and more\n");
        assert!(!writer.is_open());
    }

    #[tokio::test]
    async fn more_than_the_limit_is_refused_and_what_waits_stays() {
        let (ours, _theirs) = tokio::io::duplex(4);
        let mut writer = AgentInputWriter::new(Some(ours));
        writer.push(vec![0; INPUT_BYTES_MAX]).unwrap();
        assert!(!writer.has_room(1));
        assert_eq!(writer.push(vec![0]), Err(AgentInputFullError));
        writer.write_some().await;
        assert!(writer.has_room(4));
    }

    #[tokio::test]
    async fn an_agent_that_closed_its_input_is_no_error() {
        let (ours, theirs) = tokio::io::duplex(4);
        drop(theirs);
        let mut writer = AgentInputWriter::new(Some(ours));
        writer.push(b"hello\n".to_vec()).unwrap();
        writer.write_some().await;
        assert!(!writer.is_open() && !writer.is_waiting());
        writer.push(b"hello\n".to_vec()).unwrap();
        assert!(!writer.is_waiting());
    }
}
