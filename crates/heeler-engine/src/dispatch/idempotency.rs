//! Requests under a name: what was done once is not done again.
//!
//! The name and the answer are on record with what the request did, in one commit. Whoever was not
//! answered asks again under the same name and gets the first answer, also from the next daemon.
//! What was refused has done nothing, so it is not kept. Start at [`recorded_reply`].

use heeler_store::{AnsweredRequestRecord, DatabaseError, StateDatabase};
use jiff::SignedDuration;

use super::DispatchEvent;
use super::transaction::{DispatchTransaction, EventOutcome};
use crate::command::{CommandReply, DaemonCommandError, DaemonCommandErrorKind, IdempotencyKey};

/// How long the name of a request is known, at least; the same again later is a new one.
pub const REQUEST_RETENTION: SignedDuration = SignedDuration::from_hours(24);

/// Returns what was answered to a request, if it was made before.
pub fn recorded_reply(
    db: &StateDatabase,
    key: &IdempotencyKey,
) -> Result<Option<Result<CommandReply, DaemonCommandError>>, DatabaseError> {
    let Some(known) = db.answered_request(&key.caller, &key.key)? else { return Ok(None) };
    if known.fingerprint != key.fingerprint {
        let message = format!("`{}` is the name of another request of yours", key.key);
        let refused = DaemonCommandError::new(DaemonCommandErrorKind::Conflict, message);
        return Ok(Some(Err(refused.with_hint("each request gets a new Idempotency-Key"))));
    }
    // Another version of ours may have answered something that this one does not know.
    let done = || CommandReply::Done { message: "it was done before".to_owned() };
    Ok(Some(Ok(serde_json::from_str(&known.answer).unwrap_or_else(|_| done()))))
}

impl DispatchTransaction<'_, '_> {
    /// Does one task, unless it was done under this name.
    pub(crate) fn apply_once(
        &mut self,
        task: DispatchEvent,
        key: Option<&IdempotencyKey>,
    ) -> Result<EventOutcome, DatabaseError> {
        let Some(key) = key else { return self.apply_event(task) };
        if let Ok(before) = self.now.checked_sub(REQUEST_RETENTION) {
            self.tx.remove_answered_requests(before)?;
        }
        if let Some(known) = recorded_reply(self.tx, key)? {
            return Ok(known.map(Some));
        }
        let outcome = self.apply_event(task)?;
        if let Ok(answer) = &outcome {
            let nothing = CommandReply::Done { message: String::new() };
            let answer = serde_json::to_string(answer.as_ref().unwrap_or(&nothing));
            let answer = answer.expect("an answer is JSON");
            let request = AnsweredRequestRecord { fingerprint: key.fingerprint.clone(), answer };
            self.tx.answer_request(&key.caller, &key.key, &request, self.now)?;
        }
        Ok(outcome)
    }
}
