//! `heeler workflow show`: what a workflow asks for and does.

use clap::Args;
use heeler_model::config::{Loaded, Severity};
use heeler_model::workflow::{
    Cron, Figure, Gate, GateKind, Input, LoadedWorkflow, Phase, PhaseWork, Repeat, TriggerRule,
    Workflow,
};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::list::{Known, cron_json};
use super::{account, find, runs, try_run};
use crate::cli::{self, Global};
use crate::commands::config::faults_json;
use crate::failure::{Code, Failure, Outcome};
use crate::fleet;
use crate::output::{self, Lines, Text};
use crate::place::{self, Place};

/// What the help shows at its end.
pub(super) const ABOUT: &str = "Examples:
  heeler workflow show build
  heeler workflow show wf-2026-11-15-k3v9q1
  heeler workflow show wf-2026-11-15-k3v9q1 --json | jq '.run.phases[] | {name, status}'

Exit codes: 0 shown, 2 a fault in a file, 4 not found.";

/// How many runs of a workflow are shown.
const RUNS_SHOWN: usize = 5;

/// Arguments of `workflow show`.
#[derive(Args)]
pub(crate) struct ShowArgs {
    /// A workflow, or a run; a beginning of a run's id will do while only one begins so
    #[arg(value_name = "NAME|RUN", add = cli::workflows_or_runs())]
    which: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Shows a workflow, or a run.
pub(super) fn run(global: &Global, args: &ShowArgs) -> Outcome {
    let now = place::now();
    let place = Place::find(global)?;
    // The name of a workflow may be the beginning of an id; a run is asked for by its own.
    let looks_like_run = args.which.starts_with("wf-");
    if looks_like_run && let Some((reader, row)) = try_run(&place, &args.which)? {
        return account::show(&place, &reader, row, args.json, now);
    }
    let or_run = |failure: Failure| match try_run(&place, &args.which)? {
        Some((reader, row)) => account::show(&place, &reader, row, args.json, now),
        None if looks_like_run => {
            let message = format!("there is no workflow run `{}`", args.which);
            Err(Failure::message(Code::NotFound, message).hint("heeler workflow runs"))
        }
        None => Err(failure),
    };
    let files = match fleet::load(&place) {
        Err(failure) => return or_run(failure),
        Ok(files) => files,
    };
    let loaded = match find(&place, &files, &args.which) {
        Ok(loaded) => loaded,
        Err(failure) => return or_run(failure),
    };
    let name = loaded.workflow.name.as_str();
    let known = Known::read(place.reader()?.as_ref(), name, RUNS_SHOWN)?;
    match args.json {
        true => Ok(output::json(&json!({ "workflow": to_json(&files, loaded, &known) }))?),
        false => print(&place, &files, loaded, &known, now),
    }
}

fn crons<'f>(files: &'f Loaded, workflow: &Workflow) -> Vec<&'f Cron> {
    files.crons.iter().filter(|cron| cron.workflow == workflow.name).collect()
}

fn to_json(files: &Loaded, loaded: &LoadedWorkflow, known: &Known) -> Value {
    let workflow = &loaded.workflow;
    let inputs = workflow.inputs.iter().map(|(name, input)| input_json(name, input));
    let phases = workflow.phases.iter().map(|phase| phase_json(workflow, phase));
    let crons = crons(files, workflow);
    json!({
        "name": workflow.name,
        "description": workflow.description,
        "file": loaded.root,
        "agent": workflow.agent,
        "enabled": known.is_enabled(),
        "override": known.override_json(),
        "maxParallel": workflow.max_parallel,
        "budgetUsd": workflow.budget.map(|budget| budget.micros() as f64 / 1e6),
        "inputs": inputs.collect::<Vec<_>>(),
        "phases": phases.collect::<Vec<_>>(),
        "crons": crons.into_iter().map(cron_json).collect::<Vec<_>>(),
        "runs": known.runs.iter().map(runs::head_json).collect::<Vec<_>>(),
        "warnings": faults_json(&loaded.warnings, Severity::Warning),
    })
}

fn input_json(name: &str, input: &Input) -> Value {
    json!({
        "name": name,
        "type": input.kind,
        "description": input.description,
        "required": input.default.is_none(),
        "default": input.default,
        "options": input.options,
    })
}

fn phase_json(workflow: &Workflow, phase: &Phase) -> Value {
    let gate = gates(phase).next();
    json!({
        "name": phase.name,
        "label": phase.label,
        "type": kind(phase),
        "agent": phase.agent.as_ref().or(workflow.agent.as_ref()),
        "dependsOn": names(workflow, phase),
        "triggerRule": phase.trigger_rule,
        "skipIf": phase.skip_if.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "repeat": repeat(&phase.repeat),
        "gate": gate.map(|gate| json!({ "name": gate.name, "kind": gate.kind })),
        "retries": phase.retry.max,
        "outputVar": phase.output_var,
    })
}

fn names<'w>(workflow: &'w Workflow, phase: &Phase) -> Vec<&'w str> {
    phase.depends_on.iter().map(|at| workflow.phases[*at].name.as_str()).collect()
}

fn kind(phase: &Phase) -> &'static str {
    match phase.work {
        PhaseWork::Context => "context",
        PhaseWork::Agent { .. } => "agent",
        PhaseWork::Bash { .. } => "bash",
        PhaseWork::Script { .. } => "script",
    }
}

/// Returns where somebody is asked in a phase.
fn gates(phase: &Phase) -> impl Iterator<Item = &Gate> {
    let inner = match &phase.repeat {
        Repeat::Review(review) => review.gate.as_ref(),
        Repeat::Until(until) => until.gate.as_ref(),
        Repeat::Once | Repeat::Each(_) => None,
    };
    inner.into_iter().chain(phase.gate.as_ref())
}

