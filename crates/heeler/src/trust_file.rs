//! The user's record of trusted folders and fleets, outside any fleet. Start at [`TrustFile`].

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::time::{Duration, UNIX_EPOCH};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::{LockFile, LockHolder, OsDisk, replace_file};
use serde::{Deserialize, Serialize};

use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::process_env;
use crate::text_file::{self, parent_dir};

/// Format version of the file.
const VERSION: u32 = 1;

/// Time to wait for another command that changes the file.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// Content of the file.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TrustFile {
    version: u32,
    /// Folders that are trusted with everything below them, also after changes.
    #[serde(default)]
    pub(crate) folders: Vec<Utf8PathBuf>,
    #[serde(default)]
    pub(crate) fleets: Vec<TrustedFleet>,
}

/// A fleet that the user trusts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TrustedFleet {
    /// Config file, in a folder without links.
    pub(crate) config: Utf8PathBuf,
    /// Identity of that folder: another folder that takes its place is not trusted.
    folder_inode: u64,
    /// Missing in entries of earlier releases, which are not trusted any more.
    #[serde(default)]
    folder_device: Option<u64>,
    #[serde(default)]
    folder_created: Option<u64>,
    pub(crate) scope: TrustScope,
}

/// Properties by which a folder is recognized. A file system may give the inode of a removed folder
/// to the next one, so the time at which the folder was created counts too.
#[derive(Debug, Clone)]
pub(crate) struct FolderIdentity {
    inode: u64,
    /// Device of its file system; `None` only in old entries.
    device: Option<u64>,
    /// Nanoseconds between 1970 and its creation; `None` if the file system does not record it.
    created: Option<u64>,
}

impl FolderIdentity {
    /// Returns true if both are surely the same folder.
    fn is_same_folder(&self, other: &FolderIdentity) -> bool {
        // Some file systems get another device number at each mount. The number counts only where
        // the time of creation is unknown.
        let is_same_time = match (self.created, other.created) {
            (Some(own), Some(others)) => own == others,
            (None, None) => self.device.is_some() && self.device == other.device,
            _ => false,
        };
        self.inode == other.inode && is_same_time
    }
}

impl TrustedFleet {
    pub(crate) fn new(
        config: Utf8PathBuf,
        folder: FolderIdentity,
        scope: TrustScope,
    ) -> TrustedFleet {
        let FolderIdentity { inode, device, created } = folder;
        TrustedFleet {
            config,
            folder_inode: inode,
            folder_device: device,
            folder_created: created,
            scope,
        }
    }

    fn folder(&self) -> FolderIdentity {
        let TrustedFleet { folder_inode, folder_device, folder_created, .. } = *self;
        FolderIdentity { inode: folder_inode, device: folder_device, created: folder_created }
    }
}

/// Part of a fleet that is trusted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TrustScope {
    /// Everything, also after changes: the user made the fleet, or chose this.
    Everything,
    /// The content that was shown.
    Content {
        /// SHA-256 of all of it.
        digest: String,
        /// What was shown, to compare it with later content.
        lines: Vec<String>,
    },
}

impl TrustFile {
    /// Returns the file's path; `None` if neither `XDG_CONFIG_HOME` nor `HOME` is set.
    pub(crate) fn path(env: &BTreeMap<String, String>) -> Option<Utf8PathBuf> {
        let absolute =
            |name: &str| env.get(name).map(Utf8PathBuf::from).filter(|path| path.is_absolute());
        let folder =
            absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")));
        Some(folder?.join("heeler/trust.json"))
    }

    /// Reads the file. A missing one trusts nothing; one that cannot be relied on is an error.
    pub(crate) fn read(path: &Utf8Path) -> CommandResult<TrustFile> {
        let text = match require_private(path).and_then(|()| text_file::read_text(path)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(TrustFile { version: VERSION, ..TrustFile::default() });
            }
            Err(error) => return Err(unusable(path, &error.to_string())),
        };
        let file: TrustFile =
            serde_json::from_str(&text).map_err(|error| unusable(path, &error.to_string()))?;
        match file.version {
            VERSION => Ok(file),
            other => Err(unusable(path, &format!("it has version {other}, expected {VERSION}"))),
        }
    }

    /// Changes the file: reads it again under a lock, so that no change of another command is lost.
    pub(crate) fn change<T>(
        path: &Utf8Path,
        change: impl FnOnce(&mut TrustFile) -> T,
    ) -> CommandResult<T> {
        let folder = parent_dir(path);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|error| {
            let error = anyhow::Error::new(error).context(format!("cannot create {folder}"));
            CommandFailure::new(FailureCode::Failed, error)
        })?;
        let holder = LockHolder::this_process("trust", process_env::now());
        let lock = LockFile::acquire(&path.with_extension("lock"), &holder, LOCK_WAIT)
            .map_err(|error| CommandFailure::new(FailureCode::Refused, error))?;
        let mut file = TrustFile::read(path)?;
        let result = change(&mut file);
        let mut text = serde_json::to_vec_pretty(&file).expect("it is JSON");
        text.push(b'\n');
        // A link, as dotfile managers make, stays a link.
        let target = path.canonicalize_utf8().unwrap_or_else(|_| path.to_owned());
        replace_file(&OsDisk, &target, &text).map_err(anyhow::Error::from)?;
        drop(lock);
        Ok(result)
    }

    /// Returns the entry of a fleet, if its folder is still the same.
    pub(crate) fn fleet(&self, config: &Utf8Path) -> Option<&TrustedFleet> {
        let folder = folder_identity(config).ok()?;
        self.fleets
            .iter()
            .find(|fleet| fleet.config == config && fleet.folder().is_same_folder(&folder))
    }

    /// Adds or replaces the entry of a fleet.
    pub(crate) fn put(&mut self, fleet: TrustedFleet) {
        self.fleets.retain(|known| known.config != fleet.config);
        self.fleets.push(fleet);
    }
}

