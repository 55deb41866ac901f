//! Follows transcripts as they grow: every record once, in order, none lost.
//!
//! A file is watched first and then read to its end, and a wake that comes during the read makes
//! another read, so nothing falls between. A last line without newline waits for it. Start at
//! [`Follower`].

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};

use crate::disk::{DiskError, folder_of};
use crate::line::{Entry, Fault, FaultKind, Record};
use crate::lines::{Forward, last_line_end};
use crate::watch::{Bell, Watch};

/// How often a file is looked at where there are no events.
const POLL_EVERY: Duration = Duration::from_secs(1);
/// One read of a file ends after so many bytes, so that the others get their turn.
const TURN_BYTES: u64 = 1024 * 1024;
/// How many of the bytes before the read position are remembered to notice a rewritten file.
const MARK_BYTES: u64 = 64;

/// Where to begin in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// At its first line.
    Beginning,
    /// Behind its last whole line.
    End,
    /// At this offset, the start of a line: a page's `end` or a record's `next`.
    Offset(u64),
}

/// News of one of the followed files, which are numbered as they were added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Update {
    /// A new record.
    Record {
        /// Which file.
        file: usize,
        /// How many lines were passed before its own, since the start or the last [`Restart`].
        line: u64,
        /// The record.
        record: Record,
    },
    /// New bytes that are not a record.
    Fault {
        /// Which file.
        file: usize,
        /// What was skipped.
        fault: Fault,
    },
    /// The file is read from its beginning again.
    Restarted {
        /// Which file.
        file: usize,
        /// Why.
        why: Restart,
    },
}

/// Why a file is read from its beginning again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    /// It was cut or rewritten in place.
    Rewritten,
    /// Another file has its name now.
    Replaced,
}

/// Waits for new records of any number of files.
#[derive(Debug, Default)]
pub struct Follower {
    files: Vec<Followed>,
    bell: Arc<Bell>,
    ready: VecDeque<Result<Update, DiskError>>,
}

/// Stops a [`Follower`] from another thread.
#[derive(Debug, Clone)]
pub struct Stopper(Arc<Bell>);

impl Stopper {
    /// Makes the follower's current and all later calls of `next` return `None`.
    pub fn stop(&self) {
        self.0.stop();
    }
}

impl Follower {
    /// Follows nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Follows one more file, which need not exist yet; returns its number, counted from 0.
    ///
    /// The place to start from is found now, not at the first `next`.
    pub fn add(&mut self, path: &Utf8Path, start: Start) -> usize {
        let number = self.files.len();
        self.files.push(Followed::new(path, start));
        self.read(number);
        number
    }

    /// Returns what can stop this follower from another thread.
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.bell))
    }

    /// Returns whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.bell.is_stopped()
    }

    /// Returns the next news; `None` if there is none within `timeout`, or when stopped.
    ///
    /// An error is told once; that file is tried again, and the others go on.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Update>, DiskError> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            if self.bell.is_stopped() {
                return Ok(None);
            }
            if let Some(update) = self.ready.pop_front() {
                return update.map(Some);
            }
            self.ring_due_polls();
            // Taken before the read: what rings during the read is read again.
            for number in self.bell.take() {
                self.read(number);
            }
            if !self.ready.is_empty() {
                continue;
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Ok(None);
            }
            let poll_at = self.polled().map(|(_, file)| file.read_at + POLL_EVERY).min();
            self.bell.wait(deadline.into_iter().chain(poll_at).min());
        }
    }

    fn ring_due_polls(&self) {
        for (number, _) in self.polled().filter(|(_, file)| file.read_at.elapsed() >= POLL_EVERY) {
            self.bell.ring(number);
        }
    }

    fn polled(&self) -> impl Iterator<Item = (usize, &Followed)> {
        self.files.iter().enumerate().filter(|(_, file)| file.needs_polling())
    }

    fn read(&mut self, number: usize) {
        let file = &mut self.files[number];
        let mut turn = Turn { number, bell: &self.bell, ready: &mut self.ready };
        let result = file.read(&mut turn).map_err(DiskError::at("follow", &file.path));
        let was_failed = std::mem::replace(&mut file.failed, result.is_err());
        if let Err(error) = result
            && !was_failed
        {
            self.ready.push_back(Err(error));
        }
    }
}

/// One file that is followed.
#[derive(Debug)]
struct Followed {
    path: Utf8PathBuf,
    start: Start,
    folder_watch: Option<Watch>,
    open: Option<Open>,
    /// When it was last looked at.
    read_at: Instant,
    /// The last look ended in an error that was told.
    failed: bool,
}

/// The file that has the path, and how far it was read.
#[derive(Debug)]
struct Open {
    file: File,
    watch: Option<Watch>,
    /// Its events cannot be relied on.
    needs_polling: bool,
    /// Behind the last line that was read.
    offset: u64,
    /// How many lines were read.
    lines: u64,
    /// The bytes just before `offset`.
    mark: Vec<u8>,
}

/// Where one read of one file puts its news.
struct Turn<'a> {
    number: usize,
    bell: &'a Arc<Bell>,
    ready: &'a mut VecDeque<Result<Update, DiskError>>,
}

impl Turn<'_> {
    fn add(&mut self, line: u64, entry: Entry) {
        let file = self.number;
        self.ready.push_back(Ok(match entry {
            Entry::Record(record) => Update::Record { file, line, record },
            Entry::Fault(fault) => Update::Fault { file, fault },
        }));
    }

    fn restart(&mut self, why: Restart) {
        self.ready.push_back(Ok(Update::Restarted { file: self.number, why }));
    }
}

