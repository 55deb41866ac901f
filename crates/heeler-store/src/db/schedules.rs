//! Schedules: results of their due times, their progress, and people's overrides.
//!
//! The progress is in the schedule's row, an occurrence or a skip in a row of its own; all of
//! them change in the transaction that makes the decision. Overrides share a table with those
//! of Last Light, which have names without `/`.

use std::str::FromStr;

use heeler_model::timetable::{DueTimeCursor, DueTimeSkip};
use heeler_model::{IdParseError, JobId, WorkflowRunId, iso_millis, parse_iso};
use jiff::Timestamp;
use rusqlite::params;

use super::connection::{DatabaseConnection, SqlRow};
use super::{
    ColumnReader, DatabaseError, SORTS_LAST, StateDatabase, agents, execute, query_all,
    query_first, sql,
};

/// Prefix of the IDs of workflow runs.
const WORKFLOW_RUN_PREFIX: &str = "wf-";

sql! {
    PROGRESS = "SELECT agent, name, anchor, through, rule FROM schedules WHERE anchor IS NOT NULL \
        ORDER BY agent, name";
    // A removed schedule is not updated: it counts as created again.
    UPDATE_PROGRESS = "UPDATE schedules SET anchor = ?3, through = ?4, rule = ?5 \
        WHERE agent = ?1 AND name = ?2 AND removed = 0";
    PUT_PROGRESS = "INSERT INTO schedules (agent, name, anchor, through, rule) \
        VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT(agent, name) DO UPDATE SET \
        anchor = excluded.anchor, through = excluded.through, rule = excluded.rule, removed = 0";
    PAGE_OF_OCCURRENCES = "SELECT agent, schedule, due_at, job_id FROM occurrences \
        WHERE agent = ?1 AND schedule = ?2 AND due_at < ?3 ORDER BY due_at DESC LIMIT ?4";
    OCCURRENCE_OF_JOB = "SELECT agent, schedule, due_at, job_id FROM occurrences \
        WHERE job_id = ?1 LIMIT 1";
    // A second decision for the same due time must not create a second job (P3).
    ADD_OCCURRENCE = "INSERT INTO occurrences (agent, schedule, due_at, job_id) \
        VALUES (?1, ?2, ?3, ?4) ON CONFLICT(agent, schedule, due_at) DO NOTHING";
    HAS_OCCURRENCE = "SELECT 1 FROM occurrences \
        WHERE agent = ?1 AND schedule = ?2 AND due_at = ?3";
    OCCURRENCE_BETWEEN = "SELECT 1 FROM occurrences \
        WHERE agent = ?1 AND schedule = ?2 AND due_at > ?3 AND due_at < ?4 LIMIT 1";
    PAGE_OF_SKIPS = "SELECT agent, schedule, first_due, last_due, count, reason, recorded_at \
        FROM skips WHERE agent = ?1 AND schedule = ?2 AND first_due < ?3 \
        ORDER BY first_due DESC, reason DESC LIMIT ?4";
    // Only spans of one reason are merged, because each span has one reason.
    LAST_SKIP_OF_REASON = "SELECT agent, schedule, first_due, last_due, count, reason, recorded_at \
        FROM skips WHERE agent = ?1 AND schedule = ?2 AND reason = ?3 AND first_due <= ?4 \
        ORDER BY first_due DESC LIMIT 1";
    SKIP_BETWEEN = "SELECT 1 FROM skips \
        WHERE agent = ?1 AND schedule = ?2 AND first_due > ?3 AND first_due < ?4 LIMIT 1";
    INSERT_SKIP = "INSERT INTO skips (agent, schedule, first_due, last_due, count, reason, \
        recorded_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    REMOVE_SKIP = "DELETE FROM skips \
        WHERE agent = ?1 AND schedule = ?2 AND first_due = ?3 AND reason = ?4";
    NEXT_OCCURRED = "SELECT agent, schedule FROM occurrences WHERE (agent, schedule) > (?1, ?2) \
        ORDER BY agent, schedule LIMIT 1";
    NEXT_SKIPPED = "SELECT agent, schedule FROM skips WHERE (agent, schedule) > (?1, ?2) \
        ORDER BY agent, schedule LIMIT 1";
    // The newest row stays, and at most `?4` rows are removed per call.
    PRUNE_OCCURRENCES = "DELETE FROM occurrences WHERE agent = ?1 AND schedule = ?2 \
        AND due_at < ?3 AND due_at < \
            (SELECT MAX(due_at) FROM occurrences WHERE agent = ?1 AND schedule = ?2) \
        AND due_at < COALESCE((SELECT due_at FROM occurrences \
            WHERE agent = ?1 AND schedule = ?2 ORDER BY due_at LIMIT 1 OFFSET ?4), ?3)";
    PRUNE_SKIPS = "DELETE FROM skips WHERE agent = ?1 AND schedule = ?2 \
        AND last_due < ?3 AND first_due < \
            (SELECT MAX(first_due) FROM skips WHERE agent = ?1 AND schedule = ?2) \
        AND first_due < COALESCE((SELECT first_due FROM skips \
            WHERE agent = ?1 AND schedule = ?2 ORDER BY first_due LIMIT 1 OFFSET ?4), ?3)";
    OVERRIDES = "SELECT name, enabled, schedule, updated_at, updated_by FROM cron_overrides \
        ORDER BY name";
    PUT_OVERRIDE = "INSERT INTO cron_overrides (name, enabled, schedule, updated_at, updated_by) \
        VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT(name) DO UPDATE SET enabled = excluded.enabled, \
        schedule = excluded.schedule, updated_at = excluded.updated_at, \
        updated_by = excluded.updated_by";
    REMOVE_OVERRIDE = "DELETE FROM cron_overrides WHERE name = ?1";
}

