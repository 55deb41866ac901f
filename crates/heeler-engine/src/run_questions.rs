//! Questions of running agents, read from their run directories, and the delivery of answers.
//!
//! An open question is `asks/<id>.json`; `asks/<id>.closed` holds its outcome. An answer is stored
//! before it is delivered, and delivered again, also by later daemons, until the run reports the
//! outcome or has ended. A file counts only with the signature of the run's runner. Start at
//! [`RunQuestionFiles::read`] and [`delivery_outcome`].

use std::io;

use camino::Utf8Path;
use heeler_model::run::file::{self, RunFileParseError};
use heeler_model::run::{
    AgentQuestion, ClosedQuestion, ControlReplyBody, QuestionAnswer as RunAnswer, QuestionFileKind,
    QuestionProof, ResultPublicKey,
};
use heeler_model::{ALLOWED_ALWAYS, Approval, ApprovalStatus, RunId, error_chain, question};
use heeler_store::is_run_alive;
use heeler_transcript::{set_file_aside, untrusted_file};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use thiserror::Error;

use crate::fault::{self, FaultPoint};
use heeler_control::ControlError;

/// Subdirectory of a run directory that holds its questions.
pub(crate) const QUESTIONS_FOLDER: &str = "asks";

/// Maximum number of question files read at a time. A run cannot have that many open ones.
const READ_MAX: usize = 1024;

/// Maximum number of refused files that a message names.
const NAMED_MAX: usize = 10;

/// A file of a question, not yet accepted.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct QuestionFile<T> {
    name: String,
    content: T,
    proof: QuestionProof,
}

/// Files of a run's questions. An agent can write such files, so only those that
/// [`RunQuestionFiles::accept`] returns count.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct RunQuestionFiles {
    open: Vec<QuestionFile<AgentQuestion>>,
    closed: Vec<QuestionFile<ClosedQuestion>>,
}

/// Open and closed questions that a runner has asked.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct RunQuestionList {
    pub(crate) open: Vec<AgentQuestion>,
    pub(crate) closed: Vec<ClosedQuestion>,
    /// Names of files that the run's runner did not write.
    pub(crate) refused: Vec<String>,
}

impl RunQuestionFiles {
    /// Reads the questions of a run directory. Unreadable files are skipped and logged.
    ///
    /// Open questions are read first, so a question that closes in the meantime is in both lists,
    /// never in neither.
    pub(crate) fn read(folder: &Utf8Path) -> RunQuestionFiles {
        let folder = folder.join(QUESTIONS_FOLDER);
        let open = read_files(&folder, QuestionFileKind::Open);
        let closed = read_files(&folder, QuestionFileKind::Closed);
        RunQuestionFiles { open, closed }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.closed.is_empty()
    }

    /// Returns the questions of the run with this key. Without a key, its runner is of an earlier
    /// release, or the run was adopted, and no file is signed.
    pub(crate) fn accept(&self, key: Option<&ResultPublicKey>) -> RunQuestionList {
        let mut refused = Vec::new();
        let closed = accept_files(&self.closed, key, |closed| &closed.ask.id, &mut refused);
        let open = accept_files(&self.open, key, |ask| &ask.id, &mut refused);
        let is_open = |ask: &AgentQuestion| !closed.iter().any(|closed| closed.ask.id == ask.id);
        RunQuestionList { open: open.into_iter().filter(is_open).collect(), closed, refused }
    }
}

/// A question's file as it is on disk, with its signature.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RawQuestionFile {
    name: String,
    text: String,
}

/// Reads the question files of a run for another host, which checks them.
pub(crate) fn read_raw_files(folder: &Utf8Path) -> Vec<RawQuestionFile> {
    let folder = folder.join(QUESTIONS_FOLDER);
    let Ok(entries) = folder.read_dir_utf8() else { return Vec::new() };
    let names = entries.flatten().map(|entry| entry.file_name().to_owned());
    let kinds = [QuestionFileKind::Open, QuestionFileKind::Closed];
    let is_question = |name: &String| {
        kinds.iter().any(|kind| name.ends_with(kind.suffix())) && !name.starts_with('.')
    };
    let read = |name: String| {
        // One that cannot be read was closed meanwhile, or the agent made it.
        let bytes = untrusted_file::read(&folder.join(&name), file::BYTES_MAX).ok()?;
        Some(RawQuestionFile { name, text: String::from_utf8(bytes).ok()? })
    };
    names.filter(is_question).take(READ_MAX).filter_map(read).collect()
}

fn parse_raw<T: DeserializeOwned>(
    files: &[RawQuestionFile],
    kind: QuestionFileKind,
) -> Vec<QuestionFile<T>> {
    let own = files.iter().filter(|file| file.name.ends_with(kind.suffix()));
    let parse = |file: &RawQuestionFile| {
        let content = file::parse_run_file(file.text.as_bytes()).ok()?;
        let proof = QuestionProof::of_file(kind, file.text.as_bytes());
        Some(QuestionFile { name: file.name.clone(), content, proof })
    };
    own.filter_map(parse).collect()
}

impl RunQuestionFiles {
    /// Parses the question files of a run of another host.
    pub(crate) fn from_raw(files: &[RawQuestionFile]) -> RunQuestionFiles {
        let open = parse_raw(files, QuestionFileKind::Open);
        let closed = parse_raw(files, QuestionFileKind::Closed);
        RunQuestionFiles { open, closed }
    }
}

impl RunQuestionList {
    /// Logs the files that were refused.
    pub(crate) fn report_refused(&self, run: RunId) {
        if !self.refused.is_empty() {
            let (count, files) = (self.refused.len(), &self.refused);
            let files = files[..count.min(NAMED_MAX)].join(", ");
            tracing::warn!(%run, count, files, "a question was refused: its runner did not sign it");
        }
    }

