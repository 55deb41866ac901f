//! `heeler workflow run` and `watch`: start or join a run, show it, and exit with its outcome.
//!
//! The daemon does the work, and one is started if none runs, so that closing the terminal or
//! killing this command loses nothing. Start at [`run`].

use std::fs::File;
use std::io::Read as _;

use anstyle::{AnsiColor, Style};
use clap::Args;
use heeler_config::workflow::{Phase, PhaseWork};
use heeler_engine::{
    CommandReply, DaemonCommand, WorkflowMode, WorkflowOperation, WorkflowRunRequest,
};
use heeler_model::workflow::WorkflowRunStatus;
use heeler_model::{ApprovalStatus, TriggerType, WorkflowRunId};
use heeler_query::progress::{is_agent_question, load_phase_outputs};
use heeler_store::{ApprovalFilter, StoreReader, WorkflowRunRow};
use serde_json::{Map, Value, json};

use super::runs;
use super::watch::{
    self, RunWatchArgs, WatchedRunOrigin, WorkflowWatchOptions, WorkflowWatchOutcome,
};
use crate::context::CommandContext;
use crate::daemon;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config;
use crate::global_args::GlobalArgs;
use crate::job_watch::JobEventListener;
use crate::output::{self, SafeText};
use crate::process_env;
use crate::shared_args;
use crate::state_reader::record_gone;
use crate::terminal_markdown::TerminalMarkdown;
use crate::text_file;

/// Help footer of `workflow run`.
pub(super) const ABOUT: &str = "Examples:
  heeler workflow run build -i task='Add a greeting'
  heeler workflow run nightly -i 'repos=[\"a\",\"b\"]' --follow
  gh issue view 7 --json title,body | heeler workflow run triage --inputs - --trigger-id issue-7
  id=$(heeler workflow run build -i task=x --detach -q); heeler workflow watch $id
  heeler workflow run build -i task=x --dry-run
  heeler workflow run build --replay wf-2026-11-15-k3v9q1

The workflow's `messages` and `final_message` go to stdout, its progress to stderr; for a workflow
without messages, the output of its last phase is printed. If the workflow or an agent asks a
question, the run and this command wait: answer here at a terminal, or anywhere with `heeler approvals`;
--until-asked returns instead. If a run with the same --trigger-id is active, it is watched and no new
run is started. Ctrl-C cancels the run; a second Ctrl-C kills it at once. A run that was already
active continues.

--dry-run calls no agent, runs no command of the workflow and spends nothing: answers are made up, and
every gate approves; scripted agents follow their scripts. --replay repeats the answers of an earlier
run, including those at gates, so that a changed workflow can be tried.

Exit codes:
  0    the run succeeded, was started with --detach, or waits for an answer with --until-asked
  1    the run failed or was cancelled
  2    an input or a file is invalid
  3    the fleet was stopped before the run ended; the run continues with `heeler start`
  4    no such workflow or run
  5    refused: the workflow is disabled
  130  interrupted by Ctrl-C";

/// Help footer of `workflow watch`.
pub(super) const WATCH: &str = "Examples:
  heeler workflow watch wf-2026-11-15-k3v9q1
  heeler workflow watch wf-2026 --follow

Ctrl-C ends only this command; the run continues. Exit codes are those of `heeler workflow run`.";

/// Lines of the last phase's output that are shown for a workflow without messages.
const OUTPUT_LINES_MAX: usize = 20;

/// Maximum size of inputs from a file or standard input.
const INPUTS_BYTES_MAX: u64 = 1 << 20;

/// Arguments of `workflow run`.
#[derive(Args)]
pub(crate) struct WorkflowRunArgs {
    /// Workflow name
    #[arg(value_name = "NAME", add = shared_args::workflows())]
    workflow: String,
    /// Set an input; write a list as `a,b` or as JSON
    #[arg(short, long = "input", value_name = "KEY=VALUE", value_parser = key_value)]
    input: Vec<(String, String)>,
    /// JSON file with inputs; `-` reads standard input; --input takes precedence
    #[arg(long, value_name = "FILE")]
    inputs: Option<String>,
    /// Subject of the run; a workflow has at most one active run per ID
    #[arg(long, value_name = "ID")]
    trigger_id: Option<String>,
    /// Simulate: call only scripted agents, run no command, spend nothing
    #[arg(long, conflicts_with = "replay")]
    dry_run: bool,
    /// Simulate with the messages and answers of this earlier run
    #[arg(long, value_name = "RUN", add = shared_args::workflow_runs())]
    replay: Option<String>,
    #[command(flatten)]
    pub(crate) how: RunWatchArgs,
}

