//! Reads views back: the records in `jobs/<id>.yaml`, `sessions/*.json` and `state.yaml`.
//!
//! herdctl writes the same formats, so an import from herdctl and a rebuild of the database read
//! the same records. Pure: one text in, one record out. An error is the reason why a file is not
//! a record. Start at [`parse_job`], [`parse_session`] and [`parse_agents`].

use camino::Utf8PathBuf;
use heeler_model::{
    AgentName, AgentState, AgentStatus, ApprovalMode, ExitReason, Job, JobId, JobStatus,
    JobTransition, SUMMARY_BYTES_MAX, ScheduleState, ScheduleStatus, Session, SessionId,
    SessionMode, SessionStatus, TriggerType, UsageTotals,
};
use indexmap::IndexMap;
use jiff::Timestamp;

use crate::idle_session::idle_session;
use crate::lenient_record::{DURATION_MS_MAX, LenientRecord};

#[derive(Debug, Clone, PartialEq)]
pub struct JobViewRecord {
    pub job: Job,
    /// True if the job has not ended according to its record.
    pub unfinished: bool,
    /// Name of its transcript, if that is not `<id>.jsonl`.
    pub output_name: Option<String>,
}

/// Reads `jobs/<stem>.yaml`. The agent's name is not checked.
pub fn parse_job(stem: &str, text: &str) -> Result<JobViewRecord, String> {
    let record = LenientRecord::yaml(text)?;
    let id: JobId = stem.parse().map_err(|error| format!("{error}"))?;
    // The file name is the id. A record that was copied under another name must not become a job.
    if let Some(said) = record.filled("id").filter(|said| said != stem) {
        return Err(format!("its id `{said}` is not its file name"));
    }
    let agent = record.filled("agent").ok_or("it names no agent")?;
    let status: JobStatus = record
        .filled("status")
        .ok_or("it has no status")?
        .parse()
        .map_err(|error| format!("{error}"))?;
    let started_at =
        record.time("started_at").ok_or("it has no `started_at` that is a moment in time")?;
    let trigger = record.filled("trigger_type").unwrap_or_else(|| "manual".to_owned());

    let mut job = Job::new_pending(id, &agent, TriggerType::from_word(&trigger), started_at);
    job.apply(JobTransition::Import { status });
    // These records have one time only, which is that of the request and of the start.
    job.run_started_at = (status != JobStatus::Pending).then_some(started_at);
    fill_job(&mut job, &record);
    let unfinished = !status.is_final();
    let output_name = output_name(&job.head.id, &record);
    Ok(JobViewRecord { job, unfinished, output_name })
}

fn fill_job(job: &mut Job, record: &LenientRecord) {
    let exit_word = record.filled("exit_reason");
    let head = &mut job.head;
    head.schedule = record.filled("schedule");
    head.exit_reason = exit_word.as_deref().and_then(ExitReason::parse_any);
    head.finished_at = record.time("finished_at");
    // herdctl measures in seconds, and a damaged record may hold any number.
    let milliseconds = |seconds: f64| ((seconds * 1000.0) as i64).clamp(0, DURATION_MS_MAX);
    head.duration_ms = record.number("duration_seconds").map(milliseconds);
    head.session_id = record.filled("session_id").and_then(|id| id.parse().ok());
    head.summary = record.text("summary").map(|text| cut_summary(&text));
    job.trigger_id = head.schedule.clone().unwrap_or_default();
    // An unknown exit reason is the model's own stop reason.
    job.stop_reason = record
        .filled("stop_reason")
        .or(exit_word.filter(|word| word.parse::<ExitReason>().is_err()));
    job.forked_from = record.filled("forked_from").and_then(|id| id.parse().ok());
    job.prompt = record.text("prompt");
    job.interrupted = record.flag("interrupted").unwrap_or(false);
    job.restart_count = record.integer("restart_count").unwrap_or(0);
    // Heeler and herdctl use different keys for the same text.
    job.error = record.filled("error").or_else(|| record.filled("error_message"));
    if let Some(usage) = record.record("usage") {
        head.cost_usd = usage.number("total_cost_usd");
        job.usage = read_usage(&usage);
    }
}

fn read_usage(record: &LenientRecord) -> UsageTotals {
    let per_model = record.record("per_model").unwrap_or_default();
    let sum = |key: &str| {
        let mut found = per_model.records().filter_map(|(_, model)| model.integer(key)).peekable();
        // No value at all is different from a sum of zero.
        found.peek().is_some().then(|| found.fold(0_i64, i64::saturating_add))
    };
    UsageTotals {
        num_turns: record.integer("num_turns"),
        api_duration_ms: None,
        input_tokens: sum("input_tokens"),
        cache_creation_input_tokens: sum("cache_creation_input_tokens"),
        cache_read_input_tokens: sum("cache_read_input_tokens"),
        output_tokens: sum("output_tokens"),
        per_model: per_model.map().iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
    }
}

