//! `heeler session export`: a session in one file.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufWriter, Write as _};

use camino::{Utf8Path, Utf8PathBuf};
use clap::{Args, ValueHint};
use heeler_model::redact::Redactor;
use heeler_model::{Session, iso_millis};
use heeler_store::bundle::{self, Export, OwnFile, Repository, Sums};
use heeler_store::history::{NotedSnapshot, snapshots};
use heeler_store::{JobCursor, Reader, StateDir};
use heeler_workspace::{Commit, SnapshotError, SnapshotName, Snapshots};
use serde_json::{Value, json};

use crate::cli::{self, Global};
use crate::failure::{Code, Failure, Outcome};
use crate::fleet::Fleets;
use crate::output;
use crate::place::{Place, beside};

/// What the help of `session export` shows at its end.
pub(crate) const ABOUT: &str = "Examples:
  heeler session export sess-1a2b > session.json
  heeler session export sess-1a2b -o session.json
  heeler session export sess-1a2b --workspace -o session.json     # with the files of each turn

In the file are the session's record and those of its jobs, every line of our log, and every line of
the agent's own file, which is what another machine needs to go on: all that was said, all that tools
gave. The fleet's secrets are taken out; what else is in there is for you to know before you give it
away. `session import` reads it.

With --workspace, the snapshots of its files are in it too, with the commits that they are based on:
for `session fork --workspace` and `session diff` there. Nothing is taken out of those: files may
hold secrets, also such as were deleted since. Of a fork that has not begun, what it goes on from is
exported.
Exit codes: 0 exported, 4 not found, 5 refused: there is no snapshot for --workspace.";

/// How many jobs are asked for at a time.
const JOBS_PER_PAGE: usize = 1_000;

/// Arguments of `session export`.
#[derive(Args)]
pub(crate) struct ExportArgs {
    /// The session; a beginning of its id will do while only one begins so
    #[arg(add = cli::sessions())]
    id: String,
    /// Where to write it [default: standard output]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<Utf8PathBuf>,
    /// With the snapshots of its files, which may hold secrets
    #[arg(short = 'W', long)]
    workspace: bool,
}

/// Exports a session.
pub(crate) fn run(global: &Global, args: &ExportArgs) -> Outcome {
    let place = Place::find(global)?;
    let session = super::find(&place, &args.id)?;
    let jobs = jobs_of(&place.reader_for("session", &args.id)?, &session)?;
    let log = place.dir()?.session_log_path(place.home.as_deref(), &session);
    let log = log.filter(|log| log.is_file());
    let fleets = Fleets::of(&place)?;
    // A fork that has not begun is known to the agent only as its source.
    let source = session.fork.as_ref().map(|fork| &fork.source);
    let id = source.or(session.agent_session_id.as_ref());
    let own = id.and_then(|id| fleets.own_file(&session, id)).filter(|own| own.is_file());
    let files = match args.workspace {
        true => Files::of(&place.dir()?, &session, log.as_deref())?,
        false => Files::default(),
    };
    if args.workspace && !place.quiet {
        files.warn()?;
    }
    let redactor = Redactor::new(&fleets.secrets());
    let export = Export {
        session: &session,
        jobs: &jobs,
        log: log.as_deref(),
        own: own.as_deref().map(|path| OwnFile { path, fork: session.fork.as_ref() }),
        workspace: files.repositories.iter().map(repository).collect(),
        redactor: &redactor,
    };
    let sums = match &args.output {
        None => {
            let mut out = BufWriter::new(io::stdout().lock());
            let sums = write(export, &mut out)?;
            out.flush()?;
            sums
        }
        Some(file) => {
            let sums = to_file(&place.here.join(file), export)?;
            let lines = output::counted(sums.events.lines, "row");
            output::note(&format!("{} with {lines} is in {file}", session.id))?;
            sums
        }
    };
    if sums.own.is_none() && !place.quiet {
        let why = match &session.fork {
            Some(fork) => format!("the agent's own record of {} is gone", fork.source),
            None => "the agent's own record of it is gone, or it keeps none".to_owned(),
        };
        output::note(&format!("another machine can read the session but not go on: {why}"))?;
    }
    Ok(())
}

