//! Workflow runs and their journals: `workflow_runs`, `workflow_definitions`,
//! `workflow_events`, and those rows of `executions` that no process executed.
//!
//! The journal of a run consists of its executions and gates, ordered by `seq`. Start at
//! [`WorkflowRunRow`].

use heeler_model::workflow::{
    PartDecision, PartOutcome, PhasePart, WorkflowRunStatus, truncate_output,
};
use heeler_model::{
    ApprovalId, ApprovalStatus, ExitReason, JobId, JobStatus, SUMMARY_BYTES_MAX, WorkflowRunId,
    iso_millis, parse_foreign_time,
};
use jiff::Timestamp;
use rusqlite::{named_params, params};
use serde_json::{Map, Value as Json};

use super::connection::{DatabaseConnection, SqlRow};
use super::{
    CANDIDATES_MAX, ColumnReader, DatabaseError, IdLookupError, SORTS_LAST, StateDatabase,
    counters, execute, integer, query_all, query_first, sql,
};

macro_rules! head_columns {
    () => {
        "id, workflow_name, trigger_id, trigger_type, current_phase, status, restart_count, \
         started_at, updated_at, finished_at, spent, origin, error, mode, owner, repo, \
         issue_number"
    };
}

pub(super) use head_columns;

macro_rules! row_columns {
    () => {
        concat!(
            head_columns!(),
            ", version, seq, definition, triggered_by, trigger_actor_type, context, scratch"
        )
    };
}

