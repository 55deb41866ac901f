//! The daemon of a fleet, as commands see it: found, started in the background, asked.
//!
//! Whether one runs is told by the state's lock; `daemon.json` only says where it listens. Commands
//! that write use [`ask`]; those that make no sense without a daemon use [`require`].

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::{Duration, Instant};

use heeler_engine::{
    Answer, Command, DaemonFile, DaemonMode, ScheduleChange, Stopping, WorkflowOrder, launch_daemon,
};
use heeler_query::told::Told;
use heeler_server::{Client, ClientError};
use heeler_transcript::LockFile;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::failure::{Code, Failure, Outcome};
use crate::fleet;
use crate::output;
use crate::place::{self, Place};

/// How long a command waits for a daemon while another process writes the state.
const START_WAIT: Duration = Duration::from_secs(60);

/// How long a daemon that has said that it ends may take to do so.
const END_WAIT: Duration = Duration::from_secs(30);

/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How long a daemon may take to answer what it can answer at once.
const ANSWER_WAIT: Duration = Duration::from_secs(60);

/// What a daemon that was started in the background tells whoever started it, once.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "daemon")]
pub(crate) enum Readiness {
    /// It listens.
    Ready {
        /// Its process.
        pid: u32,
    },
    /// Another process writes the state.
    Held {
        /// Who, in words.
        holder: String,
    },
    /// It cannot start.
    Failed {
        /// The exit code.
        code: u8,
        /// Why.
        message: String,
        /// What to do about it.
        hint: Option<String>,
    },
}