/// The snapshots that are exported.
#[derive(Default)]
struct Files {
    /// By repository, each named by the session and its commit.
    repositories: Vec<(Snapshots, Vec<(SnapshotName, Commit)>)>,
    /// How many the log names that are not kept any more.
    gone: u64,
}

impl Files {
    /// Finds the snapshots that a session's log names.
    fn of(dir: &StateDir, session: &Session, log: Option<&Utf8Path>) -> Outcome<Files> {
        let failed = |error| Failure::new(Code::Failed, error);
        let notes = log.map(snapshots).transpose().map_err(failed)?.unwrap_or_default();
        let id = session.agent_session_id.as_ref().map_or("", |id| id.as_str());
        let mut wanted: BTreeMap<String, BTreeSet<Commit>> = BTreeMap::new();
        for NotedSnapshot { note, .. } in notes {
            let commit = Commit::parse(&note.commit);
            wanted.entry(note.repository).or_default().extend(commit);
        }
        let mut files = Files::default();
        for (key, commits) in wanted {
            let found = match Snapshots::open_key(&dir.workspaces(), &key) {
                Ok(found) => found,
                Err(SnapshotError::NoRepository { .. }) => {
                    files.gone += commits.len() as u64;
                    continue;
                }
                Err(error) => return Err(Failure::new(Code::Failed, error)),
            };
            let kept = found.list(None).map_err(|error| Failure::new(Code::Failed, error))?;
            let kept: BTreeSet<Commit> = kept.into_iter().map(|(_, commit)| commit).collect();
            files.gone += commits.difference(&kept).count() as u64;
            let name = |commit: &Commit| SnapshotName::parse(&format!("{id}/{commit}")).ok();
            let named = commits.intersection(&kept);
            let named: Vec<_> = named.filter_map(|it| Some((name(it)?, it.clone()))).collect();
            if !named.is_empty() {
                files.repositories.push((found, named));
            }
        }
        match files.repositories.is_empty() {
            true => Err(super::diff::no_snapshot(session)),
            false => Ok(files),
        }
    }

    fn warn(&self) -> Outcome {
        let count: usize = self.repositories.iter().map(|(_, named)| named.len()).sum();
        let what = output::counted(count as u64, "snapshot");
        let words = "hold the files as they were and the commits below them: know what is in there \
                     before you give it away, nothing is taken out";
        output::complain(format!("warning: {what} may hold secrets: they {words}"))?;
        match self.gone {
            0 => Ok(()),
            gone => {
                let gone = output::counted(gone, "snapshot");
                Ok(output::note(&format!("{gone} of this session are not kept any more"))?)
            }
        }
    }
}

fn repository((from, named): &(Snapshots, Vec<(SnapshotName, Commit)>)) -> Repository<'_> {
    let write = move |to: &mut dyn io::Write| from.export(named, to).map_err(io::Error::other);
    Repository { key: from.key().to_owned(), write: Box::new(write) }
}

fn write(export: Export<'_>, out: &mut dyn io::Write) -> Outcome<Sums> {
    bundle::write(export, out).map_err(|error| match error {
        // Whoever reads it may have had enough.
        bundle::ExportError::Write(error) => Failure::from(error),
        error => Failure::new(Code::Failed, error),
    })
}

/// Writes a file, which appears under its name whole.
fn to_file(file: &Utf8Path, export: Export<'_>) -> Outcome<Sums> {
    let mut temp = tempfile::NamedTempFile::new_in(beside(file))?;
    let mut out = BufWriter::new(&mut temp);
    let sums = write(export, &mut out)?;
    out.flush()?;
    drop(out);
    temp.as_file().sync_all()?;
    temp.persist(file).map_err(|error| error.error)?;
    Ok(sums)
}

fn jobs_of(reader: &Reader, session: &Session) -> Outcome<Vec<Value>> {
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
