//! `heeler trigger`: asks an agent to do something, shows it at work, ends with its outcome.
//!
//! The job is conducted by a process of its own, so that closing the terminal or killing this
//! command loses nothing.

use std::io::{IsTerminal as _, Read as _};
use std::time::{Duration, Instant};

use anstyle::{AnsiColor, Style};
use camino::{Utf8Path, Utf8PathBuf};
use clap::Args;
use heeler_engine::{
    Conductor, Fleet, Notice, PrepareError, Refusal, SessionWish, Surroundings, Wanted,
    launch_conductor, prepare, sockets,
};
use heeler_model::config::{Agent, Durability, Loaded};
use heeler_model::run::{ErrorClass, RunError};
use heeler_model::{AgentSessionId, Job, JobId, JobStatus, RunId, TriggerType};
use heeler_store::{LookupError, Reader, StateDir};
use serde_json::json;

use crate::cli::{self, Global};
use crate::commands::{cancel, jobs};
use crate::failure::{Code, Failure, Outcome};
use crate::fleet;
use crate::live::{self, Listener, Seen, Show, Watch};
use crate::output::{self, Text};
use crate::place::{self, CONFIG_NAMES, Place, beside};

/// The longest prompt that is read from standard input.
const PROMPT_BYTES_MAX: u64 = 16 << 20;
/// How long a job whose conductor died is waited for after its run has ended.
const RECORD_WAIT: Duration = Duration::from_secs(60);
/// How often such a job is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What the help shows at its end.
pub(crate) const EXAMPLES: &str = "Examples:\n  \
    heeler trigger greeter\n  \
    heeler trigger coder -p 'Fix the failing test'\n  \
    git diff | heeler trigger reviewer -p -\n  \
    heeler trigger coder -p 'Go on' --session sess-1a2b3c4d\n\n\
    The agent's words go to stdout, what it does to stderr. Ctrl-C cancels the job, twice ends it at\n\
    once. Exit codes: 0 the job succeeded, 1 it failed, 5 refused (busy), 130 interrupted.";

/// Arguments of `trigger`.
#[derive(Args)]
pub(crate) struct TriggerArgs {
    /// The agent
    #[arg(add = cli::agents())]
    agent: String,
    /// What to ask; `-` reads it from standard input [default: the schedule's or the agent's prompt]
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Use the prompt, session and limits of this schedule
    #[arg(short = 'S', long, value_name = "NAME")]
    schedule: Option<String>,
    /// Continue this session; a beginning will do while it is unique
    #[arg(long, value_name = "ID", conflicts_with_all = ["fresh", "channel"], add = cli::sessions())]
    session: Option<String>,
    /// Leave the session as it is and go on in a new one with its history
    #[arg(long, requires = "session", conflicts_with_all = ["fresh", "channel"])]
    fork: bool,
    /// Begin a new session
    #[arg(long)]
    fresh: bool,
    /// Continue the session of this chat channel
    #[arg(long, value_name = "ID")]
    channel: Option<String>,
    /// Also write the output as text to `jobs/JOB/output.log`
    #[arg(long)]
    output_file: bool,
    /// Print the job's id and return at once
    #[arg(long)]
    detach: bool,
    /// What happens anyway (herdctl's spelling)
    #[arg(short = 'w', long, hide = true, conflicts_with = "detach")]
    wait: bool,
    /// Print one JSON document when the job has ended
    #[arg(long)]
    pub(crate) json: bool,
}

/// Triggers, watches, and reports.
pub(crate) fn run(global: &Global, args: &TriggerArgs) -> Outcome {
    let place = Place::find(global)?;
    let loaded = fleet::load(&place)?;
    let agent = find_agent(&loaded, &args.agent)?;
    place.bring_up_to_date()?;
    let reader = place.reader()?;
    let session = wish(args, reader.as_ref())?;
    drop(reader);
    let attended = is_attended(global, args);
    let request = prepare_request(&place, &loaded, agent, args, session, attended)?;
    let engine = place::engine(&place.state_dir, &place.env)?;
    let mut listener = Listener::new()?;
    let conductor = launch_conductor(&engine, &request).map_err(anyhow::Error::from)?;
    drop(request);
    let (job, run) = started(&engine, &mut listener, conductor)?;
    if args.detach {
        return detached(args, &job);
    }
    let show = if args.json || global.quiet { Show::Nothing } else { Show::All };
    let (agent, term) = (agent.name.as_str(), place.env.get("TERM").map(String::as_str));
    let watch = Watch { fleet: &engine, agent, job, run, attended, show, term };
    let seen = live::watch(&watch, listener)?;
    let job = on_record(&engine, &watch.job, &seen)?;
    report(global, args, &place, &engine, &job, &seen)
}

