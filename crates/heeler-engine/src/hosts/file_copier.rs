//! Keeps copies of the files of other hosts' runs, so that every host shows the rows and files of every
//! job.
//!
//! All copies of a batch are synced together before the database records that this host has them. Start at
//! [`FileCopier::start`].

use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use heeler_model::error_chain;
use heeler_store::{ArchivedFile, HostLink, ReceivedPart, StateDir};
use heeler_transcript::DiskBackend;

use super::archive_copy::{ArchiveCopy, copy_archived};
use super::file_archiver::RecordedPolicy;
use super::object_archive::ObjectArchive;
use super::part_copy::{CopyFault, NO_BEGINNING, add_part};
use super::sync_batch::SyncBatch;
use super::unshared_tail::set_tail_aside;
use crate::fault::{self, FaultPoint};

/// Interval at which new parts are looked for without a hint of the server. Hints come at once; one is
/// lost only with the connection.
const COPY_INTERVAL: Duration = Duration::from_secs(10);

/// Shortest time from one batch of parts to the next. What several hosts ship in it is synced together.
const BATCH_INTERVAL: Duration = Duration::from_millis(20);

/// Delay after an error.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Interval at which files that could not be taken from the archive are tried again.
const FAULT_INTERVAL: Duration = Duration::from_secs(3600);

/// Shortest and longest pause after a failure of the object store.
const STORE_PAUSE: Duration = Duration::from_secs(10);
const STORE_PAUSE_MAX: Duration = Duration::from_secs(300);

/// Interval at which parts that all hosts have are removed from the database.
const REMOVAL_INTERVAL: Duration = Duration::from_secs(60);

/// Event for the thread.
enum CopierEvent {
    /// A host may have shipped a part.
    Hint,
    Stop,
}

/// Handle to the thread.
#[derive(Debug)]
pub(super) struct FileCopier {
    objects: ObjectArchive,
    events: SyncSender<CopierEvent>,
    thread: Option<JoinHandle<()>>,
}

