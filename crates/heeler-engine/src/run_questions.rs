//! Questions of running agents, read from their run directories, and the delivery of answers.
//!
//! An open question is `asks/<id>.json`; `asks/<id>.closed` holds its outcome. An answer is stored
//! before it is delivered, and delivered again, also by later daemons, until the run reports the
//! outcome or has ended. Start at [`RunQuestionFiles::read`] and [`delivery_outcome`].

use camino::Utf8Path;
use heeler_model::run::{
    AgentQuestion, ClosedQuestion, ControlReplyBody, QuestionAnswer as RunAnswer, file,
};
use heeler_model::{Approval, ApprovalStatus, error_chain, question};
use heeler_store::is_run_alive;
use serde_json::Value as Json;

use crate::fault::{self, FaultPoint};
use heeler_control::ControlError;

/// Subdirectory of a run directory that holds its questions.
pub(crate) const QUESTIONS_FOLDER: &str = "asks";

/// Maximum number of question files read at a time. A run cannot have that many open ones.
const READ_MAX: usize = 1024;

/// Open and closed questions of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct RunQuestionFiles {
    pub(crate) open: Vec<AgentQuestion>,
    pub(crate) closed: Vec<ClosedQuestion>,
}

impl RunQuestionFiles {
    /// Reads the questions of a run directory. Unreadable files are skipped and logged.
    ///
    /// Open questions are read first, so a question that closes in the meantime is in both lists,
    /// never in neither.
    pub(crate) fn read(folder: &Utf8Path) -> RunQuestionFiles {
        let folder = folder.join(QUESTIONS_FOLDER);
        let open = read_files(&folder, ".json");
        let closed: Vec<ClosedQuestion> = read_files(&folder, ".closed");
        let is_open = |ask: &AgentQuestion| !closed.iter().any(|closed| closed.ask.id == ask.id);
        RunQuestionFiles { open: open.into_iter().filter(is_open).collect(), closed }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.closed.is_empty()
    }
}

fn read_files<T: serde::de::DeserializeOwned>(folder: &Utf8Path, ending: &str) -> Vec<T> {
    let Ok(entries) = folder.read_dir_utf8() else { return Vec::new() };
    let names = entries.flatten().map(|entry| entry.file_name().to_owned());
    let names = names.filter(|name| name.ends_with(ending) && !name.starts_with('.'));
    // One unreadable question must not hide the others.
    let read = |name: String| match heeler_control::read_run_file(&folder.join(&name)) {
        Ok(content) => content,
        Err(error) => {
            tracing::warn!(reason = error_chain(&error), "a question cannot be read");
            None
        }
    };
    names.take(READ_MAX).filter_map(read).collect()
}

/// Converts a stored approval to the answer for the run.
pub(crate) fn answer_from_approval(approval: &Approval) -> Result<RunAnswer, String> {
    let detail = approval.detail.as_ref().unwrap_or(&Json::Null);
    match approval.status {
        ApprovalStatus::Approved => {
            let given = detail.get("updatedInput").cloned();
            let input = match (&approval.response, given) {
                // An input that a person edited replaces the one that the answer would fill in.
                (_, Some(input)) => Some(input),
                (Some(words), None) if approval.kind.expects_text() => {
                    Some(question::fill_answers(&detail["input"], words)?)
                }
                _ => None,
            };
            Ok(RunAnswer::Allow { input })
        }
        _ => {
            let message = approval.response.clone();
            let message = message.unwrap_or_else(|| "the user said no".to_owned());
            Ok(RunAnswer::Deny { message, interrupt: false })
        }
    }
}

/// Outcome of delivering an answer.
#[derive(Debug, PartialEq)]
pub(crate) enum DeliveryOutcome {
    /// The run has received it.
    Done,
    /// The question already had another outcome, described by the text.
    TooLate(String),
    /// The run has ended, or cannot receive the answer now.
    Unavailable,
}

/// Returns the outcome of an attempt to deliver an answer.
pub(crate) fn delivery_outcome(
    folder: &Utf8Path,
    ask: &str,
    reply: Result<ControlReplyBody, ControlError>,
) -> DeliveryOutcome {
    match reply {
        Ok(ControlReplyBody::Refused { reason }) => {
            // A refusal for a question that is still open is temporary.
            let is_open = folder.join(format!("{QUESTIONS_FOLDER}/{ask}.json")).exists();
            if is_open { DeliveryOutcome::Unavailable } else { DeliveryOutcome::TooLate(reason) }
        }
        Ok(_) => {
            fault::reach(FaultPoint::Delivered);
            DeliveryOutcome::Done
        }
        // The runner is starting, or has ended.
        Err(ControlError::NotStarted { .. } | ControlError::Gone { .. }) => {
            DeliveryOutcome::Unavailable
        }
        Err(error) => {
            tracing::debug!(reason = error_chain(&error), "a runner cannot receive an answer yet");
            DeliveryOutcome::Unavailable
        }
    }
}

