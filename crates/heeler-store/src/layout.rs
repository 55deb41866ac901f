//! Layout of a state directory, and the rejection of locations that cannot hold one.
//!
//! Only this module spells the paths. It creates directories, never files. Start at
//! [`StateDir`].

use std::io;

use camino::{Utf8DirEntry, Utf8Path, Utf8PathBuf};
use heeler_model::{AgentName, AgentSessionId, JobId, RunId, Session, SessionId, project_slug};
use heeler_transcript::{DiskError, OsDisk, create_folder, replace_file, resolve_inside};
use thiserror::Error;

use crate::store_location::{HostIdentity, PostgresLocation, STORE_FILE};

/// Subdirectories of a state directory, relative to its root.
pub(crate) const FOLDERS: [&str; 7] =
    ["jobs", "sessions", "agent-sessions/projects", "runs", "logs", "backups", "trash"];

/// Lock file of the process that writes the state: the daemon.
pub const WRITER_LOCK_FILE: &str = "heeler.lock";

/// Name of the file with the last contact of a host.
const LEASE_FILE: &str = "host-lease.json";

/// All other entries of Heeler, and the parents of [`FOLDERS`]. None of them may be a symbolic
/// link.
const STATE_ENTRIES: [&str; 20] = [
    "heeler.db",
    "heeler.db-wal",
    "heeler.db-shm",
    "heeler.db-journal",
    "heeler.db.rebuilt",
    WRITER_LOCK_FILE,
    "restore.lock",
    "rebuild.json",
    STORE_FILE,
    "state.yaml",
    "api-token",
    "daemon.json",
    LEASE_FILE,
    "schema",
    ".before-heeler",
    "agent-sessions",
    "hooks",
    "workspaces",
    "worktrees",
    ".gitignore",
];

/// Directories in which entries may not be symbolic links either, because Heeler writes into those
/// entries.
const LINK_FREE_FOLDERS: [&str; 4] =
    ["agent-sessions/projects", "trash", "workspaces", "worktrees"];

/// Directories of session transcripts: Heeler's, and those that herdctl's containers left.
const LOG_FOLDERS: [&str; 2] = ["agent-sessions/", "docker-sessions/"];

/// Network file systems by their `statfs` number. Their locks and syncs are unreliable.
const NETWORK_FILE_SYSTEMS: [(u32, &str); 14] = [
    (0x0000_6969, "NFS"),
    (0x0000_517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x0102_1997, "9p"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x0000_564c, "NCP"),
    (0x00c3_6400, "Ceph"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x1983_0326, "BeeGFS"),
    (0x013111a8, "IBRIX"),
];

/// The `statfs` number shared by all FUSE file systems; the mount table tells them apart.
const FUSE: u32 = 0x6573_5546;

/// FUSE file systems that use the network.
const NETWORK_FUSE: [&str; 8] =
    ["sshfs", "s3fs", "rclone", "gcsfuse", "glusterfs", "davfs", "curlftpfs", "goofys"];

/// Reason why a directory cannot be the state directory.
#[derive(Debug, Error)]
pub enum StateDirError {
    #[error("there is no state directory at {path}")]
    Missing { path: Utf8PathBuf },
    /// The directory is on a network file system.
    #[error(
        "{path} is on a network file system ({file_system}), where locks and syncs cannot be \
         relied on; put it on a local disk with --state-dir"
    )]
    Network {
        path: Utf8PathBuf,
        /// Type of the file system.
        file_system: String,
    },
    /// An entry of Heeler is a symbolic link.
    #[error(
        "{path} is a symbolic link, which is not allowed inside a state directory; remove the \
         link, or replace it with its target"
    )]
    Link { path: Utf8PathBuf },
    /// The file that names the location of the records is unusable.
    #[error("{path} does not name a PostgreSQL database: {reason}")]
    Store { path: Utf8PathBuf, reason: String },
    #[error("cannot {attempt} {path}")]
    Io {
        attempt: &'static str,
        path: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
}

/// A state directory, with every path in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateDir {
    root: Utf8PathBuf,
    /// Location of the records, if they are not in `heeler.db`.
    postgres: Option<PostgresLocation>,
}

