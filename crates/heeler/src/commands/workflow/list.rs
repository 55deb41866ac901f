//! `heeler workflow list`.

use clap::Args;
use heeler_query::workflows::{WorkflowChanged, WorkflowKnown};
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
pub(super) fn status(changed: Option<&WorkflowChanged>, now: Timestamp) -> Text {
    match changed {
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
    let records = place.records_by(Some(fleet::load(&place)?))?;
    let page = records.workflows()?;
    if args.json {
        return Ok(output::json(&page)?);
    }
    let files = records.known().loaded.expect("they were loaded above");
    if page.workflows.is_empty() && page.faulty.is_empty() {
        output::line(format!("no workflows in {}", folder(&files)))?;
        return Ok(output::note("heeler workflow example lists some that you can try")?);
    }
    let mut lines =
        Lines::new(&["NAME", "STATUS", "PHASES", "LAST RUN", "WHEN", "ABOUT"], &["ABOUT"]);
    for workflow in &page.workflows {
        let last = workflow.last_run.as_ref().map(|run| {
            let when = format!(" {}", output::relative(run.started_at, now));
            runs::outcome(run.status, run.mode.as_deref()).then(when)
        });
        let crons = workflow.crons.iter().filter(|cron| cron.enabled);
        let when: Vec<&str> = crons.map(|cron| cron.schedule.as_str()).collect();
        let about = workflow.description.as_deref().unwrap_or_default();
        lines.push(vec![
            workflow.name.as_str().into(),
            status(workflow.changed.as_ref(), now),
            workflow.phases.len().to_string().into(),
            last.unwrap_or_else(|| "never".into()),
            when.join("; ").into(),
            output::one_line(about).into(),
        ]);
    }
    let red = anstyle::AnsiColor::Red.on_default();
    for faulty in page.faulty.iter().filter(|it| it.kind == "workflow") {
        let mut row = vec![output::one_line(&faulty.name).into(), Text::styled(red, "faulty")];
        row.resize(6, Text::default());
        lines.push(row);
    }
    lines.print()?;
    Ok(fleet::print_faulty(&place, &files)?)
}