/// Returns true if the run has not ended.
pub(crate) fn may_receive_answers(folder: &Utf8Path) -> bool {
    // A result of a live run proves nothing: an agent can create the file. Without a start file the
    // run may still be starting.
    let has = |name: &str| folder.join(name).exists();
    is_run_alive(folder) || !(has(file::RESULT) || has(file::STARTED))
}

#[cfg(test)]
mod tests {
    use heeler_model::run::{PROTOCOL, QuestionOutcome};
    use heeler_model::{ApprovalId, ApprovalKind};
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;

    fn ask(id: &str) -> AgentQuestion {
        AgentQuestion {
            protocol: PROTOCOL,
            id: id.to_owned(),
            at: Timestamp::UNIX_EPOCH,
            kind: "permission".to_owned(),
            tool: "Bash".to_owned(),
            input: json!({"command": "ls"}),
            until: None,
        }
    }

    #[test]
    fn a_question_that_has_ended_is_not_open_and_what_cannot_be_read_is_left_out() {
        let temp = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(temp.path()).unwrap();
        assert!(RunQuestionFiles::read(folder).is_empty());
        let asks = folder.join(QUESTIONS_FOLDER);
        std::fs::create_dir(&asks).unwrap();
        let closed = ClosedQuestion {
            protocol: PROTOCOL,
            ask: ask("b"),
            at: Timestamp::UNIX_EPOCH,
            how: QuestionOutcome::Withdrawn,
            by: None,
            text: None,
            updated_input: None,
        };
        let write = |name: &str, text: String| std::fs::write(asks.join(name), text).unwrap();
        write("a.json", serde_json::to_string(&ask("a")).unwrap());
        write("b.json", serde_json::to_string(&ask("b")).unwrap());
        write("b.closed", serde_json::to_string(&closed).unwrap());
        write("c.json", "{".to_owned());
        write(".d.json", serde_json::to_string(&ask("d")).unwrap());
        let read = RunQuestionFiles::read(folder);
        assert_eq!(read, RunQuestionFiles { open: vec![ask("a")], closed: vec![closed] });
    }

    #[test]
    fn a_run_is_told_what_is_on_record() {
        let id = ApprovalId::mint(1);
        let asked = |kind, status, response: Option<&str>, detail: Json| Approval {
            status,
            response: response.map(str::to_owned),
            detail: Some(detail),
            ..Approval::new_pending(id.clone(), "job", "Bash", kind, Timestamp::UNIX_EPOCH)
        };
        let (may, which) = (ApprovalKind::Permission, ApprovalKind::Question);
        let (yes, no) = (ApprovalStatus::Approved, ApprovalStatus::Rejected);
        let plain = json!({"tool": "Bash", "input": {"command": "ls"}});
        let allowed = answer_from_approval(&asked(may, yes, Some("fine"), plain.clone()));
        assert_eq!(allowed, Ok(RunAnswer::Allow { input: None }));
        let mut changed = plain.clone();
        changed["updatedInput"] = json!({"command": "pwd"});
        let allowed = answer_from_approval(&asked(may, yes, None, changed));
        assert_eq!(allowed, Ok(RunAnswer::Allow { input: Some(json!({"command": "pwd"})) }));
        let message =
            |said: Option<&str>| match answer_from_approval(&asked(may, no, said, plain.clone())) {
                Ok(RunAnswer::Deny { message, interrupt: false }) => message,
                other => panic!("{other:?}"),
            };
        assert_eq!((&*message(Some("why")), &*message(None)), ("why", "the user said no"));
        let input = json!({"questions": [{"question": "Which?", "options": [{"label": "red"}]}]});
        let question = json!({"tool": "AskUserQuestion", "input": input});
        let told = answer_from_approval(&asked(which, yes, Some("1"), question));
        let Ok(RunAnswer::Allow { input: Some(input) }) = told else { panic!("{told:?}") };
        assert_eq!(input["answers"], json!({"Which?": "red"}));
    }
}
