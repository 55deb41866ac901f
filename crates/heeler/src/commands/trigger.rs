//! `heeler trigger`: asks an agent to do something, shows it at work, ends with its outcome.
//!
//! The job is conducted by a process of its own, so that closing the terminal or killing this
//! command loses nothing.

mod report;

use std::io::{IsTerminal as _, Read as _};

use camino::{Utf8Path, Utf8PathBuf};
use clap::Args;
use heeler_engine::{
    Conductor, Fleet, Notice, PrepareError, Refusal, Surroundings, launch_conductor, prepare,
    sockets,
};
use heeler_model::config::{Agent, Durability, Loaded, Runtime};
use heeler_model::session_choice::Wish;
use heeler_model::{AgentSessionId, JobId, RunId, Wanted};
use heeler_store::{LookupError, Reader};
use serde_json::json;

use crate::cli::{self, Global};
use crate::failure::{Code, Failure, Outcome};
use crate::fleet;
use crate::live::{self, Keyboard, Listener, Show, Watch};
use crate::output;
use crate::place::{self, CONFIG_NAMES, Place, beside};

/// The longest prompt that is read from standard input.
const PROMPT_BYTES_MAX: u64 = 16 << 20;

/// What the help shows at its end.
pub(crate) const EXAMPLES: &str = "Examples:
  heeler trigger coder -p 'Fix the failing test'
  git diff | heeler trigger reviewer -p - > review.md
  heeler trigger coder --session sess-1a2b -p 'And the next one'
  id=$(heeler trigger coder -p 'Clean up' --detach -q); heeler jobs logs $id -f

The agent's words go to stdout, what it does to stderr. On a terminal its questions are put to you,
also with `-p -`; elsewhere they are denied. Ctrl-C cancels the job, twice ends it at once.

Exit codes:
  0    the job succeeded, or was started with --detach
  1    it failed
  2    the command line or the configuration is wrong
  4    there is no such agent, schedule or session
  5    refused: the session is busy, or as many jobs run as may
  130  interrupted by Ctrl-C";

/// The part of the help that has what becomes of the conversation.
const SESSION: &str = "Session options";
/// The part of the help that has what is printed.
const OUTPUT: &str = "Output options";

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
    /// Continue this session; a beginning of its id will do while only one begins so
    #[arg(
        long, value_name = "ID", help_heading = SESSION, add = cli::sessions(),
        conflicts_with_all = ["fresh", "channel"]
    )]
    session: Option<String>,
    /// Leave the session as it is and go on in a new one with its history
    #[arg(
        long, help_heading = SESSION, requires = "session",
        conflicts_with_all = ["fresh", "channel"]
    )]
    fork: bool,
    /// Begin a new session
    #[arg(long, help_heading = SESSION)]
    fresh: bool,
    /// Continue the session of this chat channel
    #[arg(long, value_name = "ID", help_heading = SESSION)]
    channel: Option<String>,
    /// Print the job's id and return at once; the job goes on
    #[arg(long, help_heading = OUTPUT)]
    detach: bool,
    /// Print one JSON document when the job has ended; its `result` is the agent's last words, whole
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
    /// Also write the output as text to `jobs/JOB/output.log` in the state directory
    #[arg(long, help_heading = OUTPUT)]
    output_file: bool,
    /// What happens anyway (herdctl's spelling)
    #[arg(short = 'w', long, hide = true, conflicts_with = "detach")]
    wait: bool,
}

/// Triggers, watches, and reports.
pub(crate) fn run(global: &Global, args: &TriggerArgs) -> Outcome {
    let place = Place::find(global)?;
    let loaded = fleet::load(&place)?;
    let agent = find_agent(&loaded, &args.agent)?;
    place.bring_up_to_date()?;
    let reader = place.reader()?;
    let session = wish(args, agent, reader.as_ref())?;
    drop(reader);
    let keyboard = keyboard(global, args);
    let attended = keyboard.is_some();
    let request = prepare_request(&place, &loaded, agent, args, session, attended)?;
    let engine = place::engine(&place.state_dir, &place.env)?;
    let mut listener = Listener::new()?;
    let conductor = launch_conductor(&engine, &request).map_err(anyhow::Error::from)?;
    drop(request);
    tracing::debug!("the job is conducted by process {}", conductor.pid());
    let (job, run) = started(args, &engine, &mut listener, conductor)?;
    tracing::info!("the run's folder is {}", engine.dir.run(run));
    tracing::info!("the job's transcript is {}", engine.dir.log_of(&job));
    if args.detach {
        return detached(global, args, &job);
    }
    let show = if args.json || global.quiet { Show::Nothing } else { Show::All };
    let is_command = matches!(agent.runtime, Runtime::Command { .. });
    let (agent, term) = (agent.name.as_str(), place.env.get("TERM").map(String::as_str));
    let watch = Watch { fleet: &engine, agent, job, run, keyboard, show, is_command, term };
    let seen = live::watch(&watch, listener)?;
    let job = report::on_record(&engine, &watch.job, &seen)?;
    report::report(global, args, &place, &engine, &job, &seen)
}

