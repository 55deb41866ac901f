//! What requests and replies hold beside the engine's own types.

use heeler_engine::{AgentChange, Refused, ScheduleChange, SessionOrder, WorkflowOrder};
use heeler_model::ApprovalAnswer;
use serde::{Deserialize, Serialize};

/// Who answers on a socket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// The daemon's process.
    pub pid: u32,
    /// Its version.
    pub version: String,
}

/// The body of `POST /v1/jobs/{id}/cancel`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CancelBody {
    #[serde(default)]
    pub(crate) now: bool,
    pub(crate) by: String,
}

/// The body of `POST /v1/jobs/{id}/resume`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResumeBody {
    #[serde(default)]
    pub(crate) prompt: Option<String>,
    pub(crate) by: String,
}

/// The body of `POST /v1/jobs/{id}/retry`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RetryBody {
    pub(crate) by: String,
}

/// The body of `POST /v1/schedules/{agent}/{schedule}`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScheduleBody {
    pub(crate) change: ScheduleChange,
    pub(crate) by: String,
}

/// The body of `POST /v1/agents/{agent}`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AgentBody {
    pub(crate) change: AgentChange,
    pub(crate) by: String,
}

/// The body of `POST /v1/sessions`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SessionBody {
    pub(crate) order: SessionOrder,
    pub(crate) by: String,
}

/// The body of `POST /v1/workflows`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WorkflowBody {
    pub(crate) order: WorkflowOrder,
    pub(crate) by: String,
}

/// The body of `POST /v1/approvals/{id}`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ApprovalBody {
    pub(crate) answer: ApprovalAnswer,
    pub(crate) by: String,
}

/// The body of every reply that is a refusal.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ErrorBody {
    pub(crate) error: Refused,
}
