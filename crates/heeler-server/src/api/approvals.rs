//! Approvals.

use axum::extract::State;
use heeler_engine::Command;
use heeler_model::{ApprovalAnswer, ApprovalStatus};
use heeler_query::approvals::{ApprovalDetails, ApprovalPage, ApprovalsWanted};
use heeler_query::told::Done;
use heeler_query::words;
use serde::Deserialize;
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::paths::ById;
use super::{PAGE, PAGE_MAX, Reply, Routes, Shown, limit};
use crate::app::App;
use crate::request::{Asked, Asker, Given, Named};

pub(super) fn routes() -> Routes {
    Routes {
        shared: OpenApiRouter::new().routes(routes!(list)).routes(routes!(show)),
        operate: OpenApiRouter::new().routes(routes!(answer)),
        ..Routes::default()
    }
}

/// Which approvals to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// Only those in this state.
    #[param(value_type = Option<words::ApprovalStatus>)]
    status: Option<ApprovalStatus>,
    /// Only those of this run of a workflow, or of this job.
    run: Option<String>,
    /// Those older than this one: `next` of the page before.
    before: Option<String>,
    /// How many; 20 if left out.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<usize>,
}

/// List what people are asked, newest first.
#[utoipa::path(
    get, path = "/approvals", tag = "approvals", params(ListParams),
    responses((status = OK, body = ApprovalPage)),
)]
async fn list(State(app): State<App>, Asked(asked): Asked<ListParams>) -> Shown<ApprovalPage> {
    let limit = limit(asked.limit, PAGE, PAGE_MAX)?;
    let ListParams { status, run, before, .. } = asked;
    let wanted = ApprovalsWanted { status, run, before, limit };
    app.tell(move |records| records.approvals(&wanted)).await
}

/// Show what is asked, in full.
#[utoipa::path(
    get, path = "/approvals/{id}", tag = "approvals", params(ById),
    responses((status = OK, body = ApprovalDetails)),
)]
async fn show(State(app): State<App>, Named(ById { id }): Named<ById>) -> Shown<ApprovalDetails> {
    app.tell(move |records| records.approval(&id)).await
}

/// An answer.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AnswerOrder {
    /// Yes or no. To answer with words, say yes and give them.
    approve: bool,
    /// The words: the answer, or why.
    #[schema(max_length = 65536)]
    text: Option<String>,
    /// What a tool is given instead of what the agent wanted to give it.
    #[schema(value_type = Option<Object>)]
    updated_input: Option<Value>,
}

/// Answer what somebody is asked. The first answer counts, wherever it is given.
#[utoipa::path(
    post, path = "/approvals/{id}", tag = "approvals", params(ById), request_body = AnswerOrder,
    responses((status = OK, body = Done)),
)]
async fn answer(
    State(app): State<App>,
    asker: Asker,
    Named(ById { id }): Named<ById>,
    Given(order): Given<AnswerOrder>,
) -> Reply<Done> {
    let approval = app.read(move |records| Ok(records.reader()?.find_approval(&id)?.id)).await?;
    let AnswerOrder { approve, text, updated_input } = order;
    let answer = ApprovalAnswer { approve, text, updated_input };
    let by = asker.caller.by.clone();
    app.done(&asker, Command::Approval { approval, answer, by }).await
}
