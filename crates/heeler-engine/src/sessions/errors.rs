//! Errors that all operations on sessions share.

use std::error::Error;

use heeler_model::{SessionId, error_chain};

use crate::command::{DaemonCommandError, DaemonCommandErrorKind};

pub(super) fn internal_error(error: &dyn Error) -> DaemonCommandError {
    DaemonCommandError::new(DaemonCommandErrorKind::Trouble, error_chain(error))
}

pub(super) fn session_not_found(session: &SessionId) -> DaemonCommandError {
    let refused = DaemonCommandError::new(
        DaemonCommandErrorKind::NotFound,
        format!("there is no session {session}"),
    );
    refused.with_hint("heeler session list")
}
