//! Parts of many files on their way to the other hosts.
//!
//! A batch has at most one part of each file. Its bytes are made durable here together, and leave in one
//! statement. Start at [`PartBatch::add`].

use std::collections::BTreeSet;
use std::fs::File;
use std::io;

use heeler_model::RunId;
use heeler_store::{DatabaseError, HostLink, PartReceipt, SharedPart};

use super::sync_batch::SyncBatch;

/// Most bytes of a batch, unless its only part is longer.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// Most parts of a batch.
const BATCH_PARTS_MAX: usize = 512;

/// A part that was read.
#[derive(Debug)]
pub(super) struct ReadPart {
    pub(super) run: RunId,
    pub(super) term: i64,
    /// Position among the files of its run.
    pub(super) at: usize,
    /// Path under which its file is shared.
    pub(super) path: String,
    pub(super) start: u64,
    pub(super) bytes: Vec<u8>,
    /// True if a file that was written as a whole ends here.
    pub(super) is_last: bool,
}

/// Parts that leave together.
#[derive(Debug, Default)]
pub(super) struct PartBatch {
    parts: Vec<ReadPart>,
    paths: BTreeSet<String>,
    bytes: usize,
    syncs: SyncBatch,
}

impl PartBatch {
    /// Returns true if the part must not leave before those that are here.
    pub(super) fn is_full_for(&self, part: &ReadPart) -> bool {
        !self.parts.is_empty()
            && (self.parts.len() >= BATCH_PARTS_MAX
                || self.bytes + part.bytes.len() > BATCH_BYTES_MAX
                // Two runs of a job have the same files.
                || self.paths.contains(&part.path))
    }

    /// Adds a part of a file, which may be closed then.
    pub(super) fn add(&mut self, part: ReadPart, file: &File) -> io::Result<()> {
        self.syncs.add(file)?;
        self.bytes += part.bytes.len();
        self.paths.insert(part.path.clone());
        self.parts.push(part);
        Ok(())
    }

    /// Makes the bytes durable. Until then they must not leave: a power loss would take back what other
    /// hosts have.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.syncs.finish()
    }

    /// Sends all parts, after [`PartBatch::sync`], and returns them with their receipts.
    pub(super) fn send(
        &mut self,
        link: &HostLink,
    ) -> Result<Vec<(ReadPart, PartReceipt)>, DatabaseError> {
        let parts = std::mem::take(self).parts;
        let shared: Vec<SharedPart<'_>> = parts
            .iter()
            .map(|part| SharedPart {
                run: part.run,
                term: part.term,
                path: &part.path,
                start: part.start,
                bytes: &part.bytes,
                is_last: part.is_last,
            })
            .collect();
        let receipts = link.send_parts(&shared)?;
        Ok(parts.into_iter().zip(receipts).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(path: &str, bytes: usize) -> ReadPart {
        ReadPart {
            run: RunId::mint(jiff::Timestamp::UNIX_EPOCH, [1; 10]),
            term: 0,
            at: 0,
            path: path.to_owned(),
            start: 0,
            bytes: vec![b'x'; bytes],
            is_last: false,
        }
    }

    #[test]
    fn a_batch_is_limited_by_bytes_and_number_and_has_one_part_of_a_file() {
        let file = tempfile::tempfile().unwrap();
        let mut batch = PartBatch::default();
        let long = part("long", BATCH_BYTES_MAX + 1);
        assert!(!batch.is_full_for(&long), "it would never leave");
        batch.add(long, &file).unwrap();
        assert!(batch.is_full_for(&part("next", 0)));

        let mut batch = PartBatch::default();
        batch.add(part("a", BATCH_BYTES_MAX - 1), &file).unwrap();
        assert!(!batch.is_full_for(&part("b", 1)));
        assert!(batch.is_full_for(&part("b", 2)));
        assert!(batch.is_full_for(&part("a", 1)), "another run of the job has the same file");

        let mut batch = PartBatch::default();
        for number in 0..BATCH_PARTS_MAX {
            let next = part(&number.to_string(), 1);
            assert!(!batch.is_full_for(&next), "{number}");
            batch.add(next, &file).unwrap();
        }
        assert!(batch.is_full_for(&part("next", 1)));
        batch.sync().unwrap();
    }
}
