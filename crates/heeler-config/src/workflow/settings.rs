//! Workflow settings of a fleet.

use std::num::NonZeroU32;

use camino::Utf8PathBuf;
use indexmap::IndexMap;

use crate::names::AgentName;

/// Workflow settings of the fleet file.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkflowSettings {
    /// Directory of the workflow files.
    pub folder: Utf8PathBuf,
    /// Agent of workflows that name none.
    pub agent: Option<AgentName>,
    /// Gates by name. A gate that is `false` is disabled.
    pub gates: IndexMap<String, bool>,
    /// Most workflow runs at once.
    pub max_concurrent: Option<NonZeroU32>,
    /// True if the fleet has access to GitHub and names repositories.
    pub can_use_github: bool,
}

impl Default for WorkflowSettings {
    fn default() -> WorkflowSettings {
        let folder = "workflows".into();
        WorkflowSettings {
            folder,
            agent: None,
            gates: IndexMap::new(),
            max_concurrent: None,
            can_use_github: false,
        }
    }
}
