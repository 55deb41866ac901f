//! Rebuilds the database of a state directory from a backup, views and transcripts.
//!
//! The directory is both the source and the target. Start at [`rebuild`].

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::AgentSessionId;
use heeler_store::doctor::{DatabaseRebuild, RebuildBeginError};
use heeler_store::staging::RecordTarget;
use heeler_store::{DatabaseOpenError, StateDirError, UNKNOWN_AGENT, idle_session};
use heeler_transcript::LockError;
use jiff::Timestamp;
use thiserror::Error;

use crate::herdctl::{HerdctlImport, ImportPurpose};
use crate::import_error::ImportError;
use crate::message_count::count_messages;
use crate::report::{ImportItemKind, ImportReport};
use crate::source::ImportSource;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RebuildReport {
    /// The backup on which the rebuild is based.
    pub base: Option<Utf8PathBuf>,
    /// Records added from views and transcripts.
    pub report: ImportReport,
    /// Known losses.
    pub losses: Vec<String>,
    /// Directory that now holds the old database.
    pub trash: Utf8PathBuf,
}

/// Failure to rebuild a database. The old one is unchanged.
#[derive(Debug, Error)]
pub enum RebuildError {
    #[error(transparent)]
    Layout(#[from] StateDirError),
    /// Another process is the writer, or is running a restore.
    #[error("cannot rebuild the database while it is in use")]
    Locked(#[source] LockError),
    /// A newer release wrote the database.
    #[error("nothing was rebuilt")]
    Newer(#[source] DatabaseOpenError),
    /// The records are on a server.
    #[error(
        "the records are on {0}, and a rebuild makes a file; restore a backup with `heeler restore`, or \
         with the tools of PostgreSQL"
    )]
    OnServer(String),
    #[error("the database was not rebuilt")]
    Build(#[source] ImportError),
}

impl From<RebuildBeginError> for RebuildError {
    fn from(error: RebuildBeginError) -> RebuildError {
        match error {
            RebuildBeginError::Layout(error) => RebuildError::Layout(error),
            RebuildBeginError::Locked(error) => RebuildError::Locked(error),
            RebuildBeginError::Newer(error) => RebuildError::Newer(error),
            RebuildBeginError::OnServer(store) => RebuildError::OnServer(store),
            RebuildBeginError::Build(error) => RebuildError::Build(error.into()),
        }
    }
}

/// Rebuilds the database of a state directory.
pub fn rebuild(root: &Utf8Path, now: Timestamp) -> Result<RebuildReport, RebuildError> {
    let draft = DatabaseRebuild::begin(root, now)?;
    let report = add_records(&draft.target(), now).map_err(RebuildError::Build)?;
    let rebuilt = draft.finish(now).map_err(|error| RebuildError::Build(error.into()))?;
    Ok(RebuildReport { base: rebuilt.base, report, losses: rebuilt.losses, trash: rebuilt.trash })
}

/// Adds the records that views and transcripts have and the draft lacks.
fn add_records(target: &RecordTarget<'_>, now: Timestamp) -> Result<ImportReport, ImportError> {
    let source = ImportSource::open(target.dir().root())?;
    let mut views = HerdctlImport::new(&source, target, ImportPurpose::Rebuild, now);
    // Views first: they know more about a session than its transcript.
    views.run()?;
    let mut report = views.report;
    sessions_from_logs(target, &source, &mut report)?;
    Ok(report)
}

/// Creates a session for each transcript that no session refers to.
fn sessions_from_logs(
    target: &RecordTarget<'_>,
    source: &ImportSource,
    report: &mut ImportReport,
) -> Result<(), ImportError> {
    let mut found = Vec::new();
    for slug in source.names("agent-sessions/projects", ImportItemKind::Session, report) {
        let folder = format!("agent-sessions/projects/{slug}");
        for name in source.names(&folder, ImportItemKind::Session, report) {
            let id: Option<AgentSessionId> =
                name.strip_suffix(".jsonl").and_then(|stem| stem.parse().ok());
            // Transcripts of sub-agents belong to sessions that their names do not show.
            let Some(id) = id.filter(|id| !id.as_str().starts_with("agent-")) else { continue };
            let relative = format!("{folder}/{name}");
            let is_named = target.db().session_by_agent_id(&id)?.is_some()
                || id
                    .as_str()
                    .parse()
                    // Contexts of numbered sessions are named by Heeler's id.
                    .is_ok_and(|id| matches!(target.db().session(&id), Ok(Some(_))));
            let Ok(file) = source.file(&relative) else { continue };
            if is_named {
                continue;
            }
            let written = file.metadata().and_then(|meta| meta.modified()).ok();
            let written = written.and_then(|at| Timestamp::try_from(at).ok());
            let job = target.db().jobs_of_session(&id, None, 1)?.pop();
            let agent = job.map_or(UNKNOWN_AGENT.to_owned(), |job| job.agent);
            let mut session =
                // The time of the file is the time of the last message at the latest.
                idle_session(&agent, Some(id), written.unwrap_or(Timestamp::UNIX_EPOCH));
            session.message_count =
                // A transcript that cannot be read is listed without a count and not left out.
                count_messages(&target.dir().root().join(&relative)).unwrap_or(0);
            session.log_path = Some(relative.into());
            found.push(session);
        }
    }
    let fresh = target.commit(|tx| {
        found.into_iter().map(|it| tx.import_new_session(it)).collect::<Result<Vec<_>, _>>()
    })?;
    for fresh in fresh {
        match fresh {
            true => report.count_imported(ImportItemKind::Session),
            false => report.count_existing(ImportItemKind::Session),
        }
    }
    Ok(())
}