sql! {
    RUN = concat!("SELECT ", row_columns!(), " FROM workflow_runs WHERE id = ?1");
    IDS_FROM = "SELECT id FROM workflow_runs WHERE id >= ?1 AND id < ?2 ORDER BY id LIMIT ?3";
    // The random end of an id, by which people name a run.
    IDS_FROM_END = "SELECT id FROM workflow_runs \
        WHERE substr(id, -6) >= ?1 AND substr(id, -6) < ?2 ORDER BY substr(id, -6) LIMIT ?3";
    // Imported runs have no definition that Heeler could execute, so they are never active
    // here.
    IDS_ACTIVE = "SELECT id FROM workflow_runs \
        WHERE status IN ('queued', 'running', 'paused') AND origin IS NULL";
    ACTIVE = "SELECT id FROM workflow_runs WHERE workflow_name = ?1 AND trigger_id = ?2 \
        AND status IN ('queued', 'running', 'paused') AND origin IS NULL";
    KEY = "SELECT workflow_name, status, version FROM workflow_runs WHERE id = ?1";
    INSERT = "INSERT INTO workflow_runs (id, workflow_name, trigger_id, trigger_type, \
        current_phase, status, restart_count, started_at, updated_at, finished_at, spent, origin, \
        error, version, seq, definition, mode, triggered_by, trigger_actor_type, owner, repo, \
        issue_number, context, scratch) VALUES (:id, \
        :workflow, :trigger_id, :trigger_type, :current_phase, :status, :restart_count, \
        :started_at, :updated_at, :finished_at, :spent, :origin, :error, :version, :seq, \
        :definition, :mode, :triggered_by, :trigger_actor_type, :owner, :repo, :issue_number, \
        :context, :scratch) ON CONFLICT DO NOTHING";
    // The context never changes, and `started_at` neither: lists page by it.
    UPDATE = "UPDATE workflow_runs SET current_phase = :current_phase, status = :status, \
        restart_count = :restart_count, updated_at = :updated_at, finished_at = :finished_at, \
        spent = :spent, error = :error, version = :version + 1, seq = :seq, \
        definition = :definition, mode = :mode, scratch = :scratch \
        WHERE id = :id AND version = :version";
    END_ACTIVE = "UPDATE workflow_runs SET status = 'failed', finished_at = updated_at, \
        version = version + 1, error = 'the state was restored from a backup: later results of its \
        phases are lost; heeler workflow retry continues it' \
        WHERE status IN ('queued', 'running', 'paused') AND origin IS NULL";
    WITHDRAW_GATES = "UPDATE workflow_approvals SET status = 'withdrawn', version = version + 1 \
        WHERE status = 'pending' AND seq IS NOT NULL \
        AND workflow_run_id IN (SELECT id FROM workflow_runs WHERE origin IS NULL)";
    COUNTS = "SELECT workflow_name, status, COUNT(*) FROM workflow_runs \
        GROUP BY workflow_name, status ORDER BY workflow_name, status";
    // Rows without `seq` are no part of the journal: they come from imports and plain jobs.
    JOURNAL_OF_EXECUTIONS = "SELECT id, phase, part, seq, step, status, exit_reason, interrupted, \
        decision, output_text, error, \
        COALESCE((SELECT CAST(SUM(spent) AS BIGINT) FROM runs WHERE runs.job_id = executions.id), \
        CAST(ROUND(cost_usd * 1000000) AS BIGINT)) FROM executions \
        WHERE workflow_run_id = ?1 AND seq IS NOT NULL ORDER BY seq";
    JOURNAL_OF_GATES = "SELECT id, phase, part, seq, status, response FROM workflow_approvals \
        WHERE workflow_run_id = ?1 AND seq IS NOT NULL ORDER BY seq";
    // The empty agent and `step` keep these rows out of every list and limit of jobs.
    INSERT_STEP = "INSERT INTO executions (id, agent, trigger_type, status, exit_reason, \
        started_at, finished_at, duration_ms, success, interrupted, workflow_run_id, skill, \
        error, output_text, phase, part, seq, decision, step) VALUES (:id, '', :trigger_type, \
        :status, :exit_reason, :at, :at, 0, :success, :interrupted, :run, :skill, :error, \
        :output, :phase, :part, :seq, :decision, 1)";
    PUT_DEFINITION = "INSERT INTO workflow_definitions (hash, name, created_at, files) \
        VALUES (?1, ?2, ?3, ?4) ON CONFLICT(hash) DO NOTHING";
    DEFINITION = "SELECT files FROM workflow_definitions WHERE hash = ?1";
    // Numbered per run and without gaps, so a reader can continue after any number.
    ADD_EVENT = "INSERT INTO workflow_events (workflow_run_id, number, at, kind, phase, text) \
        SELECT ?1, COALESCE(MAX(number), 0) + 1, ?2, ?3, ?4, ?5 FROM workflow_events \
        WHERE workflow_run_id = ?1";
    EVENTS = "SELECT number, at, kind, phase, text FROM workflow_events \
        WHERE workflow_run_id = ?1 AND number > ?2 ORDER BY number LIMIT ?3";
}

/// Longest stored error of a run, in bytes.
const ERROR_BYTES_MAX: usize = SUMMARY_BYTES_MAX;

/// Longest stored text of an event, in bytes.
const EVENT_BYTES_MAX: usize = 16 << 10;

/// The fields of a workflow run that a list shows. All of them have a limited size.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkflowRunHead {
    pub id: WorkflowRunId,
    pub workflow: String,
    /// Subject of the run: an issue, a thread, a schedule. Only one active run of a workflow has
    /// it.
    pub trigger_id: String,
    pub trigger_type: Option<String>,
    pub current_phase: String,
    pub status: WorkflowRunStatus,
    /// Number of times that it was resumed after a crash.
    pub restart_count: i64,
    /// Time of the request. It never changes, so lists can page by it.
    pub started_at: Timestamp,
    /// Time of the last progress.
    pub updated_at: Timestamp,
    pub finished_at: Option<Timestamp>,
    /// Cost to date, in millionths of a dollar.
    pub spent: i64,
    /// Source of an imported record.
    pub origin: Option<String>,
    /// Error, truncated to a limit.
    pub error: Option<String>,
    /// Execution mode; `None` means a real run.
    pub mode: Option<String>,
    /// Owner of the repository that the run is about.
    pub owner: Option<String>,
    /// Repository that the run is about, without its owner.
    pub repo: Option<String>,
    /// Issue or pull request that the run is about.
    pub issue_number: Option<i64>,
}

