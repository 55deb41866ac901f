//! Converts rows of Last Light's database to Heeler's records; pure, one row in, one record
//! out.
//!
//! Columns differ between its versions, so every column is read by name and an absent one is
//! NULL. An error is the reason why a row is refused. Start at [`LastLightRow`] and
//! [`execution`].

use std::sync::Arc;

use heeler_model::{
    AgentSessionId, ChannelKey, ExitReason, Job, JobId, JobStatus, JobTransition, Session,
    SessionMode, TriggerType, UsageTotals, parse_foreign_time,
};
use heeler_store::{DURATION_MS_MAX, LastLightExecution, idle_session};
use jiff::Timestamp;
use rusqlite::types::Value;

/// Error recorded for an execution that a crashed Last Light left behind.
pub(crate) const INTERRUPTED: &str = "interrupted: Last Light ended without finishing this";

/// The columns that `executions` had in any version, the key first.
pub(crate) const EXECUTIONS: [&str; 27] = [
    "id",
    "trigger_type",
    "trigger_id",
    "skill",
    "repo",
    "owner",
    "issue_number",
    "started_at",
    "finished_at",
    "success",
    "error",
    "turns",
    "duration_ms",
    "session_id",
    "cost_usd",
    "input_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "output_tokens",
    "api_duration_ms",
    "stop_reason",
    "workflow_run_id",
    "output_text",
    "triggered_by",
    "trigger_actor_type",
    "extension_status",
    "skills_status",
];

/// A row by column name.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LastLightRow {
    names: Arc<[&'static str]>,
    values: Vec<Value>,
}

impl LastLightRow {
    pub(crate) fn new(names: Arc<[&'static str]>, values: Vec<Value>) -> LastLightRow {
        debug_assert_eq!(names.len(), values.len());
        LastLightRow { names, values }
    }

    /// Returns a value; NULL if the column does not exist.
    pub(crate) fn get(&self, name: &str) -> &Value {
        let at = self.names.iter().position(|known| *known == name);
        // An older version of Last Light lacks newer columns.
        at.map_or(&Value::Null, |at| &self.values[at])
    }

    pub(crate) fn set(&mut self, name: &str, value: Value) {
        if let Some(at) = self.names.iter().position(|known| *known == name) {
            self.values[at] = value;
        }
    }

    /// Returns text; numbers as they are spelled.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        match self.get(name) {
            Value::Text(text) => Some(text.clone()),
            // SQLite does not enforce types, so a number may be stored where text is expected.
            Value::Integer(number) => Some(number.to_string()),
            Value::Real(number) => Some(number.to_string()),
            Value::Null | Value::Blob(_) => None,
        }
    }

    pub(crate) fn integer(&self, name: &str) -> Option<i64> {
        match self.get(name) {
            Value::Integer(number) => Some(*number),
            Value::Real(number) => Some(*number as i64),
            Value::Text(text) => text.trim().parse().ok(),
            Value::Null | Value::Blob(_) => None,
        }
    }

    pub(crate) fn duration(&self, name: &str) -> Option<i64> {
        // A damaged duration must not overflow a sum.
        self.integer(name).map(|ms| ms.clamp(0, DURATION_MS_MAX))
    }

    pub(crate) fn real(&self, name: &str) -> Option<f64> {
        match self.get(name) {
            Value::Integer(number) => Some(*number as f64),
            Value::Real(number) => Some(*number),
            Value::Text(text) => text.trim().parse().ok(),
            Value::Null | Value::Blob(_) => None,
        }
    }

    pub(crate) fn time(&self, name: &str) -> Option<Timestamp> {
        parse_foreign_time(&self.text(name)?)
    }

    /// Returns the key, for a report.
    pub(crate) fn key(&self) -> String {
        self.text(self.names[0]).unwrap_or_else(|| "(no key)".to_owned())
    }

    /// Checks that columns are not empty; the error is the reason for a refusal.
    pub(crate) fn require(&self, names: &[&str]) -> Result<(), String> {
        let missing = names.iter().find(|name| self.text(name).is_none());
        missing.map_or(Ok(()), |name| Err(format!("it has no `{name}`")))
    }

    /// Fills empty columns with defaults.
    pub(crate) fn default_missing(&mut self, defaults: &[(&str, &str)]) {
        for (name, value) in defaults {
            // A missing column cannot be set, so the default has no effect there.
            if *self.get(name) == Value::Null {
                self.set(name, Value::Text((*value).to_owned()));
            }
        }
    }

    /// Returns the approximate memory size of the row.
    pub(crate) fn bytes(&self) -> usize {
        let size = |value: &Value| match value {
            Value::Text(text) => text.len(),
            Value::Blob(bytes) => bytes.len(),
            Value::Null | Value::Integer(_) | Value::Real(_) => 8,
        };
        self.values.iter().map(size).sum()
    }

    /// Returns the first `count` values in the order of the row's names.
    pub(crate) fn take(mut self, count: usize) -> Vec<Value> {
        self.values.truncate(count);
        self.values
    }
}

