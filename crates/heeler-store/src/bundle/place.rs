//! Putting the files of a bundle in their places on this machine.
//!
//! Files appear whole and synced, and none that is there is changed. Who dies on the way does it
//! again: what is placed already is found to be the same. The record of the session is for the caller
//! to commit, after that. Start at [`place`].

use std::fs::File;
use std::io::{self, BufReader, Read as _};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::{OwnMark, Session, SessionStatus, slug};
use heeler_transcript::{
    DiskError, NameError, OsDisk, create_folder, place_file, plain, replace_file, resolve_inside,
};
use serde_json::json;
use thiserror::Error;
use uuid::Uuid;

use super::read::{Bundle, Bytes, Part};
use super::{EVENTS, Imported, OWN, Sum, imported_path};
use crate::history::Chain;
use crate::layout::StateDir;

/// What an imported session says of where it came from.
pub const IMPORTED: &str = "imported";

/// Why a bundle was not placed.
#[derive(Debug, Error)]
pub enum PlaceError {
    /// The session never began.
    #[error("session {session} has no conversation: there is nothing to import")]
    NoConversation {
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
pub struct Placed {
    /// The record to commit: as it was exported, but for where it is and where its agent works.
    pub session: Session,
    /// Our log.
    pub log: Utf8PathBuf,
    /// The agent's own file.
    pub own: Option<Utf8PathBuf>,
}

/// Puts the log of a session and the agent's own file in place, for an agent that works in `cwd` (a
/// real path) and keeps its own files in the folders of `own_projects`.
pub fn place(
    dir: &StateDir,
    bundle: &Bundle,
    own_projects: Option<&Utf8Path>,
    cwd: &Utf8Path,
) -> Result<Placed, PlaceError> {
    let session = &bundle.session;
    let id = session
        .agent_session_id
        .as_ref()
        .ok_or_else(|| PlaceError::NoConversation { session: session.id.to_string() })?;
    let relative = StateDir::session_log_relative(cwd, id);
    // A state directory may come with a clone: nothing in it is reached through a link.
    let log = resolve_inside(dir.root(), relative.as_str())?;
    let mut mark = None;
    let mut own = None;
    // The agent's file first: a log without it would be of a session that nobody remembers.
    if let (Some(projects), Some(part), Some(sum)) = (own_projects, bundle.own_at, &bundle.sums.own)
    {
        let path = projects.join(slug(cwd)).join(format!("{id}.jsonl"));
        put(bundle, part, sum, OWN, &path)?;
        mark = last_entry(&path)?.map(|last| OwnMark { bytes: sum.bytes, last });
        own = Some(path);
    }
    put(bundle, bundle.events_at, &bundle.sums.events, EVENTS, &log)?;
    let own_bytes = own.as_ref().and(bundle.sums.own.as_ref()).map(|sum| sum.bytes);
    let log_bytes = bundle.sums.events.bytes;
    let imported = Imported { head: bundle.head.clone(), log_bytes, own_bytes };
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
        origin: Some(IMPORTED.to_owned()),
        version: 1,
        ..session.clone()
    };
    Ok(Placed { session, log, own })
}

/// Places the file that a part was made of, unless it is there.
fn put(
    bundle: &Bundle,
    part: Part,
    sum: &Sum,
    name: &'static str,
    path: &Utf8Path,
) -> Result<(), PlaceError> {
    let failed = |action, source| DiskError { action, path: path.to_owned(), source };
    let mut bytes = bundle.bytes(part, sum, name).map_err(|error| failed("place", error))?;
    if path.symlink_metadata().is_ok() {
        let there = plain::open(path).and_then(|there| is_same(there, &mut bytes));
        return match there {
            Ok(true) => Ok(()),
            Ok(false) => Err(PlaceError::Exists { path: path.to_owned() }),
            Err(error) => Err(failed("compare", error).into()),
        };
    }
    if let Some(folder) = path.parent() {
        create_folder(&OsDisk, folder)?;
    }
    match place_file(&OsDisk, path, &mut bytes, sum.bytes) {
        Err(error) if error.source.kind() == io::ErrorKind::AlreadyExists => {
            Err(PlaceError::Exists { path: path.to_owned() })
        }
        placed => Ok(placed.map(|_| ())?),
    }
}

fn is_same(there: File, bytes: &mut Bytes) -> io::Result<bool> {
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
    let Some(mut chain) = Chain::open(own)? else { return Ok(None) };
    chain.next()
}
