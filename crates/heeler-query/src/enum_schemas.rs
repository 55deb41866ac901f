//! How the closed sets of words look in the API's description: each lists what it may be.

use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};
use utoipa::{PartialSchema, ToSchema};

/// Declares what describes a set of words of the model, under the same name.
macro_rules! described {
    ($($(#[$meta:meta])* $name:ident = $words:ty,)+) => {$(
        $(#[$meta])*
        #[derive(Debug)]
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
    /// Where a job is.
    JobStatus = heeler_model::JobStatus,
    /// How a job ended.
    ExitReason = heeler_model::ExitReason,
    /// What went wrong in a run.
    ErrorClass = heeler_model::run::ErrorClass,
    /// What an agent is doing.
    AgentStatus = heeler_model::AgentStatus,
    /// What a schedule is doing.
    ScheduleStatus = heeler_model::ScheduleStatus,
    /// What happens to due times at which no daemon was there.
    Missed = heeler_model::config::MissedRunPolicy,
    /// What happens at a due time while the run before it goes on.
    Overlap = heeler_model::config::OverlapPolicy,
    /// Why a due time got no run.
    SkipReason = heeler_model::timetable::SkipReason,
    /// Where a session is.
    SessionStatus = heeler_model::SessionStatus,
    /// How long a session lasts.
    SessionMode = heeler_model::SessionMode,
    /// Whether agents ask people.
    ApprovalsMode = heeler_model::ApprovalMode,
    /// Where an approval is.
    ApprovalStatus = heeler_model::ApprovalStatus,
    /// What is asked.
    ApprovalKind = heeler_model::ApprovalKind,
    /// Where a run of a workflow is.
    RunStatus = heeler_model::workflow::WorkflowRunStatus,
    /// What was decided in a part of a run.
    Decision = heeler_model::workflow::PartDecision,
    /// What an input is.
    InputType = heeler_model::workflow::WorkflowInputType,
    /// When a phase begins, by what became of those before it.
    TriggerRule = heeler_model::workflow::TriggerRule,
    /// What a gate asks for.
    GateKind = heeler_model::workflow::GateKind,
}
