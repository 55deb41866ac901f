//! What happens after a job, decided: which of its agent's hooks fire, what they are told, and how
//! that reads in a chat.
//!
//! Nothing here acts. The context has herdctl's shape, and beside it an id by which whoever gets the
//! same event twice can tell. Start at [`HookContext::for_job`] and [`select_hooks`].

mod message;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::config::{AgentHooks, Hook, HookEvent};
use crate::words::words;
use crate::{ExitReason, Job, JobId, JobStatus, iso_millis};

pub use message::{
    DISCORD_EMBED_MAX, DISCORD_TEXT_MAX, FIELD_MAX, SLACK_TEXT_MAX, discord_message, slack_message,
};

/// The longest output that a hook is told, in bytes; the rest is in the job's transcript.
pub const OUTPUT_BYTES_MAX: usize = 64 * 1024;

words! {
    /// The lists of hooks that an agent has.
    pub enum HookList ("list of hooks") {
        /// After every job that ended.
        AfterRun = "after_run",
        /// After a job that failed or ran out of time.
        OnError = "on_error",
    }
}

/// What a hook is told, as JSON: herdctl's names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HookContext {
    /// How the job ended.
    pub event: HookEvent,
    /// Names this event to this hook: whoever sees it twice may pass over the second.
    pub event_id: String,
    /// The job.
    pub job: HookJob,
    /// What came of it.
    pub result: HookResult,
    /// Who did it.
    pub agent: HookAgent,
    /// What the agent left in its metadata file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Json>,
}

/// The job, as a hook is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HookJob {
    /// Its id.
    pub id: JobId,
    /// Its agent's qualified name.
    pub agent_id: String,
    /// The schedule that started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule_name: Option<String>,
    /// When its first run started, as ISO 8601.
    pub started_at: String,
    /// When it ended, as ISO 8601.
    pub completed_at: String,
    /// How long its runs took.
    pub duration_ms: i64,
}

/// What came of a job, as a hook is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HookResult {
    /// Whether it ended well.
    pub success: bool,
    /// The agent's answer, at most [`OUTPUT_BYTES_MAX`] bytes.
    pub output: String,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The agent, as a hook is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HookAgent {
    /// Its qualified name.
    pub id: String,
    /// The name that people see.
    pub name: String,
}

/// One hook of an agent, by its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookPosition {
    /// Which list.
    pub list: HookList,
    /// Its place in the list, from zero.
    pub index: usize,
}

impl HookContext {
    /// Returns what hooks are told of a job; `None` while it has not ended.
    ///
    /// `name` is the agent's name for people, `output` its answer: the job's summary if left out.
    pub fn for_job(job: &Job, name: &str, output: Option<&str>) -> Option<HookContext> {
        let head = &job.head;
        let event = job_hook_event(job)?;
        let started = job.run_started_at.unwrap_or(head.started_at);
        let finished = head.finished_at.unwrap_or(started);
        let took = || finished.duration_since(started).as_millis();
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
                    .unwrap_or_else(|| i64::try_from(took()).unwrap_or(i64::MAX).max(0)),
            },
            result: HookResult {
                success: event == HookEvent::Completed,
                output: output[..output.floor_char_boundary(OUTPUT_BYTES_MAX)].to_owned(),
                error: job.error.clone().filter(|_| event != HookEvent::Completed),
            },
            agent: HookAgent { id: head.agent.clone(), name: name.to_owned() },
            metadata: None,
        })
    }
}

/// Returns how a job ended, for hooks; `None` while it has not.
pub fn job_hook_event(job: &Job) -> Option<HookEvent> {
    match (job.head.status, job.head.exit_reason) {
        (JobStatus::Pending | JobStatus::Running, _) => None,
        (JobStatus::Completed, _) => Some(HookEvent::Completed),
        (JobStatus::Cancelled, _) => Some(HookEvent::Cancelled),
        (JobStatus::Failed, Some(ExitReason::Timeout)) => Some(HookEvent::Timeout),
        (JobStatus::Failed, _) => Some(HookEvent::Failed),
    }
}

impl AgentHooks {
    /// Returns a list by its name.
    pub fn list(&self, list: HookList) -> &[Hook] {
        match list {
            HookList::AfterRun => &self.after_run,
            HookList::OnError => &self.on_error,
        }
    }

    /// Finds a hook again in a config that may have been changed since it was chosen: by its name,
    /// or where it has none by its place.
    pub fn find(&self, place: HookPosition, name: Option<&str>) -> Option<&Hook> {
        let list = self.list(place.list);
        let is_it = |hook: &&Hook| hook.name.as_deref() == name;
        let here = list.get(place.index).filter(is_it);
        here.or_else(|| name.and_then(|_| list.iter().find(is_it)))
    }
}

/// Returns the hooks that a job's end fires, in the order in which they are done: those of
/// `after_run`, then those of `on_error`.
pub fn select_hooks(hooks: &AgentHooks, context: &HookContext) -> Vec<HookPosition> {
    let is_bad = matches!(context.event, HookEvent::Failed | HookEvent::Timeout);
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

/// Says whether a dot path leads to something that JavaScript, and so herdctl, takes for true.
fn is_path_truthy(told: &Json, path: &str) -> bool {
    let path = path.trim();
    if path.is_empty() {
        return true;
    }
    let found = path.split('.').try_fold(told, |json, key| match json {
        Json::Array(items) => items.get(key.parse::<usize>().ok()?),
        json => json.get(key),
    });
    match found {
        None | Some(Json::Null) => false,
        Some(Json::Bool(is)) => *is,
        Some(Json::Number(number)) => number.as_f64() != Some(0.0),
        Some(Json::String(text)) => !text.is_empty(),
        Some(Json::Array(_) | Json::Object(_)) => true,
    }
}
