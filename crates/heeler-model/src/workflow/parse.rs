//! Workflow files: from their text to [`LoadedWorkflow`], or everything that is wrong with them.

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};
use indexmap::IndexMap;
use serde_json::{Map, Value as Json};

use super::definition::Workflow;
use crate::config::{Agent, CronExpr, Faults, ReadFile};
use crate::{AgentName, Name};

/// What the fleet file says of all workflows.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkflowSettings {
    /// The folder that holds them.
    pub folder: Utf8PathBuf,
    /// The agent of workflows that name none.
    pub agent: Option<AgentName>,
    /// Gates by their names: one that is `false` asks nobody.
    pub gates: IndexMap<String, bool>,
    /// The most runs of workflows at once.
    pub max_concurrent: Option<std::num::NonZeroU32>,
}

/// A workflow with the files that it was read from.
#[derive(Debug, Clone)]
pub struct LoadedWorkflow {
    /// What they say.
    pub workflow: Workflow,
    /// Its own file.
    pub root: Utf8PathBuf,
    /// Every file that was read for it, its own included, with its text.
    pub files: BTreeMap<Utf8PathBuf, String>,
    /// What works, but not as its author may think.
    pub warnings: Faults,
}

/// A workflow that is started by the clock.
#[derive(Debug, Clone, PartialEq)]
pub struct Cron {
    /// Its name.
    pub name: Name,
    /// Its file.
    pub file: Utf8PathBuf,
    /// When.
    pub schedule: CronExpr,
    /// Which workflow.
    pub workflow: Name,
    /// What it is started with.
    pub context: Map<String, Json>,
    /// Whether it is.
    pub enabled: bool,
}

/// Reads a workflow and all files that it names. `agents` are the fleet's.
pub fn load(
    root: &Utf8Path,
    read: &ReadFile<'_>,
    agents: &[Agent],
    settings: &WorkflowSettings,
) -> Result<LoadedWorkflow, Faults> {
    let _unread = (root, read, agents, settings);
    Err(Faults::default())
}
