//! Putting the files of a bundle in their places on this machine.
//!
//! Files appear whole and synced, and none that is there is changed. Who dies on the way does it
//! again: what is placed already is found to be the same. The record of the session is for the caller
//! to commit, after that. Start at [`install_bundle`].

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

/// What an imported session says of where it came from.
pub const IMPORTED_ORIGIN: &str = "imported";

/// Why a bundle was not placed.
#[derive(Debug, Error)]
pub enum BundleInstallError {
    /// The session never began.
    #[error("session {session} has no conversation: there is nothing to import")]
    NeverStarted {
        /// Its id.
        session: String,
    },
    /// There is another file.
    #[error("{path} exists already and differs; move it away, or import into another directory")]
    Exists {
        /// The file.
        path: Utf8PathBuf,
    },
    /// The place of the log is not ours.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A file operation failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// What was placed.
#[derive(Debug)]
pub struct InstalledBundle {
    /// The record to commit: as it was exported, but for where it is and where its agent works.
    pub session: Session,
    /// Our log.
    pub log: Utf8PathBuf,
    /// The agent's own file.
    pub native_path: Option<Utf8PathBuf>,
}

/// Puts the log of a session and the agent's own file in place, for an agent that works in `cwd` (a
/// real path) and keeps its own files in the folders of `own_projects`.
pub fn install_bundle(
    dir: &StateDir,
    bundle: &SessionBundle,
    own_projects: Option<&Utf8Path>,
    cwd: &Utf8Path,
) -> Result<InstalledBundle, BundleInstallError> {
    let session = &bundle.session;
    let id = session
        .agent_session_id
        .as_ref()
        .ok_or_else(|| BundleInstallError::NeverStarted { session: session.id.to_string() })?;
    let relative = StateDir::session_log_relative(cwd, id);
    // A state directory may come with a clone: nothing in it is reached through a link.
    let log = resolve_inside(dir.root(), relative.as_str())?;
    let mut mark = None;
    let mut own = None;
    // The agent's file first: a log without it would be of a session that nobody remembers.
    if let (Some(projects), Some(part), Some(sum)) =
        (own_projects, bundle.native_part, &bundle.sums.own)
    {
        let path = projects.join(project_slug(cwd)).join(format!("{id}.jsonl"));
        put(bundle, part, sum, OWN, &path)?;
        mark = last_entry(&path)?.map(|last| NativeSessionPosition { bytes: sum.bytes, last });
        own = Some(path);
    }
    put(bundle, bundle.events_part, &bundle.sums.events, EVENTS, &log)?;
    let own_bytes = own.as_ref().and(bundle.sums.own.as_ref()).map(|sum| sum.bytes);
    let log_bytes = bundle.sums.events.bytes;
    let imported = ImportedBundleRecord { head: bundle.head.clone(), log_bytes, own_bytes };
    replace_file(&OsDisk, &imported_path(&log), json!(imported).to_string().as_bytes())?;
    let status = match session.status {
        SessionStatus::Active => SessionStatus::Paused,
        status => status,
    };
    let session = Session {
        status,
        working_directory: Some(cwd.to_owned()),
        workspace: None,
        fork: None,
        own: mark,
        log_path: Some(relative),
        origin: Some(IMPORTED_ORIGIN.to_owned()),
        version: 1,
        ..session.clone()
    };
    Ok(InstalledBundle { session, log, native_path: own })
}

/// Places the file that a part was made of, unless it is there.
fn put(
    bundle: &SessionBundle,
    part: BundlePartLocation,
    sum: &BundlePartChecksum,
    name: &'static str,
    path: &Utf8Path,
) -> Result<(), BundleInstallError> {
    let failed = |action, source| DiskError { action, path: path.to_owned(), source };
    let mut bytes = bundle.bytes(part, sum, name).map_err(|error| failed("place", error))?;
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
    Ok(there.read(&mut [0])? == 0)
}

/// Returns the last entry of the conversation in an agent's own file.
fn last_entry(own: &Utf8Path) -> Result<Option<Uuid>, DiskError> {
    let Some(mut chain) = NativeEntryChain::open(own)? else { return Ok(None) };
    chain.next()
}
