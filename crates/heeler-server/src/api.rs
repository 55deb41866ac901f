//! The API: `/api/v1`. Each noun is a module that says what its routes need.

mod access;
mod agents;
mod approvals;
mod daemon;
mod describe;
mod export;
mod fleet;
mod jobs;
mod paths;
mod schedules;
mod sessions;
pub(crate) mod tag;
mod workflows;

use std::sync::{Arc, LazyLock};

use axum::Json;
use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::get;
use heeler_model::Scope;
use heeler_query::told::{Done, JobTold, RunTold, Told};
use serde_json::Value;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;

use self::tag::Tagged;
use crate::app::{App, Served};
use crate::caller::Caller;
use crate::flights::{self, Flights};
use crate::live;
use crate::problem::Problem;
use crate::request::{Asker, keyed};
use crate::written::Written;

/// How many items a page has if nobody says otherwise.
const PAGE: usize = 20;

/// How many a page has at most.
const PAGE_MAX: usize = 100;

/// What a handler returns.
pub(crate) type Reply<T> = Result<Json<T>, Problem>;

/// What one returns that tells what the records say.
pub(crate) type Shown<T> = Result<Written<T>, Problem>;

/// The routes of one noun, by what a caller must be allowed.
#[derive(Default)]
pub(crate) struct Routes {
    pub(crate) read: OpenApiRouter<App>,
    /// Needs the same, and is told alike to all who may: those who ask at once share one read.
    pub(crate) shared: OpenApiRouter<App>,
    /// The same, of what takes as long as a log has lines: nobody else's read waits for its turn.
    pub(crate) shared_logs: OpenApiRouter<App>,
    pub(crate) operate: OpenApiRouter<App>,
    pub(crate) admin: OpenApiRouter<App>,
}

impl Routes {
    fn with(self, more: Routes) -> Routes {
        Routes {
            read: self.read.merge(more.read),
            shared: self.shared.merge(more.shared),
            shared_logs: self.shared_logs.merge(more.shared_logs),
            operate: self.operate.merge(more.operate),
            admin: self.admin.merge(more.admin),
        }
    }
}

/// Returns the routes of all nouns.
pub(crate) fn routes() -> Routes {
    let all = [
        access::routes(),
        fleet::routes(),
        agents::routes(),
        schedules::routes(),
        jobs::routes(),
        sessions::routes(),
        export::routes(),
        workflows::routes(),
        approvals::routes(),
        daemon::routes(),
        live::routes(),
    ];
    all.into_iter().fold(Routes::default(), Routes::with)
}

/// Returns the API and its description, for requests that carry their [`Caller`].
fn described() -> (Router<App>, OpenApi) {
    let Routes { mut read, mut shared, mut shared_logs, mut operate, mut admin } = routes();
    describe::needs(read.get_openapi_mut(), Scope::Read);
    describe::needs(shared.get_openapi_mut(), Scope::Read);
    describe::needs(shared_logs.get_openapi_mut(), Scope::Read);
    describe::needs(operate.get_openapi_mut(), Scope::Operate);
    describe::needs(admin.get_openapi_mut(), Scope::Admin);
    let needs = |scope| from_fn(move |caller, request, next| require(scope, caller, request, next));
    let together = || from_fn_with_state(Arc::<Flights<Tagged>>::default(), flights::shared);
    let all = OpenApiRouter::with_openapi(describe::document())
        .merge(read.route_layer(from_fn(tag::tagged)).route_layer(needs(Scope::Read)))
        .merge(shared.route_layer(together()))
        .merge(shared_logs.route_layer(together()))
        .merge(operate.route_layer(from_fn(keyed)).route_layer(needs(Scope::Operate)))
        .merge(
            admin
                .route_layer(from_fn(keyed))
                .route_layer(from_fn(tag::tagged))
                .route_layer(needs(Scope::Admin)),
        );
    OpenApiRouter::new().nest("/api/v1", all).split_for_parts()
}

/// Returns the API's description, as it is in the manual.
pub(crate) fn description() -> &'static Value {
    static DESCRIPTION: LazyLock<Value> =
        LazyLock::new(|| serde_json::to_value(described().1).expect("a description is JSON"));
    &DESCRIPTION
}

/// Returns the API, for requests that carry their [`Caller`].
pub(crate) fn router() -> Router<App> {
    let (router, _) = described();
    router
        .route("/api/v1/openapi.json", get(async || Json(description())))
        .method_not_allowed_fallback(no_method)
}

async fn require(
    needed: Scope,
    caller: Caller,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    caller.needs(needed)?;
    Ok(next.run(request).await)
}

async fn no_method() -> Problem {
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "usage", "the route has another method")
}

/// Returns how many items a page is to have.
fn limit(given: Option<usize>, usual: usize, most: usize) -> Result<usize, Problem> {
    match given.unwrap_or(usual) {
        limit if (1..=most).contains(&limit) => Ok(limit),
        limit => Err(Problem::usage(format!("limit is 1 to {most}, not {limit}"))),
    }
}

/// Says that the daemon answered what nobody asked.
fn unexpected(told: &Told) -> Problem {
    Problem::trouble(format!("the daemon answered something else: {told:?}"))
}

impl Served {
    /// Asks for something whose answer is a job.
    async fn job(&self, asker: &Asker, command: heeler_engine::Command) -> Reply<JobTold> {
        match self.order(asker, command).await?.into() {
            Told::Job(job) => Ok(Json(job)),
            other => Err(unexpected(&other)),
        }
    }

    /// Asks for something whose answer is that it is done.
    async fn done(&self, asker: &Asker, command: heeler_engine::Command) -> Reply<Done> {
        match self.order(asker, command).await?.into() {
            Told::Done(done) => Ok(Json(done)),
            other => Err(unexpected(&other)),
        }
    }

    /// Asks for something whose answer is a run of a workflow.
    async fn run(&self, asker: &Asker, command: heeler_engine::Command) -> Reply<RunTold> {
        match self.order(asker, command).await?.into() {
            Told::Run(run) => Ok(Json(run)),
            other => Err(unexpected(&other)),
        }
    }
}

#[cfg(test)]
mod tests;
