//! Installs the files of a session bundle on this machine.
//!
//! Files appear complete and synced, and no existing file is changed. After a crash the
//! installation can be repeated: files that are already in place are recognized as identical.
//! The caller then commits the session record. Start at [`install_bundle`].

use std::fs::File;
use std::io::{self, BufReader, Read as _, Write as _};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::{NativeSessionPosition, Session, SessionStatus, project_slug};
use heeler_transcript::{
    DiskError, NameError, OsDisk, create_folder, replace_file, resolve_inside, untrusted_file,
    write_new_file,
};
use serde_json::json;
use thiserror::Error;
use uuid::Uuid;

use super::read::{BundlePartLocation, SessionBundle, parse_native_header};
use super::{BundlePartChecksum, EVENTS, ImportedBundleRecord, NATIVE, OWN, imported_path};
use crate::history::NativeEntryChain;
use crate::layout::StateDir;
use crate::native::{DirectoryMove, NativeFolder, NativePlacement, NativePlacementError};

/// Value of an imported session's `origin`.
pub const IMPORTED_ORIGIN: &str = "imported";

/// Size of the pieces in which an existing file is compared.
const COMPARE_BLOCK_BYTES: usize = 64 * 1024;

/// Where the agent of an imported session works, and looks for its native sessions.
#[derive(Debug, Clone, Copy)]
pub struct BundleDestination<'a> {
    /// Working directory, a real path.
    pub cwd: &'a Utf8Path,
    /// Claude's directory of native sessions, if the agent is Claude.
    pub native_projects: Option<&'a Utf8Path>,
    /// Folder of another program's native sessions, if the agent is one of that program.
    pub native_folder: Option<&'a NativeFolder>,
}

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
    #[error("the native session cannot be placed")]
    Native(#[from] NativePlacementError),
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

/// Native session of a session that moved to this host.
#[derive(Debug)]
pub struct PlacedNativeSession {
    pub path: Utf8PathBuf,
    /// End of Claude's native session file.
    pub position: Option<NativeSessionPosition>,
}

/// Treatment of a file that exists already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExistingFile {
    /// It must have the same content.
    Compare,
    /// It may also be the beginning of the new one, which it becomes: the session was here before.
    Continue,
}

/// Places the native session of a session that moves to this host. Returns `None` if the bundle has none
/// of the agent's program.
pub fn place_native_session(
    bundle: &SessionBundle,
    to: &BundleDestination<'_>,
) -> Result<Option<PlacedNativeSession>, BundleInstallError> {
    if let (Some(projects), Some(part), Some(sum), Some(id)) =
        (to.native_projects, bundle.own_part, &bundle.sums.own, &bundle.session.agent_session_id)
    {
        // An agent that may write the folder of its program could have made a part of it a link.
        let path = resolve_inside(projects, &format!("{}/{id}.jsonl", project_slug(to.cwd)))?;
        put_part(bundle, (part, sum, OWN), &path, ExistingFile::Continue)?;
        fault_point(&path)?;
        let last = last_entry(&path)?;
        let position =
            last.map(|last| NativeSessionPosition { bytes: sum.bytes, last, hash: None });
        return Ok(Some(PlacedNativeSession { path, position }));
    }
    let Some(folder) = to.native_folder else { return Ok(None) };
    let placed = put_native_session(bundle, folder, to.cwd, ExistingFile::Continue)?;
    Ok(placed.map(|path| PlacedNativeSession { path, position: None }))
}

