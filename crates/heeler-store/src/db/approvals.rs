//! Approvals: questions to people, and their answers; the table `workflow_approvals`.

use heeler_model::workflow::truncate_output;
use heeler_model::{
    APPROVAL_SUMMARY_BYTES_MAX, Approval, ApprovalId, ApprovalKind, ApprovalStatus, JobId, RunId,
    iso_millis,
};
use jiff::Timestamp;
use rusqlite::{named_params, params};
use serde_json::Value as Json;

use super::connection::{DatabaseConnection, SqlParams, SqlRow};
use super::{
    CANDIDATES_MAX, ColumnReader, DatabaseError, IdLookupError, SORTS_LAST, StateDatabase,
    counters, execute, integer, query_all, query_first, sql,
};

macro_rules! listed_columns {
    () => {
        "id, workflow_run_id, gate, kind, status, requested_by, responded_by, responded_at, \
         created_at, expires_at, default_answer, job_id, run_id, ask_id, delivered_at, phase, \
         part, seq, version, summary"
    };
}

macro_rules! page_of {
    ($filter:literal) => {
        concat!(
            "SELECT ",
            listed_columns!(),
            " FROM workflow_approvals WHERE ",
            $filter,
            "(created_at, id) < (?3, ?4) ORDER BY created_at DESC, id DESC LIMIT ?5"
        )
    };
}

sql! {
    PAGE = page_of!("");
    PAGE_OF_STATUS = page_of!("status = ?2 AND ");
    PAGE_OF_RUN = page_of!("workflow_run_id = ?1 AND ");
    APPROVAL = concat!("SELECT ", listed_columns!(), ", response, detail, artifact \
        FROM workflow_approvals WHERE id = ?1");
    COUNT_OF_RUN = "SELECT COUNT(*) FROM workflow_approvals WHERE workflow_run_id = ?1 \
        AND (CAST(?2 AS TEXT) IS NULL OR status = ?2)";
    IDS_FROM = "SELECT id FROM workflow_approvals WHERE id >= ?1 AND id < ?2 ORDER BY id LIMIT ?3";
    // `ask_id` marks questions of a running agent; gates of workflows have none.
    IDS_UNDELIVERED = "SELECT id FROM workflow_approvals \
        WHERE run_id = ?1 AND ask_id IS NOT NULL AND delivered_at IS NULL";
    IDS_EXPIRED = "SELECT id FROM workflow_approvals \
        WHERE status = 'pending' AND ask_id IS NULL AND expires_at IS NOT NULL \
        AND expires_at <= ?1 ORDER BY expires_at LIMIT ?2";
    NEXT_EXPIRY = "SELECT expires_at FROM workflow_approvals \
        WHERE status = 'pending' AND ask_id IS NULL AND expires_at IS NOT NULL \
        ORDER BY expires_at LIMIT 1";
    ID_OF_ASK = "SELECT id FROM workflow_approvals WHERE run_id = ?1 AND ask_id = ?2";
    KEY = "SELECT kind, status FROM workflow_approvals WHERE id = ?1";
    // The same question may be noticed twice: by inotify, and when a run is taken over.
    INSERT = "INSERT INTO workflow_approvals (id, workflow_run_id, gate, kind, status, \
        requested_by, responded_by, responded_at, created_at, expires_at, default_answer, job_id, \
        run_id, ask_id, delivered_at, phase, part, seq, version, summary, response, detail, \
        artifact) VALUES (:id, :workflow_run_id, :gate, :kind, :status, :requested_by, \
        :responded_by, :responded_at, :created_at, :expires_at, :default_answer, :job_id, \
        :run_id, :ask_id, :delivered_at, :phase, :part, :seq, :version, :summary, :response, \
        :detail, :artifact) ON CONFLICT DO NOTHING";
    // The condition lets exactly one of several concurrent answers count (P7).
    ANSWER = "UPDATE workflow_approvals SET status = ?2, response = ?3, responded_by = ?4, \
        responded_at = ?5, version = version + 1 WHERE id = ?1 AND status = 'pending'";
    // No condition: the runner's decision counts, because the agent has acted on it.
    OVERRULE = "UPDATE workflow_approvals SET status = ?2, response = ?3, responded_by = ?4, \
        responded_at = ?5, version = version + 1 WHERE id = ?1";
    SET_DETAIL = "UPDATE workflow_approvals SET detail = ?2, version = version + 1 WHERE id = ?1";
    // The first delivery counts. It may be reported again by the next daemon.
    DELIVERED = "UPDATE workflow_approvals SET delivered_at = ?2, version = version + 1 \
        WHERE id = ?1 AND delivered_at IS NULL";
    COUNTS = "SELECT kind, status, COUNT(*) FROM workflow_approvals GROUP BY kind, status ORDER BY kind, status";
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ApprovalFilter {
    /// Only approvals of this workflow run, or of this plain job.
    pub run: Option<String>,
    pub status: Option<ApprovalStatus>,
}

/// End of a page of approvals; the next page begins after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalCursor {
    pub created_at: Timestamp,
    pub id: ApprovalId,
}

