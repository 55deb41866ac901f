//! JSON Schemas for editors, kept in the state directory: no network needed, no extra files in the
//! project. Start at [`write_schemas`].

use std::io;

use camino::Utf8Path;
use heeler_config::{agent_schema, cron_schema, fleet_schema, workflow_schema};
use heeler_transcript::{OsDisk, create_folder, replace_file};

use crate::failure::CommandResult;
use crate::text_file::read_text;

/// Schema of a fleet file, relative to the state directory.
pub(crate) const FLEET: &str = "schema/heeler.schema.json";
/// Schema of an agent file, relative to the state directory.
pub(crate) const AGENT: &str = "schema/agent.schema.json";

/// Schema of a workflow file, relative to the state directory.
const WORKFLOW: &str = "schema/workflow.schema.json";
/// Schema of a cron file that schedules a workflow, relative to the state directory.
const CRON: &str = "schema/cron.schema.json";

/// Writes the schemas that are missing or outdated.
pub(crate) fn write_schemas(state_dir: &Utf8Path) -> CommandResult {
    create_folder(&OsDisk, &state_dir.join("schema")).map_err(anyhow::Error::from)?;
    let schemas = [
        (FLEET, fleet_schema()),
        (AGENT, agent_schema()),
        (WORKFLOW, workflow_schema()),
        (CRON, cron_schema()),
    ];
    for (name, schema) in schemas {
        let path = state_dir.join(name);
        let text = format!("{schema:#}\n");
        match read_text(&path) {
            // Most commands find current files, and need not write.
            Ok(there) if there == text => continue,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // Schemas only help editors, so an unreadable one must not fail the command.
            Err(_) => continue,
        }
        replace_file(&OsDisk, &path, text.as_bytes()).map_err(anyhow::Error::from)?;
    }
    Ok(())
}
