//! Kills for want of memory in the control group of a container. Start at [`count_memory_kills`].

use std::fs;

/// Files of the kernel with the count: control groups of version 2, then of version 1. A container
/// sees its own control group at these paths.
const COUNT_FILES: [&str; 2] =
    ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"];

/// Returns the number of processes that the kernel has killed because the memory of the control
/// group was used up; zero if it cannot be read.
pub(crate) fn count_memory_kills() -> u64 {
    COUNT_FILES.iter().find_map(|path| parse_kills(&fs::read_to_string(path).ok()?)).unwrap_or(0)
}

fn parse_kills(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_of_control_groups_are_read() {
        assert_eq!(parse_kills("low 0\nmax 31\noom 2\noom_kill 1\noom_group_kill 0\n"), Some(1));
        assert_eq!(parse_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), Some(3));
        assert_eq!(parse_kills("oom_kill_disable 0\n"), None);
    }
}
