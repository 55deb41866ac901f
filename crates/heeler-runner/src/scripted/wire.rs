//! The player's standard output: lines are gathered and written when the player is about to wait.

use std::io::Write;

use serde_json::Value as Json;

/// Gathered lines are written at the latest when they are this long.
const GATHERED_BYTES_MAX: usize = 64 * 1024;

pub(super) struct Wire {
    out: Box<dyn Write>,
    gathered: Vec<u8>,
    /// Nobody reads any more.
    closed: bool,
}

impl Wire {
    pub(super) fn new(out: Box<dyn Write>) -> Wire {
        Wire { out, gathered: Vec::new(), closed: false }
    }

    pub(super) fn line(&mut self, line: &Json) {
        serde_json::to_writer(&mut self.gathered, line).expect("JSON is written to memory");
        self.bytes(b"\n");
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.gathered.extend_from_slice(bytes);
        if self.gathered.len() >= GATHERED_BYTES_MAX {
            self.flush();
        }
    }

    pub(super) fn flush(&mut self) {
        if self.closed {
            self.gathered.clear();
            return;
        }
        let written = self.out.write_all(&self.gathered).and_then(|()| self.out.flush());
        self.closed = written.is_err();
        self.gathered.clear();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }
}
