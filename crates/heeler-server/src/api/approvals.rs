//! API routes for approvals.

use crate::replies::MessageReply;
use axum::extract::State;
use heeler_engine::DaemonCommand;
use heeler_model::{ApprovalAnswer, ApprovalStatus};
use heeler_query::approvals::{ApprovalDetails, ApprovalListQuery, ApprovalPage};
use heeler_query::enum_schemas;
use serde::Deserialize;
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api_routes::ApiRoutes;
use super::page_limit::{PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX, check_limit};
use super::path_params::IdPathParams;
use crate::caller::KeyedCaller;
use crate::encoded_json::{EncodedJsonResult, JsonResult};
use crate::extractors::{JsonBody, PathParams, QueryParams};
use crate::server_state::SharedServerState;

pub(super) fn routes() -> ApiRoutes {
    ApiRoutes {
        shared: OpenApiRouter::new().routes(routes!(list)).routes(routes!(show)),
        operate: OpenApiRouter::new().routes(routes!(answer)),
        ..ApiRoutes::default()
    }
}

/// Filters of the approval list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ApprovalListParams {
    /// Only approvals with this status.
    #[param(value_type = Option<enum_schemas::ApprovalStatus>)]
    status: Option<ApprovalStatus>,
    /// Only approvals of this workflow run or job.
    run: Option<String>,
    /// Only approvals older than this one: `next` of the previous page.
    before: Option<String>,
    /// Approvals per page; default 20.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<usize>,
}

/// List approvals, newest first.
#[utoipa::path(
    get, path = "/approvals", tag = "approvals", params(ApprovalListParams),
    responses((status = OK, body = ApprovalPage)),
)]
async fn list(
    State(app): State<SharedServerState>,
    QueryParams(params): QueryParams<ApprovalListParams>,
) -> EncodedJsonResult<ApprovalPage> {
    let limit = check_limit(params.limit, PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX)?;
    let ApprovalListParams { status, run, before, .. } = params;
    let query = ApprovalListQuery { status, run, before, limit };
    app.read_json(move |records| records.approvals(&query)).await
}

/// Show one approval, with its full question.
#[utoipa::path(
    get, path = "/approvals/{id}", tag = "approvals", params(IdPathParams),
    responses((status = OK, body = ApprovalDetails)),
)]
async fn show(
    State(app): State<SharedServerState>,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
) -> EncodedJsonResult<ApprovalDetails> {
    app.read_json(move |records| records.approval(&id)).await
}

/// Answer to an approval.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AnswerApprovalBody {
    /// Approve or deny. To answer a question with text, approve and set `text`.
    approve: bool,
    /// The answer, or the reason.
    #[schema(max_length = 65536)]
    text: Option<String>,
    /// Tool input that replaces the agent's.
    #[schema(value_type = Option<Object>)]
    updated_input: Option<Value>,
    /// `inputHash` of the question as it was shown. A question that differs is not answered.
    input_hash: Option<String>,
    /// Also allow the rules in `detail.offeredRules`, in all later runs of the agent.
    #[serde(default)]
    always: bool,
}

/// Answer an approval. The first answer counts, through any interface.
#[utoipa::path(
    post, path = "/approvals/{id}", tag = "approvals", params(IdPathParams), request_body = AnswerApprovalBody,
    responses((status = OK, body = MessageReply)),
)]
async fn answer(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
    JsonBody(order): JsonBody<AnswerApprovalBody>,
) -> JsonResult<MessageReply> {
    // Commands take complete IDs, so a prefix is resolved here.
    let approval = app.read(move |records| Ok(records.reader()?.find_approval(&id)?.id)).await?;
    let AnswerApprovalBody { approve, text, updated_input, input_hash, always } = order;
    let answer = ApprovalAnswer { approve, text, updated_input, input_hash, always };
    let by = caller.caller.name.clone();
    app.request_change(&caller, DaemonCommand::Approval { approval, answer, by }).await
}
