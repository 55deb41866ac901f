//! Import of herdctl's state, by copying or by adopting it in place.
//!
//! Files are written and synced first; then the rows that refer to them, one transaction per
//! batch. So a row never refers to a missing file, and an interrupted import continues where it
//! stopped. Start at [`HerdctlImport`].

mod jobs;
mod process;
pub(crate) mod read;
mod sessions;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::iso_millis;
use heeler_store::staging::RecordTarget;
use heeler_store::staging::state_files::{self, PutOutcome};
use heeler_store::{HERDCTL_ENTRIES, PublishedView, STARTED_AT, Store, sha256_hex, view_records};
use heeler_transcript::untrusted_file;
use jiff::Timestamp;

pub(crate) use self::process::running_herdctl;
use crate::import_error::ImportError;
use crate::report::{ImportItemKind, ImportReport};
use crate::source::{ImportSource, unsafe_name};

/// Imports the state of a herdctl project: its directory, or its `.herdctl`.
///
/// The source is only read. Views are due afterwards: publish them.
pub fn import_herdctl(
    store: &Store,
    path: &Utf8Path,
    now: Timestamp,
) -> Result<ImportReport, ImportError> {
    let source = ImportSource::open(&locate(path)?)?;
    // The directory is adopted and not imported if it is the state directory itself.
    if source.root() == store.dir().root() {
        return Err(ImportError::SourceIsTarget { path: path.to_owned() });
    }
    let target = RecordTarget::store(store)?;
    let mut import = HerdctlImport::new(&source, &target, ImportPurpose::TakeOver, now);
    import.run()?;
    // Only after a copy. An adopted directory keeps its unknown entries in place.
    import.note_unknown();
    Ok(import.report)
}

/// Finds the state directory for a path.
fn locate(path: &Utf8Path) -> Result<Utf8PathBuf, ImportError> {
    let inner = path.join(".herdctl");
    if inner.is_dir() {
        return Ok(inner);
    }
    // Reports a wrong path as such, and not as a missing project.
    path.metadata().map_err(|source| ImportError::Open { path: path.to_owned(), source })?;
    let is_state = ["state.yaml", "jobs", "sessions"].iter().any(|name| path.join(name).exists());
    if is_state {
        Ok(path.to_owned())
    } else {
        Err(ImportError::NotFound { path: path.to_owned(), what: "herdctl project or .herdctl" })
    }
}

/// Purpose of reading the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ImportPurpose {
    /// Import or adoption of herdctl's state: unfinished jobs are ended.
    TakeOver,
    /// Recovery from Heeler's own views: they take precedence over older rows, and running jobs
    /// stay running.
    Rebuild,
}

/// Result of copying a file of the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SourceFileOutcome {
    Present,
    Unreadable,
    /// A different file has its name.
    NameTaken,
}

/// One import: its source, its target and its report.
pub(crate) struct HerdctlImport<'a> {
    source: &'a ImportSource,
    target: &'a RecordTarget<'a>,
    /// Process id of a running herdctl.
    running_pid: Option<u32>,
    origin: Option<String>,
    now: Timestamp,
    purpose: ImportPurpose,
    /// Number of jobs that herdctl had left unfinished.
    pub(crate) interrupted: u64,
    pub(crate) report: ImportReport,
}

