//! The state of herdctl, copied in or adopted in place.
//!
//! Files come first, whole and synced; then the rows that name them, a batch in one transaction.
//! So a row never names a file that is not there, and an import that was cut off goes on where it
//! stopped. Start at [`Herdctl`].

mod alive;
mod jobs;
pub(crate) mod read;
mod sessions;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::iso_millis;
use jiff::Timestamp;

pub(crate) use self::alive::running_herdctl;
use super::place::{self, Put};
use super::source::{Source, unsafe_name};
use super::target::Target;
use super::{ImportError, Kind, Report};
use crate::db::meta::STARTED_AT;
use crate::store::Store;
use crate::views::{View, sha256_hex};
use heeler_transcript::plain;

/// What herdctl keeps in its state directory.
pub(crate) const KNOWN: [&str; 11] = [
    "state.yaml",
    "herdctl.pid",
    "jobs",
    "sessions",
    "logs",
    "docker-sessions",
    "discord-sessions",
    "slack-sessions",
    "web-sessions",
    "session-metadata",
    "adopted-sessions",
];

/// Imports the state of a herdctl project: its folder, or its `.herdctl`.
///
/// The source is only read. Views are due afterwards: publish them.
pub fn herdctl(store: &Store, path: &Utf8Path, now: Timestamp) -> Result<Report, ImportError> {
    let source = Source::open(&locate(path)?)?;
    if source.root() == store.dir().root() {
        return Err(ImportError::Itself { path: path.to_owned() });
    }
    let target = Target::store(store)?;
    let mut import = Herdctl::new(&source, &target, Purpose::TakeOver, now);
    import.run()?;
    import.note_unknown();
    Ok(import.report)
}

/// Finds the state directory that a path means.
fn locate(path: &Utf8Path) -> Result<Utf8PathBuf, ImportError> {
    let inner = path.join(".herdctl");
    if inner.is_dir() {
        return Ok(inner);
    }
    path.metadata().map_err(|source| ImportError::Open { path: path.to_owned(), source })?;
    let is_state = ["state.yaml", "jobs", "sessions"].iter().any(|name| path.join(name).exists());
    if is_state {
        Ok(path.to_owned())
    } else {
        Err(ImportError::NotThere { path: path.to_owned(), what: "herdctl project or .herdctl" })
    }
}

/// Why records are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// herdctl's state becomes ours: what it left unfinished is settled.
    TakeOver,
    /// Our own views tell what a database has lost: they win over older rows, and what runs runs.
    Rebuild,
}

/// What became of a file of the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Brought {
    Here,
    Unreadable,
    /// Another file has its name here.
    Taken,
}

/// One import: what is read, where it goes, and what became of it.
pub(crate) struct Herdctl<'a> {
    source: &'a Source,
    target: &'a Target<'a>,
    /// The herdctl that is at work there, if one is.
    alive: Option<u32>,
    origin: Option<String>,
    now: Timestamp,
    purpose: Purpose,
    /// How many jobs herdctl had left unfinished.
    pub(crate) interrupted: u64,
    pub(crate) report: Report,
}

