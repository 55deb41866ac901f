//! Client side of the fleet's daemon: commands find it, start it in the background and send
//! requests.
//!
//! The state's lock tells whether a daemon runs. `daemon.json` is not believed; what matters is
//! asked of the daemon itself, which proves that it serves the state directory. Commands that change
//! something use [`request`]; commands that make no sense without a daemon use
//! [`connect_required`].

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::{Duration, Instant};

use heeler_engine::{
    CommandReply, DaemonCommand, DaemonMode, ScheduleChange, StopMode, WorkflowOperation,
    launch_daemon,
};
use heeler_model::run::CAPABILITY_VARIABLE;
use heeler_model::{JobId, JobStatus};
use heeler_server::replies::DaemonReply;
use heeler_server::{DaemonClient, DaemonClientError};
use heeler_store::{DaemonFile, STOPPED_AT, StoreReader};
use heeler_transcript::LockFile;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::config_changes;
use crate::context::CommandContext;
use crate::daemon_address::connect_to_daemon;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config;
use crate::output;
use crate::process_env;
use crate::text_file;

/// Time that a command waits for a daemon while another process writes the state.
const START_WAIT: Duration = Duration::from_secs(60);

/// Time for a daemon to end after it announced that.
const EXIT_WAIT: Duration = Duration::from_secs(30);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Time for a daemon to answer a command that needs no work.
pub(crate) const ANSWER_WAIT: Duration = Duration::from_secs(60);

/// Message of a background daemon to the process that started it, sent once.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "daemon")]
pub(crate) enum DaemonReadiness {
    /// The daemon accepts connections.
    Ready { pid: u32 },
    Held {
        /// Description of that process.
        holder: String,
    },
    /// The daemon cannot start.
    Failed {
        /// Exit code.
        code: u8,
        message: String,
        hint: Option<String>,
    },
}

