//! `heeler host`: the machines of a fleet with several hosts. Start at [`run`].

use std::io::IsTerminal as _;

use clap::{Args, Subcommand};
use heeler_engine::DaemonCommand;
use heeler_store::{HostLink, HostRecord, HostState, StoreReader};
use serde_json::{Value, json};

use crate::context::CommandContext;
use crate::daemon;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::global_args::GlobalArgs;
use crate::output::{self, OutputTable};

/// Help footer of `host list`.
const LIST: &str = "Examples:
  heeler host list
  heeler host list --json

SEEN is the time since the host's last sign of life, by the clock of the database. RUNS counts runs without a
recorded result. Exit codes: 0 listed.";

/// Help footer of `host show`.
const SHOW: &str = "Examples:
  heeler host show alpha
  heeler host show alpha --json

Results of the host that were refused are listed, newest first. Exit codes: 0 shown, 4 no such host.";

/// Help footer of `host lost`.
const LOST: &str = "Examples:
  heeler host lost alpha
  heeler host lost alpha --yes && heeler host remove alpha

Use it for a machine that does not return. Its jobs end as interrupted, and their whole reservations count as spent,
because their cost is not known. A host that is alive is refused. If the machine returns, it ends what is left of these
runs; until then an agent on it may still act. Exit codes: 0 done, 4 no such host, 5 refused.";

/// Help footer of `host remove`.
const REMOVE: &str = "Example:
  heeler host remove alpha

A host that is alive, or that has runs without a recorded result, is not removed; `heeler host lost` ends such runs.
If it is started again, it is listed again. Exit codes: 0 removed, 4 no such host, 5 refused.";

#[derive(Subcommand)]
pub(crate) enum HostCommand {
    /// List the hosts, with their role and last sign of life
    #[command(after_help = LIST)]
    List(HostListArgs),
    /// Show one host
    #[command(after_help = SHOW)]
    Show(HostShowArgs),
    /// End the jobs of a host that does not return
    #[command(after_help = LOST)]
    Lost(HostLostArgs),
    /// Remove a host that is not used any more
    #[command(after_help = REMOVE)]
    Remove(HostRemoveArgs),
}