impl Followed {
    fn new(path: &Utf8Path, start: Start) -> Self {
        Self {
            path: path.to_owned(),
            start,
            folder_watch: None,
            open: None,
            read_at: Instant::now(),
            failed: false,
        }
    }

    fn needs_polling(&self) -> bool {
        let watched = self.folder_watch.as_ref().is_some_and(Watch::is_alive);
        let open_polls =
            |open: &Open| open.needs_polling || !open.watch.as_ref().is_some_and(Watch::is_alive);
        self.failed || !watched || self.open.as_ref().is_some_and(open_polls)
    }

    fn read(&mut self, turn: &mut Turn<'_>) -> io::Result<()> {
        self.read_at = Instant::now();
        if !self.folder_watch.as_ref().is_some_and(Watch::is_alive) {
            let name = self.path.file_name().unwrap_or_default();
            self.folder_watch = Watch::folder(folder_of(&self.path), name, turn.bell, turn.number);
        }
        loop {
            if self.open.is_none() {
                self.open = Open::find(&self.path, self.start, turn)?;
                self.start = Start::Beginning;
            }
            let Some(open) = &mut self.open else { return Ok(()) };
            // Asked before the read: if it has another file's name by then, this read is its last.
            let replaced = open.is_replaced(&self.path)?;
            if open.read(turn)? == Reached::TurnEnd {
                turn.bell.ring(turn.number);
                return Ok(());
            }
            if !replaced {
                return Ok(());
            }
            open.report_torn_tail(turn)?;
            turn.restart(Restart::Replaced);
            self.open = None;
        }
    }
}

/// How far a read got.
#[derive(PartialEq, Eq)]
enum Reached {
    FileEnd,
    TurnEnd,
}

impl Open {
    /// Returns `None` if there is no such file.
    fn find(path: &Utf8Path, start: Start, turn: &Turn<'_>) -> io::Result<Option<Self>> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            result => result?,
        };
        let watch = Watch::file(&file, turn.bell, turn.number);
        let needs_polling = path.is_symlink() || loses_events(&file);
        let offset = match start {
            Start::Beginning => 0,
            Start::End => last_line_end(&file, file.metadata()?.len())?,
            Start::Offset(offset) => offset,
        };
        let mut open = Self { file, watch, needs_polling, offset, lines: 0, mark: Vec::new() };
        open.remember_mark()?;
        Ok(Some(open))
    }

    fn is_replaced(&self, path: &Utf8Path) -> io::Result<bool> {
        let open = self.file.metadata()?;
        match std::fs::metadata(path) {
            Ok(named) => Ok((named.dev(), named.ino()) != (open.dev(), open.ino())),
            // Removed: whoever has it open may still write, and a new file may come.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn read(&mut self, turn: &mut Turn<'_>) -> io::Result<Reached> {
        if self.is_rewritten()? {
            turn.restart(Restart::Rewritten);
            (self.offset, self.lines) = (0, 0);
        }
        let start = self.offset;
        let mut lines = Forward::new(start);
        while self.offset - start < TURN_BYTES {
            let Some(line) = lines.next(&self.file)? else {
                self.remember_mark()?;
                return Ok(Reached::FileEnd);
            };
            line.split(&mut |entry| turn.add(self.lines, entry));
            self.lines += 1;
            self.offset = lines.offset();
        }
        self.remember_mark()?;
        Ok(Reached::TurnEnd)
    }

    /// Returns whether the bytes before the read position are others, or no longer there.
    fn is_rewritten(&self) -> io::Result<bool> {
        let mut found = vec![0; self.mark.len()];
        let at = self.offset.saturating_sub(self.mark.len() as u64);
        match self.file.read_exact_at(&mut found, at) {
            Ok(()) => Ok(found != self.mark),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn remember_mark(&mut self) -> io::Result<()> {
        let len = self.offset.min(MARK_BYTES);
        self.mark.resize(usize::try_from(len).unwrap_or_default(), 0);
        match self.file.read_exact_at(&mut self.mark, self.offset - len) {
            // Cut meanwhile, which the next read notices in the same way.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            result => result,
        }
    }

    fn report_torn_tail(&self, turn: &mut Turn<'_>) -> io::Result<()> {
        let len = self.file.metadata()?.len().saturating_sub(self.offset);
        if len > 0 {
            let kind = FaultKind::TornTail;
            turn.add(self.lines, Entry::Fault(Fault { offset: self.offset, len, kind }));
        }
        Ok(())
    }
}

/// Returns whether the file can change without an event: on another machine, or under a layer.
#[cfg(target_os = "linux")]
fn loses_events(file: &File) -> bool {
    const NFS: u32 = 0x6969;
    const SMB: u32 = 0x517b;
    const SMB2: u32 = 0xfe53_4d42;
    const CIFS: u32 = 0xff53_4d42;
    const FUSE: u32 = 0x6573_5546;
    const V9FS: u32 = 0x0102_1997;
    const CEPH: u32 = 0x00c3_6400;
    const AFS: u32 = 0x5346_414f;
    const OVERLAY: u32 = 0x794c_7630;
    match rustix::fs::fstatfs(file) {
        // The kernel's type is signed on some machines; these are 32 bits.
        Ok(found) => matches!(
            found.f_type as u32,
            NFS | SMB | SMB2 | CIFS | FUSE | V9FS | CEPH | AFS | OVERLAY
        ),
        Err(_) => true,
    }
}

#[cfg(not(target_os = "linux"))]
fn loses_events(_: &File) -> bool {
    true
}