/// Reads a row of `executions`. The flag is true if Last Light left it unfinished.
pub(crate) fn execution(row: &LastLightRow) -> Result<(Job, bool), String> {
    row.require(&["id", "trigger_type", "skill", "started_at"])?;
    let id: JobId = row.key().parse().map_err(|error| format!("{error}"))?;
    let skill = row.text("skill").unwrap_or_default();
    let trigger = TriggerType::from_word(&row.text("trigger_type").unwrap_or_default());
    let started_at = row.time("started_at").ok_or("its `started_at` is not a moment in time")?;

    let mut job = Job::new_pending(id, &skill, trigger, started_at);
    // Last Light records one time, which is that of the request and of the start.
    job.run_started_at = Some(started_at);
    job.trigger_id = row.text("trigger_id").unwrap_or_default();
    job.repo = repository(row);
    job.issue_number = row.integer("issue_number");
    job.workflow_run_id = row.text("workflow_run_id");
    job.stop_reason = row.text("stop_reason");
    job.error = row.text("error");
    job.output_text = row.text("output_text");
    job.usage = UsageTotals {
        num_turns: row.integer("turns"),
        api_duration_ms: row.duration("api_duration_ms"),
        input_tokens: row.integer("input_tokens"),
        cache_creation_input_tokens: row.integer("cache_creation_input_tokens"),
        cache_read_input_tokens: row.integer("cache_read_input_tokens"),
        output_tokens: row.integer("output_tokens"),
        ..UsageTotals::default()
    };
    job.head.finished_at = row.time("finished_at");
    job.head.duration_ms = row.duration("duration_ms");
    job.head.cost_usd = row.real("cost_usd");
    job.head.session_id = row.text("session_id").and_then(|id| id.parse().ok());
    // Both are missing only if the process died before it recorded an end.
    let unfinished = row.integer("success").is_none() && job.head.finished_at.is_none();
    conclude(&mut job, row.integer("success"), unfinished);
    Ok((job, unfinished))
}

/// Maps Last Light's outcome. An execution that was skipped, or deferred for quota, has not
/// failed.
fn conclude(job: &mut Job, success: Option<i64>, unfinished: bool) {
    let stop = job.stop_reason.as_deref();
    let (status, reason) = match (success, stop) {
        (Some(1..), Some("max_turns" | "error_max_turns")) => {
            (JobStatus::Completed, ExitReason::MaxTurns)
        }
        (Some(1..), _) => (JobStatus::Completed, ExitReason::Success),
        (Some(_), Some("skipped" | "error_quota" | "cancelled")) => {
            (JobStatus::Cancelled, ExitReason::Cancelled)
        }
        (Some(_), Some("max_turns" | "error_max_turns")) => {
            (JobStatus::Failed, ExitReason::MaxTurns)
        }
        (Some(_), Some("timeout" | "error_timeout")) => (JobStatus::Failed, ExitReason::Timeout),
        // An execution without an outcome counts as failed, because nothing shows that it worked.
        (Some(_), _) | (None, _) => (JobStatus::Failed, ExitReason::Error),
    };
    job.apply(JobTransition::Import { status });
    job.head.exit_reason = Some(reason);
    if unfinished {
        job.interrupted = true;
        job.error = Some(INTERRUPTED.to_owned());
    }
}