/// A workflow run with all its fields.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkflowRunRow {
    pub head: WorkflowRunHead,
    /// Incremented by each change; an update names the version it was based on.
    pub version: i64,
    /// The last `seq` in its journal.
    pub seq: u64,
    /// Hash of the definition that it follows.
    pub definition: Option<String>,
    /// Person or program that triggered it.
    pub triggered_by: Option<String>,
    /// Kind of that person or program, such as `github`.
    pub trigger_actor_type: Option<String>,
    /// Input of the run; never changes.
    pub context: Json,
    /// Values that its phases store.
    pub scratch: Map<String, Json>,
}

/// An entry of a run's journal: a part of a phase that was started.
#[derive(Debug, Clone, PartialEq)]
pub struct JournalRow {
    pub phase: String,
    pub part: PhasePart,
    /// Position in the journal, in the order in which parts were started.
    pub seq: u64,
    /// The job that executes the part, if there is one.
    pub job: Option<JobId>,
    /// The approval, if the part is a gate.
    pub approval: Option<ApprovalId>,
    /// Outcome; `None` while it is running.
    pub outcome: Option<PartOutcome>,
    /// Decision made about the part.
    pub decision: Option<PartDecision>,
    /// Output of the part, or answer to the gate.
    pub output: Option<String>,
    pub error: Option<String>,
    /// Amount spent, in millionths of a dollar.
    pub micros: i64,
}

/// A journal entry that no process executes: it starts and ends at once.
#[derive(Debug, Clone, PartialEq)]
pub struct InstantPart<'a> {
    pub run: &'a WorkflowRunId,
    /// The workflow's name and the part's label, as for jobs.
    pub skill: String,
    /// Trigger type of the run.
    pub trigger_type: &'a str,
    pub phase: &'a str,
    pub part: PhasePart,
    /// Position in the journal.
    pub seq: u64,
    pub outcome: PartOutcome,
    pub decision: Option<PartDecision>,
    pub output: Option<&'a str>,
    pub error: Option<&'a str>,
}

/// An event of a workflow run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkflowEventRecord {
    /// Number of the event within its run, from 1.
    pub number: i64,
    pub at: Timestamp,
    pub kind: String,
    /// The phase concerned.
    pub phase: Option<String>,
    /// Text, truncated to a limit.
    pub text: String,
}

impl StateDatabase {
    pub fn workflow_run(
        &self,
        id: &WorkflowRunId,
    ) -> Result<Option<WorkflowRunRow>, DatabaseError> {
        query_first(&self.conn, RUN, [id.as_str()], "read a workflow run", read_row)
    }

    /// Finds a run by its id, a unique prefix, or a unique beginning of its random end.
    pub fn find_workflow_run(&self, text: &str) -> Result<WorkflowRunRow, IdLookupError> {
        if let Ok(id) = text.parse::<WorkflowRunId>()
            && let Some(run) = self.workflow_run(&id)?
        {
            return Ok(run);
        }
        let unknown = || IdLookupError::Unknown { what: "workflow run", text: text.to_owned() };
        let mut ids = self.workflow_run_ids_with_prefix(text, CANDIDATES_MAX + 1)?;
        if ids.is_empty() {
            ids = self.workflow_run_ids(IDS_FROM_END, text, CANDIDATES_MAX + 1)?;
        }
        match ids.len() {
            // One candidate more than is shown, so that the message can say that there are more.
            0 => Err(unknown()),
            1 => self.workflow_run(&ids.remove(0))?.ok_or_else(unknown),
            _ => Err(IdLookupError::Ambiguous {
                text: text.to_owned(),
                candidates: ids.iter().map(ToString::to_string).collect(),
            }),
        }
    }

