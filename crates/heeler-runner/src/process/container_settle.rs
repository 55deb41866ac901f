//! Removes what is left of the container of a dead run. Start at [`settle_containers`].
//!
//! Its processes ended with the runner. A container that was created but not started is left, and so
//! is one whose engine was not running. A container that is kept for its session has no label of a
//! run, and stays.

use camino::Utf8Path;
use heeler_container::{ContainerEngine, EngineError, RUN_LABEL, STATE_LABEL};
use heeler_model::error_chain;
use heeler_model::run::RunSpec;

use super::container_body::ContainerOwner;
use crate::files;

/// Removes the containers of a dead run, if it had any. A failure is logged: the run is settled all the
/// same, because no process of it is alive.
pub(crate) fn settle_containers(dir: &Utf8Path, spec: &RunSpec) {
    let Ok(Some(record)) = files::read_container(dir) else { return };
    let Some(state_dir) = dir.parent().and_then(Utf8Path::parent) else { return };
    let owner = ContainerOwner {
        run: spec.run,
        state_dir: state_dir.to_owned(),
        agent: String::new(),
        kept_for: None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let removed = runtime.map_err(|error| error_chain(&error)).and_then(|runtime| {
        let remove = async {
            let engine = ContainerEngine::connect(&record.engine).await?;
            remove_containers(&engine, &owner).await
        };
        runtime.block_on(remove).map_err(|error| error_chain(&error))
    });
    if let Err(reason) = removed {
        tracing::warn!(run = %spec.run, reason, "the container of the run could not be removed");
    }
}

/// Removes the containers of a run of this state directory.
pub(super) async fn remove_containers(
    engine: &ContainerEngine,
    owner: &ContainerOwner,
) -> Result<(), EngineError> {
    let ContainerOwner { run, state_dir, .. } = owner;
    let labels = [format!("{RUN_LABEL}={run}"), format!("{STATE_LABEL}={state_dir}")];
    for container in engine.list(&labels).await? {
        engine.remove(&container.id).await?;
    }
    Ok(())
}
