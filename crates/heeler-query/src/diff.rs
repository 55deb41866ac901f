//! Changes to the files of a session since a message.

use std::borrow::Cow;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::Session;
use heeler_model::redact::SecretRedactor;
use heeler_store::history::{
    ForkPointError, TranscriptSnapshot, TranscriptSnapshotEntry, find_fork_point, snapshots,
};
use heeler_workspace::{CommitId, DiffTarget, SnapshotDiff, SnapshotStore, WorkTree};
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::{FleetReader, QueryError, sessions};

/// Changes to the files of a session.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionDiff {
    /// Session ID.
    pub session: String,
    /// Snapshot from which the diff starts.
    #[schema(value_type = Object)]
    pub from: TranscriptSnapshot,
    /// Commit from which the diff starts: the snapshot, or the commit it is based on.
    pub from_commit: String,
    /// Remark about the start of the diff.
    pub note: Option<String>,
    /// One line per file, and a total.
    pub summary: String,
    /// Unified diff; bytes that are not UTF-8 are replaced.
    pub patch: Option<String>,
    /// True if the patch was truncated because it is too long.
    pub cut: bool,
    /// True if secrets were removed from the patch, so that it cannot be applied.
    #[serde(rename = "redacted")]
    pub is_redacted: bool,
    /// Unified diff with the bytes of the files, without secrets.
    #[serde(skip)]
    pub bytes: Vec<u8>,
    /// Unified diff with secrets, for callers who may read the files.
    #[serde(skip)]
    pub bytes_with_secrets: Vec<u8>,
}

/// Returns the error for a session without snapshots.
pub(crate) fn no_snapshot(session: &Session) -> QueryError {
    QueryError::Refused {
        message: format!("no snapshot of the files of session {} was taken", session.id),
        hint: Some(
            "snapshots need a working directory in a git repository, and `session.snapshots`"
                .to_owned(),
        ),
    }
}

/// Start of a comparison.
pub(crate) struct DiffBase {
    pub(crate) note: TranscriptSnapshot,
    /// The snapshot, or the commit it is based on.
    commit: String,
    /// Remark about the start.
    pub(crate) message: Option<String>,
}

impl DiffBase {
    /// Finds the snapshot at a message, or without a message the one before the session's first
    /// turn.
    fn find(
        session: &Session,
        log: &Utf8Path,
        noted: &[TranscriptSnapshotEntry],
        at: Option<u64>,
    ) -> Result<DiffBase, QueryError> {
        let id = session.agent_session_id.as_ref();
        // A fork copies the rows of its source, so only the snapshot of this very session counts.
        let begin = noted.iter().find(|it| id.is_some() && it.initial_session.as_ref() == id);
        // Without a snapshot of its own a fork begins at its fork point.
        let forked = session.forked_at_message.and_then(|number| u64::try_from(number).ok());
        if let Some(number) = at.or(forked.filter(|_| begin.is_none())) {
            let found = DiffBase::at_message(log, number)?;
            let begin = begin.map(|begin| DiffBase {
                message: Some(describe_moved_base(number, "before the first turn")),
                ..DiffBase::snapshot(&begin.snapshot)
            });
            return found.or(begin).ok_or_else(|| no_snapshot(session));
        }
        if let Some(begin) = begin {
            return Ok(DiffBase::snapshot(&begin.snapshot));
        }
        // Nothing was recorded before the first turn, so the checked-out commit is the best start.
        let first = &noted.first().ok_or_else(|| no_snapshot(session))?.snapshot;
        let Some(base) = &first.base else { return Ok(DiffBase::snapshot(first)) };
        let words = "nothing was recorded before the first turn: it begins at the commit that was \
                     checked out, so that what was not committed by then is in it too";
        Ok(DiffBase { note: first.clone(), commit: base.clone(), message: Some(words.to_owned()) })
    }

    fn snapshot(note: &TranscriptSnapshot) -> DiffBase {
        DiffBase { note: note.clone(), commit: note.commit.clone(), message: None }
    }

    /// Finds the last snapshot taken up to a message.
    pub(crate) fn at_message(log: &Utf8Path, asked: u64) -> Result<Option<DiffBase>, QueryError> {
        let mut number = asked;
        while number > 0 {
            // Snapshots are taken after turns, so a message inside a turn has none.
            let cut = match find_fork_point(log, None, Some(number)) {
                Ok(cut) => cut,
                Err(ForkPointError::NoSafePoint { .. }) => break,
                Err(error) => {
                    return Err(QueryError::Refused { message: error.to_string(), hint: None });
                }
            };
            let Some(note) = cut.snapshot else {
                // No snapshot was taken after that turn.
                number = cut.number - 1;
                continue;
            };
            let words = describe_moved_base(asked, &format!("at message {}", cut.number));
            let words = Some(words).filter(|_| cut.number != asked);
            return Ok(Some(DiffBase { message: words, ..DiffBase::snapshot(&note) }));
        }
        Ok(None)
    }
}