/// Truncates a text to the limit of a job summary, at a character boundary.
pub fn cut_summary(text: &str) -> String {
    text[..text.floor_char_boundary(SUMMARY_BYTES_MAX)].to_owned()
}

/// Returns the name of the job's transcript if it differs from the default.
///
/// herdctl writes an absolute path, which becomes wrong when the project moves. So only its
/// last component is used, and the transcript is looked for next to the record.
fn output_name(id: &JobId, record: &LenientRecord) -> Option<String> {
    let path = record.filled("output_file")?;
    let name = path.rsplit(['/', '\\']).next().unwrap_or_default();
    (name != format!("{id}.jsonl")).then(|| name.to_owned())
}

/// Reads `sessions/<stem>.json` of either kind: an agent's, or `sess-xxxxxxxx`.
pub fn parse_session(stem: &str, text: &str) -> Result<Session, String> {
    let record = LenientRecord::json(text)?;
    // Only the second kind has this key, whatever the file is called.
    if record.map().contains_key("agentId") {
        numbered_session(stem, &record)
    } else {
        agent_session(stem, &record)
    }
}

fn agent_session(stem: &str, record: &LenientRecord) -> Result<Session, String> {
    // The name may be missing. The file name is then the agent.
    let name = record.filled("agent_name").unwrap_or_else(|| stem.to_owned());
    if name != stem {
        return Err(format!("its agent `{name}` is not its file name"));
    }
    let agent: AgentName = name.parse().map_err(|error| format!("{error}"))?;
    let id = record.filled("session_id").ok_or("it has no `session_id`")?;
    let last = record.time("last_used_at").or_else(|| record.time("created_at"));
    let last = last.ok_or("it has no `last_used_at` that is a moment in time")?;
    let id = id.parse().map_err(|error| format!("{error}"))?;
    let mut session = idle_session(agent.as_str(), Some(id), last);
    session.created_at = record.time("created_at").unwrap_or(last);
    session.approvals = parse_field(record, "mode").unwrap_or(ApprovalMode::Autonomous);
    session.job_count = record.integer("job_count").unwrap_or(0);
    session.working_directory = record.filled("working_directory").map(Utf8PathBuf::from);
    session.runtime = record.filled("runtime_type").unwrap_or_else(|| "sdk".to_owned());
    session.docker_enabled = record.flag("docker_enabled").unwrap_or(false);
    Ok(session)
}

fn numbered_session(stem: &str, record: &LenientRecord) -> Result<Session, String> {
    let id: SessionId = stem.parse().map_err(|error| format!("{error}"))?;
    if let Some(said) = record.filled("id").filter(|said| said != stem) {
        return Err(format!("its id `{said}` is not its file name"));
    }
    let agent = record.filled("agentId").ok_or("it names no agent")?;
    let last = record.time("lastActiveAt").or_else(|| record.time("createdAt"));
    let last = last.ok_or("it has no `lastActiveAt` that is a moment in time")?;
    // Both keys hold the native id; the second is the one of the agent's own file.
    let native_id = record.filled("agentSessionId").or_else(|| record.filled("session_id"));
    let mut session = idle_session(&agent, native_id.and_then(|id| id.parse().ok()), last);
    session.id = id;
    session.created_at = record.time("createdAt").unwrap_or(last);
    session.mode = parse_field(record, "mode").unwrap_or(SessionMode::Persistent);
    session.status = idle_status(parse_field(record, "status").unwrap_or(SessionStatus::Paused));
    session.channel_id = record.filled("channelId");
    session.message_count = record.integer("messageCount").unwrap_or(0);
    session.token_estimate = record.integer("tokenEstimate").unwrap_or(0);
    let jobs = record.map().get("jobs").and_then(|jobs| jobs.as_array()).map_or(0, Vec::len);
    session.job_count = i64::try_from(jobs).unwrap_or(i64::MAX);
    session.working_directory = record.filled("workingDirectory").map(Utf8PathBuf::from);
    session.parent = record.filled("parent").and_then(|id| id.parse().ok());
    Ok(session)
}

/// Maps an active status to idle: no process works on a session whose record is read back.
fn idle_status(status: SessionStatus) -> SessionStatus {
    if status == SessionStatus::Active { SessionStatus::Paused } else { status }
}

fn parse_field<T: std::str::FromStr>(record: &LenientRecord, key: &str) -> Option<T> {
    record.text(key)?.parse().ok()
}