impl FileCopier {
    /// Starts the thread. It also reads the policy of the archive.
    pub(super) fn start(
        dir: StateDir,
        objects: ObjectArchive,
        policy: RecordedPolicy,
    ) -> io::Result<FileCopier> {
        // A hint that finds no room is not needed: another one waits.
        let (events, received) = sync_channel(1);
        let mut copier = CopierThread {
            dir,
            link: None,
            objects: objects.clone(),
            policy,
            store_fault: None,
            last: 0,
            last_archived: 0,
            faults_seen_at: None,
            faults_after: None,
            removed_at: Instant::now(),
            events: events.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("heeler-copy".to_owned())
            .spawn(move || copier.run(&received))?;
        Ok(FileCopier { objects, events, thread: Some(thread) })
    }
}

impl Drop for FileCopier {
    fn drop(&mut self) {
        self.objects.stop();
        // The thread takes what is in the channel before, or has ended.
        let _ended = self.events.send(CopierEvent::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the copier's thread had panicked");
        }
    }
}

/// A pause after a failure of the object store.
struct StoreFault {
    until: Instant,
    pause: Duration,
}

struct CopierThread {
    dir: StateDir,
    link: Option<HostLink>,
    objects: ObjectArchive,
    policy: RecordedPolicy,
    /// The object store could not be used.
    store_fault: Option<StoreFault>,
    /// Number of the last part that is copied.
    last: i64,
    /// Number of the last file of the archive that was looked at.
    last_archived: i64,
    /// Time at which files that could not be taken from the archive were tried again.
    faults_seen_at: Option<Instant>,
    /// Path after which the next of them are tried again.
    faults_after: Option<String>,
    removed_at: Instant,
    /// For hints of the server.
    events: SyncSender<CopierEvent>,
}

impl CopierThread {
    fn run(&mut self, events: &Receiver<CopierEvent>) {
        let mut wait = Duration::ZERO;
        loop {
            match events.recv_timeout(wait) {
                Ok(CopierEvent::Hint) | Err(RecvTimeoutError::Timeout) => {}
                Ok(CopierEvent::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            }
            let begun = Instant::now();
            wait = match self.copy_new() {
                Ok(true) => {
                    // Hints are not lost: the next read finds all parts.
                    if !rest(events, BATCH_INTERVAL.saturating_sub(begun.elapsed())) {
                        return;
                    }
                    Duration::ZERO
                }
                Ok(false) => COPY_INTERVAL,
                Err(why) => {
                    tracing::warn!(why, "files of other hosts are copied later");
                    self.link = None;
                    // The end of a connection is a hint too, and must not end the delay.
                    if !rest(events, RETRY_DELAY) {
                        return;
                    }
                    Duration::ZERO
                }
            };
        }
    }

    /// Copies the next parts. Returns true if there may be more.
    fn copy_new(&mut self) -> Result<bool, String> {
        let failed = |error: heeler_store::DatabaseError| error_chain(&error);
        let link = match self.link.take().filter(|link| !link.is_closed()) {
            Some(link) => link,
            None => {
                let link = HostLink::connect(&self.dir).map_err(|error| error_chain(&error))?;
                // Before the first read: a part in between is in the answer.
                let events = self.events.clone();
                link.listen_for_parts(move || drop(events.try_send(CopierEvent::Hint)))
                    .map_err(failed)?;
                self.last = link.parts_read().map_err(failed)?;
                self.last_archived = link.archives_read().map_err(failed)?;
                link
            }
        };
        let link = self.link.insert(link);
        let parts = link.parts_after(self.last).map_err(failed)?;
        let Some(last) = parts.last().map(|part| part.number) else {
            if self.take_archived()? {
                return Ok(true);
            }
            let link = self.link.as_ref().expect("it was inserted above");
            if self.removed_at.elapsed() >= REMOVAL_INTERVAL {
                self.removed_at = Instant::now();
                link.remove_read_parts().map_err(failed)?;
            }
            return Ok(false);
        };
        let own = self.dir.host().map(|host| host.name.to_string());
        let others = parts.into_iter().filter(|part| Some(&part.host) != own.as_ref());
        let syncs = Arc::new(SyncBatch::default());
        let disk: Arc<dyn DiskBackend> = syncs.clone();
        for parts in group_parts(others) {
            copy_parts((link, &self.objects), &self.dir, &disk, &parts)?;
            fault::reach(FaultPoint::PartCopied);
        }
        syncs.finish().map_err(|error| format!("cannot sync copies of files: {error}"))?;
        link.note_parts_read(last).map_err(failed)?;
        self.last = last;
        Ok(true)
    }

    /// Takes the next files of the archive that this host lacks. Returns true if there may be more.
    fn take_archived(&mut self) -> Result<bool, String> {
        let failed = |error: heeler_store::DatabaseError| error_chain(&error);
        let Some(link) = &self.link else { return Ok(false) };
        self.policy.set(link.file_archive_policy().map_err(failed)?);
        if self.store_fault.as_ref().is_some_and(|fault| Instant::now() < fault.until) {
            return Ok(false);
        }
        let archive = (link, &self.objects);
        let mut taken = TakenFile::Here;
        if self.faults_seen_at.is_none_or(|at| at.elapsed() >= FAULT_INTERVAL) {
            (self.faults_seen_at, self.faults_after) = (Some(Instant::now()), Some(String::new()));
        }
        if let Some(after) = &self.faults_after {
            let paths = link.own_archive_faults(after).map_err(failed)?;
            for path in &paths {
                if taken != TakenFile::Unreachable
                    && let Some(file) = link.archived_file(path).map_err(failed)?
                {
                    taken = take_file(archive, &self.dir, &file)?;
                }
            }
            if taken != TakenFile::Unreachable {
                self.faults_after = paths.into_iter().next_back();
                // Parts come first.
                if self.faults_after.is_some() {
                    return Ok(true);
                }
            }
        }
        let files = link.archived_after(self.last_archived).map_err(failed)?;
        let mut last = None;
        for file in &files {
            if taken != TakenFile::Unreachable {
                taken = take_file(archive, &self.dir, file)?;
            }
            if taken == TakenFile::Unreachable {
                break;
            }
            last = Some(file.number);
        }
        if let Some(last) = last {
            link.note_archives_read(last).map_err(failed)?;
            self.last_archived = last;
        }
        if taken == TakenFile::Unreachable {
            let pause = self.store_fault.as_ref().map_or(STORE_PAUSE, |fault| fault.pause * 2);
            let pause = pause.min(STORE_PAUSE_MAX);
            self.store_fault = Some(StoreFault { until: Instant::now() + pause, pause });
            return Ok(false);
        }
        self.store_fault = None;
        Ok(last.is_some())
    }
}

/// Waits, and ignores hints. Returns false if the thread is to stop.
fn rest(events: &Receiver<CopierEvent>, time: Duration) -> bool {
    let end = Instant::now() + time;
    loop {
        match events.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(CopierEvent::Hint) => {}
            Err(RecvTimeoutError::Timeout) => return true,
            Ok(CopierEvent::Stop) | Err(RecvTimeoutError::Disconnected) => return false,
        }
    }
}

/// Outcome of [`take_file`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TakenFile {
    /// This host has it.
    Here,
    Refused,
    /// The object store cannot be used.
    Unreachable,
}