    /// Sets aside the files that were refused, so that `heeler doctor` reports them. The run has
    /// ended, so its runner writes none of them.
    pub(crate) fn set_refused_aside(&self, folder: &Utf8Path) {
        for name in &self.refused {
            let path = folder.join(QUESTIONS_FOLDER).join(name);
            if let Err(error) = set_file_aside(&path, file::REFUSED_SUFFIX) {
                tracing::warn!(reason = error_chain(&error), "a refused question stays in place");
            }
        }
    }
}

fn accept_files<T: Clone>(
    files: &[QuestionFile<T>],
    key: Option<&ResultPublicKey>,
    id: fn(&T) -> &String,
    refused: &mut Vec<String>,
) -> Vec<T> {
    let mut accepted = Vec::new();
    for QuestionFile { name, content, proof } in files {
        let is_named = name.rsplit_once('.').is_some_and(|(stem, _)| stem == id(content));
        match is_named && key.is_none_or(|key| proof.is_by(key)) {
            true => accepted.push(content.clone()),
            false => refused.push(name.clone()),
        }
    }
    accepted
}

fn read_files<T: DeserializeOwned>(
    folder: &Utf8Path,
    kind: QuestionFileKind,
) -> Vec<QuestionFile<T>> {
    let Ok(entries) = folder.read_dir_utf8() else { return Vec::new() };
    let names = entries.flatten().map(|entry| entry.file_name().to_owned());
    let names = names.filter(|name| name.ends_with(kind.suffix()) && !name.starts_with('.'));
    // One unreadable question must not hide the others.
    let read = |name: String| match read_file(&folder.join(&name), kind) {
        Ok((content, proof)) => Some(QuestionFile { name, content, proof }),
        // It was closed, or set aside, since it was listed.
        Err(QuestionReadError::Read(error)) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            let reason = error_chain(&error);
            tracing::warn!(reason, file = name, "a question cannot be read");
            None
        }
    };
    names.take(READ_MAX).filter_map(read).collect()
}

/// Failure to read a file of a question.
#[derive(Debug, Error)]
enum QuestionReadError {
    #[error(transparent)]
    Read(#[from] io::Error),
    #[error(transparent)]
    Form(#[from] RunFileParseError),
}

fn read_file<T: DeserializeOwned>(
    path: &Utf8Path,
    kind: QuestionFileKind,
) -> Result<(T, QuestionProof), QuestionReadError> {
    let bytes = untrusted_file::read(path, file::BYTES_MAX)?;
    Ok((file::parse_run_file(&bytes)?, QuestionProof::of_file(kind, &bytes)))
}

/// Converts a stored approval to the answer for the run.
pub(crate) fn answer_from_approval(approval: &Approval) -> Result<RunAnswer, String> {
    let detail = approval.detail.as_ref().unwrap_or(&Json::Null);
    match approval.status {
        ApprovalStatus::Approved if detail[ALLOWED_ALWAYS] == true => Ok(RunAnswer::AllowAlways),
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
    use heeler_model::run::{PROTOCOL, QuestionOutcome, ResultSigningKey};
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
            network_host: None,
            grant: None,
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
            kept_rules: Vec::new(),
        };
        let write = |name: &str, text: String| std::fs::write(asks.join(name), text).unwrap();
        write("a.json", serde_json::to_string(&ask("a")).unwrap());
        write("b.json", serde_json::to_string(&ask("b")).unwrap());
        write("b.closed", serde_json::to_string(&closed).unwrap());
        write("c.json", "{".to_owned());
        write(".d.json", serde_json::to_string(&ask("d")).unwrap());
        write("e.json", serde_json::to_string(&ask("f")).unwrap());
        let read = RunQuestionFiles::read(folder).accept(None);
        let refused = vec!["e.json".to_owned()];
        assert_eq!(read, RunQuestionList { open: vec![ask("a")], closed: vec![closed], refused });
    }

    #[test]
    fn only_files_that_the_runner_signed_count_and_a_forged_end_hides_no_question() {
        let temp = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(temp.path()).unwrap();
        let asks = folder.join(QUESTIONS_FOLDER);
        std::fs::create_dir(&asks).unwrap();
        let key = ResultSigningKey::from_seed([1; 32]);
        let other = ResultSigningKey::from_seed([2; 32]);
        let write = |name: &str, bytes: Vec<u8>| std::fs::write(asks.join(name), bytes).unwrap();
        let document = |id: &str| {
            let mut bytes = serde_json::to_vec_pretty(&ask(id)).unwrap();
            bytes.push(b'\n');
            bytes
        };
        let signed = |key: &ResultSigningKey, id: &str| {
            key.sign_question(QuestionFileKind::Open, &document(id))
        };
        write("a.json", signed(&key, "a"));
        write("b.json", signed(&other, "b"));
        write("c.json", document("c"));
        // The runner's own question under another name.
        write("d.json", signed(&key, "a"));
        let end = json!({"protocol": PROTOCOL, "ask": ask("a"), "at": "2026-11-17T08:00:01Z",
            "how": "allowed", "by": "ann (the boss)"});
        write("a.closed", end.to_string().into_bytes());
        let read = RunQuestionFiles::read(folder).accept(Some(&key.public_key()));
        assert_eq!((read.open.as_slice(), read.closed.len()), (&[ask("a")][..], 0));
        read.set_refused_aside(folder);
        for name in ["a.closed", "b.json", "c.json", "d.json"] {
            assert!(asks.join(format!("{name}.refused")).exists(), "{name}");
        }
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