/// Reads the agents of `state.yaml` as idle. An agent that cannot be read is a separate error.
pub fn parse_agents(text: &str) -> Result<IndexMap<String, Result<AgentState, String>>, String> {
    let record = LenientRecord::yaml(text)?;
    let agents = record.record("agents").unwrap_or_default();
    let read = agents.map().iter().map(|(name, value)| {
        let state = match (name.parse::<AgentName>(), value.as_object()) {
            (Err(error), _) => Err(format!("{error}")),
            (Ok(_), None) if !value.is_null() => {
                Err("it is not a mapping of keys to values".to_owned())
            }
            // An agent without any state is written as an empty value.
            (Ok(_), _) => Ok(agent_state(&agents.record(name).unwrap_or_default())),
        };
        (name.clone(), state)
    });
    Ok(read.collect())
}

/// Reads the rest of `state.yaml`: the start time of the fleet, and keys that only herdctl
/// knows.
pub fn parse_fleet(text: &str) -> Result<(Option<Timestamp>, Vec<String>), String> {
    let record = LenientRecord::yaml(text)?;
    let started_at = record.record("fleet").and_then(|fleet| fleet.time("started_at"));
    let others = record.map().keys().filter(|key| !["fleet", "agents"].contains(&key.as_str()));
    Ok((started_at, others.cloned().collect()))
}

fn agent_state(record: &LenientRecord) -> AgentState {
    let status = parse_field(record, "status").unwrap_or(AgentStatus::Idle);
    let schedules = record.record("schedules").unwrap_or_default();
    AgentState {
        // No process of the source is alive here, so nothing runs.
        status: if status == AgentStatus::Running { AgentStatus::Idle } else { status },
        current_job: None,
        last_job: record
            // The job that was running is the last one, now that it no longer runs.
            .filled("last_job")
            .or_else(|| record.filled("current_job"))
            .and_then(|id| id.parse().ok()),
        next_schedule: record.filled("next_schedule"),
        next_trigger_at: record.time("next_trigger_at"),
        container_id: None,
        error_message: record.filled("error_message"),
        schedules: schedules
            .records()
            .map(|(name, schedule)| (name.to_owned(), schedule_state(&schedule)))
            .collect(),
    }
}

fn schedule_state(record: &LenientRecord) -> ScheduleState {
    let status = parse_field(record, "status").unwrap_or(ScheduleStatus::Idle);
    ScheduleState {
        status: if status == ScheduleStatus::Running { ScheduleStatus::Idle } else { status },
        last_run_at: record.time("last_run_at"),
        next_run_at: record.time("next_run_at"),
        last_error: record.filled("last_error"),
    }
}

#[cfg(test)]
mod tests {
    use heeler_model::{iso_millis, parse_iso};

    use super::*;

    const FINISHED: &str = "\
id: job-2026-11-14-k3x9ab
agent: website.coder
schedule: nightly
trigger_type: schedule
status: completed
exit_reason: end_turn
session_id: 5b7c2c0e-4d3a-4a49-9a39-2f1f6f6ad001
forked_from: null
started_at: 2026-11-14T02:00:00.120Z
finished_at: \"2026-11-14T02:05:23.000Z\"
duration_seconds: 323
prompt: |
  Look at the traffic.
summary: Traffic is up.
output_file: /home/ann/site/.herdctl/jobs/job-2026-11-14-k3x9ab.jsonl
usage:
  per_model:
    claude-opus:
      input_tokens: 10
      output_tokens: 20
    claude-haiku:
      input_tokens: 1
      output_tokens: 2
  num_turns: 4
  total_cost_usd: 0.25
ticket: 17
";

    #[test]
    fn a_job_as_herdctl_writes_it_is_read_whole() {
        let read = parse_job("job-2026-11-14-k3x9ab", FINISHED).unwrap();
        let head = &read.job.head;
        assert_eq!(head.agent, "website.coder");
        assert_eq!(head.schedule.as_deref(), Some("nightly"));
        assert_eq!(
            (head.status, head.exit_reason),
            (JobStatus::Completed, Some(ExitReason::Success))
        );
        assert_eq!(read.job.stop_reason.as_deref(), Some("end_turn"));
        assert_eq!(iso_millis(head.started_at), "2026-11-14T02:00:00.120Z");
        assert_eq!(head.duration_ms, Some(323_000));
        assert_eq!(head.cost_usd, Some(0.25));
        assert_eq!(read.job.usage.input_tokens, Some(11));
        assert_eq!(read.job.usage.output_tokens, Some(22));
        assert_eq!(read.job.usage.cache_read_input_tokens, None);
        assert_eq!(read.job.usage.num_turns, Some(4));
        assert_eq!(read.job.prompt.as_deref(), Some("Look at the traffic.\n"));
        assert!(!read.unfinished);
        assert_eq!(read.output_name, None);
    }

