//! Returns freed memory to the system after a daemon was busy. Start at [`start_memory_trimmer`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Interval between two checks of the daemon's CPU time.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// CPU time between two checks that counts as busy: enough work to have freed memory.
const BUSY_CPU_TIME: Duration = Duration::from_millis(50);

static IS_STARTED: AtomicBool = AtomicBool::new(false);

/// Starts a thread that releases free memory once a busy period is over.
pub(super) fn start_memory_trimmer() -> std::io::Result<()> {
    // A host that takes the lead has one already.
    if IS_STARTED.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    std::thread::Builder::new().name("heeler-memory".to_owned()).spawn(trim_when_idle)?;
    Ok(())
}

fn trim_when_idle() {
    let (mut before, mut was_busy) = (Duration::ZERO, false);
    loop {
        std::thread::sleep(POLL_INTERVAL);
        let now = cpu_time();
        let is_busy = now - before >= BUSY_CPU_TIME;
        // Trimming while the daemon is busy would cost time, and the memory is soon used again.
        if was_busy && !is_busy {
            heeler_runner::release_free_memory();
        }
        // Measured again, so that the trimming itself does not count as work.
        (before, was_busy) = (cpu_time(), is_busy);
    }
}

/// Returns the CPU time used by this process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}
