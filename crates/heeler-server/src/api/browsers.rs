//! API routes for browsers that receive notices by Web Push.

use axum::extract::State;
use axum::http::StatusCode;
use heeler_engine::{BrowserOperation, DaemonCommand, NewBrowser};
use heeler_model::AccessScope;
use heeler_query::browsers::BrowserList;
use serde::Deserialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api_routes::ApiRoutes;
use super::path_params::IdPathParams;
use crate::caller::{KeyedCaller, RequestCaller};
use crate::encoded_json::{EncodedJsonResult, JsonResult};
use crate::extractors::{JsonBody, PathParams};
use crate::problem::ProblemDetails;
use crate::replies::MessageReply;
use crate::server_state::SharedServerState;

pub(super) fn routes() -> ApiRoutes {
    ApiRoutes {
        read: OpenApiRouter::new().routes(routes!(list)),
        operate: OpenApiRouter::new()
            .routes(routes!(add))
            .routes(routes!(ensure_key))
            .routes(routes!(remove)),
        ..ApiRoutes::default()
    }
}

/// Returns the owner of the browsers that a caller may see and remove; `None` for all owners.
pub(crate) fn owner_filter(caller: &RequestCaller) -> Option<String> {
    (caller.scope < AccessScope::Admin).then(|| caller.name.clone())
}

/// List the browsers that receive notices. With the scope `admin` those of all people, else only the
/// caller's own.
#[utoipa::path(
    get, path = "/browsers", tag = "notifications",
    responses((status = OK, body = BrowserList)),
)]
async fn list(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
) -> EncodedJsonResult<BrowserList> {
    let owner = owner_filter(&caller);
    app.read_json(move |records| records.browsers(owner.as_deref())).await
}

/// Create the key by which push services recognize the fleet, unless there is one. The list of browsers
/// has its public part.
#[utoipa::path(
    post, path = "/browsers/key", tag = "notifications",
    responses((status = OK, body = MessageReply)),
)]
async fn ensure_key(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
) -> JsonResult<MessageReply> {
    let by = caller.caller.name.clone();
    let order = BrowserOperation::EnsureKey;
    app.request_change(&caller, DaemonCommand::Browser { order, by }).await
}

/// Browser to add, with the fields of the `PushSubscription` that it gives.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AddBrowserBody {
    /// Channel of `notify`. It may be missing if only one has `web_push`.
    channel: Option<String>,
    /// Description, such as `Firefox on Android`.
    #[serde(default)]
    #[schema(max_length = 200)]
    label: String,
    /// Address of the browser at its push service.
    #[schema(max_length = 2048)]
    endpoint: String,
    keys: AddBrowserKeys,
}

/// Keys of the browser.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AddBrowserKeys {
    /// Public key, as base64.
    #[schema(max_length = 128)]
    p256dh: String,
    /// Shared secret, as base64.
    #[schema(max_length = 64)]
    auth: String,
}

/// Add a browser that receives notices, or replace its record. It belongs to the caller, who must be
/// logged in with a browser. It is removed when the caller's password changes or all logins are revoked.
#[utoipa::path(
    post, path = "/browsers", tag = "notifications", request_body = AddBrowserBody,
    responses((status = OK, body = MessageReply)),
)]
async fn add(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    JsonBody(order): JsonBody<AddBrowserBody>,
) -> JsonResult<MessageReply> {
    // A token may be revoked, and its notices would continue.
    if caller.caller.csrf_token.is_none() {
        let detail = "only a browser that is logged in can be added";
        let problem = ProblemDetails::new(StatusCode::FORBIDDEN, "not-allowed", detail);
        return Err(problem.with_hint("open the settings page of the dashboard"));
    }
    let AddBrowserBody { channel, label, endpoint, keys } = order;
    let AddBrowserKeys { p256dh: public_key, auth: auth_secret } = keys;
    let browser = NewBrowser { channel, label, endpoint, public_key, auth_secret };
    let by = caller.caller.name.clone();
    let order = BrowserOperation::Add(Box::new(browser));
    app.request_change(&caller, DaemonCommand::Browser { order, by }).await
}

/// Remove a browser, so that it receives no notices any more. With the scope `admin` any, else one of
/// the caller's own.
#[utoipa::path(
    delete, path = "/browsers/{id}", tag = "notifications", params(IdPathParams),
    responses((status = OK, body = MessageReply)),
)]
async fn remove(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
) -> JsonResult<MessageReply> {
    let order = BrowserOperation::Remove { browser: id, owner: owner_filter(&caller.caller) };
    let by = caller.caller.name.clone();
    app.request_change(&caller, DaemonCommand::Browser { order, by }).await
}
