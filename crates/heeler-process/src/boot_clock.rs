//! The clock since the start of the machine, which also runs while the machine sleeps.
//!
//! Leases are measured by it: nobody sets it, and all processes of the machine read the same time. Start at
//! [`boot_time`].

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// File with the ID of the present start of the machine.
const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";

/// Returns the time since the start of the machine, including the time that it slept.
pub fn boot_time() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), nanos)
}

/// Returns the ID of the present start of the machine, without which two times cannot be compared. `None` if the
/// kernel has none.
pub fn boot_id() -> Option<String> {
    let id = std::fs::read_to_string(BOOT_ID_FILE).ok()?;
    Some(id.trim().to_owned()).filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_runs_and_the_start_of_the_machine_has_one_id() {
        let before = boot_time();
        assert!(before > Duration::ZERO && boot_time() >= before);
        assert_eq!(boot_id(), boot_id());
    }
}
