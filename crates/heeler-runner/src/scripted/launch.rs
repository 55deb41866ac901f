//! How the runner starts a scripted agent.

use camino::Utf8Path;
use heeler_model::run::{RunSpec, SessionStart};
use serde_json::Value as Json;

use super::Part;
use crate::process::{Arg, Launch};

/// Returns what to start. Flags are Claude's where Claude has such a flag. The steps are handed over
/// in memory, together with what the session's file may not hold: both may be secret.
pub(crate) fn launch(
    program: &Utf8Path,
    spec: &RunSpec,
    steps: &[Json],
    secrets: &[String],
    session: &SessionStart,
) -> Launch {
    let part = Part { steps: steps.to_vec(), secrets: secrets.to_vec() };
    let part = serde_json::to_vec(&part).expect("JSON is written to memory");
    let mut args = vec![text("play"), text("--script"), Arg::File(part)];
    let mut flag = |name: &str, value: String| args.extend([text(name), Arg::Text(value)]);
    flag("--home", spec.home.to_string());
    match session {
        SessionStart::Fresh { id } => flag("--session-id", id.to_string()),
        SessionStart::Resume { id } => flag("--resume", id.to_string()),
        SessionStart::Fork { source, id, at } => {
            flag("--resume", source.to_string());
            flag("--session-id", id.to_string());
            if let Some(at) = at {
                flag("--resume-session-at", at.to_string());
            }
        }
    }
    if let Some(turns) = spec.limits.max_turns {
        flag("--max-turns", turns.to_string());
    }
    if let Some(budget) = spec.limits.budget_usd {
        flag("--max-budget-usd", budget.to_string());
    }
    flag("--permission-prompt-tool", "stdio".to_owned());
    if matches!(session, SessionStart::Fork { .. }) {
        args.push(text("--fork-session"));
    }
    args.push(text("--include-partial-messages"));
    Launch { program: program.to_owned(), args, env: Vec::new() }
}

fn text(text: &str) -> Arg {
    Arg::Text(text.to_owned())
}