fn figure(figure: &Figure) -> String {
    match figure {
        Figure::Fixed(number) => number.to_string(),
        Figure::From { path, default } => format!("`{path}` or {default}"),
    }
}

/// Says how often a phase is done; nothing if once.
fn repeat(repeat: &Repeat) -> Option<String> {
    match repeat {
        Repeat::Once => None,
        Repeat::Review(review) => {
            let most = u64::from(review.max_cycles);
            Some(format!(
                "review, with at most {}",
                output::counted(most, "fix").replace("fixs", "fixes")
            ))
        }
        Repeat::Until(until) => {
            let what = match (&until.until, &until.until_bash) {
                (Some(until), _) => format!("until {until}"),
                (None, Some(command)) => format!("until `{}` succeeds", command.as_str().trim()),
                (None, None) => "again and again".to_owned(),
            };
            Some(format!("{what}, at most {} times", figure(&until.max_iterations)))
        }
        Repeat::Each(each) => Some(format!("for each {} of {}", each.name, each.items)),
    }
}

fn print(
    place: &Place,
    files: &Loaded,
    loaded: &LoadedWorkflow,
    known: &Known,
    now: Timestamp,
) -> Outcome {
    let workflow = &loaded.workflow;
    let file = loaded.root.strip_prefix(&place.here).unwrap_or(&loaded.root);
    let crons = crons(files, workflow).into_iter().map(|cron| {
        let off = if cron.enabled { "" } else { " (switched off in its file)" };
        format!("{} ({}){off}", cron.schedule.as_str(), cron.name)
    });
    let crons = crons.collect::<Vec<_>>().join("\n");
    let fields: [(&str, Option<Text>); 8] = [
        ("workflow", Some(workflow.name.as_str().into())),
        ("about", workflow.description.as_deref().map(Text::from)),
        ("file", Some(file.as_str().into())),
        ("status", Some(known.status(now))),
        ("agent", workflow.agent.as_ref().map(|agent| agent.as_str().into())),
        ("at once", Some(format!("at most {}", workflow.max_parallel).into())),
        ("budget", workflow.budget.map(|budget| format!("${budget} a run").into())),
        ("started by", (!crons.is_empty()).then(|| crons.into())),
    ];
    for (name, value) in fields {
        output::field(name, value)?;
    }
    print_inputs(workflow)?;
    print_phases(workflow)?;
    if !known.runs.is_empty() {
        heading("Last runs")?;
        let mut lines = Lines::bare(4, 3);
        for head in &known.runs {
            lines.push(vec![
                format!("  {}", head.id).into(),
                runs::outcome(head),
                output::relative(head.started_at, now).into(),
                output::one_line(head.error.as_deref().unwrap_or_default()).into(),
            ]);
        }
        lines.print()?;
    }
    if !loaded.warnings.is_empty() {
        output::line("")?;
        fleet::print_faults(place, &loaded.warnings)?;
    }
    Ok(output::note(&format!("\nrun it: {}", command(workflow)))?)
}

/// Returns the command that runs a workflow, with a place for what must be given.
fn command(workflow: &Workflow) -> String {
    let needed = workflow.inputs.iter().filter(|(_, input)| input.default.is_none());
    let needed = needed.map(|(name, _)| format!(" -i {name}=…"));
    format!("heeler workflow run {}{}", workflow.name, needed.collect::<String>())
}

fn heading(text: &str) -> Outcome {
    Ok(output::line(Text::from("\n").then(Text::styled(anstyle::Style::new().bold(), text)))?)
}

fn print_inputs(workflow: &Workflow) -> Outcome {
    if workflow.inputs.is_empty() {
        return Ok(());
    }
    heading("Inputs")?;
    let mut lines = Lines::bare(4, 3);
    for (name, input) in &workflow.inputs {
        let default = match &input.default {
            None => "must be given".to_owned(),
            Some(Value::String(text)) => format!("default `{}`", output::shortened(text, 40)),
            Some(value) => format!("default {}", output::shortened(&value.to_string(), 40)),
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

fn print_phases(workflow: &Workflow) -> Outcome {
    heading("Phases")?;
    let mut lines = Lines::bare(4, 3);
    for phase in &workflow.phases {
        let agent = phase.agent.as_ref().or(workflow.agent.as_ref());
        let by = match (&phase.work, agent) {
            (PhaseWork::Agent { .. }, Some(agent)) => agent.to_string(),
            _ => kind(phase).to_owned(),
        };
        let after = names(workflow, phase);
        let after = match after.is_empty() {
            true => "at once".to_owned(),
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

/// Says what is particular about a phase.
fn remarks(phase: &Phase) -> String {
    let mut remarks: Vec<String> = Vec::new();
    if phase.trigger_rule != TriggerRule::AllSuccess {
        remarks.push(format!("if {}", phase.trigger_rule.as_str().replace('_', " ")));
    }
    let skips = phase.skip_if.iter().map(|skip| format!("skipped if {skip}"));
    remarks.extend(skips);
    remarks.extend(repeat(&phase.repeat));
    remarks.extend(gates(phase).map(|gate| match gate.kind {
        GateKind::Approve => format!("asks for consent ({})", gate.name),
        GateKind::Reply => format!("asks for an answer ({})", gate.name),
    }));
    if phase.retry.max > 0 {
        remarks.push(format!("tried again {} times", phase.retry.max));
    }
    output::one_line(&remarks.join("; "))
}
