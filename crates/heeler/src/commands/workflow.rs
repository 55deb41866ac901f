//! `heeler workflow`: what the fleet's workflows are, their runs, and what is done with both.
//!
//! Lists are read from files and the database; what changes something is asked of the daemon.

mod account;
mod check;
mod describe;
mod example;
mod graph;
mod list;
mod run;
mod runs;
mod steer;
mod watch;

use std::sync::Arc;

use clap::{Args, Subcommand};
use heeler_model::config::Loaded;
use heeler_model::workflow::{LoadedWorkflow, Workflow};
use heeler_query::stand;
use heeler_store::{LookupError, Reader, WorkflowRunRow};

use crate::cli::{self, Global};
use crate::failure::{Code, Failure, Outcome};
use crate::fleet;
use crate::place::Place;

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
    List(list::ListArgs),
    /// Show a workflow (inputs, phases, what waits for what), or one run of it
    #[command(after_help = describe::ABOUT)]
    Show(describe::ShowArgs),
    /// Check workflow files; list every fault with its place
    #[command(after_help = check::ABOUT)]
    Validate(check::ValidateArgs),
    /// Draw a workflow, or where a run of it stands
    #[command(after_help = graph::ABOUT)]
    Graph(graph::GraphArgs),
    /// Run a workflow, watch its phases, and end with its outcome
    #[command(after_help = run::ABOUT)]
    Run(run::RunArgs),
    /// Watch a run that goes on
    #[command(after_help = run::WATCH)]
    Watch(run::WatchArgs),
    /// List runs of workflows, newest first
    #[command(after_help = runs::ABOUT)]
    Runs(runs::RunsArgs),
    /// Print what the agents of a run said and did
    #[command(after_help = account::LOGS)]
    Logs(account::LogsArgs),
    /// End a run
    #[command(after_help = steer::CANCEL)]
    Cancel(steer::CancelArgs),
    /// Let a run go on that has failed or was cancelled
    #[command(after_help = steer::RETRY)]
    Retry(steer::RetryArgs),
    /// Let runs of a workflow start again
    #[command(after_help = steer::SWITCH)]
    Enable(OneArgs),
    /// Keep runs of a workflow from starting; those that run go on
    #[command(after_help = steer::SWITCH)]
    Disable(OneArgs),
    /// Write an example into a folder: it runs at once, without a model, key or network
    #[command(after_help = example::ABOUT)]
    Example(example::ExampleArgs),
}

/// Arguments of `workflow enable` and `disable`.
#[derive(Args)]
pub(crate) struct OneArgs {
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
pub(crate) fn run(global: &Global, command: &WorkflowCommand) -> Outcome {
    match command {
        WorkflowCommand::List(args) => list::run(global, args),
        WorkflowCommand::Show(args) => describe::run(global, args),
        WorkflowCommand::Validate(args) => check::run(global, args),
        WorkflowCommand::Graph(args) => graph::run(global, args),
        WorkflowCommand::Run(args) => run::run(global, args),
        WorkflowCommand::Watch(args) => run::watch(global, args),
        WorkflowCommand::Runs(args) => runs::run(global, args),
        WorkflowCommand::Logs(args) => account::logs(global, args),
        WorkflowCommand::Cancel(args) => steer::cancel(global, args),
        WorkflowCommand::Retry(args) => steer::retry(global, args),
        WorkflowCommand::Enable(args) => steer::switch(global, &args.workflow, true, args.json),
        WorkflowCommand::Disable(args) => steer::switch(global, &args.workflow, false, args.json),
        WorkflowCommand::Example(args) => example::run(args),
    }
}

/// Finds a workflow by its name.
fn find<'a>(place: &Place, all: &'a Loaded, name: &str) -> Outcome<&'a Arc<LoadedWorkflow>> {
    if let Some(found) = all.workflow(name) {
        return Ok(found);
    }
    if let Some(faulty) = all.faulty_workflow(name) {
        fleet::print_faults(place, &faulty.faults)?;
        let message = format!("the workflow `{name}` has faults");
        let hint = format!("heeler workflow validate {}", faulty.label());
        return Err(Failure::message(Code::Usage, message).hint(hint));
    }
    let names = all.workflows.iter().map(|it| it.workflow.name.as_str());
    let failure = Failure::message(Code::NotFound, format!("there is no workflow `{name}`"));
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
fn folder(loaded: &Loaded) -> &str {
    loaded.fleets.first().map_or("workflows", |fleet| fleet.workflows.folder.as_str())
}

/// Finds a run by its id or a beginning of it.
fn find_run(place: &Place, text: &str) -> Outcome<(Reader, WorkflowRunRow)> {
    let reader = place.reader_for("workflow run", text)?;
    let row = reader.find_workflow_run(text)?;
    Ok((reader, row))
}

/// Finds a run, if there is one that is called so.
fn try_run(place: &Place, text: &str) -> Outcome<Option<(Reader, WorkflowRunRow)>> {
    let Some(reader) = place.reader()? else { return Ok(None) };
    match reader.find_workflow_run(text) {
        Ok(row) => Ok(Some((reader, row))),
        Err(LookupError::Unknown { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns what a run goes by; what cannot be read any more is not known.
fn definition(place: &Place, reader: &Reader, row: &WorkflowRunRow) -> Outcome<Option<Workflow>> {
    Ok(place.records()?.definition(reader, row)?)
}

/// How a run is watched by whoever started it.
#[derive(Args, Clone)]
pub(crate) struct Watching {
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
