//! The process in which a command runs: clock, environment, working directory, program path.
//!
//! No other module reads the clock or environment variables.

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_engine::{EngineContext, HookGrants};
use heeler_store::{HostLease, LeadLease, StateDir};
use jiff::Timestamp;

use crate::failure::{CommandFailure, CommandResult, FailureCode};

/// Returns the current time. Every command calls this once, so that one output has one `now`.
#[expect(clippy::disallowed_methods, reason = "the program's one look at the clock")]
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}

/// Returns the path of this program.
pub(crate) fn program() -> CommandResult<Utf8PathBuf> {
    Utf8PathBuf::from_path_buf(std::env::current_exe()?).map_err(|path| {
        let message = format!("the path of this program, {}, is not valid UTF-8", path.display());
        CommandFailure::message(FailureCode::Failed, message)
    })
}

/// Returns the folder for temporary files.
pub(crate) fn temp_dir() -> std::path::PathBuf {
    std::env::temp_dir()
}

pub(crate) fn working_directory() -> CommandResult<Utf8PathBuf> {
    let here = std::env::current_dir().map_err(|error| {
        CommandFailure::new(FailureCode::Failed, error).hint("change to a folder that exists")
    })?;
    Utf8PathBuf::from_path_buf(here).map_err(|path| {
        CommandFailure::message(
            FailureCode::Usage,
            format!("the working directory {} is not valid UTF-8", path.display()),
        )
    })
}

/// Returns the environment without non-UTF-8 variables, which a config file cannot name.
pub(crate) fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// Returns Heeler's home folder: `HEELER_HOME`, or `.heeler` in `HOME`.
pub(crate) fn home(env: &BTreeMap<String, String>, here: &Utf8Path) -> Option<Utf8PathBuf> {
    match (env.get("HEELER_HOME"), env.get("HOME")) {
        // A relative path is allowed, and must mean the same for all processes of this command.
        (Some(path), _) => Some(here.join(path)),
        (None, Some(home)) => Some(Utf8Path::new(home).join(".heeler")),
        (None, None) => None,
    }
}

/// Returns the failure for an unknown home folder.
pub(crate) fn no_home() -> CommandFailure {
    CommandFailure::message(
        FailureCode::Usage,
        "HOME is not set, so there is no folder for session locks",
    )
    .hint("HEELER_HOME=/some/folder heeler …")
}

/// Variables of Heeler's own that a job's processes keep. None is passed to an agent.
const KEPT_VARIABLES: [&str; 3] = ["PATH", "HEELER_LOG", "RUST_BACKTRACE"];

/// Returns the engine's context for a state directory, which is created if needed.
pub(crate) fn engine_fleet(
    state_dir: &Utf8Path,
    env: &BTreeMap<String, String>,
) -> CommandResult<EngineContext> {
    // Secrets of the caller must not reach the processes of a job through their environment.
    let variables = env.iter().filter(|(name, _)| KEPT_VARIABLES.contains(&name.as_str()));
    let variables = variables.map(|(name, value)| (name.clone(), value.clone()));
    // The path must be absolute: those processes have another working directory.
    let home = home(env, &working_directory()?).map(|home| ("HEELER_HOME".to_owned(), home.into()));
    Ok(EngineContext {
        dir: StateDir::create(state_dir)?,
        program: program()?,
        env: variables.chain(home).collect(),
        now,
        hook_grants: HookGrants::default(),
        lead: LeadLease::default(),
        host_lease: HostLease::default(),
    })
}
