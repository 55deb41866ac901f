//! Follows transcripts as they grow: every record once, in order, none lost.
//!
//! A file is watched first and then read to its end, and a wake-up during the read causes another
//! read, so nothing is missed. A last line without newline is held until the newline arrives. Start
//! at [`TranscriptFollower`].

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};

use crate::disk::{DiskError, folder_of};
use crate::file_watch::{FileWatch, WakeSignal};
use crate::line_reader::{ForwardLineReader, last_line_end};
use crate::record::{TranscriptEntry, TranscriptFault, TranscriptFaultKind, TranscriptRecord};
use crate::watched_file::{WATCHED_FILE, WatchedFile};

/// Polling interval for files without events.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Size at which one read of a file ends, so that the other files get their turn.
const READ_BATCH_BYTES: u64 = 1024 * 1024;
/// Number of bytes before the read position that are remembered to detect a rewritten file.
const LAST_BYTES_MAX: u64 = 64;

/// Start position in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FollowStart {
    /// At the first line.
    Beginning,
    /// After the last whole line.
    End,
    /// At this offset, the start of a line: a page's `end` or a record's `next`.
    Offset(u64),
}

/// Update of a followed file. Files are numbered in the order they were added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FollowUpdate {
    Record {
        file: usize,
        /// Number of lines before the record's line, since the start or the last
        /// [`FollowRestartReason`].
        line: u64,
        record: TranscriptRecord,
    },
    /// New bytes that are not a record.
    Fault { file: usize, fault: TranscriptFault },
    /// The file is read from its beginning again.
    Restarted { file: usize, reason: FollowRestartReason },
}

/// Reason that a file is read from its beginning again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FollowRestartReason {
    /// It was truncated or rewritten in place.
    Rewritten,
    /// Another file has its name now.
    Replaced,
}

/// Waits for new records of any number of files.
#[derive(Debug, Default)]
pub struct TranscriptFollower {
    files: Vec<FollowedFile>,
    watched: Option<WatchedFile>,
    signal: Arc<WakeSignal>,
    updates: VecDeque<Result<FollowUpdate, DiskError>>,
}

/// Stops a [`TranscriptFollower`] from another thread.
#[derive(Debug, Clone)]
pub struct FollowStopper(Arc<WakeSignal>);

impl FollowStopper {
    /// Makes the follower's current and all later calls of `next` return `None`.
    pub fn stop(&self) {
        self.0.stop();
    }
}

/// Makes a [`TranscriptFollower`] that waits return, from another thread.
#[derive(Debug, Clone)]
pub struct FollowWaker(Arc<WakeSignal>);

impl FollowWaker {
    /// Makes the follower's current or next wait end, so that its caller can look elsewhere.
    pub fn wake(&self) {
        self.0.interrupt();
    }
}

impl TranscriptFollower {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file, which need not exist yet; returns its index, from 0.
    ///
    /// The start position is determined now, not at the first `next`.
    pub fn add(&mut self, path: &Utf8Path, start: FollowStart) -> usize {
        // Read at once: with `End`, lines that appear between now and the first `next` must be
        // reported.
        let number = self.files.len();
        self.files.push(FollowedFile::new(path, start));
        self.read(number);
        number
    }

    /// Watches a file that is not a transcript, instead of the one watched before. Each change ends
    /// the current or next wait; [`TranscriptFollower::take_watched_change`] then returns true.
    pub fn watch_file(&mut self, path: &Utf8Path) {
        self.watched = Some(WatchedFile::new(path, &self.signal));
    }

    /// Returns true if the watched file may have changed since the last call. The first call returns
    /// true.
    pub fn take_watched_change(&mut self) -> bool {
        self.watched.as_mut().is_some_and(|watched| std::mem::take(&mut watched.is_changed))
    }

    /// Returns the value that [`TranscriptFollower::take_watched_change`] will return.
    pub fn has_watched_change(&self) -> bool {
        self.watched.as_ref().is_some_and(|watched| watched.is_changed)
    }

    /// Returns a handle that stops this follower from another thread.
    pub fn stopper(&self) -> FollowStopper {
        FollowStopper(Arc::clone(&self.signal))
    }

    /// Returns a handle that ends a wait of this follower from another thread.
    pub fn waker(&self) -> FollowWaker {
        FollowWaker(Arc::clone(&self.signal))
    }

    /// Makes the next calls of `next` read every file to its present end, even without an event.
    pub fn check_files(&self) {
        (0..self.files.len()).for_each(|number| self.signal.wake(number));
    }

    pub fn is_stopped(&self) -> bool {
        self.signal.is_stopped()
    }