impl<'a> Herdctl<'a> {
    pub(crate) fn new(
        source: &'a Source,
        target: &'a Target<'a>,
        purpose: Purpose,
        now: Timestamp,
    ) -> Herdctl<'a> {
        let (origin, alive) = match purpose {
            Purpose::TakeOver => {
                (Some(format!("herdctl:{}", source.root())), running_herdctl(source.root()))
            }
            Purpose::Rebuild => (None, None),
        };
        Herdctl {
            source,
            target,
            alive,
            origin,
            now,
            purpose,
            interrupted: 0,
            report: Report::default(),
        }
    }

    /// Imports everything.
    pub(crate) fn run(&mut self) -> Result<(), ImportError> {
        for folder in ["jobs", "sessions", "logs", "docker-sessions", "session-metadata"] {
            if self.source.has(folder) {
                place::folder(&self.target.dir.root().join(folder))?;
            }
        }
        self.jobs()?;
        // Before the sessions: an agent comes into being with its session, but then without state.
        self.agents()?;
        self.sessions()?;
        self.other_files("session-metadata", ".json")?;
        self.other_files("logs", ".log")?;
        // No commit follows that would see to them.
        place::sync(self.target.dir.root())?;
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
        let read = self.source.text("state.yaml").and_then(|text| Ok((read::agents(&text)?, text)));
        let (agents, text) = match read {
            Ok(read) => read,
            Err(reason) => {
                self.report.refuse(Kind::Agent, "state.yaml", reason);
                return Ok(());
            }
        };
        let mut fresh = Vec::new();
        for (name, state) in agents {
            match state {
                Err(reason) => {
                    self.report.refuse(Kind::Agent, format!("state.yaml: agents.{name}"), reason);
                }
                Ok(_)
                    if self.purpose == Purpose::TakeOver
                        && self.target.db().agent(&name)?.is_some() =>
                {
                    self.report.already_there(Kind::Agent);
                }
                Ok(state) => {
                    self.report.imported(Kind::Agent);
                    fresh.push((name, state));
                }
            }
        }
        let (started_at, other_keys) = read::fleet(&text).unwrap_or_default();
        // With the file come the keys that we do not know, such as session_wakes.
        let view = self.bring_view("state.yaml", &text)?;
        if view.is_none() {
            self.note_left_behind(other_keys);
        }
        let now = self.now;
        self.target.commit(move |tx| {
            if let Some(sha256) = view {
                tx.adopt_view(&View::State, &sha256, now)?;
            }
            if let (Some(at), None) = (started_at, tx.meta(STARTED_AT)?) {
                tx.set_meta(STARTED_AT, &iso_millis(at))?;
            }
            fresh.iter().try_for_each(|(name, state)| tx.put_agent(name, state))
        })
    }

    /// Says which keys of a `state.yaml` did not come along because there is one here already.
    fn note_left_behind(&mut self, mut keys: Vec<String>) {
        let here = plain::read_text(&self.target.dir.state_yaml()).unwrap_or_default();
        let (_, here) = read::fleet(&here).unwrap_or_default();
        keys.retain(|key| !here.contains(key));
        if !keys.is_empty() {
            let keys = keys.join(", ");
            self.report
                .note(format!("there is a state.yaml here: these keys stayed behind: {keys}"));
        }
    }

    /// Copies a view as it is and returns its hash; `None` when there is one here already.
    fn bring_view(&mut self, relative: &str, text: &str) -> Result<Option<String>, ImportError> {
        let to = self.target.dir.root().join(relative);
        if !self.target.is_at(&self.source.root().join(relative), relative) {
            // An empty one is what a power loss left of an import that was cut off.
            if to.symlink_metadata().is_ok_and(|found| found.len() > 0) {
                return Ok(None);
            }
            place::write(text.as_bytes(), &to)?;
        }
        Ok(Some(sha256_hex(text.as_bytes())))
    }

    /// Copies a file, unless another one has its name here.
    fn bring(&mut self, kind: Kind, from: &str, to: &str) -> Result<Brought, ImportError> {
        let mut file = match self.source.file(from) {
            Ok(file) => file,
            Err(reason) => {
                self.report.refuse(kind, from, reason);
                return Ok(Brought::Unreadable);
            }
        };
        let put = match self.target.is_at(&self.source.root().join(from), to) {
            true => Put::New,
            false => place::put_new(&mut file, &self.target.path(to)?)?,
        };
        match put {
            Put::New => self.report.imported(kind),
            Put::Same | Put::Longer => self.report.already_there(kind),
            Put::Taken => {
                self.report.refuse(kind, from, place::TAKEN);
                return Ok(Brought::Taken);
            }
        }
        Ok(Brought::Here)
    }

    /// Copies a file that no record names.
    fn bring_loose(&mut self, kind: Kind, relative: &str) -> Result<(), ImportError> {
        let here = self.target.dir.root().join(relative);
        if self.target.is_at(&self.source.root().join(relative), relative) && here.exists() {
            self.report.already_there(kind);
            return Ok(());
        }
        self.bring(kind, relative, relative).map(drop)
    }

    fn other_files(&mut self, folder: &str, ending: &str) -> Result<(), ImportError> {
        for name in self.source.names(folder, Kind::File, &mut self.report) {
            if name.ends_with(ending) && unsafe_name(&name).is_none() {
                self.bring_loose(Kind::File, &format!("{folder}/{name}"))?;
            }
        }
        Ok(())
    }

    fn note_unknown(&mut self) {
        let names = self.source.names("", Kind::File, &mut self.report);
        let unknown = names
            .iter()
            .filter(|name| !KNOWN.contains(&name.as_str()) && !name.starts_with('.'))
            .map(String::as_str)
            .collect::<Vec<_>>();
        if !unknown.is_empty() {
            self.report
                .note(format!("not a part of herdctl's state, left alone: {}", unknown.join(", ")));
        }
    }
}
