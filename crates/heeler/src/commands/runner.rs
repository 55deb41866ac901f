//! `heeler runner`: one run of one agent, as a process of its own. Started by the daemon.

use std::io::{IsTerminal as _, Read as _};

use camino::{Utf8Path, Utf8PathBuf};
use clap::Args;
use heeler_model::run::{
    CAPABILITY_VARIABLE, RunnerInput, SETTLE_EXIT_BUSY, SETTLE_EXIT_UNUSABLE, SettleInput,
};
use heeler_runner::{RunSettleError, RunnerHost};
use serde::de::DeserializeOwned;

use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::process_env;
use crate::{fleet_client, logging, open_file_limit};

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
    let RunnerInput { brief, spec, result_key } = read_input()?;
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
    // By it, other fleets recognize processes that outlive this run as not their own.
    if let Some(state_dir) = dir.parent().and_then(Utf8Path::parent) {
        heeler_process::FleetTag::new(state_dir).apply()?;
    }
    // Before the run begins: its stderr is a file that is kept.
    logging::redact_secrets(host.redactor());
    heeler_runner::run(dir, spec, &host).map_err(anyhow::Error::from)?;
    Ok(())
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

fn read_input() -> CommandResult<RunnerInput> {
    // It comes by a pipe, because no argument and no file may hold its secrets.
    let mut text = Vec::new();
    std::io::stdin().lock().read_to_end(&mut text)?;
    parse_input(&text, "launch spec")
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
