//! Commands that read a whole transcript: search and export. Long transcripts are processed in the
//! background.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use camino::{Utf8Path, Utf8PathBuf};

use super::Conversation;
use super::display::truncate_line;
use crate::background::{StoppableThread, WAIT_BYTES_MAX};
use crate::session_file::TranscriptContents;
use crate::{ChatSpeaker, ConversationEntry, EntryRole};

/// Most results of `/search`.
const HITS_MAX: usize = 20;

impl Conversation {
    /// Searches the transcript in view.
    pub(super) fn start_search(&mut self, text: String) {
        // `/fork` takes numbers of the main transcript only.
        let is_numbered = self.display.view == ChatSpeaker::Coordinator;
        self.start_background_task(&self.display.view.clone(), move |contents, is_stopped| {
            search_transcript(contents, &text, is_numbered, is_stopped)
        });
    }

    pub(super) fn start_export(&mut self, file: Option<String>) {
        let id = self.record.session_file.id().to_owned();
        let path = self.options.folder.join(Utf8PathBuf::from(file.unwrap_or(format!("{id}.md"))));
        self.start_background_task(&ChatSpeaker::Coordinator, move |contents, is_stopped| {
            match write_markdown(contents, &id, &path, is_stopped) {
                Ok(()) => Ok(format!("written: {path}")),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    Err(format!("{path} already exists; /export FILE writes another file"))
                }
                Err(error) => Err(format!("cannot write {path}: {error}")),
            }
        });
    }

    fn start_background_task(
        &mut self,
        of: &ChatSpeaker,
        work: impl FnOnce(&TranscriptContents, &AtomicBool) -> Result<String, String> + Send + 'static,
    ) {
        if self.background_task.is_some() {
            return self.display.show_error(
                "the previous command is still reading the transcript; Esc cancels it",
            );
        }
        let contents = match self.record.session_file.contents(of) {
            Ok(contents) => contents,
            Err(error) => return self.display.show_error(format!("{error}")),
        };
        let bytes = contents.len();
        self.background_task =
            Some(StoppableThread::start(move |is_stopped| work(&contents, is_stopped)));
        match bytes <= WAIT_BYTES_MAX {
            true => self.finish_background_task(),
            false => self.display.show_notice(format!("reading {:.0} MB", bytes as f64 / 1e6)),
        }
    }

    /// Shows the result of a finished background command.
    pub(super) fn poll_background_task(&mut self) {
        if self.background_task.as_ref().is_some_and(StoppableThread::is_done) {
            self.finish_background_task();
        }
    }

    /// Stops a background command.
    pub(super) fn cancel_background_task(&mut self) {
        // A result that is there already is shown and not thrown away.
        self.poll_background_task();
        if self.background_task.take().is_some() {
            self.display.show_notice("cancelled");
        }
    }

    fn finish_background_task(&mut self) {
        match self.background_task.take().map(StoppableThread::join) {
            Some(Ok(text)) => self.display.show_notice(text),
            Some(Err(why)) => self.display.show_error(why),
            None => {}
        }
    }
}

/// Returns the last entries that contain a text; messages with the numbers that `/fork` takes.
fn search_transcript(
    contents: &TranscriptContents,
    text: &str,
    is_numbered: bool,
    is_stopped: &AtomicBool,
) -> Result<String, String> {
    let needle = text.to_lowercase();
    let (mut hits, mut count, mut has_more) = (VecDeque::new(), 0_u64, false);
    let each = contents.for_each_entry(|entry, _| {
        count += u64::from(entry.is_message());
        let entry_text = entry.text();
        if let Some(line) = entry_text.lines().find(|line| line.to_lowercase().contains(&needle)) {
            let number = if entry.is_message() { count.to_string() } else { String::new() };
            let number = if is_numbered { format!("{number:>4}  ") } else { String::new() };
            hits.push_back(format!("{number}{}: {}", speaker_label(&entry), truncate_line(line)));
            if hits.len() > HITS_MAX {
                has_more = hits.pop_front().is_some();
            }
        }
        !is_stopped.load(Ordering::Relaxed)
    });
    each.map_err(|error| error.to_string())?;
    if hits.is_empty() {
        return Ok(format!("`{text}` was not found here; heeler search looks everywhere"));
    }
    if has_more {
        hits.push_back("(newest results; heeler search finds all)".to_owned());
    }
    if is_numbered {
        hits.push_back("/fork N continues in a copy, up to that message of the agent".to_owned());
    }
    Ok(hits.make_contiguous().join("\n"))
}

fn write_markdown(
    contents: &TranscriptContents,
    id: &str,
    path: &Utf8Path,
    is_stopped: &AtomicBool,
) -> io::Result<()> {
    // A file that exists may be the person's own, so it is never replaced.
    let mut file = BufWriter::new(File::create_new(path)?);
    let mut write = || {
        writeln!(file, "# {id}")?;
        let mut written = Ok(());
        let each = contents.for_each_entry(|entry, _| {
            written = match is_stopped.load(Ordering::Relaxed) {
                true => Err(io::Error::other("it was stopped")),
                false => write_entry(&mut file, &entry),
            };
            written.is_ok()
        });
        each.map_err(io::Error::other)?;
        written?;
        file.flush()?;
        file.get_ref().sync_all()
    };
    write().inspect_err(|_| {
        // A partial export would look complete.
        let _removed = std::fs::remove_file(path);
    })
}

fn write_entry(file: &mut impl Write, entry: &ConversationEntry) -> io::Result<()> {
    match (&entry.role, &entry.args) {
        (EntryRole::Tool, Some(args)) => {
            writeln!(file, "\n**{}** `{args}`", entry.name.as_deref().unwrap_or("tool"))
        }
        (EntryRole::Tool, None) => writeln!(file, "\n{}", quote_lines(&entry.text())),
        _ => writeln!(file, "\n## {}\n\n{}", speaker_label(entry), entry.text()),
    }
}

fn speaker_label(entry: &ConversationEntry) -> &str {
    match &entry.role {
        EntryRole::User => "you",
        EntryRole::Assistant => "agent",
        EntryRole::System => "heeler",
        EntryRole::Tool => "tool",
        EntryRole::Other(name) => name,
    }
}

fn quote_lines(text: &str) -> String {
    text.lines().map(|line| format!("> {line}\n")).collect()
}
