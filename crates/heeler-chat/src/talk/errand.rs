//! What goes through a whole transcript: finding words in it, and writing it out. In a long one that is
//! done beside.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use camino::{Utf8Path, Utf8PathBuf};

use super::Talk;
use super::commands::gist;
use crate::beside::{Beside, WAIT_BYTES_MAX};
use crate::book::Whole;
use crate::{Entry, Role, Speaker};

/// How many hits `/search` shows.
const HITS_MAX: usize = 20;

/// What is told in the end, or why it was not done.
pub(super) type Errand = Beside<Result<String, String>>;

impl Talk {
    /// Finds words in the transcript that is looked at.
    pub(super) fn search(&mut self, text: String) {
        let is_numbered = self.view == Speaker::Coordinator;
        self.run_errand(&self.view.clone(), move |whole, is_stopped| {
            search(whole, &text, is_numbered, is_stopped)
        });
    }

    pub(super) fn export(&mut self, file: Option<String>) {
        let id = self.book.id().to_owned();
        let path = self.manner.folder.join(Utf8PathBuf::from(file.unwrap_or(format!("{id}.md"))));
        self.run_errand(&Speaker::Coordinator, move |whole, is_stopped| {
            match write_markdown(whole, &id, &path, is_stopped) {
                Ok(()) => Ok(format!("written: {path}")),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    Err(format!("{path} is there already; /export FILE names another"))
                }
                Err(error) => Err(format!("cannot write {path}: {error}")),
            }
        });
    }

    fn run_errand(
        &mut self,
        of: &Speaker,
        work: impl FnOnce(&Whole, &AtomicBool) -> Result<String, String> + Send + 'static,
    ) {
        if self.errand.is_some() {
            return self.failed("the command before goes through the transcript; Esc gives it up");
        }
        let whole = match self.book.whole(of) {
            Ok(whole) => whole,
            Err(error) => return self.failed(format!("{error}")),
        };
        let bytes = whole.len();
        self.errand = Some(Beside::start(move |is_stopped| work(&whole, is_stopped)));
        match bytes <= WAIT_BYTES_MAX {
            true => self.end_errand(),
            false => self.told(format!("going through {:.0} MB", bytes as f64 / 1e6)),
        }
    }

    /// Tells what came of a command that went through a transcript beside.
    pub(super) fn errand_on(&mut self) {
        if self.errand.as_ref().is_some_and(Beside::is_done) {
            self.end_errand();
        }
    }

    /// Stops a command that goes through a transcript.
    pub(super) fn give_up_errand(&mut self) {
        self.errand_on();
        if self.errand.take().is_some() {
            self.told("it was given up");
        }
    }

    fn end_errand(&mut self) {
        match self.errand.take().map(Beside::end) {
            Some(Ok(text)) => self.told(text),
            Some(Err(why)) => self.failed(why),
            None => {}
        }
    }
}

/// Tells the last entries that say a text; messages with the numbers that `/fork` takes.
fn search(
    whole: &Whole,
    text: &str,
    is_numbered: bool,
    is_stopped: &AtomicBool,
) -> Result<String, String> {
    let wanted = text.to_lowercase();
    let (mut hits, mut count, mut has_more) = (VecDeque::new(), 0_u64, false);
    let each = whole.each(|entry, _| {
        count += u64::from(entry.is_message());
        let said = entry.text();
        if let Some(line) = said.lines().find(|line| line.to_lowercase().contains(&wanted)) {
            let number = if entry.is_message() { count.to_string() } else { String::new() };
            let number = if is_numbered { format!("{number:>4}  ") } else { String::new() };
            hits.push_back(format!("{number}{}: {}", who(&entry), gist(line)));
            if hits.len() > HITS_MAX {
                has_more = hits.pop_front().is_some();
            }
        }
        !is_stopped.load(Ordering::Relaxed)
    });
    each.map_err(|error| error.to_string())?;
    if hits.is_empty() {
        return Ok(format!("`{text}` was not said here; heeler search looks everywhere"));
    }
    if has_more {
        hits.push_back("(the newest; heeler search finds all)".to_owned());
    }
    if is_numbered {
        hits.push_back("/fork N goes on in a copy, up to what the agent said there".to_owned());
    }
    Ok(hits.make_contiguous().join("\n"))
}

fn write_markdown(
    whole: &Whole,
    id: &str,
    path: &Utf8Path,
    is_stopped: &AtomicBool,
) -> io::Result<()> {
    let mut file = BufWriter::new(File::create_new(path)?);
    let mut write = || {
        writeln!(file, "# {id}")?;
        let mut written = Ok(());
        let each = whole.each(|entry, _| {
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
        // Half of it would look like all of it.
        let _removed = std::fs::remove_file(path);
    })
}

fn write_entry(file: &mut impl Write, entry: &Entry) -> io::Result<()> {
    match (&entry.role, &entry.args) {
        (Role::Tool, Some(args)) => {
            writeln!(file, "\n**{}** `{args}`", entry.name.as_deref().unwrap_or("tool"))
        }
        (Role::Tool, None) => writeln!(file, "\n{}", quoted(&entry.text())),
        _ => writeln!(file, "\n## {}\n\n{}", who(entry), entry.text()),
    }
}

fn who(entry: &Entry) -> &str {
    match &entry.role {
        Role::User => "you",
        Role::Assistant => "agent",
        Role::System => "heeler",
        Role::Tool => "tool",
        Role::Other(name) => name,
    }
}

fn quoted(text: &str) -> String {
    text.lines().map(|line| format!("> {line}\n")).collect()
}
