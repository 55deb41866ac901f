//! The cgroup of a run, where one may be created: no process in it escapes.
//!
//! It is a directory of the cgroup file system (version 2) below the runner's own cgroup, so it
//! needs neither root nor a daemon where that cgroup belongs to the user, as in a user's systemd
//! services. Start at [`RunCgroup::create`].

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::{RunId, error_chain};
use jiff::Timestamp;
use rustix::process::Pid;
use thiserror::Error;

/// Time that killed processes have to leave their cgroup.
const EMPTY_WAIT_MAX: Duration = Duration::from_secs(1);
/// Interval of checks for an empty cgroup.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Reason that a run has no cgroup. Without one, a process that detaches from its parents and
/// clears its environment can outlive a killed runner.
#[derive(Debug, Error)]
pub(crate) enum CgroupCreateError {
    /// This machine has no cgroup file system of version 2, or this process is outside of its
    /// visible part.
    #[error("there is no cgroup version 2 here")]
    Absent,
    /// This process's cgroup belongs to another user.
    #[error("the control group {path} cannot be divided by this user")]
    NotOwned {
        path: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
    /// A cgroup below this process's own would accept no processes.
    #[error("the control group {path} accepts no processes below it")]
    NotADomain { path: Utf8PathBuf },
}

/// Returns the reason that a run started from this process would have no cgroup; `None` if it would
/// have one.
pub fn control_group_unavailable_reason() -> Option<String> {
    // The ID is random, so the trial cannot meet the cgroup of a real run.
    let nobodys = RunId::mint(Timestamp::UNIX_EPOCH, std::array::from_fn(|_| fastrand::u8(..)));
    match RunCgroup::create(nobodys) {
        Ok(cgroup) => {
            cgroup.remove();
            None
        }
        Err(reason) => Some(error_chain(&reason)),
    }
}

#[derive(Debug, Clone)]
pub(crate) struct RunCgroup {
    path: Utf8PathBuf,
}

/// Open files of a cgroup by which a process joins it.
#[derive(Debug)]
pub(crate) struct CgroupEntry {
    /// Directory of the cgroup, in which the kernel can create a process.
    pub(super) folder: OwnedFd,
    /// File into which a process writes `0` to move itself.
    pub(super) procs_file: OwnedFd,
}

impl RunCgroup {
    /// Creates a run's cgroup below the cgroup of this process.
    pub(crate) fn create(run: RunId) -> Result<RunCgroup, CgroupCreateError> {
        let own_group_path = own_group().ok_or(CgroupCreateError::Absent)?;
        let not_ours =
            |source| CgroupCreateError::NotOwned { path: own_group_path.clone(), source };
        // Moving a process requires write permission in the common ancestor of both cgroups: this
        // process's own.
        OpenOptions::new().write(true).open(own_group_path.join(PROCESSES)).map_err(not_ours)?;
        let path = own_group_path.join(group_name(run));
        match std::fs::create_dir(&path) {
            // An earlier runner of this run may have died after it created the cgroup.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            result => result.map_err(not_ours)?,
        }
        let cgroup = RunCgroup { path };
        let kind = std::fs::read_to_string(cgroup.path.join("cgroup.type")).unwrap_or_default();
        if kind.trim() != "domain" {
            cgroup.remove();
            return Err(CgroupCreateError::NotADomain { path: own_group_path });
        }
        Ok(cgroup)
    }

    /// Returns the cgroup of a run that another process created: at the recorded path, or below
    /// this process's own. The record is not trusted: only a directory that can be that run's
    /// cgroup is accepted.
    pub(crate) fn find(run: RunId, recorded: Option<&Utf8Path>) -> Option<RunCgroup> {
        let below_own = own_group().map(|own_group_path| own_group_path.join(group_name(run)));
        let candidates = recorded.map(Utf8Path::to_owned).into_iter().chain(below_own);
        candidates.map(|path| RunCgroup { path }).find(|cgroup| cgroup.belongs_to(run))
    }

    fn belongs_to(&self, run: RunId) -> bool {
        let Some((mount, _)) = mount() else { return false };
        // A path with `..` could lead out of the mount although it starts there.
        let normal = self.path.components().all(|part| part.as_str() != "..");
        normal
            && self.path.starts_with(mount)
            && self.path.file_name() == Some(group_name(run).as_str())
            && self.path.join(PROCESSES).is_file()
    }

    pub(crate) fn path(&self) -> &Utf8Path {
        &self.path
    }

