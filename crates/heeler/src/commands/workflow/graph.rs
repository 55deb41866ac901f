//! `heeler workflow graph`: draws a workflow. Start at [`run`].

use std::io::IsTerminal as _;

use clap::Args;
use heeler_config::workflow::Workflow;
use heeler_config::workflow::graph::{self, PhaseDisplayStatus};
use heeler_query::progress::WorkflowRunProgress;

use super::lookup::find;
use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config;
use crate::global_args::GlobalArgs;
use crate::output;
use crate::shared_args;

/// Help footer of `workflow graph`.
pub(super) const ABOUT: &str = "Examples:
  heeler workflow graph build
  heeler workflow graph --run wf-2026-11-15-k3v9q1
  heeler workflow graph build --mermaid >> README.md

Exit codes: 0 drawn, 2 invalid file, 4 not found.";

/// Width of the drawing without a terminal.
const WIDTH: usize = 100;

/// Arguments of `workflow graph`.
#[derive(Args)]
pub(crate) struct WorkflowGraphArgs {
    /// Workflow name [default: the workflow of --run]
    #[arg(value_name = "NAME", required_unless_present = "run", add = shared_args::workflows())]
    workflow: Option<String>,
    /// Show the progress of this run, with the definition it started with
    #[arg(long, value_name = "ID", add = shared_args::workflow_runs())]
    run: Option<String>,
    /// Print a Mermaid diagram, which GitHub and many editors draw
    #[arg(long)]
    mermaid: bool,
}

/// Runs `workflow graph`.
pub(super) fn run(global: &GlobalArgs, args: &WorkflowGraphArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    let Some(run) = &args.run else {
        let name = args.workflow.as_deref().expect("it is required without a run");
        let all = fleet_config::load(&context)?;
        return draw(
            &find(&context, &all, name)?.workflow,
            &|_| PhaseDisplayStatus::Waiting,
            args.mermaid,
        );
    };
    let (reader, row) = context.find_workflow_run(run)?;
    if args.workflow.as_ref().is_some_and(|name| *name != row.head.workflow) {
        let message = format!("{} is a run of {}", row.head.id, row.head.workflow);
        return Err(CommandFailure::message(FailureCode::Usage, message));
    }
    // An imported run may have no definition.
    let Some(workflow) = context.open_records()?.workflow_of_run(&reader, &row)? else {
        let message = format!("the workflow definition of {} is not recorded", row.head.id);
        return Err(CommandFailure::message(FailureCode::NotFound, message));
    };
    let progress = WorkflowRunProgress::read(&reader, row, Some(workflow.clone()))?;
    draw(&workflow, &|at| progress.phases[at].status, args.mermaid)
}

fn draw(
    workflow: &Workflow,
    state: &dyn Fn(usize) -> PhaseDisplayStatus,
    mermaid: bool,
) -> CommandResult {
    if mermaid {
        return Ok(output::print_line(graph::mermaid(workflow).trim_end())?);
    }
    let size = rustix::termios::tcgetwinsize(std::io::stdout());
    let width = match size.map_or(0, |size| usize::from(size.ws_col)) {
        0 => WIDTH,
        columns => columns,
    };
    // A file must not depend on the window in which it was made.
    let width = if std::io::stdout().is_terminal() { width } else { WIDTH };
    for line in graph::draw(workflow, state, width) {
        output::print_line(line)?;
    }
    Ok(())
}
