//! Holders of a lock file, according to the kernel. Start at [`flock_holders`].

use std::os::unix::fs::MetadataExt as _;

use camino::Utf8Path;

/// The kernel's list of locks.
const LOCKS_FILE: &str = "/proc/locks";

/// Returns the processes that may hold the exclusive `flock` of a file. It is one, unless the kernel
/// names the file's device by another number than `stat` does: files of other devices may then have
/// the same inode. It is none if no process holds the lock or the kernel does not name the holder.
pub fn flock_holders(path: &Utf8Path) -> Vec<u32> {
    // Links are not followed, because the lock guards this path and not the target of a link.
    let file = std::fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()));
    let (Ok(file), Ok(locks)) = (file, std::fs::read_to_string(LOCKS_FILE)) else {
        return Vec::new();
    };
    find_holders(&locks, file)
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

/// Finds the holders of a file's lock in the kernel's list, by device and inode. Some file systems
/// show another device there than `stat` does, and are found by the inode alone.
fn find_holders(locks: &str, (device, inode): (u64, u64)) -> Vec<u32> {
    let locks: Vec<FlockEntry> = locks.lines().filter_map(FlockEntry::parse).collect();
    let of_inode = || locks.iter().filter(|lock| lock.inode == inode);
    let device = (rustix::fs::major(device), rustix::fs::minor(device));
    let exact: Vec<u32> =
        of_inode().filter(|lock| lock.device == device).map(|lock| lock.holder).collect();
    match exact.is_empty() {
        true => of_inode().map(|lock| lock.holder).collect(),
        false => exact,
    }
}

/// An exclusive `flock` in the kernel's list.
struct FlockEntry {
    holder: u32,
    /// Major and minor number.
    device: (u32, u32),
    inode: u64,
}

impl FlockEntry {
    fn parse(line: &str) -> Option<FlockEntry> {
        let mut fields = line.split_whitespace().skip(1);
        // A waiting process has an arrow here, and holds nothing.
        if fields.next()? != "FLOCK" || fields.nth(1)? != "WRITE" {
            return None;
        }
        let holder = fields.next()?.parse().ok()?;
        let mut file = fields.next()?.split(':');
        let mut number = || u32::from_str_radix(file.next()?, 16).ok();
        let device = (number()?, number()?);
        Some(FlockEntry { holder, device, inode: file.next()?.parse().ok()? })
    }
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
                     4: FLOCK  ADVISORY  WRITE 15 00:2f:77 0 EOF\n\
                     5: FLOCK  ADVISORY  WRITE 16 fe:00:77 0 EOF\n";
        let device = |major, minor| rustix::fs::makedev(major, minor);
        let none: [u32; 0] = [];
        assert_eq!(find_holders(locks, (device(0, 0x2f), 77)), [15]);
        assert_eq!(find_holders(locks, (device(0xfe, 0), 77)), [16]);
        // The kernel shows another device than `stat`.
        assert_eq!(find_holders(locks, (device(0, 0x30), 77)), [15, 16]);
        assert_eq!(find_holders(locks, (device(0, 0x30), 78)), [13]);
        assert_eq!(find_holders(locks, (device(0, 0x2f), 79)), none);
        assert_eq!(find_holders("garbage\n", (device(0, 0x2f), 77)), none);
    }

    #[test]
    fn the_kernel_names_this_process() {
        let temp = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(temp.path()).unwrap().join("lock");
        let file = std::fs::File::create(&path).unwrap();
        assert_eq!(flock_holders(&path), [0; 0]);
        file.lock().unwrap();
        assert_eq!(flock_holders(&path), [std::process::id()]);
        assert_eq!(flock_descriptor_holders(&path), [std::process::id()]);
        drop(file);
        assert_eq!(flock_holders(&path), [0; 0]);
        let _reader = std::fs::File::open(&path).unwrap();
        assert_eq!(flock_descriptor_holders(&path), [0; 0]);
    }
}
