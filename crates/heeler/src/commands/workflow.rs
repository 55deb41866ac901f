//! `heeler workflow`: workflows, their runs, and the commands that change them.
//!
//! Lists are read from files and the database; changes are requests to the daemon. Start at
//! [`run()`].

mod control;
mod example;
mod graph;
mod list;
mod lookup;
mod run;
mod run_details;
mod runs;
mod show;
mod validate;
mod watch;

use clap::{Args, Subcommand};

use crate::failure::CommandResult;
use crate::global_args::GlobalArgs;
use crate::shared_args;

pub(crate) use self::example::files_of;
pub(crate) use self::runs::outcome;

/// Help footer of `workflow`.
pub(crate) const ABOUT: &str = "Examples:
  heeler workflow example build       # write two files that run without a model
  heeler workflow run build -i task='Add a greeting'
  heeler workflow runs                # list runs, and those that wait for you
  heeler workflow show wf-2026-11-15-k3v9q1
  heeler workflow retry wf-2026-11-15-k3v9q1 --from review

A workflow is a file in `workflows/` next to the config. Agents and commands execute its phases, in
order or in loops. At a gate, the run waits for your approval. See docs/workflows.md.";

#[derive(Subcommand)]
pub(crate) enum WorkflowCommand {
    /// List workflows: description, status and last run
    #[command(
        after_help = "Exit codes: 0 listed (even if a workflow is invalid), 2 invalid config."
    )]
    List(list::WorkflowListArgs),
    /// Show a workflow (inputs, phases, dependencies), or one run of it
    #[command(after_help = show::ABOUT)]
    Show(show::WorkflowShowArgs),
    /// Check workflow files; list every error with its position
    #[command(after_help = validate::ABOUT)]
    Validate(validate::WorkflowValidateArgs),
    /// Draw a workflow as a graph, or the progress of a run
    #[command(after_help = graph::ABOUT)]
    Graph(graph::WorkflowGraphArgs),
    /// Run a workflow, watch its phases, and exit with its outcome
    #[command(after_help = run::ABOUT)]
    Run(run::WorkflowRunArgs),
    /// Watch a run that is in progress
    #[command(after_help = run::WATCH)]
    Watch(run::WorkflowWatchArgs),
    /// List workflow runs, newest first
    #[command(after_help = runs::ABOUT)]
    Runs(runs::WorkflowRunsArgs),
    /// Print the transcripts of a run's agents
    #[command(after_help = run_details::LOGS)]
    Logs(run_details::WorkflowLogsArgs),
    /// Cancel a run
    #[command(after_help = control::CANCEL)]
    Cancel(control::WorkflowCancelArgs),
    /// Continue a failed or cancelled run
    #[command(after_help = control::RETRY)]
    Retry(control::WorkflowRetryArgs),
    /// Allow runs of a workflow to start again
    #[command(after_help = control::SWITCH)]
    Enable(WorkflowTargetArgs),
    /// Keep runs of a workflow from starting; active runs continue
    #[command(after_help = control::SWITCH)]
    Disable(WorkflowTargetArgs),
    /// Remove the setting made by enable or disable
    #[command(after_help = control::SWITCH)]
    Reset(WorkflowTargetArgs),
    /// Write an example that runs at once, without a model, key or network
    #[command(after_help = example::ABOUT)]
    Example(example::WorkflowExampleArgs),
}

/// Arguments of `workflow enable`, `disable` and `reset`.
#[derive(Args)]
pub(crate) struct WorkflowTargetArgs {
    /// Workflow name
    #[arg(value_name = "NAME", add = shared_args::workflows())]
    workflow: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `workflow` and its subcommands.
pub(crate) fn run(global: &GlobalArgs, command: &WorkflowCommand) -> CommandResult {
    match command {
        WorkflowCommand::List(args) => list::run(global, args),
        WorkflowCommand::Show(args) => show::run(global, args),
        WorkflowCommand::Validate(args) => validate::run(global, args),
        WorkflowCommand::Graph(args) => graph::run(global, args),
        WorkflowCommand::Run(args) => run::run(global, args),
        WorkflowCommand::Watch(args) => run::watch(global, args),
        WorkflowCommand::Runs(args) => runs::run(global, args),
        WorkflowCommand::Logs(args) => run_details::logs(global, args),
        WorkflowCommand::Cancel(args) => control::cancel(global, args),
        WorkflowCommand::Retry(args) => control::retry(global, args),
        WorkflowCommand::Enable(args) => {
            control::set_enabled(global, &args.workflow, true, args.json)
        }
        WorkflowCommand::Disable(args) => {
            control::set_enabled(global, &args.workflow, false, args.json)
        }
        WorkflowCommand::Reset(args) => control::reset(global, &args.workflow, args.json),
        WorkflowCommand::Example(args) => example::run(args),
    }
}
