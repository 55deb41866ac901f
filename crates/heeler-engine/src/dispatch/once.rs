//! Requests under a name: what was done once is not done again.
//!
//! The name and the answer are on record with what the request did, in one commit. Whoever was not
//! answered asks again under the same name and gets the first answer, also from the next daemon.
//! What was refused has done nothing, so it is not kept. Start at [`answered`].

use heeler_store::{AnsweredRequest, Db, DbError};
use jiff::SignedDuration;

use super::Task;
use super::turn::{Outcome, Turn};
use crate::command::{Answer, Refused, RefusedKind, RequestKey};

/// How long the name of a request is known, at least; the same again later is a new one.
pub const REQUESTS_KEPT: SignedDuration = SignedDuration::from_hours(24);

/// Returns what was answered to a request, if it was made before.
pub fn answered(db: &Db, key: &RequestKey) -> Result<Option<Result<Answer, Refused>>, DbError> {
    let Some(known) = db.answered_request(&key.asker, &key.name)? else { return Ok(None) };
    if known.print != key.print {
        let message = format!("`{}` is the name of another request of yours", key.name);
        let refused = Refused::new(RefusedKind::Conflict, message);
        return Ok(Some(Err(refused.hint("each request gets a new Idempotency-Key"))));
    }
    // Another version of ours may have answered something that this one does not know.
    let done = || Answer::Done { message: "it was done before".to_owned() };
    Ok(Some(Ok(serde_json::from_str(&known.answer).unwrap_or_else(|_| done()))))
}

impl Turn<'_, '_> {
    /// Does one task, unless it was done under this name.
    pub(crate) fn take_once(
        &mut self,
        task: Task,
        key: Option<&RequestKey>,
    ) -> Result<Outcome, DbError> {
        let Some(key) = key else { return self.take(task) };
        if let Ok(before) = self.now.checked_sub(REQUESTS_KEPT) {
            self.tx.forget_requests(before)?;
        }
        if let Some(known) = answered(self.tx, key)? {
            return Ok(known.map(Some));
        }
        let outcome = self.take(task)?;
        if let Ok(answer) = &outcome {
            let nothing = Answer::Done { message: String::new() };
            let answer = serde_json::to_string(answer.as_ref().unwrap_or(&nothing));
            let answer = answer.expect("an answer is JSON");
            let request = AnsweredRequest { print: key.print.clone(), answer };
            self.tx.answer_request(&key.asker, &key.name, &request, self.now)?;
        }
        Ok(outcome)
    }
}
