//! What addresses name.

use serde::Deserialize;
use utoipa::IntoParams;

/// Something with an id.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct IdPathParams {
    /// Its id; a beginning will do while it is unique.
    #[param(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9][A-Za-z0-9_-]*$")]
    pub(super) id: String,
}

/// An agent.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct AgentPathParams {
    /// Its qualified name, or its last one while that is unique.
    #[param(min_length = 1, max_length = 256, pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    pub(super) agent: String,
}

/// A schedule of an agent.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct SchedulePathParams {
    /// The agent that has it.
    #[param(min_length = 1, max_length = 256, pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    pub(super) agent: String,
    /// Its name.
    #[param(min_length = 1, max_length = 256)]
    pub(super) schedule: String,
}

/// A workflow.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct WorkflowPathParams {
    /// Its name.
    #[param(min_length = 1, max_length = 256, pattern = "^[A-Za-z0-9][A-Za-z0-9_-]*$")]
    pub(super) workflow: String,
}
