//! The record of hooks that are to be done, and the metadata file that they are told of.

use std::collections::BTreeMap;
use std::io;

use camino::Utf8PathBuf;
use heeler_model::config::AgentConfig;
use heeler_model::hook::{HookContext, HookPosition, select_hooks};
use heeler_model::redact::SecretRedactor;
use heeler_model::{Job, JobId, iso_millis};
use heeler_store::{DatabaseError, EffectRecord, StateDatabase};
use heeler_transcript::untrusted_file;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::prepare::environment;

/// The kind of effects that are hooks.
pub const HOOK_EFFECT_KIND: &str = "hook";

/// The largest metadata file that is used.
pub const METADATA_BYTES_MAX: u64 = 64 * 1024;

/// The metadata file of an agent that names none.
const METADATA_FILE: &str = "metadata.json";

/// What is known of a job's end beside its record.
#[derive(Debug, Clone, Default)]
pub struct JobEnd {
    /// The agent's answer, redacted; the job's summary if left out.
    pub output: Option<String>,
    /// What [`read_metadata`] found.
    pub metadata: Option<Json>,
}

/// The payload of a hook's effect.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct HookEffectPayload {
    /// Whose hook.
    pub(super) agent: String,
    /// Where it stood when it was chosen.
    pub(super) place: HookPosition,
    /// Its name, by which it is found in a changed config.
    pub(super) name: Option<String>,
    /// What it is told.
    pub(super) context: HookContext,
}

/// Returns the hooks that a job's end fires, as effects to be recorded with that end. None while the
/// job goes on.
///
/// Their ids name the job, this end of it (a job that is resumed has several) and their order.
pub fn hook_effects(
    agent: &AgentConfig,
    job: &Job,
    end: &JobEnd,
    now: Timestamp,
) -> Vec<EffectRecord> {
    let name = agent.identity.as_ref().and_then(|identity| identity.name.as_deref());
    let name = name.unwrap_or(agent.name.as_str());
    let Some(mut context) = HookContext::for_job(job, name, end.output.as_deref()) else {
        return Vec::new();
    };
    context.metadata = end.metadata.clone();
    let at = job.head.finished_at.unwrap_or(now).as_millisecond();
    let fired = select_hooks(&agent.hooks, &context).into_iter().enumerate();
    fired
        .map(|(order, place)| {
            let event_id = format!("{}.{at}.{order:04}", job.head.id);
            let context = HookContext { event_id: event_id.clone(), ..context.clone() };
            let name = agent.hooks.list(place.list)[place.index].name.clone();
            let order = HookEffectPayload { agent: agent.name.to_string(), place, name, context };
            EffectRecord {
                id: event_id,
                kind: HOOK_EFFECT_KIND.to_owned(),
                key: job.head.id.to_string(),
                payload: serde_json::to_string(&order).expect("an order has only text keys"),
                created_at: now,
                attempts: 0,
                last_error: None,
            }
        })
        .collect()
}

/// A hook of a job that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedHook {
    /// Its name, or else its list and place there.
    pub name: String,
    /// The event's id.
    pub event: String,
    /// Why it failed last.
    pub error: String,
    /// How often it was tried.
    pub attempts: i64,
    /// Whether it was given up; else it is tried again.
    pub is_over: bool,
}

/// Lists the hooks of a job that failed, in their order.
pub fn failed_hooks(db: &StateDatabase, job: &JobId) -> Result<Vec<FailedHook>, DatabaseError> {
    let failed = db.failed_effects(job, HOOK_EFFECT_KIND)?.into_iter();
    let one = |(effect, is_over): (EffectRecord, bool)| {
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

/// Returns which end of which job an effect follows: its id without the order.
pub(super) fn job_end_id(effect: &EffectRecord) -> &str {
    effect.id.rsplit_once('.').map_or(&effect.id, |(end, _)| end)
}

/// Reads what the agent left for its hooks, without its secrets. One that was not changed since the
/// job's run started is an earlier job's, and counts as none.
///
/// It reads a file of unknown age and size, so it is done before the transaction, not in it.
pub fn read_metadata(
    agent: &AgentConfig,
    env: &BTreeMap<String, String>,
    since: Timestamp,
) -> Option<Json> {
    let name = agent.metadata_file.as_deref().unwrap_or(METADATA_FILE);
    let path = agent.working_directory.join(name);
    match read_metadata_file(&path, since) {
        Ok(mut metadata) => {
            let redactor = SecretRedactor::new(&environment::secrets(agent, env));
            metadata.iter_mut().for_each(|json| redactor.redact_json(json));
            metadata
        }
        Err(error) => {
            tracing::warn!(agent = %agent.name, "the metadata file {path} is not used: {error}");
            None
        }
    }
}

fn read_metadata_file(path: &Utf8PathBuf, since: Timestamp) -> io::Result<Option<Json>> {
    let changed = match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => found?.modified()?,
    };
    // The record has milliseconds.
    if Timestamp::try_from(changed).is_ok_and(|at| iso_millis(at) < iso_millis(since)) {
        return Ok(None);
    }
    let bytes = untrusted_file::read(path, METADATA_BYTES_MAX)?;
    let json: Json = serde_json::from_slice(&bytes)?;
    match json.is_object() {
        true => Ok(Some(json)),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "it is no JSON object")),
    }
}
