//! `heeler workflow show RUN` and `workflow logs`: prints the details of a workflow run.

use std::collections::HashMap;

use anstyle::Style;
use clap::Args;
use heeler_config::workflow::graph::PhaseDisplayStatus;
use heeler_model::workflow::{PhasePart, WorkflowRunStatus};
use heeler_model::{Approval, ApprovalStatus, JobHead, JobStatus, job_row};
use heeler_query::progress::{
    WorkflowPhaseProgress, WorkflowRunProgress, load_phase_outputs, phase_status_name,
};
use heeler_query::workflow_runs::full_repo_name;
use heeler_store::{StoreReader, WorkflowEventRecord, WorkflowPartRow, WorkflowRunRow};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use super::runs::{self, NO_DAEMON};
use super::watch::{answer_commands, phase_symbol};
use crate::commands::approvals;
use crate::commands::logs::{self, LogOutputArgs};
use crate::context::CommandContext;
use crate::daemon;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::global_args::GlobalArgs;
use crate::output::{self, OutputTable, SafeText};
use crate::shared_args;

/// Help footer of `workflow logs`.
pub(super) const LOGS: &str = "Examples:
  heeler workflow logs wf-2026-11-15-k3v9q1
  heeler workflow logs wf-2026-11-15-k3v9q1 --phase review -n 200
  heeler workflow logs wf-2026-11-15-k3v9q1 --follow

Exit codes: 0 printed, 4 not found.";

/// Parts of a phase that are shown one by one; beyond this, only those that did not complete.
const PARTS_SHOWN_MAX: usize = 20;
/// Events that are printed; JSON has more.
const EVENTS_SHOWN: usize = 30;
/// Events in the JSON output.
const EVENTS_MAX: usize = 10_000;
/// Characters of a phase's output that are shown next to it.
const SAID_CHARS_MAX: usize = 100;
/// Characters of an input that are shown.
const INPUT_CHARS_MAX: usize = 200;

/// Arguments of `workflow logs`.
#[derive(Args)]
pub(crate) struct WorkflowLogsArgs {
    /// Run ID or unique prefix
    #[arg(value_name = "RUN", add = shared_args::workflow_runs())]
    id: String,
    /// Print only this phase's transcripts
    #[arg(short, long, value_name = "NAME")]
    phase: Option<String>,
    #[command(flatten)]
    pub(crate) how: LogOutputArgs,
}

/// Prints the transcripts of a run's jobs, in order of time.
pub(super) fn logs(global: &GlobalArgs, args: &WorkflowLogsArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    let (reader, row) = context.find_workflow_run(&args.id)?;
    let id = row.head.id.clone();
    if let Some(phase) = &args.phase {
        let workflow = context.open_records()?.workflow_of_run(&reader, &row)?;
        check_phase(&WorkflowRunProgress::read(&reader, row, workflow)?, phase)?;
    }
    logs::print_jobs_log(&context, &reader, &args.how, &|reader| {
        // The record was deleted while it was followed.
        let Some(row) = reader.workflow_run(&id)? else { return Ok((Vec::new(), true)) };
        let is_over = row.head.status.is_final();
        let progress = WorkflowRunProgress::read(reader, row, None)?;
        let wanted =
            |phase: &&WorkflowPhaseProgress| args.phase.as_ref().is_none_or(|it| *it == phase.name);
        let mut heads: Vec<(u64, JobHead)> = Vec::new();
        // A cancelled run may have parts that still write rows.
        let mut goes_on = !is_over;
        for phase in progress.phases.iter().filter(wanted) {
            for part in &phase.parts {
                goes_on |= part.outcome.is_none();
                let Some(job) = &part.job else { continue };
                // A record that is gone must not end the output of the others.
                let Some(job) = reader.job(job)? else { continue };
                let what = phase.part_name(part.part).map(|word| format!(" {word}"));
                // Lines begin with the agent's name; show the phase there instead.
                let agent = format!("{}{}", phase.name, what.unwrap_or_default());
                heads.push((part.seq, JobHead { agent, ..job.head }));
            }
        }
        // The printer expects the newest job first.
        heads.sort_by_key(|(seq, _)| std::cmp::Reverse(*seq));
        let heads = heads.into_iter().map(|(_, head)| head).collect();
        Ok((heads, !goes_on))
    })
}

