//! `heeler status`: the fleet at a glance.
//!
//! It is read from the state directory, with or without a daemon; only what the daemon cannot do at
//! present is asked of it.

mod page;
mod state_writer;
mod watch;

use std::time::Duration;

use clap::Args;
use heeler_engine::{BudgetStatus, CommandReply, DaemonCommand};
use heeler_model::workflow::FaultyWorkflowFile;
use heeler_query::fleet::{FleetStatus, FleetStatusQuery};

use crate::cli::{self, GlobalArgs};
use crate::context::{self, CommandContext};
use crate::failure::CommandResult;
use crate::fleet_config;
use crate::output;

use self::page::{StatusPage, page};
pub(crate) use self::state_writer::StateWriterInfo;

/// What the help shows at its end.
pub(crate) const ABOUT: &str = "Examples:
  heeler status
  heeler status coder
  heeler status --watch
  heeler status --json | jq '.waiting[] | {id, waits}'

It is read from the state directory, with or without a daemon, and changes nothing.
Exit codes: 0 shown, also where something failed, 4 no such agent, 130 --watch was interrupted.";

/// How long the daemon may take to say what is wrong with it.
const FAULTS_WAIT: Duration = Duration::from_secs(2);

/// Arguments of `status`.
#[derive(Args)]
pub(crate) struct StatusArgs {
    /// Only this agent
    #[arg(add = cli::agents())]
    agent: Option<String>,
    /// Show it anew each second, until `q` or Ctrl-C
    #[arg(short, long, conflicts_with = "json")]
    watch: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What is known of the fleet at one moment.
struct StatusSnapshot {
    fleet: FleetStatus,
    writer: StateWriterInfo,
    /// What is wrong with the config, in short.
    config_faults: Option<String>,
    /// Files of the workflow folder that have faults.
    faulty_workflows: Vec<FaultyWorkflowFile>,
    budgets: Vec<BudgetStatus>,
}

/// Shows the fleet.
pub(crate) fn run(global: &GlobalArgs, args: &StatusArgs) -> CommandResult {
    let place = CommandContext::find(global)?;
    if args.watch {
        return watch::run(|| {
            Ok(page(&StatusSnapshot::take(&place, args)?, &place, context::now()).into_lines())
        });
    }
    let snapshot = StatusSnapshot::take(&place, args)?;
    if args.json {
        return Ok(output::print_json(&snapshot.fleet)?);
    }
    let StatusPage { lines, notes } = page(&snapshot, &place, context::now());
    for line in lines {
        output::print_line(line)?;
    }
    notes.iter().try_for_each(|note| Ok(output::print_note(note)?))
}

impl StatusSnapshot {
    fn take(place: &CommandContext, args: &StatusArgs) -> CommandResult<StatusSnapshot> {
        let (keeper, client) = StateWriterInfo::connect(place)?;
        let daemon = client.map(|mut client| {
            match client.send_command(&DaemonCommand::Status, Some(FAULTS_WAIT)) {
                Ok(CommandReply::Status(status)) => Ok(*status),
                Ok(other) => Err(format!("it answered something else: {other:?}")),
                Err(error) => Err(error.to_string()),
            }
        });
        let budgets = match &daemon {
            Some(Ok(status)) => status.budgets.clone(),
            _ => Vec::new(),
        };
        // Faults of the config do not hide the state.
        let (loaded, config_faults) = match &place.config {
            Some(file) => match fleet_config::try_load(place, file, &fleet_config::read_text)? {
                Ok(loaded) => (Some(loaded), None),
                Err(faults) => (None, Some(faults.summary())),
            },
            None => (None, None),
        };
        let faulty = loaded.as_ref().map(|loaded| loaded.faulty_files.clone()).unwrap_or_default();
        let wanted = FleetStatusQuery { agent: args.agent.clone(), daemon };
        let fleet = place.open_records_with(loaded)?.fleet(&wanted, context::now())?;
        Ok(StatusSnapshot {
            fleet,
            writer: keeper,
            config_faults,
            faulty_workflows: faulty,
            budgets,
        })
    }
}
