//! `heeler workflow show`: prints a workflow's inputs, phases and last runs. Start at [`run`].

use clap::Args;
use heeler_config::workflow::{GateKind, LoadedWorkflow, Phase, PhaseWork, TriggerRule, Workflow};
use heeler_query::workflows::{
    RECENT_RUNS_MAX, StoredWorkflowState, WorkflowDetails, describe_repeat, phase_gates, phase_kind,
};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::list::{known, status};
use super::lookup::{find, try_run};
use super::{run_details, runs};
use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config;
use crate::global_args::GlobalArgs;
use crate::output::{self, OutputTable, SafeText};
use crate::process_env;
use crate::shared_args;

/// Help footer of `workflow show`.
pub(super) const ABOUT: &str = "Examples:
  heeler workflow show build
  heeler workflow show wf-2026-11-15-k3v9q1
  heeler workflow show wf-2026-11-15-k3v9q1 --json | jq '.run.phases[] | {name, status}'

Exit codes: 0 shown, 2 invalid file, 4 not found.";

/// Arguments of `workflow show`.
#[derive(Args)]
pub(crate) struct WorkflowShowArgs {
    /// Workflow name, or run ID or unique prefix
    #[arg(value_name = "NAME|RUN", add = shared_args::workflows_or_runs())]
    which: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `workflow show`.
pub(super) fn run(global: &GlobalArgs, args: &WorkflowShowArgs) -> CommandResult {
    let now = process_env::now();
    let context = CommandContext::find(global)?;
    // A workflow's name may also be a prefix of a run ID. Only text with `wf-` is tried as a run
    // first.
    let looks_like_run = args.which.starts_with("wf-");
    if looks_like_run && let Some((reader, row)) = try_run(&context, &args.which)? {
        return run_details::show(&context, &reader, row, args.json, now);
    }
    // A run can be shown although the config is invalid or its workflow was deleted.
    let or_run = |failure: CommandFailure| match try_run(&context, &args.which)? {
        Some((reader, row)) => run_details::show(&context, &reader, row, args.json, now),
        None if looks_like_run => {
            let message = format!("there is no workflow run `{}`", args.which);
            Err(CommandFailure::message(FailureCode::NotFound, message)
                .hint("heeler workflow runs"))
        }
        None => Err(failure),
    };
    let files = match fleet_config::load(&context) {
        Err(failure) => return or_run(failure),
        Ok(files) => files,
    };
    let loaded = match find(&context, &files, &args.which) {
        Ok(loaded) => loaded,
        Err(failure) => return or_run(failure),
    };
    let name = loaded.workflow.name.as_str();
    let known = known(context.open_reader()?.as_ref(), name, RECENT_RUNS_MAX)?;
    let details = WorkflowDetails::of(&files, loaded, &known);
    match args.json {
        true => Ok(output::print_json(&json!({ "workflow": details }))?),
        false => print(&context, loaded, &known, &details, now),
    }
}

fn dependency_names<'w>(workflow: &'w Workflow, phase: &Phase) -> Vec<&'w str> {
    phase.depends_on.iter().map(|at| workflow.phases[*at].name.as_str()).collect()
}

fn print(
    context: &CommandContext,
    loaded: &LoadedWorkflow,
    known: &StoredWorkflowState,
    details: &WorkflowDetails,
    now: Timestamp,
) -> CommandResult {
    let workflow = &loaded.workflow;
    // A relative path is shorter, and can be opened from here.
    let file = loaded.root.strip_prefix(&context.working_dir).unwrap_or(&loaded.root);
    let crons = details.crons.iter().map(|cron| {
        let off = if cron.enabled { "" } else { " (disabled)" };
        format!("{} ({}){off}", cron.schedule, cron.name)
    });
    let crons = crons.collect::<Vec<_>>().join("\n");
    let fields: [(&str, Option<SafeText>); 8] = [
        ("workflow", Some(workflow.name.as_str().into())),
        ("about", workflow.description.as_deref().map(SafeText::from)),
        ("file", Some(file.as_str().into())),
        ("status", Some(status(known.override_summary().as_ref(), now))),
        ("agent", workflow.agent.as_ref().map(|agent| agent.as_str().into())),
        ("concurrency", Some(format!("at most {}", workflow.max_parallel).into())),
        ("budget", workflow.budget.map(|budget| format!("${budget} per run").into())),
        ("started by", (!crons.is_empty()).then(|| crons.into())),
    ];
    for (name, value) in fields {
        output::print_field(name, value)?;
    }
    print_inputs(workflow)?;
    print_phases(workflow)?;
    if !known.runs.is_empty() {
        heading("Last runs")?;
        let mut lines = OutputTable::without_headings(4, 3);
        for head in &known.runs {
            lines.push(vec![
                format!("  {}", head.id).into(),
                runs::outcome(head.status, head.mode.as_deref()),
                output::relative_time(head.started_at, now).into(),
                output::one_line(head.error.as_deref().unwrap_or_default()).into(),
            ]);
        }
        lines.print()?;
    }
    if !loaded.warnings.is_empty() {
        output::print_line("")?;
        fleet_config::print_faults(context, &loaded.warnings)?;
    }
    Ok(output::print_note(&format!("\nrun it: {}", command(workflow)))?)
}

