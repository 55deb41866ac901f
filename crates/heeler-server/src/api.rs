//! The API: `/api/v1`. Each noun is a module that says what its routes need.

mod access;
mod daemon;
mod jobs;

use axum::Json;
use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::get;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;

use crate::app::App;
use crate::caller::{Caller, Scope};
use crate::live;
use crate::problem::Problem;

/// What a handler returns.
pub(crate) type Reply<T> = Result<Json<T>, Problem>;

#[derive(OpenApi)]
#[openapi(info(
    title = "Heeler",
    description = "Everything that the command line can do, over HTTP.",
    version = "1"
))]
struct Document;

/// The routes of one noun, by what a caller must be allowed.
#[derive(Default)]
pub(crate) struct Routes {
    pub(crate) read: OpenApiRouter<App>,
    pub(crate) operate: OpenApiRouter<App>,
    pub(crate) admin: OpenApiRouter<App>,
}

impl Routes {
    fn with(self, more: Routes) -> Routes {
        Routes {
            read: self.read.merge(more.read),
            operate: self.operate.merge(more.operate),
            admin: self.admin.merge(more.admin),
        }
    }
}

/// Returns the API, for requests that carry their [`Caller`].
pub(crate) fn router() -> Router<App> {
    let all = [access::routes(), jobs::routes(), daemon::routes(), live::routes()];
    let Routes { read, operate, admin } = all.into_iter().fold(Routes::default(), Routes::with);
    let needs = |scope| from_fn(move |caller, request, next| require(scope, caller, request, next));
    let all = OpenApiRouter::with_openapi(Document::openapi())
        .merge(read.route_layer(needs(Scope::Read)))
        .merge(operate.route_layer(needs(Scope::Operate)))
        .merge(admin.route_layer(needs(Scope::Admin)));
    let (router, document) = OpenApiRouter::new().nest("/api/v1", all).split_for_parts();
    router
        .route("/api/v1/openapi.json", get(async move || Json(document)))
        .method_not_allowed_fallback(no_method)
}

async fn require(
    needed: Scope,
    caller: Caller,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    if caller.scope < needed {
        let detail = format!("{} may not do this: it needs the scope {needed}", caller.by);
        return Err(Problem::new(StatusCode::FORBIDDEN, "not-allowed", detail));
    }
    Ok(next.run(request).await)
}

async fn no_method() -> Problem {
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "usage", "the route has another method")
}
