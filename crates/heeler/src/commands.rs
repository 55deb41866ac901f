//! The commands, one module each. [`run`] calls the one that was typed.

pub(crate) mod agent;
pub(crate) mod approvals;
pub(crate) mod backup;
pub(crate) mod cancel;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod costs;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod import;
pub(crate) mod init;
pub(crate) mod jobs;
pub(crate) mod logs;
pub(crate) mod open;
pub(crate) mod password;
pub(crate) mod play;
pub(crate) mod reload;
pub(crate) mod restart;
pub(crate) mod resume;
pub(crate) mod runner;
pub(crate) mod schedule;
pub(crate) mod search;
pub(crate) mod session;
pub(crate) mod snapshot;
pub(crate) mod start;
pub(crate) mod status;
pub(crate) mod stop;
pub(crate) mod token;
pub(crate) mod trigger;
pub(crate) mod workflow;

use crate::cli::{CliArgs, CliCommand};
use crate::failure::CommandResult;

/// Runs the command that was typed.
pub(crate) fn run(cli: CliArgs) -> CommandResult {
    let global = &cli.global;
    match cli.command {
        CliCommand::Start(args) => start::run(global, &args),
        CliCommand::Stop(args) => stop::run(global, &args),
        CliCommand::Restart(args) => restart::run(global, &args),
        CliCommand::Reload(args) => reload::run(global, &args),
        CliCommand::Schedule { command } => schedule::run(global, &command),
        CliCommand::Workflow { command } => workflow::run(global, &command),
        CliCommand::Agent { command } => agent::run(global, &command),
        CliCommand::Approvals { command } => approvals::run(global, &command),
        CliCommand::Costs(args) => costs::run(global, &args),
        CliCommand::Chat(args) => chat::run(global, &args),
        CliCommand::Open(args) => open::run(global, &args),
        CliCommand::Token { command } => token::run(global, &command),
        CliCommand::Password { command } => password::run(global, &command),
        CliCommand::Trigger(args) => trigger::run(global, &args),
        CliCommand::Cancel(args) => cancel::run(global, &args),
        CliCommand::Runner(args) => runner::run(&args),
        CliCommand::Status(args) => status::run(global, &args),
        CliCommand::Jobs(args) => jobs::run(global, &args),
        CliCommand::Job(args) => jobs::run_job(global, &args),
        CliCommand::Logs(args) => logs::run(global, &args),
        CliCommand::Session { command } => session::run(global, &command),
        CliCommand::Sessions(args) => session::list::run(global, &args),
        CliCommand::Search(args) => search::run(global, &args),
        CliCommand::Init(args) => init::run(&args),
        CliCommand::Config { command } => config::run(global, &command),
        CliCommand::Import(args) => import::run(global, &args),
        CliCommand::Doctor(args) => doctor::run(global, &args),
        CliCommand::Backup(args) => backup::run(global, &args),
        CliCommand::Restore(args) => backup::restore(global, &args),
        CliCommand::Demo(args) => demo::run(&args),
        CliCommand::Play(args) => play::run(args),
        CliCommand::Snapshot(args) => snapshot::run(&args),
        CliCommand::Completions(args) => completions::run(&args),
        CliCommand::Man(args) => completions::man(&args),
        CliCommand::Version(args) => completions::version(&args),
    }
}
