//! Questions that an agent asks people, from opening to closing.
//!
//! A question is a file in the run directory before it counts as asked. When it is closed, by the
//! first party that does so, a second file records the outcome, and then the first file is removed.
//! Files left by a crash are moot: the agent died with its runner. This module has no knowledge of
//! rows and sockets. Start at [`RunQuestions`].

use std::collections::VecDeque;
use std::time::Instant;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::error_chain;
use heeler_model::run::{
    AgentQuestion, ClosedQuestion, PROTOCOL, QuestionOutcome, ResultSigningKey,
};
use heeler_transcript::validate_id;
use indexmap::IndexMap;
use jiff::Timestamp;
use serde_json::Value as Json;
use uuid::Uuid;

use crate::files::{self, RunFileError};

/// Limit on open questions; further ones are denied.
pub(crate) const OPEN_QUESTIONS_MAX: usize = 64;

/// Size limit of a question's input as JSON; a larger one is denied. The file must be readable in
/// one piece, and a person could not judge more anyway.
pub(crate) const QUESTION_BYTES_MAX: usize = 512 << 10;

/// Number of closed questions remembered, to explain late answers.
const CLOSED_MAX: usize = 256;

/// Length limit of an agent's question ID that is reused as a file name.
const QUESTION_ID_BYTES_MAX: usize = 64;

#[derive(Debug)]
pub(crate) struct RunQuestions {
    dir: Utf8PathBuf,
    /// Signs the files, because the agent can write into the directory too.
    key: Option<ResultSigningKey>,
    open: IndexMap<String, OpenRunQuestion>,
    /// Outcomes of recently closed questions, newest last.
    closed: VecDeque<(String, String)>,
}

#[derive(Debug)]
pub(crate) struct OpenRunQuestion {
    /// Question, redacted.
    pub(crate) ask: AgentQuestion,
    /// ID that the agent uses for the question.
    pub(crate) agent_id: String,
    expires_at: Option<Instant>,
}

/// Outcome of a question.
#[derive(Debug)]
pub(crate) struct RunQuestionOutcome {
    pub(crate) closing: QuestionOutcome,
    pub(crate) answered_by: Option<String>,
    /// Text of the answer, redacted.
    pub(crate) text: Option<String>,
    /// Input with which the person replaced the agent's, redacted.
    pub(crate) updated_input: Option<Json>,
    /// Rules that the person gave for all later runs of the agent.
    pub(crate) kept_rules: Vec<String>,
    pub(crate) at: Timestamp,
}

impl RunQuestions {
    pub(crate) fn new(dir: &Utf8Path, key: Option<ResultSigningKey>) -> RunQuestions {
        RunQuestions { dir: dir.to_owned(), key, open: IndexMap::new(), closed: VecDeque::new() }
    }

    /// Returns a file name for the question that the agent calls `agent_id`.
    pub(crate) fn assign_id(&self, agent_id: &str) -> String {
        let plain = agent_id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
        // A person could otherwise answer a new question with an answer meant for an old one.
        let known = self.open.contains_key(agent_id)
            || self.closed.iter().any(|(closed, _)| closed == agent_id);
        if plain
            && !known
            && agent_id.len() <= QUESTION_ID_BYTES_MAX
            && validate_id(agent_id).is_ok()
        {
            return agent_id.to_owned();
        }
        Uuid::new_v4().to_string()
    }

    /// Returns true if one more question may be opened.
    pub(crate) fn has_room(&self) -> bool {
        self.open.len() < OPEN_QUESTIONS_MAX
    }

    /// Writes a question to its file; from then on it is open.
    pub(crate) fn add(
        &mut self,
        ask: AgentQuestion,
        agent_id: String,
        until: Option<Instant>,
    ) -> Result<(), RunFileError> {
        // The file comes first: the daemon that reads it must never miss a question that was shown.
        files::write_ask(&self.dir, &ask, self.key.as_ref())?;
        self.open.insert(ask.id.clone(), OpenRunQuestion { ask, agent_id, expires_at: until });
        Ok(())
    }

    /// Returns the open question with this ID.
    pub(crate) fn get(&self, id: &str) -> Option<&OpenRunQuestion> {
        self.open.get(id)
    }

    /// Returns the ID of the open question that the agent calls `agent_id`.
    pub(crate) fn find_by_agent_id(&self, agent_id: &str) -> Option<String> {
        let open = self.open.values().find(|open| open.agent_id == agent_id)?;
        Some(open.ask.id.clone())
    }