/// Refuses a phase name that the run does not have.
fn check_phase(progress: &WorkflowRunProgress, name: &str) -> CommandResult {
    let names: Vec<&str> = progress.phases.iter().map(|phase| phase.name.as_str()).collect();
    if names.contains(&name) {
        return Ok(());
    }
    let message = format!("{} has no phase `{name}`", progress.row.head.id);
    let failure = CommandFailure::message(FailureCode::NotFound, message);
    Err(match heeler_model::did_you_mean(name, names.iter().copied()) {
        Some(near) => failure.hint(format!("did you mean `{near}`?")),
        None if names.is_empty() => failure,
        None => failure.hint(format!("available: {}", names.join(", "))),
    })
}

/// Prints a run.
pub(super) fn show(
    context: &CommandContext,
    reader: &StoreReader,
    row: WorkflowRunRow,
    as_json: bool,
    now: Timestamp,
) -> CommandResult {
    if as_json {
        let run = context.open_records()?.workflow_run_details(reader, row)?;
        return Ok(output::print_json(&json!({ "run": run }))?);
    }
    let workflow = context.open_records()?.workflow_of_run(reader, &row)?;
    let outputs = load_phase_outputs(reader, &row, workflow.clone())?;
    let progress = WorkflowRunProgress::read(reader, row, workflow)?;
    let events = reader.workflow_events(&progress.row.head.id, 0, EVENTS_MAX)?;
    print_head(&progress, daemon::find_writer(context)?.is_some(), now)?;
    print_phases(reader, &progress, &outputs, now)?;
    print_approvals(&progress, now)?;
    print_events(&events)?;
    Ok(output::print_note(&format!("\nnext: {}", next_commands(&progress)))?)
}

fn print_head(progress: &WorkflowRunProgress, has_daemon: bool, now: Timestamp) -> CommandResult {
    let WorkflowRunRow {
        head,
        triggered_by,
        trigger_actor_type: triggered_from,
        context: given_inputs,
        ..
    } = &progress.row;
    let moment = |at: Timestamp| {
        format!("{} ({})", heeler_model::iso_millis(at), output::relative_time(at, now))
    };
    // Without `--trigger-id` the run's own ID stands there.
    let about = Some(&head.trigger_id).filter(|id| id.as_str() != head.id.as_str());
    let repo = full_repo_name(head).map(|repo| match head.issue_number {
        Some(number) => format!("{repo}#{number}"),
        None => repo,
    });
    let place = match triggered_from.as_deref() {
        Some("github") => " on GitHub",
        _ => "",
    };
    let by = triggered_by.as_ref().map(|by| format!(", by {}{place}", output::one_line(by)));
    let fields: [(&str, Option<SafeText>); 12] = [
        ("run", Some(head.id.as_str().into())),
        ("workflow", Some(output::one_line(&head.workflow).into())),
        ("status", Some(status(progress, has_daemon))),
        ("error", head.error.as_deref().map(SafeText::from)),
        ("about", about.map(|id| output::one_line(id).into())),
        ("repository", repo.map(|repo| output::one_line(&repo).into())),
        ("started", Some(format!("{}{}", moment(head.started_at), by.unwrap_or_default()).into())),
        ("took", runs::duration_text(head.started_at, head.finished_at).map(SafeText::from)),
        ("cost", runs::cost(head.spent).map(SafeText::from)),
        ("simulated", head.mode.as_deref().map(|mode| mode_text(mode).into())),
        ("restarts", (head.restart_count > 0).then(|| head.restart_count.to_string().into())),
        ("inputs", inputs(given_inputs).map(SafeText::from)),
    ];
    for (name, value) in fields {
        output::print_field(name, value)?;
    }
    Ok(())
}

