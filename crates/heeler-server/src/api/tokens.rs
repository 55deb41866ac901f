//! Tokens, by which programs say who they are.

use axum::Json;
use axum::extract::State;
use heeler_engine::{AccessOrder, Answer, Command, Secret};
use heeler_model::{AccessName, Scope};
use heeler_query::access::TokenList;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::daemon::Done;
use super::{Reply, Routes};
use crate::app::App;
use crate::caller::Caller;
use crate::problem::Problem;
use crate::request::{Given, Named};

pub(super) fn routes() -> Routes {
    let admin = OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(revoke));
    Routes { admin, ..Routes::default() }
}

/// List tokens, newest first, also those that no longer count.
#[utoipa::path(
    get, path = "/tokens", tag = "tokens",
    responses((status = OK, body = TokenList), (status = "default", body = Problem)),
)]
async fn list(State(app): State<App>) -> Reply<TokenList> {
    let now = (app.now)();
    Ok(Json(app.read(move |records| records.tokens(now)).await?))
}

/// A token that is wanted.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TokenOrder {
    /// What it is called.
    name: String,
    /// What its bearer may: `read`, `operate` or `admin`.
    #[schema(value_type = String)]
    scope: Scope,
    /// When it ends to count by itself; never, if left out.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
}

/// A token that was made.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct TokenMade {
    /// The token itself. It is told only here.
    token: String,
    /// What was done, in words.
    message: String,
}

/// Make a token; it is told once.
#[utoipa::path(
    post, path = "/tokens", tag = "tokens", request_body = TokenOrder,
    responses((status = OK, body = TokenMade), (status = "default", body = Problem)),
)]
async fn create(
    State(app): State<App>,
    caller: Caller,
    Given(order): Given<TokenOrder>,
) -> Reply<TokenMade> {
    let name: AccessName =
        order.name.parse().map_err(|error| Problem::usage(format!("{error}")))?;
    let secret = Secret::token().map_err(|error| Problem::trouble(error.to_string()))?;
    let TokenOrder { scope, expires_at, .. } = order;
    let order = AccessOrder::CreateToken { name, scope, hash: secret.hash(), expires_at };
    let message = change(&app, &caller, order).await?;
    Ok(Json(TokenMade { token: secret.reveal().to_owned(), message }))
}

/// Let the bearer of a token in no more.
#[utoipa::path(
    delete, path = "/tokens/{token}", tag = "tokens",
    params(("token" = String, Path, description = "Its name or id.")),
    responses((status = OK, body = Done), (status = "default", body = Problem)),
)]
async fn revoke(
    State(app): State<App>,
    caller: Caller,
    Named(token): Named<String>,
) -> Reply<Done> {
    let message = change(&app, &caller, AccessOrder::RevokeToken { token }).await?;
    Ok(Json(Done { message }))
}

async fn change(app: &App, caller: &Caller, order: AccessOrder) -> Result<String, Problem> {
    let by = caller.by.clone();
    let answer = app.ask(caller, Command::Access { order, by }).await?;
    app.access.changed();
    match answer {
        Answer::Done { message } => Ok(message),
        other => Err(Problem::trouble(format!("the daemon answered something else: {other:?}"))),
    }
}
