//! Holder of a lock file, according to the kernel. Start at [`flock_holder`].

use std::os::unix::fs::MetadataExt as _;

use camino::Utf8Path;

/// The kernel's list of locks.
const LOCKS_FILE: &str = "/proc/locks";

/// Returns the process that holds an exclusive `flock` of a file; `None` if no process holds it or
/// the kernel does not name the holder.
pub fn flock_holder(path: &Utf8Path) -> Option<u32> {
    // Links are not followed, because the lock guards this path and not the target of a link.
    let inode = std::fs::symlink_metadata(path).ok()?.ino();
    find_holder(&std::fs::read_to_string(LOCKS_FILE).ok()?, inode)
}

/// Finds the holder of an inode's lock. Devices are not compared: some file systems show another
/// number there than `stat` does.
fn find_holder(locks: &str, inode: u64) -> Option<u32> {
    locks.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        // A waiting process has an arrow here, and holds nothing.
        if fields.next()? != "FLOCK" {
            return None;
        }
        let (mode, holder, file) = (fields.nth(1)?, fields.next()?, fields.next()?);
        let locked: u64 = file.rsplit(':').next()?.parse().ok()?;
        (mode == "WRITE" && locked == inode).then(|| holder.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_holder_of_the_write_lock_counts() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 00:2f:77 0 EOF\n\
                     2: FLOCK  ADVISORY  READ 12 00:2f:77 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 13 00:2f:78 0 EOF\n\
                     3: -> FLOCK  ADVISORY  WRITE 14 00:2f:77 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE 15 00:2f:77 0 EOF\n";
        assert_eq!(find_holder(locks, 77), Some(15));
        assert_eq!(find_holder(locks, 78), Some(13));
        assert_eq!((find_holder(locks, 79), find_holder("garbage\n", 77)), (None, None));
    }

    #[test]
    fn the_kernel_names_this_process() {
        let temp = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(temp.path()).unwrap().join("lock");
        let file = std::fs::File::create(&path).unwrap();
        assert_eq!(flock_holder(&path), None);
        file.lock().unwrap();
        assert_eq!(flock_holder(&path), Some(std::process::id()));
        drop(file);
        assert_eq!(flock_holder(&path), None);
    }
}