impl ApprovalCursor {
    pub fn after(approval: &Approval) -> ApprovalCursor {
        ApprovalCursor { created_at: approval.created_at, id: approval.id.clone() }
    }
}

impl StateDatabase {
    /// Returns a page of approvals, newest first, continuing after `before`. Full questions and
    /// answers are not loaded.
    pub fn approvals(
        &self,
        filter: &ApprovalFilter,
        before: Option<&ApprovalCursor>,
        limit: usize,
    ) -> Result<Vec<Approval>, DatabaseError> {
        let sql = match (&filter.run, filter.status) {
            (None, None) => PAGE,
            (None, Some(_)) => PAGE_OF_STATUS,
            (Some(_), _) => PAGE_OF_RUN,
        };
        let status = filter.status.map(ApprovalStatus::as_str);
        let at = before.map_or(SORTS_LAST.to_owned(), |cursor| iso_millis(cursor.created_at));
        let id = before.map_or(SORTS_LAST, |cursor| cursor.id.as_str());
        // A run has few approvals, so the status is filtered here.
        let all = filter.run.is_some() && filter.status.is_some();
        let most = if all { i64::MAX } else { i64::try_from(limit).unwrap_or(i64::MAX) };
        let params = params![filter.run, status, at, id, most];
        let mut page = query_all(&self.conn, sql, params, "list approvals", |row| {
            read_listed(&mut ColumnReader::new("workflow_approvals", row))
        })?;
        page.retain(|approval| filter.status.is_none_or(|status| approval.status == status));
        page.truncate(limit);
        Ok(page)
    }

    /// Counts the approvals that match a filter.
    pub fn count_approvals(&self, filter: &ApprovalFilter) -> Result<i64, DatabaseError> {
        let status = filter.status.map(ApprovalStatus::as_str);
        let Some(run) = &filter.run else {
            return counters::total(&self.conn, counters::CounterKind::Approval, None, status);
        };
        let count = query_first(
            &self.conn,
            COUNT_OF_RUN,
            params![run, status],
            "count approvals",
            |row| ColumnReader::new("workflow_approvals", row).get(),
        )?;
        Ok(count.unwrap_or(0))
    }

    /// Returns an approval with its full question and answer.
    pub fn approval(&self, id: &ApprovalId) -> Result<Option<Approval>, DatabaseError> {
        query_first(&self.conn, APPROVAL, [id.as_str()], "read an approval", read)
    }

    /// Finds an approval by its id or a unique prefix, also without `ask-`.
    pub fn find_approval(&self, text: &str) -> Result<Approval, IdLookupError> {
        if let Ok(id) = text.parse::<ApprovalId>()
            && let Some(approval) = self.approval(&id)?
        {
            return Ok(approval);
        }
        let unknown = || IdLookupError::Unknown { what: "approval", text: text.to_owned() };
        // One candidate more than is shown, so that the message can say that there are more.
        let mut ids = self.approval_ids_with_prefix(text, CANDIDATES_MAX + 1)?;
        if ids.is_empty() && !text.is_empty() {
            ids = self.approval_ids_with_prefix(&format!("ask-{text}"), CANDIDATES_MAX + 1)?;
        }
        match ids.len() {
            0 => Err(unknown()),
            1 => self.approval(&ids.remove(0))?.ok_or_else(unknown),
            _ => Err(IdLookupError::Ambiguous {
                text: text.to_owned(),
                candidates: ids.iter().map(ToString::to_string).collect(),
            }),
        }
    }

