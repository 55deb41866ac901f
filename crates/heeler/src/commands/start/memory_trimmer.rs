//! Keeps a daemon small that has been busy.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// How often it is looked whether the daemon was busy.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// A daemon that worked for so long between two looks has freed what it may give back.
const BUSY_CPU_TIME: Duration = Duration::from_millis(50);

/// Starts a thread that gives freed memory back once a busy time is over.
pub(super) fn start_memory_trimmer() -> std::io::Result<()> {
    std::thread::Builder::new().name("heeler-memory".to_owned()).spawn(trim_when_idle)?;
    Ok(())
}

fn trim_when_idle() {
    let (mut before, mut was_busy) = (Duration::ZERO, false);
    loop {
        std::thread::sleep(POLL_INTERVAL);
        let now = cpu_time();
        let is_busy = now - before >= BUSY_CPU_TIME;
        if was_busy && !is_busy {
            heeler_runner::release_free_memory();
        }
        (before, was_busy) = (cpu_time(), is_busy);
    }
}

/// Returns how long this process was at work.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}
