//! Memory of this process and of the machine. Start at [`release_free_memory`] and
//! [`available_memory`].

/// Returns the memory of the machine that programs can get without swapping; `None` if the system
/// does not report it.
pub(crate) fn available_memory() -> Option<u64> {
    parse_available(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn parse_available(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// Returns freed memory to the operating system. Otherwise the C library keeps it: a daemon that
/// has read the config of a large fleet would hold three times the memory it uses.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "it is a function of the C library")]
pub fn release_free_memory() {
    // SAFETY: it takes the locks of the allocator, so any thread may call it at any time, and
    // memory in use is not moved.
    let _gave_some = unsafe { libc::malloc_trim(0) };
}

/// Does nothing: other C libraries return memory on their own.
#[cfg(not(target_env = "gnu"))]
pub fn release_free_memory() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_available_memory_is_read() {
        let text = "MemTotal:       24689764 kB\nMemFree: 1 kB\nMemAvailable:   20 kB\n";
        assert_eq!(parse_available(text), Some(20 * 1024));
        assert_eq!(parse_available("MemTotal: 1 kB\n"), None);
        assert_eq!(parse_available("MemAvailable: x kB\n"), None);
    }
}