/// Takes a file from the archive if this host lacks some of it. A file that is refused is on record, and does
/// not hold up the others.
fn take_file(
    (link, objects): (&HostLink, &ObjectArchive),
    dir: &StateDir,
    file: &ArchivedFile,
) -> Result<TakenFile, String> {
    let failed = |error: heeler_store::DatabaseError| error_chain(&error);
    let path = &file.path;
    let store = file.object.as_deref().map(|object| object.split('/').take(3).collect::<Vec<_>>());
    let store = store.map(|parts| parts.join("/"));
    match copy_archived((link, objects), dir, file)? {
        ArchiveCopy::Present => return Ok(TakenFile::Here),
        ArchiveCopy::Refused(why) => {
            if link.note_archive_fault(path, &why).map_err(failed)? {
                tracing::error!(path, host = file.host, why, "a file of the archive is refused");
            }
            return Ok(TakenFile::Refused);
        }
        ArchiveCopy::Unreachable(why) => {
            let store = store.unwrap_or_default();
            if link.note_archive_fault(&store, &why).map_err(failed)? {
                tracing::warn!(store, why, "files are taken from the archive later");
            }
            return Ok(TakenFile::Unreachable);
        }
        ArchiveCopy::Copied => {}
    }
    fault::reach(FaultPoint::ArchiveCopied);
    tracing::info!(path, length = file.length, "took a file from the archive");
    link.forget_archive_fault(path).map_err(failed)?;
    if let Some(store) = store {
        link.forget_archive_fault(&store).map_err(failed)?;
    }
    Ok(TakenFile::Here)
}

/// Groups parts that continue each other, in the order of their first ones.
fn group_parts(parts: impl Iterator<Item = ReceivedPart>) -> Vec<Vec<ReceivedPart>> {
    let mut groups: Vec<Vec<ReceivedPart>> = Vec::new();
    let mut latest: HashMap<String, usize> = HashMap::new();
    for part in parts {
        let at = latest.get(&part.path).copied().filter(|at| {
            groups[*at].last().is_some_and(|before| {
                let end = before.start + before.bytes.len() as u64;
                end == part.start && !before.is_last && !part.takes_over && before.host == part.host
            })
        });
        match at {
            Some(at) => groups[at].push(part),
            None => {
                latest.insert(part.path.clone(), groups.len());
                groups.push(vec![part]);
            }
        }
    }
    groups
}

/// Returns parts that continue each other as one.
fn join_parts(parts: &[ReceivedPart]) -> Option<Cow<'_, ReceivedPart>> {
    let (first, rest) = parts.split_first()?;
    let mut joined = Cow::Borrowed(first);
    for part in rest {
        let joined = joined.to_mut();
        joined.bytes.extend_from_slice(&part.bytes);
        joined.is_last = part.is_last;
    }
    Some(joined)
}

