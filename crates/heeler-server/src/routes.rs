//! What can be asked over HTTP: each route is one command.

use axum::Json;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::map_response;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use heeler_engine::{
    Answer, Call, Command, Handle, Refused, RefusedKind, Stopped, WEBHOOK_BYTES_MAX,
};
use heeler_model::{JobId, PROMPT_BYTES_MAX, Wanted};
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;

use crate::bodies::{
    AgentBody, ApprovalBody, CancelBody, ErrorBody, Hello, ResumeBody, RetryBody, ScheduleBody,
    SessionBody, WorkflowBody,
};
use crate::{DELIVERY_HEADER, PROTOCOL, PROTOCOL_HEADER};

/// The largest body of a request that has no prompt.
pub(crate) const BODY_BYTES_MAX: usize = 2 << 20;

/// The largest body of a request with a prompt: JSON writes some characters with six bytes.
pub(crate) const PROMPT_BODY_BYTES_MAX: usize = PROMPT_BYTES_MAX as usize * 6 + BODY_BYTES_MAX;

/// The longest name of a delivery.
pub(crate) const DELIVERY_BYTES_MAX: usize = 256;

/// Headers by which callers name a delivery, the first one that is there counts: ours, that of
/// Standard Webhooks, GitHub's and GitLab's.
const DELIVERY_HEADERS: [&str; 4] =
    [DELIVERY_HEADER, "webhook-id", "x-github-delivery", "x-gitlab-event-uuid"];

/// A reply to a request that was understood and refused, or not understood.
type Refusal = Box<Response>;

/// Returns every route, in front of a dispatcher.
pub(crate) fn router(handle: Handle, hello: Hello) -> Router {
    Router::new()
        .route("/v1/hello", get(async move || Json(hello.clone())))
        .route("/v1/status", get(status))
        .route("/v1/jobs", post(trigger))
        .route("/v1/jobs/{job}/cancel", post(cancel))
        .route("/v1/jobs/{job}/resume", post(resume))
        .route("/v1/jobs/{job}/retry", post(retry))
        .route("/v1/schedules/{agent}/{schedule}", post(schedule))
        .route("/v1/webhooks/{agent}/{schedule}", post(webhook))
        .route("/v1/agents/{agent}", post(agent))
        .route("/v1/sessions", post(session))
        .route("/v1/workflows", post(workflow))
        .route("/v1/approvals/{approval}", post(approval))
        .route("/v1/reload", post(reload))
        .route("/v1/stop", post(stop))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(map_response(with_protocol))
        .with_state(handle)
}

async fn with_protocol(mut response: Response) -> Response {
    response.headers_mut().insert(PROTOCOL_HEADER, HeaderValue::from(PROTOCOL));
    response
}

async fn no_route() -> Response {
    refused(StatusCode::NOT_FOUND, RefusedKind::NotFound, "there is no such route")
}

async fn no_method() -> Response {
    refused(StatusCode::METHOD_NOT_ALLOWED, RefusedKind::Usage, "the route has another method")
}

async fn status(State(handle): State<Handle>) -> Response {
    ask(handle, Command::Status).await
}

async fn reload(State(handle): State<Handle>) -> Response {
    ask(handle, Command::Reload).await
}

async fn trigger(State(handle): State<Handle>, body: Body) -> Response {
    let wanted = read::<Wanted>(body, PROMPT_BODY_BYTES_MAX).await;
    ask_if(handle, wanted.map(|wanted| Command::Trigger(Box::new(wanted)))).await
}

async fn stop(State(handle): State<Handle>, body: Body) -> Response {
    let stopping = read(body, BODY_BYTES_MAX).await;
    ask_if(handle, stopping.map(Command::Stop)).await
}

async fn cancel(State(handle): State<Handle>, Path(job): Path<String>, body: Body) -> Response {
    let body = read(body, BODY_BYTES_MAX).await;
    let command =
        of_job(&job, body, |job, CancelBody { now, by }| Command::Cancel { job, now, by });
    ask_if(handle, command).await
}