/// Connects to the fleet's daemon; returns `None` if there is none.
pub(crate) fn connect(context: &CommandContext) -> CommandResult<Option<DaemonClient>> {
    if !context.state_dir.is_dir() {
        return Ok(None);
    }
    // In an agent or a hook, this process acts for it.
    let capability = context.env.get(CAPABILITY_VARIABLE).map(String::as_str);
    match connect_to_daemon(&context.dir()?, &context.env, capability) {
        Ok(client) => Ok(client),
        // No command was sent yet, so the daemon has ended or is ending.
        Err(
            DaemonClientError::NoDaemon { .. }
            | DaemonClientError::Ending
            | DaemonClientError::Io { .. },
        ) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Reads the daemon file, which may describe a daemon that has died since. One that cannot be read
/// is no better than none.
pub(crate) fn read_daemon_file(context: &CommandContext) -> CommandResult<Option<DaemonFile>> {
    if !context.state_dir.is_dir() {
        return Ok(None);
    }
    Ok(DaemonFile::read(&context.dir()?).ok().flatten())
}

/// Returns true if a permanent daemon runs.
pub(crate) fn is_permanent(context: &CommandContext) -> CommandResult<bool> {
    Ok(connect_with_mode(context, DaemonMode::Permanent)?.is_some())
}

/// Connects to the fleet's daemon if it has this mode. The file is not asked: agents can write it.
fn connect_with_mode(
    context: &CommandContext,
    mode: DaemonMode,
) -> CommandResult<Option<DaemonClient>> {
    Ok(connect(context)?.filter(|client| client.daemon_info().mode == Some(mode)))
}

/// Connects to the fleet's daemon, or fails if none runs.
pub(crate) fn connect_required(context: &CommandContext) -> CommandResult<DaemonClient> {
    connect(context)?.ok_or_else(|| no_daemon(context))
}

/// Returns the failure for a missing daemon; names another process that writes the state.
pub(crate) fn no_daemon(context: &CommandContext) -> CommandFailure {
    let message = match find_writer(context) {
        Ok(Some(writer)) => {
            format!(
                "no daemon answers in {}; the directory is in use by {writer}",
                context.state_dir
            )
        }
        _ => format!("no daemon runs in {}", context.state_dir),
    };
    CommandFailure::message(FailureCode::NoDaemon, message).hint("heeler start")
}

/// Describes the process that writes the state; returns `None` if there is none.
pub(crate) fn find_writer(context: &CommandContext) -> CommandResult<Option<String>> {
    if !context.state_dir.is_dir() {
        return Ok(None);
    }
    // The kernel releases the lock of a killed process, so a held lock means a live writer.
    let held = LockFile::probe(&context.dir()?.lock()).map_err(anyhow::Error::from)?;
    Ok(held.map(|state| match state.holder {
        Some(holder) => holder.to_string(),
        None => "another process".to_owned(),
    }))
}

/// Sends a command to the fleet's daemon; starts a temporary one if none runs.
pub(crate) fn request(
    context: &CommandContext,
    command: &DaemonCommand,
) -> CommandResult<CommandReply> {
    request_unless(context, command, &|| false)
}

/// Sends the cancel command of a Ctrl-C. It is no failure if the job or run has ended meanwhile.
pub(crate) fn request_cancel(
    context: &CommandContext,
    command: &DaemonCommand,
) -> Result<(), String> {
    match request(context, command) {
        // The daemon refuses to cancel something that has ended, which is what the user wanted.
        Err(failure) if failure.code != FailureCode::Refused => Err(format!("{:#}", failure.error)),
        _ => Ok(()),
    }
}

/// Like [`request`], but gives up if `is_given_up` before the daemon received the command.
pub(crate) fn request_unless(
    context: &CommandContext,
    command: &DaemonCommand,
    is_given_up: &dyn Fn() -> bool,
) -> CommandResult<CommandReply> {
    request_as(context, command, None, is_given_up)
}

/// Like [`request`], with an idempotency key: if the daemon dies meanwhile, the command is sent to
/// the next one, and done only once.
pub(crate) fn request_idempotent(
    context: &CommandContext,
    command: &DaemonCommand,
    name: &str,
) -> CommandResult<CommandReply> {
    request_as(context, command, Some(name), &|| false)
}

fn request_as(
    context: &CommandContext,
    command: &DaemonCommand,
    name: Option<&str>,
    is_given_up: &dyn Fn() -> bool,
) -> CommandResult<CommandReply> {
    // Not inside a run: an agent's environment differs, and its daemon is running.
    if starts_a_run(command) && !context.env.contains_key("HEELER_RUN") {
        replace_outdated(context)?;
    }
    // A daemon that dies before it replies may have started the job.
    let own_name = (name.is_none() && starts_a_run(command)).then(|| Uuid::new_v4().to_string());
    let name = name.or(own_name.as_deref());
    // A run may need a git clone first, which can take long.
    let patience = (!starts_a_run(command)).then_some(ANSWER_WAIT);
    let deadline = Instant::now() + START_WAIT;
    loop {
        // Ask for a new connection each time: the old one leads to the daemon that is ending.
        let mut daemon = connect_or_start_unless(context, is_given_up)?;
        let answer = daemon.send_command_once(command, name, patience);
        let may_ask_again = match &answer {
            // The daemon did nothing; the next one will.
            Err(DaemonClientError::Ending) => true,
            // If the command was done, the next daemon returns its answer.
            Err(DaemonClientError::Io { .. }) => name.is_some(),
            _ => false,
        };
        if !may_ask_again || Instant::now() >= deadline {
            return Ok(answer?);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Returns true if a command may start an agent now, with the daemon's config and environment.
fn starts_a_run(command: &DaemonCommand) -> bool {
    let triggers = |change: &ScheduleChange| *change == ScheduleChange::Trigger;
    match command {
        DaemonCommand::Trigger(_) | DaemonCommand::Resume { .. } | DaemonCommand::Retry { .. } => {
            true
        }
        DaemonCommand::Schedule { change, .. } => triggers(change),
        DaemonCommand::Workflow { order, .. } => {
            matches!(order, WorkflowOperation::Run(_) | WorkflowOperation::Retry { .. })
        }
        _ => false,
    }
}

/// Stops a temporary daemon if the config or the environment has changed since its start: users who
/// never start a daemon expect their current ones to apply. Its jobs continue.
fn replace_outdated(context: &CommandContext) -> CommandResult {
    // A permanent daemon keeps its environment: `heeler reload` and `restart` exist for it.
    let Some(client) = connect_with_mode(context, DaemonMode::UntilIdle)? else { return Ok(()) };
    match client.daemon_info().surroundings == Some(environment_hash(context)?) {
        true => Ok(()),
        false => {
            // Its jobs would be left without a daemon if no other could start.
            config_changes::refuse_held(context)?;
            stop_idle_daemon(context)
        }
    }
}

/// Returns true if a daemon runs that this command would use as it is.
pub(crate) fn is_current(context: &CommandContext) -> CommandResult<bool> {
    let Some(client) = connect(context)? else { return Ok(false) };
    let info = client.daemon_info();
    let is_kept =
        info.mode == Some(DaemonMode::Permanent) || context.env.contains_key("HEELER_RUN");
    Ok(is_kept || info.surroundings == Some(environment_hash(context)?))
}

/// Variables that differ between terminals and have no effect on an agent.
const IGNORED_VARIABLES: [&str; 14] = [
    "_",
    "COLUMNS",
    "HEELER_LOG",
    "HEELER_TRUST",
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

/// Hashes the config and the environment of a command, to detect changes.
pub(crate) fn environment_hash(context: &CommandContext) -> CommandResult<u64> {
    // Its keys are fixed, so two processes agree. It does no harm if releases differ.
    let mut hasher = DefaultHasher::new();
    let is_kept = |name: &str| !IGNORED_VARIABLES.contains(&name);
    context.env.iter().filter(|(name, _)| is_kept(name)).for_each(|it| it.hash(&mut hasher));
    let Ok(file) = context.config_file() else { return Ok(hasher.finish()) };
    let loaded = fleet_config::try_load(context, file, &text_file::read_text)?;
    // With an invalid config the daemon does not start anyway, so its files do not matter here.
    let mut files = loaded.map(|loaded| loaded.files).unwrap_or_default();
    // A missing file is hashed too, so that its creation is noticed.
    files.push(text_file::parent_dir(file).join(".env"));
    for file in files {
        file.hash(&mut hasher);
        // Size and time are enough to notice an edit.
        let known = std::fs::metadata(&file).ok().map(|it| (it.len(), it.modified().ok()));
        known.hash(&mut hasher);
    }
    Ok(hasher.finish())
}

/// Connects to the fleet's daemon, or starts a temporary one.
///
/// If two commands do so at the same time, the one that comes second uses the daemon of the first.
/// A temporary daemon does not end while a client is connected.
pub(crate) fn connect_or_start(context: &CommandContext) -> CommandResult<DaemonClient> {
    connect_or_start_unless(context, &|| false)
}

fn connect_or_start_unless(
    context: &CommandContext,
    is_given_up: &dyn Fn() -> bool,
) -> CommandResult<DaemonClient> {
    let deadline = Instant::now() + START_WAIT;
    loop {
        // Check before each start: Ctrl-C must not leave a daemon behind that no one needs.
        if is_given_up() {
            return Err(CommandFailure::message(
                FailureCode::Interrupted,
                "interrupted before the daemon received the command",
            ));
        }
        if let Some(client) = connect(context)? {
            return Ok(client);
        }
        // Do not create a directory that was named by mistake.
        drop(context.open_reader()?);
        match launch(context, DaemonMode::UntilIdle)? {
            // The next pass connects; the daemon waits a while for that.
            DaemonReadiness::Ready { .. } => {}
            // Another command writes the state for a moment, or another daemon is just starting.
            DaemonReadiness::Held { .. } if Instant::now() < deadline => {
                std::thread::sleep(POLL_INTERVAL);
            }
            DaemonReadiness::Held { holder } => return Err(already_running(context, &holder)),
            DaemonReadiness::Failed { code, message, hint } => {
                return Err(background_failure(code, message, hint));
            }
        }
    }
}

/// Starts a daemon again for a job that has lost its daemon. A queued job of a fleet that a person
/// stopped stays queued.
pub(crate) fn revive_job(context: &CommandContext, job: &JobId) -> CommandResult {
    if waits_for_start(context, job)? {
        let message = "the fleet was stopped: the job waits until `heeler start`";
        return Err(CommandFailure::message(FailureCode::Refused, message));
    }
    // The new daemon takes over all unfinished jobs when it starts, so no command is needed.
    connect_or_start(context).map(drop)
}

/// Returns true if a job is queued in a fleet that was stopped, so that only `heeler start` starts
/// it.
pub(crate) fn waits_for_start(context: &CommandContext, id: &JobId) -> CommandResult<bool> {
    let reader = StoreReader::open(&context.dir()?)?;
    // The value is emptied, not removed, when the fleet starts again.
    let is_stopped = reader.meta(STOPPED_AT)?.is_some_and(|at| !at.is_empty());
    let job = reader.job(id)?;
    Ok(is_stopped && job.is_some_and(|job| job.head.status == JobStatus::Pending))
}

/// Starts a daemon in the background and waits until it is ready.
pub(crate) fn launch(context: &CommandContext, mode: DaemonMode) -> CommandResult<DaemonReadiness> {
    let fleet = process_env::engine_fleet(&context.state_dir, &context.env)?;
    // Absolute paths: the daemon must find the same fleet, wherever it is started.
    let state_dir = fleet.dir.root().to_owned();
    let mut args = vec!["start", "--in-background", "--state-dir", state_dir.as_str()];
    if let Some(config) = &context.config {
        args.extend(["--config", config.as_str()]);
    }
    if mode == DaemonMode::UntilIdle {
        args.push("--until-idle");
    }
    let env: Vec<(String, String)> = context.env.clone().into_iter().collect();
    let mut start = launch_daemon(&fleet, &args, &env).map_err(anyhow::Error::from)?;
    // This blocks until the daemon has told its outcome, or has died and closed the pipe.
    let line = start.read_ready_line();
    match line.as_deref().map(serde_json::from_str) {
        Some(Ok(readiness)) => Ok(readiness),
        _ => {
            // It died without a report, so only its standard error can tell why.
            let log = fleet.dir.logs().join("heeler.log");
            let message = format!("the daemon did not start; see the end of {log}");
            Err(CommandFailure::message(FailureCode::Failed, message))
        }
    }
}

/// Converts a failure that a background daemon reported.
fn background_failure(code: u8, message: String, hint: Option<String>) -> CommandFailure {
    // The daemon may be of another release with other codes; an unknown one is a plain failure.
    let known =
        [FailureCode::Usage, FailureCode::NotFound, FailureCode::Refused, FailureCode::Untrusted];
    let code = known.into_iter().find(|known| *known as u8 == code).unwrap_or(FailureCode::Failed);
    let hint =
        hint.or_else(|| (code == FailureCode::Usage).then(|| "heeler config validate".to_owned()));
    CommandFailure { hint, ..CommandFailure::message(code, message) }
}

/// Starts a permanent daemon in the background, replacing a temporary one.
pub(crate) fn start_permanent(context: &CommandContext) -> CommandResult<u32> {
    let deadline = Instant::now() + START_WAIT;
    loop {
        // Inside the loop: a command may have started another temporary daemon meanwhile.
        stop_idle_daemon(context)?;
        match launch(context, DaemonMode::Permanent)? {
            DaemonReadiness::Ready { pid } => return Ok(pid),
            DaemonReadiness::Failed { code, message, hint } => {
                return Err(background_failure(code, message, hint));
            }
            DaemonReadiness::Held { holder } => {
                // Otherwise the holder is a command, or a daemon that is starting or ending.
                if is_permanent(context)? || Instant::now() >= deadline {
                    return Err(already_running(context, &holder));
                }
                std::thread::sleep(POLL_INTERVAL);
            }
        }
    }
}

/// Returns the failure for a state directory that another process, most likely a daemon, writes.
pub(crate) fn already_running(context: &CommandContext, holder: &str) -> CommandFailure {
    let message = format!("{} is in use by {holder}", context.state_dir);
    CommandFailure::message(FailureCode::Refused, message)
        .hint("heeler status, heeler stop or heeler restart")
}

/// Stops a temporary daemon; its jobs continue.
pub(crate) fn stop_idle_daemon(context: &CommandContext) -> CommandResult {
    let Some(mut client) = connect_with_mode(context, DaemonMode::UntilIdle)? else {
        return Ok(());
    };
    let pid = client.daemon_info().pid;
    // A daemon that is already ending has done what is wanted.
    match client.send_command(&DaemonCommand::Stop(StopMode::KeepJobs), Some(ANSWER_WAIT)) {
        Ok(_) | Err(DaemonClientError::Ending) => wait_for_exit(context, pid),
        Err(error) => Err(error.into()),
    }
}

/// Waits until a daemon that announced its end has ended.
pub(crate) fn wait_for_exit(context: &CommandContext, pid: u32) -> CommandResult {
    let deadline = Instant::now() + EXIT_WAIT;
    // The lock tells more than the process ID, which the kernel may reuse.
    let lock = context.dir()?.lock();
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let process = process.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    loop {
        let held = LockFile::probe(&lock).map_err(anyhow::Error::from)?;
        let holder = held.and_then(|state| state.holder);
        // The next daemon may hold the lock already.
        if holder.is_none_or(|holder| holder.pid != pid) {
            // The process ends a moment after it has released the lock.
            if let Some(process) = &process {
                let _ended = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&LAST_MOMENT));
            }
            return Ok(());
        }
        if Instant::now() >= deadline {
            let message = format!("the daemon (process {pid}) does not end");
            return Err(
                CommandFailure::message(FailureCode::Failed, message).hint(format!("kill {pid}"))
            );
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Longest wait for the end of a process that has released its lock.
const LAST_MOMENT: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// Returns the failure for an answer that does not fit the command.
pub(crate) fn unexpected(answer: &CommandReply) -> CommandFailure {
    CommandFailure::message(
        FailureCode::Failed,
        format!("unexpected answer from the daemon: {answer:?}"),
    )
    .hint("heeler restart, if the daemon has another version")
}

/// Prints a daemon's answer.
pub(crate) fn print_answer(answer: &CommandReply, json: bool) -> CommandResult {
    if json {
        return Ok(output::print_json(&to_json(answer))?);
    }
    match answer {
        CommandReply::Job { job, status, waits } => {
            let waits = waits.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            output::print_line(format!("{job} {status}{waits}"))?;
        }
        CommandReply::Known { job, status } => output::print_line(format!("{job} {status}"))?,
        CommandReply::Done { message } => output::print_line(message.as_str())?,
        CommandReply::Session(made) => output::print_line(made.id.as_str())?,
        CommandReply::Taken(taken) => output::print_line(taken.id.as_str())?,
        CommandReply::Sessions { sessions, .. } => {
            for session in sessions {
                output::print_line(session.as_str())?;
            }
        }
        CommandReply::WorkflowRun { run, status, is_new } => {
            let known = if *is_new { "" } else { " (already active)" };
            output::print_line(format!("{run} {status}{known}"))?;
        }
        CommandReply::Reloaded { changes } if changes.is_empty() => {
            output::print_line("config reread; nothing has changed")?;
        }
        CommandReply::Reloaded { changes } => {
            for change in changes {
                output::print_line(change.as_str())?;
            }
        }
        CommandReply::Status(status) => output::print_json(status)?,
    }
    Ok(())
}

/// Returns a daemon's answer as JSON.
pub(crate) fn to_json(answer: &CommandReply) -> Value {
    match DaemonReply::from(answer.clone()) {
        DaemonReply::Job(job) => json!({ "job": job }),
        DaemonReply::Run(run) => json!({ "run": run }),
        // Only a cleanup has kept sessions, and it prints them itself.
        DaemonReply::Sessions(sessions) => {
            json!({ "sessions": sessions.sessions, "total": sessions.total })
        }
        DaemonReply::Known(job) => json!({ "job": job }),
        reply => json!(reply),
    }
}
