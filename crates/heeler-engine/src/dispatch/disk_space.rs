//! Space for the files of new runs. While there is none, queued jobs wait and none starts.
//!
//! A file system can be out of inodes while the database can still be written, so a successful commit
//! proves nothing. Start at [`Dispatcher::hold_starts_on_full_disk`].

use std::fs::File;
use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use heeler_model::rerun::is_disk_full;
use heeler_model::run::RunResult;

use super::deferred_work::FullDisk;
use super::dispatcher::Dispatcher;

/// Interval between two checks for space.
const CHECK_EVERY: Duration = Duration::from_secs(2);

/// Directory that is created, and removed again, to see whether there is space.
const PROBE: &str = ".space-probe";

/// Size of the file in it. Some file systems keep small files where there is space for nothing else.
const PROBE_BYTES: usize = 64 << 10;

impl Dispatcher {
    /// Holds all starts if a run had no space for its files.
    pub(super) fn hold_starts_on_full_disk(&mut self, result: &RunResult) {
        if !is_disk_full(result) {
            return;
        }
        let why = result.error.as_ref().map_or("no space", |error| error.message.as_str());
        let why =
            format!("the disk is full: {why}; free space or files (`df -i`): nothing new starts");
        if self.deferred.full_disk.is_none() {
            tracing::error!(why, "no job starts");
        }
        self.deferred.full_disk = Some(FullDisk { check_at: Instant::now() + CHECK_EVERY, why });
    }

    /// Returns true if there is space for the files of new runs, as far as is known.
    pub(super) fn has_space_for_runs(&mut self) -> bool {
        let Some(full) = &mut self.deferred.full_disk else { return true };
        if full.check_at > Instant::now() {
            return false;
        }
        match create_probe(&self.fleet.dir.runs().join(PROBE)) {
            Ok(()) => {
                tracing::info!("there is space again, so jobs start");
                self.deferred.full_disk = None;
                true
            }
            Err(_) => {
                full.check_at = Instant::now() + CHECK_EVERY;
                false
            }
        }
    }
}

fn create_probe(path: &camino::Utf8Path) -> io::Result<()> {
    // A daemon that was killed may have left one.
    let _left = std::fs::remove_dir_all(path);
    std::fs::create_dir(path)?;
    let written = File::create_new(path.join("file")).and_then(|mut file| {
        file.write_all(&[1; PROBE_BYTES])?;
        // Space may be allocated as late as this.
        file.sync_all()
    });
    std::fs::remove_dir_all(path)?;
    written
}
