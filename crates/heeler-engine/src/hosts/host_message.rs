//! Messages between hosts, as the database holds them.
//!
//! Hosts of neighbouring releases read each other's messages, so fields are only added. Start at
//! [`ForwardedCommand`].

use std::time::Duration;

use heeler_model::ApprovalId;
use serde::{Deserialize, Serialize};

use crate::caller::Caller;
use crate::command::{CommandReply, DaemonCommand, DaemonCommandError, IdempotencyKey};
use crate::run_questions::RawQuestionFile;

/// Interval between two signs of life of the leader. Its lease is four times as long.
pub(super) const LEAD_BEAT_INTERVAL: Duration = Duration::from_millis(750);

/// Interval between two signs of life of a host that does not lead.
pub(super) const STANDBY_BEAT_INTERVAL: Duration = Duration::from_secs(1);

/// Shortest time between two signs of life, however many hints the server gives.
pub(super) const BEAT_PAUSE: Duration = Duration::from_millis(50);

/// Kind of a report with the result of a run.
pub(super) const EXIT_REPORT: &str = "exit";

/// Kind of a report with the questions of a run.
pub(super) const QUESTIONS_REPORT: &str = "questions";

/// A command that a host passes on to the leader.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct ForwardedCommand {
    /// Identity of the calling process, as its host found it.
    pub(super) caller: Caller,
    pub(super) command: DaemonCommand,
    #[serde(default)]
    pub(super) key: Option<IdempotencyKey>,
}

/// The leader's reply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ForwardedReply {
    Done(Box<CommandReply>),
    Refused(DaemonCommandError),
}

impl ForwardedReply {
    pub(super) fn new(answer: Result<CommandReply, DaemonCommandError>) -> ForwardedReply {
        match answer {
            Ok(reply) => ForwardedReply::Done(Box::new(reply)),
            Err(refused) => ForwardedReply::Refused(refused),
        }
    }

    pub(super) fn into_result(self) -> Result<CommandReply, DaemonCommandError> {
        match self {
            ForwardedReply::Done(reply) => Ok(*reply),
            ForwardedReply::Refused(refused) => Err(refused),
        }
    }
}

/// The questions of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct QuestionsReport {
    pub(super) files: Vec<RawQuestionFile>,
    /// Approval that was delivered to the run.
    #[serde(default)]
    pub(super) delivered: Option<ApprovalId>,
}

#[cfg(test)]
mod tests {
    use heeler_model::RunId;

    use super::*;
    use crate::command::DaemonCommandErrorKind;

    #[test]
    fn messages_keep_their_form() {
        let run = RunId::mint(jiff::Timestamp::UNIX_EPOCH, [1; 10]);
        let command = ForwardedCommand {
            caller: Caller::Run(run),
            command: DaemonCommand::Reload,
            key: None,
        };
        let text = serde_json::to_string(&command).unwrap();
        assert_eq!(
            text,
            format!(r#"{{"caller":{{"run":"{run}"}},"command":"reload","key":null}}"#)
        );
        assert_eq!(serde_json::from_str::<ForwardedCommand>(&text).unwrap(), command);
        let person = r#"{"caller":"person","command":"status"}"#;
        let person: ForwardedCommand = serde_json::from_str(person).unwrap();
        assert_eq!((person.caller, person.command), (Caller::Person, DaemonCommand::Status));
        let refused = DaemonCommandError::new(DaemonCommandErrorKind::Busy, "no");
        for answer in [Ok(CommandReply::Reloaded { changes: Vec::new() }), Err(refused)] {
            let text = serde_json::to_string(&ForwardedReply::new(answer.clone())).unwrap();
            let reply: ForwardedReply = serde_json::from_str(&text).unwrap();
            assert_eq!(reply.into_result(), answer);
        }
    }
}
