//! The worktree that a fork has to itself.

use camino::Utf8PathBuf;
use heeler_model::{Session, SessionId};
use heeler_store::StateDir;
use heeler_store::history::FoundCut;

use crate::command::{Refused, RefusedKind};

/// A worktree that was made.
pub(super) struct Place {
    /// Its top.
    pub(super) top: Utf8PathBuf,
    /// Where in it the agent works.
    pub(super) directory: Utf8PathBuf,
    /// What it lacks, in words.
    pub(super) left_out: Vec<String>,
}

/// Makes a worktree in the state that files were in at a cut.
pub(super) fn worktree(
    _dir: &StateDir,
    _id: &SessionId,
    source: &Session,
    cut: &FoundCut,
) -> Result<Place, Refused> {
    let message = format!("no snapshot of the files was taken at message {}", cut.number);
    let refused = Refused::new(RefusedKind::NotAllowed, format!("{message} of {}", source.id));
    Err(refused.hint("without --workspace the conversation alone is forked"))
}

/// Removes what our repositories hold for a session that was purged.
pub(super) fn forget(_dir: &StateDir, _session: &Session) {}
