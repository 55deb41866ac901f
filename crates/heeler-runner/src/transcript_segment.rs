//! Hash of the rows that a run wrote, for its signed result. `heeler doctor` compares it with the
//! transcript. Start at [`TranscriptHasher`].

use std::fs::File;
use std::io;

use camino::Utf8Path;
use heeler_model::run::TranscriptHashRecord;
use heeler_transcript::{DiskError, untrusted_file};
use sha2::{Digest as _, Sha256};

/// Hash of appended lines.
#[derive(Debug)]
pub(crate) struct TranscriptHasher {
    from: u64,
    bytes: u64,
    hash: Sha256,
}

impl TranscriptHasher {
    /// Begins at an offset of the transcript.
    pub(crate) fn new(from: u64) -> TranscriptHasher {
        TranscriptHasher { from, bytes: 0, hash: Sha256::new() }
    }

    /// Adds a line, given without its newline.
    pub(crate) fn add_line(&mut self, line: &[u8]) {
        self.add(line);
        self.add(b"\n");
    }

    fn add(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    pub(crate) fn segment(&self) -> TranscriptHashRecord {
        let hash = self.hash.clone().finalize();
        let sha256 = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        TranscriptHashRecord { from: self.from, bytes: self.bytes, sha256 }
    }
}

/// Hashes a whole transcript: settling cannot tell which of its bytes the dead runner wrote.
pub(crate) fn hash_transcript(log: &Utf8Path) -> Result<TranscriptHashRecord, DiskError> {
    let failed = |source| DiskError { action: "read", path: log.to_owned(), source };
    let file: File = untrusted_file::open(log).map_err(failed)?;
    let mut hasher = TranscriptHasher::new(0);
    io::copy(&mut io::BufReader::new(file), &mut HashWriter(&mut hasher)).map_err(failed)?;
    Ok(hasher.segment())
}

struct HashWriter<'h>(&'h mut TranscriptHasher);

impl io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.add(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
