//! Export of a session into one file, for another machine or as a backup. All content is located
//! first, so that missing content is reported before a byte is written. Start at
//! [`FleetReader::export`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::redact::SecretRedactor;
use heeler_model::{Session, error_chain, iso_millis};
use heeler_store::bundle::{
    self, BundleChecksums, BundleContents, BundleExportError, BundleRepository, NativeSessionFile,
};
use heeler_store::history::{TranscriptSnapshotEntry, snapshots};
use heeler_store::native::{self, NativeProgram, PortableNativeSession};
use heeler_store::{JobCursor, StoreReader};
use heeler_workspace::{CommitId, SnapshotError, SnapshotName, SnapshotStore};
use serde_json::{Value, json};

use crate::diff::no_snapshot;
use crate::fleet_reader::QueryContext;
use crate::{FleetReader, QueryError, sessions};

/// Number of jobs read per query.
const JOBS_PER_PAGE: usize = 1_000;

/// Choice to export the snapshots of a session's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotInclusion {
    /// Messages only.
    Excluded,
    /// Also the snapshots of its files, from which no secrets are removed.
    Included,
}

/// A session that is ready to be exported.
pub struct SessionExport {
    pub session: Session,
    /// Number of exported snapshots.
    pub snapshots: u64,
    /// Number of snapshots in the transcript that no longer exist.
    pub snapshots_missing: u64,
    /// Reason that the native session of a program besides Claude Code is not exported.
    pub native_omitted: Option<String>,
    jobs: Vec<Value>,
    log: Option<Utf8PathBuf>,
    /// Claude's native session file.
    native_file: Option<Utf8PathBuf>,
    /// Native session of another program.
    native_session: Option<PortableNativeSession>,
    repositories: Vec<RepositorySnapshots>,
    redactor: SecretRedactor,
}

/// Snapshots of a session in one repository, each named by the session and its commit.
type RepositorySnapshots = (SnapshotStore, Vec<(SnapshotName, CommitId)>);

impl fmt::Debug for SessionExport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionExport").field("session", &self.session.id).finish_non_exhaustive()
    }
}

impl SessionExport {
    /// Writes the session bundle. Content appended to files in the meantime is not included.
    pub fn write(&self, out: &mut dyn io::Write) -> Result<BundleChecksums, BundleExportError> {
        let fork = self.session.fork.as_ref();
        let export = BundleContents {
            session: &self.session,
            jobs: &self.jobs,
            log: self.log.as_deref(),
            native_file: self.native_file.as_deref().map(|path| NativeSessionFile { path, fork }),
            native_session: self.native_session.as_ref(),
            workspace: self.repositories.iter().map(repository).collect(),
            redactor: &self.redactor,
        };
        bundle::write(export, out)
    }

