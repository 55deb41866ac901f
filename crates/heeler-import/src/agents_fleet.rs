//! Import of agents-fleet's interactive sessions, copied to the user's directory of such
//! sessions.
//!
//! A session's JSON is written after its transcripts, so a session with JSON is complete. An
//! existing session is not changed, because its owner may have continued it. Start at
//! [`import_agents_fleet`].

pub(crate) mod read;

use std::io::{self, Cursor, Read as _};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::Session;
use heeler_store::Store;
use heeler_store::staging::RecordTarget;
use heeler_store::staging::state_files::{self, PutOutcome};
use heeler_transcript::{OsDisk, replace_files, untrusted_file};
use jiff::Timestamp;

use self::read::{AgentsFleetSession, own_transcript};
use crate::import_error::ImportError;
use crate::report::{ImportItemKind, ImportReport};
use crate::source::ImportSource;

const TRANSCRIPT: &str = ".transcript.ndjson";
const WORKERS: &str = ".workers";

/// Sessions per transaction.
const BATCH: usize = 500;

/// Imports the sessions of `~/.fleet`, or of its `sessions/`, into `sessions/` of Heeler's home
/// directory.
///
/// They are listed under the agent `interactive`. The source is only read.
pub fn import_agents_fleet(
    store: &Store,
    home: &Utf8Path,
    path: &Utf8Path,
    now: Timestamp,
) -> Result<ImportReport, ImportError> {
    let inner = path.join("sessions");
    let source = ImportSource::open(if inner.is_dir() { &inner } else { path })?;
    let sessions = home.join("sessions");
    state_files::create_folder(&sessions)?;
    // Recorded paths must not depend on links in the home directory.
    let sessions = sessions
        .canonicalize_utf8()
        .map_err(|source| ImportError::Write { path: sessions.clone(), source })?;
    if source.root() == sessions {
        return Err(ImportError::SourceIsTarget { path: path.to_owned() });
    }
    let target = RecordTarget::store(store)?;
    let origin = format!("agents-fleet:{}", source.root());
    let report = ImportReport::default();
    let mut import =
        AgentsFleetImport { source: &source, target: &target, sessions, origin, now, report };
    import.run()?;
    Ok(import.report)
}

struct AgentsFleetImport<'a> {
    source: &'a ImportSource,
    target: &'a RecordTarget<'a>,
    /// Directory that receives the sessions.
    sessions: Utf8PathBuf,
    origin: String,
    now: Timestamp,
    report: ImportReport,
}

/// A session with its transcripts in place.
struct PendingFleetSession {
    /// The JSON to write, unless it exists.
    json: Option<(Utf8PathBuf, Vec<u8>)>,
    /// The row to insert, unless it exists.
    session: Option<Session>,
}

