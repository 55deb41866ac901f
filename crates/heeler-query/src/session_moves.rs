//! Moves of sessions between hosts, as people see them. Start at [`SessionMoveSummary`].

use heeler_model::session_move::SessionMoveState;
use heeler_store::SessionMoveRow;
use serde::Serialize;
use utoipa::ToSchema;

/// Move of a session to another host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionMoveSummary {
    /// Session.
    pub session: String,
    /// Host from which it moves.
    pub source: String,
    /// Host to which it moves.
    pub target: String,
    /// State: `packing`, `placing`, `placed`, `done` or `ended`.
    pub state: String,
    /// Bytes that the source has shipped.
    pub bytes: u64,
    /// Seconds until it is given up; absent when it is over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
    /// Reason for which the session stayed on its host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl From<&SessionMoveRow> for SessionMoveSummary {
    fn from(moved: &SessionMoveRow) -> SessionMoveSummary {
        SessionMoveSummary {
            session: moved.session.to_string(),
            source: moved.source.clone(),
            target: moved.target.clone(),
            state: moved.state.to_string(),
            bytes: moved.bytes,
            seconds_left: moved.state.is_open().then_some(moved.seconds_left),
            reason: moved.reason.clone(),
        }
    }
}

/// Returns the progress of a move as a sentence without its subject, the session.
pub fn move_text(moved: &SessionMoveRow) -> String {
    let SessionMoveRow { source, target, bytes, .. } = moved;
    match moved.state {
        SessionMoveState::Packing => {
            format!(
                "moves from host `{source}` to `{target}`: `{source}` has shipped {bytes} bytes"
            )
        }
        SessionMoveState::Placing => {
            format!("moves from host `{source}` to `{target}`: `{target}` places {bytes} bytes")
        }
        SessionMoveState::Placed => {
            format!("moves from host `{source}` to `{target}`: `{target}` has placed it")
        }
        SessionMoveState::Done => format!("has moved from host `{source}` to `{target}`"),
        SessionMoveState::Ended => {
            let reason = moved.reason.as_deref().unwrap_or("the move was given up");
            format!("stays on host `{source}`: {reason}")
        }
    }
}