/// Connects to the fleet's daemon; `None` if there is none.
pub(crate) fn connect(place: &Place) -> Outcome<Option<Client>> {
    let Some(file) = file(place)? else { return Ok(None) };
    match Client::connect(&file.socket) {
        Ok(client) => Ok(Some(client)),
        // Nothing was asked yet: it has ended, or is just doing so.
        Err(ClientError::NoDaemon { .. } | ClientError::Ending | ClientError::Io { .. }) => {
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Reads what the fleet's daemon says of itself, which may have died since.
pub(crate) fn file(place: &Place) -> Outcome<Option<DaemonFile>> {
    if !place.state_dir.is_dir() {
        return Ok(None);
    }
    DaemonFile::read(&place.dir()?).map_err(|error| Failure::new(Code::Failed, error))
}

/// Says whether a daemon runs that a person started.
pub(crate) fn is_permanent(place: &Place) -> Outcome<bool> {
    let is_permanent = file(place)?.is_some_and(|file| file.mode == DaemonMode::Permanent);
    Ok(is_permanent && connect(place)?.is_some())
}

/// Connects to the fleet's daemon, without which the command makes no sense.
pub(crate) fn require(place: &Place) -> Outcome<Client> {
    connect(place)?.ok_or_else(|| no_daemon(place))
}

/// Says that no daemon runs, or which process keeps it from running.
pub(crate) fn no_daemon(place: &Place) -> Failure {
    let message = match writer(place) {
        Ok(Some(writer)) => {
            format!("no daemon answers in {}; it is written to by {writer}", place.state_dir)
        }
        _ => format!("no daemon runs in {}", place.state_dir),
    };
    Failure::message(Code::NoDaemon, message).hint("heeler start")
}

/// Says who writes the state, in words; `None` if nobody does.
pub(crate) fn writer(place: &Place) -> Outcome<Option<String>> {
    if !place.state_dir.is_dir() {
        return Ok(None);
    }
    let held = LockFile::probe(&place.dir()?.lock()).map_err(anyhow::Error::from)?;
    Ok(held.map(|state| match state.holder {
        Some(holder) => holder.to_string(),
        None => "another process".to_owned(),
    }))
}

/// Asks the fleet's daemon; without one, one that ends when it is idle is started for it.
pub(crate) fn ask(place: &Place, command: &Command) -> Outcome<Answer> {
    ask_unless(place, command, &|| false)
}

/// The same, unless it is given up before the daemon has heard it.
pub(crate) fn ask_unless(
    place: &Place,
    command: &Command,
    is_given_up: &dyn Fn() -> bool,
) -> Outcome<Answer> {
    ask_as(place, command, None, is_given_up)
}

/// The same under a name of the request's own, under which it is done once: if the daemon dies over
/// it, the next one is asked.
pub(crate) fn ask_once(place: &Place, command: &Command, name: &str) -> Outcome<Answer> {
    ask_as(place, command, Some(name), &|| false)
}

fn ask_as(
    place: &Place,
    command: &Command,
    name: Option<&str>,
    is_given_up: &dyn Fn() -> bool,
) -> Outcome<Answer> {
    // An agent has an environment of its own, and its daemon is there.
    if starts_a_run(command) && !place.env.contains_key("HEELER_RUN") {
        replace_outdated(place)?;
    }
    // A run may need a clone first, which takes its time.
    let patience = (!starts_a_run(command)).then_some(ANSWER_WAIT);
    let deadline = Instant::now() + START_WAIT;
    loop {
        let mut daemon = connect_or_start_unless(place, is_given_up)?;
        let answer = daemon.ask_once(command, name, patience);
        let may_ask_again = match &answer {
            // It has done nothing; the next one will.
            Err(ClientError::Ending) => true,
            // If it was done, the next one says so.
            Err(ClientError::Io { .. }) => name.is_some(),
            _ => false,
        };
        if !may_ask_again || Instant::now() >= deadline {
            return Ok(answer?);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Says whether a command may make an agent start now, by the config and the environment of the
/// daemon.
fn starts_a_run(command: &Command) -> bool {
    let triggers = |change: &ScheduleChange| *change == ScheduleChange::Trigger;
    match command {
        Command::Trigger(_) | Command::Resume { .. } | Command::Retry { .. } => true,
        Command::Schedule { change, .. } => triggers(change),
        Command::Workflow { order, .. } => {
            matches!(order, WorkflowOrder::Run(_) | WorkflowOrder::Retry { .. })
        }
        _ => false,
    }
}

/// Lets a daemon that was started for an earlier command make way if the config or the environment
/// is another by now: whoever starts no daemon expects their own to count. Its jobs go on.
fn replace_outdated(place: &Place) -> Outcome {
    let Some(file) = file(place)?.filter(|file| file.mode == DaemonMode::UntilIdle) else {
        return Ok(());
    };
    match file.surroundings == Some(surroundings(place)?) {
        true => Ok(()),
        false => make_way(place),
    }
}

/// Variables that differ from one terminal to the next and mean nothing to an agent.
const PASSING_VARIABLES: [&str; 13] = [
    "_",
    "COLUMNS",
    "HEELER_LOG",
    "LINES",
    "OLDPWD",
    "PWD",
    "SHLVL",
    "SSH_CLIENT",
    "SSH_CONNECTION",
    "SSH_TTY",
    "TERM",
    "TMUX_PANE",
    "WINDOWID",
];

/// Tells the config and the environment of a command from others.
pub(crate) fn surroundings(place: &Place) -> Outcome<u64> {
    let mut hasher = DefaultHasher::new();
    let is_kept = |name: &str| !PASSING_VARIABLES.contains(&name);
    place.env.iter().filter(|(name, _)| is_kept(name)).for_each(|it| it.hash(&mut hasher));
    let Ok(file) = place.config_file() else { return Ok(hasher.finish()) };
    let loaded = fleet::try_load(place, file, &fleet::read_text)?;
    let mut files = loaded.map(|loaded| loaded.files).unwrap_or_default();
    files.push(place::beside(file).join(".env"));
    for file in files {
        file.hash(&mut hasher);
        let known = std::fs::metadata(&file).ok().map(|it| (it.len(), it.modified().ok()));
        known.hash(&mut hasher);
    }
    Ok(hasher.finish())
}

/// Asks a daemon that runs already.
pub(crate) fn ask_running(place: &Place, command: &Command) -> Outcome<Answer> {
    Ok(require(place)?.ask(command, Some(ANSWER_WAIT))?)
}

/// Connects to the fleet's daemon, or starts one that ends when it is idle.
///
/// Two commands may do so at once: the one whose daemon comes second finds the first one's. A daemon
/// that is connected to does not end by itself.
pub(crate) fn connect_or_start(place: &Place) -> Outcome<Client> {
    connect_or_start_unless(place, &|| false)
}

fn connect_or_start_unless(place: &Place, is_given_up: &dyn Fn() -> bool) -> Outcome<Client> {
    let deadline = Instant::now() + START_WAIT;
    loop {
        if is_given_up() {
            return Err(Failure::message(Code::Interrupted, "interrupted before it was asked"));
        }
        if let Some(client) = connect(place)? {
            return Ok(client);
        }
        // A directory that was named by mistake is not made.
        drop(place.reader()?);
        match launch(place, DaemonMode::UntilIdle)? {
            Readiness::Ready { .. } => {}
            Readiness::Held { .. } if Instant::now() < deadline => std::thread::sleep(LOOK_EVERY),
            Readiness::Held { holder } => return Err(second(place, &holder)),
            Readiness::Failed { code, message, hint } => return Err(failed(code, message, hint)),
        }
    }
}

/// Starts a daemon in the background and waits until it is ready.
pub(crate) fn launch(place: &Place, mode: DaemonMode) -> Outcome<Readiness> {
    let fleet = place::engine(&place.state_dir, &place.env)?;
    let state_dir = fleet.dir.root().to_owned();
    let mut args = vec!["start", "--in-background", "--state-dir", state_dir.as_str()];
    if let Some(config) = &place.config {
        args.extend(["--config", config.as_str()]);
    }
    if mode == DaemonMode::UntilIdle {
        args.push("--until-idle");
    }
    let env: Vec<(String, String)> = place.env.clone().into_iter().collect();
    let mut start = launch_daemon(&fleet, &args, &env).map_err(anyhow::Error::from)?;
    let line = start.line();
    match line.as_deref().map(serde_json::from_str) {
        Some(Ok(readiness)) => Ok(readiness),
        _ => {
            let log = fleet.dir.logs().join("heeler.log");
            let message = format!("the daemon did not start; the end of {log} says why");
            Err(Failure::message(Code::Failed, message))
        }
    }
}

/// Makes a failure of what a daemon in the background told.
fn failed(code: u8, message: String, hint: Option<String>) -> Failure {
    let known = [Code::Usage, Code::NotFound, Code::Refused];
    let code = known.into_iter().find(|known| *known as u8 == code).unwrap_or(Code::Failed);
    let hint = hint.or_else(|| (code == Code::Usage).then(|| "heeler config validate".to_owned()));
    Failure { hint, ..Failure::message(code, message) }
}

/// Starts a daemon in the background that stays; one that would end when idle makes way for it.
pub(crate) fn start_permanent(place: &Place) -> Outcome<u32> {
    let deadline = Instant::now() + START_WAIT;
    loop {
        make_way(place)?;
        match launch(place, DaemonMode::Permanent)? {
            Readiness::Ready { pid } => return Ok(pid),
            Readiness::Failed { code, message, hint } => return Err(failed(code, message, hint)),
            Readiness::Held { holder } => {
                let is_daemon = connect(place)?.is_some();
                let is_passing = file(place)?.is_none_or(|file| file.mode == DaemonMode::UntilIdle);
                if is_daemon && !is_passing || Instant::now() >= deadline {
                    return Err(second(place, &holder));
                }
                std::thread::sleep(LOOK_EVERY);
            }
        }
    }
}

/// Says that another process, which is most likely a daemon, writes the state.
pub(crate) fn second(place: &Place, holder: &str) -> Failure {
    let message = format!("{} is held by {holder}", place.state_dir);
    Failure::message(Code::Refused, message).hint("heeler status, heeler stop or heeler restart")
}

/// Lets a daemon that would end when idle end now; its jobs go on.
pub(crate) fn make_way(place: &Place) -> Outcome {
    let Some(file) = file(place)?.filter(|file| file.mode == DaemonMode::UntilIdle) else {
        return Ok(());
    };
    let Some(mut client) = connect(place)? else { return Ok(()) };
    if client.hello().pid != file.pid {
        return Ok(());
    }
    match client.ask(&Command::Stop(Stopping::KeepJobs), Some(ANSWER_WAIT)) {
        Ok(_) | Err(ClientError::Ending) => wait_gone(place, file.pid),
        Err(error) => Err(error.into()),
    }
}

/// Waits until a daemon that has said that it ends has done so.
pub(crate) fn wait_gone(place: &Place, pid: u32) -> Outcome {
    let deadline = Instant::now() + END_WAIT;
    let lock = place.dir()?.lock();
    loop {
        let held = LockFile::probe(&lock).map_err(anyhow::Error::from)?;
        let holder = held.and_then(|state| state.holder);
        if holder.is_none_or(|holder| holder.pid != pid) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let message = format!("the daemon (process {pid}) does not end");
            return Err(Failure::message(Code::Failed, message).hint(format!("kill {pid}")));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Says that a daemon answered something else than what it was asked.
pub(crate) fn unexpected(answer: &Answer) -> Failure {
    Failure::message(Code::Failed, format!("the daemon answered something else: {answer:?}"))
        .hint("heeler restart, if it is of another version")
}

/// Prints what a daemon answered.
pub(crate) fn tell(answer: &Answer, json: bool) -> Outcome {
    if json {
        return Ok(output::json(&to_json(answer))?);
    }
    match answer {
        Answer::Job { job, status, waits } => {
            let waits = waits.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            output::line(format!("{job} {status}{waits}"))?;
        }
        Answer::Known { job, status } => output::line(format!("{job} {status}"))?,
        Answer::Done { message } => output::line(message.as_str())?,
        Answer::Session(made) => output::line(made.id.as_str())?,
        Answer::Taken(taken) => output::line(taken.id.as_str())?,
        Answer::Sessions { sessions, .. } => {
            for session in sessions {
                output::line(session.as_str())?;
            }
        }
        Answer::WorkflowRun { run, status, is_new } => {
            let known = if *is_new { "" } else { " (it was there already)" };
            output::line(format!("{run} {status}{known}"))?;
        }
        Answer::Reloaded { changes } if changes.is_empty() => {
            output::line("read again; nothing has changed")?;
        }
        Answer::Reloaded { changes } => {
            for change in changes {
                output::line(change.as_str())?;
            }
        }
        Answer::Status(status) => output::json(status)?,
    }
    Ok(())
}

/// Returns what programs get of an answer.
pub(crate) fn to_json(answer: &Answer) -> Value {
    match Told::from(answer.clone()) {
        Told::Job(job) => json!({ "job": job }),
        Told::Run(run) => json!({ "run": run }),
        // Only a cleanup keeps any, and it tells of them by itself.
        Told::Sessions(sessions) => {
            json!({ "sessions": sessions.sessions, "total": sessions.total })
        }
        Told::Known(job) => json!({ "job": job }),
        told => json!(told),
    }
}
