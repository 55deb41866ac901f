//! Finds workflows and their runs by name or ID. Start at [`find`].

use std::sync::Arc;

use heeler_config::LoadedConfig;
use heeler_config::workflow::LoadedWorkflow;
use heeler_store::{IdLookupError, StoreReader, WorkflowRunRow};

use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config;

/// Finds a workflow by name.
pub(super) fn find<'a>(
    context: &CommandContext,
    all: &'a LoadedConfig,
    name: &str,
) -> CommandResult<&'a Arc<LoadedWorkflow>> {
    if let Some(found) = all.workflow(name) {
        return Ok(found);
    }
    // The file exists, so "there is no such workflow" would send the user in the wrong direction.
    if let Some(faulty) = all.faulty_workflow(name) {
        fleet_config::print_faults(context, &faulty.faults)?;
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
pub(super) fn folder(loaded: &LoadedConfig) -> &str {
    loaded.fleets.first().map_or("workflows", |fleet| fleet.workflows.folder.as_str())
}

/// Finds a run by ID or unique prefix, if it exists.
pub(super) fn try_run(
    context: &CommandContext,
    text: &str,
) -> CommandResult<Option<(StoreReader, WorkflowRunRow)>> {
    let Some(reader) = context.open_reader()? else { return Ok(None) };
    match reader.find_workflow_run(text) {
        Ok(row) => Ok(Some((reader, row))),
        // The text may still be the name of a workflow; an ambiguous prefix may not.
        Err(IdLookupError::Unknown { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
