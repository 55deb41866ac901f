//! Refusal of runs whose Claude would execute commands that another run may have written.

use camino::Utf8PathBuf;
use heeler_config::AgentConfig;
use heeler_model::config_change::ConfigFileKind;
use heeler_model::error_chain;
use heeler_store::StoreReader;

use crate::claude_settings::claude_settings_files;
use crate::command::{DaemonCommandError, DaemonCommandErrorKind};
use crate::config_files::file_content_of_kind;
use crate::config_guard::ConfigGuard;
use crate::fleet::EngineContext;

/// Refuses a run whose Claude would execute commands that another run may have put into its working
/// directory.
pub(super) fn refuse_changed_settings(
    agent: &AgentConfig,
    fleet: &EngineContext,
) -> Result<(), DaemonCommandError> {
    let files = claude_settings_files(agent);
    if files.is_empty() {
        return Ok(());
    }
    let trouble = |error: &dyn std::error::Error| {
        DaemonCommandError::new(DaemonCommandErrorKind::Trouble, error_chain(error))
    };
    let reader = StoreReader::open(&fleet.dir).map_err(|error| trouble(&error))?;
    let guard = ConfigGuard::load(&reader).map_err(|error| trouble(&error))?;
    if !guard.is_exposed() {
        return Ok(());
    }
    // A file that is not on record was not looked for when the config was loaded.
    let is_changed = |(path, kind): &(Utf8PathBuf, ConfigFileKind)| {
        let known = guard.baseline().files.get(path);
        known.is_some_and(|known| known.digest != file_content_of_kind(*kind, path).digest)
    };
    let Some((path, _)) = files.iter().find(|file| is_changed(file)) else { return Ok(()) };
    let message = format!(
        "{} was not started: {path} was changed while a job ran, and Claude would execute what it \
         names",
        agent.name
    );
    Err(DaemonCommandError::new(DaemonCommandErrorKind::Unconfirmed, message).with_hint(
        "heeler reload --accept shows the change and asks; or undo the change, and nothing is asked",
    ))
}