/// The progress of a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleProgressRecord {
    pub agent: String,
    pub schedule: String,
    /// Point up to which its due times are recorded.
    pub progress: DueTimeCursor,
    /// Text of its trigger at that point.
    pub trigger_text: String,
}

/// A due time for which a job was created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OccurrenceRecord {
    pub agent: String,
    pub schedule: String,
    pub due: Timestamp,
    pub work: ScheduledWorkId,
}

/// The work that was started at a due time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScheduledWorkId {
    Job(JobId),
    WorkflowRun(WorkflowRunId),
}

impl ScheduledWorkId {
    pub fn as_str(&self) -> &str {
        match self {
            ScheduledWorkId::Job(job) => job.as_str(),
            ScheduledWorkId::WorkflowRun(run) => run.as_str(),
        }
    }
}

impl FromStr for ScheduledWorkId {
    type Err = IdParseError;

    fn from_str(text: &str) -> Result<ScheduledWorkId, IdParseError> {
        // Heeler creates the work of a due time itself, so its prefix says which of the two it is.
        match text.starts_with(WORKFLOW_RUN_PREFIX) {
            true => text.parse().map(ScheduledWorkId::WorkflowRun),
            false => text.parse().map(ScheduledWorkId::Job),
        }
    }
}

impl From<&JobId> for ScheduledWorkId {
    fn from(job: &JobId) -> ScheduledWorkId {
        ScheduledWorkId::Job(job.clone())
    }
}

impl From<&WorkflowRunId> for ScheduledWorkId {
    fn from(run: &WorkflowRunId) -> ScheduledWorkId {
        ScheduledWorkId::WorkflowRun(run.clone())
    }
}

/// Consecutive due times without a job, for one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkipRecord {
    pub agent: String,
    pub schedule: String,
    /// The time span, the number of due times and the reason.
    pub skip: DueTimeSkip,
    /// Time at which the last of them was recorded.
    pub recorded_at: Timestamp,
}

/// A person's override of a schedule's config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleOverrideRecord {
    pub agent: String,
    pub schedule: String,
    pub enabled: bool,
    /// A cron expression or an interval that replaces the configured one.
    pub text: Option<String>,
    pub at: Timestamp,
    pub by: String,
}

impl StateDatabase {
    pub fn schedule_progress(&self) -> Result<Vec<ScheduleProgressRecord>, DatabaseError> {
        query_all(&self.conn, PROGRESS, [], "list the progress of schedules", |row| {
            let mut columns = ColumnReader::new("schedules", row);
            Ok(ScheduleProgressRecord {
                agent: columns.get()?,
                schedule: columns.get()?,
                progress: DueTimeCursor { anchor: columns.time()?, through: columns.time()? },
                trigger_text: columns.get()?,
            })
        })
    }

    /// Lists a schedule's occurrences before a time, newest first.
    pub fn occurrences(
        &self,
        agent: &str,
        schedule: &str,
        before: Option<Timestamp>,
        limit: usize,
    ) -> Result<Vec<OccurrenceRecord>, DatabaseError> {
        let params = params![agent, schedule, end_of_page(before), bound(limit)];
        query_all(&self.conn, PAGE_OF_OCCURRENCES, params, "list occurrences", read_occurrence)
    }

    /// Returns true if a job is recorded for a due time.
    pub fn has_occurrence(
        &self,
        agent: &str,
        schedule: &str,
        due: Timestamp,
    ) -> Result<bool, DatabaseError> {
        let params = params![agent, schedule, iso_millis(due)];
        let found =
            query_first(&self.conn, HAS_OCCURRENCE, params, "look up a due time", |_| Ok(()))?;
        Ok(found.is_some())
    }

