//! Keeps a daemon small that has been busy.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// How often it is looked whether the daemon was busy.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A daemon that worked for so long between two looks has freed what it may give back.
const BUSY: Duration = Duration::from_millis(50);

/// Starts a thread that gives freed memory back once a busy time is over.
pub(super) fn keep_small() -> std::io::Result<()> {
    std::thread::Builder::new().name("heeler-memory".to_owned()).spawn(look)?;
    Ok(())
}

fn look() {
    let (mut before, mut was_busy) = (Duration::ZERO, false);
    loop {
        std::thread::sleep(LOOK_EVERY);
        let now = worked();
        let is_busy = now - before >= BUSY;
        if was_busy && !is_busy {
            heeler_runner::give_back_memory();
        }
        (before, was_busy) = (worked(), is_busy);
    }
}

/// Returns how long this process was at work.
fn worked() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}