/// Returns the fields of an execution that only Last Light records.
pub(crate) fn lastlight_fields(row: &LastLightRow) -> LastLightExecution {
    LastLightExecution {
        owner: row.text("owner"),
        triggered_by: row.text("triggered_by"),
        trigger_actor_type: row.text("trigger_actor_type"),
        extension_status: row.text("extension_status"),
        skills_status: row.text("skills_status"),
    }
}

/// Returns `owner/name`, which newer versions store separately.
fn repository(row: &LastLightRow) -> Option<String> {
    let repo = row.text("repo")?;
    match row.text("owner") {
        // Old rows hold `owner/name` in one column.
        Some(owner) if !repo.contains('/') && !owner.is_empty() => Some(format!("{owner}/{repo}")),
        _ => Some(repo),
    }
}

/// Creates the session of a chat thread, if the agent has assigned an id.
pub(crate) fn chat_session(row: &LastLightRow) -> Option<Session> {
    let native_id: AgentSessionId = row.text("agent_session_id")?.parse().ok()?;
    let last = row.time("last_activity_at").or_else(|| row.time("created_at"))?;
    let mut session = idle_session("chat", Some(native_id), last);
    session.created_at = row.time("created_at").unwrap_or(last);
    session.mode = SessionMode::PerChannel;
    session.channel_id = channel_key(row);
    session.message_count = row.integer("message_count").unwrap_or(0);
    Some(session)
}

/// Returns the key of a chat's channel or thread, in the form that all commands use:
/// `platform/channel[/thread]`.
fn channel_key(row: &LastLightRow) -> Option<String> {
    let part = |name: &str| {
        let text = row.text(name).filter(|text| !text.is_empty())?;
        // A key has no other slash and no space.
        Some(text.replace(|c: char| c == '/' || c.is_whitespace() || c.is_control(), "_"))
    };
    let platform = part("platform").unwrap_or_else(|| "slack".to_owned()).to_ascii_lowercase();
    let parts = [Some(platform), part("channel_id"), part("thread_id")];
    let key = parts.into_iter().flatten().collect::<Vec<_>>().join("/");
    key.parse::<ChannelKey>().ok().map(|key| key.to_string())
}

