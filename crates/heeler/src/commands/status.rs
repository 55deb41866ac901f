//! `heeler status`: an overview of the fleet.
//!
//! It is read from the state directory, with or without a daemon. The daemon is asked only for its
//! current faults and budgets. Start at [`run`].

mod page;
mod state_writer;
mod watch;

use std::time::Duration;

use clap::Args;
use heeler_config::workflow::FaultyWorkflowFile;
use heeler_engine::{BudgetStatus, CommandReply, DaemonCommand};
use heeler_query::fleet::{FleetStatus, FleetStatusQuery};

use crate::cli::{self, GlobalArgs};
use crate::context::{self, CommandContext};
use crate::failure::CommandResult;
use crate::fleet_config;
use crate::output;

use self::page::{StatusPage, page};
pub(crate) use self::state_writer::StateWriterInfo;

/// Help footer of `status`.
pub(crate) const ABOUT: &str = "Examples:
  heeler status
  heeler status coder
  heeler status --watch
  heeler status --json | jq '.waiting[] | {id, waits}'

The status is read from the state directory, with or without a daemon, and nothing is changed.
Exit codes: 0 shown, even if something failed, 4 no such agent, 130 --watch was interrupted.";

/// Time for the daemon to report its faults.
const FAULTS_WAIT: Duration = Duration::from_secs(2);

/// Arguments of `status`.
#[derive(Args)]
pub(crate) struct StatusArgs {
    /// Show only this agent
    #[arg(add = cli::agents())]
    agent: Option<String>,
    /// Refresh every second, until `q` or Ctrl-C
    #[arg(short, long, conflicts_with = "json")]
    watch: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// State of the fleet at one moment.
struct StatusSnapshot {
    fleet: FleetStatus,
    writer: StateWriterInfo,
    /// Summary of the config's faults.
    config_faults: Option<String>,
    /// Workflow files with faults.
    faulty_workflows: Vec<FaultyWorkflowFile>,
    budgets: Vec<BudgetStatus>,
}

/// Runs `status`.
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
                Ok(other) => Err(format!("unexpected answer: {other:?}")),
                Err(error) => Err(error.to_string()),
            }
        });
        let budgets = match &daemon {
            Some(Ok(status)) => status.budgets.clone(),
            _ => Vec::new(),
        };
        // Show the state even if the config has faults.
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
