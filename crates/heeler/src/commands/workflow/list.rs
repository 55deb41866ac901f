//! `heeler workflow list`.

use clap::Args;
use heeler_model::workflow::Cron;
use heeler_query::workflows::WorkflowKnown;
use heeler_store::Reader;
use jiff::Timestamp;

use super::{folder, runs};
use crate::cli::Global;
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

/// Reads what the state knows of a workflow, with so many runs.
pub(super) fn known(reader: Option<&Reader>, name: &str, runs: usize) -> Outcome<WorkflowKnown> {
    match reader {
        Some(reader) => Ok(WorkflowKnown::read(reader, name, runs)?),
        None => Ok(WorkflowKnown::default()),
    }
}

/// Says whether a workflow may run, and who decided that.
pub(super) fn status(known: &WorkflowKnown, now: Timestamp) -> Text {
    match &known.changed {
        Some(changed) if !changed.enabled => {
            let (by, when) = (output::one_line(&changed.by), output::relative(changed.at, now));
            let style = anstyle::AnsiColor::Yellow.on_default();
            Text::styled(style, "disabled").then(format!(" by {by}, {when}"))
        }
        _ => "enabled".into(),
    }
}

/// Lists workflows.
pub(super) fn run(global: &Global, args: &ListArgs) -> Outcome {
    let now = place::now();
    let place = Place::find(global)?;
    let files = fleet::load(&place)?;
    if args.json {
        return Ok(output::json(&place.records_by(Some(files))?.workflows()?)?);
    }
    let reader = place.reader()?;
    let mut all = Vec::new();
    for loaded in &files.workflows {
        let known = known(reader.as_ref(), loaded.workflow.name.as_str(), 1)?;
        let is_own = |cron: &&Cron| cron.workflow == loaded.workflow.name;
        let crons: Vec<&Cron> = files.crons.iter().filter(is_own).collect();
        all.push((loaded, known, crons));
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
            runs::outcome(head.status, head.mode.as_deref()).then(when)
        });
        let when = crons.iter().filter(|cron| cron.enabled).map(|cron| cron.schedule.as_str());
        let about = loaded.workflow.description.as_deref().unwrap_or_default();
        lines.push(vec![
            loaded.workflow.name.as_str().into(),
            if known.is_enabled() { "enabled".into() } else { status(known, now) },
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
