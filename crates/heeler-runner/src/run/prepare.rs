//! Everything that a run needs before its agent starts.
//!
//! Nothing here is seen by the agent, and a crash leaves nothing that a second attempt would trip
//! over. Start at [`prepare`].

use std::collections::HashMap;
use std::io;
use std::time::Instant;

use heeler_model::config::RuntimeType;
use heeler_model::outcome::Tally;
use heeler_model::run::{SessionStart, Started};
use heeler_model::{AgentSessionId, chain};
use heeler_transcript::{CopyError, DiskError, Durability, LockFile, LogOptions, OpenError};
use uuid::Uuid;

use super::outside::Outside;
use super::{Order, RunnerError};
use crate::asks::Asks;
use crate::control::Control;
use crate::files;
use crate::journal::Journal;
use crate::limits::Watch;
use crate::lines::Lines;
use crate::mcp::{Bridge, FromTools, Injected};
use crate::output::Output;
use crate::process::Tree;
use crate::pump::{Camera, Run};
use crate::runtime::Surroundings;
use crate::session::{self, History};
use crate::signals::Signals;

/// A run that is ready to start its agent.
pub(super) struct Prepared {
    pub(super) run: Run,
    pub(super) tree: Tree,
    pub(super) bridge: Option<Bridge>,
    pub(super) first: First,
}

/// How the session starts, and what its first rows say.
pub(super) struct First {
    pub(super) start: SessionStart,
    pub(super) reason: String,
    /// What others did with the session, if that was taken in.
    pub(super) outside: Option<String>,
}

/// Why a run is not ready.
pub(super) enum Unprepared {
    /// There is no space; the same may succeed later.
    Full(RunnerError),
    /// It would fail again.
    Refused(String),
}

impl From<DiskError> for Unprepared {
    fn from(error: DiskError) -> Unprepared {
        match error.source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Unprepared::Full(error.into())
            }
            _ => Unprepared::Refused(chain(&error)),
        }
    }
}

impl From<OpenError> for Unprepared {
    fn from(error: OpenError) -> Unprepared {
        match error {
            OpenError::Disk(error) => error.into(),
            error => Unprepared::Refused(chain(&error)),
        }
    }
}

impl From<CopyError> for Unprepared {
    fn from(error: CopyError) -> Unprepared {
        match error {
            CopyError::Disk(error) => error.into(),
            error => Unprepared::Refused(chain(&error)),
        }
    }
}

fn refused(error: impl std::error::Error) -> Unprepared {
    Unprepared::Refused(chain(&error))
}

/// Gets everything ready.
pub(super) async fn prepare(
    order: &Order<'_>,
    mut outside: Outside,
) -> Result<Prepared, Unprepared> {
    let Order { dir, spec, host, means, started_at } = *order;
    let signals = Signals::catch().map_err(refused)?;
    let files_folder = host.brief.send_files_to.as_deref();
    let redactor = host.redactor().clone();
    let door = host.door.clone();
    let (injected, from_tools) =
        Injected::new(&spec.working_directory, files_folder, &redactor, door);
    let FromTools { notes, inquiries } = from_tools;
    let bridge = match spec.runtime {
        RuntimeType::Cli => Some(Bridge::open(&injected, &host.token).await.map_err(refused)?),
        RuntimeType::Sdk | RuntimeType::Scripted | RuntimeType::Command => None,
    };
    let endpoint = bridge.as_ref().map(Bridge::endpoint);
    let surroundings = Surroundings { spec, host, injected: &injected, endpoint };
    let runtime = (means.runtime)(&surroundings).map_err(Unprepared::Refused)?;
    session::copy_history(means.disk.as_ref(), spec)?;
    let (start, reason) = order.first_start().map_err(Unprepared::Refused)?;
    let session = spec.session.start.id().clone();
    let mut journal = Journal::open(
        &session::log_path(spec, &session),
        &spec.job_log,
        &log_options(order),
        &redactor,
        spec.run,
    )?;
    order.take_in(&mut outside, &mut journal)?;
    if let Some(path) = &spec.output_file {
        journal.set_output(Output::open(path)?);
    }
    let History { recorder, last_result } = session::history(spec, &session)?;
    let tally = tally(order, last_result.as_ref());
    let control = Control::bind(&spec.sockets, spec.run).await.map_err(refused)?;
    let run = Run {
        spec: spec.clone(),
        session,
        now: host.now,
        started_at,
        runtime,
        journal,
        recorder,
        tally,
        control,
        asks: Asks::new(dir),
        watch: Watch::new(&spec.limits, Instant::now()),
        lines: Lines::new(dir, &redactor, means.lines),
        redactor,
        signals,
        injected,
        endpoint: bridge.as_ref().map(Bridge::endpoint).cloned(),
        notes,
        inquiries,
        inquiring: HashMap::new(),
        ending: None,
        last_line_at: None,
        is_known: matches!(start, SessionStart::Resume { .. }),
        spoke: false,
        disk: None,
        aside: None,
        camera: Camera {
            program: host.program.clone(),
            run_dir: dir.to_owned(),
            path: host.brief.env.get("PATH").cloned(),
            time_max: means.snapshot_time_max,
        },
        early: Vec::new(),
    };
    let first = First { start, reason, outside: outside.note };
    Ok(Prepared { run, tree: Tree::claim(spec.run), bridge, first })
}

fn log_options(order: &Order<'_>) -> LogOptions {
    let durability =
        if order.spec.sync_each_row { Durability::Event } else { Durability::Interval };
    LogOptions { durability, disk: order.means.disk.clone() }
}

fn tally(order: &Order<'_>, last_result: Option<&serde_json::Value>) -> Tally {
    let tally = Tally::of(order.spec.runtime);
    match last_result {
        Some(result) => tally.after(result),
        None => tally,
    }
}

impl Order<'_> {
    /// Lets the run go on in a session of its own; returns that session's lock.
    pub(super) fn begin_anew(
        &self,
        run: &mut Run,
        started: &mut Started,
    ) -> Result<LockFile, String> {
        let id = Uuid::new_v4().to_string();
        let id: AgentSessionId = id.parse().expect("a UUID can be a session's id");
        let lock = session::lock(self.spec, &id, (run.now)()).map_err(|error| chain(&error))?;
        let log = session::log_path(self.spec, &id);
        let sink = run.journal.open_session(&log).map_err(|error| chain(&error))?;
        let history = session::history(self.spec, &id).map_err(|error| chain(&error))?;
        let anew = Started {
            session: id.clone(),
            session_log: log,
            session_rows_before: 0,
            ..started.clone()
        };
        // Whoever settles this run must look for its rows in the new log: from here on, not before.
        files::write_started(self.dir, &anew).map_err(|error| chain(&error))?;
        *started = anew;
        run.journal.change_session(sink);
        run.session = id;
        run.recorder = history.recorder;
        run.tally = Tally::new();
        (run.is_known, run.spoke) = (false, false);
        Ok(lock)
    }
}
