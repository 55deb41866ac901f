//! Path parameters that several API routes share.

use serde::Deserialize;
use utoipa::IntoParams;

/// Path parameters of a resource with an ID.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct IdPathParams {
    /// ID, or a unique prefix of it.
    #[param(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9][A-Za-z0-9_-]*$")]
    pub(super) id: String,
}

/// Path parameters of an agent.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct AgentPathParams {
    /// Qualified name, or its last component if that is unique.
    #[param(min_length = 1, max_length = 256, pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    pub(super) agent: String,
}

/// Path parameters of a schedule.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct SchedulePathParams {
    /// Agent that the schedule belongs to.
    #[param(min_length = 1, max_length = 256, pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    pub(super) agent: String,
    /// Name of the schedule.
    #[param(min_length = 1, max_length = 256)]
    pub(super) schedule: String,
}

/// Path parameters of a workflow.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct WorkflowPathParams {
    /// Name of the workflow.
    #[param(min_length = 1, max_length = 256, pattern = "^[A-Za-z0-9][A-Za-z0-9_-]*$")]
    pub(super) workflow: String,
}

/// Path parameters of a host.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct HostPathParams {
    /// Name of the host.
    #[param(min_length = 1, max_length = 256, pattern = "^[A-Za-z0-9][A-Za-z0-9_-]*$")]
    pub(super) host: String,
}
