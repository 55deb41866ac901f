//! The commands, one file each.

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

use crate::cli::{Cli, Command};
use crate::failure::Outcome;

/// Runs the command that was typed.
pub(crate) fn run(cli: Cli) -> Outcome {
    let global = &cli.global;
    match cli.command {
        Command::Start(args) => start::run(global, &args),
        Command::Stop(args) => stop::run(global, &args),
        Command::Restart(args) => restart::run(global, &args),
        Command::Reload(args) => reload::run(global, &args),
        Command::Schedule { command } => schedule::run(global, &command),
        Command::Workflow { command } => workflow::run(global, &command),
        Command::Agent { command } => agent::run(global, &command),
        Command::Approvals { command } => approvals::run(global, &command),
        Command::Costs(args) => costs::run(global, &args),
        Command::Chat(args) => chat::run(global, &args),
        Command::Open(args) => open::run(global, &args),
        Command::Token { command } => token::run(global, &command),
        Command::Password { command } => password::run(global, &command),
        Command::Trigger(args) => trigger::run(global, &args),
        Command::Cancel(args) => cancel::run(global, &args),
        Command::Runner(args) => runner::run(&args),
        Command::Status(args) => status::run(global, &args),
        Command::Jobs(args) => jobs::run(global, &args),
        Command::Job(args) => jobs::run_job(global, &args),
        Command::Logs(args) => logs::run(global, &args),
        Command::Session { command } => session::run(global, &command),
        Command::Sessions(args) => session::list::run(global, &args),
        Command::Search(args) => search::run(global, &args),
        Command::Init(args) => init::run(&args),
        Command::Config { command } => config::run(global, &command),
        Command::Import(args) => import::run(global, &args),
        Command::Doctor(args) => doctor::run(global, &args),
        Command::Backup(args) => backup::run(global, &args),
        Command::Restore(args) => backup::restore(global, &args),
        Command::Demo(args) => demo::run(&args),
        Command::Play(args) => play::run(args),
        Command::Snapshot(args) => snapshot::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => completions::man(&args),
        Command::Version(args) => completions::version(&args),
    }
}
