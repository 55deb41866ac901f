//! `heeler status`: the fleet at a glance.
//!
//! It is read from the state directory, with or without a daemon; only what the daemon cannot do at
//! present is asked of it.

mod keeper;
mod page;
mod watch;

use std::time::Duration;

use clap::Args;
use heeler_engine::{Answer, BudgetStatus, Command};
use heeler_model::workflow::FaultyFile;
use heeler_query::fleet::{FleetStatus, FleetWanted};

use crate::cli::{self, Global};
use crate::failure::Outcome;
use crate::fleet;
use crate::output;
use crate::place::{self, Place};

pub(crate) use self::keeper::Keeper;
use self::page::{Page, page};

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
struct Snapshot {
    fleet: FleetStatus,
    keeper: Keeper,
    /// What is wrong with the config, in short.
    config_faults: Option<String>,
    /// Files of the workflow folder that have faults.
    faulty: Vec<FaultyFile>,
    budgets: Vec<BudgetStatus>,
}

/// Shows the fleet.
pub(crate) fn run(global: &Global, args: &StatusArgs) -> Outcome {
    let place = Place::find(global)?;
    if args.watch {
        return watch::run(|| Ok(page(&Snapshot::take(&place, args)?, &place, place::now()).all()));
    }
    let snapshot = Snapshot::take(&place, args)?;
    if args.json {
        return Ok(output::json(&snapshot.fleet)?);
    }
    let Page { lines, notes } = page(&snapshot, &place, place::now());
    for line in lines {
        output::line(line)?;
    }
    notes.iter().try_for_each(|note| Ok(output::note(note)?))
}

impl Snapshot {
    fn take(place: &Place, args: &StatusArgs) -> Outcome<Snapshot> {
        let (keeper, client) = Keeper::connect(place)?;
        let daemon =
            client.map(|mut client| match client.ask(&Command::Status, Some(FAULTS_WAIT)) {
                Ok(Answer::Status(status)) => Ok(*status),
                Ok(other) => Err(format!("it answered something else: {other:?}")),
                Err(error) => Err(error.to_string()),
            });
        let budgets = match &daemon {
            Some(Ok(status)) => status.budgets.clone(),
            _ => Vec::new(),
        };
        // Faults of the config do not hide the state.
        let (loaded, config_faults) = match &place.config {
            Some(file) => match fleet::try_load(place, file, &fleet::read_text)? {
                Ok(loaded) => (Some(loaded), None),
                Err(faults) => (None, Some(faults.summary())),
            },
            None => (None, None),
        };
        let faulty = loaded.as_ref().map(|loaded| loaded.faulty.clone()).unwrap_or_default();
        let wanted = FleetWanted { agent: args.agent.clone(), daemon };
        let fleet = place.records_by(loaded)?.fleet(&wanted, place::now())?;
        Ok(Snapshot { fleet, keeper, config_faults, faulty, budgets })
    }
}
