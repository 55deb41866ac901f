//! The operations on workflows, as commands name them.
//!
//! Start at [`WorkflowOperation`].

use heeler_model::{TriggerType, WorkflowRunId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

/// Operation on workflows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkflowOperation {
    /// Start a run.
    Run(WorkflowRunRequest),
    /// Cancel a run.
    Cancel {
        run: WorkflowRunId,
        /// Cancel immediately instead of gracefully.
        now: bool,
    },
    /// Continue a run that has ended. Failed parts are executed again.
    Retry {
        run: WorkflowRunId,
        /// Execute this phase again too, with every phase that depends on it.
        from: Option<String>,
    },
    /// Allow runs of a workflow to start.
    Enable { workflow: String },
    /// Keep runs of a workflow from starting.
    Disable { workflow: String },
    /// Remove the setting that enables or disables a workflow.
    Reset { workflow: String },
}

/// Request for a workflow run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkflowRunRequest {
    pub workflow: String,
    /// Inputs; text is converted to the type of the input.
    #[serde(default)]
    pub inputs: Map<String, Json>,
    /// Identifies the subject of the run. If a run with the same ID is active, the request returns
    /// that run.
    #[serde(default)]
    pub trigger_id: Option<String>,
    #[serde(default = "manual")]
    pub trigger: TriggerType,
    /// Real, or simulated.
    #[serde(default)]
    pub mode: WorkflowMode,
}

impl WorkflowRunRequest {
    /// Returns the request of a person who specifies only the workflow.
    pub fn manual_run(workflow: &str) -> WorkflowRunRequest {
        WorkflowRunRequest {
            workflow: workflow.to_owned(),
            inputs: Map::new(),
            trigger_id: None,
            trigger: TriggerType::Manual,
            mode: WorkflowMode::Real,
        }
    }
}

fn manual() -> TriggerType {
    TriggerType::Manual
}

/// Mode of a workflow run: real or simulated.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkflowMode {
    /// Agents and commands are executed.
    #[default]
    Real,
    /// Outputs are generated, except those of scripted agents.
    Dry,
    /// Outputs of an earlier run are repeated.
    Replay {
        /// The earlier run.
        run: WorkflowRunId,
    },
}

impl WorkflowMode {
    /// Returns the stored form.
    pub(crate) fn as_text(&self) -> Option<String> {
        match self {
            WorkflowMode::Real => None,
            WorkflowMode::Dry => Some("dry".to_owned()),
            WorkflowMode::Replay { run } => Some(format!("replay:{run}")),
        }
    }

    /// Parses the stored form.
    pub(crate) fn from_text(text: Option<&str>) -> WorkflowMode {
        match text {
            None => WorkflowMode::Real,
            Some(text) => match text.strip_prefix("replay:").and_then(|run| run.parse().ok()) {
                Some(run) => WorkflowMode::Replay { run },
                None => WorkflowMode::Dry,
            },
        }
    }
}