/// Appends parts that continue each other to this host's copy, unless the copy is another file by now.
fn copy_parts(
    archive: (&HostLink, &ObjectArchive),
    dir: &StateDir,
    disk: &Arc<dyn DiskBackend>,
    parts: &[ReceivedPart],
) -> Result<(), String> {
    let Some(joined) = join_parts(parts) else { return Ok(()) };
    let mut refused = copy_part(archive, dir, disk, &joined)?;
    if refused.is_some() && parts.len() > 1 {
        // One that no copy takes does not keep those before it away.
        for part in parts {
            refused = copy_part(archive, dir, disk, part)?;
            if refused.is_some() {
                break;
            }
        }
    }
    if let Some(why) = refused {
        tracing::warn!(path = joined.path, host = joined.host, why, "a file is not copied");
    }
    Ok(())
}

/// Appends a part to this host's copy. If its beginning is not here, it may be in the archive. Returns the
/// reason if the part is not copied.
fn copy_part(
    archive: (&HostLink, &ObjectArchive),
    dir: &StateDir,
    disk: &Arc<dyn DiskBackend>,
    part: &ReceivedPart,
) -> Result<Option<String>, String> {
    let Some((form, path)) = dir.shared_file(&part.path) else {
        tracing::error!(path = part.path, host = part.host, "hosts share no file at this path");
        return Ok(None);
    };
    if part.takes_over {
        match set_tail_aside(dir, &path, part) {
            Ok(None) => {}
            Ok(Some(aside)) => {
                tracing::warn!(%path, %aside, "a run that was given up had rows that no other host has");
            }
            // A link or a pipe, which the copy below refuses too.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    let mut copied = add_part(disk, form, &path, part);
    if matches!(copied, Err(CopyFault::NoBeginning)) {
        let archived = archive.0.archived_file(&part.path).map_err(|error| error_chain(&error))?;
        if let Some(file) = archived.filter(|file| file.length >= part.start)
            && take_file(archive, dir, &file)? == TakenFile::Here
        {
            copied = add_part(disk, form, &path, part);
        }
    }
    match copied {
        Ok(()) => Ok(None),
        Err(CopyFault::Disk(why)) => Err(why),
        Err(CopyFault::Other(why)) => Ok(Some(why)),
        Err(CopyFault::NoBeginning) => Ok(Some(NO_BEGINNING.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(number: i64, host: &str, path: &str, start: u64, text: &str) -> ReceivedPart {
        ReceivedPart {
            number,
            host: host.to_owned(),
            path: path.to_owned(),
            start,
            bytes: text.as_bytes().to_vec(),
            is_last: false,
            takes_over: false,
        }
    }

    #[test]
    fn parts_that_continue_each_other_are_copied_together() {
        let parts = [
            part(1, "beta", "a", 0, "one"),
            part(2, "gamma", "b", 0, "x"),
            part(3, "beta", "a", 3, "two"),
            // Another host continues the file.
            ReceivedPart { takes_over: true, ..part(4, "gamma", "a", 6, "three") },
            part(5, "gamma", "a", 11, "four"),
            // A gap.
            part(6, "gamma", "b", 2, "y"),
            ReceivedPart { is_last: true, ..part(7, "gamma", "b", 3, "z") },
            part(8, "gamma", "b", 4, "after the end"),
        ];
        let groups = group_parts(parts.into_iter());
        let numbers = |group: &Vec<ReceivedPart>| group.iter().map(|part| part.number).collect();
        let numbers: Vec<Vec<i64>> = groups.iter().map(numbers).collect();
        assert_eq!(numbers, [vec![1, 3], vec![2], vec![4, 5], vec![6, 7], vec![8]]);
        let joined: Vec<_> = groups.iter().filter_map(|group| join_parts(group)).collect();
        assert_eq!(*joined[0], part(1, "beta", "a", 0, "onetwo"));
        assert!(joined[2].takes_over && !joined[2].is_last);
        assert_eq!((joined[3].bytes.as_slice(), joined[3].is_last), (&b"yz"[..], true));
        assert_eq!(join_parts(&[]), None);
    }
}
