//! Who may do what.

use axum::Json;
use axum::extract::State;
use heeler_engine::{AccessOrder, Answer, Command, Secret};
use heeler_model::{AccessName, Scope, TokenId};
use heeler_query::access::{PeopleList, TokenList};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Reply, Routes, Shown};
use crate::app::App;
use crate::caller::Caller;
use crate::problem::Problem;
use crate::request::{Given, Named};

pub(super) fn routes() -> Routes {
    Routes {
        admin: OpenApiRouter::new()
            .routes(routes!(tokens, create))
            .routes(routes!(revoke))
            .routes(routes!(people)),
        ..Routes::default()
    }
}

/// List tokens, newest first, also those that no longer count.
#[utoipa::path(
    get, path = "/tokens", tag = "access",
    responses((status = OK, body = TokenList), (status = "default", body = Problem)),
)]
async fn tokens(State(app): State<App>) -> Shown<TokenList> {
    let now = (app.now)();
    app.tell(move |records| records.tokens(now)).await
}

/// List the people who have a password.
#[utoipa::path(
    get, path = "/people", tag = "access",
    responses((status = OK, body = PeopleList), (status = "default", body = Problem)),
)]
async fn people(State(app): State<App>) -> Shown<PeopleList> {
    app.tell(|records| records.people()).await
}

/// A token that is wanted.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TokenOrder {
    /// What it is called: letters, digits, `-`, `_`, `.`, `@` and `+`.
    #[schema(value_type = String, pattern = "^[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}$")]
    name: AccessName,
    /// What its bearer may: `read`, `operate` or `admin`.
    #[schema(value_type = String, pattern = "^(read|operate|admin)$")]
    scope: Scope,
    /// When it ends to count by itself.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
}

/// A token that was made.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct MadeToken {
    /// Its id.
    id: String,
    /// What it is called.
    name: String,
    /// The token itself, which is told this once.
    token: String,
}

/// Make a token. It is told once: only its hash is on record.
#[utoipa::path(
    post, path = "/tokens", tag = "access", request_body = TokenOrder,
    responses((status = OK, body = MadeToken), (status = "default", body = Problem)),
)]
async fn create(
    State(app): State<App>,
    caller: Caller,
    Given(order): Given<TokenOrder>,
) -> Reply<MadeToken> {
    let secret = Secret::token().map_err(|error| Problem::trouble(error.to_string()))?;
    let TokenOrder { name, scope, expires_at } = order;
    let (hash, shown) = (secret.hash(), name.to_string());
    let id = TokenId::of_hash(&hash).to_string();
    let order = AccessOrder::CreateToken { name, scope, hash, expires_at };
    app.ask(&caller, Command::Access { order, by: caller.by.clone() }).await?;
    Ok(Json(MadeToken { id, name: shown, token: secret.reveal().to_owned() }))
}

/// What was done.
#[derive(Debug, Serialize, ToSchema)]
struct Revoked {
    /// In words.
    message: String,
}

/// Let a token count no more, at once.
#[utoipa::path(
    delete, path = "/tokens/{token}", tag = "access",
    params(("token" = String, Path, description = "Its name or its id.")),
    responses((status = OK, body = Revoked), (status = "default", body = Problem)),
)]
async fn revoke(
    State(app): State<App>,
    caller: Caller,
    Named(token): Named<String>,
) -> Reply<Revoked> {
    let order = AccessOrder::RevokeToken { token };
    match app.ask(&caller, Command::Access { order, by: caller.by.clone() }).await? {
        Answer::Done { message } => Ok(Json(Revoked { message })),
        other => Err(Problem::trouble(format!("the daemon answered something else: {other:?}"))),
    }
}
