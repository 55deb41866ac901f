//! `heeler workflow run` and `watch`: begins a run or joins one, shows it, ends with its outcome.
//!
//! The daemon does the work, and one is started if there is none, so that closing the terminal or
//! killing this command loses nothing.

use std::fs::File;
use std::io::Read as _;

use anstyle::{AnsiColor, Style};
use clap::Args;
use heeler_engine::{Answer, Command, WorkflowMode, WorkflowOrder, WorkflowWanted};
use heeler_model::workflow::CourseStatus;
use heeler_model::{ApprovalStatus, TriggerType, WorkflowRunId};
use heeler_store::{ApprovalFilter, Reader, WorkflowRunRow};
use serde_json::{Map, Value, json};

use super::stand::{is_of_agent, outputs};
use super::watch::{self, Seen, View};
use super::{Watching, definition, find_run, runs};
use crate::cli::{self, Global};
use crate::daemon;
use crate::failure::{Code, Failure, Outcome};
use crate::fleet;
use crate::live::Listener;
use crate::output::{self, Text};
use crate::place::{self, Place};

/// What the help of `workflow run` shows at its end.
pub(super) const ABOUT: &str = "Examples:
  heeler workflow run build -i task='Add a greeting'
  heeler workflow run nightly -i 'repos=[\"a\",\"b\"]' --follow
  gh issue view 7 --json title,body | heeler workflow run triage --inputs - --trigger-id issue-7
  id=$(heeler workflow run build -i task=x --detach -q); heeler workflow watch $id
  heeler workflow run build -i task=x --dry-run
  heeler workflow run build --replay wf-2026-11-15-k3v9q1

What the workflow says (its `messages` and `final_message`) goes to stdout, its progress to stderr;
of a workflow that says nothing, what its last phase said. Where it or one of its agents asks
somebody, the run waits, and so does this command: answer it here if this is a terminal, or anywhere
else with `heeler approvals`; --until-asked returns instead. While a run with the same --trigger-id
goes on, that run is watched and none is started. Ctrl-C cancels the run, twice ends it at once; a
run that was only joined goes on.

--dry-run asks no agent, runs no command of the workflow and spends nothing: what would be said is
made up, and every gate consents; scripted agents play their scripts. --replay says again what was said in an earlier run, gates
included, so that a changed workflow can be tried.

Exit codes:
  0    the run succeeded, was started with --detach, or waits for somebody with --until-asked
  1    it failed or was cancelled
  2    an input or a file is wrong
  3    the fleet was stopped before the run ended; it goes on with `heeler start`
  4    there is no such workflow or run
  5    refused: the workflow is switched off
  130  interrupted by Ctrl-C";

/// What the help of `workflow watch` shows at its end.
pub(super) const WATCH: &str = "Examples:
  heeler workflow watch wf-2026-11-15-k3v9q1
  heeler workflow watch wf-2026 --follow

Ctrl-C ends the watching; the run goes on. Exit codes as those of `heeler workflow run`.";

/// How many lines of the last phase's output are shown where the workflow itself says nothing.
const OUTPUT_LINES_MAX: usize = 20;

/// The most that inputs from a file or standard input may be.
const INPUTS_BYTES_MAX: u64 = 1 << 20;

/// Arguments of `workflow run`.
#[derive(Args)]
pub(crate) struct RunArgs {
    /// The workflow
    #[arg(value_name = "NAME", add = cli::workflows())]
    workflow: String,
    /// Give an input; lists as `a,b` or JSON
    #[arg(short, long = "input", value_name = "KEY=VALUE", value_parser = key_value)]
    input: Vec<(String, String)>,
    /// Give inputs as a JSON object: a file, or `-` for standard input; --input wins over it
    #[arg(long, value_name = "FILE")]
    inputs: Option<String>,
    /// What the run is about; one run of a workflow is at it at a time
    #[arg(long, value_name = "ID")]
    trigger_id: Option<String>,
    /// Only play it: ask no agent but scripted ones, run no command, spend nothing
    #[arg(long, conflicts_with = "replay")]
    dry_run: bool,
    /// Only play it, with what was said and answered in this earlier run
    #[arg(long, value_name = "RUN", add = cli::workflow_runs())]
    replay: Option<String>,
    #[command(flatten)]
    pub(crate) how: Watching,
}

/// Arguments of `workflow watch`.
#[derive(Args)]
pub(crate) struct WatchArgs {
    /// The run's id; a beginning will do while it is unique
    #[arg(value_name = "RUN", add = cli::workflow_runs())]
    id: String,
    /// Show what the agents say and do too, each line with its phase
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

/// How a run that is watched came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begun {
    /// It is asked for.
    New,
    /// It is let go on.
    Again,
    /// It was there.
    Joined,
}

