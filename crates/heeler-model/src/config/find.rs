//! Finding an agent or a workflow by the name that a person types.

use std::sync::Arc;

use thiserror::Error;

use super::{Agent, Loaded};
use crate::workflow::{FaultyFile, LoadedWorkflow};

/// How alike two names are for one to be offered for the other.
const LIKENESS_MIN: f64 = 0.75;

/// Why a name names no agent.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AgentLookup {
    /// There is none of that name.
    #[error("there is no agent `{name}`")]
    Unknown {
        /// What was typed.
        name: String,
        /// The one that may be meant.
        nearest: Option<String>,
    },
    /// There are several of that name, in different fleets.
    #[error("`{name}` may be any of: {}", candidates.join(", "))]
    Ambiguous {
        /// What was typed.
        name: String,
        /// Their qualified names.
        candidates: Vec<String>,
    },
}

impl Loaded {
    /// Returns an agent by its qualified name.
    pub fn agent(&self, name: &str) -> Option<&Agent> {
        self.agents.iter().find(|agent| agent.name.as_str() == name)
    }

    /// Finds an agent by its qualified name, or by its own name while that is unique.
    pub fn find_agent(&self, name: &str) -> Result<&Agent, AgentLookup> {
        if let Some(agent) = self.agent(name) {
            return Ok(agent);
        }
        let local: Vec<&Agent> =
            self.agents.iter().filter(|agent| agent.name.local() == name).collect();
        let name = name.to_owned();
        match local[..] {
            [one] => Ok(one),
            [] => Err(AgentLookup::Unknown { nearest: self.nearest(&name), name }),
            _ => {
                let candidates = local.iter().map(|agent| agent.name.to_string()).collect();
                Err(AgentLookup::Ambiguous { name, candidates })
            }
        }
    }

    /// Returns a workflow by its name.
    pub fn workflow(&self, name: &str) -> Option<&Arc<LoadedWorkflow>> {
        self.workflows.iter().find(|it| it.workflow.name.as_str() == name)
    }

    /// Returns the file of a workflow that cannot run, by its name or that of the file.
    pub fn faulty_workflow(&self, name: &str) -> Option<&FaultyFile> {
        let mut workflows = self.faulty.iter().filter(|it| !it.is_cron);
        let is_named = |it: &&FaultyFile| it.name.as_deref() == Some(name);
        workflows.clone().find(is_named).or_else(|| workflows.find(|it| it.is_called(name)))
    }

    fn nearest(&self, name: &str) -> Option<String> {
        let names = self.agents.iter().map(|agent| agent.name.as_str());
        let near = names.map(|known| (strsim::jaro_winkler(known, name), known));
        let near = near.filter(|(likeness, _)| *likeness > LIKENESS_MIN);
        near.max_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, known)| known.to_owned())
    }
}