impl StateDir {
    /// Opens an existing directory. Creates nothing, so it works on a read-only medium.
    ///
    /// The directory itself may be a symbolic link. Heeler's entries in it may not: a directory
    /// that came with a repository could otherwise make Heeler read and write anywhere.
    pub fn open(root: &Utf8Path) -> Result<StateDir, StateDirError> {
        // The canonical path identifies the fleet, also if it is reached through a link.
        let root = match root.canonicalize_utf8() {
            Ok(root) if root.is_dir() => root,
            Ok(_) => return Err(StateDirError::Missing { path: root.to_owned() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(StateDirError::Missing { path: root.to_owned() });
            }
            Err(source) => return Err(io_error("open", root, source)),
        };
        // Locks and syncs are the base of every promise, so a network file system is refused at
        // once.
        refuse_network(&root)?;
        refuse_links(&root)?;
        let postgres = PostgresLocation::read(&root)?;
        Ok(StateDir { root, postgres })
    }

    /// Opens the directory; creates it and its subdirectories if they are missing.
    pub fn create(root: &Utf8Path) -> Result<StateDir, StateDirError> {
        // Only a new directory gets the file, so a later choice of the user stays.
        let is_new = !root.exists();
        make_folder(root)?;
        let dir = StateDir::open(root)?;
        if is_new {
            // Keeps the state out of the fleet's git repository, and safe from `git clean`.
            let ignore = dir.root.join(".gitignore");
            replace_file(&OsDisk, &ignore, b"*\n")
                .map_err(|error| io_error(error.action, &error.path, error.source))?;
        }
        for folder in FOLDERS {
            make_folder(&dir.root.join(folder))?;
        }
        Ok(dir)
    }

    /// Describes a directory that does not exist yet, for readers.
    pub fn absent(root: &Utf8Path) -> StateDir {
        StateDir { root: root.to_owned(), postgres: None }
    }

    /// Returns the location of the records on PostgreSQL; `None` if they are in `heeler.db`.
    pub fn postgres(&self) -> Option<&PostgresLocation> {
        self.postgres.as_ref()
    }

    /// Returns this directory's host; `None` if its fleet has one machine only.
    pub fn host(&self) -> Option<&HostIdentity> {
        self.postgres.as_ref().and_then(|location| location.host.as_ref())
    }

    pub fn root(&self) -> &Utf8Path {
        &self.root
    }

    /// Returns `daemon.json`, which records the address on which the daemon listens.
    pub fn daemon_file(&self) -> Utf8PathBuf {
        self.root.join("daemon.json")
    }

    /// Returns `host-lease.json`, which records the last contact of this host with the fleet's database.
    pub fn lease_file(&self) -> Utf8PathBuf {
        self.root.join(LEASE_FILE)
    }

    /// Returns `api-token`, the secret with which the user's programs access the API.
    pub fn api_token(&self) -> Utf8PathBuf {
        self.root.join(heeler_model::API_TOKEN)
    }

    /// Returns `heeler.db`.
    pub fn database(&self) -> Utf8PathBuf {
        self.root.join("heeler.db")
    }

    /// Returns true if the directory has records: a file, or a place on a server.
    pub fn has_database(&self) -> bool {
        self.postgres.is_some() || self.database().exists()
    }

    /// Returns the writer's lock file.
    pub fn lock(&self) -> Utf8PathBuf {
        self.root.join(WRITER_LOCK_FILE)
    }

    /// Returns the lock file that a restore holds.
    pub fn restore_lock(&self) -> Utf8PathBuf {
        self.root.join("restore.lock")
    }

    /// Returns the view of fleet, agents and schedules.
    pub fn state_yaml(&self) -> Utf8PathBuf {
        self.root.join("state.yaml")
    }

    pub fn jobs(&self) -> Utf8PathBuf {
        self.root.join("jobs")
    }

    /// Returns the path of a job's view.
    pub fn job_yaml(&self, job: &JobId) -> Utf8PathBuf {
        self.root.join(format!("jobs/{job}.yaml"))
    }

    /// Returns the path of a job's transcript, the authoritative record of the job.
    pub fn job_transcript(&self, job: &JobId) -> Utf8PathBuf {
        self.root.join(format!("jobs/{job}.jsonl"))
    }

    /// Returns the path of a job's transcript as text, which exists only if it was requested.
    pub fn job_output(&self, job: &JobId) -> Utf8PathBuf {
        self.root.join(format!("jobs/{job}/output.log"))
    }

    /// Returns the directory of session views.
    pub fn sessions(&self) -> Utf8PathBuf {
        self.root.join("sessions")
    }

    /// Returns the view of the session that an agent's next job continues.
    pub fn agent_session(&self, agent: &AgentName) -> Utf8PathBuf {
        self.root.join(format!("sessions/{agent}.json"))
    }

    /// Returns the path of a session's view.
    pub fn session_json(&self, session: &SessionId) -> Utf8PathBuf {
        self.root.join(format!("sessions/{session}.json"))
    }

    /// Returns the directory of session transcripts.
    pub fn projects(&self) -> Utf8PathBuf {
        self.root.join("agent-sessions/projects")
    }

    /// Returns the transcript of a session with working directory `cwd` (a real path), relative to
    /// the root, as the database stores it.
    pub fn session_log_relative(cwd: &Utf8Path, session: &AgentSessionId) -> Utf8PathBuf {
        Utf8PathBuf::from(format!("agent-sessions/projects/{}/{session}.jsonl", project_slug(cwd)))
    }

    /// Returns the full path of a session's transcript; `None` if it has none, or if the recorded
    /// path is one where Heeler keeps no transcripts.
    ///
    /// The recorded path may come from a foreign database or archive, so it is checked: it must be
    /// in a transcript directory of this state directory or, for interactive sessions, in
    /// `sessions/` of `home`, the user's Heeler directory. No symbolic link is followed.
    pub fn session_log_path(
        &self,
        home: Option<&Utf8Path>,
        session: &Session,
    ) -> Option<Utf8PathBuf> {
        let log = session.log_path.as_ref()?;
        if log.is_absolute() {
            // Conversations of `heeler chat` record an absolute path, because they are outside any
            // fleet.
            let sessions = home?.join("sessions").canonicalize_utf8().ok()?;
            let name = log.strip_prefix(&sessions).ok()?;
            return resolve_inside(&sessions, name.as_str()).ok();
        }
        LOG_FOLDERS.iter().find_map(|folder| log.as_str().strip_prefix(folder))?;
        resolve_inside(&self.root, log.as_str()).ok()
    }

    pub fn runs(&self) -> Utf8PathBuf {
        self.root.join("runs")
    }

    pub fn run(&self, run: RunId) -> Utf8PathBuf {
        self.root.join(format!("runs/{run}"))
    }

    /// Returns the directory of running hooks, which exists only while hooks run.
    pub fn hooks(&self) -> Utf8PathBuf {
        self.root.join("hooks")
    }

    /// Returns the directory of one hook event.
    pub fn hook(&self, event: &str) -> Utf8PathBuf {
        self.root.join(format!("hooks/{event}"))
    }

    pub fn logs(&self) -> Utf8PathBuf {
        self.root.join("logs")
    }

    pub fn backups(&self) -> Utf8PathBuf {
        self.root.join("backups")
    }

    /// Returns the directory of deleted data.
    pub fn trash(&self) -> Utf8PathBuf {
        self.root.join("trash")
    }

    /// Returns the directory of Heeler's git repositories, which hold the snapshots.
    pub fn workspaces(&self) -> Utf8PathBuf {
        self.root.join("workspaces")
    }

    /// Returns the directory of worktrees that belong to forks.
    pub fn worktrees(&self) -> Utf8PathBuf {
        self.root.join("worktrees")
    }

    /// Returns the directory to which the files of a deleted session are moved.
    pub fn trashed_session(&self, session: &SessionId) -> Utf8PathBuf {
        self.trash().join("sessions").join(session.as_str())
    }

    /// Returns the directory to which the files of an expired job are moved.
    pub fn trashed_job(&self, job: &JobId) -> Utf8PathBuf {
        self.trash().join("jobs").join(job.as_str())
    }
}

/// Returns true if Heeler uses this name at the top of a state directory.
pub(crate) fn is_state_entry(name: &str) -> bool {
    STATE_ENTRIES.contains(&name) || FOLDERS.contains(&name)
}

/// Returns the number of bytes that an unprivileged process can still write to the disk of a
/// path.
pub(crate) fn free_bytes(path: &Utf8Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(path.as_std_path())?;
    // `f_bavail` leaves out the blocks that are reserved for root.
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

fn make_folder(path: &Utf8Path) -> Result<(), StateDirError> {
    let failed = |error: DiskError| io_error(error.action, &error.path, error.source);
    create_folder(&OsDisk, path).map_err(failed)
}

fn refuse_links(root: &Utf8Path) -> Result<(), StateDirError> {
    for name in STATE_ENTRIES.iter().chain(&FOLDERS) {
        let path = root.join(name);
        if path.symlink_metadata().is_ok_and(|found| found.is_symlink()) {
            return Err(StateDirError::Link { path });
        }
    }
    for folder in LINK_FREE_FOLDERS {
        // A missing or unreadable directory is one that Heeler does not write to.
        let entries = root.join(folder).read_dir_utf8().into_iter().flatten().flatten();
        let is_link = |entry: &Utf8DirEntry| entry.file_type().is_ok_and(|it| it.is_symlink());
        if let Some(entry) = entries.into_iter().find(is_link) {
            return Err(StateDirError::Link { path: entry.into_path() });
        }
    }
    Ok(())
}

fn refuse_network(root: &Utf8Path) -> Result<(), StateDirError> {
    let stat = rustix::fs::statfs(root.as_std_path())
        .map_err(|source| io_error("find the file system of", root, source.into()))?;
    // The kernel's numbers have 32 bits; the field's width and sign differ between machines.
    #[expect(clippy::cast_possible_truncation, reason = "magic numbers have 32 bits")]
    let number = stat.f_type as u32;
    let mounts = if number == FUSE {
        // Without the mount table the type is unknown, and a FUSE file system is accepted.
        std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()
    } else {
        String::new()
    };
    match network_file_system(number, root, &mounts) {
        None => Ok(()),
        Some(file_system) => Err(StateDirError::Network {
            path: root.to_owned(),
            file_system: file_system.to_owned(),
        }),
    }
}

fn network_file_system<'m>(number: u32, root: &Utf8Path, mounts: &'m str) -> Option<&'m str> {
    if number == FUSE {
        let name = fuse_name(root, mounts)?;
        // The type has a prefix such as `fuse.`, so only a part of it is compared.
        return NETWORK_FUSE.iter().any(|network| name.contains(network)).then_some(name);
    }
    NETWORK_FILE_SYSTEMS.iter().find(|(known, _)| *known == number).map(|(_, name)| *name)
}

