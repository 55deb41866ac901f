//! `heeler runner`: one run of one agent, as a process of its own. Started by the daemon.

use std::fs::File;
use std::io::{ErrorKind, IsTerminal as _, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

use camino::{Utf8Path, Utf8PathBuf};
use clap::Args;
use heeler_model::run::{
    CAPABILITY_VARIABLE, RunnerInput, SETTLE_EXIT_BUSY, SETTLE_EXIT_UNUSABLE, SettleInput,
};
use heeler_runner::{RunSettleError, RunnerHost, RunnerTask};
use serde::de::DeserializeOwned;

use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::process_env;
use crate::{fleet_client, logging, open_file_limit};

/// Number of bytes read at a time.
const INPUT_PIECE_BYTES: usize = 64 << 10;

/// Arguments of `runner`.
#[derive(Args)]
pub(crate) struct RunnerArgs {
    /// Run folder with the run's spec; --settle takes several
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<Utf8PathBuf>,
    /// Write the result of a run with a dead runner, instead of running it
    #[arg(long)]
    settle: bool,
    /// Only kill the remaining processes of a run with an unusable folder
    #[arg(long, conflicts_with = "settle")]
    end: bool,
}

/// Runs `runner`.
pub(crate) fn run(args: &RunnerArgs) -> CommandResult {
    // If this runner was started inside another run, it would be killed together with that run.
    heeler_runner::restart_without_marker()?;
    open_file_limit::restore_limit(&process_env::environment());
    // The brief holds secrets that agents must not read from this process.
    heeler_process::hide_own_memory()?;
    // Leave the terminal, so that its Ctrl-C does not end the run. Fails for a session leader,
    // which has left already.
    let _session = rustix::process::setsid();
    // clap requires at least one folder, so anything else is several.
    let [dir] = &args.dirs[..] else { return settle_all(args) };
    if args.end {
        let ended = heeler_runner::end_leftover_processes(dir, process_env::now);
        return ended.map_err(|error| CommandFailure::new(FailureCode::Failed, error));
    }
    if args.settle {
        let keys = read_settle_input()?;
        return heeler_runner::settle_run_signed(dir, &home()?, process_env::now, keys.as_ref())
            .map(|_| ())
            .map_err(|error| CommandFailure::new(settle_code(&error, dir), error));
    }
    let (input, link) = read_input()?;
    let task = prepare_task(dir, input)?;
    // By it, other fleets recognize processes that outlive this run as not their own.
    if let Some(state_dir) = dir.parent().and_then(Utf8Path::parent) {
        heeler_process::FleetTag::new(state_dir).apply()?;
    }
    match link.filter(|_| task.spec.keep_agent.is_some()) {
        Some(link) => {
            let mut shown = dir.clone();
            heeler_runner::run_conversation(task, link, |input| next_task(&mut shown, input))
        }
        None => heeler_runner::run(&task.dir, task.spec, &task.host).map(|_| ()),
    }
    .map_err(anyhow::Error::from)?;
    Ok(())
}

/// Makes this process ready for a run.
fn prepare_task(dir: &Utf8Path, input: RunnerInput) -> CommandResult<RunnerTask> {
    let RunnerInput { brief, spec, result_key } = input;
    let capability = brief.env.get(CAPABILITY_VARIABLE).cloned();
    let mut host = RunnerHost::new(process_env::program()?, process_env::now, brief)
        .with_result_key(result_key);
    let spec = match spec {
        Some(spec) => spec,
        None => heeler_runner::read_spec(dir).map_err(anyhow::Error::from)?,
    };
    if let Some(client) = fleet_client::open_for_run(dir, &spec, capability) {
        host = host.with_fleet_client(client);
    }
    // Before the run begins: its stderr is a file that is kept.
    logging::redact_secrets(host.redactor());
    Ok(RunnerTask { dir: dir.to_owned(), spec, host })
}

/// Makes this process the runner of the next run of its conversation. `shown` is the run directory in
/// its command line, by which others recognize it.
fn next_task(shown: &mut Utf8PathBuf, input: RunnerInput) -> Result<RunnerTask, String> {
    let spec = input.spec.as_ref().ok_or("it has no spec")?;
    let dir = shown.with_file_name(spec.run.to_string());
    // The log stays that of the first run.
    let task = prepare_task(&dir, input).map_err(|failure| format!("{:#}", failure.error))?;
    heeler_process::replace_own_argument(shown.as_str(), dir.as_str())
        .map_err(|error| error.to_string())?;
    *shown = dir;
    Ok(task)
}

/// Settles all runs that can be settled, and fails if one cannot. The caller retries that one
/// alone.
fn settle_all(args: &RunnerArgs) -> CommandResult {
    if !args.settle {
        return Err(CommandFailure::message(
            FailureCode::Usage,
            "only --settle takes several folders",
        ));
    }
    let keys = read_settle_input()?;
    let settled = heeler_runner::settle_runs(&args.dirs, &home()?, process_env::now, keys.as_ref());
    match settled.into_iter().find_map(Result::err) {
        Some(error) => Err(CommandFailure::new(FailureCode::Failed, error)),
        None => Ok(()),
    }
}

fn home() -> CommandResult<Utf8PathBuf> {
    let env = process_env::environment();
    process_env::home(&env, &process_env::working_directory()?)
        .ok_or_else(|| CommandFailure { code: FailureCode::Failed, ..process_env::no_home() })
}

/// Returns the exit code by which the daemon decides to wait, to give up or to retry later.
fn settle_code(error: &RunSettleError, folder: &Utf8Path) -> FailureCode {
    // The daemon compares the exit code with these constants of another crate.
    const {
        assert!(
            FailureCode::Refused as u8 == SETTLE_EXIT_BUSY
                && FailureCode::Unusable as u8 == SETTLE_EXIT_UNUSABLE
        );
    };
    match error {
        // Do not wait for a run that is alive in the folder from which this one was copied.
        RunSettleError::Running { dir, .. } if dir == folder => FailureCode::Refused,
        error if error.is_permanent() => FailureCode::Unusable,
        _ => FailureCode::Failed,
    }
}

/// Reads the run. Returns standard input, too, if it is still open for further runs.
fn read_input() -> CommandResult<(RunnerInput, Option<UnixStream>)> {
    // It comes by a pipe or socket, because no argument and no file may hold its secrets. It is read
    // without the buffer of the standard library, which would keep the beginning of the next run.
    let mut stdin = File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let (mut text, mut piece) = (Vec::new(), vec![0; INPUT_PIECE_BYTES]);
    loop {
        match stdin.read(&mut piece) {
            Ok(0) => return Ok((parse_input(&text, "launch spec")?, None)),
            Ok(length) => text.extend_from_slice(&piece[..length]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
        if text.ends_with(b"\n")
            && let Ok(input) = serde_json::from_slice(&text)
        {
            return Ok((input, Some(UnixStream::from(OwnedFd::from(stdin)))));
        }
    }
}

/// Reads the keys of a settling process. A person who settles a run gives none.
fn read_settle_input() -> CommandResult<Option<SettleInput>> {
    let mut text = Vec::new();
    if !std::io::stdin().is_terminal() {
        std::io::stdin().lock().read_to_end(&mut text)?;
    }
    match text.trim_ascii().is_empty() {
        true => Ok(None),
        false => parse_input(&text, "keys").map(Some),
    }
}

fn parse_input<T: DeserializeOwned>(text: &[u8], what: &str) -> CommandResult<T> {
    serde_json::from_slice(text).map_err(|error| {
        // The document holds secrets, so the error must not quote any of it.
        let message = format!("standard input holds no valid {what} ({:?})", error.classify());
        CommandFailure::message(FailureCode::Usage, message)
    })
}
