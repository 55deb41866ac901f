//! Live streams: server-sent events of the fleet, of jobs, sessions, runs of workflows and the log.
//!
//! Ids are the numbers of rows, which are what they are in the file: whoever connects again with
//! `Last-Event-ID` goes on exactly where they were, also with another daemon. One thread follows each
//! thing that is looked at, however many look. Start at [`Live`].

mod client;
mod event;
mod fleet;
mod hub;
mod impatient;
mod log;
mod threads;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream::{Stream, unfold};
use heeler_engine::Outlook;
use serde::Deserialize;
use tokio::sync::watch;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::client::Client;
use self::event::{Form, Place};
use self::fleet::{Pulses, Watcher};
use self::hub::Hub;
pub(crate) use self::impatient::Impatient;
use self::log::LogReader;
use self::threads::Followed;
use crate::api::Routes;
use crate::app::App;
use crate::problem::Problem;
use crate::request::{Asked, Named};

/// How many things are followed at once; each has a thread or two.
pub(crate) const HUBS_MAX: usize = 256;

/// How many read the daemon's log at once; each looks at it by itself.
pub(crate) const LOG_READERS_MAX: usize = 32;

/// How many lines of the daemon's log a stream begins with.
const LOG_LINES: usize = 100;

/// How many it may begin with.
const LOG_LINES_MAX: usize = 10_000;

/// The header by which a browser says where it was.
const LAST_EVENT_ID: &str = "last-event-id";

/// What is looked at by whom.
pub struct Live {
    /// Counts the changes of the state.
    commits: Arc<AtomicU64>,
    hubs: Mutex<HashMap<String, Weak<Hub>>>,
    pulses: Mutex<Weak<Pulses>>,
    clients: Arc<AtomicUsize>,
    log_readers: Arc<AtomicUsize>,
    ending: watch::Sender<bool>,
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("clients", &self.clients).finish_non_exhaustive()
    }
}

/// Counts a client until it is dropped.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Counted {
        count.fetch_add(1, Ordering::SeqCst);
        Counted(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Live {
    /// Begins to count the changes of a daemon's state.
    pub fn new(outlook: &Outlook) -> Arc<Live> {
        let commits = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&commits);
        outlook.on_change(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        Arc::new(Live {
            commits,
            hubs: Mutex::default(),
            pulses: Mutex::default(),
            clients: Arc::default(),
            log_readers: Arc::default(),
            ending: watch::Sender::new(false),
        })
    }

    /// Ends all streams, so that browsers look for the next daemon.
    pub(crate) fn end(&self) {
        self.ending.send_replace(true);
    }

    /// Returns how many streams are open.
    pub(crate) fn clients(&self) -> usize {
        self.clients.load(Ordering::SeqCst)
    }

    /// Returns the hub of something, a new one if nobody looks at it yet.
    fn hub(&self, app: &App, key: String, followed: Followed) -> Result<Arc<Hub>, Problem> {
        let mut hubs = self.hubs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hub) = hubs.get(&key).and_then(Weak::upgrade).filter(|hub| !hub.is_broken()) {
            return Ok(hub);
        }
        hubs.retain(|_, hub| hub.strong_count() > 0);
        if hubs.len() >= HUBS_MAX {
            return Err(too_many(&format!("{HUBS_MAX} things are looked at already, the most")));
        }
        let hub = threads::start(followed, app.records.clone(), Arc::clone(&self.commits));
        let hub = hub.map_err(no_thread)?;
        hubs.insert(key, Arc::downgrade(&hub));
        Ok(hub)
    }

    fn pulses(&self, app: &App) -> Result<Arc<Pulses>, Problem> {
        let mut known = self.pulses.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pulses) = known.upgrade() {
            return Ok(pulses);
        }
        let pulses = fleet::start(app.records.clone(), Arc::clone(&self.commits), app.now);
        let pulses = pulses.map_err(no_thread)?;
        *known = Arc::downgrade(&pulses);
        Ok(pulses)
    }

    fn count(&self) -> Counted {
        Counted::new(&self.clients)
    }
}