    /// Returns the due time for which a job was created.
    pub fn occurrence_of_job(
        &self,
        job: &JobId,
    ) -> Result<Option<OccurrenceRecord>, DatabaseError> {
        let attempt = "read a job's due time";
        query_first(&self.conn, OCCURRENCE_OF_JOB, [job.as_str()], attempt, read_occurrence)
    }

    /// Lists a schedule's skips that begin before a time, newest first.
    pub fn skips(
        &self,
        agent: &str,
        schedule: &str,
        before: Option<Timestamp>,
        limit: usize,
    ) -> Result<Vec<SkipRecord>, DatabaseError> {
        let params = params![agent, schedule, end_of_page(before), bound(limit)];
        query_all(&self.conn, PAGE_OF_SKIPS, params, "list skips", read_skip)
    }

    pub fn schedule_overrides(&self) -> Result<Vec<ScheduleOverrideRecord>, DatabaseError> {
        let rows = query_all(&self.conn, OVERRIDES, [], "list overrides", read_override)?;
        // Rows of Last Light have no agent in their name and are not schedules of this fleet.
        Ok(rows.into_iter().flatten().collect())
    }
}

fn end_of_page(before: Option<Timestamp>) -> String {
    before.map_or_else(|| SORTS_LAST.to_owned(), iso_millis)
}