    #[test]
    fn a_duration_is_brought_within_limits() {
        for (seconds, ms) in [("1e300", DURATION_MS_MAX), ("-1e300", 0), ("0.5", 500)] {
            let yaml = "agent: a\nstatus: completed\nstarted_at: 2026-01-01T00:00:00Z\n";
            let yaml = format!("{yaml}duration_seconds: {seconds}\n");
            let read = parse_job("job-2026-01-01-aaaaaa", &yaml).unwrap();
            assert_eq!(read.job.head.duration_ms, Some(ms), "{seconds}");
        }
    }

    #[test]
    fn a_job_that_cannot_be_one_is_refused_with_the_reason() {
        #[track_caller]
        fn check(stem: &str, text: &str, reason: &str) {
            let error = parse_job(stem, text).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        let good = "agent: a\nstatus: failed\nstarted_at: 2026-11-14T02:00:00Z\n";
        check("job-1", &format!("id: job-2\n{good}"), "its id `job-2` is not its file name");
        check("..", good, "is not a job id");
        check("job-1", "status: failed", "it names no agent");
        check("job-1", "agent: a\nstatus: dancing", "unknown job status `dancing`");
        check("job-1", "agent: a\nstatus: failed\nstarted_at: soon", "`started_at`");
        check("job-1", "agent: [a\nstatus", "not YAML");
    }

    #[test]
    fn a_long_summary_is_cut_at_a_character() {
        let text = format!(
            "agent: a\nstatus: failed\nstarted_at: 2026-11-14T02:00:00Z\nsummary: x{}\n",
            "é".repeat(SUMMARY_BYTES_MAX)
        );
        let summary = parse_job("job-1", &text).unwrap().job.head.summary.unwrap();
        assert_eq!(summary.len(), SUMMARY_BYTES_MAX - 1);
    }

    #[test]
    fn both_kinds_of_session_files_are_read() {
        let text = r#"{"agent_name":"coder","session_id":"c-1","created_at":"2024-01-19T08:00:00Z",
            "last_used_at":"2024-01-19T10:05:00Z","job_count":15,"mode":"review",
            "working_directory":"/home/ann/site","runtime_type":"cli","docker_enabled":true}"#;
        let read = parse_session("coder", text).unwrap();
        assert_eq!(read.agent_session_id.as_ref().unwrap().as_str(), "c-1");
        assert_eq!((read.mode, read.approvals), (SessionMode::Persistent, ApprovalMode::Review));
        assert_eq!((read.job_count, read.runtime.as_str()), (15, "cli"));
        assert!(read.docker_enabled);

        let text = r#"{"id":"sess-e5f6g7h8","agentId":"coder","mode":"per_channel","channelId":"77",
            "status":"active","createdAt":"2024-01-15T09:00:00Z",
            "lastActiveAt":"2024-01-15T10:30:00Z","messageCount":47,"tokenEstimate":32000,
            "jobs":["job-123","job-124"]}"#;
        let read = parse_session("sess-e5f6g7h8", text).unwrap();
        assert_eq!(read.id.as_str(), "sess-e5f6g7h8");
        assert_eq!((read.mode, read.status), (SessionMode::PerChannel, SessionStatus::Paused));
        assert_eq!((read.message_count, read.token_estimate, read.job_count), (47, 32000, 2));
        assert!(parse_session("other", text).unwrap_err().contains("is not a session id"));
    }

    #[test]
    fn agents_come_to_rest_and_keep_their_schedules() {
        let text = "fleet: {started_at: 2025-01-19T10:00:00Z}\nagents:\n  coder:\n    \
                    status: running\n    current_job: job-2024-01-19-def456\n    schedules:\n      \
                    nightly:\n        status: running\n        last_run_at: 2026-11-15T00:48:57.120Z\n      \
                    off: {status: disabled}\n  \"../x\": {}\n  bare:\n";
        assert_eq!(parse_fleet(text).unwrap(), (parse_iso("2025-01-19T10:00:00Z"), Vec::new()));
        let read = parse_agents(text).unwrap();
        let coder = read["coder"].as_ref().unwrap();
        assert_eq!(coder.status, AgentStatus::Idle);
        assert_eq!(coder.current_job, None);
        assert_eq!(coder.last_job.as_ref().unwrap().as_str(), "job-2024-01-19-def456");
        assert_eq!(coder.schedules["nightly"].status, ScheduleStatus::Idle);
        assert_eq!(coder.schedules["nightly"].last_run_at, parse_iso("2026-11-15T00:48:57.120Z"));
        assert_eq!(coder.schedules["off"].status, ScheduleStatus::Disabled);
        assert!(read["../x"].is_err());
        assert!(read["bare"].is_ok());
    }
}