fn status(progress: &WorkflowRunProgress, has_daemon: bool) -> SafeText {
    let head = &progress.row.head;
    let text = runs::status_text(head.status);
    let current = output::one_line(&head.current_phase);
    match head.status {
        // First, because "running" would be wrong while nothing can run it.
        _ if !has_daemon && runs::needs_daemon(head.status, head.origin.as_deref()) => {
            text.append(format!(", but {NO_DAEMON}"))
        }
        WorkflowRunStatus::Paused => text.append(": waiting for an answer"),
        WorkflowRunStatus::Running if progress.pending().next().is_some() => {
            text.append(format!(": {current}, with an open question"))
        }
        WorkflowRunStatus::Queued => text.append(": the limit of active runs is reached"),
        WorkflowRunStatus::Running if !current.is_empty() => text.append(format!(": {current}")),
        _ => text,
    }
}

/// Describes the mode of a simulated run.
fn mode_text(mode: &str) -> String {
    match mode.strip_prefix("replay:") {
        Some(run) => format!("with the answers of {run}"),
        None => "dry run with made-up answers".to_owned(),
    }
}

fn inputs(given_inputs: &Value) -> Option<String> {
    let given = given_inputs.as_object().filter(|given| !given.is_empty())?;
    let line = |(name, value): (&String, &Value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("{name} = {}", output::truncate_chars(&output::one_line(&value), INPUT_CHARS_MAX))
    };
    Some(given.iter().map(line).collect::<Vec<_>>().join("\n"))
}

fn heading(text: &str) -> CommandResult {
    Ok(output::print_line(
        SafeText::from("\n").append(SafeText::styled(Style::new().bold(), text)),
    )?)
}

fn print_phases(
    reader: &StoreReader,
    progress: &WorkflowRunProgress,
    outputs: &HashMap<String, String>,
    now: Timestamp,
) -> CommandResult {
    if progress.phases.is_empty() {
        return Ok(());
    }
    heading("Phases")?;
    let mut lines = OutputTable::without_headings(6, 5);
    for phase in &progress.phases {
        let (sign, style) = phase_symbol(phase.status);
        let sign = SafeText::styled(style, &format!("  {sign}"));
        let took = phase.elapsed_ms(now).filter(|_| phase.status != PhaseDisplayStatus::Skipped);
        let parts: Vec<&WorkflowPartRow> =
            phase.parts.iter().filter(|part| part.job.is_some()).collect();
        // Several jobs have lines of their own below the phase.
        let job = match parts[..] {
            [only] => only.job.as_ref().map(ToString::to_string),
            _ => None,
        };
        lines.push(vec![
            sign.append(format!(" {}", output::one_line(phase.title()))),
            phase_status_name(phase.status).into(),
            took.map(job_row::format_duration).unwrap_or_default().into(),
            runs::cost(phase.cost_micros()).unwrap_or_default().into(),
            job.unwrap_or_default().into(),
            remark(reader, phase, outputs)?.into(),
        ]);
        if parts.len() > 1 {
            parts_lines(phase, &parts).into_iter().for_each(|line| lines.push(line));
        }
    }
    Ok(lines.print()?)
}

/// Returns a phase's remark: its error, its queue reason, or the beginning of its output.
fn remark(
    reader: &StoreReader,
    phase: &WorkflowPhaseProgress,
    outputs: &HashMap<String, String>,
) -> CommandResult<String> {
    Ok(match phase.status {
        PhaseDisplayStatus::Failed | PhaseDisplayStatus::Cancelled => {
            phase.error().map(output::one_line).unwrap_or_default()
        }
        PhaseDisplayStatus::Waiting => {
            phase.queue_reason(reader)?.map(|it| output::one_line(&it)).unwrap_or_default()
        }
        PhaseDisplayStatus::Succeeded => {
            let text = outputs.get(&phase.name).map(|text| text.trim()).unwrap_or_default();
            let first = text.lines().next().unwrap_or_default();
            let more = if first.len() < text.len() { " …" } else { "" };
            format!("{}{more}", output::truncate_chars(&output::one_line(first), SAID_CHARS_MAX))
        }
        _ => String::new(),
    })
}