/// Somebody can be asked where both sides of a terminal are there.
fn is_attended(global: &Global, args: &TriggerArgs) -> bool {
    let hears = std::io::stdin().is_terminal() && args.prompt.as_deref() != Some("-");
    hears && std::io::stderr().is_terminal() && !(args.json || args.detach || global.quiet)
}

/// Finds an agent by its qualified name, or by its own name while that is unique.
fn find_agent<'l>(loaded: &'l Loaded, name: &str) -> Outcome<&'l Agent> {
    if let Some(agent) = loaded.agents.iter().find(|agent| agent.name.as_str() == name) {
        return Ok(agent);
    }
    let local: Vec<&Agent> =
        loaded.agents.iter().filter(|agent| agent.name.local() == name).collect();
    match local[..] {
        [one] => Ok(one),
        [] => {
            let message = format!("there is no agent `{name}`");
            let failure = Failure::message(Code::NotFound, message);
            Err(match nearest(loaded, name) {
                Some(near) => failure.hint(format!("heeler trigger {near}")),
                None => failure.hint("heeler status lists them"),
            })
        }
        _ => {
            let names: Vec<&str> = local.iter().map(|agent| agent.name.as_str()).collect();
            let message = format!("`{name}` may be any of: {}", names.join(", "));
            Err(Failure::message(Code::Usage, message))
        }
    }
}

fn nearest<'l>(loaded: &'l Loaded, name: &str) -> Option<&'l str> {
    let names = loaded.agents.iter().map(|agent| agent.name.as_str());
    let near = names.map(|known| (strsim::jaro_winkler(known, name), known));
    let near = near.filter(|(likeness, _)| *likeness > 0.75);
    near.max_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, known)| known)
}

/// Says which session is asked for; one that we do not know is trusted if its id is whole.
fn wish(args: &TriggerArgs, reader: Option<&Reader>) -> Outcome<SessionWish> {
    let Some(text) = &args.session else {
        return Ok(if args.fresh { SessionWish::Fresh } else { SessionWish::ByRules });
    };
    let found = reader.map(|reader| reader.find_session(text)).transpose();
    let id = match found {
        Ok(Some(session)) => match session.agent_session_id {
            Some(id) => Ok(id),
            None => {
                let message =
                    format!("{} was never used, so there is nothing to continue", session.id);
                Err(Failure::message(Code::Refused, message))
            }
        },
        Ok(None) => trusted(text).ok_or_else(|| unknown_session(text)),
        Err(LookupError::Unknown { .. }) => trusted(text).ok_or_else(|| unknown_session(text)),
        Err(error) => Err(error.into()),
    }?;
    Ok(if args.fork { SessionWish::Fork { source: id } } else { SessionWish::Given { id } })
}

fn trusted(text: &str) -> Option<AgentSessionId> {
    const UUID_LEN: usize = 36;
    let id: AgentSessionId = text.parse().ok()?;
    let is_whole = text.len() == UUID_LEN && text.bytes().filter(|byte| *byte == b'-').count() == 4;
    is_whole.then_some(id)
}

fn unknown_session(text: &str) -> Failure {
    Failure::message(Code::NotFound, format!("there is no session `{text}`"))
        .hint("heeler session list")
}

fn prepare_request(
    place: &Place,
    loaded: &Loaded,
    agent: &Agent,
    args: &TriggerArgs,
    session: SessionWish,
    attended: bool,
) -> Outcome<heeler_engine::JobRequest> {
    let home = place.home.as_deref().ok_or_else(place::no_home)?;
    let env = fleet::environment(place, place.config_file()?)?;
    let folder = |name: &str| place.env.get(name).map(|path| Utf8Path::new(path.as_str()));
    let temp: Vec<&Utf8Path> = folder("TMPDIR").into_iter().collect();
    let sockets = sockets(folder("XDG_RUNTIME_DIR"), &temp)
        .map_err(|error| Failure::new(Code::Refused, error))?;
    let fleet = loaded.fleets.first();
    let wanted = Wanted {
        prompt: args.prompt.as_deref().map(read_prompt).transpose()?,
        schedule: args.schedule.as_deref(),
        session,
        channel: args.channel.clone(),
        output_file: args.output_file,
        attended,
        trigger: TriggerType::Manual,
    };
    let around = Surroundings {
        env: &env,
        home,
        sockets: &sockets,
        durability: fleet.map_or(Durability::Interval, |fleet| fleet.durability),
        max_concurrent: fleet.and_then(|fleet| fleet.max_concurrent),
        protected: &protected(place, loaded, home)?,
    };
    prepare(agent, wanted, &around).map_err(|error| {
        let code = match &error {
            PrepareError::Schedule { .. } => Code::NotFound,
            PrepareError::Isolation { .. } => Code::Refused,
            _ => Code::Usage,
        };
        Failure::new(code, error)
    })
}

