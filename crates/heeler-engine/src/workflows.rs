//! The operations on workflows, as commands name them.
//!
//! Start at [`WorkflowOperation`].

use heeler_config::RepoName;
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
    /// Subject of the run on GitHub. By default it is read from the inputs.
    #[serde(default)]
    pub subject: Option<Box<WorkflowSubject>>,
}

/// Subject of a workflow run on GitHub.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkflowSubject {
    pub owner: Option<String>,
    /// Name of the repository without its owner.
    pub repo: Option<String>,
    /// Number of the issue or pull request.
    pub issue_number: Option<u64>,
    /// Login of the person who caused the run.
    pub sender: Option<String>,
}

impl WorkflowSubject {
    /// Reads the subject from inputs with the names that Last Light uses: `repo` with or without the
    /// owner, `owner`, and `issueNumber` or `prNumber`.
    pub(crate) fn from_inputs(inputs: &Map<String, Json>) -> WorkflowSubject {
        let text = |name: &str| inputs.get(name).and_then(Json::as_str).map(str::to_owned);
        let number = |name: &str| match inputs.get(name)? {
            Json::String(text) => text.parse().ok(),
            value => value.as_u64(),
        };
        let full = match (text("owner"), text("repo")) {
            (_, Some(full)) if full.contains('/') => Some(full),
            (Some(owner), Some(repo)) => Some(format!("{owner}/{repo}")),
            _ => None,
        };
        // Checked, because lists and filters use it.
        let full = full.filter(|full| full.parse::<RepoName>().is_ok());
        let parts = full.as_ref().and_then(|full| full.split_once('/'));
        WorkflowSubject {
            owner: parts.map(|(owner, _)| owner.to_owned()),
            repo: parts.map(|(_, repo)| repo.to_owned()),
            issue_number: parts.and(number("issueNumber").or_else(|| number("prNumber"))),
            sender: None,
        }
    }
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
            subject: None,
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_subject_is_read_from_the_names_that_last_light_uses() {
        let subject = |inputs: Json| match inputs {
            Json::Object(inputs) => WorkflowSubject::from_inputs(&inputs),
            _ => unreachable!("inputs are a map"),
        };
        let of = |issue_number| WorkflowSubject {
            owner: Some("acme".to_owned()),
            repo: Some("app".to_owned()),
            issue_number,
            sender: None,
        };
        assert_eq!(subject(json!({"repo": "acme/app", "issueNumber": 7})), of(Some(7)));
        assert_eq!(subject(json!({"owner": "acme", "repo": "app", "prNumber": "8"})), of(Some(8)));
        assert_eq!(subject(json!({"repo": "acme/app"})), of(None));
        for inputs in [json!({"repo": "app", "issueNumber": 7}), json!({"repo": "a/../b"})] {
            assert_eq!(subject(inputs), WorkflowSubject::default());
        }
    }
}
