//! Calls from outside: schedules of type `webhook`.
//!
//! Nobody logs in here: a call is signed with the secret of its schedule. Only callers who are known
//! otherwise (the unix socket, a token) may call without. What is wrong with a call is not told to
//! whoever has not signed it. Start at [`router`].

mod signature;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Extension, Json, Router};
use heeler_engine::{Answer, Call, CallSecret, Command, Origin, Setup, WEBHOOK_BYTES_MAX, Webhook};
use heeler_model::webhook::{PING, Sent};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::access::origin_of;
use crate::app::App;
use crate::caller::{Caller, Peer, Scope};
use crate::problem::Problem;
use crate::request::{Named, read_bytes};

/// The longest name of a delivery.
pub(crate) const DELIVERY_BYTES_MAX: usize = 256;

/// The longest body of a call; of GitHub's events only some fields are told, so they may be longer than
/// what an agent is told.
pub(crate) const CALL_BYTES_MAX: usize = 4 << 20;

/// How many calls are looked at at once; more wait.
pub(crate) const CALLS_AT_ONCE: usize = 8;

/// How long a call waits for its turn.
const TURN_WAIT: Duration = Duration::from_secs(5);

/// How many bodies are read at once.
const BODIES_AT_ONCE: usize = 64;

/// How often the log says of one schedule that it cannot be called: anybody may call.
const COMPLAINED_EVERY: Duration = Duration::from_secs(60 * 60);

/// How many schedules are remembered that the log spoke of; one more, and all are forgotten.
const COMPLAINTS_MAX: usize = 1_024;

/// Headers by which callers name a delivery, the first one that is there counts: that of Standard
/// Webhooks, which is signed, ours, GitHub's and GitLab's.
const DELIVERY_HEADERS: [&str; 4] =
    ["webhook-id", "heeler-delivery", "x-github-delivery", "x-gitlab-event-uuid"];

/// The header by which GitHub names an event.
const EVENT_HEADER: &str = "x-github-event";

/// Whoever is known otherwise.
type Known = Option<Extension<Caller>>;

/// Returns the routes of calls from outside.
pub(crate) fn router() -> Router<App> {
    Router::new()
        .route("/hooks/github", post(github))
        .route("/hooks/{agent}/{schedule}", post(webhook))
        .layer(Extension(Turns::new()))
}

/// Who may be read, and who may be looked at.
#[derive(Clone)]
struct Turns {
    reading: Arc<Semaphore>,
    looking: Arc<Semaphore>,
    complaints: Arc<Complaints>,
}

/// When the log last said of a schedule that it cannot be called.
#[derive(Default)]
struct Complaints(Mutex<HashMap<String, Instant>>);

impl Complaints {
    /// Says whether the log is to say it now.
    fn is_due(&self, schedule: &str, now: Instant) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < COMPLAINED_EVERY;
        if told.get(schedule).is_some_and(is_recent) {
            return false;
        }
        if told.len() >= COMPLAINTS_MAX {
            told.clear();
        }
        told.insert(schedule.to_owned(), now);
        true
    }
}

/// Whether a call is signed with a secret, by the secret: it may be long, and many schedules may have
/// the same one.
type Signed<'s> = HashMap<&'s str, bool>;

impl Turns {
    fn new() -> Turns {
        let [reading, looking] =
            [BODIES_AT_ONCE, CALLS_AT_ONCE].map(|most| Arc::new(Semaphore::new(most)));
        Turns { reading, looking, complaints: Arc::default() }
    }
}