/// Returns what decides what agents may do, or holds what they did, by every name that it has: the
/// config, also one that would be found before it, the `.env` beside it, state and locks.
fn protected(place: &Place, loaded: &Loaded, home: &Utf8Path) -> Outcome<Vec<Utf8PathBuf>> {
    let folder = beside(place.config_file()?);
    let names = CONFIG_NAMES.iter().map(|(name, _)| *name).chain([".env"]);
    let mut paths: Vec<Utf8PathBuf> = names.map(|name| folder.join(name)).collect();
    paths.extend(loaded.files.iter().cloned());
    paths.extend([place.state_dir.clone(), home.to_owned()]);
    let real: Vec<Utf8PathBuf> = paths.iter().filter_map(|path| real(path)).collect();
    paths.extend(real);
    paths.sort();
    paths.dedup();
    Ok(paths)
}

/// Returns a path without links in it. The file itself need not exist.
fn real(path: &Utf8Path) -> Option<Utf8PathBuf> {
    let folder = || Some(path.parent()?.canonicalize_utf8().ok()?.join(path.file_name()?));
    path.canonicalize_utf8().ok().or_else(folder)
}

fn read_prompt(given: &str) -> Outcome<String> {
    if given != "-" {
        return Ok(given.to_owned());
    }
    let mut bytes = Vec::new();
    std::io::stdin().lock().take(PROMPT_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > PROMPT_BYTES_MAX {
        let message = format!("the prompt is longer than {PROMPT_BYTES_MAX} bytes");
        return Err(Failure::message(Code::Usage, message));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let message = format!("the prompt on standard input is not UTF-8 (at byte {at})");
        Failure::message(Code::Usage, message).hint("iconv -t UTF-8 converts it")
    })?;
    Ok(text.trim_end().to_owned())
}

/// Waits until the job is on record, or refused.
fn started(
    engine: &Fleet,
    listener: &mut Listener,
    conductor: Conductor,
) -> Outcome<(JobId, RunId)> {
    match listener.first_notice(conductor) {
        Some(Notice::Started { job, run }) => Ok((job, run)),
        Some(Notice::Refused { kind, reason }) => {
            let (code, hint) = match kind {
                Refusal::Busy => (Code::Refused, "heeler jobs --status running"),
                Refusal::NoSession => (Code::NotFound, "heeler session list"),
                Refusal::OthersSession => (Code::Refused, "heeler session list"),
                Refusal::Trouble => (Code::Failed, "heeler doctor"),
            };
            Err(Failure::message(code, reason).hint(hint))
        }
        _ if listener.was_interrupted() => {
            Err(Failure::message(Code::Interrupted, "interrupted before the job was started"))
        }
        Some(Notice::Ended { .. }) | None => {
            let log = engine.dir.logs().join("heeler.log");
            let message = format!("the job was not started; the end of {log} says why");
            Err(Failure::message(Code::Failed, message))
        }
    }
}

fn detached(args: &TriggerArgs, job: &JobId) -> Outcome {
    if args.json {
        return Ok(output::json(&json!({ "job": { "id": job, "status": "running" } }))?);
    }
    output::line(job.as_str())?;
    // The job runs, whether or not this remark can be written.
    drop(output::note(&format!("follow it: heeler jobs logs {job} -f")));
    Ok(())
}

