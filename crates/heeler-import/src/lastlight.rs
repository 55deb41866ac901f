//! Import of Last Light's state: its database, from a copy, and the transcripts of its agents'
//! sessions.
//!
//! Transcripts are in place before the rows that refer to them. Rows are inserted unchanged,
//! except that unfinished work is marked as ended. Start at [`import_lastlight`].

mod journal;
mod logs;
mod read;
mod snapshot;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::workflow::WorkflowRunStatus;
use heeler_model::{ApprovalId, ApprovalKind, ApprovalStatus, Job, WorkflowRunId, iso_millis};
use heeler_store::staging::{RecordTarget, is_database_file};
use heeler_store::{LastLightExecution, LastLightTable, Store};
use jiff::Timestamp;
use rusqlite::types::Value;

use self::read::{EXECUTIONS, LastLightRow};
use self::snapshot::DatabaseSnapshot;
use crate::import_error::ImportError;
use crate::report::{ImportItemKind, ImportReport};
use crate::source::ImportSource;

/// Rows per transaction.
const BATCH_ROWS: usize = 1000;

/// Bytes of rows that are held before they are written: a context can have megabytes.
const BATCH_BYTES: usize = 16 << 20;

const DATABASE: &str = "lastlight.db";

/// Statuses of a workflow run that imply a running process.
const ACTIVE_STATUSES: [&str; 2] = ["running", "queued"];

/// Imports the state of Last Light: a `STATE_DIR`, or its `lastlight.db`.
///
/// The source is only read. Views are due afterwards: publish them.
pub fn import_lastlight(
    store: &Store,
    path: &Utf8Path,
    now: Timestamp,
) -> Result<ImportReport, ImportError> {
    let database = locate(path)?;
    if is_database_file(store.dir(), &database) {
        return Err(ImportError::SourceIsTarget { path: path.to_owned() });
    }
    let source = ImportSource::open(database.parent().unwrap_or(&database))?;
    // The source may belong to a running server, so only a copy is opened.
    let snapshot = DatabaseSnapshot::take(&database, store.dir().root())?;
    let target = RecordTarget::store(store)?;
    let origin = format!("lastlight:{}", source.root());
    let mut import = LastLightImport {
        source: &source,
        target: &target,
        origin,
        now,
        report: ImportReport::default(),
    };
    import.run(&snapshot, &database)?;
    Ok(import.report)
}

fn locate(path: &Utf8Path) -> Result<Utf8PathBuf, ImportError> {
    let path = path
        .canonicalize_utf8()
        .map_err(|source| ImportError::Open { path: path.to_owned(), source })?;
    let database = if path.is_dir() { path.join(DATABASE) } else { path.clone() };
    if database.is_file() {
        Ok(database)
    } else {
        Err(ImportError::NotFound { path, what: "lastlight.db" })
    }
}

/// One import: its source, its target and its report.
struct LastLightImport<'a> {
    source: &'a ImportSource,
    target: &'a RecordTarget<'a>,
    origin: String,
    now: Timestamp,
    report: ImportReport,
}

/// A row to insert into a table of the same name.
struct LastLightInsertRow {
    key: String,
    values: Vec<Value>,
}

