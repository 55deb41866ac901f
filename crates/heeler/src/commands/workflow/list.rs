//! `heeler workflow list`.

use clap::Args;
use heeler_model::config::Severity;
use heeler_model::workflow::{Cron, FaultyFile, LoadedWorkflow};
use heeler_store::{Reader, WorkflowOverride, WorkflowRunFilter, WorkflowRunHead};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{folder, runs};
use crate::cli::Global;
use crate::commands::config::faults_json;
use crate::failure::Outcome;
use crate::fleet;
use crate::output::{self, Lines, Text};
use crate::place::{self, Place};

/// Arguments of `workflow list`.
#[derive(Args)]
pub(crate) struct ListArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What the state knows of a workflow.
#[derive(Default)]
pub(super) struct Known {
    /// What a person set it to.
    pub(super) changed: Option<WorkflowOverride>,
    /// Its newest runs.
    pub(super) runs: Vec<WorkflowRunHead>,
}

impl Known {
    /// Reads it, with so many runs.
    pub(super) fn read(reader: Option<&Reader>, name: &str, runs: usize) -> Outcome<Known> {
        let Some(reader) = reader else { return Ok(Known::default()) };
        let filter =
            WorkflowRunFilter { workflow: Some(name.to_owned()), ..WorkflowRunFilter::default() };
        Ok(Known {
            changed: reader.workflow_override(name)?,
            runs: reader.workflow_runs(&filter, None, runs)?,
        })
    }

    /// Says whether runs of it may start.
    pub(super) fn is_enabled(&self) -> bool {
        self.changed.as_ref().is_none_or(|changed| changed.enabled)
    }

    /// Says whether it may run, and who decided that.
    pub(super) fn status(&self, now: Timestamp) -> Text {
        match &self.changed {
            Some(changed) if !changed.enabled => {
                let (by, when) = (output::one_line(&changed.by), output::relative(changed.at, now));
                let style = anstyle::AnsiColor::Yellow.on_default();
                Text::styled(style, "disabled").then(format!(" by {by}, {when}"))
            }
            _ => "enabled".into(),
        }
    }

    /// Returns for programs who switched it.
    pub(super) fn override_json(&self) -> Value {
        let changed = self.changed.as_ref();
        json!(changed.map(|it| json!({ "enabled": it.enabled, "by": it.by, "at": it.at })))
    }
}

/// Lists workflows.
pub(super) fn run(global: &Global, args: &ListArgs) -> Outcome {
    let now = place::now();
    let place = Place::find(global)?;
    let files = fleet::load(&place)?;
    let reader = place.reader()?;
    let mut all = Vec::new();
    for loaded in &files.workflows {
        let known = Known::read(reader.as_ref(), loaded.workflow.name.as_str(), 1)?;
        let is_own = |cron: &&Cron| cron.workflow == loaded.workflow.name;
        let crons: Vec<&Cron> = files.crons.iter().filter(is_own).collect();
        all.push((loaded, known, crons));
    }
    if args.json {
        let workflows: Vec<Value> =
            all.iter().map(|(loaded, known, crons)| to_json(loaded, known, crons)).collect();
        let faulty: Vec<Value> = files.faulty.iter().map(faulty_json).collect();
        let told = json!({ "workflows": workflows, "total": workflows.len(), "faulty": faulty });
        return Ok(output::json(&told)?);
    }
    if all.is_empty() && files.faulty.is_empty() {
        output::line(format!("no workflows in {}", folder(&files)))?;
        return Ok(output::note("heeler workflow example lists some that you can try")?);
    }
    let mut lines =
        Lines::new(&["NAME", "STATUS", "PHASES", "LAST RUN", "WHEN", "ABOUT"], &["ABOUT"]);
    for (loaded, known, crons) in &all {
        let last = known.runs.first();
        let last = last.map(|head| {
            let when = format!(" {}", output::relative(head.started_at, now));
            runs::outcome(head).then(when)
        });
        let when = crons.iter().filter(|cron| cron.enabled).map(|cron| cron.schedule.as_str());
        let about = loaded.workflow.description.as_deref().unwrap_or_default();
        lines.push(vec![
            loaded.workflow.name.as_str().into(),
            if known.is_enabled() { "enabled".into() } else { known.status(now) },
            loaded.workflow.phases.len().to_string().into(),
            last.unwrap_or_else(|| "never".into()),
            when.collect::<Vec<_>>().join("; ").into(),
            output::one_line(about).into(),
        ]);
    }
    let red = anstyle::AnsiColor::Red.on_default();
    for faulty in files.faulty.iter().filter(|it| !it.is_cron) {
        let mut row = vec![output::one_line(faulty.label()).into(), Text::styled(red, "faulty")];
        row.resize(6, Text::default());
        lines.push(row);
    }
    lines.print()?;
    Ok(fleet::print_faulty(&place, &files)?)
}

/// Returns a file of the workflow folder that has faults, for programs.
pub(crate) fn faulty_json(faulty: &FaultyFile) -> Value {
    json!({
        "name": faulty.label(),
        "kind": if faulty.is_cron { "cron" } else { "workflow" },
        "file": faulty.file,
        "errors": faults_json(&faulty.faults, Severity::Error),
    })
}

fn to_json(loaded: &LoadedWorkflow, known: &Known, crons: &[&Cron]) -> Value {
    let workflow = &loaded.workflow;
    let phases: Vec<&str> = workflow.phases.iter().map(|phase| phase.name.as_str()).collect();
    json!({
        "name": workflow.name,
        "description": workflow.description,
        "file": loaded.root,
        "phases": phases,
        "enabled": known.is_enabled(),
        "override": known.override_json(),
        "crons": crons.iter().map(|cron| cron_json(cron)).collect::<Vec<_>>(),
        "lastRun": known.runs.first().map(runs::head_json),
        "warnings": loaded.warnings.list.len(),
    })
}

/// Returns what starts a workflow by the clock, for programs.
pub(super) fn cron_json(cron: &Cron) -> Value {
    json!({
        "name": cron.name, "schedule": cron.schedule.as_str(), "enabled": cron.enabled,
        "timezone": cron.timezone.as_ref().map(|zone| zone.name()),
        "inputs": cron.context, "file": cron.file,
    })
}