async fn resume(State(handle): State<Handle>, Path(job): Path<String>, body: Body) -> Response {
    let body = read(body, PROMPT_BODY_BYTES_MAX).await;
    let command =
        of_job(&job, body, |job, ResumeBody { prompt, by }| Command::Resume { job, prompt, by });
    ask_if(handle, command).await
}

async fn retry(State(handle): State<Handle>, Path(job): Path<String>, body: Body) -> Response {
    let body = read(body, BODY_BYTES_MAX).await;
    let command = of_job(&job, body, |job, RetryBody { by }| Command::Retry { job, by });
    ask_if(handle, command).await
}

async fn schedule(
    State(handle): State<Handle>,
    Path((agent, schedule)): Path<(String, String)>,
    body: Body,
) -> Response {
    let body = read::<ScheduleBody>(body, BODY_BYTES_MAX).await;
    let command =
        body.map(|ScheduleBody { change, by }| Command::Schedule { agent, schedule, change, by });
    ask_if(handle, command).await
}

async fn webhook(
    State(handle): State<Handle>,
    Path((agent, schedule)): Path<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let bytes = read_bytes(body, WEBHOOK_BYTES_MAX).await;
    let command = bytes.and_then(|bytes| {
        let (payload, delivery) = (payload(&headers, &bytes)?, delivery(&headers)?);
        Ok(Command::Webhook(Box::new(Call { agent, schedule, payload, delivery })))
    });
    ask_if(handle, command).await
}

/// Returns what a caller sent: text, and JSON if it says so.
fn payload(headers: &HeaderMap, bytes: &[u8]) -> Result<String, Refusal> {
    let text = std::str::from_utf8(bytes)
        .map_err(|_| usage(StatusCode::BAD_REQUEST, "the payload is not UTF-8 text".into()))?;
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_json = kind == "application/json" || kind.ends_with("+json");
    if is_json && !text.is_empty() {
        serde_json::from_str::<serde::de::IgnoredAny>(text).map_err(|error| {
            usage(StatusCode::BAD_REQUEST, format!("the payload is not JSON: {error}"))
        })?;
    }
    Ok(text.to_owned())
}

/// Returns what a caller calls its delivery.
fn delivery(headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let Some((name, value)) =
        DELIVERY_HEADERS.iter().find_map(|name| Some((name, headers.get(*name)?)))
    else {
        return Ok(None);
    };
    match value.to_str() {
        Ok(text) if (1..=DELIVERY_BYTES_MAX).contains(&text.len()) => Ok(Some(text.to_owned())),
        _ => {
            let message =
                format!("the header {name} is no name of 1 to {DELIVERY_BYTES_MAX} characters");
            Err(usage(StatusCode::BAD_REQUEST, message))
        }
    }
}

async fn agent(State(handle): State<Handle>, Path(agent): Path<String>, body: Body) -> Response {
    let body = read::<AgentBody>(body, BODY_BYTES_MAX).await;
    let command = body.map(|AgentBody { change, by }| Command::Agent { agent, change, by });
    ask_if(handle, command).await
}

async fn session(State(handle): State<Handle>, body: Body) -> Response {
    let body = read::<SessionBody>(body, BODY_BYTES_MAX).await;
    let command = body.map(|SessionBody { order, by }| Command::Session { order, by });
    ask_if(handle, command).await
}

async fn workflow(State(handle): State<Handle>, body: Body) -> Response {
    let body = read::<WorkflowBody>(body, PROMPT_BODY_BYTES_MAX).await;
    let command = body.map(|WorkflowBody { order, by }| Command::Workflow { order, by });
    ask_if(handle, command).await
}

async fn approval(
    State(handle): State<Handle>,
    Path(approval): Path<String>,
    body: Body,
) -> Response {
    let body = read::<ApprovalBody>(body, BODY_BYTES_MAX).await;
    let wrong = |error: heeler_model::IdError| {
        Box::new(refused(StatusCode::BAD_REQUEST, RefusedKind::Usage, &error.to_string()))
    };
    let command = body.and_then(|ApprovalBody { answer, by }| {
        let approval = approval.parse().map_err(wrong)?;
        Ok(Command::Approval { approval, answer, by })
    });
    ask_if(handle, command).await
}

