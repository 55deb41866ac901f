//! Starts commands for an agent that leaves them to its client. Start at [`ProcessTree::spawn_terminal`].

use super::{AgentProcess, AgentSpawnError, LaunchSpec, ProcessTree, SpawnContext};

impl ProcessTree {
    /// Starts a command of an agent that has no sandbox, as a process of the run.
    pub(crate) fn spawn_terminal(
        &self,
        launch: &LaunchSpec,
        context: &SpawnContext<'_>,
    ) -> Result<AgentProcess, AgentSpawnError> {
        // No agent in a sandbox is offered this. It would start the command outside of it.
        #[cfg(target_os = "linux")]
        if self.sandbox.is_some() || self.file_limits.is_some() {
            let reason = "only its own processes are in that sandbox".to_owned();
            return Err(AgentSpawnError::Sandbox { program: launch.program.clone(), reason });
        }
        self.spawn_outside(launch, context)
    }
}