/// Installs a session's transcript and native session.
pub fn install_bundle(
    dir: &StateDir,
    bundle: &SessionBundle,
    to: &BundleDestination<'_>,
) -> Result<InstalledBundle, BundleInstallError> {
    let cwd = to.cwd;
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
        (to.native_projects, bundle.own_part, &bundle.sums.own)
    {
        let path = projects.join(project_slug(cwd)).join(format!("{id}.jsonl"));
        put_part(bundle, (part, sum, OWN), &path, ExistingFile::Compare)?;
        // The position of the import is Heeler's: later messages of the file are external.
        position = last_entry(&path)?.map(|last| NativeSessionPosition {
            bytes: sum.bytes,
            last,
            hash: None,
        });
        native_path = Some(path);
    }
    let own_bytes = native_path.as_ref().and(bundle.sums.own.as_ref()).map(|sum| sum.bytes);
    if let Some(folder) = to.native_folder {
        native_path =
            native_path.or(put_native_session(bundle, folder, cwd, ExistingFile::Compare)?);
    }
    let events = (bundle.events_part, &bundle.sums.events, EVENTS);
    put_part(bundle, events, &log, ExistingFile::Compare)?;
    fault_point(&log)?;
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

/// Writes the files of a native session, the one with the messages last. Returns its path, or `None` if
/// the bundle has none of this program.
fn put_native_session(
    bundle: &SessionBundle,
    folder: &NativeFolder,
    cwd: &Utf8Path,
    existing: ExistingFile,
) -> Result<Option<Utf8PathBuf>, BundleInstallError> {
    let (Some(part), Some(sum)) = (bundle.native_part, &bundle.sums.native) else {
        return Ok(None);
    };
    let failed = |source| DiskError { action: "read", path: bundle.path.clone(), source };
    let mut lines = bundle.bytes(part, sum, NATIVE).map_err(failed)?;
    lines.advance().map_err(failed)?;
    let header = parse_native_header(lines.line.trim_ascii_end());
    let Some(header) = header.filter(|header| header.program == folder.program) else {
        return Ok(None);
    };
    // The messages follow this line.
    lines.line.clear();
    let placement = NativePlacement::of(folder, &header, cwd)?;
    // The session was here before, so its description may be an earlier one.
    let is_known =
        existing == ExistingFile::Continue && untrusted_file::open(&placement.messages).is_ok();
    for (path, bytes) in &placement.first {
        match is_known {
            true => replace_file(&OsDisk, path, bytes)?,
            false => put(path, &mut bytes.as_slice(), bytes.len() as u64, existing)?,
        }
        fault_point(path)?;
    }
    let directory_move = DirectoryMove::new(&header, cwd);
    let growth = sum.lines.saturating_mul(directory_move.growth_max());
    lines.directory_move = Some(directory_move);
    put(&placement.messages, &mut lines, sum.bytes.saturating_add(growth), existing)?;
    fault_point(&placement.messages)?;
    Ok(Some(placement.messages))
}

/// Writes the file from which a part was made.
fn put_part(
    bundle: &SessionBundle,
    (part, sum, name): (BundlePartLocation, &BundlePartChecksum, &'static str),
    path: &Utf8Path,
    existing: ExistingFile,
) -> Result<(), BundleInstallError> {
    let failed = |source| DiskError { action: "place", path: path.to_owned(), source };
    let mut bytes = bundle.bytes(part, sum, name).map_err(failed)?;
    // The checksum of the part bounds the size, also if the bundle was changed since.
    put(path, &mut bytes, sum.bytes, existing)
}

/// Writes a file of at most `max` bytes, unless it exists.
fn put(
    path: &Utf8Path,
    bytes: &mut dyn io::Read,
    max: u64,
    existing: ExistingFile,
) -> Result<(), BundleInstallError> {
    // An interrupted import left the file complete, so an equal one is accepted.
    if path.symlink_metadata().is_ok() {
        let there = untrusted_file::open(path).and_then(|there| match existing {
            ExistingFile::Compare => is_same(there, bytes),
            ExistingFile::Continue => continue_file(path, there, bytes, max),
        });
        return match there {
            Ok(true) => Ok(()),
            Ok(false) => Err(BundleInstallError::Exists { path: path.to_owned() }),
            Err(source) => {
                Err(DiskError { action: "compare", path: path.to_owned(), source }.into())
            }
        };
    }
    if let Some(folder) = path.parent() {
        create_folder(&OsDisk, folder)?;
    }
    match write_new_file(&OsDisk, path, bytes, max) {
        Err(error) if error.source.kind() == io::ErrorKind::AlreadyExists => {
            Err(BundleInstallError::Exists { path: path.to_owned() })
        }
        placed => Ok(placed.map(|_| ())?),
    }
}

fn is_same(there: File, bytes: &mut dyn io::Read) -> io::Result<bool> {
    let mut there = BufReader::new(there);
    let mut expected = vec![0; COMPARE_BLOCK_BYTES];
    let mut found = vec![0; COMPARE_BLOCK_BYTES];
    loop {
        let read = bytes.read(&mut expected)?;
        if read == 0 {
            // A longer file is a session that continued, so it differs.
            return Ok(there.read(&mut [0])? == 0);
        }
        match there.read_exact(&mut found[..read]) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            read => read?,
        }
        if found[..read] != expected[..read] {
            return Ok(false);
        }
    }
}

/// Appends what a file lacks of the bytes. Returns false if it has others. An interrupted call left a
/// longer beginning, so it can be repeated.
fn continue_file(
    path: &Utf8Path,
    there: File,
    bytes: &mut dyn io::Read,
    max: u64,
) -> io::Result<bool> {
    let mut there = BufReader::new(there);
    let mut expected = vec![0; COMPARE_BLOCK_BYTES];
    let mut found = Vec::with_capacity(COMPARE_BLOCK_BYTES);
    let mut compared = 0;
    loop {
        let read = bytes.read(&mut expected)?;
        if read == 0 {
            return Ok(there.read(&mut [0])? == 0);
        }
        found.clear();
        let same = there.by_ref().take(read as u64).read_to_end(&mut found)?;
        if found != expected[..same] {
            return Ok(false);
        }
        compared += same as u64;
        if same < read {
            let mut options = File::options();
            let mut file = untrusted_file::open_with(options.append(true), path)?;
            file.write_all(&expected[same..read])?;
            let left = max.saturating_sub(compared + (read - same) as u64);
            io::copy(&mut bytes.take(left), &mut file)?;
            file.sync_all()?;
            return Ok(true);
        }
    }
}

#[cfg(not(any(test, feature = "fault-points")))]
fn fault_point(_: &Utf8Path) -> Result<(), DiskError> {
    Ok(())
}

/// Stops a test's import after the chosen file, as a kill would.
#[cfg(any(test, feature = "fault-points"))]
fn fault_point(path: &Utf8Path) -> Result<(), DiskError> {
    let stopped = |source| DiskError { action: "place", path: path.to_owned(), source };
    heeler_transcript::fault::count_write().map_err(stopped)
}

/// Returns the last conversation entry of a native session file.
fn last_entry(native_path: &Utf8Path) -> Result<Option<Uuid>, DiskError> {
    let Some(mut chain) = NativeEntryChain::open(native_path)? else { return Ok(None) };
    chain.next()
}