fn of_job<T>(
    job: &str,
    body: Result<T, Refusal>,
    command: impl FnOnce(JobId, T) -> Command,
) -> Result<Command, Refusal> {
    let wrong = |error: heeler_model::IdError| {
        Box::new(refused(StatusCode::BAD_REQUEST, RefusedKind::Usage, &error.to_string()))
    };
    Ok(command(job.parse().map_err(wrong)?, body?))
}

/// Reads a body, which may come slowly but not without end.
pub(crate) async fn read<T: DeserializeOwned>(body: Body, bytes_max: usize) -> Result<T, Refusal> {
    let bytes = read_bytes(body, bytes_max).await?;
    serde_json::from_slice(&bytes).map_err(|error| {
        usage(StatusCode::BAD_REQUEST, format!("the request is not understood: {error}"))
    })
}

async fn read_bytes(body: Body, bytes_max: usize) -> Result<Bytes, Refusal> {
    axum::body::to_bytes(body, bytes_max).await.map_err(|error| match is_too_long(&error) {
        true => {
            let message = format!("the request is longer than {bytes_max} bytes");
            usage(StatusCode::PAYLOAD_TOO_LARGE, message)
        }
        false => usage(StatusCode::BAD_REQUEST, format!("the request broke off: {error}")),
    })
}

fn usage(code: StatusCode, message: String) -> Refusal {
    Box::new(refused(code, RefusedKind::Usage, &message))
}

fn is_too_long(error: &axum::Error) -> bool {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if error.is::<http_body_util::LengthLimitError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

async fn ask_if(handle: Handle, command: Result<Command, Refusal>) -> Response {
    match command {
        Ok(command) => ask(handle, command).await,
        Err(refusal) => *refusal,
    }
}

/// Brings a command to the dispatcher and waits for its answer, however long that takes.
async fn ask(handle: Handle, command: Command) -> Response {
    let (sender, receiver) = oneshot::channel();
    // Whoever asked may have gone meanwhile.
    let reply: heeler_engine::Reply = Box::new(move |answer| drop(sender.send(answer)));
    // It waits while the dispatcher is busy, which must not keep others waiting.
    let sent = tokio::task::spawn_blocking(move || handle.send(command, reply)).await;
    match sent {
        Ok(Ok(())) => match receiver.await {
            Ok(answer) => reply_with(answer),
            // Whether it was done cannot be told, so it may not look like something to try again.
            Err(_) => trouble("the daemon ended before it answered"),
        },
        Ok(Err(stopped)) => reply_with(Err(stopped.into())),
        Err(_) => trouble("the daemon is ending"),
    }
}

fn trouble(message: &str) -> Response {
    refused(StatusCode::INTERNAL_SERVER_ERROR, RefusedKind::Trouble, message)
}

fn reply_with(answer: Result<Answer, Refused>) -> Response {
    match answer {
        Ok(answer) => Json(answer).into_response(),
        Err(error) => (code_of(&error), Json(ErrorBody { error })).into_response(),
    }
}

/// Returns the status code of a refusal. One that means that nothing was done, because the daemon
/// is ending, has its own.
fn code_of(refused: &Refused) -> StatusCode {
    match refused.kind {
        _ if *refused == Refused::from(Stopped) => StatusCode::SERVICE_UNAVAILABLE,
        RefusedKind::NotFound => StatusCode::NOT_FOUND,
        RefusedKind::Busy => StatusCode::CONFLICT,
        RefusedKind::NotAllowed => StatusCode::FORBIDDEN,
        RefusedKind::Usage => StatusCode::BAD_REQUEST,
        RefusedKind::Trouble => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn refused(code: StatusCode, kind: RefusedKind, message: &str) -> Response {
    (code, Json(ErrorBody { error: Refused::new(kind, message) })).into_response()
}
