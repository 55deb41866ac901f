//! Webhooks: HTTP requests from outside that trigger schedules of type `webhook`.
//!
//! There is no login here: a call is signed with the secret of its schedule. Only callers that are
//! known otherwise (unix socket, token) may call without a signature. Unsigned callers are not told
//! the reason for a refusal. Start at [`router`].

mod body_limits;
#[cfg(any(test, feature = "fuzz-entry"))]
pub(crate) mod call_fuzz;
mod signature;
mod slack;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Extension, Json, Router};
use heeler_config::webhook::{PING_EVENT, WebhookPayload};
use heeler_engine::{
    Caller, CommandReply, DaemonCommand, DaemonSetup, PeerIdentity, WEBHOOK_BYTES_MAX, WebhookCall,
    WebhookEndpoint, WebhookSecret,
};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use self::body_limits::{BodyLimiter, too_many_problem};
use crate::access::identify_peer;
use crate::caller::{AccessScope, RequestCaller, SocketPeer, TcpPeer};
use crate::connection_limiter::client_network;
use crate::extractors::{PathParams, read_bytes};
use crate::problem::ProblemDetails;
use crate::server_state::SharedServerState;

/// Longest delivery ID.
pub(crate) const DELIVERY_BYTES_MAX: usize = 256;

/// Size limit of a call. It is larger than the limit of the agent's payload, because only some
/// fields of GitHub's events are passed on.
pub(crate) const CALL_BYTES_MAX: usize = 4 << 20;

/// Most calls processed at once; more wait.
pub(crate) const CONCURRENT_CALLS_MAX: usize = 8;

/// Longest wait for a permit.
const PERMIT_WAIT_MAX: Duration = Duration::from_secs(5);

/// Shortest time between two log warnings about a schedule that cannot be called; without the
/// limit, any caller could flood the log.
const WARNING_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// Most schedules whose last warning is remembered; one more clears the list.
const WARNINGS_MAX: usize = 1_024;

/// Headers with a delivery ID, in order of precedence: Standard Webhooks (which is signed), Heeler,
/// GitHub, GitLab.
const DELIVERY_HEADERS: [&str; 4] =
    ["webhook-id", "heeler-delivery", "x-github-delivery", "x-gitlab-event-uuid"];

/// Header with the name of a GitHub event.
const EVENT_HEADER: &str = "x-github-event";

/// Events of GitHub after which a repository may have new messages.
const MESSAGE_EVENTS: [&str; 4] =
    ["issue_comment", "issues", "pull_request", "pull_request_review_comment"];

/// Caller that was authenticated without a signature.
type OptionalCaller = Option<Extension<RequestCaller>>;

pub(crate) fn router() -> Router<SharedServerState> {
    Router::new()
        .route("/hooks/github", post(github))
        .route("/hooks/slack", post(slack::slack))
        .route("/hooks/{agent}/{schedule}", post(webhook))
        .layer(Extension(WebhookLimits::new()))
}

/// Limits on concurrent calls.
#[derive(Clone)]
struct WebhookLimits {
    bodies: BodyLimiter,
    call_permits: Arc<Semaphore>,
    warnings: Arc<WebhookWarnings>,
}

/// Time of the last log warning, by schedule.
#[derive(Default)]
struct WebhookWarnings(Mutex<HashMap<String, Instant>>);

impl WebhookWarnings {
    /// Returns true if a warning must be logged now, and records it.
    fn is_due(&self, schedule: &str, now: Instant) -> bool {
        let mut warned = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < WARNING_INTERVAL;
        if warned.get(schedule).is_some_and(is_recent) {
            return false;
        }
        if warned.len() >= WARNINGS_MAX {
            warned.clear();
        }
        warned.insert(schedule.to_owned(), now);
        true
    }
}

/// Verified signatures, by secret: a body may be long, and many schedules may share a secret.
type SignatureChecks<'s> = HashMap<&'s str, Option<CallMac>>;

/// Digest of the verified signature of a call. It is the same for each copy of a signed call.
type CallMac = String;

/// Permission for a call, with its signature unless the caller is known otherwise.
struct CallPermission {
    mac: Option<CallMac>,
}

impl WebhookLimits {
    fn new() -> WebhookLimits {
        WebhookLimits {
            bodies: BodyLimiter::default(),
            call_permits: Arc::new(Semaphore::new(CONCURRENT_CALLS_MAX)),
            warnings: Arc::default(),
        }
    }