/// Returns the command that runs a workflow, with placeholders for required inputs.
fn command(workflow: &Workflow) -> String {
    let needed = workflow.inputs.iter().filter(|(_, input)| input.default.is_none());
    let needed = needed.map(|(name, _)| format!(" -i {name}=…"));
    format!("heeler workflow run {}{}", workflow.name, needed.collect::<String>())
}

fn heading(text: &str) -> CommandResult {
    Ok(output::print_line(
        SafeText::from("\n").append(SafeText::styled(anstyle::Style::new().bold(), text)),
    )?)
}

fn print_inputs(workflow: &Workflow) -> CommandResult {
    if workflow.inputs.is_empty() {
        return Ok(());
    }
    heading("Inputs")?;
    let mut lines = OutputTable::without_headings(4, 3);
    for (name, input) in &workflow.inputs {
        let default = match &input.default {
            None => "required".to_owned(),
            Some(Value::String(text)) => format!("default `{}`", output::truncate_chars(text, 40)),
            Some(value) => format!("default {}", output::truncate_chars(&value.to_string(), 40)),
        };
        let options = match input.options.is_empty() {
            true => String::new(),
            false => {
                let options = input.options.iter().map(Value::to_string);
                format!(" (one of {})", options.collect::<Vec<_>>().join(", "))
            }
        };
        let about = input.description.as_deref().unwrap_or_default();
        lines.push(vec![
            format!("  {name}").into(),
            input.kind.as_str().into(),
            default.into(),
            output::one_line(&format!("{about}{options}")).into(),
        ]);
    }
    Ok(lines.print()?)
}

fn print_phases(workflow: &Workflow) -> CommandResult {
    heading("Phases")?;
    let mut lines = OutputTable::without_headings(4, 3);
    for phase in &workflow.phases {
        let agent = phase.agent.as_ref().or(workflow.agent.as_ref());
        let by = match (&phase.work, agent) {
            // Only agents have names; other work is described by its kind.
            (PhaseWork::Agent { .. }, Some(agent)) => agent.to_string(),
            _ => phase_kind(phase).to_owned(),
        };
        let after = dependency_names(workflow, phase);
        let after = match after.is_empty() {
            true => "first".to_owned(),
            false => format!("after {}", after.join(", ")),
        };
        lines.push(vec![
            format!("  {}", phase.name).into(),
            by.into(),
            after.into(),
            remarks(phase).into(),
        ]);
    }
    Ok(lines.print()?)
}

/// Returns remarks on a phase: conditions, repetition, gates and retries.
fn remarks(phase: &Phase) -> String {
    let mut remarks: Vec<String> = Vec::new();
    if phase.trigger_rule != TriggerRule::AllSuccess {
        remarks.push(format!("if {}", phase.trigger_rule.as_str().replace('_', " ")));
    }
    let skips = phase.skip_if.iter().map(|skip| format!("skipped if {skip}"));
    remarks.extend(skips);
    remarks.extend(describe_repeat(&phase.repeat));
    remarks.extend(phase_gates(phase).map(|gate| match gate.kind {
        GateKind::Approve => format!("asks for approval ({})", gate.name),
        GateKind::Reply => format!("asks for an answer ({})", gate.name),
    }));
    if phase.retry.max > 0 {
        remarks.push(format!("up to {} retries", phase.retry.max));
    }
    output::one_line(&remarks.join("; "))
}
