//! Moves files of ended jobs to the archive, so that hosts which join later can have them.
//!
//! Every host archives the files that it ships; the leader also those of hosts that do not. The leader's
//! config decides, and is on record for all hosts. Start at [`FileArchiver::start`].

use std::fs::File;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use heeler_config::FileArchivePlace;
use heeler_model::error_chain;
use heeler_store::{
    ARCHIVED_BYTES_MAX, ArchiveDecision, DatabaseError, FileArchivePolicy, HostLink, PackError,
    PackedFile, StateDir, UnarchivedFile, pack_file,
};
use heeler_transcript::untrusted_file;

use super::object_archive::{ObjectArchive, ObjectError};
use crate::fault::{self, FaultPoint};

/// Longest interval at which files are looked for. It is shorter with a short delay of the policy.
const ARCHIVE_INTERVAL_MAX: Duration = Duration::from_secs(60);

/// Shortest interval, and the first delay after an error. Without an archive, only memory is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Longest delay after errors that follow each other.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(60);

/// The policy on record, as the copier of this host reads it; `None` until then.
#[derive(Debug, Clone, Default)]
pub(super) struct RecordedPolicy(Arc<Mutex<Option<FileArchivePolicy>>>);

impl RecordedPolicy {
    fn get(&self) -> Option<FileArchivePolicy> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set(&self, policy: FileArchivePolicy) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(policy);
    }
}

