//! Commands to the daemon, answered with the JSON of their reply.

use axum::Json;
use heeler_engine::DaemonCommand;

use crate::caller::KeyedCaller;
use crate::encoded_json::JsonResult;
use crate::problem::ProblemDetails;
use crate::replies::{DaemonReply, JobReply, MessageReply, WorkflowRunReply};
use crate::server_state::ServerState;

/// Returns the problem for a reply of a type that does not belong to the command.
pub(super) fn unexpected_reply(reply: &DaemonReply) -> ProblemDetails {
    ProblemDetails::internal_error(format!("unexpected reply of the daemon: {reply:?}"))
}

impl ServerState {
    /// Sends a command that creates or changes a job.
    pub(super) async fn request_job(
        &self,
        caller: &KeyedCaller,
        command: DaemonCommand,
    ) -> JsonResult<JobReply> {
        match self.send_keyed_command(caller, command).await?.into() {
            DaemonReply::Job(job) => Ok(Json(job)),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Sends a command that is answered with a message.
    pub(super) async fn request_change(
        &self,
        caller: &KeyedCaller,
        command: DaemonCommand,
    ) -> JsonResult<MessageReply> {
        match self.send_keyed_command(caller, command).await?.into() {
            DaemonReply::Done(done) => Ok(Json(done)),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Sends a command that starts or changes a workflow run.
    pub(super) async fn request_workflow_run(
        &self,
        caller: &KeyedCaller,
        command: DaemonCommand,
    ) -> JsonResult<WorkflowRunReply> {
        match self.send_keyed_command(caller, command).await?.into() {
            DaemonReply::Run(run) => Ok(Json(run)),
            other => Err(unexpected_reply(&other)),
        }
    }
}