    /// Returns the secret of a schedule; logs from time to time that it has none.
    fn find_secret<'s>(
        warnings: &WebhookWarnings,
        setup: &'s DaemonSetup,
        webhook: &WebhookEndpoint<'s>,
    ) -> Option<&'s str> {
        let missing = match setup.webhook_secret(webhook.rules) {
            // If webhooks are turned off, the refusal is that of an unsigned call.
            WebhookSecret::Set(secret) => return Some(secret).filter(|_| setup.accepts_webhooks()),
            WebhookSecret::Unset => "its `secret_env` is not set",
            WebhookSecret::None => "it has no `secret_env`",
        };
        let schedule = format!("{}/{}", webhook.agent.name, webhook.schedule.name);
        if warnings.is_due(&schedule, Instant::now()) {
            tracing::warn!(schedule, "webhook called, but {missing}");
        }
        None
    }
}

/// Schedules that a call may trigger.
enum WebhookTarget<'t> {
    Schedule { agent: &'t str, schedule: &'t str },
    GithubEvent,
}

impl WebhookTarget<'_> {
    /// Returns true if a signed call may trigger a schedule at all.
    fn accepts_signatures(&self, setup: &DaemonSetup, warnings: &WebhookWarnings) -> bool {
        let has_secret = |webhook: &WebhookEndpoint<'_>| {
            WebhookLimits::find_secret(warnings, setup, webhook).is_some()
        };
        match self {
            WebhookTarget::Schedule { agent, schedule } => {
                setup.webhook(agent, schedule).is_ok_and(|webhook| has_secret(&webhook))
            }
            WebhookTarget::GithubEvent => {
                setup.github_webhooks().iter().any(has_secret)
                    || setup.github_chat_secret().is_some()
            }
        }
    }
}

/// Waits for a permit, at most [`PERMIT_WAIT_MAX`].
async fn acquire_permit(permits: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, ProblemDetails> {
    let permit = tokio::time::timeout(PERMIT_WAIT_MAX, Arc::clone(permits).acquire_owned()).await;
    permit.ok().and_then(Result::ok).ok_or_else(too_many_problem)
}

/// Received call.
struct WebhookHttpRequest {
    headers: HeaderMap,
    body: Bytes,
    known_caller: Option<Caller>,
    now: jiff::Timestamp,
    warnings: Arc<WebhookWarnings>,
    _permit: OwnedSemaphorePermit,
}

impl WebhookHttpRequest {
    /// Receives a call when permits are available.
    async fn read(
        app: &SharedServerState,
        limits: &WebhookLimits,
        target: WebhookTarget<'_>,
        sender: WebhookSender,
        (headers, body): (HeaderMap, Body),
    ) -> Result<WebhookHttpRequest, ProblemDetails> {
        let (now, warnings) = ((app.clock)(), Arc::clone(&limits.warnings));
        let body = match sender.known_caller {
            Some(_) => read_bytes(body, CALL_BYTES_MAX).await?,
            None => {
                // A call that can never be accepted is rejected before its body is read: a body
                // takes room that other callers need.
                let may_be_signed = signature::is_well_formed(&headers, now)
                    && target.accepts_signatures(&app.fleet_monitor.setup(), &warnings);
                if !may_be_signed {
                    return Err(unsigned_problem());
                }
                limits.bodies.read(sender.network, body, CALL_BYTES_MAX).await?
            }
        };
        // A slow sender must not hold one of the few permits for calls.
        let permit = acquire_permit(&limits.call_permits).await?;
        let known_caller = sender.known_caller;
        Ok(WebhookHttpRequest { headers, body, known_caller, now, warnings, _permit: permit })
    }

    /// Returns the permission of the call for a schedule, if it has one.
    fn authorize<'s>(
        &self,
        setup: &'s DaemonSetup,
        webhook: &WebhookEndpoint<'s>,
        signed: &mut SignatureChecks<'s>,
    ) -> Option<CallPermission> {
        if self.known_caller.is_some() {
            return Some(CallPermission { mac: None });
        }
        let secret = WebhookLimits::find_secret(&self.warnings, setup, webhook)?;
        let check = || signature::verify(secret, &self.headers, &self.body, self.now);
        let mac = signed.entry(secret).or_insert_with(check).clone();
        mac.map(|mac| CallPermission { mac: Some(mac) })
    }

    /// Returns true if the call may be about conversations on GitHub.
    fn is_for_conversations<'s>(
        &self,
        setup: &'s DaemonSetup,
        signed: &mut SignatureChecks<'s>,
    ) -> bool {
        if self.known_caller.is_some() {
            return setup.hears_of_github_messages();
        }
        let Some(secret) = setup.github_chat_secret() else { return false };
        let check = || signature::verify(secret, &self.headers, &self.body, self.now);
        signed.entry(secret).or_insert_with(check).is_some()
    }
}