fn parts_lines(phase: &WorkflowPhaseProgress, parts: &[&WorkflowPartRow]) -> Vec<Vec<SafeText>> {
    // Of many parts, those that need attention are shown.
    let is_bad = |part: &&&WorkflowPartRow| part.status != JobStatus::Completed;
    let shown: Vec<&&WorkflowPartRow> = match parts.len() > PARTS_SHOWN_MAX {
        true => parts.iter().filter(is_bad).take(PARTS_SHOWN_MAX).collect(),
        false => parts.iter().collect(),
    };
    let mut lines: Vec<Vec<SafeText>> = shown.iter().map(|part| part_line(phase, part)).collect();
    if shown.len() < parts.len() {
        let more = format!("      … {} more", parts.len() - shown.len());
        let mut line = vec![SafeText::styled(Style::new().dimmed(), &more)];
        // Every row needs as many cells as there are columns.
        line.resize(6, SafeText::default());
        lines.push(line);
    }
    lines
}

fn part_line(phase: &WorkflowPhaseProgress, part: &WorkflowPartRow) -> Vec<SafeText> {
    let name = match part.part {
        PhasePart::Work => "first".to_owned(),
        other => phase.part_name(other).unwrap_or_else(|| other.to_string()),
    };
    let decision = part.decision.map(|it| it.as_str().replace('_', " "));
    let why = part.error.as_deref().map(output::one_line).or(decision);
    vec![
        SafeText::styled(Style::new().dimmed(), &format!("      {name}")),
        SafeText::styled(output::status_style(part.status), part.status.as_str()),
        part.duration_ms.map(job_row::format_duration).unwrap_or_default().into(),
        runs::cost(part.micros).unwrap_or_default().into(),
        part.job.as_ref().map(ToString::to_string).unwrap_or_default().into(),
        why.unwrap_or_default().into(),
    ]
}

fn print_approvals(progress: &WorkflowRunProgress, now: Timestamp) -> CommandResult {
    if progress.approvals.is_empty() {
        return Ok(());
    }
    heading("Questions")?;
    let mut lines = OutputTable::without_headings(4, 3);
    for approval in &progress.approvals {
        lines.push(vec![
            format!("  {}", approval.id).into(),
            output::one_line(&approval.gate).into(),
            approvals::status_word(approval.kind, approval.status).into(),
            answered_by(approval, now).into(),
        ]);
    }
    Ok(lines.print()?)
}

fn answered_by(approval: &Approval, now: Timestamp) -> String {
    match (approval.status, &approval.responded_by, approval.responded_at) {
        (ApprovalStatus::Pending, ..) => answer_commands(approval),
        (_, Some(by), Some(at)) => {
            format!("by {}, {}", output::one_line(by), output::relative_time(at, now))
        }
        _ => String::new(),
    }
}

fn print_events(events: &[WorkflowEventRecord]) -> CommandResult {
    if events.is_empty() {
        return Ok(());
    }
    heading("Events")?;
    // The newest events are at the end, and matter most.
    let skipped = events.len().saturating_sub(EVENTS_SHOWN);
    if skipped > 0 {
        let more = format!("  … {skipped} earlier: --json lists all");
        output::print_line(SafeText::styled(Style::new().dimmed(), &more))?;
    }
    let zone = TimeZone::system();
    for event in &events[skipped..] {
        let at = event.at.to_zoned(zone.clone()).strftime("%H:%M:%S").to_string();
        let phase = event.phase.as_deref().map(output::one_line);
        let phase = phase.map(|phase| format!("{phase}: ")).unwrap_or_default();
        let shown = match event.kind.as_str() {
            "message" => event.text.clone(),
            kind => format!("{kind}: {}", event.text),
        };
        let text = SafeText::from(format!("{phase}{shown}"));
        let when = SafeText::styled(Style::new().dimmed(), &format!("  {at}  "));
        output::print_line(when.append(text.indented(12)))?;
    }
    Ok(())
}

/// Returns the most likely next commands.
fn next_commands(progress: &WorkflowRunProgress) -> String {
    let id = &progress.row.head.id;
    match progress.row.head.status {
        WorkflowRunStatus::Paused | WorkflowRunStatus::Running | WorkflowRunStatus::Queued => {
            match progress.pending().next() {
                Some(approval) => answer_commands(approval),
                None => format!("heeler workflow watch {id}"),
            }
        }
        WorkflowRunStatus::Failed | WorkflowRunStatus::Cancelled => {
            format!("heeler workflow logs {id}, heeler workflow retry {id}")
        }
        WorkflowRunStatus::Succeeded => format!("heeler workflow logs {id}"),
    }
}