    /// Lists the ids of workflow runs that start with `prefix`, in order of the ids.
    pub fn workflow_run_ids_with_prefix(
        &self,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<WorkflowRunId>, DatabaseError> {
        self.workflow_run_ids(IDS_FROM, prefix, limit)
    }

    /// Lists the ids that a statement finds from a text on.
    fn workflow_run_ids(
        &self,
        sql: &'static str,
        text: &str,
        limit: usize,
    ) -> Result<Vec<WorkflowRunId>, DatabaseError> {
        // An empty text matches every run, which is never meant.
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let end = format!("{text}{SORTS_LAST}");
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let params = params![text, end, limit];
        query_all(&self.conn, sql, params, "look up a workflow run", |row| {
            ColumnReader::new("workflow_runs", row).parsed()
        })
    }

    /// Lists the active runs that were not imported, oldest first.
    pub fn active_workflow_runs(&self) -> Result<Vec<WorkflowRunRow>, DatabaseError> {
        let attempt = "list active workflow runs";
        let ids: Vec<WorkflowRunId> = query_all(&self.conn, IDS_ACTIVE, [], attempt, |row| {
            ColumnReader::new("workflow_runs", row).parsed()
        })?;
        // Read one by one, because an index has only the ids; few runs are active at once.
        let mut runs = Vec::with_capacity(ids.len());
        for id in ids {
            runs.extend(self.workflow_run(&id)?);
        }
        runs.sort_by(|a, b| (a.head.started_at, &a.head.id).cmp(&(b.head.started_at, &b.head.id)));
        Ok(runs)
    }

    /// Returns the active run of a workflow for a trigger.
    pub fn active_workflow_run(
        &self,
        workflow: &str,
        trigger_id: &str,
    ) -> Result<Option<WorkflowRunId>, DatabaseError> {
        query_first(&self.conn, ACTIVE, [workflow, trigger_id], "look up an active run", |row| {
            ColumnReader::new("workflow_runs", row).parsed()
        })
    }

    /// Returns the journal of a run: its executions and its gates, by `seq`.
    pub fn journal(&self, run: &WorkflowRunId) -> Result<Vec<JournalRow>, DatabaseError> {
        let attempt = "read the journal of a workflow run";
        let id = [run.as_str()];
        let mut journal =
            query_all(&self.conn, JOURNAL_OF_EXECUTIONS, id, attempt, read_execution)?;
        journal.extend(query_all(&self.conn, JOURNAL_OF_GATES, id, attempt, read_gate)?);
        journal.sort_by_key(|row| row.seq);
        Ok(journal)
    }

    /// Returns the frozen form of a definition.
    pub fn definition(&self, hash: &str) -> Result<Option<String>, DatabaseError> {
        query_first(&self.conn, DEFINITION, [hash], "read a definition", |row| {
            ColumnReader::new("workflow_definitions", row).get()
        })
    }

    /// Returns the events of a run after a number, in order.
    pub fn workflow_events(
        &self,
        run: &WorkflowRunId,
        after: i64,
        limit: usize,
    ) -> Result<Vec<WorkflowEventRecord>, DatabaseError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let params = params![run.as_str(), after, limit];
        query_all(&self.conn, EVENTS, params, "read the events of a workflow run", |row| {
            let mut columns = ColumnReader::new("workflow_events", row);
            Ok(WorkflowEventRecord {
                number: columns.get()?,
                at: columns.time()?,
                kind: columns.get()?,
                phase: columns.get()?,
                text: columns.get()?,
            })
        })
    }
}