fn bound(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

fn read_occurrence(row: &SqlRow<'_>) -> Result<OccurrenceRecord, DatabaseError> {
    let mut columns = ColumnReader::new("occurrences", row);
    Ok(OccurrenceRecord {
        agent: columns.get()?,
        schedule: columns.get()?,
        due: columns.time()?,
        work: columns.parsed()?,
    })
}

fn read_skip(row: &SqlRow<'_>) -> Result<SkipRecord, DatabaseError> {
    let mut columns = ColumnReader::new("skips", row);
    let (agent, schedule) = (columns.get()?, columns.get()?);
    let (first, last) = (columns.time()?, columns.time()?);
    let count: i64 = columns.get()?;
    let count =
        u64::try_from(count).map_err(|_| columns.bad(format!("`{count}` is not a count")))?;
    let skip = DueTimeSkip { first, last, count, reason: columns.parsed()? };
    Ok(SkipRecord { agent, schedule, skip, recorded_at: columns.time()? })
}

/// Reads an override; `None` if it belongs to Last Light.
fn read_override(row: &SqlRow<'_>) -> Result<Option<ScheduleOverrideRecord>, DatabaseError> {
    let mut columns = ColumnReader::new("cron_overrides", row);
    let name: String = columns.get()?;
    // An agent's name has no `/`; a schedule's name may have one.
    let Some((agent, schedule)) = name.split_once('/') else { return Ok(None) };
    Ok(Some(ScheduleOverrideRecord {
        agent: agent.to_owned(),
        schedule: schedule.to_owned(),
        enabled: columns.flag()?,
        text: columns.get()?,
        // An imported row may lack the time and the person.
        at: parse_iso(&columns.get::<String>()?).unwrap_or(Timestamp::UNIX_EPOCH),
        by: columns.get::<Option<String>>()?.unwrap_or_default(),
    }))
}

fn override_name(agent: &str, schedule: &str) -> String {
    format!("{agent}/{schedule}")
}

/// Sets a schedule's progress; returns true if that created the schedule.
pub(crate) fn set_progress(
    conn: &DatabaseConnection,
    record: &ScheduleProgressRecord,
) -> Result<bool, DatabaseError> {
    let ScheduleProgressRecord { agent, schedule, progress, trigger_text: rule } = record;
    let params =
        params![agent, schedule, iso_millis(progress.anchor), iso_millis(progress.through), rule];
    if execute(conn, UPDATE_PROGRESS, params, "update a schedule's progress")? == 1 {
        return Ok(false);
    }
    // A schedule's row refers to its agent's row, which may not exist yet.
    agents::ensure_agent(conn, agent)?;
    execute(conn, PUT_PROGRESS, params, "insert a schedule's progress")?;
    Ok(true)
}

/// Inserts; returns true if the due time was new.
pub(crate) fn add_occurrence(
    conn: &DatabaseConnection,
    agent: &str,
    schedule: &str,
    due: Timestamp,
    work: &ScheduledWorkId,
) -> Result<bool, DatabaseError> {
    let params = params![agent, schedule, iso_millis(due), work.as_str()];
    Ok(execute(conn, ADD_OCCURRENCE, params, "record a due time")? == 1)
}

/// Records a span, merged with spans that it overlaps or continues; returns true if there were
/// none.
///
/// Spans overlap only after a clock was set back; those with the same reason are merged.
pub(crate) fn add_skip(
    conn: &DatabaseConnection,
    agent: &str,
    schedule: &str,
    skip: &DueTimeSkip,
    now: Timestamp,
) -> Result<bool, DatabaseError> {
    let mut whole = *skip;
    while let Some(known) = last_skip_by(conn, agent, schedule, &whole)? {
        // Only a clock that was set back makes spans overlap.
        let overlaps = known.last >= whole.first;
        // A job between two spans separates them. Merged, they would claim the job's due time as
        // skipped.
        if !overlaps && is_between(conn, agent, schedule, known.last, whole.first)? {
            break;
        }
        let params = params![agent, schedule, iso_millis(known.first), known.reason.as_str()];
        execute(conn, REMOVE_SKIP, params, "join a skip")?;
        whole.first = whole.first.min(known.first);
        whole.last = whole.last.max(known.last);
        whole.count = whole.count.saturating_add(known.count);
    }
    let params = params![
        agent,
        schedule,
        iso_millis(whole.first),
        iso_millis(whole.last),
        i64::try_from(whole.count).unwrap_or(i64::MAX),
        whole.reason.as_str(),
        iso_millis(now),
    ];
    execute(conn, INSERT_SKIP, params, "record a skip")?;
    // The count is unchanged exactly if no span was merged.
    Ok(whole.count == skip.count)
}

/// Returns the last span with the same reason that does not begin after the end of this one.
fn last_skip_by(
    conn: &DatabaseConnection,
    agent: &str,
    schedule: &str,
    skip: &DueTimeSkip,
) -> Result<Option<DueTimeSkip>, DatabaseError> {
    let params = params![agent, schedule, skip.reason.as_str(), iso_millis(skip.last)];
    let found = query_first(conn, LAST_SKIP_OF_REASON, params, "read the last skip", read_skip)?;
    Ok(found.map(|row| row.skip))
}

/// Returns true if an occurrence, or a skip with another reason, lies between two times.
fn is_between(
    conn: &DatabaseConnection,
    agent: &str,
    schedule: &str,
    after: Timestamp,
    before: Timestamp,
) -> Result<bool, DatabaseError> {
    let params = params![agent, schedule, iso_millis(after), iso_millis(before)];
    for sql in [OCCURRENCE_BETWEEN, SKIP_BETWEEN] {
        if query_first(conn, sql, params, "look between skips", |_| Ok(()))?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Most schedules that are pruned in one call.
const PRUNED_SCHEDULES_MAX: usize = 64;

/// Most rows of one schedule and kind that are removed in one call.
// Pruning runs in the writer's transaction, so one call may not hold it for long.
const PRUNED_ROWS_MAX: i64 = 500;

/// Removes records of due times before a time, except the newest of each schedule. One call
/// handles the next few schedules after the given one; returns the last of them, or `None` if
/// there were no more.
pub(crate) fn prune(
    conn: &DatabaseConnection,
    after: Option<(String, String)>,
    before: Timestamp,
) -> Result<Option<(String, String)>, DatabaseError> {
    let mut last = after.unwrap_or_default();
    for _ in 0..PRUNED_SCHEDULES_MAX {
        let mut next: Option<(String, String)> = None;
        // A schedule may have only skips or only occurrences, so both tables are followed.
        for sql in [NEXT_OCCURRED, NEXT_SKIPPED] {
            let found =
                query_first(conn, sql, params![last.0, last.1], "look for old due times", |row| {
                    let mut columns = ColumnReader::new("occurrences", row);
                    Ok((columns.get()?, columns.get()?))
                })?;
            next = match (next, found) {
                // The smaller name comes first, or the schedules between the two would be left out.
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
        }
        let Some((agent, schedule)) = next else { return Ok(None) };
        for sql in [PRUNE_OCCURRENCES, PRUNE_SKIPS] {
            let params = params![agent, schedule, iso_millis(before), PRUNED_ROWS_MAX];
            execute(conn, sql, params, "remove old due times")?;
        }
        last = (agent, schedule);
    }
    Ok(Some(last))
}

pub(crate) fn put_schedule_override(
    conn: &DatabaseConnection,
    change: &ScheduleOverrideRecord,
) -> Result<(), DatabaseError> {
    let params = params![
        override_name(&change.agent, &change.schedule),
        i64::from(change.enabled),
        change.text,
        iso_millis(change.at),
        change.by,
    ];
    execute(conn, PUT_OVERRIDE, params, "write an override").map(|_| ())
}

/// Returns true if the override existed.
pub(crate) fn remove_schedule_override(
    conn: &DatabaseConnection,
    agent: &str,
    schedule: &str,
) -> Result<bool, DatabaseError> {
    let name = override_name(agent, schedule);
    Ok(execute(conn, REMOVE_OVERRIDE, [name], "remove an override")? == 1)
}
