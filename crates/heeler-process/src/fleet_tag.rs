//! Tag of a fleet's agents, which their processes pass to all descendants and cannot exchange for that
//! of another fleet.
//!
//! The tag is a pair of hard resource limits that the kernel no longer enforces (file locks and resident
//! memory). A process can lower its hard limits but not raise them, unless it is root. The sum of the pair
//! is the same for all fleets, so of two fleets each has one limit that is higher. A process with a limit
//! above that of a fleet is therefore no agent of this fleet. Processes of a fleet within an agent of
//! another have the lower limits of both, so they may count for a third fleet too. Start at
//! [`FleetTag`].

use camino::Utf8Path;

use crate::origin::read_process_file;

/// Smallest limit of a tag. A program that reads it as an amount of memory sees no limit.
const LIMIT_MIN: u64 = 1 << 61;

/// Bits of the part that differs between fleets.
const FLEET_BITS: u32 = 60;

/// Tag of the agents of a state directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FleetTag {
    locks: u64,
    memory: u64,
}

impl FleetTag {
    pub fn new(state_dir: &Utf8Path) -> FleetTag {
        let (fleet, most) = (hash(state_dir.as_str()) >> (64 - FLEET_BITS), (1 << FLEET_BITS) - 1);
        FleetTag { locks: LIMIT_MIN + fleet, memory: LIMIT_MIN + (most - fleet) }
    }

    /// Sets the tag of this process and its descendants. Below an agent of another fleet the tag stays
    /// as it is, or becomes lower.
    #[cfg(target_os = "linux")]
    pub fn apply(self) -> std::io::Result<()> {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

        for (resource, wanted) in [(Resource::Locks, self.locks), (Resource::Rss, self.memory)] {
            let limit = getrlimit(resource).maximum.map_or(wanted, |known| known.min(wanted));
            setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(limit) })?;
        }
        Ok(())
    }

    /// Does nothing: the tag is read on Linux only.
    #[cfg(not(target_os = "linux"))]
    pub fn apply(self) -> std::io::Result<()> {
        Ok(())
    }

    /// Returns true if a process is certainly no agent of this fleet, because it has the tag of another.
    pub(crate) fn rules_out(self, pid: u32) -> bool {
        let limits = read_process_file(pid, "limits").unwrap_or_default();
        FleetTag::parse(&limits)
            .is_some_and(|found| found.locks > self.locks || found.memory > self.memory)
    }

    /// Reads the tag in the content of the file `limits` of a process. Returns `None` if it has none.
    fn parse(limits: &str) -> Option<FleetTag> {
        // An unlimited value is a word, and no tag.
        let hard = |name: &str| {
            let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().nth(1)?.parse().ok()
        };
        Some(FleetTag { locks: hard("Max file locks")?, memory: hard("Max resident set")? })
    }
}

/// Hashes a text by FNV-1a. The result must be the same in all releases, because agents outlive them.
fn hash(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_fleets_each_has_one_higher_limit() {
        let dirs = ["/a/.heeler", "/b/.heeler", "/b/c/.heeler", "/"];
        let tags = dirs.map(|dir| FleetTag::new(Utf8Path::new(dir)));
        for (at, own) in tags.iter().enumerate() {
            assert!(own.locks >= LIMIT_MIN && own.memory >= LIMIT_MIN);
            for other in &tags[..at] {
                assert_ne!(own.locks > other.locks, own.memory > other.memory);
            }
        }
    }

    #[test]
    fn a_tag_is_read_from_the_hard_limits() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max resident set          7                    8                    bytes     \n\
                    Max file locks            5                    6                    locks     \n";
        assert_eq!(FleetTag::parse(text), Some(FleetTag { locks: 6, memory: 8 }));
        assert_eq!(FleetTag::parse(&text.replace('6', "unlimited")), None);
        assert_eq!(FleetTag::parse(""), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    #[expect(clippy::disallowed_methods, reason = "the test needs a process with a tag")]
    fn a_process_with_the_tag_of_another_fleet_is_ruled_out() {
        let of = |dir: &str| FleetTag::new(Utf8Path::new(dir));
        let (other, nested) = (of("/b/.heeler"), of("/b/work/.heeler"));
        // As after `other.apply()` and `nested.apply()`.
        let (locks, memory) = (other.locks.min(nested.locks), other.memory.min(nested.memory));
        // A fleet with a number between those of the two is not ruled out.
        let is_between = |tag: &FleetTag| tag.locks >= locks && tag.memory >= memory;
        let mut tags = (0..100).map(|number| of(&format!("/{number}/.heeler")));
        let tag = tags.find(|tag| !is_between(tag)).unwrap();
        let mut command = std::process::Command::new("prlimit");
        command.args([format!("--locks={locks}:{locks}"), format!("--rss={memory}:{memory}")]);
        let mut process = command.args(["sleep", "60"]).spawn().unwrap();
        // The program sets the limits of itself first.
        while read_process_file(process.id(), "limits")
            .is_none_or(|it| FleetTag::parse(&it).is_none())
        {
            std::thread::yield_now();
        }
        let found = [tag, other, nested].map(|tag| tag.rules_out(process.id()));
        process.kill().unwrap();
        process.wait().unwrap();
        assert_eq!(found, [true, false, false], "a fleet within an agent counts for both");
        assert!(!tag.rules_out(std::process::id()), "a process without a tag is not ruled out");
    }
}
