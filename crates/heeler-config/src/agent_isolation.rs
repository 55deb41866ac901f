//! Isolation of an agent: its container, its sandbox, or limits of its files.

use crate::agent::AgentConfig;
use crate::agent_api::AgentApiHosts;
use crate::docker::DockerConfig;
use crate::sandbox::{SandboxConfig, SandboxSettings};

impl AgentConfig {
    /// Returns the settings of the agent's container, if it runs in one.
    pub fn container(&self) -> Option<&DockerConfig> {
        self.docker.as_ref().filter(|docker| docker.enabled)
    }

    /// Returns the settings by which Landlock limits the agent's files, if it does.
    pub fn file_limits(&self) -> Option<&SandboxSettings> {
        self.sandbox.as_ref().and_then(SandboxConfig::file_limits)
    }

    /// Returns the settings of the agent's isolation, if it has any. A container has those of a
    /// sandbox, too: network, credentials and further paths.
    pub fn isolation_settings(&self) -> Option<SandboxSettings> {
        let configured = self.sandbox.as_ref().and_then(SandboxConfig::settings).cloned();
        configured.or_else(|| {
            self.container()?;
            Some(match AgentApiHosts::find(&self.runtime, &self.env) {
                Some(hosts) => hosts.container_settings(),
                None => SandboxConfig::default_settings(),
            })
        })
    }
}