fn too_many(detail: &str) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too-many", detail).hint("close some, try again")
}

fn no_thread(error: io::Error) -> Problem {
    Problem::trouble(format!("cannot start a thread: {error}"))
}

/// Returns the routes of streams.
pub(crate) fn routes() -> Routes {
    let read = OpenApiRouter::new()
        .routes(routes!(fleet_stream))
        .routes(routes!(job_stream))
        .routes(routes!(session_stream))
        .routes(routes!(run_stream))
        .routes(routes!(log_stream));
    Routes { read, ..Routes::default() }
}

/// Where to begin, and what to send.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StreamParams {
    /// The number of the first row; 0 if left out. A header `Last-Event-ID` counts instead.
    from: Option<u64>,
    /// `html` for rows as elements of a page.
    #[serde(rename = "as")]
    #[param(inline)]
    form: Option<FormParam>,
}

#[derive(Debug, Clone, Copy, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
enum FormParam {
    Json,
    Html,
}

impl StreamParams {
    fn form(&self) -> Form {
        match self.form {
            Some(FormParam::Html) => Form::Html,
            Some(FormParam::Json) | None => Form::Json,
        }
    }

    /// Returns the first row that is wanted.
    fn place(&self, headers: &HeaderMap) -> Result<Place, Problem> {
        match last_event_id(headers)? {
            Some(id) => match id.parse::<Place>() {
                Ok(seen) => Ok(seen.after()),
                Err(_) => Err(Problem::usage("`Last-Event-ID` is no id of a row")),
            },
            None => Ok(Place::of_line(self.from.unwrap_or(0))),
        }
    }
}

/// Returns what a browser saw last; it sends an empty id if it saw none.
fn last_event_id(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let Some(id) = headers.get(LAST_EVENT_ID) else { return Ok(None) };
    match id.to_str() {
        Ok("") => Ok(None),
        Ok(id) => Ok(Some(id)),
        Err(_) => Err(Problem::usage("`Last-Event-ID` is no id of a row")),
    }
}

/// Sends events until there are no more.
fn reply(events: impl Stream<Item = Result<Bytes, io::Error>> + Send + 'static) -> Response {
    let headers = [
        (CONTENT_TYPE.as_str(), "text/event-stream"),
        (CACHE_CONTROL.as_str(), "no-store"),
        // What stands before us must not collect them.
        ("x-accel-buffering", "no"),
    ];
    (headers, Body::from_stream(events)).into_response()
}

fn rows_of(hub: Arc<Hub>, app: &App, form: Form, from: Place) -> Response {
    let client = Client::new(hub, form, from, app.live.ending.subscribe(), app.live.count());
    reply(unfold(client, |mut client| async move {
        let bytes = client.next().await?;
        Some((Ok(bytes), client))
    }))
}

/// Follow the fleet.
///
/// An event `fleet` now and whenever its figures change, at most four a second.
#[utoipa::path(
    get, path = "/fleet/stream", tag = "live",
    responses(
        (status = OK, content_type = "text/event-stream", body = heeler_query::live::FleetPulse),
        (status = "default", body = Problem),
    ),
)]
async fn fleet_stream(State(app): State<App>) -> Result<Response, Problem> {
    let (ending, counted) = (app.live.ending.subscribe(), app.live.count());
    let watcher = Watcher::new(app.live.pulses(&app)?, ending, counted);
    Ok(reply(unfold(watcher, |mut watcher| async move {
        let bytes = watcher.next().await?;
        Some((Ok(bytes), watcher))
    })))
}

