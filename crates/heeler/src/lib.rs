//! The `heeler` program: commands, wiring, exit codes, config files and the environment.
//!
//! Logic that a library should own does not belong here. `cli` has the tree of commands and calls
//! the one that was typed; `internal_command` has those that Heeler starts itself. Each command is a
//! module of `commands`. The other modules are below them, and none needs a command:
//!
//! - `global_args`, `shared_args`: arguments of every command, and of several.
//! - `process_env`: clock, environment and paths of this process.
//! - `context`: the fleet of a command; `fleet_config`, `state_store` and `state_reader` read its
//!   config and open its state; `daemon` sends requests to its daemon.
//! - `trust`, `command_effect`: whether a person has agreed to what a fleet runs, and which commands
//!   need that.
//! - `installed_agents`: the agent programs of this machine.
//! - `job_watch`, `chat`: a watched job and a conversation on the terminal.
//! - `output`, `display_rows`, `failure`: printed texts, transcript rows, errors with exit codes.

mod adopt;
mod chat;
mod cli;
mod command_effect;
mod commands;
mod completion;
mod config_changes;
mod context;
mod daemon;
mod daemon_address;
mod display_rows;
mod failure;
mod fleet_client;
mod fleet_config;
mod global_args;
mod help_examples;
mod installed_agents;
mod internal_command;
mod job_watch;
mod last_lines;
mod logging;
mod nearby_states;
mod open_file_limit;
mod output;
mod process_env;
mod protected_files;
mod rewind;
mod schema;
mod shared_args;
mod state_reader;
mod state_store;
mod store_setting;
mod terminal_markdown;
mod text_file;
mod time_argument;
mod trust;
mod trust_file;
mod web_config_editor;
mod wrap;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _};

use crate::cli::CliArgs;
use crate::command_effect::CommandEffect;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::internal_command::InternalCommand;
use crate::logging::LogOutputFormat;

/// Name of the command that a runner starts as the first process of a sandbox.
#[cfg(target_os = "linux")]
const FIRST_PROCESS: &str = "inside";

/// Runs the program.
pub fn main() -> ExitCode {
    let arguments = arguments();
    // Before everything else: this process is the first one of a sandbox, and starts the agent.
    #[cfg(target_os = "linux")]
    if arguments.get(1).is_some_and(|name| name == FIRST_PROCESS) {
        return match heeler_inside::run_first_process(None) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: the first process of the sandbox failed: {error}");
                ExitCode::FAILURE
            }
        };
    }
    if let Some(command) = InternalCommand::from_arguments(&arguments) {
        start_logging(LogOutputFormat::Remarks, 0, false);
        return run_guarded(|| command.run(), false);
    }
    // Completion must come before any other command: it takes over the process before any argument is checked.
    clap_complete::CompleteEnv::with_factory(CliArgs::command).complete();
    let json = arguments.iter().take_while(|it| *it != "--").any(|it| it == "--json");
    let given = match command().try_get_matches_from(arguments) {
        Ok(given) => given,
        Err(error) => return report_usage(&error, json),
    };
    let cli = CliArgs::from_arg_matches(&given).unwrap_or_else(|error| error.exit());
    start_logging(cli.command.log_form(), cli.global.verbose, cli.global.quiet);
    // Notes are printed by many modules, so the flag is global.
    if cli.global.quiet {
        output::set_quiet();
    }
    let json = cli::wants_json(&given, &cli.command);
    let effect = CommandEffect::of(&given);
    run_guarded(|| cli.run(effect), json)
}

fn start_logging(form: LogOutputFormat, verbose: u8, quiet: bool) {
    let environment = process_env::environment();
    logging::start(form, verbose, quiet, environment.get("HEELER_LOG").map(String::as_str));
}

/// Runs a command and returns its exit code; a panic has its own.
fn run_guarded(command: impl FnOnce() -> CommandResult, json: bool) -> ExitCode {
    // Nothing of the command is used after a panic.
    match catch_unwind(AssertUnwindSafe(command)) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(failure)) => report(&failure, json),
        // The panic's own message is on stderr already.
        Err(_) => {
            eprintln!("error: this is a bug in heeler; please report it with the lines above");
            ExitCode::from(FailureCode::Bug as u8)
        }
    }
}

/// Opens a fleet for a conversation by its config file and environment; `revive` starts a daemon if
/// none runs. Exported for integration tests only.
#[cfg(feature = "fault-points")]
#[doc(hidden)]
pub fn open_fleet(
    config: camino::Utf8PathBuf,
    env: std::collections::BTreeMap<String, String>,
    revive: impl Fn() -> Result<(), String> + Send + Sync + 'static,
) -> Result<
    (Box<dyn heeler_chat::ChatFleetClient>, std::sync::mpsc::Receiver<heeler_chat::ChatFleetEvent>),
    String,
> {
    use std::sync::Arc;

    let context = context::CommandContext::from_parts(config, env);
    let opened = chat::daemon_fleet::DaemonFleet::open_with(&context, Arc::new(move |_| revive()));
    let (fleet, events) = opened.map_err(|failure| format!("{:#}", failure.error))?;
    Ok((Box::new(fleet), events))
}

/// Returns the command line as data, for parsing, the generated reference and the manual pages.
pub fn command() -> clap::Command {
    cli::reflow_help(help_examples::add_examples(CliArgs::command()))
}

/// Returns the arguments. `heeler --resume` is agents-fleet's spelling of `heeler chat --resume`.
fn arguments() -> Vec<std::ffi::OsString> {
    let mut arguments: Vec<_> = std::env::args_os().collect();
    let first = arguments.get(1).map(|first| first.to_string_lossy().into_owned());
    if first.is_some_and(|first| first == "--resume" || first.starts_with("--resume=")) {
        arguments.insert(1, "chat".into());
    }
    arguments
}

/// Prints a usage error, help or the version. With `--json`, an error is a JSON document like every
/// other failure.
fn report_usage(error: &clap::Error, json: bool) -> ExitCode {
    if !json || !error.use_stderr() {
        error.exit();
    }
    let text = error.render().to_string();
    let text = text.trim().strip_prefix("error: ").unwrap_or(text.trim());
    report(&CommandFailure::message(FailureCode::Usage, text), true)
}

fn report(failure: &CommandFailure, json: bool) -> ExitCode {
    // `heeler jobs | head` is no failure of `heeler`.
    if failure.is_broken_pipe() {
        return ExitCode::SUCCESS;
    }
    if failure.is_silent() {
        return ExitCode::from(failure.code as u8);
    }
    // If this cannot be written either, there is nothing left to do.
    if json {
        drop(output::print_json(&failure.json()));
    } else {
        drop(output::print_error(failure.text()));
    }
    ExitCode::from(failure.code as u8)
}