/// Arguments of `workflow watch`.
#[derive(Args)]
pub(crate) struct WorkflowWatchArgs {
    /// Run ID or unique prefix
    #[arg(value_name = "RUN", add = shared_args::workflow_runs())]
    id: String,
    /// Also show the agents' messages and actions, each line with its phase
    #[arg(short, long)]
    follow: bool,
    /// Print one JSON document when the run has ended
    #[arg(long)]
    pub(crate) json: bool,
}

fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

/// Runs `workflow run`.
pub(super) fn run(global: &GlobalArgs, args: &WorkflowRunArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    // The daemon may use files that it loaded earlier, so it checks the name and inputs.
    context.config_file()?;
    let mut inputs = match &args.inputs {
        Some(file) => read_inputs(&context, file)?,
        None => Map::new(),
    };
    // After the file, so that options take precedence.
    inputs.extend(args.input.iter().map(|(key, value)| (key.clone(), Value::from(value.as_str()))));
    // The replayed run is read below, and a reader refuses an older database.
    context.migrate_database()?;
    let mode = match (&args.replay, args.dry_run) {
        (Some(run), _) => {
            let (_, row) = context.find_workflow_run(run)?;
            // Reuse the earlier run's inputs, unless they are given now.
            if let Value::Object(before) = row.context {
                for (key, value) in before {
                    inputs.entry(key).or_insert(value);
                }
            }
            WorkflowMode::Replay { run: row.head.id }
        }
        (None, true) => WorkflowMode::Dry,
        (None, false) => WorkflowMode::Real,
    };
    let order = WorkflowOperation::Run(WorkflowRunRequest {
        workflow: args.workflow.clone(),
        inputs,
        trigger_id: args.trigger_id.clone(),
        trigger: TriggerType::Manual,
        mode,
        subject: None,
    });
    // Before the run starts: its display would push warnings off the screen.
    if !(global.quiet || args.how.json) {
        warn(&context, &args.workflow)?;
    }
    start_and_watch(global, &context, &args.how, order, WatchedRunOrigin::New)
}

/// Prints the workflow's warnings.
fn warn(context: &CommandContext, workflow: &str) -> CommandResult {
    let loaded = fleet_config::try_load(context, context.config_file()?, &text_file::read_text)?;
    // The daemon reports config faults, if it uses this config.
    let Ok(loaded) = loaded else { return Ok(()) };
    let warnings = loaded.workflow(workflow).map(|it| &it.warnings);
    Ok(warnings.map_or(Ok(()), |warnings| fleet_config::print_faults(context, warnings))?)
}

/// Runs `workflow watch`.
pub(super) fn watch(global: &GlobalArgs, args: &WorkflowWatchArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    let (reader, row) = context.find_workflow_run(&args.id)?;
    drop(reader);
    let how =
        RunWatchArgs { detach: false, follow: args.follow, until_asked: false, json: args.json };
    // Ctrl-C must only end this command, so it is handled from here on.
    let listener = JobEventListener::new()?;
    watch_to_end(global, &context, &how, &row.head.id, WatchedRunOrigin::Joined, listener)
}

fn read_inputs(context: &CommandContext, file: &str) -> CommandResult<Map<String, Value>> {
    let name = if file == "-" { "standard input" } else { file };
    let usage = |why: String| {
        CommandFailure::message(FailureCode::Usage, format!("cannot use {name}: {why}"))
    };
    let mut bytes = Vec::new();
    // A reader of limited length, because standard input may never end.
    let read = match file {
        "-" => std::io::stdin().lock().take(INPUTS_BYTES_MAX + 1).read_to_end(&mut bytes),
        path => File::open(context.working_dir.join(path))
            .and_then(|file| file.take(INPUTS_BYTES_MAX + 1).read_to_end(&mut bytes)),
    };
    read.map_err(|error| usage(error.to_string()))?;
    if bytes.len() as u64 > INPUTS_BYTES_MAX {
        return Err(usage(format!("it is longer than {INPUTS_BYTES_MAX} bytes")));
    }
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(inputs)) => Ok(inputs),
        Ok(_) => Err(usage("it is not a JSON object such as {\"key\": \"value\"}".to_owned())),
        Err(error) => Err(usage(format!("it is not JSON: {error}"))),
    }
}

