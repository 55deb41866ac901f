//! Ships the files of this host's runs to the other hosts, through the database.
//!
//! The database lists the runs of each host with files that are not shipped to their end. So a daemon also
//! ships what the one before it left. A round sends the next part of each file of all runs, in few
//! statements. The result of a run is reported after its files. Start at [`FileShipper::start`].

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use heeler_model::run::file;
use heeler_model::{RunId, error_chain};
use heeler_store::{HostLink, StateDir, StoreReader, UnshippedRun, is_run_alive};

use super::host_message::EXIT_REPORT;
use super::part_batch::PartBatch;
use super::shipped_run::{FileTurn, ShipError, ShipProgress, ShippedRun};
use crate::fault::{self, FaultPoint};

/// Interval at which new lines are looked for.
const SHIP_INTERVAL: Duration = Duration::from_millis(100);

/// The same while a few files have some.
const BUSY_INTERVAL: Duration = Duration::from_millis(50);

/// Number of parts in a round from which the next one has the longer interval. Lines of that time leave
/// together: the server's work grows with the number of parts.
const MANY_PARTS: usize = 128;

/// Delay after an error.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Reason of a refusal that this host records itself.
const GIVEN_UP: &str = "the fleet had given the run up when its host wanted to report its result";

/// Requests of the daemon. There is at most one entry for each run.
#[derive(Debug, Default)]
struct ShipRequests {
    /// The runs of this host with files that are not shipped to their end, if they were listed anew.
    runs: Option<Vec<UnshippedRun>>,
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
    /// Starts the thread.
    pub(super) fn start(dir: StateDir) -> io::Result<FileShipper> {
        let requests = Arc::<Mutex<ShipRequests>>::default();
        let (stop, stopped) = sync_channel(0);
        let mut shipper = ShipperThread {
            dir,
            requests: Arc::clone(&requests),
            link: None,
            runs: BTreeMap::new(),
            parts_sent: 0,
        };
        let thread = std::thread::Builder::new()
            .name("heeler-ship".to_owned())
            .spawn(move || shipper.run(&stopped))?;
        Ok(FileShipper { requests, stop: Some(stop), thread: Some(thread) })
    }

