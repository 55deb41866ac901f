//! Logs for people: one per agent, with a line for each start and end of a job, and the daemon's
//! own log.
//!
//! Logs are informative only: their facts are stored elsewhere, and a line that cannot be written
//! is lost. A log that has grown too large is rotated by renaming (`coder.log.1` is the newest
//! rotated file) and never ends in half a line. Start at [`AgentLogs`] and [`RotatingLog`].

mod line_reader;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::{ConfigDuration, LogRotation};
use heeler_model::{AgentName, JobHead, JobId, JobStatus, iso_millis, one_line};
use heeler_transcript::untrusted_file;
use jiff::Timestamp;

use crate::fault::{self, FaultPoint};

pub use self::line_reader::{LogCursor, LogCursorParseError, LogLineReader};

/// Maximum length of a text within a line, in characters.
const TEXT_CHARS_MAX: usize = 500;

/// Maximum number of bytes read from a log to find its last lines.
const TAIL_BYTES_MAX: u64 = 4 << 20;

/// File name of the daemon's log in the log directory.
pub const DAEMON_LOG: &str = "heeler.log";

/// Logs of all agents. Only one thread writes them.
#[derive(Debug)]
pub struct AgentLogs {
    folder: Utf8PathBuf,
    limits: LogRotation,
}

impl AgentLogs {
    /// Creates logs in a directory, with the configured rotation limits.
    pub fn new(folder: &Utf8Path, limits: LogRotation) -> AgentLogs {
        AgentLogs { folder: folder.to_owned(), limits }
    }

    /// Returns the path of an agent's log.
    pub fn path(&self, agent: &AgentName) -> Utf8PathBuf {
        let name = format!("{agent}.log");
        match name == DAEMON_LOG {
            // An agent named like the daemon's log gets a `+`, which no agent name contains.
            true => self.folder.join(format!("{agent}+.log")),
            false => self.folder.join(name),
        }
    }

    /// Appends a line. A failure is reported in the daemon's log.
    pub fn append_line(&self, agent: &AgentName, now: Timestamp, text: &str) {
        let path = self.path(agent);
        // Times are written first, so the first line of a log identifies it.
        let line = format!("{} {}\n", iso_millis(now), first_line_chars(text));
        // Opened for each line: a fleet may have more agents than the limit of open files.
        let written =
            RotatingLog::open(&path, self.limits).and_then(|mut log| log.append(line.as_bytes()));
        if let Err(error) = written {
            tracing::warn!("cannot write {path}: {error}");
        }
    }
}

/// Formats the start of a job.
pub fn job_start_line(job: &JobId, schedule: Option<&str>, trigger: &str) -> String {
    match schedule {
        Some(schedule) => format!("{job} started: schedule {schedule}"),
        None => format!("{job} started: {trigger}"),
    }
}

/// Formats the end of a job: status, duration, cost and summary or error.
pub fn job_end_line(job: &JobHead, error: Option<&str>) -> String {
    let mut text = format!("{} {}", job.id, job.status);
    if let Some(took) = job.duration_ms.and_then(|took| u64::try_from(took).ok()) {
        // Whole seconds, except below one second.
        let millis = if took > 1000 { took / 1000 * 1000 } else { took };
        if let Ok(period) = ConfigDuration::from_millis(millis) {
            text.push_str(&format!(" in {period}"));
        }
    }
    if let Some(cost) = job.cost_usd {
        text.push_str(&format!(", {}", heeler_model::format_usd(cost)));
    }
    let failure = error.filter(|_| job.status != JobStatus::Completed);
    let first =
        |text: &str| text.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned);
    if let Some(told) = failure.or(job.summary.as_deref()).and_then(first) {
        text.push_str(&format!(": {told}"));
    }
    text
}

