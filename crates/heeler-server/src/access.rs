//! Access control for requests over TCP: tokens, passwords, one-time login links, cookies.
//!
//! [`with_access_control`] checks every request: the Host must be allowed, the Origin must not be
//! another site, and a token or cookie must identify the caller. A request that changes state also
//! needs a CSRF token (from a browser) and must not come from a process of a run. `/hooks` is
//! authenticated by signatures instead.

mod access_control;
mod allowed_hosts;
mod cookie;
mod guard;
mod identity_cache;
mod login;
mod login_limiter;
mod password;
mod peer_caller;
mod socket_caller;

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;

use crate::server_state::SharedServerState;

pub use access_control::{AccessControl, WebEndpoint};
pub(crate) use guard::identify_peer;
pub use password::{PASSWORD_BYTES_MAX, PASSWORD_CHARS_MIN, PasswordError, hash_password};
pub(crate) use socket_caller::identify_socket_caller;

/// Adds the login routes and the access check for all routes.
///
/// Requests are counted in the same layer, because each layer costs every request some allocations.
pub(crate) fn with_access_control(
    router: Router<SharedServerState>,
    app: &SharedServerState,
) -> Router<SharedServerState> {
    router.merge(login::router()).layer(from_fn_with_state(Arc::clone(app), guard::guard_and_count))
}