impl LastLightImport<'_> {
    fn run(&mut self, snapshot: &DatabaseSnapshot, database: &Utf8Path) -> Result<(), ImportError> {
        let tables = snapshot.tables().map_err(|error| ImportError::Database {
            path: database.to_owned(),
            source: Box::new(error),
        })?;
        let has = |name: &str| tables.iter().any(|table| table == name);
        // Any SQLite file may be named here, so the tables decide.
        if !has("executions") && !has("workflow_runs") {
            let path = database.to_owned();
            return Err(ImportError::NotFound { path, what: "state of Last Light" });
        }
        if let Some(damage) = snapshot.damage() {
            self.report.note(format!(
                "the database is damaged ({damage}); if Last Light is running, stop it and import again"
            ));
        }
        // Executions first: sessions are created from the jobs that ran in them.
        if has("executions") {
            self.executions(snapshot)?;
        }
        for table in [
            LastLightTable::WorkflowRuns,
            LastLightTable::WorkflowApprovals,
            LastLightTable::CronOverrides,
            LastLightTable::WorkflowOverrides,
        ] {
            if has(table.name()) {
                self.table(snapshot, table)?;
            }
        }
        if has(LastLightTable::WorkflowRuns.name()) {
            self.complete_runs(snapshot)?;
        }
        // Threads before messages, because messages refer to them.
        let mut threads = Vec::new();
        if has(LastLightTable::MessagingSessions.name()) {
            threads = self.chat_threads(snapshot)?;
        }
        if has(LastLightTable::MessagingMessages.name()) {
            self.table(snapshot, LastLightTable::MessagingMessages)?;
        }
        // Last: a session is described by its thread and its executions, which exist by now.
        self.session_logs(&threads)?;
        self.note_other_tables(snapshot, &tables);
        Ok(())
    }

    fn executions(&mut self, snapshot: &DatabaseSnapshot) -> Result<(), ImportError> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        let mut unfinished_jobs = 0_u64;
        let damage = snapshot.each("executions", &EXECUTIONS, |row| {
            match read::execution(&row) {
                Err(reason) => {
                    self.report.refuse(
                        ImportItemKind::Job,
                        format!("executions: {}", row.key()),
                        reason,
                    );
                }
                Ok((mut job, unfinished)) => {
                    job.origin = Some(self.origin.clone());
                    // Rows are counted by size too, because one context may have megabytes.
                    bytes += row.bytes();
                    batch.push((job, read::lastlight_fields(&row), unfinished));
                }
            }
            if batch.len() >= BATCH_ROWS || bytes >= BATCH_BYTES {
                bytes = 0;
                unfinished_jobs += self.put_jobs(std::mem::take(&mut batch))?;
            }
            Ok(())
        })?;
        unfinished_jobs += self.put_jobs(batch)?;
        // Rows before the damage are imported; the rest is reported once and not row by row.
        self.refuse_rest("executions", ImportItemKind::Job, damage);
        if unfinished_jobs > 0 {
            self.report.note(format!(
                "{unfinished_jobs} unfinished executions were marked as interrupted"
            ));
        }
        Ok(())
    }

    /// Inserts jobs and returns the number of unfinished ones among the new.
    fn put_jobs(
        &mut self,
        batch: Vec<(Job, LastLightExecution, bool)>,
    ) -> Result<u64, ImportError> {
        if batch.is_empty() {
            return Ok(0);
        }
        // Each batch is one transaction, so an interrupted import continues with the next one.
        let fresh = self.target.commit(move |tx| {
            let put = |(job, extra, unfinished): &(Job, LastLightExecution, bool)| {
                Ok(tx.import_job(job, extra)?.then_some(*unfinished))
            };
            batch.iter().map(put).collect::<Result<Vec<_>, _>>()
        })?;
        fresh.iter().for_each(|fresh| self.count(ImportItemKind::Job, fresh.is_some()));
        Ok(fresh.iter().filter(|fresh| **fresh == Some(true)).count() as u64)
    }

    /// Imports a table unchanged, except that unfinished workflow runs are ended.
    fn table(
        &mut self,
        snapshot: &DatabaseSnapshot,
        table: LastLightTable,
    ) -> Result<(), ImportError> {
        let kind = kind_of(table);
        let columns = table.columns().collect::<Vec<_>>();
        let mut batch = Vec::new();
        let mut bytes = 0;
        let mut settled = 0_u64;
        let now = iso_millis(self.now);
        // Extra columns are read after the inserted ones, so that `take` can drop them.
        let mut source_columns = columns.clone();
        if table == LastLightTable::MessagingMessages {
            // Last Light's id, from which `origin_id` is derived.
            source_columns.push("id");
        }
        let damage = snapshot.each(table.name(), &source_columns, |mut row| {
            if let Err(reason) = row.require(required(table)) {
                self.report.refuse(kind, format!("{}: {}", table.name(), row.key()), reason);
                return Ok(());
            }
            // No process of Last Light works on these runs any more.
            settled += u64::from(settle(table, &mut row, &now));
            set_origin(table, &mut row, &self.origin);
            row.default_missing(defaults(table));
            if let Err(reason) = normalize_row(table, &mut row) {
                self.report.refuse(kind, format!("{}: {}", table.name(), row.key()), reason);
                return Ok(());
            }
            bytes += row.bytes();
            batch.push(LastLightInsertRow { key: row.key(), values: row.take(columns.len()) });
            if batch.len() >= BATCH_ROWS || bytes >= BATCH_BYTES {
                bytes = 0;
                self.put_rows(table, std::mem::take(&mut batch))?;
            }
            Ok(())
        })?;
        self.put_rows(table, batch)?;
        self.refuse_rest(table.name(), kind, damage);
        if settled > 0 {
            self.report.note(format!("{settled} unfinished workflow runs were marked as failed"));
        }
        Ok(())
    }

    /// Inserts rows; a row that the database rejects is refused alone.
    fn put_rows(
        &mut self,
        table: LastLightTable,
        rows: Vec<LastLightInsertRow>,
    ) -> Result<(), ImportError> {
        if rows.is_empty() {
            return Ok(());
        }
        let outcomes = self.target.commit(move |tx| {
            let put = |row: LastLightInsertRow| {
                // A rejected row must not undo the other rows of its batch.
                let outcome = tx.import_row(table, &row.values).map_err(|error| error.to_string());
                (row.key, outcome)
            };
            Ok(rows.into_iter().map(put).collect::<Vec<_>>())
        })?;
        let kind = kind_of(table);
        for (key, outcome) in outcomes {
            match outcome {
                Ok(fresh) => self.count(kind, fresh),
                Err(reason) => {
                    self.report.refuse(kind, format!("{}: {key}", table.name()), reason);
                }
            }
        }
        Ok(())
    }

    /// Imports chat threads and returns their rows.
    fn chat_threads(
        &mut self,
        snapshot: &DatabaseSnapshot,
    ) -> Result<Vec<LastLightRow>, ImportError> {
        let table = LastLightTable::MessagingSessions;
        let columns = table.columns().collect::<Vec<_>>();
        let mut rows = Vec::new();
        let damage = snapshot.each(table.name(), &columns, |row| {
            match row.require(required(table)) {
                Ok(()) => rows.push(row),
                Err(reason) => {
                    let what = format!("{}: {}", table.name(), row.key());
                    self.report.refuse(ImportItemKind::ChatThread, what, reason);
                }
            }
            Ok(())
        })?;
        self.refuse_rest(table.name(), ImportItemKind::ChatThread, damage);
        // Heeler's index allows one active thread for each place.
        let deactivated = read::keep_newest_active(&mut rows);
        if deactivated > 0 {
            self.report.note(format!(
                "{deactivated} chat threads were deactivated in favour of a newer one in the same place"
            ));
        }
        for batch in rows.chunks(BATCH_ROWS) {
            let raw = |row: &LastLightRow| LastLightInsertRow {
                key: row.key(),
                values: row.clone().take(columns.len()),
            };
            self.put_threads(batch.iter().map(raw).collect())?;
        }
        Ok(rows)
    }

    /// Inserts threads; an active thread that this fleet already has in the same place stays.
    fn put_threads(&mut self, rows: Vec<LastLightInsertRow>) -> Result<(), ImportError> {
        let table = LastLightTable::MessagingSessions;
        let fresh = self.target.commit(move |tx| {
            let active = table.columns().position(|name| name == "active");
            let active = active.expect("a chat thread has the column `active`");
            let mut put = |mut row: LastLightInsertRow| match tx.import_row(table, &row.values) {
                // This fleet has an active thread in the same place, so the imported one is kept as
                // history.
                Err(_) if row.values[active] != Value::Integer(0) => {
                    row.values[active] = Value::Integer(0);
                    tx.import_row(table, &row.values)
                }
                outcome => outcome,
            };
            rows.into_iter().map(&mut put).collect::<Result<Vec<_>, _>>()
        })?;
        fresh.into_iter().for_each(|fresh| self.count(ImportItemKind::ChatThread, fresh));
        Ok(())
    }

    fn note_other_tables(&mut self, snapshot: &DatabaseSnapshot, tables: &[String]) {
        for table in tables.iter().filter(|table| !is_imported(table)) {
            let rows =
                snapshot.count(table).map_or("unreadable".to_owned(), |n| format!("{n} rows"));
            self.report.note(format!("table {table} is not supported and was left out ({rows})"));
        }
    }

    fn refuse_rest(&mut self, table: &str, kind: ImportItemKind, damage: Option<rusqlite::Error>) {
        if let Some(error) = damage {
            let reason = format!("the rest of the table cannot be read: {error}");
            self.report.refuse(kind, table, reason);
        }
    }

    fn count(&mut self, kind: ImportItemKind, fresh: bool) {
        if fresh { self.report.count_imported(kind) } else { self.report.count_existing(kind) }
    }
}

