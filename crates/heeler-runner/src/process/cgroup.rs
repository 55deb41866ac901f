//! The control group of a run, where we may make one: nothing that is in it escapes.
//!
//! It is a folder of the cgroup file system (version 2) below our own group, so it needs neither
//! root nor a daemon where our group is ours, as in a user's systemd services. Start at
//! [`RunCgroup::create`].

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::{RunId, error_chain};
use jiff::Timestamp;
use rustix::process::Pid;
use thiserror::Error;

/// How long the dead may take to leave their group.
const EMPTY_WAIT_MAX: Duration = Duration::from_secs(1);
/// How often it is looked whether they have.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Why a run has no control group: a process of it that sheds its parents and its environment can
/// outlive a runner that was killed.
#[derive(Debug, Error)]
pub(crate) enum CgroupCreateError {
    /// This machine has no cgroup file system of version 2, or we are outside of what we see of it.
    #[error("there is no cgroup version 2 here")]
    Absent,
    /// Ours belongs to somebody else.
    #[error("the control group {path} is not ours to divide")]
    NotOwned {
        /// Our own group.
        path: Utf8PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A group below ours would take no processes.
    #[error("the control group {path} takes no processes below it")]
    NotADomain {
        /// Our own group.
        path: Utf8PathBuf,
    },
}

/// Returns why a run that is started from here would have no control group; `None` if it would.
pub fn control_group_unavailable_reason() -> Option<String> {
    let nobodys = RunId::mint(Timestamp::UNIX_EPOCH, std::array::from_fn(|_| fastrand::u8(..)));
    match RunCgroup::create(nobodys) {
        Ok(cgroup) => {
            cgroup.remove();
            None
        }
        Err(reason) => Some(error_chain(&reason)),
    }
}

/// A control group.
#[derive(Debug, Clone)]
pub(crate) struct RunCgroup {
    path: Utf8PathBuf,
}

impl RunCgroup {
    /// Makes a run's group below our own.
    pub(crate) fn create(run: RunId) -> Result<RunCgroup, CgroupCreateError> {
        let own = own_group().ok_or(CgroupCreateError::Absent)?;
        let not_ours = |source| CgroupCreateError::NotOwned { path: own.clone(), source };
        // Who moves a process must be allowed to write where both groups meet: in ours.
        OpenOptions::new().write(true).open(own.join(PROCESSES)).map_err(not_ours)?;
        let path = own.join(group_name(run));
        match std::fs::create_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            result => result.map_err(not_ours)?,
        }
        let cgroup = RunCgroup { path };
        let kind = std::fs::read_to_string(cgroup.path.join("cgroup.type")).unwrap_or_default();
        if kind.trim() != "domain" {
            cgroup.remove();
            return Err(CgroupCreateError::NotADomain { path: own });
        }
        Ok(cgroup)
    }

    /// Returns the group of a run that somebody else has made: where its record says, or below our
    /// own. The record may lie: only what can be that run's group is taken for it.
    pub(crate) fn find(run: RunId, recorded: Option<&Utf8Path>) -> Option<RunCgroup> {
        let below_own = own_group().map(|own| own.join(group_name(run)));
        let candidates = recorded.map(Utf8Path::to_owned).into_iter().chain(below_own);
        candidates.map(|path| RunCgroup { path }).find(|cgroup| cgroup.belongs_to(run))
    }

    fn belongs_to(&self, run: RunId) -> bool {
        let Some((mount, _)) = mount() else { return false };
        let normal = self.path.components().all(|part| part.as_str() != "..");
        normal
            && self.path.starts_with(mount)
            && self.path.file_name() == Some(group_name(run).as_str())
            && self.path.join(PROCESSES).is_file()
    }

    /// Returns the group's folder.
    pub(crate) fn path(&self) -> &Utf8Path {
        &self.path
    }

    /// Opens what a process writes `0` into to join. A group that was taken away at the end of an
    /// earlier agent is made anew.
    pub(crate) fn open_procs_file(&self) -> io::Result<OwnedFd> {
        let mut options = OpenOptions::new();
        let path = self.path.join(PROCESSES);
        match options.write(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                std::fs::create_dir(&self.path)?;
                Ok(options.open(&path)?.into())
            }
            result => Ok(result?.into()),
        }
    }

    /// Says whether this process is in the group.
    pub(crate) fn contains_self(&self) -> bool {
        own_group().is_some_and(|own| own.starts_with(&self.path))
    }

    /// Kills everything in the group and in those below it; what is being forked dies too.
    pub(crate) fn kill(&self) -> io::Result<()> {
        match write(&self.path.join("cgroup.kill"), "1") {
            // Kernels before 5.14 cannot. What is frozen forks no more, and can be killed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                write(&self.path.join("cgroup.freeze"), "1")
            }
            result => result,
        }
    }

    /// Returns the processes in the group and in those below it.
    pub(crate) fn processes(&self) -> Vec<Pid> {
        let mut pids = Vec::new();
        for folder in self.folders() {
            let text = std::fs::read_to_string(folder.join(PROCESSES)).unwrap_or_default();
            pids.extend(text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)));
        }
        pids
    }

    /// Takes the group away once its dead have left it, which takes them a moment.
    pub(crate) fn remove_when_empty(&self) {
        let deadline = Instant::now() + EMPTY_WAIT_MAX;
        while self.is_populated() && Instant::now() < deadline {
            std::thread::sleep(POLL_INTERVAL);
        }
        self.remove();
    }

    fn is_populated(&self) -> bool {
        let events = std::fs::read_to_string(self.path.join("cgroup.events")).unwrap_or_default();
        events.lines().any(|line| line == "populated 1")
    }

    /// Takes the group away; one that still has processes stays.
    pub(crate) fn remove(&self) {
        for folder in self.folders().iter().rev() {
            match std::fs::remove_dir(folder) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::debug!(%error, %folder, "a control group stays");
                }
                _ => {}
            }
        }
    }

    /// Returns the group and those below it, the deepest last.
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
    // Never made: the kernel makes these files.
    io::Write::write_all(&mut File::options().write(true).open(path)?, text.as_bytes())
}

/// Returns the folder of the group that this process is in.
fn own_group() -> Option<Utf8PathBuf> {
    let (mount, root) = mount()?;
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    locate_group(&mount, &root, groups.lines().find_map(|line| line.strip_prefix("0::"))?)
}

/// Returns where the cgroup file system is mounted, and which group is its root there.
fn mount() -> Option<(Utf8PathBuf, String)> {
    cgroup2_mount(&std::fs::read_to_string("/proc/self/mountinfo").ok()?)
}

fn cgroup2_mount(mountinfo: &str) -> Option<(Utf8PathBuf, String)> {
    mountinfo.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        if kind.split(' ').next() != Some("cgroup2") {
            return None;
        }
        let mut fields = mount.split(' ').skip(3);
        let root = unescape(fields.next()?);
        Some((Utf8PathBuf::from(unescape(fields.next()?)), root))
    })
}

/// Undoes the octal escapes of blanks and backslashes.
fn unescape(field: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(field.to_owned(), |text, (from, to)| text.replace(from, to))
}

fn locate_group(mount: &Utf8Path, root: &str, group: &str) -> Option<Utf8PathBuf> {
    let inside = Utf8Path::new(group).strip_prefix(root).ok()?;
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