/// Returns the job once it is on record how it ended. Where its conductor died, this process does
/// its work.
fn on_record(engine: &Fleet, id: &JobId, seen: &Seen) -> Outcome<Job> {
    let deadline = Instant::now() + RECORD_WAIT;
    loop {
        let job = Reader::open(&engine.dir)?.job(id)?;
        let job = job.ok_or_else(|| {
            Failure::message(Code::Failed, format!("the record of job {id} is gone"))
        })?;
        let left = seen.interrupts > 2 || Instant::now() >= deadline;
        if job.head.status.is_final() || seen.recorded || left {
            return Ok(job);
        }
        // Ctrl-C may have come before there was a run that could hear it.
        if seen.interrupts > 0 {
            cancel::wish(engine, id)?;
        }
        if let Some(why) = cancel::settle(engine, "trigger", id)? {
            // Whether or not this can be written, the record says as much.
            drop(output::note(&format!("cannot find out how the run ended: {why}")));
            return Ok(job);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn report(
    global: &Global,
    args: &TriggerArgs,
    place: &Place,
    engine: &Fleet,
    job: &Job,
    seen: &Seen,
) -> Outcome {
    let reader = Reader::open(&engine.dir)?;
    // What came of the job decides how we end, whether or not somebody hears of it.
    if let Err(failure) = tell(global, args, place, &reader, job, seen) {
        tracing::debug!(error = ?failure.error, "cannot tell what came of the job");
    }
    let success = job.head.status == JobStatus::Completed;
    match (success, seen.interrupts > 0) {
        (true, _) => Ok(()),
        (false, true) => Err(Failure::silent(Code::Interrupted)),
        (false, false) if is_busy(&reader, &engine.dir, job)? => {
            Err(Failure::silent(Code::Refused))
        }
        (false, false) => Err(Failure::silent(Code::Failed)),
    }
}

/// Prints what came of the job.
fn tell(
    global: &Global,
    args: &TriggerArgs,
    place: &Place,
    reader: &Reader,
    job: &Job,
    seen: &Seen,
) -> Outcome {
    if args.json {
        let success = job.head.status == JobStatus::Completed;
        let job = jobs::full_json(job, reader, place)?;
        return Ok(output::json(&json!({ "success": success, "job": job }))?);
    }
    if global.quiet && job.head.status == JobStatus::Completed {
        job.head.summary.as_deref().map(output::line).transpose()?;
    }
    say_outcome(global, args, job, reader, &place.dir()?, seen)
}

/// Says whether the job failed because another run was at its session.
fn is_busy(reader: &Reader, dir: &StateDir, job: &Job) -> Outcome<bool> {
    let error = jobs::last_error(reader, dir, &job.head.id)?;
    Ok(error.is_some_and(|error| error.class == ErrorClass::SessionBusy))
}

/// Says how the job ended, what it cost, and what to do next.
fn say_outcome(
    global: &Global,
    args: &TriggerArgs,
    job: &Job,
    reader: &Reader,
    dir: &StateDir,
    seen: &Seen,
) -> Outcome {
    let head = &job.head;
    let success = head.status == JobStatus::Completed;
    if global.quiet && success {
        return Ok(());
    }
    let sign = match head.status {
        JobStatus::Completed => Text::styled(AnsiColor::Green.on_default(), "✓ completed"),
        JobStatus::Cancelled => Text::styled(AnsiColor::Yellow.on_default(), "✗ cancelled"),
        JobStatus::Failed => Text::styled(AnsiColor::Red.on_default(), "✗ failed"),
        JobStatus::Pending | JobStatus::Running => {
            Text::styled(AnsiColor::Cyan.on_default(), "· still running")
        }
    };
    let took = head.duration_ms.map(|took| format!(" in {}", output::duration(took)));
    let cost = output::price(head.cost_usd).map(|cost| format!(", {cost}"));
    let session = match &head.session_id {
        Some(id) => reader.session_by_agent_id(id)?,
        None => None,
    };
    let resumable = session.filter(|session| session.message_count > 0);
    let in_session = resumable.as_ref().map(|session| format!(", {}", session.id));
    let rest = [took, cost, in_session].into_iter().flatten().collect::<String>();
    output::complain(sign.then(rest))?;
    if seen.unasked > 0 {
        let were = if seen.unasked == 1 { "was" } else { "were" };
        let denied = output::counted(seen.unasked, "request");
        output::complain(format!(
            "  {denied} {were} denied: nobody could be asked; see allowed_tools and permission_mode"
        ))?;
    }
    let error = jobs::last_error(reader, dir, &head.id)?;
    if head.status == JobStatus::Failed {
        say_error(error.as_ref(), job, seen)?;
    }
    let goes_on = match head.status {
        JobStatus::Failed => error.is_some_and(|error| was_cut_off(error.class)),
        _ => head.status.is_final(),
    };
    let next = match (head.status, &resumable) {
        (_, Some(session)) if goes_on => {
            format!("heeler trigger {} --session {} -p '…'", args.agent, session.id)
        }
        (JobStatus::Completed, None) => format!("heeler jobs logs {}", head.id),
        (JobStatus::Running | JobStatus::Pending, _) => format!("heeler jobs logs {} -f", head.id),
        _ => format!("heeler jobs show {}", head.id),
    };
    Ok(output::complain(Text::styled(Style::new().dimmed(), &format!("  next: {next}")))?)
}

/// Says whether nothing is wrong with the session: it can just go on.
fn was_cut_off(class: ErrorClass) -> bool {
    matches!(class, ErrorClass::Budget | ErrorClass::MaxTurns | ErrorClass::Interrupted)
}

/// Says what went wrong, unless that was shown already, and the cure.
fn say_error(error: Option<&RunError>, job: &Job, seen: &Seen) -> Outcome {
    let message = error.map(|error| error.message.as_str()).or(job.error.as_deref());
    if let Some(message) = message.filter(|message| seen.error.as_deref() != Some(message)) {
        output::complain(format!("  {message}"))?;
    }
    match error.map(|error| &error.cure).filter(|cure| !cure.is_empty()) {
        Some(cure) => Ok(output::complain(format!("  cure: {cure}"))?),
        None => Ok(()),
    }
}
