//! Routes of the live streams.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream::{Stream, unfold};
use heeler_query::job_feed::RowPosition;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::event::RowFormat;
use super::fleet_stats::FleetStatsSubscriber;
use super::hub::StreamHub;
use super::hub_feeder::FollowTarget;
use super::log_stream::LogStreamReader;
use super::stream_count::StreamCountGuard;
use super::subscriber::StreamSubscriber;
use super::{LOG_READERS_MAX, too_many};
use crate::api::ApiRoutes;
use crate::extractors::{PathParams, QueryParams};
use crate::problem::ProblemDetails;
use crate::server_state::SharedServerState;

/// Lines of the daemon's log at the start of a stream, by default.
const LOG_LINES: usize = 100;

/// Most lines of the daemon's log at the start of a stream.
const LOG_LINES_MAX: usize = 10_000;

/// Header in which a browser sends the ID of the last event it received.
const LAST_EVENT_ID: &str = "last-event-id";

pub(crate) fn routes() -> ApiRoutes {
    let read = OpenApiRouter::new()
        .routes(routes!(fleet_stream))
        .routes(routes!(job_stream))
        .routes(routes!(session_stream))
        .routes(routes!(run_stream))
        .routes(routes!(log_stream));
    ApiRoutes { read, ..ApiRoutes::default() }
}

/// Start and format of a row stream.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RowStreamParams {
    /// Number of the first row; default 0. A header `Last-Event-ID` takes precedence.
    from: Option<u64>,
    /// `html` for rows as HTML elements.
    #[serde(rename = "as")]
    #[param(inline)]
    form: Option<RowFormatParam>,
}

#[derive(Debug, Clone, Copy, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
enum RowFormatParam {
    Json,
    Html,
}

impl RowStreamParams {
    fn row_format(&self) -> RowFormat {
        match self.form {
            Some(RowFormatParam::Html) => RowFormat::Html,
            Some(RowFormatParam::Json) | None => RowFormat::Json,
        }
    }

    /// Returns the position of the first requested row.
    fn start_position(&self, headers: &HeaderMap) -> Result<RowPosition, ProblemDetails> {
        match last_event_id(headers)? {
            Some(id) => match id.parse::<RowPosition>() {
                Ok(seen) => Ok(seen.after()),
                Err(_) => {
                    Err(ProblemDetails::bad_request("`Last-Event-ID` is not the ID of a row"))
                }
            },
            None => Ok(RowPosition::line_start(self.from.unwrap_or(0))),
        }
    }
}

/// Returns the ID of the last event a browser received. A browser that received none sends an empty
/// ID.
fn last_event_id(headers: &HeaderMap) -> Result<Option<&str>, ProblemDetails> {
    let Some(id) = headers.get(LAST_EVENT_ID) else { return Ok(None) };
    match id.to_str() {
        Ok("") => Ok(None),
        Ok(id) => Ok(Some(id)),
        Err(_) => Err(ProblemDetails::bad_request("`Last-Event-ID` is not the ID of a row")),
    }
}

/// Returns the response for a stream of events.
fn event_stream_response(
    events: impl Stream<Item = Result<Bytes, io::Error>> + Send + 'static,
) -> Response {
    let headers = [
        (CONTENT_TYPE.as_str(), "text/event-stream"),
        (CACHE_CONTROL.as_str(), "no-store"),
        // A reverse proxy must not buffer the events.
        ("x-accel-buffering", "no"),
    ];
    (headers, Body::from_stream(events)).into_response()
}

fn stream_rows(
    hub: Arc<StreamHub>,
    app: &SharedServerState,
    form: RowFormat,
    from: RowPosition,
) -> Response {
    let client = StreamSubscriber::new(
        hub,
        form,
        from,
        app.live_streams.ending.subscribe(),
        app.live_streams.count_client(),
    );
    event_stream_response(unfold(client, |mut client| async move {
        let bytes = client.next().await?;
        Some((Ok(bytes), client))
    }))
}

/// Follow the fleet.
///
/// Sends an event `fleet` at once and when the counts change, at most four per second.
#[utoipa::path(
    get, path = "/fleet/stream", tag = "live",
    responses(
        (status = OK, content_type = "text/event-stream", body = heeler_query::live_updates::FleetActivityUpdate),
        (status = "default", body = ProblemDetails),
    ),
)]
async fn fleet_stream(State(app): State<SharedServerState>) -> Result<Response, ProblemDetails> {
    let (ending, counted) = (app.live_streams.ending.subscribe(), app.live_streams.count_client());
    let watcher = FleetStatsSubscriber::new(
        app.live_streams.fleet_stats_publisher(&app.records, app.clock)?,
        ending,
        counted,
    );
    Ok(event_stream_response(unfold(watcher, |mut watcher| async move {
        let bytes = watcher.next().await?;
        Some((Ok(bytes), watcher))
    })))
}

