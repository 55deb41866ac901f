//! Holders of a lock file, according to the kernel. Start at [`flock_holder`].

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

/// Returns every process that has a descriptor through which an exclusive `flock` of a file is held:
/// the process that took the lock, and those that inherited it. A process that only opened the file
/// is not among them. Processes of other users are not found.
pub fn flock_descriptor_holders(path: &Utf8Path) -> Vec<u32> {
    let Ok(file) = std::fs::symlink_metadata(path) else { return Vec::new() };
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| holds_flock(*pid, (file.dev(), file.ino()))).collect()
}

fn holds_flock(pid: u32, file: (u64, u64)) -> bool {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    descriptors.into_iter().any(|descriptor| {
        let is_file = std::fs::metadata(descriptor.path())
            .is_ok_and(|found| (found.dev(), found.ino()) == file);
        is_file && descriptor.file_name().to_str().is_some_and(|number| has_flock(pid, number))
    })
}

/// Returns true if the kernel shows an exclusive `flock` of the open file behind a descriptor.
fn has_flock(pid: u32, descriptor: &str) -> bool {
    let info = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{descriptor}"));
    let is_lock = |line: &str| {
        let mut fields = line.strip_prefix("lock:").unwrap_or_default().split_whitespace().skip(1);
        fields.next() == Some("FLOCK") && fields.nth(1) == Some("WRITE")
    };
    info.is_ok_and(|info| info.lines().any(is_lock))
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
        assert_eq!(flock_descriptor_holders(&path), [std::process::id()]);
        drop(file);
        assert_eq!(flock_holder(&path), None);
        let _reader = std::fs::File::open(&path).unwrap();
        assert_eq!(flock_descriptor_holders(&path), [0; 0]);
    }
}
