//! Protection of this process against others of the same user.

use rustix::process::DumpableBehavior;

/// Makes memory, environment and open files of this process unreadable for other processes of the
/// same user. Afterwards this process, unless root's, cannot open the private files of
/// `/proc/self` itself.
pub fn hide_own_memory() -> std::io::Result<()> {
    Ok(rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}
