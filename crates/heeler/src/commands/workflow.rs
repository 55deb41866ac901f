//! `heeler workflow`: workflows, their runs, and the commands that change them.
//!
//! Lists are read from files and the database; changes are requests to the daemon. Start at
//! [`run()`].

mod control;
mod example;
mod graph;
mod list;
mod run;
mod run_details;
mod runs;
mod show;
mod validate;
mod watch;

use std::sync::Arc;

use clap::{Args, Subcommand};
use heeler_config::LoadedConfig;
use heeler_config::workflow::{LoadedWorkflow, Workflow};
use heeler_query::progress;
use heeler_store::{IdLookupError, StoreReader, WorkflowRunRow};

use crate::cli::{self, GlobalArgs};
use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config;

pub(crate) use self::example::files_of;
pub(crate) use self::runs::outcome;

/// Help footer of `workflow`.
pub(crate) const ABOUT: &str = "Examples:
  heeler workflow example build       # write two files that run without a model
  heeler workflow run build -i task='Add a greeting'
  heeler workflow runs                # list runs, and those that wait for you
  heeler workflow show wf-2026-11-15-k3v9q1
  heeler workflow retry wf-2026-11-15-k3v9q1 --from review

A workflow is a file in `workflows/` next to the config. Its phases are done by agents and commands, in
order and in loops, and wait for your approval at gates. See docs/workflows.md.";

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
    /// Write an example that runs at once, without a model, key or network
    #[command(after_help = example::ABOUT)]
    Example(example::WorkflowExampleArgs),
}

/// Arguments of `workflow enable` and `disable`.
#[derive(Args)]
pub(crate) struct WorkflowTargetArgs {
    /// Workflow name
    #[arg(value_name = "NAME", add = cli::workflows())]
    workflow: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl WorkflowCommand {
    /// Returns true if the command promises JSON on stdout.
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            WorkflowCommand::List(args) => args.json,
            WorkflowCommand::Show(args) => args.json,
            WorkflowCommand::Validate(args) => args.json,
            WorkflowCommand::Graph(_) | WorkflowCommand::Example(_) => false,
            WorkflowCommand::Run(args) => args.how.json,
            WorkflowCommand::Watch(args) => args.json,
            WorkflowCommand::Runs(args) => args.json,
            WorkflowCommand::Logs(args) => args.how.json,
            WorkflowCommand::Cancel(args) => args.json,
            WorkflowCommand::Retry(args) => args.how.json,
            WorkflowCommand::Enable(args) | WorkflowCommand::Disable(args) => args.json,
        }
    }
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
        WorkflowCommand::Example(args) => example::run(args),
    }
}

/// Finds a workflow by name.
fn find<'a>(
    place: &CommandContext,
    all: &'a LoadedConfig,
    name: &str,
) -> CommandResult<&'a Arc<LoadedWorkflow>> {
    if let Some(found) = all.workflow(name) {
        return Ok(found);
    }
    if let Some(faulty) = all.faulty_workflow(name) {
        fleet_config::print_faults(place, &faulty.faults)?;
        let message = format!("the workflow `{name}` is invalid");
        let hint = format!("heeler workflow validate {}", faulty.label());
        return Err(CommandFailure::message(FailureCode::Usage, message).hint(hint));
    }
    let names = all.workflows.iter().map(|it| it.workflow.name.as_str());
    let failure =
        CommandFailure::message(FailureCode::NotFound, format!("there is no workflow `{name}`"));
    let near = heeler_model::did_you_mean(name, names.clone());
    let names: Vec<&str> = names.collect();
    Err(match (near, names.is_empty()) {
        (Some(near), _) => failure.hint(format!("did you mean `{near}`?")),
        (None, false) => failure.hint(format!("available: {}", names.join(", "))),
        (None, true) => {
            let folder = folder(all);
            failure.hint(format!("heeler workflow example, or add a file to {folder}"))
        }
    })
}

/// Returns the folder of the fleet's workflows.
fn folder(loaded: &LoadedConfig) -> &str {
    loaded.fleets.first().map_or("workflows", |fleet| fleet.workflows.folder.as_str())
}

/// Finds a run by ID or unique prefix.
fn find_run(place: &CommandContext, text: &str) -> CommandResult<(StoreReader, WorkflowRunRow)> {
    let reader = place.reader_for("workflow run", text)?;
    let row = reader.find_workflow_run(text)?;
    Ok((reader, row))
}

/// Finds a run by ID or unique prefix, if it exists.
fn try_run(
    place: &CommandContext,
    text: &str,
) -> CommandResult<Option<(StoreReader, WorkflowRunRow)>> {
    let Some(reader) = place.open_reader()? else { return Ok(None) };
    match reader.find_workflow_run(text) {
        Ok(row) => Ok(Some((reader, row))),
        Err(IdLookupError::Unknown { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the definition that a run uses, or `None` if it cannot be read any more.
fn definition(
    place: &CommandContext,
    reader: &StoreReader,
    row: &WorkflowRunRow,
) -> CommandResult<Option<Workflow>> {
    Ok(place.open_records()?.workflow_of_run(reader, row)?)
}

/// Options for watching a run.
#[derive(Args, Clone)]
pub(crate) struct RunWatchArgs {
    /// Print the run's ID and return at once; the run continues
    #[arg(long, conflicts_with_all = ["follow", "until_asked"])]
    pub(crate) detach: bool,
    /// Also show the agents' messages and actions, each line with its phase
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Return as soon as the run waits for an answer; answering continues it
    #[arg(long)]
    pub(crate) until_asked: bool,
    /// Print one JSON document when the run has ended
    #[arg(long)]
    pub(crate) json: bool,
}
