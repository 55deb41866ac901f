//! The route `/metrics`.

use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use heeler_engine::{CommandReply, DaemonCommand};

use crate::caller::RequestCaller;
use crate::problem::ProblemDetails;
use crate::server_state::SharedServerState;

/// Returns the route `/metrics`. Requests must carry their [`RequestCaller`].
pub(crate) fn router() -> Router<SharedServerState> {
    Router::new().route("/metrics", get(metrics))
}

/// Returns the metrics, if the config enables them.
async fn metrics(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
) -> Result<Response, ProblemDetails> {
    let setup = app.fleet_monitor.setup();
    if !setup.loaded.fleets.first().is_some_and(|fleet| fleet.metrics) {
        let problem = ProblemDetails::not_found("metrics are off");
        return Err(problem.with_hint("`metrics: true` in the config turns them on"));
    }
    let CommandReply::Status(status) = app.send_command(&caller, DaemonCommand::Status).await?
    else {
        return Err(ProblemDetails::internal_error("unexpected reply of the daemon"));
    };
    let figures = app.read(|records| records.metrics()).await?;
    let page =
        app.metrics.render((app.clock)(), &figures, &status, app.live_streams.client_count());
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response())
}