/// Sends the operation that starts or continues a run, and watches the run.
pub(super) fn start_and_watch(
    global: &GlobalArgs,
    context: &CommandContext,
    how: &RunWatchArgs,
    order: WorkflowOperation,
    begun: WatchedRunOrigin,
) -> CommandResult {
    let mut listener = JobEventListener::new()?;
    let command = DaemonCommand::Workflow { order, by: context.caller_name() };
    let (run, status, is_new) = match listener.request_job(context, command)? {
        CommandReply::WorkflowRun { run, status, is_new } => (run, status, is_new),
        other => return Err(daemon::unexpected(&other)),
    };
    if how.detach {
        return print_detached(global, how, &run, status, (begun, is_new));
    }
    // A retried run is never new, but it belongs to this command.
    let joined = begun == WatchedRunOrigin::New && !is_new;
    if joined && !(how.json || global.quiet) {
        output::print_note(&format!(
            "{run} is already active; watching it instead of starting a new run"
        ))?;
    }
    watch_to_end(
        global,
        context,
        how,
        &run,
        if joined { WatchedRunOrigin::Joined } else { begun },
        listener,
    )
}

fn print_detached(
    global: &GlobalArgs,
    how: &RunWatchArgs,
    run: &WorkflowRunId,
    status: WorkflowRunStatus,
    (begun, is_new): (WatchedRunOrigin, bool),
) -> CommandResult {
    if how.json {
        let document = json!({ "run": { "id": run, "status": status, "isNew": is_new } });
        return Ok(output::print_json(&document)?);
    }
    output::print_line(run.as_str())?;
    if !global.quiet {
        let known = match (begun, is_new) {
            (WatchedRunOrigin::Retried, _) => "continued; ",
            (_, true) => "",
            (_, false) => "already active; ",
        };
        // The run continues even if this note cannot be written.
        drop(output::print_note(&format!("{known}watch it: heeler workflow watch {run}")));
    }
    Ok(())
}

/// Watches a run until it has ended, and returns the matching exit code.
fn watch_to_end(
    global: &GlobalArgs,
    context: &CommandContext,
    how: &RunWatchArgs,
    run: &WorkflowRunId,
    begun: WatchedRunOrigin,
    listener: JobEventListener,
) -> CommandResult {
    let engine = process_env::engine_fleet(&context.state_dir, &context.env)?;
    let reader = StoreReader::open(&engine.dir)?;
    let gone = || CommandFailure { code: FailureCode::NotFound, ..record_gone(run.as_str()) };
    // The definition is that of the run's start; the file may have changed since.
    let row = reader.workflow_run(run)?.ok_or_else(gone)?;
    let workflow = context.open_records()?.workflow_of_run(&reader, &row)?;
    drop(reader);
    let view = WorkflowWatchOptions {
        context,
        run,
        workflow,
        origin: begun,
        how,
        is_quiet: global.quiet || how.json,
    };
    let seen = watch::watch(&view, listener)?;
    let reader = StoreReader::open(&engine.dir)?;
    // Read again: the watch may have ended without the end of the run.
    let row = reader.workflow_run(run)?.ok_or_else(gone)?;
    // The run's outcome decides the exit code, even if it cannot be printed.
    if let Err(failure) = print_outcome(global, context, how, &reader, &row, &seen) {
        tracing::debug!(error = ?failure.error, "cannot print the outcome of the run");
    }
    match row.head.status {
        // A run that succeeded in spite of Ctrl-C counts as a success.
        WorkflowRunStatus::Succeeded => Ok(()),
        _ if seen.interrupts > 0 => Err(CommandFailure::silent(FailureCode::Interrupted)),
        WorkflowRunStatus::Failed | WorkflowRunStatus::Cancelled => {
            Err(CommandFailure::silent(FailureCode::Failed))
        }
        _ if seen.is_unattended => Err(CommandFailure::silent(FailureCode::NoDaemon)),
        // --until-asked: the run waits for an answer.
        _ => Ok(()),
    }
}