/// Returns the type of the mount that contains `root`, such as `fuse.sshfs`.
fn fuse_name<'m>(root: &Utf8Path, mounts: &'m str) -> Option<&'m str> {
    mounts
        .lines()
        .filter_map(|line| {
            // Fields of `mountinfo`: the mount point is the fifth, the type follows the separator.
            let (place, kind) = line.split_once(" - ")?;
            Some((place.split(' ').nth(4)?, kind.split(' ').next()?))
        })
        .filter(|(place, _)| root.starts_with(place))
        // Mounts nest, so the longest mount point is the one that holds the directory.
        .max_by_key(|(place, _)| place.len())
        .map(|(_, kind)| kind)
}

fn io_error(attempt: &'static str, path: &Utf8Path, source: io::Error) -> StateDirError {
    StateDirError::Io { attempt, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn temp() -> (tempfile::TempDir, Utf8PathBuf) {
        let temp = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(temp.path().to_owned()).unwrap();
        (temp, path)
    }

    #[test]
    fn every_folder_is_made_for_the_owner_only() {
        let (_temp, path) = temp();
        let dir = StateDir::create(&path.join("deep/.heeler")).unwrap();
        for folder in FOLDERS {
            let mode = std::fs::metadata(dir.root().join(folder)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700, "{folder}");
        }
    }

    #[test]
    fn opening_makes_nothing() {
        let (_temp, path) = temp();
        let missing = path.join("none");
        assert!(matches!(StateDir::open(&missing), Err(StateDirError::Missing { .. })));
        StateDir::open(&path).unwrap();
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0);
    }

    #[test]
    fn project_folders_are_named_as_claude_names_them() {
        let id: AgentSessionId = "0f1e".parse().unwrap();
        let log = StateDir::session_log_relative(Utf8Path::new("/home/me/my_app.v2"), &id);
        assert_eq!(log, "agent-sessions/projects/-home-me-my-app-v2/0f1e.jsonl");
    }

    #[test]
    fn network_file_systems_are_refused_and_local_fuse_is_not() {
        let mounts = "29 1 8:1 / / rw - ext4 /dev/vda rw\n\
                      30 29 0:40 / /home/me/far rw - fuse.sshfs me@host: rw\n\
                      31 29 0:41 / /home/me/near rw - fuse.ntfs-3g /dev/sdb rw";
        let found = |number, root| network_file_system(number, Utf8Path::new(root), mounts);
        assert_eq!(found(0x6969, "/mnt"), Some("NFS"));
        assert_eq!(found(0xff53_4d42, "/mnt"), Some("CIFS"));
        assert_eq!(found(0xef53, "/mnt"), None);
        assert_eq!(found(FUSE, "/home/me/far/fleet/.heeler"), Some("fuse.sshfs"));
        assert_eq!(found(FUSE, "/home/me/near/.heeler"), None);
    }
}
