//! State of the fleet for `heeler status`. Start at [`StatusSnapshot`].

use std::time::Duration;

use heeler_config::workflow::FaultyWorkflowFile;
use heeler_engine::{BudgetStatus, CommandReply, DaemonCommand};
use heeler_model::config_change::HeldConfigChange;
use heeler_query::config_change::ConfigChangeSummary;
use heeler_query::fleet::{FleetStatus, FleetStatusQuery};

use super::state_writer::StateWriterInfo;
use crate::config_changes;
use crate::context::CommandContext;
use crate::failure::CommandResult;
use crate::fleet_config;
use crate::process_env;
use crate::text_file;
use crate::trust;

/// Time for the daemon to report its faults.
const FAULTS_WAIT: Duration = Duration::from_secs(2);

/// State of the fleet at one moment.
pub(super) struct StatusSnapshot {
    pub(super) fleet: FleetStatus,
    pub(super) writer: StateWriterInfo,
    /// Summary of the config's faults.
    pub(super) config_faults: Option<String>,
    /// Workflow files with faults.
    pub(super) faulty_workflows: Vec<FaultyWorkflowFile>,
    pub(super) budgets: Vec<BudgetStatus>,
    /// Change of the config that waits for a person.
    pub(super) held_change: Option<HeldConfigChange>,
}

impl StatusSnapshot {
    /// Reads the state, and asks the daemon for its faults and budgets.
    pub(super) fn take(
        context: &CommandContext,
        agent: Option<&str>,
    ) -> CommandResult<StatusSnapshot> {
        let (writer, client) = StateWriterInfo::connect(context)?;
        // A daemon that does not answer must not prevent the status: it is when people need it.
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
        let (loaded, config_faults) = match &context.config {
            Some(file) => match fleet_config::try_load(context, file, &text_file::read_text)? {
                Ok(loaded) => (Some(loaded), None),
                Err(faults) => (None, Some(faults.summary())),
            },
            None => (None, None),
        };
        let faulty = loaded.as_ref().map(|loaded| loaded.faulty_files.clone()).unwrap_or_default();
        let held = match &daemon {
            Some(Ok(status)) => status.held_change.clone(),
            _ => config_changes::find(context)?.map(|held| held.change),
        };
        let change = loaded.as_ref().and_then(|loaded| trust::describe_change(context, loaded));
        let wanted = FleetStatusQuery { agent: agent.map(str::to_owned), daemon };
        let mut fleet = context.open_records_with(loaded)?.fleet(&wanted, process_env::now())?;
        fleet.config_change = held.as_ref().map(ConfigChangeSummary::from);
        if let Some(shown) = &mut fleet.daemon {
            shown.url = writer.daemon.as_ref().and_then(|daemon| daemon.url.clone());
            shown.faults.extend(change);
        }
        Ok(StatusSnapshot {
            fleet,
            writer,
            config_faults,
            faulty_workflows: faulty,
            budgets,
            held_change: held,
        })
    }
}
