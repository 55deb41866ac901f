//! Ships the transcripts of this host's runs to the other hosts, through the database.
//!
//! Only whole lines are shipped, and only after they are durable here: a power loss never takes back what
//! another host has. The result of a run is reported after its files. Start at [`FileShipper::start`].

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use camino::Utf8Path;
use heeler_model::{RunId, error_chain};
use heeler_store::{DatabaseError, HostLink, PartReceipt, SharedPart, StateDir, StoreReader};
use heeler_transcript::{LINE_BYTES_MAX, untrusted_file};
use jiff::{SignedDuration, Timestamp};

use super::host_message::EXIT_REPORT;
use crate::fault::{self, FaultPoint};

/// Interval at which new lines are looked for.
const SHIP_INTERVAL: Duration = Duration::from_millis(100);

/// Delay after an error.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Bytes of a part, unless one line is longer.
const PART_BYTES: usize = 256 << 10;

/// Age up to which a new daemon looks for runs whose transcripts an earlier one did not ship.
const LOOK_BACK: SignedDuration = SignedDuration::from_hours(24);

/// Reason of a refusal that this host records itself.
const GIVEN_UP: &str = "the fleet had given the run up when its host wanted to report its result";

/// Requests of the daemon. There is at most one entry for each run.
#[derive(Debug, Default)]
struct ShipRequests {
    /// The runs of this host that have no result on record, if that has changed.
    runs: Option<Vec<RunId>>,
    /// Runs of this host that began lately. They may have ended already.
    recent: BTreeSet<RunId>,
    /// Results that are reported when the files of their runs are shipped.
    exits: BTreeMap<RunId, String>,
}

/// Handle to the thread.
#[derive(Debug)]
pub(super) struct FileShipper {
    requests: Arc<Mutex<ShipRequests>>,
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl FileShipper {
    /// Starts the thread. `now` is the current time.
    pub(super) fn start(dir: StateDir, now: Timestamp) -> io::Result<FileShipper> {
        let requests = Arc::<Mutex<ShipRequests>>::default();
        let (stop, stopped) = sync_channel(0);
        let mut shipper = ShipperThread {
            dir,
            requests: Arc::clone(&requests),
            link: None,
            runs: BTreeMap::new(),
            recent: BTreeSet::new(),
            look_back_from: Some(now - LOOK_BACK),
        };
        let thread = std::thread::Builder::new()
            .name("heeler-ship".to_owned())
            .spawn(move || shipper.run(&stopped))?;
        Ok(FileShipper { requests, stop: Some(stop), thread: Some(thread) })
    }

    /// Replaces the list of runs without a result. Those that are missing now are shipped to their end.
    pub(super) fn set_runs(&self, runs: Vec<RunId>) {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).runs = Some(runs);
    }

    /// Adds runs that began lately: a short one may never be in the list of [`FileShipper::set_runs`].
    pub(super) fn add_recent(&self, runs: Vec<RunId>) {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).recent.extend(runs);
    }

    /// Reports the result of a run after its files.
    pub(super) fn report_exit(&self, run: RunId, body: String) {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).exits.insert(run, body);
    }
}

impl Drop for FileShipper {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the shipper's thread had panicked");
        }
    }
}

/// A file of a run.
struct ShippedFile {
    /// Path in the state directory.
    relative: String,
    /// Bytes that are on record.
    length: u64,
    /// False if another host has the file, or its content here is another one.
    is_own: bool,
}

/// A run with files to ship.
#[derive(Default)]
struct ShippedRun {
    term: i64,
    /// `None` until they are known.
    files: Option<Vec<ShippedFile>>,
    exit: Option<String>,
    /// The run has a result on record.
    is_ended: bool,
    /// The fleet has given the run up.
    is_fenced: bool,
}

struct ShipperThread {
    dir: StateDir,
    requests: Arc<Mutex<ShipRequests>>,
    link: Option<HostLink>,
    runs: BTreeMap<RunId, ShippedRun>,
    /// The last list of recent runs.
    recent: BTreeSet<RunId>,
    /// Time since which runs of an earlier daemon are looked for; `None` after that.
    look_back_from: Option<Timestamp>,
}

