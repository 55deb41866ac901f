//! Records of pending hooks, and the metadata file that is passed to them.
//!
//! Start at [`hook_effects`].

use std::collections::BTreeMap;
use std::io;

use camino::Utf8PathBuf;
use heeler_config::AgentConfig;
use heeler_model::hook::{HOOK_EFFECT_KIND, HookContext, HookEffectPayload, select_hooks};
use heeler_model::redact::SecretRedactor;
use heeler_model::{Job, iso_millis};
use heeler_store::EffectRecord;
use heeler_transcript::untrusted_file;
use jiff::Timestamp;
use serde_json::Value as Json;

use crate::prepare::environment;

/// Maximum size of a metadata file.
pub const METADATA_BYTES_MAX: u64 = 64 * 1024;

/// Default name of the metadata file.
const METADATA_FILE: &str = "metadata.json";

/// Facts about a job's end that its record does not hold.
#[derive(Debug, Clone, Default)]
pub struct JobEnd {
    /// The agent's final answer, redacted. Default: the job's summary.
    pub output: Option<String>,
    /// Result of [`read_metadata`].
    pub metadata: Option<Json>,
}

/// Returns the hooks that a job's end fires, as effects to be recorded with that end. Empty while
/// the job has not ended.
///
/// Their IDs contain the job, the end (a resumed job has several) and their order.
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

/// Returns the ID of the job end that an effect follows: the effect's ID without the order.
pub(super) fn job_end_id(effect: &EffectRecord) -> &str {
    effect.id.rsplit_once('.').map_or(&effect.id, |(end, _)| end)
}

/// Reads the metadata that an agent left for its hooks, without its secrets. A file that was not
/// changed since the run started belongs to an earlier job and is ignored.
///
/// The file may be large or slow to read, so call this before the transaction, not in it.
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
            // The agent writes this file freely, so it may contain its secrets.
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
    // Recorded times have millisecond precision.
    if Timestamp::try_from(changed).is_ok_and(|at| iso_millis(at) < iso_millis(since)) {
        return Ok(None);
    }
    // An agent could place a link or an endless file here.
    let bytes = untrusted_file::read(path, METADATA_BYTES_MAX)?;
    let json: Json = serde_json::from_slice(&bytes)?;
    match json.is_object() {
        true => Ok(Some(json)),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "it is no JSON object")),
    }
}
