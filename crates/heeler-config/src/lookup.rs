//! Lookup of agents and workflows by the name that a person types.

use std::sync::Arc;

use thiserror::Error;

use crate::workflow::{FaultyWorkflowFile, LoadedWorkflow};
use crate::{AgentConfig, LoadedConfig};

/// Minimum similarity (0 to 1) at which another name is suggested.
const SIMILARITY_MIN: f64 = 0.75;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AgentLookupError {
    /// No agent has the name.
    #[error("there is no agent `{name}`")]
    Unknown {
        name: String,
        /// Most similar existing name.
        nearest: Option<String>,
    },
    /// Agents in several fleets have the name.
    #[error("`{name}` may be any of: {}", candidates.join(", "))]
    Ambiguous {
        name: String,
        /// Qualified names of the matching agents.
        candidates: Vec<String>,
    },
}

impl LoadedConfig {
    /// Returns the agent with the qualified name.
    pub fn agent(&self, name: &str) -> Option<&AgentConfig> {
        self.agents.iter().find(|agent| agent.name.as_str() == name)
    }

    /// Finds an agent by its qualified name, or by its own name if that is unique.
    pub fn find_agent(&self, name: &str) -> Result<&AgentConfig, AgentLookupError> {
        // A full name always wins over a local one that looks the same.
        if let Some(agent) = self.agent(name) {
            return Ok(agent);
        }
        let local: Vec<&AgentConfig> =
            self.agents.iter().filter(|agent| agent.name.local() == name).collect();
        let name = name.to_owned();
        match local[..] {
            [one] => Ok(one),
            [] => Err(AgentLookupError::Unknown { nearest: self.nearest_agent_name(&name), name }),
            _ => {
                let candidates = local.iter().map(|agent| agent.name.to_string()).collect();
                Err(AgentLookupError::Ambiguous { name, candidates })
            }
        }
    }

    pub fn workflow(&self, name: &str) -> Option<&Arc<LoadedWorkflow>> {
        self.workflows.iter().find(|it| it.workflow.name.as_str() == name)
    }

    /// Returns the workflow that a word of a person starts.
    pub fn workflow_with_intent(&self, word: &str) -> Option<&Arc<LoadedWorkflow>> {
        let intent = word.parse().ok()?;
        self.workflows.iter().find(|it| it.workflow.intent.as_ref() == Some(&intent))
    }

    /// Returns the faulty workflow file with this workflow name or file name.
    pub fn faulty_workflow(&self, name: &str) -> Option<&FaultyWorkflowFile> {
        let mut workflows = self.faulty_files.iter().filter(|it| !it.is_cron);
        let is_named = |it: &&FaultyWorkflowFile| it.name.as_deref() == Some(name);
        // By name first: a file name may equal the name of another workflow.
        workflows.clone().find(is_named).or_else(|| workflows.find(|it| it.matches_name(name)))
    }

    fn nearest_agent_name(&self, name: &str) -> Option<String> {
        let names = self.agents.iter().map(|agent| agent.name.as_str());
        let near = names.map(|known| (strsim::jaro_winkler(known, name), known));
        let near = near.filter(|(likeness, _)| *likeness > SIMILARITY_MIN);
        near.max_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, known)| known.to_owned())
    }
}
