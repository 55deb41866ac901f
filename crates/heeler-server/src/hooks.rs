//! Calls from outside: schedules of type `webhook`.

use axum::Json;
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::routing::post;
use heeler_engine::{Answer, Call, Command, WEBHOOK_BYTES_MAX};

use crate::app::App;
use crate::caller::Caller;
use crate::problem::Problem;
use crate::request::{Named, read_bytes};

/// The longest name of a delivery.
pub(crate) const DELIVERY_BYTES_MAX: usize = 256;

/// Headers by which callers name a delivery, the first one that is there counts: ours, that of
/// Standard Webhooks, GitHub's and GitLab's.
const DELIVERY_HEADERS: [&str; 4] =
    ["heeler-delivery", "webhook-id", "x-github-delivery", "x-gitlab-event-uuid"];

/// Returns the routes of calls from outside.
pub(crate) fn router() -> Router<App> {
    Router::new().route("/hooks/{agent}/{schedule}", post(webhook))
}

async fn webhook(
    State(app): State<App>,
    caller: Caller,
    Named((agent, schedule)): Named<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Answer>, Problem> {
    let bytes = read_bytes(body, WEBHOOK_BYTES_MAX).await?;
    let (payload, delivery) = (payload(&headers, &bytes)?, delivery(&headers)?);
    let call = Call { agent, schedule, payload, delivery };
    Ok(Json(app.ask(&caller, Command::Webhook(Box::new(call))).await?))
}

/// Returns what a caller sent: text, and JSON if it says so.
fn payload(headers: &HeaderMap, bytes: &[u8]) -> Result<String, Problem> {
    let text =
        std::str::from_utf8(bytes).map_err(|_| Problem::usage("the payload is not UTF-8 text"))?;
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_json = kind == "application/json" || kind.ends_with("+json");
    if is_json && !text.is_empty() {
        serde_json::from_str::<serde::de::IgnoredAny>(text)
            .map_err(|error| Problem::usage(format!("the payload is not JSON: {error}")))?;
    }
    Ok(text.to_owned())
}

/// Returns what a caller calls its delivery.
fn delivery(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some((name, value)) =
        DELIVERY_HEADERS.iter().find_map(|name| Some((name, headers.get(*name)?)))
    else {
        return Ok(None);
    };
    match value.to_str() {
        Ok(text) if (1..=DELIVERY_BYTES_MAX).contains(&text.len()) => Ok(Some(text.to_owned())),
        _ => Err(Problem::usage(format!(
            "the header {name} is no name of 1 to {DELIVERY_BYTES_MAX} characters"
        ))),
    }
}
