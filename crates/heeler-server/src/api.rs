//! The HTTP API, `/api/v1`. Each submodule owns the routes of one resource and declares the scopes
//! they need.
//!
//! [`router`] returns the whole API.

mod access;
mod agents;
mod api_routes;
mod approvals;
pub(crate) mod browsers;
mod chats;
mod config_files;
mod daemon;
mod daemon_commands;
pub(crate) mod etag;
mod fleet;
mod hosts;
mod jobs;
mod openapi_document;
mod page_limit;
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
use serde_json::Value;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;

pub(crate) use self::api_routes::ApiRoutes;
use self::etag::TaggedResponse;
use crate::caller::RequestCaller;
use crate::extractors::attach_request_key;
use crate::live_streams;
use crate::problem::ProblemDetails;
use crate::read_coalescer::{self, ReadCoalescer};
use crate::server_state::SharedServerState;

/// Returns the routes of all resources.
pub(crate) fn routes() -> ApiRoutes {
    let all = [
        access::routes(),
        fleet::routes(),
        hosts::routes(),
        agents::routes(),
        schedules::routes(),
        jobs::routes(),
        sessions::routes(),
        session_export::routes(),
        workflows::routes(),
        approvals::routes(),
        chats::routes(),
        browsers::routes(),
        daemon::routes(),
        config_files::routes(),
        live_streams::routes(),
    ];
    all.into_iter().fold(ApiRoutes::default(), ApiRoutes::merge)
}

/// Returns the API and its OpenAPI description. Requests must carry their [`RequestCaller`].
fn build_api() -> (Router<SharedServerState>, OpenApi) {
    let ApiRoutes { mut read, mut batched, mut shared, mut shared_logs, mut operate, mut admin } =
        routes();
    openapi_document::document_scope(read.get_openapi_mut(), AccessScope::Read);
    openapi_document::document_scope(batched.get_openapi_mut(), AccessScope::Read);
    openapi_document::document_scope(shared.get_openapi_mut(), AccessScope::Read);
    openapi_document::document_scope(shared_logs.get_openapi_mut(), AccessScope::Read);
    openapi_document::document_scope(operate.get_openapi_mut(), AccessScope::Operate);
    openapi_document::document_scope(admin.get_openapi_mut(), AccessScope::Admin);
    let needs =
        |scope| from_fn(move |caller, request, next| require_scope(scope, caller, request, next));
    // Each call makes a coalescer of its own, so that lists do not wait for reads of long
    // transcripts.
    let together = || {
        from_fn_with_state(
            Arc::<ReadCoalescer<TaggedResponse>>::default(),
            read_coalescer::coalesce_reads,
        )
    };
    // The layer that is added last runs first, so the scope is checked before a body is read.
    let all = OpenApiRouter::with_openapi(openapi_document::base_document())
        .merge(read.route_layer(from_fn(etag::add_etag)).route_layer(needs(AccessScope::Read)))
        .merge(batched.route_layer(needs(AccessScope::Read)))
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

#[cfg(test)]
mod tests;