/// Follow a job.
///
/// `row` with the row's number as id, `delta` with text that is still being said, `status` when the job
/// comes further, `large` instead of a row of more than 1 MiB, `lagged` where deltas were left out, and
/// `end` when the job is over and all was sent.
#[utoipa::path(
    get, path = "/jobs/{id}/stream", tag = "live", params(("id" = String, Path), StreamParams),
    responses(
        (status = OK, content_type = "text/event-stream", body = String),
        (status = "default", body = Problem),
    ),
)]
async fn job_stream(
    State(app): State<App>,
    Named(id): Named<String>,
    Asked(asked): Asked<StreamParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let from = asked.place(&headers)?;
    let job = app.read(move |records| records.job_id(&id)).await?;
    let hub = app.live.hub(&app, format!("job {job}"), Followed::Job(job))?;
    Ok(rows_of(hub, &app, asked.form(), from))
}

/// Follow a session.
///
/// `row` with the row's number in the session's log as id. It has no end: a session can always be gone
/// on with.
#[utoipa::path(
    get, path = "/sessions/{id}/stream", tag = "live", params(("id" = String, Path), StreamParams),
    responses(
        (status = OK, content_type = "text/event-stream", body = String),
        (status = "default", body = Problem),
    ),
)]
async fn session_stream(
    State(app): State<App>,
    Named(id): Named<String>,
    Asked(asked): Asked<StreamParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let from = asked.place(&headers)?;
    let session = app.read(move |records| records.session_id(&id)).await?;
    let hub = app.live.hub(&app, format!("session {session}"), Followed::Session(session))?;
    Ok(rows_of(hub, &app, asked.form(), from))
}

/// Follow a run of a workflow.
///
/// `row` with the event's number as id, `status` when the run comes further, and `end`.
#[utoipa::path(
    get, path = "/runs/{id}/stream", tag = "live", params(("id" = String, Path), StreamParams),
    responses(
        (status = OK, content_type = "text/event-stream", body = heeler_query::live::RunEvent),
        (status = "default", body = Problem),
    ),
)]
async fn run_stream(
    State(app): State<App>,
    Named(id): Named<String>,
    Asked(asked): Asked<StreamParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let from = asked.place(&headers)?;
    let run = app.read(move |records| records.run_id(&id)).await?;
    let hub = app.live.hub(&app, format!("run {run}"), Followed::Run(run))?;
    // What happened in a run is no row of a transcript.
    Ok(rows_of(hub, &app, Form::Json, from))
}

/// Where to begin in the log.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct LogParams {
    /// How many of the last lines to begin with, at most 10000; 100 if left out. A header
    /// `Last-Event-ID` counts instead.
    lines: Option<usize>,
}

/// Follow the daemon's log.
///
/// `line` with the line as text; its id stays what it is when the log is set aside for a new one.
/// `lagged` where the log that was read last is gone.
#[utoipa::path(
    get, path = "/daemon/log/stream", tag = "live", params(LogParams),
    responses(
        (status = OK, content_type = "text/event-stream", body = String),
        (status = "default", body = Problem),
    ),
)]
async fn log_stream(
    State(app): State<App>,
    Asked(asked): Asked<LogParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let lines = asked.lines.unwrap_or(LOG_LINES);
    if lines > LOG_LINES_MAX {
        return Err(Problem::usage(format!("lines is at most {LOG_LINES_MAX}, not {lines}")));
    }
    let mark = match last_event_id(&headers)? {
        None => None,
        Some(id) => Some(
            id.parse()
                .map_err(|_| Problem::usage("`Last-Event-ID` is no id of a line of the log"))?,
        ),
    };
    let reading = Counted::new(&app.live.log_readers);
    if app.live.log_readers.load(Ordering::SeqCst) > LOG_READERS_MAX {
        return Err(too_many(&format!("{LOG_READERS_MAX} read the log already, the most")));
    }
    let path = app.records.dir().logs().join(heeler_engine::logs::DAEMON_LOG);
    let counted = [reading, app.live.count()];
    let reader = LogReader::new(path, mark, lines, app.live.ending.subscribe(), counted);
    Ok(reply(unfold(reader, |mut reader| async move {
        let bytes = reader.next().await?;
        Some((Ok(bytes), reader))
    })))
}
