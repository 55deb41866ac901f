//! Caller of a request on the unix socket: a person by the kernel's facts, a run or hook by its
//! capability, or a program by its token. Start at [`identify_socket_caller`].

use axum::extract::{Extension, Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use heeler_engine::{Caller, PeerIdentity, run_of_capability};
use heeler_model::{AccessScope, RunId, secret_hash};

use super::guard::{authenticate_token, record_token_use};
use crate::caller::{RequestCaller, SocketPeer};
use crate::problem::ProblemDetails;
use crate::server_state::SharedServerState;

/// Attaches the caller to a request.
pub(crate) async fn identify_socket_caller(
    State(app): State<SharedServerState>,
    Extension(peer): Extension<SocketPeer>,
    mut request: Request,
    next: Next,
) -> Response {
    match resolve_caller(&app, &peer, request.headers()).await {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    }
}

async fn resolve_caller(
    app: &SharedServerState,
    peer: &SocketPeer,
    headers: &HeaderMap,
) -> Result<RequestCaller, ProblemDetails> {
    if let Some(text) = capability_text(headers) {
        // A capability of another fleet says nothing here: a fleet may run in an agent of another.
        if let Some(holder) = verify_capability(app, text).await? {
            let holder = app.dispatcher.holder_in_turn(peer.identity, holder);
            return Ok(run_caller(peer.identity, holder));
        }
    } else if headers.contains_key(AUTHORIZATION) {
        let Some((identity, _)) = authenticate_token(app, headers).await? else {
            let detail = "the token is not valid";
            return Err(ProblemDetails::new(StatusCode::UNAUTHORIZED, "unauthenticated", detail));
        };
        record_token_use(app, &identity).await;
        return Ok(RequestCaller {
            name: identity.caller_name(),
            scope: identity.scope(),
            engine_caller: peer.identity.caller_with_token(),
            csrf_token: None,
        });
    }
    let engine_caller = peer.identity.caller();
    let scope = match engine_caller {
        Caller::Person => AccessScope::Admin,
        _ => AccessScope::Read,
    };
    Ok(RequestCaller { name: peer.user_name.clone(), scope, engine_caller, csrf_token: None })
}

/// Returns the text of the header that has the form of a capability.
fn capability_text(headers: &HeaderMap) -> Option<&str> {
    let (scheme, text) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let is_capability = scheme.eq_ignore_ascii_case("bearer") && run_of_capability(text).is_some();
    is_capability.then_some(text)
}

/// Returns the run or hook that a capability belongs to, if it is one of this fleet.
async fn verify_capability(
    app: &SharedServerState,
    text: &str,
) -> Result<Option<Caller>, ProblemDetails> {
    let Some(run) = run_of_capability(text) else { return Ok(None) };
    if app.dispatcher.is_hook_capability(run, text) {
        return Ok(Some(Caller::Hook(run)));
    }
    let hash = secret_hash(text);
    let is_valid = app.read(move |records| {
        // Hashes are compared, so the time of the comparison tells nothing about the secret.
        Ok(records.reader()?.run_capability(run)?.is_some_and(|known| known == hash))
    });
    Ok(is_valid.await?.then_some(Caller::Run(run)))
}

fn run_caller(peer: PeerIdentity, holder: Caller) -> RequestCaller {
    let name = |run: RunId| format!("run {run}");
    let (name, scope) = match holder {
        Caller::Run(run) | Caller::Hook(run) => (name(run), AccessScope::Operate),
        Caller::Person | Caller::Unknown => ("unknown".to_owned(), AccessScope::Read),
    };
    let engine_caller = peer.caller_with_capability(holder);
    RequestCaller { name, scope, engine_caller, csrf_token: None }
}