    /// Finds the snapshots that the session's transcript references.
    fn add_files(&mut self, workspaces: &Utf8Path) -> Result<(), QueryError> {
        let notes = self.log.as_deref().map(snapshots).transpose()?.unwrap_or_default();
        let id = self.session.agent_session_id.as_ref().map_or("", |id| id.as_str());
        let mut wanted: BTreeMap<String, BTreeSet<CommitId>> = BTreeMap::new();
        for TranscriptSnapshotEntry { snapshot: note, .. } in notes {
            // An invalid commit in a foreign transcript is ignored.
            let commit = CommitId::parse(&note.commit);
            wanted.entry(note.repository).or_default().extend(commit);
        }
        for (key, commits) in wanted {
            // A session may have worked in several repositories.
            let found = match SnapshotStore::open_key(workspaces, &key) {
                Ok(found) => found,
                // Snapshots may have been pruned, or their repository removed. The rest is
                // exported.
                Err(SnapshotError::NoRepository { .. }) => {
                    self.snapshots_missing += commits.len() as u64;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let existing: BTreeSet<CommitId> =
                found.list(None)?.into_iter().map(|(_, commit)| commit).collect();
            self.snapshots_missing += commits.difference(&existing).count() as u64;
            // Names depend only on the session and the commit, so repeated exports are equal.
            let name = |commit: &CommitId| SnapshotName::parse(&format!("{id}/{commit}")).ok();
            let named = commits.intersection(&existing);
            let named: Vec<_> = named.filter_map(|it| Some((name(it)?, it.clone()))).collect();
            if !named.is_empty() {
                self.snapshots += named.len() as u64;
                self.repositories.push((found, named));
            }
        }
        // The caller asked for the files, so an export without any would be misleading.
        match self.repositories.is_empty() {
            true => Err(no_snapshot(&self.session)),
            false => Ok(()),
        }
    }
}

fn repository((from, named): &RepositorySnapshots) -> BundleRepository<'_> {
    let write = move |to: &mut dyn io::Write| from.export(named, to).map_err(io::Error::other);
    BundleRepository { key: from.key().to_owned(), write: Box::new(write) }
}

impl FleetReader {
    /// Locates the content of a session: its record, its jobs, its transcript and its native
    /// session.
    pub fn export(&self, id: &str, files: SnapshotInclusion) -> Result<SessionExport, QueryError> {
        let known = self.context();
        let reader = self.reader()?;
        let session = sessions::find_session(&reader, id)?;
        let jobs = session_jobs(&reader, &session)?;
        // The reader goes back to the pool before files are examined.
        drop(reader);
        // A fork that has not started has no native session yet, only that of its source.
        let source = session.fork.as_ref().map(|fork| &fork.source);
        let native_id = source.or(session.agent_session_id.as_ref());
        let native_file =
            native_id.and_then(|id| known.read_context()?.native_session_file(&session, id));
        let log = self.session_transcript_path(&known, &session);
        let (native_session, native_omitted) =
            match log.as_deref().map(|log| find_native_session(&known, &session, log)) {
                Some(Ok(found)) => (found, None),
                // Reading the session elsewhere is useful too.
                Some(Err(reason)) => (None, Some(reason)),
                None => (None, None),
            };
        let mut export = SessionExport {
            jobs,
            log,
            native_file: native_file.filter(|file| file.is_file()),
            native_session,
            native_omitted,
            redactor: SecretRedactor::new(&known.secrets()),
            repositories: Vec::new(),
            snapshots: 0,
            snapshots_missing: 0,
            session,
        };
        if files == SnapshotInclusion::Included {
            export.add_files(&self.dir().workspaces())?;
        }
        Ok(export)
    }
}

/// Finds the native session that the last run of a transcript used, or the reason that it is not
/// exported. `None` if there is none besides Claude's.
fn find_native_session(
    known: &QueryContext,
    session: &Session,
    log: &Utf8Path,
) -> Result<Option<PortableNativeSession>, String> {
    // A fork that has not started has the transcript of its source, and no native session yet.
    if session.fork.is_some() {
        return Ok(None);
    }
    let opened = native::last_opened(log).map_err(|error| error_chain(&error))?;
    let Some((agent, id)) = opened else { return Ok(None) };
    let mut programs = NativeProgram::ALL.into_iter();
    let program = programs.find(|program| program.as_str() == agent);
    let program = program.ok_or_else(|| format!("native sessions of {agent} are not exported"))?;
    let folder = known.read_context().and_then(|known| known.native_folder(session, program));
    let folder = folder.ok_or_else(|| format!("the folder of {program}'s sessions is unknown"))?;
    let directories = [&session.working_directory, &session.workspace];
    let directories: Vec<&Utf8Path> = directories.into_iter().flatten().map(|it| &**it).collect();
    let found = native::find_portable(&folder, &id, &directories);
    found.map(Some).map_err(|error| error_chain(&error))
}

fn session_jobs(reader: &StoreReader, session: &Session) -> Result<Vec<Value>, QueryError> {
    let Some(id) = &session.agent_session_id else { return Ok(Vec::new()) };
    let mut jobs = Vec::new();
    let mut before = None;
    loop {
        let page = reader.jobs_of_session(id, before.as_ref(), JOBS_PER_PAGE)?;
        let Some(last) = page.last() else { return Ok(jobs) };
        before = Some(JobCursor::after(last));
        jobs.extend(page.iter().map(|job| {
            json!({
                "id": job.id,
                "agent": job.agent,
                "schedule": job.schedule,
                "status": job.status,
                "triggerType": job.trigger_type.as_str(),
                "startedAt": iso_millis(job.started_at),
                "finishedAt": job.finished_at.map(iso_millis),
                "exitReason": job.exit_reason,
                "costUsd": job.cost_usd,
                "summary": job.summary,
            })
        }));
    }
}