pub(super) fn read_head(
    columns: &mut ColumnReader<'_, '_>,
) -> Result<WorkflowRunHead, DatabaseError> {
    let mut head = WorkflowRunHead {
        id: columns.parsed()?,
        workflow: columns.get()?,
        trigger_id: columns.get()?,
        trigger_type: columns.get()?,
        current_phase: columns.get()?,
        status: columns.parsed()?,
        restart_count: columns.get()?,
        started_at: Timestamp::UNIX_EPOCH,
        updated_at: Timestamp::UNIX_EPOCH,
        finished_at: None,
        spent: 0,
        origin: None,
        error: None,
        mode: None,
        owner: None,
        repo: None,
        issue_number: None,
    };
    let texts: [Option<String>; 3] = [columns.get()?, columns.get()?, columns.get()?];
    head.spent = columns.get()?;
    head.origin = columns.get()?;
    head.error = columns.get()?;
    head.mode = columns.get()?;
    head.owner = columns.get()?;
    head.repo = columns.get()?;
    head.issue_number = columns.get()?;
    let [began, updated, finished] =
        texts.each_ref().map(|it| it.as_deref().and_then(parse_foreign_time));
    // Heeler's own times must be valid. Last Light writes several formats, so its rows are lenient.
    let is_whole = began.is_some() && updated.is_some() && finished.is_some() == texts[2].is_some();
    if head.origin.is_none() && !is_whole {
        return Err(columns.bad("one of its times is invalid".to_owned()));
    }
    // In an imported run, a valid time replaces an invalid one.
    head.started_at = began.or(updated).or(finished).unwrap_or(Timestamp::UNIX_EPOCH);
    head.updated_at = updated.or(finished).unwrap_or(head.started_at);
    head.finished_at = finished;
    Ok(head)
}

fn read_row(row: &SqlRow<'_>) -> Result<WorkflowRunRow, DatabaseError> {
    let mut columns = ColumnReader::new("workflow_runs", row);
    let head = read_head(&mut columns)?;
    let is_imported = head.origin.is_some();
    Ok(WorkflowRunRow {
        head,
        version: columns.get()?,
        seq: columns.count()?,
        definition: columns.get()?,
        triggered_by: columns.get()?,
        trigger_actor_type: columns.get()?,
        context: read_json(&mut columns, is_imported)?,
        scratch: match read_json(&mut columns, is_imported)? {
            Json::Object(map) => map,
            _ => Map::new(),
        },
    })
}

/// Reads JSON; in a record of another system the column may hold something else.
fn read_json(columns: &mut ColumnReader<'_, '_>, is_imported: bool) -> Result<Json, DatabaseError> {
    let Some(text) = columns.get::<Option<String>>()? else { return Ok(Json::Null) };
    match serde_json::from_str(&text) {
        Ok(value) => Ok(value),
        Err(error) if !is_imported => Err(columns.bad(format!("it is not JSON: {error}"))),
        Err(_) => Ok(Json::String(text)),
    }
}

fn read_execution(row: &SqlRow<'_>) -> Result<JournalRow, DatabaseError> {
    let mut columns = ColumnReader::new("executions", row);
    let id: JobId = columns.parsed()?;
    let (phase, part, seq) = (columns.get()?, columns.parsed()?, columns.count()?);
    // A step has an id made from its run, which must not be taken for a job's id.
    let is_step = columns.get::<Option<i64>>()?.is_some();
    let status: JobStatus = columns.parsed()?;
    let reason: Option<ExitReason> = columns.optional_parsed()?;
    let interrupted = columns.flag()?;
    Ok(JournalRow {
        phase,
        part,
        seq,
        job: (!is_step).then_some(id),
        approval: None,
        outcome: PartOutcome::from_job(status, reason, interrupted),
        decision: columns.optional_parsed()?,
        output: columns.get()?,
        error: columns.get()?,
        // Parts without runs have no sum.
        micros: columns.get::<Option<i64>>()?.unwrap_or(0),
    })
}

/// Returns the status and exit reason that [`PartOutcome::from_job`] maps back to this outcome.
pub(super) fn status_and_exit_reason(outcome: PartOutcome) -> (JobStatus, ExitReason) {
    match outcome {
        PartOutcome::Succeeded => (JobStatus::Completed, ExitReason::Success),
        PartOutcome::Soft => (JobStatus::Completed, ExitReason::MaxTurns),
        // The column `interrupted` tells these two apart when the row is read.
        PartOutcome::Failed | PartOutcome::Interrupted => (JobStatus::Failed, ExitReason::Error),
        PartOutcome::Cancelled => (JobStatus::Cancelled, ExitReason::Cancelled),
    }
}

