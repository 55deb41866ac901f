//! `heeler session export`: a session in one file.

use std::io::{self, BufWriter, Write as _};

use camino::{Utf8Path, Utf8PathBuf};
use clap::{Args, ValueHint};
use heeler_model::redact::Redactor;
use heeler_model::{Session, iso_millis};
use heeler_store::bundle::{self, Export, Sums};
use heeler_store::{JobCursor, Reader};
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

In the file are the session's record and those of its jobs, every line of our log, and every line of
the agent's own file, which is what another machine needs to go on: all that was said, all that tools
gave. The fleet's secrets are taken out; what else is in there is for you to know before you give it
away. `session import` reads it.";

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
}

/// Exports a session.
pub(crate) fn run(global: &Global, args: &ExportArgs) -> Outcome {
    let place = Place::find(global)?;
    let reader = place.reader_for("session", &args.id)?;
    let session = reader.find_session(&args.id)?;
    let jobs = jobs_of(&reader, &session)?;
    drop(reader);
    let log = place.dir()?.session_log_path(place.home.as_deref(), &session);
    let log = log.filter(|log| log.is_file());
    let fleets = Fleets::of(&place)?;
    let id = session.agent_session_id.as_ref();
    let own = id.and_then(|id| fleets.own_file(&session, id)).filter(|own| own.is_file());
    let redactor = Redactor::new(&fleets.secrets());
    let export = Export {
        session: &session,
        jobs: &jobs,
        log: log.as_deref(),
        own: own.as_deref(),
        workspace: None,
        redactor: &redactor,
    };
    let has_own = own.is_some();
    match &args.output {
        None => {
            let mut out = BufWriter::new(io::stdout().lock());
            write(export, &mut out)?;
            out.flush()?;
        }
        Some(file) => {
            let sums = to_file(&place.here.join(file), export)?;
            let lines = output::counted(sums.events.lines, "row");
            output::note(&format!("{} with {lines} is in {file}", session.id))?;
        }
    }
    if !has_own && !place.quiet {
        let why = "the agent's own record of it is gone, or it keeps none";
        output::note(&format!("another machine can read the session but not go on: {why}"))?;
    }
    Ok(())
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
