//! A transcript from its beginning to its end, and what was learned from it.

use heeler_transcript::{Entry as Line, Scan, replace_file};

use super::page::read_entry;
use super::{Book, BookError, is_missing};
use crate::{Entry, Speaker};

impl Book {
    /// Hands over every entry of a transcript, oldest first, until `look` says no.
    pub fn each(&self, of: &Speaker, mut look: impl FnMut(Entry) -> bool) -> Result<(), BookError> {
        let lines = match Scan::open(&self.path_of(of)?) {
            Ok(lines) => Some(lines),
            Err(error) if is_missing(&error.source) => None,
            Err(error) => return Err(BookError::Disk(error)),
        };
        for line in lines.into_iter().flatten() {
            let Line::Record(record) = line.map_err(BookError::Disk)? else { continue };
            if !look(read_entry(&record.text)) {
                return Ok(());
            }
        }
        for text in self.inline(of) {
            if !look(read_entry(text)) {
                break;
            }
        }
        Ok(())
    }

    /// Writes what was learned beside the session, for later ones to read.
    pub fn learn(&mut self, text: &str) -> Result<(), BookError> {
        let name = format!("{}.insights.md", self.id());
        replace_file(self.disk.as_ref(), &self.place.own.join(&name), text.as_bytes())
            .map_err(BookError::Disk)?;
        self.save(|about| about.insights = Some(name))
    }
}
