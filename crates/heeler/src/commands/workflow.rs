//! `heeler workflow`: what the fleet's workflows are, their runs, and what is done with both.
//!
//! Lists are read from files and the database; what changes something is asked of the daemon.

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
use heeler_model::config::LoadedConfig;
use heeler_model::workflow::{LoadedWorkflow, Workflow};
use heeler_query::progress;
use heeler_store::{IdLookupError, StoreReader, WorkflowRunRow};

use crate::cli::{self, GlobalArgs};
use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config;

pub(crate) use self::example::files_of;
pub(crate) use self::runs::outcome;

/// What the help shows at its end.
pub(crate) const ABOUT: &str = "Examples:
  heeler workflow example build       # two files that run at once, without a model
  heeler workflow run build -i task='Add a greeting'
  heeler workflow runs                # what ran, and what waits for you
  heeler workflow show wf-2026-11-15-k3v9q1
  heeler workflow retry wf-2026-11-15-k3v9q1 --from review

A workflow is a file in `workflows/` beside the config: phases that agents and commands do, in order,
in loops, with your consent where it asks for it. docs/workflows.md says all of it.";

#[derive(Subcommand)]
pub(crate) enum WorkflowCommand {
    /// List workflows: what they do, whether they may run, how the last run ended
    #[command(
        after_help = "Exit codes: 0 listed, also where a workflow has faults, 2 a fault in the config."
    )]
    List(list::WorkflowListArgs),
    /// Show a workflow (inputs, phases, what waits for what), or one run of it
    #[command(after_help = show::ABOUT)]
    Show(show::WorkflowShowArgs),
    /// Check workflow files; list every fault with its place
    #[command(after_help = validate::ABOUT)]
    Validate(validate::WorkflowValidateArgs),
    /// Draw a workflow, or where a run of it stands
    #[command(after_help = graph::ABOUT)]
    Graph(graph::WorkflowGraphArgs),
    /// Run a workflow, watch its phases, and end with its outcome
    #[command(after_help = run::ABOUT)]
    Run(run::WorkflowRunArgs),
    /// Watch a run that goes on
    #[command(after_help = run::WATCH)]
    Watch(run::WorkflowWatchArgs),
    /// List runs of workflows, newest first
    #[command(after_help = runs::ABOUT)]
    Runs(runs::WorkflowRunsArgs),
    /// Print what the agents of a run said and did
    #[command(after_help = run_details::LOGS)]
    Logs(run_details::WorkflowLogsArgs),
    /// End a run
    #[command(after_help = control::CANCEL)]
    Cancel(control::WorkflowCancelArgs),
    /// Let a run go on that has failed or was cancelled
    #[command(after_help = control::RETRY)]
    Retry(control::WorkflowRetryArgs),
    /// Let runs of a workflow start again
    #[command(after_help = control::SWITCH)]
    Enable(WorkflowTargetArgs),
    /// Keep runs of a workflow from starting; those that run go on
    #[command(after_help = control::SWITCH)]
    Disable(WorkflowTargetArgs),
    /// Write an example into a folder: it runs at once, without a model, key or network
    #[command(after_help = example::ABOUT)]
    Example(example::WorkflowExampleArgs),
}

/// Arguments of `workflow enable` and `disable`.
#[derive(Args)]
pub(crate) struct WorkflowTargetArgs {
    /// The workflow
    #[arg(value_name = "NAME", add = cli::workflows())]
    workflow: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl WorkflowCommand {
    /// Says whether stdout is promised to be JSON.
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

/// Runs `workflow` and its verbs.
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

/// Finds a workflow by its name.
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
        let message = format!("the workflow `{name}` has faults");
        let hint = format!("heeler workflow validate {}", faulty.label());
        return Err(CommandFailure::message(FailureCode::Usage, message).hint(hint));
    }
    let names = all.workflows.iter().map(|it| it.workflow.name.as_str());
    let failure =
        CommandFailure::message(FailureCode::NotFound, format!("there is no workflow `{name}`"));
    let near = heeler_model::config::did_you_mean(name, names.clone());
    let names: Vec<&str> = names.collect();
    Err(match (near, names.is_empty()) {
        (Some(near), _) => failure.hint(format!("did you mean `{near}`?")),
        (None, false) => failure.hint(format!("there is {}", names.join(", "))),
        (None, true) => {
            let folder = folder(all);
            failure.hint(format!("heeler workflow example, or put a file into {folder}"))
        }
    })
}

/// Returns where the fleet's workflows are.
fn folder(loaded: &LoadedConfig) -> &str {
    loaded.fleets.first().map_or("workflows", |fleet| fleet.workflows.folder.as_str())
}

/// Finds a run by its id or a beginning of it.
fn find_run(place: &CommandContext, text: &str) -> CommandResult<(StoreReader, WorkflowRunRow)> {
    let reader = place.reader_for("workflow run", text)?;
    let row = reader.find_workflow_run(text)?;
    Ok((reader, row))
}

/// Finds a run, if there is one that is called so.
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

/// Returns what a run goes by; what cannot be read any more is not known.
fn definition(
    place: &CommandContext,
    reader: &StoreReader,
    row: &WorkflowRunRow,
) -> CommandResult<Option<Workflow>> {
    Ok(place.open_records()?.workflow_of_run(reader, row)?)
}

/// How a run is watched by whoever started it.
#[derive(Args, Clone)]
pub(crate) struct RunWatchArgs {
    /// Print the run's id and return at once; the run goes on
    #[arg(long, conflicts_with_all = ["follow", "until_asked"])]
    pub(crate) detach: bool,
    /// Show what the agents say and do too, each line with its phase
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Return as soon as the run waits for a person; it goes on when somebody answers
    #[arg(long)]
    pub(crate) until_asked: bool,
    /// Print one JSON document when the run has ended
    #[arg(long)]
    pub(crate) json: bool,
}
