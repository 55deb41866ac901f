//! `heeler session move`: moves the files of a session to another host. Start at [`run`].

use std::time::Duration;

use clap::Args;
use heeler_engine::{DaemonCommand, SessionOperation};
use heeler_model::SessionId;
use heeler_model::session_move::SessionMoveState;
use heeler_query::session_moves::{SessionMoveSummary, move_text};
use heeler_store::{SessionMoveRow, StoreReader};
use serde_json::json;

use crate::context::CommandContext;
use crate::daemon;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::global_args::GlobalArgs;
use crate::output;
use crate::shared_args;

/// Help footer of `session move`.
pub(crate) const ABOUT: &str = "Examples:
  heeler session move sess-1a2b --to beta
  heeler session move sess-1a2b --to beta --detach
  heeler session move sess-1a2b --cancel

For fleets with several hosts. The conversation moves: Heeler's transcript and the native session, as
`session export` writes them, without the fleet's secrets. Snapshots and files of the working directory
stay where they are. The next job of the session is executed on the other host.

Until the move is complete, the session is on its host, and jobs that want to use it wait. A move that takes
longer than 10 minutes is given up. Ctrl-C ends only the wait. At most 256 MiB are moved.
Exit codes: 0 moved, 1 given up, 4 no such session or host, 5 refused.";

/// Interval at which the progress is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Arguments of `session move`.
#[derive(Args)]
pub(crate) struct SessionMoveArgs {
    /// Session ID or unique prefix
    #[arg(add = shared_args::sessions())]
    id: String,
    /// Name of the host
    #[arg(long, value_name = "HOST", required_unless_present = "cancel")]
    to: Option<String>,
    /// Give up the move that is under way
    #[arg(long, conflicts_with = "to")]
    cancel: bool,
    /// Return at once; the move continues
    #[arg(long, conflicts_with = "cancel")]
    detach: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `session move`.
pub(crate) fn run(global: &GlobalArgs, args: &SessionMoveArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    context.migrate_database()?;
    let session = context.find_session(&args.id)?.id;
    let order = match &args.to {
        Some(to) => SessionOperation::Move { session: session.clone(), to: to.clone() },
        None => SessionOperation::CancelMove { session: session.clone() },
    };
    let command = DaemonCommand::Session { order, by: context.caller_name() };
    let answer = daemon::request(&context, &command)?;
    if args.detach || args.cancel {
        return daemon::print_answer(&answer, args.json);
    }
    let moved = watch(&context, &session, args)?;
    let (source, target) = (&moved.source, &moved.target);
    if moved.state == SessionMoveState::Ended {
        let message = format!("session {session} {}", move_text(&moved));
        let failure = CommandFailure::message(FailureCode::Failed, message);
        return Err(failure.hint(format!("heeler host show {target}")));
    }
    if args.json {
        let summary = SessionMoveSummary::from(&moved);
        return Ok(output::print_json(&json!({ "move": summary }))?);
    }
    output::print_line(output::one_line(&format!("{session} is on host `{target}`")))?;
    let kept = format!("snapshots and files of its working directory stay on host `{source}`");
    Ok(output::print_note(&kept)?)
}

/// Waits for the end of a move, and prints its progress.
fn watch(
    context: &CommandContext,
    session: &SessionId,
    args: &SessionMoveArgs,
) -> CommandResult<SessionMoveRow> {
    let reader = StoreReader::open(&context.dir()?)?;
    let mut shown = None;
    loop {
        let moved = reader.session_move(session).map_err(anyhow::Error::from)?;
        let Some(moved) = moved else {
            let message = format!("the move of session {session} is not on record");
            return Err(CommandFailure::message(FailureCode::Failed, message));
        };
        if !moved.state.is_open() {
            return Ok(moved);
        }
        if shown != Some(moved.state) && !args.json {
            output::print_note(&format!("session {session} {}", move_text(&moved)))?;
        }
        shown = Some(moved.state);
        std::thread::sleep(POLL_INTERVAL);
    }
}