/// Prints the outcome of a run.
fn print_outcome(
    global: &GlobalArgs,
    context: &CommandContext,
    how: &RunWatchArgs,
    reader: &StoreReader,
    row: &WorkflowRunRow,
    seen: &WorkflowWatchOutcome,
) -> CommandResult {
    let head = &row.head;
    let success = head.status == WorkflowRunStatus::Succeeded;
    if how.json {
        let run = context.open_records()?.workflow_run_details(reader, row.clone())?;
        let document = json!({ "success": success, "message": seen.last_message, "run": run });
        return Ok(output::print_json(&document)?);
    }
    if success {
        print_output(global, context, reader, row)?;
    }
    // A failure is printed even with `--quiet`: it is an error, not a note.
    if global.quiet && success {
        return Ok(seen.last_message.as_deref().map(output::print_line).transpose().map(drop)?);
    }
    let took = runs::duration_text(head.started_at, head.finished_at)
        .map(|took| format!(" in {took}"))
        .unwrap_or_default();
    let cost = runs::cost(head.spent).map(|cost| format!(", {cost}")).unwrap_or_default();
    let pending = Some(ApprovalStatus::Pending);
    let filter = ApprovalFilter { run: Some(head.id.to_string()), status: pending };
    let questions = reader.approvals(&filter, None, usize::MAX)?;
    // While an agent asks, the run itself is still running; for the user it waits.
    let status = match head.status {
        WorkflowRunStatus::Running if questions.iter().any(is_agent_question) => {
            WorkflowRunStatus::Paused
        }
        status => status,
    };
    output::print_error(status_symbol(status).append(format!(
        "{}{took}{cost}, {}",
        runs::mode_suffix(head.mode.as_deref()),
        head.id
    )))?;
    if let Some(error) = head.error.as_deref().filter(|_| !success) {
        output::print_error(format!("  {}", output::one_line(error)))?;
    }
    let id = &head.id;
    let next = match status {
        WorkflowRunStatus::Succeeded => format!("heeler workflow show {id}"),
        WorkflowRunStatus::Failed | WorkflowRunStatus::Cancelled => {
            format!("heeler workflow show {id}, heeler workflow retry {id}")
        }
        WorkflowRunStatus::Paused => format!("heeler approvals list, heeler workflow watch {id}"),
        WorkflowRunStatus::Running | WorkflowRunStatus::Queued => {
            format!("heeler workflow watch {id}")
        }
    };
    Ok(output::print_error(SafeText::styled(Style::new().dimmed(), &format!("  next: {next}")))?)
}

/// Prints the output of the last phase if the workflow has printed no messages.
fn print_output(
    global: &GlobalArgs,
    context: &CommandContext,
    reader: &StoreReader,
    row: &WorkflowRunRow,
) -> CommandResult {
    let id = &row.head.id;
    let events = reader.workflow_events(id, 0, usize::MAX)?;
    let workflow = context.open_records()?.workflow_of_run(reader, row)?;
    // Messages were printed while the run went on; the output would repeat them.
    let Some(workflow) = workflow.filter(|_| events.iter().all(|it| it.kind != "message")) else {
        return Ok(());
    };
    let name = |phase: &Phase| {
        let is_of_agent = matches!(phase.work, PhaseWork::Agent { .. });
        (phase.name.as_str().to_owned(), is_of_agent)
    };
    let names: Vec<(String, bool)> = workflow.phases.iter().map(name).collect();
    let outputs = load_phase_outputs(reader, row, Some(workflow))?;
    // The last phase may have been skipped or have no output.
    let last = names.iter().rev().find_map(|(name, is_of_agent)| {
        let text = outputs.get(name)?.trim();
        (!text.is_empty()).then_some((name, *is_of_agent, text))
    });
    let Some((name, is_of_agent, text)) = last else { return Ok(()) };
    // The output of a command is no markdown.
    let lines = match TerminalMarkdown::find(&context.env).filter(|_| is_of_agent) {
        Some(markdown) => markdown.lines(text, 0),
        None => text.lines().map(SafeText::from).collect(),
    };
    // With `--quiet` the output is likely read by a program, which needs all of it.
    let shown = if global.quiet { lines.len() } else { lines.len().min(OUTPUT_LINES_MAX) };
    lines[..shown].iter().try_for_each(|line| output::print_line(line.clone()))?;
    if shown < lines.len() {
        let rest = lines.len() - shown;
        output::print_note(&format!(
            "… {rest} more lines: heeler workflow logs {id} --phase {name}"
        ))?;
    }
    Ok(())
}

fn status_symbol(status: WorkflowRunStatus) -> SafeText {
    let (color, text) = match status {
        WorkflowRunStatus::Succeeded => (AnsiColor::Green, "✓ succeeded"),
        WorkflowRunStatus::Failed => (AnsiColor::Red, "✗ failed"),
        WorkflowRunStatus::Cancelled => (AnsiColor::Yellow, "✗ cancelled"),
        WorkflowRunStatus::Paused => (AnsiColor::Magenta, "◆ waiting for you"),
        WorkflowRunStatus::Running => (AnsiColor::Cyan, "· running"),
        WorkflowRunStatus::Queued => (AnsiColor::Cyan, "· queued"),
    };
    SafeText::styled(color.on_default(), text)
}
