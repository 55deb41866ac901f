//! `heeler migrate store`: moves the records of a fleet to PostgreSQL and back. Start at [`run`].

use clap::{Args, Subcommand};
use heeler_config::StoreUrl;
use heeler_store::{MoveError, MoveReport, StoreOpenError, move_to_postgres, move_to_sqlite};
use serde_json::json;

use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::global_args::GlobalArgs;
use crate::output::{self, ProgressIndicator};
use crate::process_env;

/// Help footer of `migrate store`.
const STORE: &str = "Examples:
  heeler migrate store --to postgres://heeler@db.example.com/heeler
  heeler migrate store --to sqlite

Stop the daemon first. The records are copied in one transaction and compared by number and hash; an interrupted
move changes nothing and can be repeated. The source is kept, and marked so that no daemon starts on it. Transcripts
stay in the state directory. Afterwards, set `store:` in the config. See docs/hosts.md.
Exit codes: 0 moved, 2 invalid URL, 4 no records, 5 refused or in use.";

#[derive(Subcommand)]
pub(crate) enum MigrateCommand {
    /// Move the fleet's records to a PostgreSQL database, or back to a file
    #[command(after_help = STORE)]
    Store(MigrateStoreArgs),
}

/// Arguments of `migrate store`.
#[derive(Args)]
pub(crate) struct MigrateStoreArgs {
    /// URL of a PostgreSQL database without a password, or `sqlite`
    #[arg(long, value_name = "URL", value_parser = parse_target)]
    to: MoveTarget,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Target of a move.
#[derive(Debug, Clone)]
enum MoveTarget {
    Sqlite,
    Postgres(Box<StoreUrl>),
}

fn parse_target(text: &str) -> Result<MoveTarget, String> {
    match text {
        "sqlite" => Ok(MoveTarget::Sqlite),
        url => url.parse().map(|url| MoveTarget::Postgres(Box::new(url))),
    }
}

pub(crate) fn run(global: &GlobalArgs, command: &MigrateCommand) -> CommandResult {
    let MigrateCommand::Store(args) = command;
    let context = CommandContext::find(global)?;
    if !context.state_dir.is_dir() {
        let message = format!("there are no records in {}", context.state_dir);
        return Err(CommandFailure::message(FailureCode::NotFound, message));
    }
    let (dir, now) = (context.dir()?, process_env::now());
    let progress = ProgressIndicator::spinner("moving the records", context.quiet || args.json);
    let moved = match &args.to {
        MoveTarget::Sqlite => move_to_sqlite(&dir, now),
        MoveTarget::Postgres(url) => move_to_postgres(&dir, url, now),
    };
    progress.end();
    let report = moved.map_err(|error| match error {
        MoveError::Locked(_) | MoveError::Store(StoreOpenError::Lock { .. }) => {
            CommandFailure::new(FailureCode::Refused, error).hint("heeler stop")
        }
        MoveError::Refused(_) | MoveError::Open(_) | MoveError::Store(_) => {
            CommandFailure::new(FailureCode::Refused, error)
        }
        other => CommandFailure::new(FailureCode::Failed, other),
    })?;
    print(args, &report)
}

fn print(args: &MigrateStoreArgs, report: &MoveReport) -> CommandResult {
    let rows: u64 = report.tables.iter().map(|table| table.rows).sum();
    if args.json {
        let tables: serde_json::Map<_, _> =
            report.tables.iter().map(|table| (table.table.clone(), json!(table.rows))).collect();
        return Ok(output::print_json(&json!({
            "from": report.from, "to": report.to, "rows": rows, "tables": tables,
        }))?);
    }
    output::print_line(format!(
        "moved {} of {} to {}; the copy has the same content",
        output::pluralize(rows, "row"),
        output::pluralize(report.tables.len() as u64, "table"),
        report.to
    ))?;
    output::print_line(format!("{} is kept, and no daemon starts on it", report.from))?;
    output::print_line(match &args.to {
        MoveTarget::Postgres(url) => format!("next: set `store: {url}` in the config"),
        MoveTarget::Sqlite => "next: remove `store:` from the config".to_owned(),
    })?;
    Ok(())
}
