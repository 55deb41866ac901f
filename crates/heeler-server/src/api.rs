//! The HTTP API, `/api/v1`. Each submodule owns the routes of one resource and declares the scopes
//! they need.
//!
//! [`router`] returns the whole API.

mod access;
mod agents;
mod approvals;
mod daemon;
pub(crate) mod etag;
mod fleet;
mod jobs;
mod openapi_document;
mod path_params;
mod schedules;
mod session_export;
mod sessions;
mod workflows;

use std::sync::{Arc, LazyLock};

use crate::replies::{DaemonReply, JobReply, MessageReply, WorkflowRunReply};
use axum::Json;
use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::get;
use heeler_model::AccessScope;
use serde_json::Value;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;

use self::etag::TaggedResponse;
use crate::caller::RequestCaller;
use crate::encoded_json::EncodedJson;
use crate::extractors::{KeyedCaller, attach_request_key};
use crate::live_streams;
use crate::problem::ProblemDetails;
use crate::read_coalescer::{self, ReadCoalescer};
use crate::server_state::{ServerState, SharedServerState};

/// Items per page by default.
const PAGE_SIZE_DEFAULT: usize = 20;

/// Most items per page.
const PAGE_SIZE_MAX: usize = 100;

/// Result of a handler.
pub(crate) type JsonResult<T> = Result<Json<T>, ProblemDetails>;

/// Result of a handler that reads the store; the JSON is encoded on the reading thread.
pub(crate) type EncodedJsonResult<T> = Result<EncodedJson<T>, ProblemDetails>;

/// Routes of one resource, grouped by the scope they need.
#[derive(Default)]
pub(crate) struct ApiRoutes {
    pub(crate) read: OpenApiRouter<SharedServerState>,
    /// Scope `read`, with the same reply for every caller: identical concurrent reads are
    /// coalesced.
    pub(crate) shared: OpenApiRouter<SharedServerState>,
    /// Like `shared`, for reads that take as long as a transcript has rows. They have a coalescer
    /// of their own, so that other reads do not wait for them.
    pub(crate) shared_logs: OpenApiRouter<SharedServerState>,
    pub(crate) operate: OpenApiRouter<SharedServerState>,
    pub(crate) admin: OpenApiRouter<SharedServerState>,
}

impl ApiRoutes {
    fn merge(self, more: ApiRoutes) -> ApiRoutes {
        ApiRoutes {
            read: self.read.merge(more.read),
            shared: self.shared.merge(more.shared),
            shared_logs: self.shared_logs.merge(more.shared_logs),
            operate: self.operate.merge(more.operate),
            admin: self.admin.merge(more.admin),
        }
    }
}

/// Returns the routes of all resources.
pub(crate) fn routes() -> ApiRoutes {
    let all = [
        access::routes(),
        fleet::routes(),
        agents::routes(),
        schedules::routes(),
        jobs::routes(),
        sessions::routes(),
        session_export::routes(),
        workflows::routes(),
        approvals::routes(),
        daemon::routes(),
        live_streams::routes(),
    ];
    all.into_iter().fold(ApiRoutes::default(), ApiRoutes::merge)
}

/// Returns the API and its OpenAPI description. Requests must carry their [`RequestCaller`].
fn build_api() -> (Router<SharedServerState>, OpenApi) {
    let ApiRoutes { mut read, mut shared, mut shared_logs, mut operate, mut admin } = routes();
    openapi_document::document_scope(read.get_openapi_mut(), AccessScope::Read);
    openapi_document::document_scope(shared.get_openapi_mut(), AccessScope::Read);
    openapi_document::document_scope(shared_logs.get_openapi_mut(), AccessScope::Read);
    openapi_document::document_scope(operate.get_openapi_mut(), AccessScope::Operate);
    openapi_document::document_scope(admin.get_openapi_mut(), AccessScope::Admin);
    let needs =
        |scope| from_fn(move |caller, request, next| require_scope(scope, caller, request, next));
    let together = || {
        from_fn_with_state(
            Arc::<ReadCoalescer<TaggedResponse>>::default(),
            read_coalescer::coalesce_reads,
        )
    };
    let all = OpenApiRouter::with_openapi(openapi_document::base_document())
        .merge(read.route_layer(from_fn(etag::add_etag)).route_layer(needs(AccessScope::Read)))
        .merge(shared.route_layer(together()))
        .merge(shared_logs.route_layer(together()))
        .merge(
            operate
                .route_layer(from_fn(attach_request_key))
                .route_layer(needs(AccessScope::Operate)),
        )
        .merge(
            admin
                .route_layer(from_fn(attach_request_key))
                .route_layer(from_fn(etag::add_etag))
                .route_layer(needs(AccessScope::Admin)),
        );
    OpenApiRouter::new().nest("/api/v1", all).split_for_parts()
}

/// Returns the OpenAPI description.
pub(crate) fn openapi_json() -> &'static Value {
    static DESCRIPTION: LazyLock<Value> =
        LazyLock::new(|| serde_json::to_value(build_api().1).expect("a description is JSON"));
    &DESCRIPTION
}

/// Returns the API. Requests must carry their [`RequestCaller`].
pub(crate) fn router() -> Router<SharedServerState> {
    let (router, _) = build_api();
    router
        .route("/api/v1/openapi.json", get(async || Json(openapi_json())))
        .method_not_allowed_fallback(method_not_allowed)
}

async fn require_scope(
    needed: AccessScope,
    caller: RequestCaller,
    request: Request,
    next: Next,
) -> Result<Response, ProblemDetails> {
    caller.require_scope(needed)?;
    Ok(next.run(request).await)
}

async fn method_not_allowed() -> ProblemDetails {
    ProblemDetails::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "usage",
        "the route does not support this method",
    )
}

/// Returns the number of items of a page, or a problem if it is out of range.
fn check_limit(given: Option<usize>, usual: usize, most: usize) -> Result<usize, ProblemDetails> {
    match given.unwrap_or(usual) {
        limit if (1..=most).contains(&limit) => Ok(limit),
        limit => {
            Err(ProblemDetails::bad_request(format!("limit must be 1 to {most}, not {limit}")))
        }
    }
}

/// Returns the problem for a reply of a type that does not belong to the command.
fn unexpected_reply(told: &DaemonReply) -> ProblemDetails {
    ProblemDetails::internal_error(format!("unexpected reply of the daemon: {told:?}"))
}

impl ServerState {
    /// Sends a command that creates or changes a job.
    async fn request_job(
        &self,
        asker: &KeyedCaller,
        command: heeler_engine::DaemonCommand,
    ) -> JsonResult<JobReply> {
        match self.send_keyed_command(asker, command).await?.into() {
            DaemonReply::Job(job) => Ok(Json(job)),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Sends a command that is answered with a message.
    async fn request_change(
        &self,
        asker: &KeyedCaller,
        command: heeler_engine::DaemonCommand,
    ) -> JsonResult<MessageReply> {
        match self.send_keyed_command(asker, command).await?.into() {
            DaemonReply::Done(done) => Ok(Json(done)),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Sends a command that starts or changes a workflow run.
    async fn request_workflow_run(
        &self,
        asker: &KeyedCaller,
        command: heeler_engine::DaemonCommand,
    ) -> JsonResult<WorkflowRunReply> {
        match self.send_keyed_command(asker, command).await?.into() {
            DaemonReply::Run(run) => Ok(Json(run)),
            other => Err(unexpected_reply(&other)),
        }
    }
}

#[cfg(test)]
mod tests;
