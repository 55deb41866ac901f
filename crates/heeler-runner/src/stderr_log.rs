//! `stderr.log`: the beginning and the end of an agent's standard error, redacted.
//!
//! The file is for people; its end also helps to classify the run's end. An error here never stops
//! a run. Start at [`AgentStderrLog`].

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt as _;

use camino::Utf8Path;
use heeler_model::redact::SecretRedactor;
use heeler_transcript::untrusted_file;
use rustix::buffer::spare_capacity;
use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::text_decoder::RedactingTextDecoder;

/// Number of bytes kept from the beginning.
pub(crate) const STDERR_HEAD_BYTES_MAX: usize = 256 << 10;

/// Number of bytes kept from the end; the run's end is classified by the same bytes.
pub(crate) const STDERR_TAIL_BYTES_MAX: usize = 64 << 10;

/// Limit on bytes recorded in rows, where standard error is recorded; the rest is only in the file.
pub(crate) const STDERR_RECORDED_BYTES_MAX: usize = 256 << 10;

const READ_BYTES: usize = 8 << 10;

#[derive(Debug)]
pub(crate) struct AgentStderrLog {
    /// `None` if the disk does not accept it.
    file: Option<File>,
    text: Option<RedactingTextDecoder>,
    buffer: Vec<u8>,
    /// Number of bytes in the file.
    head_bytes: usize,
    /// End of the whole output, also of parts that are not in the file.
    tail: String,
    /// Number of bytes written by the agent.
    total_bytes: usize,
    /// Text queued for recording.
    unrecorded: String,
    /// Number of bytes queued for recording since the start.
    recorded_bytes: usize,
}

impl AgentStderrLog {
    /// Opens `stderr.log` in the run directory for appending and creates it if it is missing.
    pub(crate) fn open(dir: &Utf8Path, redactor: &SecretRedactor) -> AgentStderrLog {
        let mut options = File::options();
        options.append(true).create(true).mode(0o600);
        AgentStderrLog {
            file: untrusted_file::open_with(&mut options, &dir.join("stderr.log")).ok(),
            text: Some(RedactingTextDecoder::new(redactor)),
            buffer: Vec::new(),
            head_bytes: 0,
            tail: String::new(),
            total_bytes: 0,
            unrecorded: String::new(),
            recorded_bytes: 0,
        }
    }

    /// Returns complete lines not returned before, or the rest at the end.
    pub(crate) fn take_unrecorded_lines(&mut self) -> Option<String> {
        // The last line may still continue, unless the output has ended.
        let end = match self.text {
            Some(_) => self.unrecorded.rfind('\n').map_or(0, |at| at + 1),
            None => self.unrecorded.len(),
        };
        let recorded: String = self.unrecorded.drain(..end).collect();
        let recorded = recorded.trim_end_matches('\n');
        (!recorded.trim().is_empty()).then(|| recorded.to_owned())
    }

    /// Queues text for recording, within the limit.
    fn queue_for_recording(&mut self, text: &str) {
        let free = STDERR_RECORDED_BYTES_MAX.saturating_sub(self.recorded_bytes);
        let fitting = &text[..text.floor_char_boundary(free)];
        self.unrecorded.push_str(fitting);
        // The whole length counts, so that the notice below appears only once.
        self.recorded_bytes += text.len();
        if free > 0 && fitting.len() < text.len() {
            self.unrecorded.push_str("\n[… the rest is only in stderr.log of the run …]\n");
        }
    }

    /// Reads once and returns the number of bytes, 0 at the end. Cancel-safe.
    pub(crate) async fn fill(&mut self, from: &mut (impl AsyncRead + Unpin)) -> io::Result<usize> {
        self.buffer.reserve(READ_BYTES);
        from.read_buf(&mut self.buffer).await
    }

    /// Reads the available bytes without waiting.
    pub(crate) fn fill_now(&mut self, from: impl AsFd) -> io::Result<usize> {
        self.buffer.reserve(READ_BYTES);
        Ok(rustix::io::read(from, spare_capacity(&mut self.buffer))?)
    }

    /// Processes the bytes in the read buffer.
    pub(crate) fn flush_buffer(&mut self) {
        let Some(text) = &mut self.text else { return };
        let text = text.push(&self.buffer);
        self.buffer.clear();
        self.append_text(&text);
    }

    /// Writes the end to the file and returns it.
    pub(crate) fn finish(&mut self) -> &str {
        self.flush_buffer();
        if let Some(text) = self.text.take() {
            self.append_text(&text.finish());
            self.truncate_tail();
            self.write_tail();
        }
        &self.tail
    }

    fn write_tail(&mut self) {
        let missing = self.total_bytes - self.head_bytes;
        // The tail may overlap with the head, which is in the file already.
        let from = self.tail.ceil_char_boundary(self.tail.len().saturating_sub(missing));
        let mut end = self.tail[from..].to_owned();
        if missing > end.len() {
            end.insert_str(0, &format!("\n[… {} bytes left out …]\n", missing - end.len()));
        }
        if let Some(file) = &mut self.file {
            // The file is for people only; the run does not depend on it.
            drop(file.write_all(end.as_bytes()));
        }
    }

