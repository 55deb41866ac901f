//! API routes for conversations in chats.

use axum::extract::State;
use heeler_query::chat_messages::{ChatConversationList, ChatMessagePage, ChatMessageQuery};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api_routes::ApiRoutes;
use super::page_limit::{PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX, check_limit};
use crate::encoded_json::EncodedJsonResult;
use crate::extractors::QueryParams;
use crate::server_state::SharedServerState;

pub(super) fn routes() -> ApiRoutes {
    ApiRoutes {
        read: OpenApiRouter::new().routes(routes!(list)).routes(routes!(messages)),
        ..ApiRoutes::default()
    }
}

/// Length of the list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ChatConversationParams {
    /// Number of conversations; default 20.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<usize>,
}

/// List conversations in chats, the last used first.
#[utoipa::path(
    get, path = "/chats", tag = "chats", params(ChatConversationParams),
    responses((status = OK, body = ChatConversationList)),
)]
async fn list(
    State(app): State<SharedServerState>,
    QueryParams(params): QueryParams<ChatConversationParams>,
) -> EncodedJsonResult<ChatConversationList> {
    let limit = check_limit(params.limit, PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX)?;
    app.read_json(move |records| records.chat_conversations(limit)).await
}

/// Filters of messages in chats.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ChatMessageParams {
    /// Only conversations at this place, such as `slack/C012`, and in its threads.
    channel: Option<String>,
    /// Only messages with this text, without regard to case.
    search: Option<String>,
    /// Only messages before this number: `next` of the following page.
    before: Option<i64>,
    /// Number of messages, counted from the end; default 20.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<usize>,
}

/// List what people and agents said in chats.
#[utoipa::path(
    get, path = "/chats/messages", tag = "chats", params(ChatMessageParams),
    responses((status = OK, body = ChatMessagePage)),
)]
async fn messages(
    State(app): State<SharedServerState>,
    QueryParams(params): QueryParams<ChatMessageParams>,
) -> EncodedJsonResult<ChatMessagePage> {
    let limit = check_limit(params.limit, PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX)?;
    let ChatMessageParams { channel, search, before, .. } = params;
    let query = ChatMessageQuery { channel, search, before, limit };
    app.read_json(move |records| records.chat_messages(&query)).await
}
