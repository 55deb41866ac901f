//! Installs the files of a session bundle on this machine.
//!
//! Files appear complete and synced, and no existing file is changed. After a crash the
//! installation can be repeated: files that are already in place are recognized as identical.
//! The caller then commits the session record. Start at [`install_bundle`].

use std::fs::File;
use std::io::{self, BufReader, Read as _};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::{NativeSessionPosition, Session, SessionStatus, project_slug};
use heeler_transcript::{
    DiskError, NameError, OsDisk, create_folder, replace_file, resolve_inside, untrusted_file,
    write_new_file,
};
use serde_json::json;
use thiserror::Error;
use uuid::Uuid;

use super::read::{BundlePartLocation, BundlePartReader, SessionBundle};
use super::{BundlePartChecksum, EVENTS, ImportedBundleRecord, OWN, imported_path};
use crate::history::NativeEntryChain;
use crate::layout::StateDir;

/// Value of an imported session's `origin`.
pub const IMPORTED_ORIGIN: &str = "imported";

/// Failure to install a bundle.
#[derive(Debug, Error)]
pub enum BundleInstallError {
    #[error("session {session} has no conversation: there is nothing to import")]
    NeverStarted { session: String },
    /// A different file exists.
    #[error("{path} exists already and differs; move it away, or import into another directory")]
    Exists { path: Utf8PathBuf },
    /// The transcript's path is not allowed.
    #[error(transparent)]
    Name(#[from] NameError),
    #[error(transparent)]
    Disk(#[from] DiskError),
}

#[derive(Debug)]
pub struct InstalledBundle {
    /// The record to commit: as it was exported, except for its location and working directory.
    pub session: Session,
    /// Heeler's transcript.
    pub log: Utf8PathBuf,
    /// The native session file.
    pub native_path: Option<Utf8PathBuf>,
}

/// Installs a session's transcript and native session file, for an agent with working directory
/// `cwd` (a real path) and native sessions under `own_projects`.
pub fn install_bundle(
    dir: &StateDir,
    bundle: &SessionBundle,
    native_projects: Option<&Utf8Path>,
    cwd: &Utf8Path,
) -> Result<InstalledBundle, BundleInstallError> {
    let session = &bundle.session;
    let id = session
        .agent_session_id
        .as_ref()
        .ok_or_else(|| BundleInstallError::NeverStarted { session: session.id.to_string() })?;
    // The name depends on the working directory here, which differs from that of the source.
    let relative = StateDir::session_log_relative(cwd, id);
    // A state directory may come with a cloned repository, so links in it are not followed.
    let log = resolve_inside(dir.root(), relative.as_str())?;
    let mut position = None;
    let mut native_path = None;
    // The native session file first: a transcript without it would belong to a session that the
    // agent cannot resume.
    if let (Some(projects), Some(part), Some(sum)) =
        (native_projects, bundle.native_part, &bundle.sums.own)
    {
        let path = projects.join(project_slug(cwd)).join(format!("{id}.jsonl"));
        put(bundle, part, sum, OWN, &path)?;
        // The position of the import is Heeler's: later messages of the file are external.
        position = last_entry(&path)?.map(|last| NativeSessionPosition {
            bytes: sum.bytes,
            last,
            hash: None,
        });
        native_path = Some(path);
    }
    put(bundle, bundle.events_part, &bundle.sums.events, EVENTS, &log)?;
    let own_bytes = native_path.as_ref().and(bundle.sums.own.as_ref()).map(|sum| sum.bytes);
    let log_bytes = bundle.sums.events.bytes;
    let imported = ImportedBundleRecord { head: bundle.head.clone(), log_bytes, own_bytes };
    // Kept beside the transcript, so that a second export gives the same bundle.
    replace_file(&OsDisk, &imported_path(&log), json!(imported).to_string().as_bytes())?;
    // No process works on the imported session.
    let status = match session.status {
        SessionStatus::Active => SessionStatus::Paused,
        status => status,
    };
    let session = Session {
        status,
        working_directory: Some(cwd.to_owned()),
        // Worktree and fork belong to the machine that exported the session.
        workspace: None,
        fork: None,
        own: position,
        log_path: Some(relative),
        origin: Some(IMPORTED_ORIGIN.to_owned()),
        version: 1,
        ..session.clone()
    };
    Ok(InstalledBundle { session, log, native_path })
}

/// Writes the file from which a part was made, unless it exists.
fn put(
    bundle: &SessionBundle,
    part: BundlePartLocation,
    sum: &BundlePartChecksum,
    name: &'static str,
    path: &Utf8Path,
) -> Result<(), BundleInstallError> {
    let failed = |action, source| DiskError { action, path: path.to_owned(), source };
    let mut bytes = bundle.bytes(part, sum, name).map_err(|error| failed("place", error))?;
    // An interrupted import left the file complete, so an equal one is accepted.
    if path.symlink_metadata().is_ok() {
        let there = untrusted_file::open(path).and_then(|there| is_same(there, &mut bytes));
        return match there {
            Ok(true) => Ok(()),
            Ok(false) => Err(BundleInstallError::Exists { path: path.to_owned() }),
            Err(error) => Err(failed("compare", error).into()),
        };
    }
    if let Some(folder) = path.parent() {
        create_folder(&OsDisk, folder)?;
    }
    // The checksum of the part bounds the size, also if the bundle was changed since.
    match write_new_file(&OsDisk, path, &mut bytes, sum.bytes) {
        Err(error) if error.source.kind() == io::ErrorKind::AlreadyExists => {
            Err(BundleInstallError::Exists { path: path.to_owned() })
        }
        placed => Ok(placed.map(|_| ())?),
    }
}

fn is_same(there: File, bytes: &mut BundlePartReader) -> io::Result<bool> {
    let mut there = BufReader::new(there);
    let mut line = Vec::new();
    while bytes.advance()? {
        line.resize(bytes.line.len(), 0);
        match there.read_exact(&mut line) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            read => read?,
        }
        if line != bytes.line {
            return Ok(false);
        }
    }
    // A longer file is a session that continued, so it differs.
    Ok(there.read(&mut [0])? == 0)
}

/// Returns the last conversation entry of a native session file.
fn last_entry(native_path: &Utf8Path) -> Result<Option<Uuid>, DiskError> {
    let Some(mut chain) = NativeEntryChain::open(native_path)? else { return Ok(None) };
    chain.next()
}