/// Handle to the thread.
#[derive(Debug)]
pub(super) struct FileArchiver {
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl FileArchiver {
    /// Starts the thread. `lead` is the instance of the writer; `None` on a standby.
    pub(super) fn start(
        dir: StateDir,
        lead: Option<String>,
        objects: ObjectArchive,
        recorded: RecordedPolicy,
    ) -> io::Result<FileArchiver> {
        let (stop, stopped) = sync_channel(0);
        let mut archiver = ArchiverThread { dir, lead, objects, recorded, link: None, fault: None };
        let thread = std::thread::Builder::new()
            .name("heeler-archive".to_owned())
            .spawn(move || archiver.run(&stopped))?;
        Ok(FileArchiver { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for FileArchiver {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the archiver's thread had panicked");
        }
    }
}

/// The daemon ends.
struct Stopped;

/// Failure to archive a file.
enum FileArchiveError {
    Stopped,
    /// This file cannot be archived.
    File(String),
    /// The object store cannot be used.
    Store(String),
    Server(String),
}

impl From<ObjectError> for FileArchiveError {
    fn from(error: ObjectError) -> FileArchiveError {
        match error {
            ObjectError::File(why) => FileArchiveError::File(why),
            ObjectError::Store(why) => FileArchiveError::Store(why),
            ObjectError::Stopped => FileArchiveError::Stopped,
        }
    }
}

impl From<DatabaseError> for FileArchiveError {
    fn from(error: DatabaseError) -> FileArchiveError {
        FileArchiveError::Server(error_chain(&error))
    }
}

struct ArchiverThread {
    dir: StateDir,
    lead: Option<String>,
    objects: ObjectArchive,
    recorded: RecordedPolicy,
    /// `None` without an archive.
    link: Option<HostLink>,
    /// The last error that was logged.
    fault: Option<String>,
}

impl ArchiverThread {
    fn run(&mut self, stopped: &Receiver<()>) {
        let (mut wait, mut retry_delay) = (LOOK_INTERVAL, LOOK_INTERVAL);
        // The handle only drops its end.
        while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
            let Some(policy) = self.policy() else {
                // No connection is kept for nothing.
                (self.link, wait) = (None, LOOK_INTERVAL);
                continue;
            };
            match self.archive_due(&policy, stopped) {
                Ok(()) => {
                    wait = policy.after.clamp(LOOK_INTERVAL, ARCHIVE_INTERVAL_MAX);
                    (retry_delay, self.fault) = (LOOK_INTERVAL, None);
                }
                Err(FileArchiveError::Stopped) => return,
                Err(
                    FileArchiveError::File(why)
                    | FileArchiveError::Store(why)
                    | FileArchiveError::Server(why),
                ) => {
                    self.link = None;
                    wait = retry_delay;
                    retry_delay = (retry_delay * 2).min(RETRY_DELAY_MAX);
                    if self.fault.as_ref() != Some(&why) {
                        tracing::warn!(why, "files are archived later");
                        self.fault = Some(why);
                    }
                }
            }
        }
    }

    /// Returns the policy that applies: that of the leader's config, which it records, or the recorded one.
    /// Returns `None` if there is nothing to do.
    fn policy(&self) -> Option<FileArchivePolicy> {
        let recorded = self.recorded.get();
        let is_on = |policy: &FileArchivePolicy| policy.place != FileArchivePlace::Off;
        if self.lead.is_none() {
            return recorded.filter(is_on);
        }
        let setup = self.objects.monitor().setup();
        let own = FileArchivePolicy::of_config(&setup.loaded.fleets.first()?.archive);
        // Without a record there is no archive.
        (is_on(&own) || recorded.as_ref().is_some_and(is_on)).then_some(own)
    }

    /// Archives the files that are due.
    fn archive_due(
        &mut self,
        policy: &FileArchivePolicy,
        stopped: &Receiver<()>,
    ) -> Result<(), FileArchiveError> {
        let link = match self.link.take().filter(|link| !link.is_closed()) {
            Some(link) => link,
            None => HostLink::connect(&self.dir)
                .map_err(|error| FileArchiveError::Server(error_chain(&error)))?,
        };
        if let Some(lead) = &self.lead
            && self.recorded.get().as_ref() != Some(policy)
        {
            link.set_file_archive_policy(lead, policy)?;
            self.recorded.set(link.file_archive_policy()?);
        }
        let own = self.dir.host().map(|host| host.name.to_string()).unwrap_or_default();
        let (mut last, mut is_done) = (None, policy.place == FileArchivePlace::Off);
        while !is_done {
            let mut files = link.unarchived_files(policy.after, last.as_ref())?;
            for file in &files {
                match policy.decide(file, &own, self.lead.is_some()) {
                    ArchiveDecision::Archive => self.archive(&link, policy, file, stopped)?,
                    ArchiveDecision::LeaveOut => leave_out(&link, file)?,
                    ArchiveDecision::Wait | ArchiveDecision::LeaveToHost => {}
                }
                check_stop(stopped).map_err(|Stopped| FileArchiveError::Stopped)?;
            }
            match files.pop() {
                Some(file) => last = Some(file),
                None => is_done = true,
            }
        }
        self.link = Some(link);
        Ok(())
    }

    /// Archives a file. If it cannot be read, that is on record.
    fn archive(
        &self,
        link: &HostLink,
        policy: &FileArchivePolicy,
        file: &UnarchivedFile,
        stopped: &Receiver<()>,
    ) -> Result<(), FileArchiveError> {
        match self.store(link, policy, file, stopped) {
            Err(FileArchiveError::File(why)) => {
                if link.note_archive_fault(&file.path, &why)? {
                    tracing::warn!(path = file.path, why, "a file is not archived");
                }
                Ok(())
            }
            // For `heeler host show`; the caller logs it.
            Err(FileArchiveError::Store(why)) => {
                link.note_archive_fault(&policy.place.to_string(), &why)?;
                Err(FileArchiveError::Store(why))
            }
            stored => stored,
        }
    }

    fn store(
        &self,
        link: &HostLink,
        policy: &FileArchivePolicy,
        file: &UnarchivedFile,
        stopped: &Receiver<()>,
    ) -> Result<(), FileArchiveError> {
        let refused = |why: &str| FileArchiveError::File(why.to_owned());
        let (_, path) = self
            .dir
            .shipped_file(&file.path)
            .ok_or_else(|| refused("hosts share no file at this path"))?;
        let content = untrusted_file::open(&path)
            .map_err(|error| FileArchiveError::File(format!("cannot read it: {error}")))?;
        let check = || check_stop(stopped).map_err(|Stopped| ObjectError::Stopped);
        let (packed, object) = match &policy.place {
            FileArchivePlace::S3(location) => {
                let content = (file, content);
                let stored = self.objects.upload(location, &self.dir, content, check)?;
                link.forget_archive_fault(&policy.place.to_string())?;
                (stored.packed, Some(stored.url))
            }
            FileArchivePlace::Off | FileArchivePlace::Database => {
                (store_chunks(link, file, content, check)?, None)
            }
        };
        fault::reach(FaultPoint::ArchiveStored);
        if link.record_archived(file, &packed, object.as_deref())? {
            tracing::debug!(path = file.path, length = file.length, "archived a file");
        }
        fault::reach(FaultPoint::ArchiveRecorded);
        link.forget_archive_fault(&file.path)?;
        Ok(())
    }
}

fn check_stop(stopped: &Receiver<()>) -> Result<(), Stopped> {
    match stopped.try_recv() {
        Err(TryRecvError::Empty) => Ok(()),
        _ => Err(Stopped),
    }
}

fn store_chunks(
    link: &HostLink,
    file: &UnarchivedFile,
    content: File,
    check: impl Fn() -> Result<(), ObjectError>,
) -> Result<PackedFile, FileArchiveError> {
    let packed = pack_file(content, file.length, |number, chunk| {
        check()?;
        link.put_archive_chunk(file, number, chunk)?;
        fault::reach(FaultPoint::ArchiveChunkStored);
        Ok(())
    });
    packed.map_err(|error| match error {
        PackError::Put(error) => error,
        PackError::Read(error) => FileArchiveError::File(format!("cannot read it: {error}")),
        PackError::TooShort(_) => FileArchiveError::File(error.to_string()),
    })
}

fn leave_out(link: &HostLink, file: &UnarchivedFile) -> Result<(), DatabaseError> {
    let why = format!("it has {} bytes; at most {ARCHIVED_BYTES_MAX} are archived", file.length);
    link.note_archive_fault(&file.path, &why)?;
    tracing::warn!(path = file.path, why, "a file is not archived");
    link.leave_out_of_archive(file)
}
