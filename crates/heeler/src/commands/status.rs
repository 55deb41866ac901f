//! `heeler status`: an overview of the fleet.
//!
//! It is read from the state directory, with or without a daemon. The daemon is asked only for its
//! current faults and budgets. Start at [`run`].

mod overview;
mod page;
mod snapshot;
mod state_writer;
mod watch;

use std::io;

use clap::Args;
use heeler_query::jobs::JobSummary;

use crate::context::CommandContext;
use crate::daemon;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::global_args::GlobalArgs;
use crate::last_lines::LastLines;
use crate::output::{self, SafeText};
use crate::process_env;
use crate::shared_args;
use crate::wrap;

use self::overview::StatusOverview;
use self::page::{StatusPage, heading, page};
use self::snapshot::StatusSnapshot;
pub(crate) use self::state_writer::StateWriterInfo;

/// Help footer of `status`.
pub(crate) const ABOUT: &str = "Examples:
  heeler status
  heeler status coder
  heeler status --watch
  heeler status --check || heeler start -d
  heeler status --json | jq '.waiting[] | {id, waits}'

The status is read from the state directory, with or without a daemon, and nothing is changed.
Exit codes: 0 shown, even if something failed, 3 --check found no daemon, 4 no such agent,
130 --watch was interrupted.";

/// Arguments of `status`.
#[derive(Args)]
pub(crate) struct StatusArgs {
    /// Show only this agent
    #[arg(add = shared_args::agents())]
    agent: Option<String>,
    /// Refresh every second, until `q` or Ctrl-C
    #[arg(short, long, conflicts_with = "json")]
    watch: bool,
    /// Print nothing; exit with code 3 if no daemon answers (for health checks)
    #[arg(long, conflicts_with_all = ["json", "watch", "agent"])]
    check: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `status`.
pub(crate) fn run(global: &GlobalArgs, args: &StatusArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    if args.check {
        return check_daemon(&context);
    }
    if args.watch {
        let last_lines = LastLines::default();
        return watch::run(|rows| {
            let snapshot = StatusSnapshot::take(&context, args.agent.as_deref())?;
            let size = ScreenSize { columns: output::width(), rows: Some(rows) };
            watch_page(&snapshot, &context, &last_lines, size)
        });
    }
    let snapshot = StatusSnapshot::take(&context, args.agent.as_deref())?;
    if args.json {
        return Ok(output::print_json(&snapshot.fleet)?);
    }
    // A table has no room for causes and reasons there.
    if let Some(columns) = wrap::screen_width(io::stdout()).filter(|it| *it < NARROW_COLUMNS) {
        let size = ScreenSize { columns, rows: None };
        let lines = watch_page(&snapshot, &context, &LastLines::default(), size)?;
        return lines.into_iter().try_for_each(|line| Ok(output::print_line(line)?));
    }
    let StatusPage { lines, notes } = page(&snapshot, &context, process_env::now());
    for line in lines {
        output::print_line(line)?;
    }
    notes.iter().try_for_each(|note| Ok(output::print_note(note)?))
}

/// Columns below which tables are replaced by lines.
const NARROW_COLUMNS: usize = 70;

/// Room for a page; without rows, all lines are shown.
struct ScreenSize {
    columns: usize,
    rows: Option<usize>,
}

/// Formats the page that fits a screen: the heading, faults and budgets, then the overview.
fn watch_page(
    snapshot: &StatusSnapshot,
    context: &CommandContext,
    last_lines: &LastLines,
    size: ScreenSize,
) -> CommandResult<Vec<SafeText>> {
    let now = process_env::now();
    let dir = context.dir().ok();
    let activity = |job: &JobSummary| {
        let id = job.id.parse().ok();
        dir.as_ref().zip(id).map(|(dir, id)| last_lines.of(dir, &id)).unwrap_or_default()
    };
    let mut lines = heading(snapshot, context, now, size.columns);
    let rows = size.rows.map(|rows| rows.saturating_sub(lines.len()));
    let overview = StatusOverview::new(&snapshot.fleet, now, activity);
    lines.extend(overview.lines(size.columns, rows));
    Ok(lines)
}

/// Fails unless the fleet has a permanent daemon that answers.
fn check_daemon(context: &CommandContext) -> CommandResult {
    // A daemon that is starting has the lock, but answers only once it works.
    match daemon::is_permanent(context)? {
        true => Ok(()),
        false => Err(CommandFailure::silent(FailureCode::NoDaemon)),
    }
}
