//! Forks that an agent program makes of its own session, instead of reading the conversation as text.
//!
//! The transcript of the source names the program's own session, and each result of a turn may name
//! the program's own ID of the turn. A program forks only a session of its own, and only at the end of
//! a turn. If it cannot, the conversation is handed over as text. Start at [`find_native_fork`].

use heeler_config::RuntimeType;
use heeler_model::job_row::{JobRow, JobRowKind, RowSpeaker};
use heeler_model::message::{ID_BYTES_MAX, parse_row};
use heeler_model::run::{RunSpec, SessionStart};
use heeler_model::{NATIVE_AGENT_KEY, NATIVE_SESSION_KEY, NATIVE_SESSION_SUBTYPE};
use heeler_transcript::{DiskError, TranscriptEntry, TranscriptScanner};
use serde_json::Value as Json;
use uuid::Uuid;

use crate::program_rows::NATIVE_TURN_KEY;
use crate::session;

/// Subtype of the row that says how a session was forked.
pub(crate) const FORK_SUBTYPE: &str = "fork";

/// Fork to make, and what to say in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NativeFork {
    pub(crate) point: NativeForkPoint,
    /// Prompt without the conversation, which the fork knows.
    pub(crate) prompt: String,
}

/// End of a turn in a program's own session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NativeForkPoint {
    /// Program's own ID of the session.
    pub(crate) session: String,
    /// Program's own ID of the last turn that the fork contains, if the program has such IDs.
    pub(crate) turn: Option<String>,
    /// The session has no later messages.
    pub(crate) is_at_end: bool,
}

impl NativeForkPoint {
    /// Returns true if programs of a runtime can fork here.
    fn suits(&self, runtime: RuntimeType) -> bool {
        match runtime {
            RuntimeType::Codex => self.turn.is_some(),
            // ACP names no turns, so the fork contains all of the session.
            RuntimeType::Acp => self.is_at_end,
            // Claude forks its sessions by their entries, and Qwen Code is not asked to.
            RuntimeType::Sdk
            | RuntimeType::Cli
            | RuntimeType::Scripted
            | RuntimeType::Command
            | RuntimeType::Qwen => false,
        }
    }
}

/// Returns the point at which a program with this name may fork its own session for a run. `None` if
/// the run is no fork, if the session is another program's, or if the point is within a turn.
pub(crate) fn find_native_fork(
    spec: &RunSpec,
    agent: &str,
) -> Result<Option<NativeForkPoint>, DiskError> {
    let SessionStart::Fork { source, at, .. } = &spec.session.start else { return Ok(None) };
    let Some(log) = session::find_log(spec, source) else { return Ok(None) };
    let mut search = ForkPointSearch::new(*at);
    for entry in TranscriptScanner::open(&log)? {
        let TranscriptEntry::Record(record) = entry? else { continue };
        let Some(row) = parse_row(&record.text).map(JobRow::new) else { continue };
        search.add_row(&row);
    }
    Ok(search.finish(agent).filter(|point| point.suits(spec.runtime)))
}

/// Search for the end of the turn that contains a message.
#[derive(Debug, Default)]
struct ForkPointSearch {
    /// Last message that the fork contains; `None` if it contains everything.
    at: Option<Uuid>,
    /// The message has not come yet. False from the beginning if the fork contains everything.
    is_before: bool,
    /// Agent and ID of the native session, as of the fork point.
    native: Option<(String, String)>,
    /// End of the last turn that the fork contains.
    end: Option<TurnEndFound>,
    /// Messages after that end.
    has_more: bool,
}

#[derive(Debug)]
struct TurnEndFound {
    turn: Option<String>,
}

impl ForkPointSearch {
    fn new(at: Option<Uuid>) -> ForkPointSearch {
        ForkPointSearch { at, is_before: at.is_some(), ..ForkPointSearch::default() }
    }