    /// Replaces the list of runs with files that are not shipped to their end.
    pub(super) fn set_runs(&self, runs: Vec<UnshippedRun>) {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).runs = Some(runs);
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

struct ShipperThread {
    dir: StateDir,
    requests: Arc<Mutex<ShipRequests>>,
    link: Option<HostLink>,
    runs: BTreeMap<RunId, ShippedRun>,
    /// Parts of the present round.
    parts_sent: usize,
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
            for (run, body) in asked.exits {
                self.runs.entry(run).or_default().exit = Some(body);
            }
            let begun = Instant::now();
            wait = match self.ship_all() {
                Ok(ShipProgress::UpToDate) => SHIP_INTERVAL,
                Ok(ShipProgress::Sent) if self.parts_sent < MANY_PARTS => {
                    BUSY_INTERVAL.saturating_sub(begun.elapsed())
                }
                Ok(ShipProgress::Sent) => SHIP_INTERVAL.saturating_sub(begun.elapsed()),
                Ok(ShipProgress::Behind | ShipProgress::AtEnd) => Duration::ZERO,
                Err(why) => {
                    tracing::warn!(why, "files of runs are shipped later");
                    RETRY_DELAY
                }
            };
        }
    }

    fn note_runs(&mut self, listed: &[UnshippedRun]) {
        for UnshippedRun { run, is_ended } in listed {
            self.runs.entry(*run).or_default().is_ended |= is_ended;
        }
        let ids: BTreeSet<RunId> = listed.iter().map(|listed| listed.run).collect();
        self.runs.retain(|run, shipped| ids.contains(run) || shipped.exit.is_some());
    }

    /// Ships the next part of each file, and reports the results of runs whose files are at their end.
    fn ship_all(&mut self) -> Result<ShipProgress, String> {
        if self.runs.is_empty() {
            return Ok(ShipProgress::UpToDate);
        }
        let link = match self.link.take().filter(|link| !link.is_closed()) {
            Some(link) => link,
            None => {
                let link = HostLink::connect(&self.dir).map_err(|error| error_chain(&error))?;
                // The server may be another one now, which lacks what the one before had.
                self.runs.values_mut().for_each(ShippedRun::forget_progress);
                link
            }
        };
        let shipped = self.ship_round(&link);
        if !matches!(shipped, Err(ShipError::Server(_))) {
            self.link = Some(link);
        }
        shipped.map_err(|error| error_chain(&error))
    }

    /// Ships the next part of each file. A file that cannot be read does not hold up the others.
    fn ship_round(&mut self, link: &HostLink) -> Result<ShipProgress, ShipError> {
        self.parts_sent = 0;
        let mut reader: Option<StoreReader> = None;
        for (run, shipped) in &mut self.runs {
            shipped.begin_round(&self.dir, *run, &mut reader)?;
        }
        drop(reader);
        let files: Vec<(RunId, usize)> =
            self.runs.iter().map(|(run, shipped)| (*run, shipped.file_count())).collect();
        let files = files.into_iter().flat_map(|(run, count)| (0..count).map(move |at| (run, at)));
        let mut batch = PartBatch::default();
        for turn in [FileTurn::Transcripts, FileTurn::Others] {
            for (run, at) in files.clone() {
                self.add_part(link, &mut batch, (run, at), turn)?;
            }
        }
        self.send(link, &mut batch)?;
        let mut progress = ShipProgress::UpToDate;
        let mut done = Vec::new();
        for (run, shipped) in &self.runs {
            match shipped.end_round() {
                ShipProgress::AtEnd if finish_run(link, &self.dir, *run, shipped)? => {
                    done.push(*run);
                }
                ShipProgress::AtEnd => {}
                other => progress = progress.max(other),
            }
        }
        for run in done {
            // A run whose report has no result on record yet is looked at again, at no cost.
            self.runs.remove(&run);
        }
        Ok(progress)
    }

    /// Adds the next part of a file to a batch. Sends the batch before if the part has no room there.
    fn add_part(
        &mut self,
        link: &HostLink,
        batch: &mut PartBatch,
        (run, at): (RunId, usize),
        turn: FileTurn,
    ) -> Result<(), ShipError> {
        let Some(shipped) = self.runs.get_mut(&run) else { return Ok(()) };
        let Some((part, file)) = shipped.read_part(run, at, turn) else { return Ok(()) };
        if batch.is_full_for(&part) {
            self.send(link, batch)?;
        }
        if let Err(error) = batch.add(part, &file)
            && let Some(shipped) = self.runs.get_mut(&run)
        {
            shipped.note_fault(at, &error);
        }
        Ok(())
    }

    /// Sends a batch. Its bytes are durable before they leave: a power loss never takes back what another
    /// host has.
    fn send(&mut self, link: &HostLink, batch: &mut PartBatch) -> Result<(), ShipError> {
        batch.sync().map_err(ShipError::Sync)?;
        for (part, receipt) in batch.send(link)? {
            fault::reach(FaultPoint::PartShipped);
            self.parts_sent += 1;
            if let Some(shipped) = self.runs.get_mut(&part.run) {
                shipped.note_receipt(&part, receipt);
            }
        }
        Ok(())
    }
}

/// Reports the result of a run whose files are at their end. Returns true if it is done.
fn finish_run(
    link: &HostLink,
    dir: &StateDir,
    run: RunId,
    shipped: &ShippedRun,
) -> Result<bool, ShipError> {
    if shipped.is_fenced {
        let folder = dir.run(run);
        // Nobody reports the result of a run that this daemon did not take over, because its end is on record.
        let has_result = shipped.exit.is_some() || folder.join(file::RESULT).exists();
        if !has_result && is_run_alive(&folder) {
            return Ok(false);
        }
        if has_result {
            link.record_refusal(run, GIVEN_UP)?;
        }
    } else if let Some(body) = &shipped.exit {
        link.send_report((run, shipped.term), EXIT_REPORT, body)?;
        tracing::info!(%run, "reported its result to the leader");
    }
    fault::reach(FaultPoint::FilesShipped);
    link.finish_files(run)?;
    Ok(true)
}