fn describe_moved_base(asked: u64, to: &str) -> String {
    format!("no snapshot was taken at message {asked}: the last one before it, {to}, is used")
}

pub(crate) fn parse_commit(text: &str) -> Result<CommitId, QueryError> {
    let message = "the transcript has a snapshot without a valid commit".to_owned();
    CommitId::parse(text).ok_or(QueryError::Refused { message, hint: None })
}

/// Finds the directory that holds a session's files; `None` if it does not exist or was on another
/// machine.
pub(crate) fn find_work_tree(session: &Session, last: &TranscriptSnapshot) -> Option<WorkTree> {
    // A worktree of the session takes precedence over the directory of the last snapshot.
    let top = session.workspace.as_deref().unwrap_or(&last.top);
    let works_in = |directory: &Utf8PathBuf| {
        directory.canonicalize_utf8().is_ok_and(|directory| directory.starts_with(top))
    };
    // A directory that is no longer the same work tree is not compared.
    let tree = WorkTree::find(top).ok().flatten().filter(|found| found.top == top);
    // The agent may have been given another directory since.
    tree.filter(|_| session.working_directory.as_ref().is_none_or(works_in))
}

impl FleetReader {
    /// Compares the files of a session with their state at a message, or without a message with
    /// their state before the first turn.
    pub fn diff(
        &self,
        id: &str,
        at_message: Option<u64>,
        now: Timestamp,
    ) -> Result<SessionDiff, QueryError> {
        self.diff_to(id, at_message, None, now)
    }

    /// Compares the files of a session at two messages; without the second message, with their
    /// current state.
    pub fn diff_to(
        &self,
        id: &str,
        at_message: Option<u64>,
        to_message: Option<u64>,
        now: Timestamp,
    ) -> Result<SessionDiff, QueryError> {
        let known = self.context();
        let session = sessions::find_session(&*self.reader()?, id)?;
        let log =
            self.session_transcript_path(&known, &session).ok_or_else(|| no_snapshot(&session))?;
        let noted = snapshots(&log)?;
        let last = match to_message {
            Some(number) => DiffBase::at_message(&log, number)?.map(|found| found.note),
            None => noted.last().map(|last| last.snapshot.clone()),
        };
        let last = last.ok_or_else(|| no_snapshot(&session))?;
        let from = DiffBase::find(&session, &log, &noted, at_message)?;
        let repository = &from.note.repository;
        // Opened by key, because the user's repository may be gone.
        let snapshots = SnapshotStore::open_key(&self.dir().workspaces(), repository)?;
        // The state directory may be inside the work tree.
        let snapshots = snapshots.excluding(&[self.dir().root().to_owned()]);
        // The current files are compared only if no second message is given.
        let tree = find_work_tree(&session, &last).filter(|_| to_message.is_none());
        // Commits of two repositories cannot be compared.
        if tree.is_none() && last.repository != *repository {
            return Err(QueryError::Refused {
                message: format!(
                    "the files of session {} no longer exist, and their last snapshot is in \
                     another repository than the one at that message",
                    session.id
                ),
                hint: Some("choose a later message with -m".to_owned()),
            });
        }
        let end = parse_commit(&last.commit)?;
        let to = tree.as_ref().map_or(DiffTarget::Commit(&end), DiffTarget::Now);
        let SnapshotDiff { summary, patch, cut } =
            snapshots.diff(&parse_commit(&from.commit)?, to, now)?;
        // Snapshots are files as they were, so they hold secrets that no transcript does.
        let redactor = SecretRedactor::new(&known.secrets());
        let bytes = match cut {
            true => redactor.redact_beginning(&patch),
            false => redactor.redact_bytes(&patch),
        };
        Ok(SessionDiff {
            session: session.id.to_string(),
            from: from.note,
            from_commit: from.commit,
            note: from.message,
            summary: redactor.redact_text(&summary).into_owned(),
            patch: Some(String::from_utf8_lossy(&bytes).into_owned()),
            cut,
            is_redacted: matches!(bytes, Cow::Owned(_)),
            bytes: bytes.into_owned(),
            bytes_with_secrets: patch,
        })
    }
}