    /// Returns the next update; `None` if there is none within `timeout`, or when woken or stopped.
    ///
    /// An error is reported once; that file is tried again, and the others continue.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<FollowUpdate>, DiskError> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            // Checked before queued updates: a stopped follower must not deliver more rows.
            if self.signal.is_stopped() {
                return Ok(None);
            }
            if let Some(update) = self.updates.pop_front() {
                return update.map(Some);
            }
            self.wake_due_polls();
            // Taken before the read, so that a change during the read causes another read.
            for number in self.signal.take_changed() {
                match &mut self.watched {
                    Some(watched) if number == WATCHED_FILE => {
                        watched.renew(&self.signal);
                        self.signal.interrupt();
                    }
                    _ => self.read(number),
                }
            }
            if !self.updates.is_empty() {
                continue;
            }
            // Checked after the reads, so that a woken caller has received everything written
            // before the call.
            if self.signal.take_interrupt() {
                return Ok(None);
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Ok(None);
            }
            // Files with reliable events are not polled, so an idle follower sleeps until its
            // deadline.
            let polled = self.files_to_poll().map(|(_, file)| file.read_at);
            let polled = polled.chain(self.watched_to_poll().map(|watched| watched.renewed_at));
            let poll_at = polled.min().map(|at| at + POLL_INTERVAL);
            self.signal.wait(deadline.into_iter().chain(poll_at).min());
        }
    }

    fn wake_due_polls(&self) {
        for (number, _) in
            self.files_to_poll().filter(|(_, file)| file.read_at.elapsed() >= POLL_INTERVAL)
        {
            self.signal.wake(number);
        }
        if self.watched_to_poll().is_some_and(|it| it.renewed_at.elapsed() >= POLL_INTERVAL) {
            self.signal.wake(WATCHED_FILE);
        }
    }

    fn watched_to_poll(&self) -> Option<&WatchedFile> {
        self.watched.as_ref().filter(|watched| watched.needs_polling())
    }

    fn files_to_poll(&self) -> impl Iterator<Item = (usize, &FollowedFile)> {
        self.files.iter().enumerate().filter(|(_, file)| file.needs_polling())
    }

    fn read(&mut self, number: usize) {
        let file = &mut self.files[number];
        let mut sink =
            FollowUpdateSink { number, signal: &self.signal, updates: &mut self.updates };
        let result = file.read(&mut sink).map_err(DiskError::at("follow", &file.path));
        // A file that stays unreadable would otherwise repeat its error at every poll.
        let was_failed = std::mem::replace(&mut file.failed, result.is_err());
        if let Err(error) = result
            && !was_failed
        {
            self.updates.push_back(Err(error));
        }
    }
}

#[derive(Debug)]
struct FollowedFile {
    path: Utf8PathBuf,
    start: FollowStart,
    folder_watch: Option<FileWatch>,
    open: Option<FollowedFileHandle>,
    /// Time of the last read.
    read_at: Instant,
    /// The last read ended in an error that was reported.
    failed: bool,
}

/// Open file at the path, and the read position.
#[derive(Debug)]
struct FollowedFileHandle {
    file: File,
    watch: Option<FileWatch>,
    /// Its events are not reliable.
    needs_polling: bool,
    /// Offset after the last line that was read.
    offset: u64,
    /// Number of lines read.
    lines: u64,
    /// The bytes just before `offset`.
    last_bytes: Vec<u8>,
}

/// Destination for the updates of one read of one file.
struct FollowUpdateSink<'a> {
    number: usize,
    signal: &'a Arc<WakeSignal>,
    updates: &'a mut VecDeque<Result<FollowUpdate, DiskError>>,
}

impl FollowUpdateSink<'_> {
    fn add(&mut self, line: u64, entry: TranscriptEntry) {
        let file = self.number;
        self.updates.push_back(Ok(match entry {
            TranscriptEntry::Record(record) => FollowUpdate::Record { file, line, record },
            TranscriptEntry::Fault(fault) => FollowUpdate::Fault { file, fault },
        }));
    }

    fn restart(&mut self, why: FollowRestartReason) {
        self.updates.push_back(Ok(FollowUpdate::Restarted { file: self.number, reason: why }));
    }
}

impl FollowedFile {
    fn new(path: &Utf8Path, start: FollowStart) -> Self {
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
        let watched = self.folder_watch.as_ref().is_some_and(FileWatch::is_alive);
        let open_polls = |open: &FollowedFileHandle| {
            open.needs_polling || !open.watch.as_ref().is_some_and(FileWatch::is_alive)
        };
        self.failed || !watched || self.open.as_ref().is_some_and(open_polls)
    }