    fn add_row(&mut self, row: &JobRow) {
        // The end of the turn has come; what follows is not part of the fork.
        let is_complete = self.at.is_some() && self.end.is_some();
        match row.kind() {
            JobRowKind::System { subtype: NATIVE_SESSION_SUBTYPE } if !is_complete => {
                let text = |key: &str| short_text(&row.as_json()[key]);
                self.native = text(NATIVE_AGENT_KEY).zip(text(NATIVE_SESSION_KEY));
            }
            JobRowKind::TurnResult(_) if !is_complete && !self.is_before => {
                let turn = short_text(&row.as_json()[NATIVE_TURN_KEY]);
                (self.end, self.has_more) = (Some(TurnEndFound { turn }), false);
            }
            _ if is_message(row) && !self.is_before => {
                // A message before the end belongs to the same turn, or to a later one.
                self.has_more = true;
                if !is_complete && self.at.is_some() {
                    self.native = None;
                }
            }
            _ => {}
        }
        self.is_before &= row.uuid() != self.at;
    }

    fn finish(self, agent: &str) -> Option<NativeForkPoint> {
        let (by, session) = self.native?;
        let TurnEndFound { turn } = self.end?;
        // A fork of everything with messages after the last turn ends within a turn.
        let is_within_turn = self.at.is_none() && self.has_more;
        let point = NativeForkPoint { session, turn, is_at_end: !self.has_more };
        (by == agent && !is_within_turn).then_some(point)
    }
}

fn is_message(row: &JobRow) -> bool {
    matches!(row.speaker(), RowSpeaker::User | RowSpeaker::Agent | RowSpeaker::Tool)
        && !row.is_aside()
}

fn short_text(value: &Json) -> Option<String> {
    let text = value.as_str()?;
    (!text.is_empty() && text.len() <= ID_BYTES_MAX).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use heeler_model::native_session_row;
    use serde_json::json;

    use super::*;

    fn uuid(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    fn message(kind: &str, number: u128) -> Json {
        let content = json!([{ "type": "text", "text": "hi" }]);
        json!({ "type": kind, "uuid": uuid(number), "message": { "role": kind, "content": content } })
    }

    fn turn(first: u128, id: &str) -> Vec<Json> {
        let result = json!({ "type": "result", "subtype": "success", "native_turn": id });
        vec![message("user", first), message("assistant", first + 1), result]
    }

    #[track_caller]
    fn find(rows: &[Json], at: Option<Uuid>, agent: &str) -> Option<NativeForkPoint> {
        let mut search = ForkPointSearch::new(at);
        rows.iter().for_each(|row| search.add_row(&JobRow::new(row.clone())));
        search.finish(agent)
    }

    fn point(session: &str, turn: &str, is_at_end: bool) -> Option<NativeForkPoint> {
        let turn = Some(turn.to_owned());
        Some(NativeForkPoint { session: session.to_owned(), turn, is_at_end })
    }

    #[test]
    fn a_session_is_forked_at_the_end_of_the_turn_of_a_message() {
        let mut rows = vec![native_session_row("codex", "s")];
        rows.extend(turn(1, "t1"));
        rows.push(native_session_row("codex", "s"));
        rows.extend(turn(3, "t2"));
        assert_eq!(find(&rows, None, "codex"), point("s", "t2", true));
        assert_eq!(find(&rows, Some(uuid(2)), "codex"), point("s", "t1", false));
        assert_eq!(find(&rows, Some(uuid(4)), "codex"), point("s", "t2", true));
        assert_eq!(find(&rows, None, "gemini"), None);
        assert_eq!(find(&rows, Some(uuid(9)), "codex"), None);
    }

    #[test]
    fn a_point_within_a_turn_is_none_at_which_a_program_forks() {
        let mut rows = vec![native_session_row("codex", "s")];
        rows.extend(turn(1, "t1"));
        assert_eq!(find(&rows, Some(uuid(1)), "codex"), None, "its answer follows");
        rows.push(message("user", 5));
        assert_eq!(find(&rows, Some(uuid(5)), "codex"), None, "the turn has not ended");
        assert_eq!(find(&rows, None, "codex"), None, "the fork would lack the last message");
    }

    #[test]
    fn a_later_session_of_another_program_does_not_count_for_an_earlier_point() {
        let mut rows = vec![native_session_row("codex", "s")];
        rows.extend(turn(1, "t1"));
        rows.push(native_session_row("codex", "lost and begun again"));
        rows.extend(turn(3, "t2"));
        assert_eq!(find(&rows, Some(uuid(2)), "codex"), point("s", "t1", false));
        assert_eq!(find(&rows, Some(uuid(4)), "codex"), point("lost and begun again", "t2", true));
    }
}
