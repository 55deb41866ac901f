//! The state of Last Light: its database, by copy, and the logs of its agents' sessions.
//!
//! Logs come first, then executions, then everything that points to them. Rows go in as they come,
//! except that nothing stays running that is not. Start at [`lastlight`].

mod logs;
mod read;
mod snapshot;

use std::collections::HashSet;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::{Job, iso_millis};
use jiff::Timestamp;
use rusqlite::types::Value;

use self::read::{EXECUTIONS, ForeignRow};
use self::snapshot::Snapshot;
use super::source::Source;
use super::target::Target;
use super::{ImportError, Kind, Report};
use crate::db::foreign::ForeignTable;
use crate::db::jobs::ForeignExecution;
use crate::store::Store;

/// How many rows share a transaction.
const BATCH_ROWS: usize = 1000;

/// How many bytes of rows are held before they are written: contexts can be megabytes each.
const BATCH_BYTES: usize = 16 << 20;

/// The file name of Last Light's database.
const DATABASE: &str = "lastlight.db";

/// Imports the state of Last Light: a STATE_DIR, or its `lastlight.db`.
///
/// The source is only read. Views are due afterwards: publish them.
pub fn lastlight(store: &Store, path: &Utf8Path, now: Timestamp) -> Result<Report, ImportError> {
    let database = locate(path)?;
    let folder = database.parent().unwrap_or(Utf8Path::new("."));
    let source = Source::open(if folder.as_str().is_empty() { Utf8Path::new(".") } else { folder })?;
    let target = Target::store(store)?;
    let snapshot = Snapshot::take(&database, store.dir().root())?;
    let origin = format!("lastlight:{}", source.root());
    let report = Report::default();
    let mut import =
        LastLight { source: &source, target: &target, snapshot, origin, now, report };
    import.run()?;
    Ok(import.report)
}

fn locate(path: &Utf8Path) -> Result<Utf8PathBuf, ImportError> {
    let meta = path.metadata();
    let meta = meta.map_err(|source| ImportError::Open { path: path.to_owned(), source })?;
    let database = if meta.is_dir() { path.join(DATABASE) } else { path.to_owned() };
    if database.is_file() {
        Ok(database)
    } else {
        Err(ImportError::NotThere { path: path.to_owned(), what: "lastlight.db" })
    }
}

struct LastLight<'a> {
    source: &'a Source,
    target: &'a Target<'a>,
    snapshot: Snapshot,
    origin: String,
    now: Timestamp,
    report: Report,
}

impl LastLight<'_> {
    fn run(&mut self) -> Result<(), ImportError> {
        let tables = self.snapshot.tables().map_err(|error| self.unreadable(error))?;
        let has = tables.iter().map(String::as_str).collect::<HashSet<_>>();
        if !has.contains("executions") && !has.contains("workflow_runs") {
            let path = self.source.root().to_owned();
            return Err(ImportError::NotThere { path, what: "database of Last Light" });
        }
        if has.contains("executions") {
            self.executions()?;
        }
        if has.contains(ForeignTable::WorkflowRuns.name()) {
            self.workflow_runs()?;
        }
        for (table, kind, required) in [
            (ForeignTable::WorkflowApprovals, Kind::Approval, APPROVAL),
            (ForeignTable::CronOverrides, Kind::Override, OVERRIDE),
            (ForeignTable::WorkflowOverrides, Kind::Override, OVERRIDE),
        ] {
            if has.contains(table.name()) {
                self.table(table, kind, required, |_| {})?;
            }
        }
        let mut chats = Vec::new();
        if has.contains(ForeignTable::MessagingSessions.name()) {
            chats = self.chat_threads()?;
            self.messages()?;
        }
        self.session_logs(&chats)?;
        self.note_other_tables(&tables);
        Ok(())
    }

    fn executions(&mut self) -> Result<(), ImportError> {
        let mut batch: Vec<(Job, ForeignExecution)> = Vec::new();
        let mut interrupted = 0_u64;
        let rows = self.rows("executions", &EXECUTIONS, Kind::Job)?;
        for row in rows {
            match read::execution(&row) {
                Err(reason) => self.report.refuse(Kind::Job, format!("executions: {}", row.key()), reason),
                Ok((mut job, unfinished)) => {
                    job.origin = Some(self.origin.clone());
                    interrupted += u64::from(unfinished);
                    batch.push((job, read::extra(&row)));
                }
            }
        }
        todo_batches(batch)
    }
}