/// Follow a job.
///
/// Events: `row` with the row number as ID, `delta` with text of an unfinished message, `status`
/// when the job's status changes, `large` instead of a row of more than 1 MiB, `lagged` where
/// deltas were dropped, and `end` when the job has ended and all rows were sent.
#[utoipa::path(
    get, path = "/jobs/{id}/stream", tag = "live", params(("id" = String, Path), RowStreamParams),
    responses(
        (status = OK, content_type = "text/event-stream", body = String),
        (status = "default", body = ProblemDetails),
    ),
)]
async fn job_stream(
    State(app): State<SharedServerState>,
    PathParams(id): PathParams<String>,
    QueryParams(params): QueryParams<RowStreamParams>,
    headers: HeaderMap,
) -> Result<Response, ProblemDetails> {
    let from = params.start_position(&headers)?;
    // Short forms of an ID are resolved first, so that all clients of a job share one hub.
    let job = app.read(move |records| records.job_id(&id)).await?;
    let hub =
        app.live_streams.hub_for(&app.records, format!("job {job}"), FollowTarget::Job(job))?;
    Ok(stream_rows(hub, &app, params.row_format(), from))
}

/// Follow a session.
///
/// Events: `row` with the row's number in the session's transcript as ID. The stream does not end:
/// a session can always be continued.
#[utoipa::path(
    get, path = "/sessions/{id}/stream", tag = "live", params(("id" = String, Path), RowStreamParams),
    responses(
        (status = OK, content_type = "text/event-stream", body = String),
        (status = "default", body = ProblemDetails),
    ),
)]
async fn session_stream(
    State(app): State<SharedServerState>,
    PathParams(id): PathParams<String>,
    QueryParams(params): QueryParams<RowStreamParams>,
    headers: HeaderMap,
) -> Result<Response, ProblemDetails> {
    let from = params.start_position(&headers)?;
    let session = app.read(move |records| records.session_id(&id)).await?;
    let hub = app.live_streams.hub_for(
        &app.records,
        format!("session {session}"),
        FollowTarget::Session(session),
    )?;
    Ok(stream_rows(hub, &app, params.row_format(), from))
}

/// Follow a workflow run.
///
/// Events: `row` with the event's number as ID, `status` when the run's status changes, and `end`.
#[utoipa::path(
    get, path = "/runs/{id}/stream", tag = "live", params(("id" = String, Path), RowStreamParams),
    responses(
        (status = OK, content_type = "text/event-stream", body = heeler_query::live_updates::WorkflowRunEvent),
        (status = "default", body = ProblemDetails),
    ),
)]
async fn run_stream(
    State(app): State<SharedServerState>,
    PathParams(id): PathParams<String>,
    QueryParams(params): QueryParams<RowStreamParams>,
    headers: HeaderMap,
) -> Result<Response, ProblemDetails> {
    let from = params.start_position(&headers)?;
    let run = app.read(move |records| records.workflow_run_id(&id)).await?;
    let hub =
        app.live_streams.hub_for(&app.records, format!("run {run}"), FollowTarget::Run(run))?;
    // Events of a run are not transcript rows, so there is no HTML form.
    Ok(stream_rows(hub, &app, RowFormat::Json, from))
}

/// Start position in the log.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct LogStreamParams {
    /// Number of last lines to start with, at most 10000; default 100. A header `Last-Event-ID`
    /// takes precedence.
    lines: Option<usize>,
}

/// Follow the daemon's log.
///
/// Events: `line` with the text of a line; its ID stays valid when the log is rotated. `lagged` if
/// the file that was read last no longer exists.
#[utoipa::path(
    get, path = "/daemon/log/stream", tag = "live", params(LogStreamParams),
    responses(
        (status = OK, content_type = "text/event-stream", body = String),
        (status = "default", body = ProblemDetails),
    ),
)]
async fn log_stream(
    State(app): State<SharedServerState>,
    QueryParams(params): QueryParams<LogStreamParams>,
    headers: HeaderMap,
) -> Result<Response, ProblemDetails> {
    let lines = params.lines.unwrap_or(LOG_LINES);
    if lines > LOG_LINES_MAX {
        return Err(ProblemDetails::bad_request(format!(
            "lines must be at most {LOG_LINES_MAX}, not {lines}"
        )));
    }
    let cursor = match last_event_id(&headers)? {
        None => None,
        Some(id) => Some(id.parse().map_err(|_| {
            ProblemDetails::bad_request("`Last-Event-ID` is not the ID of a log line")
        })?),
    };
    // Counted before the check, so that concurrent requests cannot pass the limit together.
    let reading = StreamCountGuard::new(&app.live_streams.log_readers);
    if app.live_streams.log_readers.load(Ordering::SeqCst) > LOG_READERS_MAX {
        return Err(too_many(&format!(
            "{LOG_READERS_MAX} clients read the log, which is the limit"
        )));
    }
    let path = app.records.dir().logs().join(heeler_engine::logs::DAEMON_LOG);
    let counted = [reading, app.live_streams.count_client()];
    let reader =
        LogStreamReader::new(path, cursor, lines, app.live_streams.ending.subscribe(), counted);
    Ok(event_stream_response(unfold(reader, |mut reader| async move {
        let bytes = reader.next().await?;
        Some((Ok(bytes), reader))
    })))
}
