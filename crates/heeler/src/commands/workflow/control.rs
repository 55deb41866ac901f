//! `heeler workflow cancel`, `retry`, `enable`, `disable` and `reset`.

use std::time::{Duration, Instant};

use clap::Args;
use heeler_engine::{DaemonCommand, WorkflowOperation};
use heeler_model::WorkflowRunId;
use heeler_query::progress::WorkflowRunProgress;
use heeler_query::workflow_runs::WorkflowRunSummary;
use heeler_store::{StoreReader, WorkflowRunRow};
use serde_json::json;

use super::run::start_and_watch;
use super::watch::{RunWatchArgs, WatchedRunOrigin};
use crate::context::CommandContext;
use crate::daemon;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::global_args::GlobalArgs;
use crate::output;
use crate::shared_args;
use crate::state_reader::record_gone;

/// Help footer of `workflow cancel`.
pub(super) const CANCEL: &str = "Examples:
  heeler workflow cancel wf-2026-11-15-k3v9q1
  heeler workflow cancel wf-2026-11-15-k3v9q1 --now

Its agents may finish their current step; `--now` kills them at once. Open questions are withdrawn.
`heeler workflow retry` continues the run later. Starts a daemon if none runs.
Exit codes: 0 cancelled, 1 one of its jobs did not end in time, 4 not found, 5 already ended.";

/// Help footer of `workflow retry`.
pub(super) const RETRY: &str = "Examples:
  heeler workflow retry wf-2026-11-15-k3v9q1
  heeler workflow retry wf-2026-11-15-k3v9q1 --from review

Finished phases keep their outputs; phases that failed, were cancelled or never started are run. With
--from, that phase and all phases that depend on it are run again, whatever their outcome. The run
uses the workflow as it was when the run started, even if the file has changed. It is watched like
`heeler workflow run`, with the same exit codes: 0 succeeded, 1 failed or cancelled, 4 not found,
5 still active or already succeeded, 130 interrupted.";

/// Help footer of `workflow enable`, `disable` and `reset`.
pub(super) const SWITCH: &str = "Examples:
  heeler workflow disable build
  heeler workflow enable build
  heeler workflow reset build       # also for a workflow that the fleet no longer has

The change is recorded with its author and time; `reset` removes that record. Starts a temporary daemon if none runs.
Exit codes: 0 changed, 4 not found.";

/// Time allowed for a run's jobs to end; longer than all their grace periods together.
const END_WAIT: Duration = Duration::from_secs(60);

const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Arguments of `workflow cancel`.
#[derive(Args)]
pub(crate) struct WorkflowCancelArgs {
    /// Run ID or unique prefix
    #[arg(value_name = "RUN", add = shared_args::workflow_runs())]
    id: String,
    /// Kill its agents at once instead of letting them finish their current step
    #[arg(long)]
    now: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `workflow retry`.
#[derive(Args)]
pub(crate) struct WorkflowRetryArgs {
    /// Run ID or unique prefix
    #[arg(value_name = "RUN", add = shared_args::workflow_runs())]
    id: String,
    /// Run this phase again, with all phases that depend on it
    #[arg(long, value_name = "PHASE")]
    from: Option<String>,
    #[command(flatten)]
    pub(crate) how: RunWatchArgs,
}

/// Cancels a run, and waits until its jobs have ended.
pub(super) fn cancel(global: &GlobalArgs, args: &WorkflowCancelArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    context.migrate_database()?;
    let (reader, row) = context.find_workflow_run(&args.id)?;
    drop(reader);
    let id = row.head.id;
    send_order(&context, WorkflowOperation::Cancel { run: id.clone(), now: args.now })?;
    // The run counts as cancelled at once, but its agents may still finish their step.
    let row = wait_for_end(&context, &id)?;
    match args.json {
        true => Ok(output::print_json(&json!({ "run": WorkflowRunSummary::from(&row.head) }))?),
        false => {
            output::print_line(format!("{id}: {}", row.head.status))?;
            match global.quiet {
                true => Ok(()),
                false => {
                    Ok(output::print_note(&format!("to continue it: heeler workflow retry {id}"))?)
                }
            }
        }
    }
}

/// Sends a workflow operation to the daemon.
pub(super) fn send_order(
    context: &CommandContext,
    order: WorkflowOperation,
) -> CommandResult<heeler_engine::CommandReply> {
    daemon::request(context, &DaemonCommand::Workflow { order, by: context.caller_name() })
}

/// Waits until a run and all its jobs have ended.
fn wait_for_end(context: &CommandContext, id: &WorkflowRunId) -> CommandResult<WorkflowRunRow> {
    let deadline = Instant::now() + END_WAIT;
    loop {
        let reader = StoreReader::open(&context.dir()?)?;
        let row = reader.workflow_run(id)?.ok_or_else(|| record_gone(id.as_str()))?;
        // The definition is not needed to count open parts.
        let progress = WorkflowRunProgress::read(&reader, row, None)?;
        let parts = progress.phases.iter().flat_map(|phase| &phase.parts);
        let open = parts.filter(|part| part.outcome.is_none()).count();
        if progress.row.head.status.is_final() && open == 0 {
            return Ok(progress.row);
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

/// Runs `workflow retry`.
pub(super) fn retry(global: &GlobalArgs, args: &WorkflowRetryArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    context.migrate_database()?;
    let (reader, row) = context.find_workflow_run(&args.id)?;
    drop(reader);
    let order = WorkflowOperation::Retry { run: row.head.id, from: args.from.clone() };
    start_and_watch(global, &context, &args.how, order, WatchedRunOrigin::Retried)
}

/// Runs `workflow enable` and `disable`.
pub(super) fn set_enabled(global: &GlobalArgs, name: &str, on: bool, json: bool) -> CommandResult {
    let context = CommandContext::find(global)?;
    let workflow = name.to_owned();
    let wanted = match on {
        true => WorkflowOperation::Enable { workflow },
        false => WorkflowOperation::Disable { workflow },
    };
    daemon::print_answer(&send_order(&context, wanted)?, json)
}

/// Runs `workflow reset`.
pub(super) fn reset(global: &GlobalArgs, name: &str, json: bool) -> CommandResult {
    let context = CommandContext::find(global)?;
    let wanted = WorkflowOperation::Reset { workflow: name.to_owned() };
    daemon::print_answer(&send_order(&context, wanted)?, json)
}
