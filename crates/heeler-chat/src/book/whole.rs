//! A transcript from its beginning to its end, and what was learned from it.

use std::io::{self, Read};
use std::sync::atomic::AtomicBool;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::{Disk, DiskError, place_file, plain, replace_file, tail};

use super::page::read_entry;
use super::{Book, BookError, is_missing, records};
use crate::beside::Stoppable;
use crate::shelf::INSIGHTS;
use crate::{Entry, Speaker};

/// What a transcript has at a moment; it can be read elsewhere while the session goes on.
#[derive(Debug)]
pub(crate) struct Whole {
    path: Utf8PathBuf,
    /// Where it ends in its own file.
    end: u64,
    /// What is only in the JSON file so far.
    inline: Vec<String>,
}

impl Whole {
    /// Returns how many bytes it has.
    pub(crate) fn len(&self) -> u64 {
        self.end + self.inline.iter().map(|line| line.len() as u64 + 1).sum::<u64>()
    }

    /// Hands over every entry, oldest first, with the bytes up to its end, until `look` says no.
    pub(crate) fn each(&self, mut look: impl FnMut(Entry, u64) -> bool) -> Result<(), BookError> {
        for record in records(&self.path, 0)? {
            let record = record?;
            if record.offset >= self.end {
                break;
            }
            if !look(read_entry(&record.text), record.next) {
                return Ok(());
            }
        }
        let mut end = self.end;
        for text in &self.inline {
            end += text.len() as u64 + 1;
            if !look(read_entry(text), end) {
                break;
            }
        }
        Ok(())
    }

    /// Copies its first bytes to a new file, which appears whole.
    pub(crate) fn copy(
        &self,
        disk: &dyn Disk,
        to: &Utf8Path,
        len: u64,
        is_stopped: &AtomicBool,
    ) -> Result<(), DiskError> {
        let failed = |source| DiskError { action: "copy", path: self.path.clone(), source };
        let file: Box<dyn Read> = match plain::open(&self.path) {
            Ok(file) => Box::new(file.take(self.end)),
            Err(error) if is_missing(&error) => Box::new(io::empty()),
            Err(error) => return Err(failed(error)),
        };
        let inline: String = self.inline.iter().flat_map(|line| [line, "\n"]).collect();
        let source = file.chain(inline.as_bytes()).take(len);
        place_file(disk, to, &mut Stoppable(source, is_stopped), u64::MAX).map(drop)
    }
}

impl Book {
    /// Returns what a transcript has now.
    pub(crate) fn whole(&self, of: &Speaker) -> Result<Whole, BookError> {
        let path = self.path_of(of)?;
        let end = match tail(&path, 0) {
            Ok(page) => page.end.min(self.file_end(of)),
            Err(error) if is_missing(&error.source) => 0,
            Err(error) => return Err(error.into()),
        };
        Ok(Whole { path, end, inline: self.inline(of).to_vec() })
    }

    /// Writes what was learned beside the session, for later ones to read.
    pub fn learn(&mut self, text: &str) -> Result<(), BookError> {
        let name = format!("{}{INSIGHTS}", self.id());
        replace_file(self.disk.as_ref(), &self.place.own.join(&name), text.as_bytes())
            .map_err(BookError::Disk)?;
        self.save(|about| about.insights = Some(name))
    }
}