    fn read(&mut self, sink: &mut FollowUpdateSink<'_>) -> io::Result<()> {
        self.read_at = Instant::now();
        // The folder is watched before the file is opened. A file that appears in between causes a
        // wake-up.
        if !self.folder_watch.as_ref().is_some_and(FileWatch::is_alive) {
            let name = self.path.file_name().unwrap_or_default();
            self.folder_watch =
                FileWatch::folder(folder_of(&self.path), name, sink.signal, sink.number);
        }
        loop {
            if self.open.is_none() {
                self.open = FollowedFileHandle::open_at(&self.path, self.start, sink)?;
                // A file that appears or is replaced later is new, so all of its lines are
                // reported.
                self.start = FollowStart::Beginning;
            }
            let Some(open) = &mut self.open else { return Ok(()) };
            // Checked before the read: if another file has the name by then, this read is the last
            // of the old file.
            let replaced = open.is_replaced(&self.path)?;
            if open.read(sink)? == FollowReadEnd::BatchEnd {
                // A batch of blank lines has no update.
                if sink.updates.is_empty() {
                    continue;
                }
                // Files take turns: the rest is read after the updates of this batch were
                // delivered.
                sink.signal.wake(sink.number);
                return Ok(());
            }
            if !replaced {
                return Ok(());
            }
            // No newline will arrive in a file that lost its name and that was read to its end.
            open.report_torn_tail(sink)?;
            sink.restart(FollowRestartReason::Replaced);
            self.open = None;
        }
    }
}

/// Result of a read.
#[derive(PartialEq, Eq)]
enum FollowReadEnd {
    FileEnd,
    BatchEnd,
}

impl FollowedFileHandle {
    /// Returns `None` if the file does not exist.
    fn open_at(
        path: &Utf8Path,
        start: FollowStart,
        sink: &FollowUpdateSink<'_>,
    ) -> io::Result<Option<Self>> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            result => result?,
        };
        // The watch precedes the first read, so a write in between causes another read.
        let watch = FileWatch::file(&file, sink.signal, sink.number);
        // The target of a link can be replaced in a folder that is not watched.
        let needs_polling = path.is_symlink() || loses_events(&file);
        let offset = match start {
            FollowStart::Beginning => 0,
            FollowStart::End => last_line_end(&file, file.metadata()?.len())?,
            FollowStart::Offset(offset) => offset,
        };
        let mut open =
            Self { file, watch, needs_polling, offset, lines: 0, last_bytes: Vec::new() };
        open.remember_last_bytes()?;
        Ok(Some(open))
    }

    fn is_replaced(&self, path: &Utf8Path) -> io::Result<bool> {
        let open = self.file.metadata()?;
        match std::fs::metadata(path) {
            Ok(named) => Ok((named.dev(), named.ino()) != (open.dev(), open.ino())),
            // Removed: a process that has it open may still write, and a new file may appear.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn read(&mut self, sink: &mut FollowUpdateSink<'_>) -> io::Result<FollowReadEnd> {
        if self.is_rewritten()? {
            sink.restart(FollowRestartReason::Rewritten);
            (self.offset, self.lines) = (0, 0);
        }
        let start = self.offset;
        // The buffer is not kept between reads: bytes after the last newline may have been
        // replaced.
        let mut lines = ForwardLineReader::new(start);
        while self.offset - start < READ_BATCH_BYTES {
            let Some(line) = lines.next(&self.file)? else {
                self.remember_last_bytes()?;
                return Ok(FollowReadEnd::FileEnd);
            };
            line.split(&mut |entry| sink.add(self.lines, entry));
            self.lines += 1;
            self.offset = lines.offset();
        }
        self.remember_last_bytes()?;
        Ok(FollowReadEnd::BatchEnd)
    }

    /// Returns true if the bytes before the read position changed or are gone.
    fn is_rewritten(&self) -> io::Result<bool> {
        let mut found = vec![0; self.last_bytes.len()];
        let at = self.offset.saturating_sub(self.last_bytes.len() as u64);
        match self.file.read_exact_at(&mut found, at) {
            Ok(()) => Ok(found != self.last_bytes),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn remember_last_bytes(&mut self) -> io::Result<()> {
        let len = self.offset.min(LAST_BYTES_MAX);
        self.last_bytes.resize(usize::try_from(len).unwrap_or_default(), 0);
        match self.file.read_exact_at(&mut self.last_bytes, self.offset - len) {
            // Truncated meanwhile, which the next read detects in the same way.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            result => result,
        }
    }

    fn report_torn_tail(&self, sink: &mut FollowUpdateSink<'_>) -> io::Result<()> {
        let len = self.file.metadata()?.len().saturating_sub(self.offset);
        if len > 0 {
            let kind = TranscriptFaultKind::TornTail;
            sink.add(
                self.lines,
                TranscriptEntry::Fault(TranscriptFault { offset: self.offset, len, kind }),
            );
        }
        Ok(())
    }
}

/// Returns true if the file can change without an event: on another machine, or under an overlay.
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
        // The kernel's type is signed on some machines; these values are 32 bits.
        Ok(found) => matches!(
            found.f_type as u32,
            NFS | SMB | SMB2 | CIFS | FUSE | V9FS | CEPH | AFS | OVERLAY
        ),
        // An unknown file system is polled, which is slower but misses nothing.
        Err(_) => true,
    }
}

#[cfg(not(target_os = "linux"))]
fn loses_events(_: &File) -> bool {
    true
}