/// Returns the delivery ID of a call.
fn delivery_id(headers: &HeaderMap) -> Result<Option<String>, ProblemDetails> {
    let Some((name, value)) =
        DELIVERY_HEADERS.iter().find_map(|name| Some((name, headers.get(*name)?)))
    else {
        return Ok(None);
    };
    match value.to_str() {
        Ok(text) if (1..=DELIVERY_BYTES_MAX).contains(&text.len()) => Ok(Some(text.to_owned())),
        _ => Err(ProblemDetails::bad_request(format!(
            "the header {name} must have 1 to {DELIVERY_BYTES_MAX} visible characters"
        ))),
    }
}

/// Sender of a call, as far as it is known before the signature is checked.
struct WebhookSender {
    known_caller: Option<Caller>,
    network: IpAddr,
}

impl WebhookSender {
    fn new(known: OptionalCaller, peer: &WebhookPeer) -> WebhookSender {
        // A token that may only read counts as no authentication.
        let known = known.filter(|Extension(caller)| caller.scope >= AccessScope::Operate);
        let address = match peer {
            WebhookPeer::Tcp(peer) => peer.address.ip(),
            WebhookPeer::Socket(_) => IpAddr::from(Ipv4Addr::LOCALHOST),
        };
        WebhookSender {
            known_caller: known.map(|Extension(caller)| caller.engine_caller),
            network: client_network(address),
        }
    }
}

/// Returns the caller for the dispatcher. A signer got the secret from a person, but an agent on
/// this machine may have found it.
async fn resolve_caller(origin: Option<Caller>, peer: WebhookPeer) -> Caller {
    match (origin, peer) {
        (Some(origin), _) => origin,
        (None, WebhookPeer::Tcp(peer)) => identify_peer(peer).await,
        (None, WebhookPeer::Socket(peer)) => peer.caller_with_token(),
    }
}

/// Other end of the connection of a call.
enum WebhookPeer {
    Tcp(TcpPeer),
    /// The unix socket.
    Socket(PeerIdentity),
}

impl<S: Sync> FromRequestParts<S> for WebhookPeer {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<WebhookPeer, Infallible> {
        let socket = parts.extensions.get::<SocketPeer>();
        Ok(match parts.extensions.get::<TcpPeer>() {
            Some(peer) => WebhookPeer::Tcp(*peer),
            None => WebhookPeer::Socket(
                socket.map_or(PeerIdentity::UNTRUSTED, |socket| socket.identity),
            ),
        })
    }
}

struct ParsedWebhookPayload {
    event: Option<String>,
    text: String,
    json: Option<Value>,
}

impl ParsedWebhookPayload {
    fn parse(headers: &HeaderMap, body: &[u8]) -> Result<ParsedWebhookPayload, ProblemDetails> {
        let text = std::str::from_utf8(body)
            .map_err(|_| ProblemDetails::bad_request("the payload is not UTF-8 text"))?;
        let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.unwrap_or_default().split(';').next().unwrap_or_default();
        let kind = kind.trim().to_ascii_lowercase();
        let event = headers.get(EVENT_HEADER).and_then(|event| event.to_str().ok());
        let event = event.map(str::to_owned);
        // GitHub's default content type.
        let form = event.is_some() && kind == "application/x-www-form-urlencoded";
        let text = match form {
            true => {
                let mut pairs = url::form_urlencoded::parse(body);
                let found = pairs.find(|(name, _)| name == "payload");
                found.map(|(_, value)| value.into_owned()).unwrap_or_default()
            }
            false => text.to_owned(),
        };
        // An event of GitHub is JSON, whatever its content type says.
        let is_json =
            form || event.is_some() || kind == "application/json" || kind.ends_with("+json");
        let json = match is_json && !text.is_empty() {
            true => Some(serde_json::from_str(&text).map_err(|error| {
                ProblemDetails::bad_request(format!("the payload is not JSON: {error}"))
            })?),
            false => None,
        };
        Ok(ParsedWebhookPayload { event, text, json })
    }

    fn as_sent(&self) -> WebhookPayload<'_> {
        WebhookPayload { event: self.event.as_deref(), text: &self.text, json: self.json.as_ref() }
    }

    fn is_ping(&self) -> bool {
        self.event.as_deref() == Some(PING_EVENT)
    }
}

