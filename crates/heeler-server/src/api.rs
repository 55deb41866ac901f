//! The API: `/api/v1`. Each noun is a module that says what its routes need.

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

use axum::Json;
use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::get;
use heeler_model::AccessScope;
use heeler_query::replies::{DaemonReply, JobReply, MessageReply, WorkflowRunReply};
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

/// How many items a page has if nobody says otherwise.
const PAGE_SIZE_DEFAULT: usize = 20;

/// How many a page has at most.
const PAGE_SIZE_MAX: usize = 100;

/// What a handler returns.
pub(crate) type JsonResult<T> = Result<Json<T>, ProblemDetails>;

/// What one returns that tells what the records say.
pub(crate) type EncodedJsonResult<T> = Result<EncodedJson<T>, ProblemDetails>;

/// The routes of one noun, by what a caller must be allowed.
#[derive(Default)]
pub(crate) struct ApiRoutes {
    pub(crate) read: OpenApiRouter<SharedServerState>,
    /// Needs the same, and is told alike to all who may: those who ask at once share one read.
    pub(crate) shared: OpenApiRouter<SharedServerState>,
    /// The same, of what takes as long as a log has lines: nobody else's read waits for its turn.
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

/// Returns the routes of all nouns.
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

/// Returns the API and its description, for requests that carry their [`RequestCaller`].
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

/// Returns the API's description, as it is in the manual.
pub(crate) fn openapi_json() -> &'static Value {
    static DESCRIPTION: LazyLock<Value> =
        LazyLock::new(|| serde_json::to_value(build_api().1).expect("a description is JSON"));
    &DESCRIPTION
}

/// Returns the API, for requests that carry their [`RequestCaller`].
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
    ProblemDetails::new(StatusCode::METHOD_NOT_ALLOWED, "usage", "the route has another method")
}

/// Returns how many items a page is to have.
fn check_limit(given: Option<usize>, usual: usize, most: usize) -> Result<usize, ProblemDetails> {
    match given.unwrap_or(usual) {
        limit if (1..=most).contains(&limit) => Ok(limit),
        limit => Err(ProblemDetails::bad_request(format!("limit is 1 to {most}, not {limit}"))),
    }
}

/// Says that the daemon answered what nobody asked.
fn unexpected_reply(told: &DaemonReply) -> ProblemDetails {
    ProblemDetails::internal_error(format!("the daemon answered something else: {told:?}"))
}

impl ServerState {
    /// Asks for something whose answer is a job.
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

    /// Asks for something whose answer is that it is done.
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

    /// Asks for something whose answer is a run of a workflow.
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