impl AgentsFleetImport<'_> {
    fn run(&mut self) -> Result<(), ImportError> {
        let names = self.source.names("", ImportItemKind::Session, &mut self.report);
        let stems = names
            .iter()
            .filter(|name| !name.starts_with('.'))
            .filter_map(|name| name.strip_suffix(".json"))
            .collect::<Vec<_>>();
        for batch in stems.chunks(BATCH) {
            let mut ready = Vec::new();
            for stem in batch {
                ready.extend(self.session(stem)?);
            }
            self.put(ready)?;
        }
        for name in &names {
            // Leftovers of deleted sessions are reported, because nothing refers to them.
            let owner = name.strip_suffix(TRANSCRIPT).or_else(|| name.strip_suffix(WORKERS));
            if owner.is_some_and(|owner| !stems.contains(&owner)) {
                let reason = "it has no session file";
                self.report.refuse(ImportItemKind::Transcript, name, reason);
            }
        }
        Ok(())
    }

    /// Copies a session's transcripts; returns the data that must still be written.
    fn session(&mut self, stem: &str) -> Result<Option<PendingFleetSession>, ImportError> {
        let what = format!("{stem}.json");
        let read = self.source.text(&what).and_then(|text| AgentsFleetSession::read(stem, &text));
        let read = match read {
            Ok(read) => read,
            Err(reason) => {
                self.report.refuse(ImportItemKind::Session, what, reason);
                return Ok(None);
            }
        };
        let json = self.sessions.join(&what);
        let is_written = !is_blank(&json);
        let is_listed = self.target.db().session_by_agent_id(&read.id)?.is_some();
        // Both steps of an earlier import are complete, so the owner's changes stay.
        if is_written && is_listed {
            self.report.count_existing(ImportItemKind::Session);
            return Ok(None);
        }
        if let Some(other) = &read.other_id {
            self.report.note(format!("{what} has the id `{other}`; its file name is used"));
        }
        let transcript = self.sessions.join(own_transcript(&read.id));
        // An existing file proves that its transcripts were written before it.
        if !is_written {
            if self.transcript(&read, &transcript)? == PutOutcome::NameTaken {
                self.report.refuse(
                    ImportItemKind::Session,
                    what,
                    "a different file with the name of its transcript exists",
                );
                return Ok(None);
            }
            self.workers(&read)?;
        }
        let messages = count_entries(&transcript)?;
        let mut session = read.session(messages, self.written_at(&what));
        session.log_path = Some(transcript);
        session.origin = Some(self.origin.clone());
        let json = (!is_written).then(|| (json, read.upgraded_json(messages)));
        Ok(Some(PendingFleetSession { json, session: (!is_listed).then_some(session) }))
    }

    /// Copies the coordinator's transcript from its own file, or else from the JSON.
    fn transcript(
        &mut self,
        read: &AgentsFleetSession,
        to: &Utf8Path,
    ) -> Result<PutOutcome, ImportError> {
        let name = match &read.transcript {
            Ok(name) => name.clone(),
            Err(reason) => {
                self.report.refuse(ImportItemKind::Transcript, format!("{}.json", read.id), reason);
                own_transcript(&read.id)
            }
        };
        if self.source.has(&name) {
            match self.source.file(&name) {
                Ok(mut file) => {
                    let is_empty = file.metadata().is_ok_and(|meta| meta.len() == 0);
                    // An empty file beside an inline transcript holds nothing, so the inline one is
                    // used.
                    if !is_empty || read.inline_transcript().is_none() {
                        let put = state_files::put_new(&mut file, to)?;
                        self.count(ImportItemKind::Transcript, &name, put);
                        return Ok(put);
                    }
                }
                Err(reason) => self.report.refuse(ImportItemKind::Transcript, name, reason),
            }
        }
        let inline = read.inline_transcript().unwrap_or_default();
        Ok(state_files::put_new(&mut Cursor::new(inline), to)?)
    }

    fn count(&mut self, kind: ImportItemKind, what: &str, put: PutOutcome) {
        match put {
            PutOutcome::New => self.report.count_imported(kind),
            PutOutcome::Same | PutOutcome::Grown => self.report.count_existing(kind),
            PutOutcome::NameTaken => self.report.refuse(kind, what, state_files::NAME_TAKEN),
        }
    }

    fn workers(&mut self, read: &AgentsFleetSession) -> Result<(), ImportError> {
        for (worker, reason) in &read.unsafe_workers {
            self.report.refuse(
                ImportItemKind::Worker,
                format!("{}.json: {worker}", read.id),
                reason,
            );
        }
        let folder = format!("{}{WORKERS}", read.id);
        let names = self.source.names(&folder, ImportItemKind::Worker, &mut self.report);
        for worker in read.workers.iter().filter(|worker| !names.contains(worker)) {
            let what = format!("{}.json: {worker}", read.id);
            self.report.refuse(ImportItemKind::Worker, what, "its transcript is missing");
        }
        if names.is_empty() {
            return Ok(());
        }
        state_files::create_folder(&self.sessions.join(&folder))?;
        for name in names.iter().filter(|name| !name.starts_with('.')) {
            let what = format!("{folder}/{name}");
            match self.source.file(&what) {
                Ok(mut file) => {
                    let put = state_files::put_new(&mut file, &self.sessions.join(&what))?;
                    self.count(ImportItemKind::Worker, &what, put);
                }
                Err(reason) => self.report.refuse(ImportItemKind::Worker, what, reason),
            }
        }
        Ok(())
    }

    /// Writes the remaining data of the batch, each step durable before the next.
    fn put(&mut self, batch: Vec<PendingFleetSession>) -> Result<(), ImportError> {
        if batch.is_empty() {
            return Ok(());
        }
        let count = batch.len();
        // Transcripts must be durable before the JSON, which marks the session as complete.
        state_files::sync(&self.sessions)?;
        let (mut files, mut rows) = (Vec::new(), Vec::new());
        for PendingFleetSession { json, session } in batch {
            files.extend(json);
            rows.extend(session);
        }
        state_files::fault_point()?;
        for written in replace_files(&OsDisk, &files, &|_| Ok(())) {
            written
                .map_err(|error| ImportError::Write { path: error.path, source: error.source })?;
        }
        // The row is last: a listed session always has its files.
        self.target.commit(move |tx| {
            rows.into_iter().try_for_each(|session| tx.import_session(session).map(drop))
        })?;
        (0..count).for_each(|_| self.report.count_imported(ImportItemKind::Session));
        Ok(())
    }

    fn written_at(&self, relative: &str) -> Timestamp {
        let meta = self.source.file(relative).ok().and_then(|file| file.metadata().ok());
        let at = meta.and_then(|meta| meta.modified().ok());
        // A session without any time was last used when its file was written.
        at.and_then(|at| Timestamp::try_from(at).ok()).unwrap_or(self.now)
    }
}

/// Returns true if a file is missing, or holds only the zero bytes that a power loss left.
fn is_blank(path: &Utf8Path) -> bool {
    let mut start = [0; 64];
    let count = match untrusted_file::open(path).and_then(|mut file| file.read(&mut start)) {
        Ok(count) => count,
        Err(error) => return error.kind() == io::ErrorKind::NotFound,
    };
    // A file of zeros was created and not written when the power failed.
    start[..count].iter().all(|byte| *byte == 0)
}

/// Counts the entries of a transcript, as `msgCount` does.
fn count_entries(transcript: &Utf8Path) -> Result<i64, ImportError> {
    let failed = |error: heeler_transcript::DiskError| ImportError::Write {
        path: transcript.to_owned(),
        source: error.source,
    };
    let mut count = 0;
    for entry in heeler_transcript::TranscriptScanner::open(transcript).map_err(failed)? {
        if matches!(entry.map_err(failed)?, heeler_transcript::TranscriptEntry::Record(_)) {
            count += 1;
        }
    }
    Ok(count)
}
