//! Content of a whole transcript, and insights.

use std::io::{self, Read};
use std::sync::atomic::AtomicBool;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::{
    DiskBackend, DiskError, read_tail, replace_file, untrusted_file, write_new_file,
};

use super::page::parse_entry;
use super::records::{is_missing, read_records};
use super::{SessionFile, SessionFileError};
use crate::background::StoppableReader;
use crate::session_directory::INSIGHTS_SUFFIX;
use crate::{ChatSpeaker, ConversationEntry};

/// Content of a transcript at one moment; it can be read by another thread while the session
/// continues.
#[derive(Debug)]
pub(crate) struct TranscriptContents {
    path: Utf8PathBuf,
    /// End of the content in the transcript file.
    end: u64,
    /// Entries that are only in the JSON file.
    inline: Vec<String>,
}

impl TranscriptContents {
    /// Returns the size in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.end + self.inline.iter().map(|line| line.len() as u64 + 1).sum::<u64>()
    }

    /// Calls `look` with every entry, oldest first, and the offset of its end, until it returns
    /// false.
    pub(crate) fn for_each_entry(
        &self,
        mut look: impl FnMut(ConversationEntry, u64) -> bool,
    ) -> Result<(), SessionFileError> {
        for record in read_records(&self.path, 0)? {
            let record = record?;
            // Entries that were appended since, or that the array has too, are not part of the
            // content.
            if record.offset >= self.end {
                break;
            }
            if !look(parse_entry(&record.text), record.next) {
                return Ok(());
            }
        }
        let mut end = self.end;
        for text in &self.inline {
            end += text.len() as u64 + 1;
            if !look(parse_entry(text), end) {
                break;
            }
        }
        Ok(())
    }

    /// Copies the first `len` bytes to a new file, which appears complete or not at all.
    pub(crate) fn copy_prefix(
        &self,
        disk: &dyn DiskBackend,
        to: &Utf8Path,
        len: u64,
        is_stopped: &AtomicBool,
    ) -> Result<(), DiskError> {
        let failed = |source| DiskError { action: "copy", path: self.path.clone(), source };
        let file: Box<dyn Read> = match untrusted_file::open(&self.path) {
            Ok(file) => Box::new(file.take(self.end)),
            Err(error) if is_missing(&error) => Box::new(io::empty()),
            Err(error) => return Err(failed(error)),
        };
        let inline: String = self.inline.iter().flat_map(|line| [line, "\n"]).collect();
        let source = file.chain(inline.as_bytes()).take(len);
        write_new_file(disk, to, &mut StoppableReader(source, is_stopped), u64::MAX).map(drop)
    }
}

impl SessionFile {
    /// Returns the current content of a transcript.
    pub(crate) fn contents(
        &self,
        of: &ChatSpeaker,
    ) -> Result<TranscriptContents, SessionFileError> {
        let path = self.transcript_path_of(of)?;
        let end = match read_tail(&path, 0) {
            Ok(page) => page.end.min(self.file_end(of)),
            Err(error) if is_missing(&error.source) => 0,
            Err(error) => return Err(error.into()),
        };
        Ok(TranscriptContents { path, end, inline: self.inline_entries(of).to_vec() })
    }

    /// Writes insights next to the session, for later sessions.
    pub fn save_insights(&mut self, text: &str) -> Result<(), SessionFileError> {
        let name = format!("{}{INSIGHTS_SUFFIX}", self.id());
        // The file comes first, because the JSON file names it.
        replace_file(self.disk.as_ref(), &self.location.heeler_folder.join(&name), text.as_bytes())
            .map_err(SessionFileError::Disk)?;
        self.save(|about| about.insights = Some(name))
    }
}