/// Waits for a turn, but not long.
async fn turn(turns: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Problem> {
    let turn = tokio::time::timeout(TURN_WAIT, Arc::clone(turns).acquire_owned()).await;
    turn.ok().and_then(Result::ok).ok_or_else(|| {
        let detail = "too many calls are looked at already";
        Problem::new(StatusCode::TOO_MANY_REQUESTS, "too-many", detail).hint("call again later")
    })
}

/// A call as it came.
struct Received {
    headers: HeaderMap,
    body: Bytes,
    origin: Option<Origin>,
    now: jiff::Timestamp,
    complaints: Arc<Complaints>,
    _turn: OwnedSemaphorePermit,
}

impl Received {
    /// Reads a call, as soon as it is its turn.
    async fn read(
        app: &App,
        turns: &Turns,
        known: Known,
        headers: HeaderMap,
        body: Body,
    ) -> Result<Received, Problem> {
        // Whoever has signed nothing is not listened to for long.
        if known.is_none() && !signature::is_there(&headers) {
            return Err(unsigned());
        }
        let reading = turn(&turns.reading).await?;
        let body = read_bytes(body, CALL_BYTES_MAX).await?;
        drop(reading);
        let (turn, complaints) = (turn(&turns.looking).await?, Arc::clone(&turns.complaints));
        let origin = known.filter(|Extension(caller)| caller.scope >= Scope::Operate);
        let origin = origin.map(|Extension(caller)| caller.origin);
        Ok(Received { headers, body, origin, now: (app.now)(), complaints, _turn: turn })
    }

    /// Says whether a schedule hears this call.
    fn is_heard<'s>(
        &self,
        setup: &'s Setup,
        webhook: &Webhook<'s>,
        signed: &mut Signed<'s>,
    ) -> bool {
        if self.origin.is_some() {
            return true;
        }
        let missing = match setup.call_secret(webhook.rules) {
            CallSecret::Set(secret) => {
                let check = || signature::is_signed(secret, &self.headers, &self.body, self.now);
                return setup.takes_calls() && *signed.entry(secret).or_insert_with(check);
            }
            CallSecret::Unset => "its `secret_env` is not set",
            CallSecret::None => "it has no `secret_env`",
        };
        let schedule = format!("{}/{}", webhook.agent.name, webhook.schedule.name);
        if self.complaints.is_due(&schedule, Instant::now()) {
            tracing::warn!(schedule, "called from outside, and {missing}");
        }
        false
    }

    /// Returns what was sent.
    fn payload(&self) -> Result<Payload, Problem> {
        let text = std::str::from_utf8(&self.body)
            .map_err(|_| Problem::usage("the payload is not UTF-8 text"))?;
        let kind = self.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.unwrap_or_default().split(';').next().unwrap_or_default();
        let kind = kind.trim().to_ascii_lowercase();
        let event = self.headers.get(EVENT_HEADER).and_then(|event| event.to_str().ok());
        let event = event.map(str::to_owned);
        // GitHub sends it so unless it is told otherwise.
        let form = event.is_some() && kind == "application/x-www-form-urlencoded";
        let text = match form {
            true => {
                let mut pairs = url::form_urlencoded::parse(&self.body);
                let found = pairs.find(|(name, _)| name == "payload");
                found.map(|(_, value)| value.into_owned()).unwrap_or_default()
            }
            false => text.to_owned(),
        };
        let is_json =
            form || event.is_some() || kind == "application/json" || kind.ends_with("+json");
        let json = match is_json && !text.is_empty() {
            true => Some(
                serde_json::from_str(&text)
                    .map_err(|error| Problem::usage(format!("the payload is not JSON: {error}")))?,
            ),
            false => None,
        };
        Ok(Payload { event, text, json })
    }

    /// Returns what a caller calls its delivery.
    fn delivery(&self) -> Result<Option<String>, Problem> {
        let Some((name, value)) =
            DELIVERY_HEADERS.iter().find_map(|name| Some((name, self.headers.get(*name)?)))
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
}

/// Returns who asks the dispatcher. Whoever can sign was given the secret by a person; an agent on this
/// machine may have found it.
async fn asks(origin: Option<Origin>, peer: Option<Extension<Peer>>) -> Origin {
    match (origin, peer) {
        (Some(origin), _) => origin,
        (None, Some(Extension(peer))) => origin_of(peer).await,
        (None, None) => Origin::Person,
    }
}

/// What was sent.
struct Payload {
    event: Option<String>,
    text: String,
    json: Option<Value>,
}

impl Payload {
    fn sent(&self) -> Sent<'_> {
        Sent { event: self.event.as_deref(), text: &self.text, json: self.json.as_ref() }
    }

    fn is_ping(&self) -> bool {
        self.event.as_deref() == Some(PING)
    }
}

/// Says that a call is not heard, whatever the reason.
fn unsigned() -> Problem {
    let detail = "there is no webhook here that takes this call: it is not signed with its secret";
    Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", detail)
}

/// What becomes of a call.
enum Fate {
    Ping,
    Ignored(String),
    Call(Box<Call>),
}

async fn webhook(
    State(app): State<App>,
    Extension(turns): Extension<Turns>,
    known: Known,
    peer: Option<Extension<Peer>>,
    Named((agent, schedule)): Named<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let received = Received::read(&app, &turns, known, headers, body).await?;
    let (origin, setup) = (received.origin, app.outlook.setup());
    let judged = tokio::task::spawn_blocking(move || judge(&setup, &received, &agent, &schedule));
    match judged.await.map_err(|_| Problem::trouble("the call could not be looked at"))?? {
        Fate::Ping => Ok(Json(json!({ "pong": true })).into_response()),
        Fate::Ignored(why) => Ok(Json(json!({ "ignored": why })).into_response()),
        Fate::Call(call) => {
            let origin = asks(origin, peer).await;
            let (code, reply) = started(app.ask_of(origin, Command::Webhook(call)).await?)?;
            Ok((code, Json(reply)).into_response())
        }
    }
}

