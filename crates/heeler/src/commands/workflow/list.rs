//! `heeler workflow list`: lists workflows, including invalid ones. Start at [`run`].

use clap::Args;
use heeler_query::workflows::{StoredWorkflowState, WorkflowOverrideSummary};
use heeler_store::StoreReader;
use jiff::Timestamp;

use super::lookup::folder;
use super::runs;
use crate::context::CommandContext;
use crate::failure::CommandResult;
use crate::fleet_config;
use crate::global_args::GlobalArgs;
use crate::output::{self, OutputTable, SafeText};
use crate::process_env;

/// Arguments of `workflow list`.
#[derive(Args)]
pub(crate) struct WorkflowListArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Reads the stored state of a workflow, with its newest `runs` runs.
pub(super) fn known(
    reader: Option<&StoreReader>,
    name: &str,
    runs: usize,
) -> CommandResult<StoredWorkflowState> {
    match reader {
        Some(reader) => Ok(StoredWorkflowState::read(reader, name, runs)?),
        None => Ok(StoredWorkflowState::default()),
    }
}

/// Formats a workflow's status, with the author and time of a manual change.
pub(super) fn status(changed: Option<&WorkflowOverrideSummary>, now: Timestamp) -> SafeText {
    match changed {
        Some(changed) if !changed.enabled => {
            let (by, when) =
                (output::one_line(&changed.by), output::relative_time(changed.at, now));
            let style = anstyle::AnsiColor::Yellow.on_default();
            SafeText::styled(style, "disabled").append(format!(" by {by}, {when}"))
        }
        _ => "enabled".into(),
    }
}

/// Runs `workflow list`.
pub(super) fn run(global: &GlobalArgs, args: &WorkflowListArgs) -> CommandResult {
    let now = process_env::now();
    let context = CommandContext::find(global)?;
    let records = context.open_records_with(Some(fleet_config::load(&context)?))?;
    let page = records.workflows()?;
    if args.json {
        return Ok(output::print_json(&page)?);
    }
    let files = records.context().loaded.expect("they were loaded above");
    if page.workflows.is_empty() && page.faulty.is_empty() {
        output::print_line(format!("no workflows in {}", folder(&files)))?;
        return Ok(output::print_note("heeler workflow example lists examples to try")?);
    }
    let mut lines =
        OutputTable::new(&["NAME", "STATUS", "PHASES", "LAST RUN", "WHEN", "ABOUT"], &["ABOUT"]);
    for workflow in &page.workflows {
        let last = workflow.last_run.as_ref().map(|run| {
            let when = format!(" {}", output::relative_time(run.started_at, now));
            runs::outcome(run.status, run.mode.as_deref()).append(when)
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
    // Cron files are no workflows; their faults are printed below.
    for faulty in page.faulty.iter().filter(|it| it.kind == "workflow") {
        let mut row = vec![output::one_line(&faulty.name).into(), SafeText::styled(red, "invalid")];
        // Every row needs as many cells as there are columns.
        row.resize(6, SafeText::default());
        lines.push(row);
    }
    lines.print()?;
    Ok(fleet_config::print_workflow_faults(&context, &files)?)
}
