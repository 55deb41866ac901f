//! Idempotency keys: a request that was executed once is not executed again.
//!
//! The key and the reply are committed together with the request's changes. A caller that received
//! no reply repeats the request with the same key and gets the first reply, also from the next
//! daemon. Refused requests changed nothing and are not stored. Start at [`recorded_reply`].

use heeler_store::{AnsweredRequestRecord, DatabaseError, StateDatabase};
use jiff::SignedDuration;

use super::event::DispatchEvent;
use super::transaction::DispatchTransaction;
use crate::command::{CommandReply, DaemonCommandError, DaemonCommandErrorKind, IdempotencyKey};
use crate::dispatch_failure::DispatchFailure;

/// Minimum retention of a key. A request repeated later counts as new.
pub const REQUEST_RETENTION: SignedDuration = SignedDuration::from_hours(24);

/// Returns the stored reply to a request that was executed before.
pub fn recorded_reply(
    db: &StateDatabase,
    key: &IdempotencyKey,
) -> Result<Option<Result<CommandReply, DaemonCommandError>>, DatabaseError> {
    let Some(known) = db.answered_request(&key.caller, &key.key)? else { return Ok(None) };
    // The recorded reply would be wrong for this request.
    if known.fingerprint != key.fingerprint {
        let message =
            format!("Idempotency-Key `{}` was already used for a different request", key.key);
        let refused = DaemonCommandError::new(DaemonCommandErrorKind::Conflict, message);
        return Ok(Some(Err(refused.with_hint("use a new Idempotency-Key for each request"))));
    }
    // Another release may have stored a reply that this one cannot parse.
    let done = || CommandReply::Done { message: "the request was already executed".to_owned() };
    Ok(Some(Ok(serde_json::from_str(&known.answer).unwrap_or_else(|_| done()))))
}

impl DispatchTransaction<'_, '_> {
    /// Applies an event unless it was already applied under the key.
    pub(crate) fn apply_once(
        &mut self,
        task: DispatchEvent,
        key: Option<&IdempotencyKey>,
    ) -> Result<Option<CommandReply>, DispatchFailure> {
        let Some(key) = key else { return self.apply_event(task) };
        // Keys are pruned when another one is used, so they need no timer.
        if let Ok(before) = self.now.checked_sub(REQUEST_RETENTION) {
            self.tx.remove_answered_requests(before)?;
        }
        // The check is in the transaction, so two requests at once cannot both pass it.
        if let Some(known) = recorded_reply(self.tx, key)? {
            return Ok(known.map(Some)?);
        }
        // A refused request returns here and is not recorded, because it had no effect.
        let outcome = self.apply_event(task)?;
        let nothing = CommandReply::Done { message: String::new() };
        let answer = serde_json::to_string(outcome.as_ref().unwrap_or(&nothing));
        let answer = answer.expect("an answer is JSON");
        let request = AnsweredRequestRecord { fingerprint: key.fingerprint.clone(), answer };
        self.tx.answer_request(&key.caller, &key.key, &request, self.now)?;
        Ok(outcome)
    }
}