/// Runs a workflow.
pub(super) fn run(global: &Global, args: &RunArgs) -> Outcome {
    let place = Place::find(global)?;
    // A daemon that is there may go by files that it read earlier: it judges the name and inputs.
    place.config_file()?;
    let mut inputs = match &args.inputs {
        Some(file) => read_inputs(&place, file)?,
        None => Map::new(),
    };
    inputs.extend(args.input.iter().map(|(key, value)| (key.clone(), Value::from(value.as_str()))));
    place.bring_up_to_date()?;
    let mode = match (&args.replay, args.dry_run) {
        (Some(run), _) => {
            let (_, row) = find_run(&place, run)?;
            // What it was given then, unless something else is given now.
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
    let order = WorkflowOrder::Run(WorkflowWanted {
        workflow: args.workflow.clone(),
        inputs,
        trigger_id: args.trigger_id.clone(),
        trigger: TriggerType::Manual,
        mode,
    });
    if !(global.quiet || args.how.json) {
        warn(&place, &args.workflow)?;
    }
    attend(global, &place, &args.how, order, Begun::New)
}

/// Tells what works in a workflow, but not as its author may think.
fn warn(place: &Place, workflow: &str) -> Outcome {
    let loaded = fleet::try_load(place, place.config_file()?, &fleet::read_text)?;
    // What is wrong with the config is told by the daemon, if it goes by it.
    let Ok(loaded) = loaded else { return Ok(()) };
    let warnings = loaded.workflow(workflow).map(|it| &it.warnings);
    Ok(warnings.map_or(Ok(()), |warnings| fleet::print_faults(place, warnings))?)
}

/// Joins a run.
pub(super) fn watch(global: &Global, args: &WatchArgs) -> Outcome {
    let place = Place::find(global)?;
    let (reader, row) = find_run(&place, &args.id)?;
    drop(reader);
    let how = Watching { detach: false, follow: args.follow, until_asked: false, json: args.json };
    let listener = Listener::new()?;
    see(global, &place, &how, &row.head.id, Begun::Joined, listener)
}

fn read_inputs(place: &Place, file: &str) -> Outcome<Map<String, Value>> {
    let name = if file == "-" { "standard input" } else { file };
    let usage = |why: String| Failure::message(Code::Usage, format!("cannot use {name}: {why}"));
    let mut bytes = Vec::new();
    let read = match file {
        "-" => std::io::stdin().lock().take(INPUTS_BYTES_MAX + 1).read_to_end(&mut bytes),
        path => File::open(place.here.join(path))
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

/// Asks for a run, or that one goes on, and watches it.
pub(super) fn attend(
    global: &Global,
    place: &Place,
    how: &Watching,
    order: WorkflowOrder,
    begun: Begun,
) -> Outcome {
    let mut listener = Listener::new()?;
    let command = Command::Workflow { order, by: place.who() };
    let (run, status, is_new) = match listener.ask(place, command)? {
        Answer::WorkflowRun { run, status, is_new } => (run, status, is_new),
        other => return Err(daemon::unexpected(&other)),
    };
    if how.detach {
        return detached(global, how, &run, status, (begun, is_new));
    }
    let joined = begun == Begun::New && !is_new;
    if joined && !(how.json || global.quiet) {
        output::note(&format!("{run} is at it already; it is watched, none was started"))?;
    }
    see(global, place, how, &run, if joined { Begun::Joined } else { begun }, listener)
}

fn detached(
    global: &Global,
    how: &Watching,
    run: &WorkflowRunId,
    status: CourseStatus,
    (begun, is_new): (Begun, bool),
) -> Outcome {
    if how.json {
        let told = json!({ "run": { "id": run, "status": status, "isNew": is_new } });
        return Ok(output::json(&told)?);
    }
    output::line(run.as_str())?;
    if !global.quiet {
        let known = match (begun, is_new) {
            (Begun::Again, _) => "it goes on; ",
            (_, true) => "",
            (_, false) => "it was there already; ",
        };
        // The run goes on, whether or not this remark can be written.
        drop(output::note(&format!("{known}watch it: heeler workflow watch {run}")));
    }
    Ok(())
}

/// Shows a run until it has ended, and ends as it did.
fn see(
    global: &Global,
    place: &Place,
    how: &Watching,
    run: &WorkflowRunId,
    begun: Begun,
    listener: Listener,
) -> Outcome {
    let engine = place::engine(&place.state_dir, &place.env)?;
    let reader = Reader::open(&engine.dir)?;
    let gone = || Failure::message(Code::NotFound, format!("the record of {run} is gone"));
    let row = reader.workflow_run(run)?.ok_or_else(gone)?;
    let workflow = definition(place, &reader, &row)?;
    drop(reader);
    let view = View { place, run, workflow, begun, how, is_quiet: global.quiet || how.json };
    let seen = watch::watch(&view, listener)?;
    let reader = Reader::open(&engine.dir)?;
    let row = reader.workflow_run(run)?.ok_or_else(gone)?;
    // What came of the run decides how we end, whether or not somebody hears of it.
    if let Err(failure) = tell(global, place, how, &reader, &row, &seen) {
        tracing::debug!(error = ?failure.error, "cannot tell what came of the run");
    }
    match row.head.status {
        CourseStatus::Succeeded => Ok(()),
        _ if seen.interrupts > 0 => Err(Failure::silent(Code::Interrupted)),
        CourseStatus::Failed | CourseStatus::Cancelled => Err(Failure::silent(Code::Failed)),
        _ if seen.is_left_alone => Err(Failure::silent(Code::NoDaemon)),
        // It was to be watched until it waits for somebody.
        _ => Ok(()),
    }
}

/// Prints what came of a run.
fn tell(
    global: &Global,
    place: &Place,
    how: &Watching,
    reader: &Reader,
    row: &WorkflowRunRow,
    seen: &Seen,
) -> Outcome {
    let head = &row.head;
    let success = head.status == CourseStatus::Succeeded;
    if how.json {
        let run = place.records()?.run_details(reader, row.clone())?;
        let told = json!({ "success": success, "message": seen.last_message, "run": run });
        return Ok(output::json(&told)?);
    }
    if success {
        tell_output(global, place, reader, row)?;
    }
    if global.quiet && success {
        return Ok(seen.last_message.as_deref().map(output::line).transpose().map(drop)?);
    }
    let took = runs::took(head.started_at, head.finished_at)
        .map(|took| format!(" in {took}"))
        .unwrap_or_default();
    let cost = runs::cost(head.spent).map(|cost| format!(", {cost}")).unwrap_or_default();
    let pending = Some(ApprovalStatus::Pending);
    let filter = ApprovalFilter { run: Some(head.id.to_string()), status: pending };
    let asked = reader.approvals(&filter, None, usize::MAX)?;
    let status = match head.status {
        CourseStatus::Running if asked.iter().any(is_of_agent) => CourseStatus::Paused,
        status => status,
    };
    output::complain(sign(status).then(format!(
        "{}{took}{cost}, {}",
        runs::played(head.mode.as_deref()),
        head.id
    )))?;
    if let Some(error) = head.error.as_deref().filter(|_| !success) {
        output::complain(format!("  {}", output::one_line(error)))?;
    }
    let id = &head.id;
    let next = match status {
        CourseStatus::Succeeded => format!("heeler workflow show {id}"),
        CourseStatus::Failed | CourseStatus::Cancelled => {
            format!("heeler workflow show {id}, heeler workflow retry {id}")
        }
        CourseStatus::Paused => format!("heeler approvals list, heeler workflow watch {id}"),
        CourseStatus::Running | CourseStatus::Queued => format!("heeler workflow watch {id}"),
    };
    Ok(output::complain(Text::styled(Style::new().dimmed(), &format!("  next: {next}")))?)
}

/// Prints what the last phase said, where the workflow itself said nothing.
fn tell_output(global: &Global, place: &Place, reader: &Reader, row: &WorkflowRunRow) -> Outcome {
    let id = &row.head.id;
    let events = reader.workflow_events(id, 0, usize::MAX)?;
    let workflow = definition(place, reader, row)?;
    let Some(workflow) = workflow.filter(|_| events.iter().all(|it| it.kind != "message")) else {
        return Ok(());
    };
    let names: Vec<String> =
        workflow.phases.iter().map(|phase| phase.name.as_str().to_owned()).collect();
    let said = outputs(reader, row, Some(workflow))?;
    let said = names.iter().rev().find_map(|name| {
        let text = said.get(name)?.trim();
        (!text.is_empty()).then_some((name, text))
    });
    let Some((name, text)) = said else { return Ok(()) };
    let lines: Vec<&str> = text.lines().collect();
    let shown = if global.quiet { lines.len() } else { lines.len().min(OUTPUT_LINES_MAX) };
    output::line(output::harmless(&lines[..shown].join("\n")))?;
    if shown < lines.len() {
        let rest = lines.len() - shown;
        output::note(&format!("… {rest} more lines: heeler workflow logs {id} --phase {name}"))?;
    }
    Ok(())
}

fn sign(status: CourseStatus) -> Text {
    let (color, text) = match status {
        CourseStatus::Succeeded => (AnsiColor::Green, "✓ succeeded"),
        CourseStatus::Failed => (AnsiColor::Red, "✗ failed"),
        CourseStatus::Cancelled => (AnsiColor::Yellow, "✗ cancelled"),
        CourseStatus::Paused => (AnsiColor::Magenta, "◆ waits for you"),
        CourseStatus::Running => (AnsiColor::Cyan, "· goes on"),
        CourseStatus::Queued => (AnsiColor::Cyan, "· waits for its turn"),
    };
    Text::styled(color.on_default(), text)
}