fn judge(setup: &Setup, received: &Received, agent: &str, schedule: &str) -> Result<Fate, Problem> {
    let webhook = match setup.webhook(agent, schedule) {
        Ok(webhook) if received.is_heard(setup, &webhook, &mut Signed::new()) => webhook,
        Err(refused) if received.origin.is_some() => return Err(refused.into()),
        _ => return Err(unsigned()),
    };
    let (payload, delivery) = (received.payload()?, received.delivery()?);
    if payload.is_ping() {
        return Ok(Fate::Ping);
    }
    Ok(match webhook.call(&payload.sent(), delivery) {
        Err(why) => Fate::Ignored(why),
        Ok(call) => Fate::Call(Box::new(checked(call)?)),
    })
}

/// Refuses a call of which an agent would be told too much.
fn checked(call: Call) -> Result<Call, Problem> {
    if call.payload.len() <= WEBHOOK_BYTES_MAX {
        return Ok(call);
    }
    let detail = format!("the payload is longer than {WEBHOOK_BYTES_MAX} bytes");
    let problem = Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", detail);
    Err(problem.hint("`fields` of the schedule names what the agent is told"))
}

/// Returns what a caller is told of a job.
fn started(answer: Answer) -> Result<(StatusCode, Value), Problem> {
    match answer {
        Answer::Job { job, status, waits } => {
            let reply = json!({ "job": job, "status": status, "waits": waits });
            Ok((StatusCode::ACCEPTED, reply))
        }
        Answer::Known { job, status } => {
            Ok((StatusCode::OK, json!({ "job": job, "status": status, "duplicate": true })))
        }
        other => Err(Problem::trouble(format!("the daemon answered something else: {other:?}"))),
    }
}

/// Starts whatever an event of GitHub's is to start.
async fn github(
    State(app): State<App>,
    Extension(turns): Extension<Turns>,
    known: Known,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let received = Received::read(&app, &turns, known, headers, body).await?;
    let (origin, setup) = (received.origin, app.outlook.setup());
    let judged = tokio::task::spawn_blocking(move || judge_event(&setup, &received));
    let fates = judged.await.map_err(|_| Problem::trouble("the call could not be looked at"))??;
    let origin = asks(origin, peer).await;
    let mut code = StatusCode::OK;
    let mut replies = Vec::new();
    for (schedule, fate) in fates {
        let mut reply = match fate {
            Fate::Ping => return Ok(Json(json!({ "pong": true })).into_response()),
            Fate::Ignored(why) => json!({ "ignored": why }),
            Fate::Call(call) => match app.ask_of(origin, Command::Webhook(call)).await {
                Ok(answer) => {
                    let (told, reply) = started(answer)?;
                    code = code.max(told);
                    reply
                }
                // The others are started all the same.
                Err(refused) => json!({ "refused": refused.message }),
            },
        };
        reply["schedule"] = Value::from(schedule);
        replies.push(reply);
    }
    Ok((code, Json(json!({ "schedules": replies }))).into_response())
}

/// Says what becomes of an event for each schedule that hears it.
fn judge_event(setup: &Setup, received: &Received) -> Result<Vec<(String, Fate)>, Problem> {
    let mut heard = setup.github_webhooks();
    let mut signed = Signed::new();
    heard.retain(|webhook| received.is_heard(setup, webhook, &mut signed));
    if heard.is_empty() {
        return Err(match received.origin {
            Some(_) => Problem::not_found("no schedule has `events` of GitHub's"),
            None => unsigned(),
        });
    }
    let payload = received.payload()?;
    if payload.event.is_none() {
        return Err(Problem::usage(format!("the header {EVENT_HEADER} is missing")));
    }
    let delivery = received.delivery()?;
    if payload.is_ping() {
        return Ok(vec![(String::new(), Fate::Ping)]);
    }
    let fates = heard.iter().map(|webhook| {
        let name = format!("{}/{}", webhook.agent.name, webhook.schedule.name);
        let fate = match webhook.call(&payload.sent(), delivery.clone()) {
            Err(why) => Fate::Ignored(why),
            Ok(call) => match checked(call) {
                Ok(call) => Fate::Call(Box::new(call)),
                Err(problem) => Fate::Ignored(problem.detail),
            },
        };
        (name, fate)
    });
    Ok(fates.collect())
}