/// Returns the problem for an unauthorized call, regardless of the reason.
fn unsigned_problem() -> ProblemDetails {
    let detail = "no webhook accepts this call: it is not signed with the webhook's secret";
    ProblemDetails::new(StatusCode::UNAUTHORIZED, "unauthenticated", detail)
}

/// Decision about a call.
enum WebhookDecision {
    Ping,
    Ignored(String),
    Call(Box<WebhookCall>),
}

async fn webhook(
    State(app): State<SharedServerState>,
    Extension(permits): Extension<WebhookLimits>,
    known: OptionalCaller,
    peer: WebhookPeer,
    PathParams((agent, schedule)): PathParams<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ProblemDetails> {
    let sender = WebhookSender::new(known, &peer);
    let target = WebhookTarget::Schedule { agent: &agent, schedule: &schedule };
    let received =
        WebhookHttpRequest::read(&app, &permits, target, sender, (headers, body)).await?;
    let (origin, setup) = (received.known_caller, app.fleet_monitor.setup());
    // To hash and parse a large body takes long enough to delay other requests.
    let decision =
        tokio::task::spawn_blocking(move || decide_call(&setup, &received, &agent, &schedule));
    match decision
        .await
        .map_err(|_| ProblemDetails::internal_error("the call could not be processed"))??
    {
        WebhookDecision::Ping => Ok(Json(json!({ "pong": true })).into_response()),
        WebhookDecision::Ignored(why) => Ok(Json(json!({ "ignored": why })).into_response()),
        WebhookDecision::Call(call) => {
            // The process is looked up only for an accepted call, because the lookup is expensive.
            let origin = resolve_caller(origin, peer).await;
            let (code, reply) =
                job_reply(app.send_command_as(origin, DaemonCommand::Webhook(call)).await?)?;
            Ok((code, Json(reply)).into_response())
        }
    }
}

fn decide_call(
    setup: &DaemonSetup,
    received: &WebhookHttpRequest,
    agent: &str,
    schedule: &str,
) -> Result<WebhookDecision, ProblemDetails> {
    let webhook = match setup.webhook(agent, schedule) {
        Ok(webhook) => webhook,
        Err(refused) if received.known_caller.is_some() => return Err(refused.into()),
        // The reply to an unknown webhook is that to a wrong signature.
        Err(_) => return Err(unsigned_problem()),
    };
    let permission = received.authorize(setup, &webhook, &mut SignatureChecks::new());
    let Some(CallPermission { mac }) = permission else { return Err(unsigned_problem()) };
    // Nothing of an unauthorized call is parsed; the signature covers the raw bytes.
    let payload = ParsedWebhookPayload::parse(&received.headers, &received.body)?;
    let delivery = delivery_id(&received.headers)?;
    if payload.is_ping() {
        return Ok(WebhookDecision::Ping);
    }
    Ok(match webhook.build_call(&payload.as_sent(), delivery) {
        Err(why) => WebhookDecision::Ignored(why),
        Ok(call) => {
            WebhookDecision::Call(Box::new(check_payload_size(WebhookCall { mac, ..call })?))
        }
    })
}

/// Rejects a call whose payload for the agent is too long.
fn check_payload_size(call: WebhookCall) -> Result<WebhookCall, ProblemDetails> {
    if call.payload.len() <= WEBHOOK_BYTES_MAX {
        return Ok(call);
    }
    let detail = format!("the payload is longer than {WEBHOOK_BYTES_MAX} bytes");
    let problem = ProblemDetails::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", detail);
    Err(problem.with_hint("`fields` of the schedule selects the fields that the agent receives"))
}

/// Returns status code and body of the reply for a job or workflow run.
fn job_reply(answer: CommandReply) -> Result<(StatusCode, Value), ProblemDetails> {
    match answer {
        CommandReply::Job { job, status, waits } => {
            let reply = json!({ "job": job, "status": status, "waits": waits });
            Ok((StatusCode::ACCEPTED, reply))
        }
        CommandReply::Known { job, status } => {
            Ok((StatusCode::OK, json!({ "job": job, "status": status, "duplicate": true })))
        }
        CommandReply::WorkflowRun { run, status, is_new: true } => {
            Ok((StatusCode::ACCEPTED, json!({ "run": run, "status": status })))
        }
        // It is the run of an earlier delivery, or the active run of the same subject.
        CommandReply::WorkflowRun { run, status, is_new: false } => {
            Ok((StatusCode::OK, json!({ "run": run, "status": status, "duplicate": true })))
        }
        other => Err(ProblemDetails::internal_error(format!(
            "unexpected reply of the daemon: {other:?}"
        ))),
    }
}

/// Handles a GitHub event: triggers all schedules that listen to it.
async fn github(
    State(app): State<SharedServerState>,
    Extension(permits): Extension<WebhookLimits>,
    known: OptionalCaller,
    peer: WebhookPeer,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ProblemDetails> {
    let sender = WebhookSender::new(known, &peer);
    let target = WebhookTarget::GithubEvent;
    let received =
        WebhookHttpRequest::read(&app, &permits, target, sender, (headers, body)).await?;
    let (origin, setup) = (received.known_caller, app.fleet_monitor.setup());
    let decision = tokio::task::spawn_blocking(move || decide_github_event(&setup, &received));
    let GithubDecision { schedules: decisions, tells_of_messages } = decision
        .await
        .map_err(|_| ProblemDetails::internal_error("the call could not be processed"))??;
    if tells_of_messages {
        app.dispatcher.look_at_github();
    }
    let origin = resolve_caller(origin, peer).await;
    let mut code = StatusCode::OK;
    let mut replies = Vec::new();
    for (schedule, fate) in decisions {
        let mut reply = match fate {
            WebhookDecision::Ping => return Ok(Json(json!({ "pong": true })).into_response()),
            WebhookDecision::Ignored(why) => json!({ "ignored": why }),
            WebhookDecision::Call(call) => {
                match app.send_command_as(origin, DaemonCommand::Webhook(call)).await {
                    Ok(answer) => {
                        let (status, reply) = job_reply(answer)?;
                        // The reply is `202` if at least one job was created.
                        code = code.max(status);
                        reply
                    }
                    // The other schedules are still triggered.
                    Err(refused) => json!({ "refused": refused.message }),
                }
            }
        };
        reply["schedule"] = Value::from(schedule);
        replies.push(reply);
    }
    Ok((code, Json(json!({ "schedules": replies }))).into_response())
}

/// Decision about an event of GitHub.
struct GithubDecision {
    /// Decision for each schedule that listens to the event.
    schedules: Vec<(String, WebhookDecision)>,
    /// True if conversations may have new messages.
    tells_of_messages: bool,
}

/// Returns the decision about an event of GitHub, or the refusal of an unsigned call.
fn decide_github_event(
    setup: &DaemonSetup,
    received: &WebhookHttpRequest,
) -> Result<GithubDecision, ProblemDetails> {
    let mut signed = SignatureChecks::new();
    // A secret may belong to some of the schedules only.
    let permitted = setup.github_webhooks().into_iter().filter_map(|webhook| {
        let CallPermission { mac } = received.authorize(setup, &webhook, &mut signed)?;
        Some((webhook, mac))
    });
    let heard: Vec<_> = permitted.collect();
    let is_for_conversations = received.is_for_conversations(setup, &mut signed);
    if heard.is_empty() && !is_for_conversations {
        return Err(match received.known_caller {
            Some(_) => ProblemDetails::not_found("no schedule has GitHub `events`"),
            None => unsigned_problem(),
        });
    }
    let payload = ParsedWebhookPayload::parse(&received.headers, &received.body)?;
    if payload.event.is_none() {
        return Err(ProblemDetails::bad_request(format!("the header {EVENT_HEADER} is missing")));
    }
    // Nothing else of the event is used for them: the messages are read from GitHub.
    let is_message = |event: &str| MESSAGE_EVENTS.contains(&event);
    let tells_of_messages =
        is_for_conversations && payload.event.as_deref().is_some_and(is_message);
    let delivery = delivery_id(&received.headers)?;
    // A ping concerns the endpoint and not a schedule.
    if payload.is_ping() {
        let schedules = vec![(String::new(), WebhookDecision::Ping)];
        return Ok(GithubDecision { schedules, tells_of_messages });
    }
    let decisions = heard.into_iter().map(|(webhook, mac)| {
        let name = format!("{}/{}", webhook.agent.name, webhook.schedule.name);
        let fate = match webhook.build_call(&payload.as_sent(), delivery.clone()) {
            Err(why) => WebhookDecision::Ignored(why),
            Ok(call) => match check_payload_size(WebhookCall { mac, ..call }) {
                Ok(call) => WebhookDecision::Call(Box::new(call)),
                // A payload that is too long for one schedule must not keep it from the others.
                Err(problem) => WebhookDecision::Ignored(problem.detail),
            },
        };
        (name, fate)
    });
    Ok(GithubDecision { schedules: decisions.collect(), tells_of_messages })
}
