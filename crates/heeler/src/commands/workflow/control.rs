//! `heeler workflow cancel`, `retry`, `enable` and `disable`.

use std::time::{Duration, Instant};

use clap::Args;
use heeler_engine::{DaemonCommand, WorkflowOperation};
use heeler_model::WorkflowRunId;
use heeler_query::workflow_runs::WorkflowRunSummary;
use heeler_store::{StoreReader, WorkflowRunRow};
use serde_json::json;

use super::progress::WorkflowRunProgress;
use super::run::{WatchedRunOrigin, start_and_watch};
use super::{RunWatchArgs, find_run};
use crate::cli::{self, GlobalArgs};
use crate::context::CommandContext;
use crate::daemon;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::output;

/// What the help of `workflow cancel` shows at its end.
pub(super) const CANCEL: &str = "Examples:
  heeler workflow cancel wf-2026-11-15-k3v9q1
  heeler workflow cancel wf-2026-11-15-k3v9q1 --now

Its agents may finish what they are at; `--now` ends them at once. What people were asked is
withdrawn. `heeler workflow retry` lets the run go on later. Starts a daemon if none runs.
Exit codes: 0 cancelled, 1 a job of it did not end, 4 not found, 5 it has ended already.";

/// What the help of `workflow retry` shows at its end.
pub(super) const RETRY: &str = "Examples:
  heeler workflow retry wf-2026-11-15-k3v9q1
  heeler workflow retry wf-2026-11-15-k3v9q1 --from review

What succeeded stays done, with its outputs; what failed, was cancelled or never began is done.
With --from that phase and all that waits for it are done anew, whatever became of them. The run
goes by the workflow as it was when it began, whatever its file says now. It is watched as
`heeler workflow run` does, and the exit codes are the same: 0 succeeded, 1 failed or cancelled,
4 not found, 5 it has not ended or has succeeded, 130 interrupted.";

/// What the help of `workflow enable` and `disable` shows at its end.
pub(super) const SWITCH: &str = "Examples:
  heeler workflow disable build
  heeler workflow enable build

It is kept, with who did it and when. Starts a daemon if none runs, which ends when it is idle.
Exit codes: 0 changed, 4 not found.";

/// How long the jobs of a run may take to end: each of their graces, and more.
const END_WAIT: Duration = Duration::from_secs(60);

/// How often that is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Arguments of `workflow cancel`.
#[derive(Args)]
pub(crate) struct WorkflowCancelArgs {
    /// The run's id; a beginning will do while it is unique
    #[arg(value_name = "RUN", add = cli::workflow_runs())]
    id: String,
    /// End its agents at once, without letting them finish what they are at
    #[arg(long)]
    now: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `workflow retry`.
#[derive(Args)]
pub(crate) struct WorkflowRetryArgs {
    /// The run's id; a beginning will do while it is unique
    #[arg(value_name = "RUN", add = cli::workflow_runs())]
    id: String,
    /// Do this phase anew too, and all that waits for it
    #[arg(long, value_name = "PHASE")]
    from: Option<String>,
    #[command(flatten)]
    pub(crate) how: RunWatchArgs,
}

/// Cancels a run, and waits until its jobs have ended.
pub(super) fn cancel(global: &GlobalArgs, args: &WorkflowCancelArgs) -> CommandResult {
    let place = CommandContext::find(global)?;
    place.migrate_database()?;
    let (reader, row) = find_run(&place, &args.id)?;
    drop(reader);
    let id = row.head.id;
    send_order(&place, WorkflowOperation::Cancel { run: id.clone(), now: args.now })?;
    let row = wait_for_end(&place, &id)?;
    match args.json {
        true => Ok(output::print_json(&json!({ "run": WorkflowRunSummary::from(&row.head) }))?),
        false => {
            output::print_line(format!("{id}: {}", row.head.status))?;
            match global.quiet {
                true => Ok(()),
                false => {
                    Ok(output::print_note(&format!("let it go on: heeler workflow retry {id}"))?)
                }
            }
        }
    }
}

/// Asks the daemon for something about workflows.
pub(super) fn send_order(
    place: &CommandContext,
    order: WorkflowOperation,
) -> CommandResult<heeler_engine::CommandReply> {
    daemon::request(place, &DaemonCommand::Workflow { order, by: place.caller_name() })
}

/// Waits until a run has ended, and all its jobs.
fn wait_for_end(place: &CommandContext, id: &WorkflowRunId) -> CommandResult<WorkflowRunRow> {
    let deadline = Instant::now() + END_WAIT;
    loop {
        let reader = StoreReader::open(&place.dir()?)?;
        let gone =
            || CommandFailure::message(FailureCode::Failed, format!("the record of {id} is gone"));
        let row = reader.workflow_run(id)?.ok_or_else(gone)?;
        let stand = WorkflowRunProgress::read(&reader, row, None)?;
        let parts = stand.phases.iter().flat_map(|phase| &phase.parts);
        let open = parts.filter(|part| part.outcome.is_none()).count();
        if stand.row.head.status.is_final() && open == 0 {
            return Ok(stand.row);
        }
        if Instant::now() >= deadline {
            let message = format!(
                "{} of {id} did not end within {} s",
                output::pluralize(open as u64, "job"),
                END_WAIT.as_secs()
            );
            let hint = format!("heeler workflow show {id}");
            return Err(CommandFailure::message(FailureCode::Failed, message).hint(hint));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Lets a run go on.
pub(super) fn retry(global: &GlobalArgs, args: &WorkflowRetryArgs) -> CommandResult {
    let place = CommandContext::find(global)?;
    place.migrate_database()?;
    let (reader, row) = find_run(&place, &args.id)?;
    drop(reader);
    let order = WorkflowOperation::Retry { run: row.head.id, from: args.from.clone() };
    start_and_watch(global, &place, &args.how, order, WatchedRunOrigin::Retried)
}

/// Lets runs of a workflow start, or not.
pub(super) fn set_enabled(global: &GlobalArgs, name: &str, on: bool, json: bool) -> CommandResult {
    let place = CommandContext::find(global)?;
    let workflow = name.to_owned();
    let wanted = match on {
        true => WorkflowOperation::Enable { workflow },
        false => WorkflowOperation::Disable { workflow },
    };
    daemon::print_answer(&send_order(&place, wanted)?, json)
}