/// Returns the identity of a config file's folder.
pub(crate) fn folder_identity(config: &Utf8Path) -> io::Result<FolderIdentity> {
    let found = parent_dir(config).metadata()?;
    // Not every file system knows the time.
    let created = found.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    Ok(FolderIdentity {
        inode: found.ino(),
        device: Some(found.dev()),
        created: created.and_then(|since| u64::try_from(since.as_nanos()).ok()),
    })
}

/// Fails unless only the user or root can write the file.
fn require_private(path: &Utf8Path) -> io::Result<()> {
    let found = path.metadata()?;
    let owners = [rustix::process::geteuid().as_raw(), 0];
    match owners.contains(&found.uid()) && found.mode() & 0o022 == 0 {
        true => Ok(()),
        false => Err(io::Error::other("other users can change it")),
    }
}

fn unusable(path: &Utf8Path, why: &str) -> CommandFailure {
    let message = format!("cannot rely on the list of trusted fleets, {path}: {why}");
    CommandFailure::message(FailureCode::Untrusted, message)
        .hint(format!("correct it, or remove it to be asked again: rm {path}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn temp() -> (tempfile::TempDir, Utf8PathBuf) {
        let temp = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(temp.path()).unwrap().join("heeler/trust.json");
        (temp, path)
    }

    #[test]
    fn a_change_is_read_back_by_the_user_alone() {
        let (_temp, path) = temp();
        assert!(TrustFile::read(&path).unwrap().folders.is_empty());
        TrustFile::change(&path, |file| file.folders.push("/work".into())).unwrap();
        TrustFile::change(&path, |file| file.folders.push("/play".into())).unwrap();
        assert_eq!(TrustFile::read(&path).unwrap().folders, ["/work", "/play"]);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_that_cannot_be_relied_on_is_refused_with_the_cure() {
        let (_temp, path) = temp();
        TrustFile::change(&path, |file| file.folders.push("/".into())).unwrap();
        let good = std::fs::read_to_string(&path).unwrap();
        for bad in ["{", "{\"version\":1,\"folders\":[\"/\"],\"more\":1}", "{\"version\":2}", ""] {
            std::fs::write(&path, bad).unwrap();
            let failure = TrustFile::read(&path).unwrap_err();
            assert_eq!(failure.code, FailureCode::Untrusted, "{bad}");
            assert!(failure.hint.unwrap().contains("rm "), "{bad}");
        }
        std::fs::write(&path, good).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(TrustFile::read(&path).unwrap_err().code, FailureCode::Untrusted);
    }

    #[test]
    fn a_folder_that_takes_the_place_of_another_is_not_trusted() {
        let (temp, _) = temp();
        let folder = Utf8Path::from_path(temp.path()).unwrap().join("fleet");
        let config = folder.join("heeler.yaml");
        std::fs::create_dir(&folder).unwrap();
        let mut file = TrustFile::default();
        let (first, scope) = (folder_identity(&config).unwrap(), TrustScope::Everything);
        file.put(TrustedFleet::new(config.clone(), first.clone(), scope));
        assert!(file.fleet(&config).is_some());
        // The clock of the file system must have advanced.
        let probe = folder.with_file_name("probe");
        wait_for_clock(|| {
            std::fs::create_dir(&probe).unwrap();
            let identity = folder_identity(&probe.join("heeler.yaml")).unwrap();
            std::fs::remove_dir(&probe).unwrap();
            identity.created != first.created || first.created.is_none()
        });
        // The new folder may get the inode of the old one.
        std::fs::remove_dir(&folder).unwrap();
        std::fs::create_dir(&folder).unwrap();
        assert!(file.fleet(&config).is_none());
    }

    fn wait_for_clock(mut has_advanced: impl FnMut() -> bool) {
        let begun = std::time::Instant::now();
        while !has_advanced() {
            assert!(begun.elapsed() < Duration::from_secs(60), "the clock stands still");
        }
    }

    #[test]
    fn an_entry_with_the_inode_of_another_folder_is_not_its_entry() {
        let (temp, _) = temp();
        let config = Utf8Path::from_path(temp.path()).unwrap().join("heeler.yaml");
        let own = folder_identity(&config).unwrap();
        let with = |folder: FolderIdentity| {
            let mut file = TrustFile::default();
            file.put(TrustedFleet::new(config.clone(), folder, TrustScope::Everything));
            file.fleet(&config).is_some()
        };
        assert!(with(own.clone()));
        assert!(!with(FolderIdentity { created: Some(1), ..own.clone() }));
        // Some file systems get another device number at each mount.
        assert!(with(FolderIdentity { device: Some(u64::MAX), ..own.clone() }));
        // Without the time of creation, the number must do.
        let unknown = |device| FolderIdentity { inode: 1, device, created: None };
        assert!(unknown(Some(7)).is_same_folder(&unknown(Some(7))));
        assert!(!unknown(Some(7)).is_same_folder(&unknown(Some(8))));
        assert!(!unknown(None).is_same_folder(&unknown(None)));
        // An entry of an earlier release; the person is asked again.
        assert!(!with(FolderIdentity { device: None, created: None, ..own }));
    }
}