fn is_imported(table: &str) -> bool {
    table == "executions" || TABLES.iter().any(|known| known.name() == table)
}

const TABLES: [LastLightTable; 6] = [
    LastLightTable::WorkflowRuns,
    LastLightTable::WorkflowApprovals,
    LastLightTable::CronOverrides,
    LastLightTable::WorkflowOverrides,
    LastLightTable::MessagingSessions,
    LastLightTable::MessagingMessages,
];

fn kind_of(table: LastLightTable) -> ImportItemKind {
    match table {
        LastLightTable::WorkflowRuns => ImportItemKind::WorkflowRun,
        LastLightTable::WorkflowApprovals => ImportItemKind::Approval,
        LastLightTable::CronOverrides | LastLightTable::WorkflowOverrides => {
            ImportItemKind::Override
        }
        LastLightTable::MessagingSessions => ImportItemKind::ChatThread,
        LastLightTable::MessagingMessages => ImportItemKind::ChatMessage,
    }
}

/// Returns the columns without which a row is meaningless.
fn required(table: LastLightTable) -> &'static [&'static str] {
    match table {
        LastLightTable::WorkflowRuns => {
            &["id", "workflow_name", "trigger_id", "current_phase", "started_at"]
        }
        LastLightTable::WorkflowApprovals => &["id", "workflow_run_id", "gate", "created_at"],
        LastLightTable::CronOverrides | LastLightTable::WorkflowOverrides => &["name"],
        LastLightTable::MessagingSessions => {
            &["id", "platform", "channel_id", "user_id", "created_at", "last_activity_at"]
        }
        LastLightTable::MessagingMessages => &["session_id", "role", "content", "timestamp"],
    }
}

