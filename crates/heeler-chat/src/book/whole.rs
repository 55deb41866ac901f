//! A transcript from its beginning to its end, and what was learned from it.

use heeler_transcript::replace_file;

use super::page::read_entry;
use super::{Book, BookError, records};
use crate::shelf::INSIGHTS;
use crate::{Entry, Speaker};

impl Book {
    /// Hands over every entry of a transcript, oldest first, until `look` says no.
    pub fn each(&self, of: &Speaker, mut look: impl FnMut(Entry) -> bool) -> Result<(), BookError> {
        let end = self.file_end(of);
        for record in records(&self.path_of(of)?, 0)? {
            let record = record?;
            if record.offset >= end {
                break;
            }
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
        let name = format!("{}{INSIGHTS}", self.id());
        replace_file(self.disk.as_ref(), &self.place.own.join(&name), text.as_bytes())
            .map_err(BookError::Disk)?;
        self.save(|about| about.insights = Some(name))
    }
}
