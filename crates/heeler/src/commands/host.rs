//! `heeler host`: the machines of a fleet with several hosts. Start at [`run`].

use std::io::IsTerminal as _;

use clap::{Args, Subcommand};
use heeler_engine::{DaemonCommand, HostDrain};
use heeler_query::hosts::{clock_text, host_role, label_text, load_text};
use heeler_query::session_moves::{SessionMoveSummary, move_text};
use heeler_store::{ArchiveFault, HostLink, HostRecord, StoreReader};
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
recorded result, with the limit of the host. Exit codes: 0 listed.";

/// Help footer of `host show`.
const SHOW: &str = "Examples:
  heeler host show alpha
  heeler host show alpha --json

Sessions that are being moved from or to the host are listed, results of the host that were refused, newest first, and
files that it could not archive, or not take from the archive. Exit codes: 0 shown, 4 no such host.";

/// Help footer of `host drain`.
const DRAIN: &str = "Examples:
  heeler host drain alpha
  heeler host drain alpha --undo

A drained host gets no new runs; its runs continue. It stays drained when it starts again. Jobs without `host` wait
while the host that leads is drained: stop it, and another host leads. Exit codes: 0 done, 4 no such host.";

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
    /// Give a host no new runs, for maintenance
    #[command(after_help = DRAIN)]
    Drain(HostDrainArgs),
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

/// Arguments of `host drain`.
#[derive(Args)]
pub(crate) struct HostDrainArgs {
    /// Name of the host
    host: String,
    /// Give it new runs again
    #[arg(long)]
    undo: bool,
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
        HostCommand::Drain(args) => drain(&context, args),
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

fn list(context: &CommandContext, args: &HostListArgs) -> CommandResult {
    let hosts = hosts(context)?;
    if args.json {
        return Ok(output::print_json(&json!({ "hosts": hosts }))?);
    }
    if hosts.is_empty() {
        return Ok(output::print_line("this fleet has one machine only; see docs/hosts.md")?);
    }
    let headings = ["HOST", "ROLE", "SEEN", "RUNS", "LABELS", "VERSION", "MACHINE"];
    let mut table = OutputTable::new(&headings, &["LABELS", "MACHINE"]).keep_column("HOST");
    for host in &hosts {
        table.push(vec![
            output::one_line(&host.name).into(),
            host_role(host).into(),
            format!("{} s ago", host.seen_seconds_ago).into(),
            load_text(host).into(),
            label_text(host).into(),
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
    let faults = reader.archive_faults(Some(&host.name)).map_err(anyhow::Error::from)?;
    let moves = reader.moves_of_host(&host.name).map_err(anyhow::Error::from)?;
    if args.json {
        let moves: Vec<SessionMoveSummary> = moves.iter().map(SessionMoveSummary::from).collect();
        let shown =
            json!({ "host": host, "refused": refused, "moves": moves, "archiveFaults": faults });
        return Ok(output::print_json(&shown)?);
    }
    let lines = [
        ("host", host.name.clone()),
        ("role", host_role(&host).to_owned()),
        ("seen", format!("{} s ago", host.seen_seconds_ago)),
        ("runs without a result", load_text(&host)),
        ("labels", label_text(&host)),
        ("drained", host.drained_by.as_deref().map_or("no".to_owned(), |by| format!("by {by}"))),
        ("clock", clock_text(&host)),
        ("machine", host.machine.clone()),
        ("process", host.pid.to_string()),
        ("version", host.version.clone()),
        ("started", host.started_at.clone()),
        ("dashboard", host.url.clone().unwrap_or_else(|| "none".to_owned())),
    ];
    for (name, value) in lines {
        output::print_line(output::one_line(&format!("{name}: {value}")))?;
    }
    for moved in moves {
        let line = format!("session {} {}", moved.session, move_text(&moved));
        output::print_line(output::one_line(&line))?;
    }
    for refused in refused {
        let (run, at, reason) = (refused.run, refused.refused_at, refused.reason);
        let line = format!("refused result of run {run} at {at}: {reason}");
        output::print_line(output::one_line(&line))?;
    }
    for ArchiveFault { path, reason, .. } in faults {
        let line = format!("fault of the file archive at {path}: {reason}");
        output::print_line(output::one_line(&line))?;
    }
    Ok(())
}

fn drain(context: &CommandContext, args: &HostDrainArgs) -> CommandResult {
    let host = find(context, &args.host)?;
    let change = if args.undo { HostDrain::Undo } else { HostDrain::Begin };
    let command = DaemonCommand::DrainHost { host: host.name, change, by: context.caller_name() };
    daemon::print_answer(&daemon::request(context, &command)?, args.json)
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