/// Arguments of `host list`.
#[derive(Args)]
pub(crate) struct HostListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `host show`.
#[derive(Args)]
pub(crate) struct HostShowArgs {
    /// Name of the host
    host: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `host lost`.
#[derive(Args)]
pub(crate) struct HostLostArgs {
    /// Name of the host
    host: String,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `host remove`.
#[derive(Args)]
pub(crate) struct HostRemoveArgs {
    /// Name of the host
    host: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `host` and its subcommands.
pub(crate) fn run(global: &GlobalArgs, command: &HostCommand) -> CommandResult {
    let context = CommandContext::find(global)?;
    match command {
        HostCommand::List(args) => list(&context, args),
        HostCommand::Show(args) => show(&context, args),
        HostCommand::Lost(args) => give_up(&context, args),
        HostCommand::Remove(args) => remove(&context, args),
    }
}

fn hosts(context: &CommandContext) -> CommandResult<Vec<HostRecord>> {
    // A fleet without a state directory has no hosts.
    if !context.state_dir.is_dir() {
        return Ok(Vec::new());
    }
    let reader = StoreReader::open(&context.dir()?)?;
    Ok(reader.hosts().map_err(anyhow::Error::from)?)
}

/// Returns the role of a host in a word.
fn role(host: &HostRecord) -> &'static str {
    match (host.state, host.is_alive) {
        (HostState::Stopped, _) => "stopped",
        (_, false) => "away",
        (HostState::Leader, true) => "leader",
        (HostState::Standby, true) => "standby",
    }
}

fn list(context: &CommandContext, args: &HostListArgs) -> CommandResult {
    let hosts = hosts(context)?;
    if args.json {
        return Ok(output::print_json(&json!({ "hosts": hosts }))?);
    }
    if hosts.is_empty() {
        return Ok(output::print_line("this fleet has one machine only; see docs/hosts.md")?);
    }
    let headings = ["HOST", "ROLE", "SEEN", "RUNS", "VERSION", "MACHINE"];
    let mut table = OutputTable::new(&headings, &["MACHINE"]).keep_column("HOST");
    for host in &hosts {
        table.push(vec![
            output::one_line(&host.name).into(),
            role(host).into(),
            format!("{} s ago", host.seen_seconds_ago).into(),
            host.runs.to_string().into(),
            output::one_line(&host.version).into(),
            output::one_line(&host.machine).into(),
        ]);
    }
    Ok(table.print()?)
}

fn find(context: &CommandContext, name: &str) -> CommandResult<HostRecord> {
    hosts(context)?.into_iter().find(|host| host.name == name).ok_or_else(|| {
        let message = format!("there is no host `{name}`");
        CommandFailure::message(FailureCode::NotFound, message).hint("heeler host list")
    })
}

fn show(context: &CommandContext, args: &HostShowArgs) -> CommandResult {
    let host = find(context, &args.host)?;
    let reader = StoreReader::open(&context.dir()?)?;
    let refused = reader.refused_results(&host.name).map_err(anyhow::Error::from)?;
    if args.json {
        return Ok(output::print_json(&json!({ "host": host, "refused": refused }))?);
    }
    let lines = [
        ("host", host.name.clone()),
        ("role", role(&host).to_owned()),
        ("seen", format!("{} s ago", host.seen_seconds_ago)),
        ("runs without a result", host.runs.to_string()),
        ("machine", host.machine.clone()),
        ("process", host.pid.to_string()),
        ("version", host.version.clone()),
        ("started", host.started_at.clone()),
        ("dashboard", host.url.clone().unwrap_or_else(|| "none".to_owned())),
    ];
    for (name, value) in lines {
        output::print_line(output::one_line(&format!("{name}: {value}")))?;
    }
    for refused in refused {
        let (run, at, reason) = (refused.run, refused.refused_at, refused.reason);
        let line = format!("refused result of run {run} at {at}: {reason}");
        output::print_line(output::one_line(&line))?;
    }
    Ok(())
}

fn give_up(context: &CommandContext, args: &HostLostArgs) -> CommandResult {
    let host = find(context, &args.host)?;
    if !args.yes {
        confirm_loss(&host)?;
    }
    let command = DaemonCommand::GiveUpHost { host: host.name, by: context.caller_name() };
    daemon::print_answer(&daemon::request(context, &command)?, args.json)
}

fn confirm_loss(host: &HostRecord) -> CommandResult {
    let name = output::one_line(&host.name);
    let question = format!("End the {} runs of host `{name}` as interrupted?", host.runs);
    // A script must say `--yes`, so that it ends nothing by accident.
    if !std::io::stdin().is_terminal() {
        let message = format!("this ends the {} runs of host `{name}`", host.runs);
        return Err(CommandFailure::message(FailureCode::Refused, message).hint("--yes ends them"));
    }
    match output::confirm(&question, false)? {
        true => Ok(()),
        false => Err(CommandFailure::message(FailureCode::Refused, "nothing was changed")),
    }
}

fn remove(context: &CommandContext, args: &HostRemoveArgs) -> CommandResult {
    let host = find(context, &args.host)?;
    let link = HostLink::connect(&context.dir()?)?;
    if let Err(reason) = link.remove_host(&host.name).map_err(anyhow::Error::from)? {
        let failure = CommandFailure::message(FailureCode::Refused, reason);
        return Err(failure.hint("heeler host list"));
    }
    if args.json {
        let removed: Value = json!({ "removed": host.name });
        return Ok(output::print_json(&removed)?);
    }
    Ok(output::print_line(output::one_line(&format!("removed: {}", host.name)))?)
}