/// Returns the beginning of a text as one line.
fn first_line_chars(text: &str) -> String {
    let line = one_line(text);
    match line.char_indices().nth(TEXT_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// A log file that is rotated when it has grown too large.
///
/// Other processes may append to the same file or rotate it: each write checks that the path still
/// refers to the open file.
#[derive(Debug)]
pub struct RotatingLog {
    path: Utf8PathBuf,
    file: File,
    limits: LogRotation,
}

impl RotatingLog {
    /// Opens or creates a log that only its user can read.
    pub fn open(path: &Utf8Path, limits: LogRotation) -> io::Result<RotatingLog> {
        Ok(RotatingLog { path: path.to_owned(), file: open(path)?, limits })
    }

    /// Appends whole lines. They are never split between two files.
    pub fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if !self.is_current_file()? {
            self.file = open(&self.path)?;
        }
        let size = self.file.metadata()?.len();
        // A line longer than the limit is still written, to an empty log.
        if size > 0 && size.saturating_add(lines.len() as u64) > self.limits.max_size.bytes() {
            rotate(&self.path, self.limits.keep)?;
            self.file = open(&self.path)?;
        }
        self.file.write_all(lines)
    }

    /// Returns true if the metadata belongs to the file that this log writes to.
    pub fn is_same(&self, other: &fs::Metadata) -> bool {
        self.file.metadata().is_ok_and(|own| own.dev() == other.dev() && own.ino() == other.ino())
    }

    fn is_current_file(&self) -> io::Result<bool> {
        match self.path.symlink_metadata() {
            Ok(found) => Ok(self.is_same(&found)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Write for RotatingLog {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        self.append(lines)?;
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn open(path: &Utf8Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o600);
    untrusted_file::open_with(&mut options, path)
}

/// Renames a log to `.1`, that one to `.2` and so on; the last one is replaced. If interrupted, it
/// leaves an unused number, and the next rotation moves only the logs before that.
fn rotate(path: &Utf8Path, keep: u32) -> io::Result<()> {
    let numbered = |number: u32| Utf8PathBuf::from(format!("{path}.{number}"));
    // The limit may have been lowered in the config.
    for number in rotated_numbers(path)? {
        if number > keep {
            remove(&numbered(number))?;
        }
    }
    if keep == 0 {
        return remove(path);
    }
    let is_free = |number: &u32| !numbered(*number).exists();
    let free = (1..keep).find(is_free).unwrap_or(keep);
    // From the oldest to the newest, so that no file is overwritten.
    for number in (1..free).rev() {
        fs::rename(numbered(number), numbered(number + 1))?;
    }
    fault::reach(FaultPoint::LogsMoved);
    fs::rename(path, numbered(1))?;
    fault::reach(FaultPoint::LogSetAside);
    Ok(())
}

/// Returns the numbers of the rotated logs.
fn rotated_numbers(path: &Utf8Path) -> io::Result<Vec<u32>> {
    let folder = path.parent().unwrap_or(Utf8Path::new("."));
    let start = format!("{}.", path.file_name().unwrap_or_default());
    let mut found = Vec::new();
    let entries = match folder.read_dir_utf8() {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let number = entry.file_name().strip_prefix(&start).map(str::parse::<u32>);
        found.extend(number.and_then(Result::ok));
    }
    Ok(found)
}

fn remove(path: &Utf8Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Poll interval for new lines.
pub const LOG_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Reads the last lines of a log, including rotated files, and then the lines that are added.
#[derive(Debug)]
pub struct LogTail {
    path: Utf8PathBuf,
    open: Option<TailedLogFile>,
}

#[derive(Debug)]
struct TailedLogFile {
    file: File,
    /// Bytes of an incomplete last line.
    rest: Vec<u8>,
}

impl LogTail {
    /// Returns the last `count` lines, oldest first, and a reader for further lines.
    pub fn last(path: &Utf8Path, count: usize) -> io::Result<(LogTail, Vec<String>)> {
        let mut lines = Vec::new();
        let mut open = match TailedLogFile::at_end(path) {
            Ok(open) => Some(open),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        open.as_mut().map_or(Ok(()), |open| open.read(&mut lines))?;
        let tail = LogTail { path: path.to_owned(), open };
        let mut numbers = rotated_numbers(path)?;
        numbers.sort_unstable();
        for number in numbers {
            if lines.len() >= count {
                break;
            }
            let mut older = Vec::new();
            TailedLogFile::at_end(&Utf8PathBuf::from(format!("{path}.{number}")))?
                .read(&mut older)?;
            older.append(&mut lines);
            lines = older;
        }
        lines.drain(..lines.len().saturating_sub(count));
        Ok((tail, lines))
    }

    /// Returns the complete lines that were added since the last call, also if the log was rotated.
    pub fn read_more(&mut self) -> io::Result<Vec<String>> {
        let mut lines = Vec::new();
        if let Some(open) = &mut self.open {
            open.read(&mut lines)?;
        }
        let now = match self.path.symlink_metadata() {
            Ok(found) => found,
            // The log was just rotated, and its successor does not exist yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(lines),
            Err(error) => return Err(error),
        };
        let is_open = match &self.open {
            Some(open) => {
                let own = open.file.metadata()?;
                own.dev() == now.dev() && own.ino() == now.ino()
            }
            None => false,
        };
        if !is_open {
            // Lines written between the last read and the rotation are in the old file.
            if let Some(open) = &mut self.open {
                open.read(&mut lines)?;
            }
            let mut opened =
                TailedLogFile { file: untrusted_file::open(&self.path)?, rest: Vec::new() };
            opened.read(&mut lines)?;
            self.open = Some(opened);
        }
        Ok(lines)
    }
}

impl TailedLogFile {
    /// Opens a log at its last [`TAIL_BYTES_MAX`], from the first complete line on.
    fn at_end(path: &Utf8Path) -> io::Result<TailedLogFile> {
        let mut file = untrusted_file::open(path)?;
        let start = file.metadata()?.len().saturating_sub(TAIL_BYTES_MAX);
        // Both handles share one position, so seeking one moves the other.
        let mut opened = TailedLogFile { file: file.try_clone()?, rest: Vec::new() };
        if start > 0 {
            // One byte earlier, so a line that begins exactly at the limit is found.
            file.seek(SeekFrom::Start(start - 1))?;
            opened.file.read_to_end(&mut opened.rest)?;
            let first = opened.rest.iter().position(|&byte| byte == b'\n');
            opened.rest.drain(..first.map_or(0, |first| first + 1));
        }
        Ok(opened)
    }

    fn read(&mut self, lines: &mut Vec<String>) -> io::Result<()> {
        self.file.read_to_end(&mut self.rest)?;
        // An incomplete line stays until the rest of it is written.
        let Some(end) = self.rest.iter().rposition(|&byte| byte == b'\n') else { return Ok(()) };
        let whole: Vec<u8> = self.rest.drain(..=end).collect();
        lines.extend(String::from_utf8_lossy(&whole).lines().map(str::to_owned));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