/// Keeps only the newest thread of each place active, and returns how many were deactivated.
///
/// Last Light's unique index does not cover threads without a `thread_id`, so there may be
/// several.
pub(crate) fn keep_newest_active(rows: &mut [LastLightRow]) -> u64 {
    let mut newest: std::collections::HashMap<Vec<Option<String>>, usize> = Default::default();
    let mut deactivated = 0;
    for at in 0..rows.len() {
        if rows[at].integer("active") == Some(0) {
            continue;
        }
        let place = ["platform", "channel_id", "thread_id", "user_id"];
        let place = place.map(|name| rows[at].text(name)).to_vec();
        let Some(&other) = newest.get(&place) else {
            newest.insert(place, at);
            continue;
        };
        deactivated += 1;
        // Equal times: the later row wins, since rows are read in the order of their creation.
        if rows[other].time("last_activity_at") <= rows[at].time("last_activity_at") {
            rows[other].set("active", Value::Integer(0));
            newest.insert(place, at);
        } else {
            rows[at].set("active", Value::Integer(0));
        }
    }
    deactivated
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREADS: [&str; 7] =
        ["id", "platform", "channel_id", "thread_id", "user_id", "last_activity_at", "active"];

    fn row(names: &[&'static str], set: &[(&str, Value)]) -> LastLightRow {
        let mut row = LastLightRow::new(names.into(), vec![Value::Null; names.len()]);
        for (name, value) in set {
            row.set(name, value.clone());
        }
        row
    }

    fn text(text: &str) -> Value {
        Value::Text(text.to_owned())
    }

    fn finished(success: i64, stop: &str) -> (JobStatus, ExitReason) {
        let columns = row(
            &EXECUTIONS,
            &[
                ("id", text("e-1")),
                ("trigger_type", text("webhook")),
                ("skill", text("build:architect")),
                ("started_at", text("2025-02-03T04:05:06.000Z")),
                ("finished_at", text("2025-02-03T04:06:06.000Z")),
                ("success", Value::Integer(success)),
                ("stop_reason", text(stop)),
            ],
        );
        let (job, unfinished) = execution(&columns).unwrap();
        assert!(!unfinished && !job.interrupted);
        assert_eq!(job.stop_reason.as_deref(), Some(stop));
        (job.head.status, job.head.exit_reason.unwrap())
    }

    #[test]
    fn outcomes_are_mapped_and_skips_are_no_failures() {
        assert_eq!(finished(1, "end_turn"), (JobStatus::Completed, ExitReason::Success));
        assert_eq!(finished(0, "skipped"), (JobStatus::Cancelled, ExitReason::Cancelled));
        assert_eq!(finished(0, "error_quota"), (JobStatus::Cancelled, ExitReason::Cancelled));
        assert_eq!(finished(0, "error_fatal"), (JobStatus::Failed, ExitReason::Error));
        assert_eq!(finished(0, "error_max_turns"), (JobStatus::Failed, ExitReason::MaxTurns));
    }

    #[test]
    fn an_execution_without_an_end_was_interrupted() {
        let columns = row(
            &EXECUTIONS,
            &[
                ("id", text("e-1")),
                ("trigger_type", text("cron")),
                ("skill", text("triage:scan")),
                ("started_at", text("2025-02-03T04:05:06Z")),
                ("repo", text("site")),
                ("owner", text("ann")),
            ],
        );
        let (job, unfinished) = execution(&columns).unwrap();
        assert!(unfinished && job.interrupted);
        assert_eq!(job.head.status, JobStatus::Failed);
        assert_eq!(job.error.as_deref(), Some(INTERRUPTED));
        assert_eq!(job.repo.as_deref(), Some("ann/site"));
        assert_eq!(job.head.trigger_type, TriggerType::Cron);
    }

    #[test]
    fn a_row_that_cannot_be_a_job_is_refused_with_the_reason() {
        let mut columns = row(&EXECUTIONS, &[("id", text("../x"))]);
        assert_eq!(execution(&columns).unwrap_err(), "it has no `trigger_type`");
        columns.set("trigger_type", text("api"));
        columns.set("skill", text("chat"));
        columns.set("started_at", text("long ago"));
        assert!(execution(&columns).unwrap_err().contains("is not a job id"));
        columns.set("id", text("e-2"));
        assert_eq!(execution(&columns).unwrap_err(), "its `started_at` is not a moment in time");
    }

    #[test]
    fn of_several_active_threads_in_one_place_the_newest_stays_active() {
        let thread = |id: &str, thread: Value, at: &str, active| {
            row(
                &THREADS,
                &[
                    ("id", text(id)),
                    ("platform", text("slack")),
                    ("channel_id", text("C1")),
                    ("thread_id", thread),
                    ("user_id", text("U1")),
                    ("last_activity_at", text(at)),
                    ("active", Value::Integer(active)),
                ],
            )
        };
        let mut rows = [
            thread("a", Value::Null, "2025-01-01T00:00:00Z", 1),
            thread("b", Value::Null, "2025-01-03T00:00:00Z", 1),
            thread("c", Value::Null, "2025-01-02T00:00:00Z", 1),
            thread("d", text("17.1"), "2025-01-01T00:00:00Z", 1),
            thread("e", Value::Null, "2025-01-09T00:00:00Z", 0),
        ];
        assert_eq!(keep_newest_active(&mut rows), 2);
        let active = rows.iter().map(|row| row.integer("active").unwrap()).collect::<Vec<_>>();
        assert_eq!(active, [0, 1, 0, 1, 0]);
    }
}