/// Returns the default values of required columns that are empty or missing.
fn defaults(table: LastLightTable) -> &'static [(&'static str, &'static str)] {
    match table {
        LastLightTable::WorkflowRuns => &[
            ("phase_history", "[]"),
            ("status", "failed"),
            ("restart_count", "0"),
            ("updated_at", ""),
        ],
        LastLightTable::WorkflowApprovals => {
            // An approval without a status was never answered.
            &[("summary", ""), ("status", "pending"), ("kind", "approve")]
        }
        LastLightTable::CronOverrides | LastLightTable::WorkflowOverrides => {
            &[("enabled", "1"), ("updated_at", "")]
        }
        LastLightTable::MessagingSessions | LastLightTable::MessagingMessages => &[],
    }
}

/// Converts ids, words and times to Heeler's form; the error is the reason for a refusal.
fn normalize_row(table: LastLightTable, row: &mut LastLightRow) -> Result<(), String> {
    let (began, times): (&str, &[&str]) = match table {
        LastLightTable::WorkflowRuns => {
            // The key becomes part of paths and prefixes, so an unusable one is refused and not
            // changed.
            let id = row.key().parse::<WorkflowRunId>();
            id.map_err(|error| error.to_string())?;
            let known =
                row.text("status").is_some_and(|it| it.parse::<WorkflowRunStatus>().is_ok());
            if !known {
                // An unknown status comes from another version of Last Light. It cannot be active
                // here.
                row.set("status", Value::Text(WorkflowRunStatus::Failed.to_string()));
            }
            ("started_at", &["updated_at", "finished_at"])
        }
        LastLightTable::WorkflowApprovals => {
            row.key().parse::<ApprovalId>().map_err(|error| error.to_string())?;
            let status = row.text("status").unwrap_or_default();
            if status.parse::<ApprovalStatus>().is_err() {
                // An unknown status must not look like a question that waits for an answer.
                row.set("status", Value::Text(ApprovalStatus::Withdrawn.to_string()));
            }
            let kind = row.text("kind").unwrap_or_default();
            if kind.parse::<ApprovalKind>().is_err() {
                row.set("kind", Value::Text(ApprovalKind::Approve.to_string()));
            }
            ("created_at", &["responded_at"])
        }
        _ => return Ok(()),
    };
    // Another time of the row is better than refusing the row.
    let at = row.time(began).or_else(|| times.iter().find_map(|name| row.time(name)));
    let at = at.ok_or_else(|| format!("its `{began}` is not a time"))?;
    row.set(began, Value::Text(iso_millis(at)));
    for name in times {
        let time = row.time(name).map(iso_millis);
        // Lists need this time, and the time of the start is the best substitute.
        let time = time.or_else(|| (*name == "updated_at").then(|| iso_millis(at)));
        row.set(name, time.map_or(Value::Null, Value::Text));
    }
    Ok(())
}

/// Ends an unfinished workflow run; returns true if it did.
fn settle(table: LastLightTable, row: &mut LastLightRow, now: &str) -> bool {
    let status = row.text("status").unwrap_or_default();
    if table != LastLightTable::WorkflowRuns || !ACTIVE_STATUSES.contains(&status.as_str()) {
        return false;
    }
    row.set("status", Value::Text("failed".to_owned()));
    // The last progress is the latest time at which the run is known to have worked.
    row.set("finished_at", Value::Text(row.text("updated_at").unwrap_or_else(|| now.to_owned())));
    true
}

/// Records the origin of a row, so that a repeated import finds it again.
fn set_origin(table: LastLightTable, row: &mut LastLightRow, origin: &str) {
    match table {
        LastLightTable::WorkflowRuns => row.set("origin", Value::Text(origin.to_owned())),
        LastLightTable::MessagingMessages => {
            let session = row.text("session_id").unwrap_or_default();
            let id = row.text("id").unwrap_or_default();
            // The id of a message is unique only within the source.
            row.set("origin_id", Value::Text(format!("{session}/{id}")));
        }
        _ => {}
    }
}