impl<'a> HerdctlImport<'a> {
    pub(crate) fn new(
        source: &'a ImportSource,
        target: &'a RecordTarget<'a>,
        purpose: ImportPurpose,
        now: Timestamp,
    ) -> HerdctlImport<'a> {
        let (origin, alive) = match purpose {
            ImportPurpose::TakeOver => {
                // herdctl takes no lock, so its process is the only sign that it is running.
                (Some(format!("herdctl:{}", source.root())), running_herdctl(source.root()))
            }
            ImportPurpose::Rebuild => (None, None),
        };
        HerdctlImport {
            source,
            target,
            running_pid: alive,
            origin,
            now,
            purpose,
            interrupted: 0,
            report: ImportReport::default(),
        }
    }

    pub(crate) fn run(&mut self) -> Result<(), ImportError> {
        for folder in ["jobs", "sessions", "logs", "docker-sessions", "session-metadata"] {
            if self.source.has(folder) {
                state_files::create_folder(&self.target.dir().root().join(folder))?;
            }
        }
        // Jobs first: containers and sessions look up the jobs that ran in them.
        self.jobs()?;
        // Before the sessions, because importing a session creates its agent without a state.
        self.agents()?;
        self.sessions()?;
        self.other_files("session-metadata", ".json")?;
        self.other_files("logs", ".log")?;
        // No later commit syncs these files.
        state_files::sync(self.target.dir().root())?;
        if self.interrupted > 0 {
            let text = format!("{} unfinished jobs were marked as interrupted", self.interrupted);
            self.report.note(text);
        }
        Ok(())
    }

    fn agents(&mut self) -> Result<(), ImportError> {
        if !self.source.has("state.yaml") {
            return Ok(());
        }
        let read = self
            .source
            .text("state.yaml")
            .and_then(|text| Ok((view_records::parse_agents(&text)?, text)));
        let (agents, text) = match read {
            Ok(read) => read,
            Err(reason) => {
                self.report.refuse(ImportItemKind::Agent, "state.yaml", reason);
                return Ok(());
            }
        };
        let mut fresh = Vec::new();
        for (name, state) in agents {
            match state {
                Err(reason) => {
                    self.report.refuse(
                        ImportItemKind::Agent,
                        format!("state.yaml: agents.{name}"),
                        reason,
                    );
                }
                Ok(_)
                    if self.purpose == ImportPurpose::TakeOver
                        // A second import must not undo changes that were made since the first.
                        && self.target.db().agent(&name)?.is_some() =>
                {
                    self.report.count_existing(ImportItemKind::Agent);
                }
                Ok(state) => {
                    self.report.count_imported(ImportItemKind::Agent);
                    fresh.push((name, state));
                }
            }
        }
        let (started_at, other_keys) = view_records::parse_fleet(&text).unwrap_or_default();
        // Copying the file preserves unknown keys, such as session_wakes.
        let view = self.copy_view("state.yaml", &text)?;
        if view.is_none() {
            self.note_skipped_keys(other_keys);
        }
        let now = self.now;
        Ok(self.target.commit(move |tx| {
            if let Some(sha256) = view {
                tx.adopt_view(&PublishedView::State, &sha256, now)?;
            }
            if let (Some(at), None) = (started_at, tx.meta(STARTED_AT)?) {
                tx.set_meta(STARTED_AT, &iso_millis(at))?;
            }
            fresh.iter().try_for_each(|(name, state)| tx.put_agent(name, state))
        })?)
    }

    /// Adds a note on the keys of a `state.yaml` that were not imported because a `state.yaml`
    /// exists.
    fn note_skipped_keys(&mut self, mut keys: Vec<String>) {
        let here = untrusted_file::read_text(&self.target.dir().state_yaml()).unwrap_or_default();
        let (_, here) = view_records::parse_fleet(&here).unwrap_or_default();
        keys.retain(|key| !here.contains(key));
        if !keys.is_empty() {
            let keys = keys.join(", ");
            self.report
                .note(format!("a state.yaml exists, so these keys were not imported: {keys}"));
        }
    }

    /// Copies a view unchanged and returns its hash; `None` if a file with its name exists.
    fn copy_view(&mut self, relative: &str, text: &str) -> Result<Option<String>, ImportError> {
        let to = self.target.dir().root().join(relative);
        if !self.target.is_at(&self.source.root().join(relative), relative) {
            // An empty file is the leftover of an import that was interrupted by a power loss.
            if to.symlink_metadata().is_ok_and(|found| found.len() > 0) {
                return Ok(None);
            }
            state_files::write(text.as_bytes(), &to)?;
        }
        Ok(Some(sha256_hex(text.as_bytes())))
    }

    /// Copies a file, unless a different one has its name.
    fn copy_file(
        &mut self,
        kind: ImportItemKind,
        from: &str,
        to: &str,
    ) -> Result<SourceFileOutcome, ImportError> {
        let mut file = match self.source.file(from) {
            Ok(file) => file,
            Err(reason) => {
                self.report.refuse(kind, from, reason);
                return Ok(SourceFileOutcome::Unreadable);
            }
        };
        // In place the file is already where it belongs.
        let put = match self.target.is_at(&self.source.root().join(from), to) {
            true => PutOutcome::New,
            false => state_files::put_new(&mut file, &self.target.path(to)?)?,
        };
        match put {
            PutOutcome::New => self.report.count_imported(kind),
            PutOutcome::Same | PutOutcome::Grown => self.report.count_existing(kind),
            PutOutcome::NameTaken => {
                self.report.refuse(kind, from, state_files::NAME_TAKEN);
                return Ok(SourceFileOutcome::NameTaken);
            }
        }
        Ok(SourceFileOutcome::Present)
    }

    /// Copies a file that no record refers to.
    fn copy_unreferenced_file(
        &mut self,
        kind: ImportItemKind,
        relative: &str,
    ) -> Result<(), ImportError> {
        let here = self.target.dir().root().join(relative);
        // An adopted directory counts its own files once.
        if self.target.is_at(&self.source.root().join(relative), relative) && here.exists() {
            self.report.count_existing(kind);
            return Ok(());
        }
        self.copy_file(kind, relative, relative).map(drop)
    }

    fn other_files(&mut self, folder: &str, ending: &str) -> Result<(), ImportError> {
        for name in self.source.names(folder, ImportItemKind::File, &mut self.report) {
            if name.ends_with(ending) && unsafe_name(&name).is_none() {
                self.copy_unreferenced_file(ImportItemKind::File, &format!("{folder}/{name}"))?;
            }
        }
        Ok(())
    }

    fn note_unknown(&mut self) {
        let names = self.source.names("", ImportItemKind::File, &mut self.report);
        let unknown = names
            .iter()
            // Hidden files are drafts or caches.
            .filter(|name| !HERDCTL_ENTRIES.contains(&name.as_str()) && !name.starts_with('.'))
            .map(String::as_str)
            .collect::<Vec<_>>();
        if !unknown.is_empty() {
            self.report
                .note(format!("not part of herdctl's state, not imported: {}", unknown.join(", ")));
        }
    }
}
