//! Selection of the hooks that follow a job, and the data and chat messages they receive.
//!
//! This module decides but never acts. The context has herdctl's shape, plus an event ID by which a
//! receiver can detect duplicates. Start at [`HookContext::for_job`] and [`select_hooks`].

mod message;
#[cfg(test)]
mod tests;

use heeler_config::{AgentHooks, Hook, HookEvent, HookList, HookPosition};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::{ExitReason, Job, JobId, JobStatus, iso_millis};

pub use message::{
    DISCORD_EMBED_MAX, DISCORD_TEXT_MAX, FIELD_MAX, SLACK_TEXT_MAX, discord_message, slack_message,
};

/// Longest output passed to a hook, in bytes. The full output is in the job's transcript.
pub const OUTPUT_BYTES_MAX: usize = 64 * 1024;

/// Effect kind of hooks.
pub const HOOK_EFFECT_KIND: &str = "hook";

/// Effect kind of job ends with hooks that are not selected yet: a process without a config recorded
/// the end.
pub const JOB_END_EFFECT_KIND: &str = "job_end";

/// Payload of a hook's effect.
#[derive(Debug, Serialize, Deserialize)]
pub struct HookEffectPayload {
    /// Agent that the hook belongs to.
    pub agent: String,
    /// Position of the hook when it was chosen.
    pub place: HookPosition,
    /// Name by which the hook is found in a changed config.
    pub name: Option<String>,
    /// Context that is passed to the hook.
    pub context: HookContext,
}

/// Data that a hook receives as JSON. Field names are herdctl's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HookContext {
    pub event: HookEvent,
    /// Identifies this event for this hook. A receiver may ignore an ID that it has seen before.
    pub event_id: String,
    pub job: HookJob,
    pub result: HookResult,
    pub agent: HookAgent,
    /// Content of the agent's metadata file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Json>,
}

/// Job data for a hook.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HookJob {
    pub id: JobId,
    /// Qualified name of the agent.
    pub agent_id: String,
    /// Schedule that created the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule_name: Option<String>,
    /// Start of the first run, as ISO 8601.
    pub started_at: String,
    /// End of the job, as ISO 8601.
    pub completed_at: String,
    /// Total duration of its runs.
    pub duration_ms: i64,
}

/// Result of a job, for a hook.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HookResult {
    pub success: bool,
    /// Final text of the agent, at most [`OUTPUT_BYTES_MAX`] bytes.
    pub output: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Agent data for a hook.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HookAgent {
    /// Qualified name.
    pub id: String,
    /// Display name.
    pub name: String,
}

impl HookContext {
    /// Builds the hook data of a job. Returns `None` if the job has not ended.
    ///
    /// `name` is the agent's display name. `output` defaults to the job's summary.
    pub fn for_job(job: &Job, name: &str, output: Option<&str>) -> Option<HookContext> {
        let head = &job.head;
        let event = job_hook_event(job)?;
        // A job that never ran has only the time of its request.
        let started = job.run_started_at.unwrap_or(head.started_at);
        let finished = head.finished_at.unwrap_or(started);
        let took = || finished.duration_since(started).as_millis();
        // Jobs outside of workflows keep no output; their summary is the best that there is.
        let output = output.or(head.summary.as_deref()).unwrap_or_default();
        Some(HookContext {
            event,
            event_id: String::new(),
            job: HookJob {
                id: head.id.clone(),
                agent_id: head.agent.clone(),
                schedule_name: head.schedule.clone(),
                started_at: iso_millis(started),
                completed_at: iso_millis(finished),
                duration_ms: head
                    .duration_ms
                    // A clock that was set back must not give a negative duration.
                    .unwrap_or_else(|| i64::try_from(took()).unwrap_or(i64::MAX).max(0)),
            },
            result: HookResult {
                success: event == HookEvent::Completed,
                output: output[..output.floor_char_boundary(OUTPUT_BYTES_MAX)].to_owned(),
                // An error of an earlier attempt is no error of a job that succeeded.
                error: job.error.clone().filter(|_| event != HookEvent::Completed),
            },
            agent: HookAgent { id: head.agent.clone(), name: name.to_owned() },
            metadata: None,
        })
    }
}

/// Returns the hook event for a job's end, or `None` if the job has not ended.
pub fn job_hook_event(job: &Job) -> Option<HookEvent> {
    match (job.head.status, job.head.exit_reason) {
        (JobStatus::Pending | JobStatus::Running, _) => None,
        (JobStatus::Completed, _) => Some(HookEvent::Completed),
        (JobStatus::Cancelled, _) => Some(HookEvent::Cancelled),
        (JobStatus::Failed, Some(ExitReason::Timeout)) => Some(HookEvent::Timeout),
        (JobStatus::Failed, _) => Some(HookEvent::Failed),
    }
}

/// Returns the hooks that a job's end triggers, in execution order: `after_run`, then `on_error`.
pub fn select_hooks(hooks: &AgentHooks, context: &HookContext) -> Vec<HookPosition> {
    let is_bad = matches!(context.event, HookEvent::Failed | HookEvent::Timeout);
    // `on_error` is about failures only; a cancellation was wanted.
    let lists = HookList::ALL.iter().filter(|list| is_bad || **list != HookList::OnError);
    let told = serde_json::to_value(context).expect("a context has only text keys");
    lists
        .flat_map(|list| hooks.list(*list).iter().enumerate().map(move |it| (*list, it)))
        .filter(|(_, (_, hook))| is_hook_selected(hook, context.event, &told))
        .map(|(list, (index, _))| HookPosition { list, index })
        .collect()
}

fn is_hook_selected(hook: &Hook, event: HookEvent, told: &Json) -> bool {
    let is_event = hook.on_events.as_ref().is_none_or(|events| events.contains(&event));
    is_event && hook.when.as_deref().is_none_or(|path| is_path_truthy(told, path))
}

/// Returns true if a dot path leads to a truthy value by JavaScript's (and so herdctl's) rules.
fn is_path_truthy(told: &Json, path: &str) -> bool {
    let path = path.trim();
    if path.is_empty() {
        return true;
    }
    let found = path.split('.').try_fold(told, |json, key| match json {
        Json::Array(items) => items.get(key.parse::<usize>().ok()?),
        json => json.get(key),
    });
    // The documented rules: missing, null, false, zero and empty text do not count as true.
    match found {
        None | Some(Json::Null) => false,
        Some(Json::Bool(is)) => *is,
        Some(Json::Number(number)) => number.as_f64() != Some(0.0),
        Some(Json::String(text)) => !text.is_empty(),
        Some(Json::Array(_) | Json::Object(_)) => true,
    }
}