/// Returns where a person answers: somebody can be asked where both sides of a terminal are there.
/// Where the prompt comes on standard input, that is the terminal itself.
fn keyboard(global: &Global, args: &TriggerArgs) -> Option<Keyboard> {
    let is_shown = std::io::stderr().is_terminal();
    if !is_shown || args.json || args.detach || global.quiet {
        return None;
    }
    let found = match args.prompt.as_deref() {
        Some("-") => Keyboard::of_terminal(),
        _ if std::io::stdin().is_terminal() => Keyboard::of_stdin(),
        _ => return None,
    };
    found.inspect_err(|error| tracing::debug!(%error, "nobody can be asked here")).ok()
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
fn wish(args: &TriggerArgs, agent: &Agent, reader: Option<&Reader>) -> Outcome<Wish> {
    let Some(text) = &args.session else {
        return Ok(if args.fresh { Wish::Fresh } else { Wish::Usual });
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
        Err(error @ LookupError::Ambiguous { .. }) => {
            let list = format!("heeler session list --agent {}", agent.name);
            Err(Failure::new(Code::Usage, error).hint(list))
        }
        Err(error) => Err(error.into()),
    }?;
    Ok(if args.fork { Wish::Fork { source: id, at: None } } else { Wish::Given { id } })
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
    session: Wish,
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
        schedule: args.schedule.clone(),
        session,
        channel: args.channel.clone(),
        output_file: args.output_file,
        attended,
        ..Wanted::of(agent.name.clone())
    };
    let around = Surroundings {
        env: &env,
        home,
        sockets: &sockets,
        durability: fleet.map_or(Durability::Interval, |fleet| fleet.durability),
        max_concurrent: fleet.and_then(|fleet| fleet.max_concurrent),
        agents: &loaded.agents,
        protected: &protected(place, loaded, home)?,
    };
    prepare(agent, &wanted, &around).map_err(|error| {
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
    args: &TriggerArgs,
    engine: &Fleet,
    listener: &mut Listener,
    conductor: Conductor,
) -> Outcome<(JobId, RunId)> {
    match listener.first_notice(conductor) {
        Some(Notice::Started { job, run }) => Ok((job, run)),
        Some(Notice::Refused { kind, reason }) => {
            let code = match kind {
                Refusal::NoSession => Code::NotFound,
                Refusal::Trouble => Code::Failed,
                _ => Code::Refused,
            };
            Err(Failure::message(code, reason).hint(ways_out(args, engine, &kind)))
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

/// Says what can be done about what stands in the way.
fn ways_out(args: &TriggerArgs, engine: &Fleet, refusal: &Refusal) -> String {
    let agent = &args.agent;
    match refusal {
        Refusal::StateBusy => "the same again in a moment".to_owned(),
        Refusal::AtLimit { running } => {
            let running: Vec<&str> = running.iter().map(JobId::as_str).collect();
            let running = running.join(" ");
            format!("heeler jobs cancel {running}, or raise `max_concurrent` in the config")
        }
        Refusal::SessionBusy { job } => {
            let instead = match &args.session {
                Some(id) => format!("heeler trigger {agent} --session {id} --fork (in a copy)"),
                None => format!("heeler trigger {agent} --fresh (in a new session)"),
            };
            match job.as_ref().filter(|job| is_ours(engine, job)) {
                Some(job) => format!("heeler jobs cancel {job}, or {instead}"),
                None => instead,
            }
        }
        Refusal::NoSession | Refusal::OthersSession => "heeler session list".to_owned(),
        Refusal::Trouble => "heeler doctor".to_owned(),
    }
}

/// A session may be held by a job of another fleet, which cannot be cancelled from here.
fn is_ours(engine: &Fleet, job: &JobId) -> bool {
    Reader::open(&engine.dir).is_ok_and(|reader| matches!(reader.job(job), Ok(Some(_))))
}

fn detached(global: &Global, args: &TriggerArgs, job: &JobId) -> Outcome {
    if args.json {
        return Ok(output::json(&json!({ "job": { "id": job, "status": "running" } }))?);
    }
    output::line(job.as_str())?;
    if !global.quiet {
        // The job runs, whether or not this remark can be written.
        drop(output::note(&format!("follow it: heeler jobs logs {job} -f")));
    }
    Ok(())
}