fn read_gate(row: &SqlRow<'_>) -> Result<JournalRow, DatabaseError> {
    let mut columns = ColumnReader::new("workflow_approvals", row);
    let id: ApprovalId = columns.parsed()?;
    let (phase, part, seq) = (columns.get()?, columns.parsed()?, columns.count()?);
    let outcome = match columns.parsed()? {
        ApprovalStatus::Pending => None,
        ApprovalStatus::Approved => Some(PartOutcome::Succeeded),
        // An expired gate has the same consequence as a rejected one.
        ApprovalStatus::Rejected | ApprovalStatus::Expired => Some(PartOutcome::Failed),
        ApprovalStatus::Withdrawn => Some(PartOutcome::Cancelled),
    };
    Ok(JournalRow {
        phase,
        part,
        seq,
        job: None,
        approval: Some(id),
        outcome,
        decision: None,
        output: columns.get()?,
        error: None,
        micros: 0,
    })
}

/// The fields that a change needs of the row it changes.
pub(crate) struct WorkflowRunRowState {
    pub(crate) workflow: String,
    pub(crate) status: String,
    pub(crate) version: i64,
}

pub(crate) fn load_row_state(
    conn: &DatabaseConnection,
    id: &str,
) -> Result<Option<WorkflowRunRowState>, DatabaseError> {
    query_first(conn, KEY, [id], "read a workflow run", |row| {
        let mut columns = ColumnReader::new("workflow_runs", row);
        Ok(WorkflowRunRowState {
            workflow: columns.get()?,
            status: columns.get()?,
            version: columns.get()?,
        })
    })
}

/// Inserts; returns true if neither its id nor its trigger was taken.
pub(crate) fn insert(
    conn: &DatabaseConnection,
    run: &WorkflowRunRow,
) -> Result<bool, DatabaseError> {
    // Both conflicts are ignored: the caller reports the existing run in place of the new one.
    let head = &run.head;
    let params = named_params! {
        ":id": head.id.as_str(),
        ":workflow": head.workflow,
        ":trigger_id": head.trigger_id,
        ":trigger_type": head.trigger_type,
        ":current_phase": head.current_phase,
        ":status": head.status.as_str(),
        ":restart_count": head.restart_count,
        ":started_at": iso_millis(head.started_at),
        ":updated_at": iso_millis(head.updated_at),
        ":finished_at": head.finished_at.map(iso_millis),
        ":spent": head.spent,
        ":origin": head.origin,
        ":error": head.error.as_deref().map(bounded_error),
        ":version": run.version,
        ":seq": integer(run.seq),
        ":definition": run.definition,
        ":mode": run.head.mode,
        ":triggered_by": run.triggered_by,
        ":trigger_actor_type": run.trigger_actor_type,
        ":owner": head.owner,
        ":repo": head.repo,
        ":issue_number": head.issue_number,
        ":context": run.context.to_string(),
        ":scratch": scratch_text(run),
    };
    Ok(execute(conn, INSERT, params, "insert a workflow run")? == 1)
}

/// Updates; returns true if the version was current.
pub(crate) fn update(
    conn: &DatabaseConnection,
    run: &WorkflowRunRow,
) -> Result<bool, DatabaseError> {
    let head = &run.head;
    let params = named_params! {
        ":id": head.id.as_str(),
        ":current_phase": head.current_phase,
        ":status": head.status.as_str(),
        ":restart_count": head.restart_count,
        ":updated_at": iso_millis(head.updated_at),
        ":finished_at": head.finished_at.map(iso_millis),
        ":spent": head.spent,
        ":error": head.error.as_deref().map(bounded_error),
        ":version": run.version,
        ":seq": integer(run.seq),
        ":definition": run.definition,
        ":mode": run.head.mode,
        ":scratch": scratch_text(run),
    };
    let is_updated = execute(conn, UPDATE, params, "update a workflow run")? == 1;
    if is_updated && head.status.is_final() {
        super::phase_history::write(conn, &head.id)?;
    }
    Ok(is_updated)
}

