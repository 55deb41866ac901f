//! The JSON Schemas that editors read, kept in the state directory: no network, no clutter.

use std::io;

use camino::Utf8Path;
use heeler_model::config::{agent_schema, fleet_schema};
use heeler_transcript::{OsDisk, create_folder, replace_file};

use crate::failure::Outcome;
use crate::fleet::read_text;

/// The schema of a fleet file, within the state directory.
pub(crate) const FLEET: &str = "schema/heeler.schema.json";
/// The schema of an agent file, within the state directory.
pub(crate) const AGENT: &str = "schema/agent.schema.json";

/// Writes the schemas that are missing or those of another version.
pub(crate) fn place(state_dir: &Utf8Path) -> Outcome {
    create_folder(&OsDisk, &state_dir.join("schema")).map_err(anyhow::Error::from)?;
    for (name, schema) in [(FLEET, fleet_schema()), (AGENT, agent_schema())] {
        let path = state_dir.join(name);
        let text = format!("{schema:#}\n");
        match read_text(&path) {
            Ok(there) if there == text => continue,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // A schema helps editors and nobody else: it is not worth a failure.
            Err(_) => continue,
        }
        replace_file(&OsDisk, &path, text.as_bytes()).map_err(anyhow::Error::from)?;
    }
    Ok(())
}
