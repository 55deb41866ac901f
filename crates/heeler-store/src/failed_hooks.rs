//! Query for the failed hooks of a job. Start at [`failed_hooks`].

use heeler_config::HookPosition;
use heeler_model::JobId;
use heeler_model::hook::{HOOK_EFFECT_KIND, HookEffectPayload};

use crate::db::effects::EffectRecord;
use crate::db::{DatabaseError, StateDatabase};

/// A failed hook of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedHook {
    /// Name of the hook, or its list and position.
    pub name: String,
    /// ID of the event.
    pub event: String,
    /// The last error.
    pub error: String,
    /// Number of attempts.
    pub attempts: i64,
    /// True if the hook failed finally; false if it will be retried.
    pub is_over: bool,
}

/// Lists the failed hooks of a job, in order.
pub fn failed_hooks(db: &StateDatabase, job: &JobId) -> Result<Vec<FailedHook>, DatabaseError> {
    let failed = db.failed_effects(job, HOOK_EFFECT_KIND)?.into_iter();
    let one = |(effect, is_over): (EffectRecord, bool)| {
        // A newer release may have written another payload; the failure is shown anyway.
        let order = serde_json::from_str::<HookEffectPayload>(&effect.payload).ok();
        let place = |HookPosition { list, index }| format!("{list} {}", index + 1);
        let name = order.map(|order| order.name.unwrap_or_else(|| place(order.place)));
        FailedHook {
            name: name.unwrap_or_else(|| HOOK_EFFECT_KIND.to_owned()),
            event: effect.id,
            error: effect.last_error.unwrap_or_default(),
            attempts: effect.attempts,
            is_over,
        }
    };
    Ok(failed.map(one).collect())
}
