//! OpenAPI schemas of the model's closed sets of words, each with its list of values.

use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};
use utoipa::{PartialSchema, ToSchema};

/// Declares a schema type for a set of words of the model, under the same name.
macro_rules! described {
    ($($(#[$meta:meta])* $name:ident = $words:ty,)+) => {$(
        $(#[$meta])*
        #[derive(Debug)]
        // Without values: the type exists only for its schema.
        pub enum $name {}

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                one_of(<$words>::ALL.iter().map(|word| word.as_str()))
            }
        }

        impl ToSchema for $name {}
    )+};
}

fn one_of(words: impl Iterator<Item = &'static str>) -> RefOr<Schema> {
    let text = ObjectBuilder::new().schema_type(SchemaType::Type(Type::String));
    text.enum_values(Some(words)).into()
}

described! {
    /// Status of a job.
    JobStatus = heeler_model::JobStatus,
    /// Reason for the end of a job.
    ExitReason = heeler_model::ExitReason,
    /// Class of an error of a run.
    ErrorClass = heeler_model::run::ErrorClass,
    /// State of an agent.
    AgentStatus = heeler_model::AgentStatus,
    /// State of a schedule.
    ScheduleStatus = heeler_model::ScheduleStatus,
    /// Handling of due times that passed while no daemon was running.
    Missed = heeler_config::MissedRunPolicy,
    /// Handling of a due time while the previous job is still active.
    Overlap = heeler_config::OverlapPolicy,
    /// Reason for skipping a due time.
    SkipReason = heeler_model::timetable::SkipReason,
    /// Status of a session.
    SessionStatus = heeler_model::SessionStatus,
    /// Session mode.
    SessionMode = heeler_model::SessionMode,
    /// Handling of an agent's questions.
    ApprovalsMode = heeler_model::ApprovalMode,
    /// Status of an approval.
    ApprovalStatus = heeler_model::ApprovalStatus,
    /// Kind of a question.
    ApprovalKind = heeler_model::ApprovalKind,
    /// Status of a workflow run.
    RunStatus = heeler_model::workflow::WorkflowRunStatus,
    /// Decision made from the output of a part.
    Decision = heeler_model::workflow::PartDecision,
    /// Type of a workflow input.
    InputType = heeler_config::workflow::WorkflowInputType,
    /// Condition on the outcome of its dependencies under which a phase starts.
    TriggerRule = heeler_config::workflow::TriggerRule,
    /// Kind of approval that a gate requires.
    GateKind = heeler_config::workflow::GateKind,
}