impl ShipperThread {
    fn run(&mut self, stopped: &Receiver<()>) {
        let mut wait = SHIP_INTERVAL;
        // The handle only drops its end.
        while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
            let asked =
                std::mem::take(&mut *self.requests.lock().unwrap_or_else(PoisonError::into_inner));
            if let Some(runs) = asked.runs {
                self.note_runs(&runs);
            }
            if !asked.recent.is_empty() {
                self.note_recent(asked.recent);
            }
            for (run, body) in asked.exits {
                self.runs.entry(run).or_default().exit = Some(body);
            }
            wait = match self.ship_all() {
                Ok(()) => SHIP_INTERVAL,
                Err(why) => {
                    tracing::warn!(why, "transcripts are shipped later");
                    self.link = None;
                    RETRY_DELAY
                }
            };
        }
    }

    fn note_runs(&mut self, open: &[RunId]) {
        for (run, shipped) in &mut self.runs {
            shipped.is_ended = !open.contains(run);
        }
        for run in open {
            self.runs.entry(*run).or_default();
        }
    }

    fn note_recent(&mut self, recent: BTreeSet<RunId>) {
        // The lists overlap. Runs of the one before are shipped, or are in `runs`.
        for run in recent.difference(&self.recent) {
            self.runs.entry(*run).or_default();
        }
        self.recent = recent;
    }

    fn ship_all(&mut self) -> Result<(), String> {
        if self.runs.is_empty() && self.look_back_from.is_none() {
            return Ok(());
        }
        let link = match self.link.take().filter(|link| !link.is_closed()) {
            Some(link) => link,
            None => HostLink::connect(&self.dir).map_err(|error| error_chain(&error))?,
        };
        let link = self.link.insert(link);
        let failed = |error: DatabaseError| error_chain(&error);
        if let Some(since) = self.look_back_from {
            let begun = link.unshipped_runs().map_err(failed)?;
            let unrecorded = link.unrecorded_runs(since).map_err(failed)?;
            for run in begun.into_iter().chain(unrecorded) {
                self.runs.entry(run).or_default();
            }
            self.look_back_from = None;
        }
        let mut done = Vec::new();
        for (run, shipped) in &mut self.runs {
            if shipped.files.is_none() {
                shipped.load(&self.dir, *run)?;
            }
            let is_final = shipped.is_ended || shipped.exit.is_some();
            shipped.ship(link, &self.dir, *run).map_err(|error| error_chain(&*error))?;
            if !is_final {
                continue;
            }
            match shipped.exit.take() {
                Some(_) if shipped.is_fenced => {
                    link.record_refusal(*run, GIVEN_UP).map_err(failed)?;
                }
                Some(body) => {
                    let sent = link.send_report((*run, shipped.term), EXIT_REPORT, &body);
                    if let Err(error) = sent {
                        shipped.exit = Some(body);
                        return Err(failed(error));
                    }
                    tracing::info!(%run, "reported its result to the leader");
                }
                None => {}
            }
            link.finish_files(*run).map_err(failed)?;
            done.push(*run);
        }
        for run in done {
            // A run whose report has no result on record yet is looked at again, at no cost.
            self.runs.remove(&run);
        }
        Ok(())
    }
}

impl ShippedRun {
    /// Finds the files of a run.
    fn load(&mut self, dir: &StateDir, run: RunId) -> Result<(), String> {
        let reader = StoreReader::open(dir).map_err(|error| error_chain(&error))?;
        let mut read = || -> Result<Vec<String>, DatabaseError> {
            let Some(record) = reader.run(run)? else { return Ok(Vec::new()) };
            self.is_ended = record.committed;
            let mut files = vec![format!("jobs/{}.jsonl", record.job_id)];
            let session = reader.job(&record.job_id)?.and_then(|job| job.head.session_id);
            let session = session.map(|id| reader.session_by_agent_id(&id)).transpose()?.flatten();
            let log = session.and_then(|session| session.log_path);
            // Those of conversations are not in the state directory.
            files.extend(log.filter(|log| log.is_relative()).map(|log| log.to_string()));
            Ok(files)
        };
        let files = read().map_err(|error| error_chain(&error))?;
        self.term = reader.run_term(run).map_err(|error| error_chain(&error))?;
        // A term is raised only when a run is given up.
        self.is_fenced = self.is_ended && self.term > 0;
        let new = |relative| ShippedFile { relative, length: 0, is_own: true };
        self.files = Some(files.into_iter().map(new).collect());
        Ok(())
    }

    /// Ships all whole lines that the files have now.
    fn ship(
        &mut self,
        link: &HostLink,
        dir: &StateDir,
        run: RunId,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let term = self.term;
        for file in self.files.iter_mut().flatten() {
            while file.is_own && !self.is_fenced {
                let Some(path) = dir.shared_file(&file.relative) else {
                    file.is_own = false;
                    break;
                };
                let Some(bytes) = read_lines(&path, file.length)? else { break };
                let (path, start) = (file.relative.as_str(), file.length);
                let part = SharedPart { run, term, path, start, bytes: &bytes };
                let receipt = link.send_part(&part)?;
                fault::reach(FaultPoint::PartShipped);
                match receipt {
                    PartReceipt::Stored => file.length += bytes.len() as u64,
                    PartReceipt::Fenced => self.is_fenced = true,
                    PartReceipt::OtherLength(length) if length > file.length => {
                        file.length = length;
                    }
                    PartReceipt::OtherLength(length) => {
                        tracing::warn!(%run, path, length, "a transcript is not shipped any more");
                        file.is_own = false;
                    }
                    PartReceipt::OtherHost(host) => {
                        tracing::warn!(%run, path, host, "another host ships this transcript");
                        file.is_own = false;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns whole lines from an offset on, after they are durable. Returns `None` if there are none.
fn read_lines(path: &Utf8Path, start: u64) -> io::Result<Option<Vec<u8>>> {
    let mut file = match untrusted_file::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    if file.metadata()?.len() <= start {
        return Ok(None);
    }
    file.sync_data()?;
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    loop {
        let read = file.by_ref().take(PART_BYTES as u64).read_to_end(&mut bytes)?;
        if let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') {
            bytes.truncate(end + 1);
            return Ok(Some(bytes));
        }
        // The rest of a line is still being written.
        if read == 0 || bytes.len() > LINE_BYTES_MAX {
            return Ok(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use camino::Utf8PathBuf;

    use super::*;

    #[test]
    fn only_whole_lines_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(folder.path().join("log.jsonl")).unwrap();
        assert_eq!(read_lines(&path, 0).unwrap(), None);
        let long = format!("{{\"x\":\"{}\"}}\n", "y".repeat(PART_BYTES * 2));
        std::fs::write(&path, format!("{{}}\n{long}{{\"half")).unwrap();
        assert_eq!(read_lines(&path, 0).unwrap().unwrap(), b"{}\n");
        assert_eq!(read_lines(&path, 3).unwrap().unwrap(), long.as_bytes());
        assert_eq!(read_lines(&path, 3 + long.len() as u64).unwrap(), None);
        assert_eq!(read_lines(&path, 1 << 30).unwrap(), None);
    }
}
