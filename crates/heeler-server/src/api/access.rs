//! API routes for tokens and users.

use axum::extract::State;
use axum::{Extension, Json};
use heeler_engine::{AccessOperation, AccessSecret, CommandReply, DaemonCommand};
use heeler_model::{AccessName, AccessScope, TokenId};
use heeler_query::access::{TokenList, UserList};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api_routes::ApiRoutes;
use crate::caller::RequestCaller;
use crate::encoded_json::{EncodedJsonResult, JsonResult};
use crate::extractors::{JsonBody, PathParams};
use crate::problem::ProblemDetails;
use crate::reply_redaction::RevealsSecret;
use crate::server_state::SharedServerState;

pub(super) fn routes() -> ApiRoutes {
    ApiRoutes {
        admin: OpenApiRouter::new()
            .routes(routes!(tokens, create))
            .routes(routes!(revoke))
            .routes(routes!(people)),
        ..ApiRoutes::default()
    }
}

/// List tokens, newest first, including expired and revoked ones.
#[utoipa::path(
    get, path = "/tokens", tag = "access",
    responses((status = OK, body = TokenList), (status = "default", body = ProblemDetails)),
)]
async fn tokens(State(app): State<SharedServerState>) -> EncodedJsonResult<TokenList> {
    let now = (app.clock)();
    app.read_json(move |records| records.tokens(now)).await
}

/// List the users.
#[utoipa::path(
    get, path = "/people", tag = "access",
    responses((status = OK, body = UserList), (status = "default", body = ProblemDetails)),
)]
async fn people(State(app): State<SharedServerState>) -> EncodedJsonResult<UserList> {
    app.read_json(|records| records.users()).await
}

/// Token to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CreateTokenBody {
    /// Name: letters, digits, `-`, `_`, `.`, `@` and `+`.
    #[schema(value_type = String, pattern = "^[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}$")]
    name: AccessName,
    /// Scope: `read`, `operate` or `admin`.
    #[schema(value_type = String, pattern = "^(read|operate|admin)$")]
    scope: AccessScope,
    /// Expiry time.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
}

/// Created token.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct CreateTokenResponse {
    /// Token ID.
    id: String,
    /// Token name.
    name: String,
    /// The token itself. No later reply contains it.
    token: String,
}

/// Create a token.
///
/// The reply is the only one that contains it: only its hash is stored.
#[utoipa::path(
    post, path = "/tokens", tag = "access", request_body = CreateTokenBody,
    responses((status = OK, body = CreateTokenResponse), (status = "default", body = ProblemDetails)),
)]
async fn create(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
    JsonBody(order): JsonBody<CreateTokenBody>,
) -> Result<(Extension<RevealsSecret>, Json<CreateTokenResponse>), ProblemDetails> {
    // There is no idempotency key here: a recorded reply would have to contain the token.
    let secret =
        AccessSecret::token().map_err(|error| ProblemDetails::internal_error(error.to_string()))?;
    let CreateTokenBody { name, scope, expires_at } = order;
    // Only the hash leaves this function, apart from the one reply.
    let (hash, token_name) = (secret.hash(), name.to_string());
    let id = TokenId::from_hash(&hash).to_string();
    let order = AccessOperation::CreateToken { name, scope, hash, expires_at };
    app.send_command(&caller, DaemonCommand::Access { order, by: caller.name.clone() }).await?;
    let created = CreateTokenResponse { id, name: token_name, token: secret.reveal().to_owned() };
    Ok((Extension(RevealsSecret), Json(created)))
}

/// Result of a revocation.
#[derive(Debug, Serialize, ToSchema)]
struct RevokeTokenResponse {
    /// Confirmation for people.
    message: String,
}

/// Revoke a token, effective immediately.
#[utoipa::path(
    delete, path = "/tokens/{token}", tag = "access",
    params(("token" = String, Path, description = "Name or ID of the token.")),
    responses((status = OK, body = RevokeTokenResponse), (status = "default", body = ProblemDetails)),
)]
async fn revoke(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
    PathParams(token): PathParams<String>,
) -> JsonResult<RevokeTokenResponse> {
    let order = AccessOperation::RevokeToken { token };
    match app
        .send_command(&caller, DaemonCommand::Access { order, by: caller.name.clone() })
        .await?
    {
        CommandReply::Done { message } => Ok(Json(RevokeTokenResponse { message })),
        other => Err(ProblemDetails::internal_error(format!(
            "unexpected reply of the daemon: {other:?}"
        ))),
    }
}