    fn append_text(&mut self, text: &str) {
        self.queue_for_recording(text);
        self.total_bytes += text.len();
        let free = text.floor_char_boundary(STDERR_HEAD_BYTES_MAX.saturating_sub(self.head_bytes));
        // The head ends at the first omission, even if later text would still fit.
        if self.total_bytes - text.len() == self.head_bytes && free > 0 {
            self.write_head(&text[..free]);
        }
        self.tail.push_str(text);
        // Cutting only at twice the size keeps the cost per byte constant.
        if self.tail.len() > 2 * STDERR_TAIL_BYTES_MAX {
            self.truncate_tail();
        }
    }

    fn write_head(&mut self, text: &str) {
        let Some(file) = &mut self.file else { return };
        match file.write_all(text.as_bytes()) {
            Ok(()) => self.head_bytes += text.len(),
            // The file is for people, so a full disk only ends the file.
            Err(_) => self.file = None,
        }
    }

    fn truncate_tail(&mut self) {
        let excess = self.tail.len().saturating_sub(STDERR_TAIL_BYTES_MAX);
        let cut = self.tail.ceil_char_boundary(excess);
        self.tail.drain(..cut);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(pieces: &[&str], secrets: &[String]) -> (String, String) {
        let temp = tempfile::tempdir().unwrap();
        let dir = Utf8Path::from_path(temp.path()).unwrap();
        let mut complaints = AgentStderrLog::open(dir, &SecretRedactor::new(secrets));
        for piece in pieces {
            complaints.buffer.extend_from_slice(piece.as_bytes());
            complaints.flush_buffer();
        }
        let end = complaints.finish().to_owned();
        (std::fs::read_to_string(dir.join("stderr.log")).unwrap(), end)
    }

    #[test]
    fn whole_lines_are_told_once_and_only_so_much() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Utf8Path::from_path(temp.path()).unwrap();
        let mut complaints =
            AgentStderrLog::open(dir, &SecretRedactor::new(&["hunter2hunter2".to_owned()]));
        let mut say = |text: &str| {
            complaints.buffer.extend_from_slice(text.as_bytes());
            complaints.flush_buffer();
            complaints.take_unrecorded_lines()
        };
        assert_eq!(say("one\ntwo\nthr").as_deref(), Some("one\ntwo"));
        assert_eq!(say("ee hunter2hun"), None);
        assert_eq!(say("ter2\n\n").as_deref(), Some("three [secret]"));
        assert_eq!(say("\n"), None, "nothing is said by it");
        let long = format!("{}\n", "x".repeat(STDERR_RECORDED_BYTES_MAX));
        let told = say(&long).unwrap();
        assert!(told.len() < STDERR_RECORDED_BYTES_MAX + 100);
        assert!(told.ends_with("[… the rest is only in stderr.log of the run …]"));
        assert_eq!(say("more\n"), None);
        complaints.finish();
        assert_eq!(complaints.take_unrecorded_lines(), None);
        let mut complaints = AgentStderrLog::open(dir, &SecretRedactor::new(&[]));
        complaints.buffer.extend_from_slice(b"half");
        complaints.finish();
        assert_eq!(complaints.take_unrecorded_lines().as_deref(), Some("half"));
    }

    #[test]
    fn what_is_short_is_kept_whole_and_without_secrets() {
        let (file, end) = written(&["oh no: hunter2", "hunter2\n"], &["hunter2hunter2".to_owned()]);
        assert_eq!(file, "oh no: [secret]\n");
        assert_eq!(end, file);
    }

    #[test]
    fn a_link_that_was_planted_is_not_followed() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Utf8Path::from_path(temp.path()).unwrap();
        std::fs::write(dir.join("mine"), "mine").unwrap();
        std::os::unix::fs::symlink("mine", dir.join("stderr.log")).unwrap();
        let mut complaints = AgentStderrLog::open(dir, &SecretRedactor::new(&[]));
        complaints.buffer.extend_from_slice(b"oh no");
        assert_eq!(complaints.finish(), "oh no");
        assert_eq!(std::fs::read_to_string(dir.join("mine")).unwrap(), "mine");
    }

    #[test]
    fn of_what_is_long_the_beginning_and_the_end_are_kept() {
        let piece = "é".repeat(5_000);
        let mut pieces = vec!["start "];
        pieces.extend([piece.as_str(); 100]);
        pieces.push(" end");
        let (file, end) = written(&pieces, &[]);
        assert!(end.ends_with("é end") && end.len() <= STDERR_TAIL_BYTES_MAX, "{}", end.len());
        assert!(file.starts_with("start éé") && file.ends_with(&end));
        let all: usize = pieces.iter().map(|piece| piece.len()).sum();
        let (head, rest) = file.split_once("\n[… ").unwrap();
        let left_out: usize = rest.split_once(' ').unwrap().0.parse().unwrap();
        assert!(head.len() > STDERR_HEAD_BYTES_MAX - 2 && head.len() <= STDERR_HEAD_BYTES_MAX);
        assert_eq!(head.len() + left_out + end.len(), all);
    }

    #[test]
    fn a_little_more_than_the_head_is_kept_whole() {
        let text = "x".repeat(STDERR_HEAD_BYTES_MAX + 10);
        assert_eq!(written(&[&text], &[]).0, text);
    }
}