    /// Opens the cgroup for a process that is to join it. A cgroup that was removed at the end of an
    /// earlier agent is created again.
    pub(crate) fn open_entry(&self) -> io::Result<CgroupEntry> {
        match self.try_open_entry() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                std::fs::create_dir(&self.path)?;
                self.try_open_entry()
            }
            result => result,
        }
    }

    fn try_open_entry(&self) -> io::Result<CgroupEntry> {
        let procs_file = OpenOptions::new().write(true).open(self.path.join(PROCESSES))?;
        Ok(CgroupEntry { folder: File::open(&self.path)?.into(), procs_file: procs_file.into() })
    }

    /// Returns true if this process is in the cgroup.
    pub(crate) fn contains_self(&self) -> bool {
        own_group().is_some_and(|own_group_path| own_group_path.starts_with(&self.path))
    }

    /// Kills every process in the cgroup and below, including processes being forked.
    pub(crate) fn kill(&self) -> io::Result<()> {
        match write(&self.path.join("cgroup.kill"), "1") {
            // Kernels before 5.14 lack `cgroup.kill`. Frozen processes fork no more, and can be
            // killed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                write(&self.path.join("cgroup.freeze"), "1")
            }
            result => result,
        }
    }

    /// Returns the processes in the cgroup and below.
    pub(crate) fn processes(&self) -> Vec<Pid> {
        let mut pids = Vec::new();
        for folder in self.folders() {
            let text = std::fs::read_to_string(folder.join(PROCESSES)).unwrap_or_default();
            // A process of another PID namespace is listed as 0, which is no PID.
            pids.extend(text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)));
        }
        pids
    }

    /// Removes the cgroup once its killed processes have left it, which takes a moment.
    pub(crate) fn remove_when_empty(&self) {
        let deadline = Instant::now() + EMPTY_WAIT_MAX;
        while self.is_populated() && Instant::now() < deadline {
            std::thread::sleep(POLL_INTERVAL);
        }
        self.remove();
    }

    /// Returns true if the kernel says that no process is in the cgroup or below.
    pub(crate) fn is_empty(&self) -> bool {
        let events = std::fs::read_to_string(self.path.join("cgroup.events")).unwrap_or_default();
        events.lines().any(|line| line == "populated 0")
    }

    fn is_populated(&self) -> bool {
        let events = std::fs::read_to_string(self.path.join("cgroup.events")).unwrap_or_default();
        events.lines().any(|line| line == "populated 1")
    }

    /// Removes the cgroup, unless it still has processes.
    pub(crate) fn remove(&self) {
        // A cgroup can be removed only when none is left below it.
        for folder in self.folders().iter().rev() {
            match std::fs::remove_dir(folder) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::debug!(%error, %folder, "a control group could not be removed");
                }
                _ => {}
            }
        }
    }

    /// Returns the cgroup and those below it, the deepest last.
    fn folders(&self) -> Vec<Utf8PathBuf> {
        let mut folders = vec![self.path.clone()];
        let mut next = 0;
        while let Some(folder) = folders.get(next) {
            let entries = folder.read_dir_utf8().into_iter().flatten().flatten();
            let below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            let below: Vec<_> = below.map(|entry| entry.into_path()).collect();
            folders.extend(below);
            next += 1;
        }
        folders
    }
}

const PROCESSES: &str = "cgroup.procs";

fn group_name(run: RunId) -> String {
    format!("heeler-{run}")
}

fn write(path: &Utf8Path, text: &str) -> io::Result<()> {
    // The file is never created: the kernel provides these files.
    io::Write::write_all(&mut File::options().write(true).open(path)?, text.as_bytes())
}

/// Returns the cgroup directory of this process.
fn own_group() -> Option<Utf8PathBuf> {
    let (mount, root) = mount()?;
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    // On a machine with both versions, the other lines name cgroups of version 1.
    locate_group(&mount, &root, groups.lines().find_map(|line| line.strip_prefix("0::"))?)
}

/// Returns the mount point of the cgroup file system, and the cgroup that is its root there.
fn mount() -> Option<(Utf8PathBuf, String)> {
    cgroup2_mount(&std::fs::read_to_string("/proc/self/mountinfo").ok()?)
}

fn cgroup2_mount(mountinfo: &str) -> Option<(Utf8PathBuf, String)> {
    mountinfo.lines().find_map(|line| {
        // A varying number of optional fields precedes the dash, so the type is read behind it.
        let (mount, kind) = line.split_once(" - ")?;
        if kind.split(' ').next() != Some("cgroup2") {
            return None;
        }
        // The fourth field is the root within the file system, and the fifth is the mount point.
        let mut fields = mount.split(' ').skip(3);
        let root = unescape(fields.next()?);
        Some((Utf8PathBuf::from(unescape(fields.next()?)), root))
    })
}

/// Decodes the octal escapes of blanks and backslashes.
fn unescape(field: &str) -> String {
    // The backslash is last, so that a decoded one does not begin another escape.
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(field.to_owned(), |text, (from, to)| text.replace(from, to))
}

fn locate_group(mount: &Utf8Path, root: &str, group: &str) -> Option<Utf8PathBuf> {
    // In a container only a part of the tree is mounted; other cgroups cannot be reached.
    let inside = Utf8Path::new(group).strip_prefix(root).ok()?;
    // The kernel shows a cgroup outside of the cgroup namespace with `..` in its path.
    let leaves = inside.components().any(|part| part.as_str() == "..");
    (!leaves).then(|| mount.join(inside))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(mountinfo: &str, group: &str, expected: Option<&str>) {
        let found =
            cgroup2_mount(mountinfo).and_then(|(mount, root)| locate_group(&mount, &root, group));
        assert_eq!(found.as_deref().map(Utf8Path::as_str), expected);
    }

    #[test]
    fn our_group_is_found_wherever_the_file_system_is_mounted() {
        let unified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
        check(unified, "/user.slice/a.service", Some("/sys/fs/cgroup/user.slice/a.service"));
        check(unified, "/", Some("/sys/fs/cgroup/"));
        let hybrid = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                      32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        check(hybrid, "/a", Some("/sys/fs/cgroup/unified/a"));
        let container = "9 1 0:5 /docker/1f /sys/my\\040groups rw - cgroup2 cgroup rw\n";
        check(container, "/docker/1f/x", Some("/sys/my groups/x"));
    }

    #[test]
    fn a_group_outside_of_the_mount_is_none() {
        let container = "9 1 0:5 /docker/1f /sys/fs/cgroup rw - cgroup2 cgroup rw\n";
        check(container, "/docker/2a", None);
        check("9 1 0:5 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n", "/../other", None);
        check("9 1 0:5 / /sys/fs/cgroup rw - cgroup cgroup rw\n", "/a", None);
    }
}