    /// Lists the ids of approvals that start with `prefix`, in order of the ids.
    pub fn approval_ids_with_prefix(
        &self,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<ApprovalId>, DatabaseError> {
        // An empty prefix matches every approval, which is never meant.
        if prefix.is_empty() {
            return Ok(Vec::new());
        }
        let end = format!("{prefix}{SORTS_LAST}");
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.approval_ids(IDS_FROM, params![prefix, end, limit])
    }

    /// Returns the approval of a run's question.
    pub fn approval_for_question(
        &self,
        run: RunId,
        ask: &str,
    ) -> Result<Option<Approval>, DatabaseError> {
        let ids = self.approval_ids(ID_OF_ASK, params![run.to_string(), ask])?;
        ids.first().map_or(Ok(None), |id| self.approval(id))
    }

    /// Lists the pending approvals of a workflow run or plain job, oldest first.
    pub fn pending_approvals_of(&self, run: &str) -> Result<Vec<Approval>, DatabaseError> {
        let status = Some(ApprovalStatus::Pending);
        let filter = ApprovalFilter { run: Some(run.to_owned()), status };
        let mut pending = self.approvals(&filter, None, usize::MAX)?;
        pending.reverse();
        Ok(pending)
    }

    /// Lists the approvals, in full, that the agent of a run requested and did not get the answer
    /// to.
    pub fn undelivered_approvals(&self, run: RunId) -> Result<Vec<Approval>, DatabaseError> {
        let ids = self.approval_ids(IDS_UNDELIVERED, params![run.to_string()])?;
        let mut found = Vec::with_capacity(ids.len());
        for id in ids {
            found.extend(self.approval(&id)?);
        }
        Ok(found)
    }

    /// Lists the expired gates, earliest expiry first. Questions of a running agent are expired by
    /// its runner.
    pub fn expired_gates(
        &self,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<Approval>, DatabaseError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let ids = self.approval_ids(IDS_EXPIRED, params![iso_millis(now), limit])?;
        let mut found = Vec::with_capacity(ids.len());
        for id in ids {
            found.extend(self.approval(&id)?);
        }
        Ok(found)
    }

    pub fn next_gate_expiry(&self) -> Result<Option<Timestamp>, DatabaseError> {
        query_first(&self.conn, NEXT_EXPIRY, [], "read when an approval expires", |row| {
            ColumnReader::new("workflow_approvals", row).time()
        })
    }

    fn approval_ids(
        &self,
        sql: &'static str,
        params: impl SqlParams,
    ) -> Result<Vec<ApprovalId>, DatabaseError> {
        query_all(&self.conn, sql, params, "look up approvals", |row| {
            ColumnReader::new("workflow_approvals", row).parsed()
        })
    }
}

fn read_listed(columns: &mut ColumnReader<'_, '_>) -> Result<Approval, DatabaseError> {
    Ok(Approval {
        id: columns.parsed()?,
        workflow_run_id: columns.get()?,
        gate: columns.get()?,
        kind: columns.parsed()?,
        status: columns.parsed()?,
        requested_by: columns.get()?,
        responded_by: columns.get()?,
        responded_at: columns.optional_time()?,
        created_at: columns.time()?,
        expires_at: columns.optional_time()?,
        default_answer: columns.get()?,
        job_id: columns.optional_parsed()?,
        run_id: columns.optional_parsed()?,
        ask_id: columns.get()?,
        delivered_at: columns.optional_time()?,
        phase: columns.get()?,
        part: columns.optional_parsed()?,
        seq: columns.optional_count()?,
        version: columns.get()?,
        summary: columns.get()?,
        // Columns of unbounded size, which a list does not read.
        response: None,
        detail: None,
        artifact: None,
    })
}

fn read(row: &SqlRow<'_>) -> Result<Approval, DatabaseError> {
    let mut columns = ColumnReader::new("workflow_approvals", row);
    let listed = read_listed(&mut columns)?;
    let response = columns.get()?;
    let detail: Option<String> = columns.get()?;
    let detail = detail.map(|text| serde_json::from_str(&text)).transpose();
    Ok(Approval {
        response,
        detail: detail.map_err(|error| columns.bad(format!("detail: {error}")))?,
        artifact: columns.get()?,
        ..listed
    })
}

/// Returns the fields that a change needs of the row it changes.
pub(crate) fn kind_and_status(
    conn: &DatabaseConnection,
    id: &ApprovalId,
) -> Result<Option<(ApprovalKind, ApprovalStatus)>, DatabaseError> {
    query_first(conn, KEY, [id.as_str()], "read an approval", |row| {
        let mut columns = ColumnReader::new("workflow_approvals", row);
        Ok((columns.parsed()?, columns.parsed()?))
    })
}

/// Inserts; returns true if its id, its journal position and its question were new.
pub(crate) fn insert(
    conn: &DatabaseConnection,
    approval: &Approval,
) -> Result<bool, DatabaseError> {
    let summary = approval.summary.as_str();
    let params = named_params! {
        ":id": approval.id.as_str(),
        ":workflow_run_id": approval.workflow_run_id,
        ":gate": approval.gate,
        ":kind": approval.kind.as_str(),
        ":status": approval.status.as_str(),
        ":requested_by": approval.requested_by,
        ":responded_by": approval.responded_by,
        ":responded_at": approval.responded_at.map(iso_millis),
        ":created_at": iso_millis(approval.created_at),
        ":expires_at": approval.expires_at.map(iso_millis),
        ":default_answer": approval.default_answer,
        ":job_id": approval.job_id.as_ref().map(JobId::as_str),
        ":run_id": approval.run_id.map(|run| run.to_string()),
        ":ask_id": approval.ask_id,
        ":delivered_at": approval.delivered_at.map(iso_millis),
        ":phase": approval.phase,
        ":part": approval.part.map(|part| part.to_string()),
        ":seq": approval.seq.map(integer),
        ":version": approval.version,
        // Lists show the summary, so its size is limited.
        ":summary": &summary[..summary.floor_char_boundary(APPROVAL_SUMMARY_BYTES_MAX)],
        ":response": approval.response,
        ":detail": approval.detail.as_ref().map(detail_text),
        ":artifact": approval.artifact,
    };
    Ok(execute(conn, INSERT, params, "insert an approval")? == 1)
}

/// Returns the full question as JSON. Text is truncated to a limit; other details are already
/// limited.
fn detail_text(detail: &Json) -> String {
    match detail {
        Json::String(text) => Json::from(truncate_output(text)).to_string(),
        other => other.to_string(),
    }
}

/// Records the answer; returns true if the approval was pending.
pub(crate) fn answer(
    conn: &DatabaseConnection,
    id: &ApprovalId,
    status: ApprovalStatus,
    response: Option<&str>,
    (by, now): (&str, Timestamp),
) -> Result<bool, DatabaseError> {
    let params = params![id.as_str(), status.as_str(), response, by, iso_millis(now)];
    Ok(execute(conn, ANSWER, params, "answer an approval")? == 1)
}

/// Replaces an answer.
pub(crate) fn overrule(
    conn: &DatabaseConnection,
    id: &ApprovalId,
    status: ApprovalStatus,
    response: Option<&str>,
    (by, now): (&str, Timestamp),
) -> Result<(), DatabaseError> {
    let params = params![id.as_str(), status.as_str(), response, by, iso_millis(now)];
    execute(conn, OVERRULE, params, "correct an answer").map(|_| ())
}

pub(crate) fn set_detail(
    conn: &DatabaseConnection,
    id: &ApprovalId,
    detail: &str,
) -> Result<(), DatabaseError> {
    execute(conn, SET_DETAIL, params![id.as_str(), detail], "complete an approval").map(|_| ())
}

pub(crate) fn set_delivered(
    conn: &DatabaseConnection,
    id: &ApprovalId,
    now: Timestamp,
) -> Result<bool, DatabaseError> {
    let params = params![id.as_str(), iso_millis(now)];
    Ok(execute(conn, DELIVERED, params, "note that an answer arrived")? == 1)
}

/// Counts approvals by kind and status from the rows, to check the counters.
pub(crate) fn real_counts(
    conn: &DatabaseConnection,
) -> Result<Vec<(String, String, i64)>, DatabaseError> {
    query_all(conn, COUNTS, [], "count approvals", |row| {
        let mut columns = ColumnReader::new("workflow_approvals", row);
        Ok((columns.get()?, columns.get()?, columns.get()?))
    })
}