fn scratch_text(run: &WorkflowRunRow) -> String {
    serde_json::to_string(&run.scratch).expect("a map of JSON values is JSON")
}

pub(super) fn bounded_error(error: &str) -> &str {
    &error[..error.floor_char_boundary(ERROR_BYTES_MAX)]
}

/// Ends all active runs that were not imported, and withdraws their gates.
pub(crate) fn end_active(conn: &DatabaseConnection) -> Result<(), DatabaseError> {
    execute(conn, END_ACTIVE, [], "end workflow runs")?;
    execute(conn, WITHDRAW_GATES, [], "withdraw the gates of workflow runs")?;
    // The statements above change many rows at once, so the counters are computed from the rows.
    counters::replace(conn, counters::CounterKind::WorkflowRun, &real_counts(conn)?)?;
    counters::replace(conn, counters::CounterKind::Approval, &super::approvals::real_counts(conn)?)
}

/// Counts runs by workflow and status from the rows, to check the counters.
pub(crate) fn real_counts(
    conn: &DatabaseConnection,
) -> Result<Vec<(String, String, i64)>, DatabaseError> {
    query_all(conn, COUNTS, [], "count workflow runs", |row| {
        let mut columns = ColumnReader::new("workflow_runs", row);
        Ok((columns.get()?, columns.get()?, columns.get()?))
    })
}

pub(crate) fn insert_instant_part(
    conn: &DatabaseConnection,
    step: &InstantPart<'_>,
    at: Timestamp,
) -> Result<(), DatabaseError> {
    // Lists of jobs read the same columns, so a step is stored like a job that ended.
    let (status, reason) = status_and_exit_reason(step.outcome);
    let params = named_params! {
        ":id": step_id(step.run, step.seq),
        ":trigger_type": step.trigger_type,
        ":status": status.as_str(),
        ":exit_reason": reason.as_str(),
        ":at": iso_millis(at),
        ":success": i64::from(status == JobStatus::Completed),
        ":interrupted": i64::from(step.outcome == PartOutcome::Interrupted),
        ":run": step.run.as_str(),
        ":skill": step.skill,
        ":error": step.error.map(bounded_error),
        // A truncated list of items would not be valid JSON.
        ":output": step.output.map(|text| match step.part {
            PhasePart::Items => text.to_owned(),
            _ => truncate_output(text),
        }),
        ":phase": step.phase,
        ":part": step.part.to_string(),
        ":seq": integer(step.seq),
        ":decision": step.decision.map(PartDecision::as_str),
    };
    execute(conn, INSERT_STEP, params, "write an entry of a journal").map(|_| ())
}

/// Returns the ID of a journal entry without a process.
pub(super) fn step_id(run: &WorkflowRunId, seq: u64) -> String {
    format!("{run}-{seq}")
}

pub(crate) fn put_definition(
    conn: &DatabaseConnection,
    hash: &str,
    name: &str,
    files: &str,
    now: Timestamp,
) -> Result<(), DatabaseError> {
    let params = params![hash, name, iso_millis(now), files];
    // The hash names the content, so an existing row has the same files.
    execute(conn, PUT_DEFINITION, params, "keep a definition").map(|_| ())
}

pub(crate) fn add_event(
    conn: &DatabaseConnection,
    run: &WorkflowRunId,
    (kind, phase, text): (&str, Option<&str>, &str),
    now: Timestamp,
) -> Result<(), DatabaseError> {
    let text = &text[..text.floor_char_boundary(EVENT_BYTES_MAX)];
    let params = params![run.as_str(), iso_millis(now), kind, phase, text];
    execute(conn, ADD_EVENT, params, "write an event of a workflow run").map(|_| ())
}