    /// Closes a question. `late_reply` is the explanation for later answers. A question that ends with
    /// the run needs no outcome file.
    pub(crate) fn close(
        &mut self,
        id: &str,
        end: Option<RunQuestionOutcome>,
        late_reply: String,
    ) -> Option<OpenRunQuestion> {
        let open = self.open.shift_remove(id)?;
        let closed = end.map(|end| ClosedQuestion {
            protocol: PROTOCOL,
            ask: open.ask.clone(),
            at: end.at,
            how: end.closing,
            by: end.answered_by,
            text: end.text,
            updated_input: end.updated_input,
            kept_rules: end.kept_rules,
        });
        // The outcome is on disk before the question disappears, so a reader sees one or the other.
        if let Some(closed) = closed
            && let Err(error) = files::write_closed(&self.dir, &closed, self.key.as_ref())
        {
            // The job transcript names the person who answered; the approval then counts as
            // withdrawn.
            tracing::warn!(
                reason = error_chain(&error),
                ask = id,
                "the outcome of a question could not be saved"
            );
        }
        let file = self.dir.join(format!("asks/{id}.json"));
        if let Err(error) = std::fs::remove_file(file) {
            // The run's result makes the file moot; until then `status` does not list the question.
            tracing::warn!(%error, ask = id, "the file of a closed question could not be removed");
        }
        // The agent may ask any number of questions, so old explanations are forgotten.
        if self.closed.len() == CLOSED_MAX {
            self.closed.pop_front();
        }
        self.closed.push_back((id.to_owned(), late_reply));
        Some(open)
    }

    /// Explains why the question cannot be answered: already closed, or unknown.
    pub(crate) fn refusal_reason(&self, id: &str) -> String {
        match self.closed.iter().rev().find(|(closed, _)| closed == id) {
            Some((_, how)) => how.clone(),
            None => format!("there is no open question `{id}`"),
        }
    }

    pub(crate) fn list(&self) -> Vec<AgentQuestion> {
        self.open.values().map(|open| open.ask.clone()).collect()
    }

    /// Returns true if no question waits for a person.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns the earliest expiry time of an open question.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.open.values().filter_map(|open| open.expires_at).min()
    }

    /// Returns an expired question.
    pub(crate) fn find_expired(&self, now: Instant) -> Option<String> {
        let due = |open: &&OpenRunQuestion| open.expires_at.is_some_and(|until| until <= now);
        Some(self.open.values().find(due)?.ask.id.clone())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ask(id: &str) -> AgentQuestion {
        AgentQuestion {
            protocol: PROTOCOL,
            id: id.to_owned(),
            at: Timestamp::UNIX_EPOCH,
            kind: "permission".to_owned(),
            tool: "Bash".to_owned(),
            input: json!({}),
            until: None,
            network_host: None,
            grant: None,
        }
    }

    fn answered() -> RunQuestionOutcome {
        let by = Some("ada".to_owned());
        RunQuestionOutcome {
            closing: QuestionOutcome::Allowed,
            answered_by: by,
            text: None,
            updated_input: None,
            kept_rules: Vec::new(),
            at: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn a_name_is_taken_over_if_it_is_new_and_can_be_a_files() {
        let temp = tempfile::tempdir().unwrap();
        let mut asks = RunQuestions::new(Utf8Path::from_path(temp.path()).unwrap(), None);
        assert_eq!(asks.assign_id("toolu_01-a.b"), "toolu_01-a.b");
        let long = "x".repeat(QUESTION_ID_BYTES_MAX + 1);
        for bad in ["", ".", "..", ".x", "a/b", "a b", "é", "a\0", &long] {
            assert!(Uuid::try_parse(&asks.assign_id(bad)).is_ok(), "{bad:?}");
        }
        asks.add(ask("q1"), "q1".to_owned(), None).unwrap();
        assert_ne!(asks.assign_id("q1"), "q1");
        asks.close("q1", Some(answered()), "answered".to_owned()).unwrap();
        let closed = std::fs::read_to_string(asks.dir.join("asks/q1.closed")).unwrap();
        let closed: ClosedQuestion = serde_json::from_str(&closed).unwrap();
        assert_eq!((closed.how, closed.by.as_deref()), (QuestionOutcome::Allowed, Some("ada")));
        assert!(!asks.dir.join("asks/q1.json").exists());
        assert_ne!(asks.assign_id("q1"), "q1");
    }

    #[test]
    fn the_last_closed_ones_are_remembered_and_no_more() {
        let temp = tempfile::tempdir().unwrap();
        let mut asks = RunQuestions::new(Utf8Path::from_path(temp.path()).unwrap(), None);
        for number in 0..=CLOSED_MAX {
            let id = format!("q{number}");
            asks.open.insert(
                id.clone(),
                OpenRunQuestion { ask: ask(&id), agent_id: id.clone(), expires_at: None },
            );
            asks.close(&id, None, format!("how {number}")).unwrap();
        }
        assert_eq!(asks.refusal_reason("q1"), "how 1");
        assert_eq!(asks.refusal_reason("q0"), "there is no open question `q0`");
        assert_eq!(asks.closed.len(), CLOSED_MAX);
    }
}
