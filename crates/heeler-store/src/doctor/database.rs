//! Doctor check of the database: it opens, is sound, has the right version and correct totals.

use super::finding::{Finding, FindingArea, FindingSeverity, RepairAction};
use super::{locks, queue_check, record_check};
use crate::backup;
use crate::database_files::{LOG_LOST, is_log_lost};
use crate::db::counters::{self, CounterKind};
use crate::db::{DatabaseError, DatabaseOpenError, StateDatabase, jobs, sessions, store_name};
use crate::herdctl_layout::is_adoptable;
use crate::layout::StateDir;
use crate::staging::has_unfinished_rebuild;

/// Oldest SQLite version that was tested. Heeler bundles its own, but a package may link
/// another.
const SQLITE_VERSION_MIN: i32 = 3_045_000;

const REBUILD_REMEDY: &str = "run `heeler doctor --rebuild`; the old files go to trash/";

/// Reports faults of the database, and returns it if it can be queried.
pub(crate) fn examine(dir: &StateDir, findings: &mut Vec<Finding>) -> Option<StateDatabase> {
    findings.extend(old_sqlite(rusqlite::version_number()));
    if has_unfinished_rebuild(dir) {
        let problem = "a rebuild was interrupted";
        let subject = dir.database();
        let finding = Finding::new(FindingSeverity::Error, FindingArea::Database, subject, problem);
        findings.push(finding.with_repair(RepairAction::FinishRebuild));
        // The database that is found now is about to be replaced, so its faults do not matter.
        return None;
    }
    // Before the database is opened: SQLite creates an empty log.
    if dir.postgres().is_none() && !locks::has_writer(dir) && is_log_lost(dir) {
        let subject = format!("{}-wal", dir.database());
        let problem = format!("is missing or empty: {LOG_LOST}");
        let finding =
            Finding::new(FindingSeverity::Warning, FindingArea::Database, subject, problem);
        findings.push(finding.with_remedy(
            "put the file back; or run `heeler doctor --rebuild`, which adds the records that views \
             and transcripts have",
        ));
    }
    let db = match StateDatabase::reader_of(dir) {
        Ok(db) => db,
        Err(error) => {
            findings.push(cannot_open(dir, &error));
            return None;
        }
    };
    if let Err(error) = check_at_one_moment(dir, &db, findings) {
        findings.push(broken(dir, error.to_string()));
        return None;
    }
    Some(db)
}

/// Runs the checks in one read transaction, so that a running writer cannot change the data
/// between two queries.
fn check_at_one_moment(
    dir: &StateDir,
    db: &StateDatabase,
    findings: &mut Vec<Finding>,
) -> Result<(), DatabaseError> {
    db.conn.begin_snapshot()?;
    let checked = check(dir, db, findings);
    // A rollback, because nothing was written.
    db.conn.rollback()?;
    checked
}

fn check(
    dir: &StateDir,
    db: &StateDatabase,
    findings: &mut Vec<Finding>,
) -> Result<(), DatabaseError> {
    let faults = db.integrity_faults()?;
    if let Some(first) = faults.first() {
        let more = if faults.len() > 1 {
            format!(" and {} more", faults.len() - 1)
        } else {
            String::new()
        };
        findings.push(broken(dir, format!("it is damaged: {first}{more}")));
    }
    // SQLite enforces foreign keys per connection, so older rows may violate them.
    let dangling = db.foreign_key_faults()?;
    if let Some(first) = dangling.first() {
        let problem =
            format!("{} rows point to rows that are gone, the first in {first}", dangling.len());
        let finding =
            Finding::new(FindingSeverity::Warning, FindingArea::Database, store_name(dir), problem);
        findings.push(finding.with_remedy(REBUILD_REMEDY));
    }
    let are_true = counters::by_kind(&db.conn, CounterKind::Job)? == jobs::real_counts(&db.conn)?
        && counters::by_kind(&db.conn, CounterKind::Session)? == sessions::real_counts(&db.conn)?;
    if !are_true {
        let problem = "its counters differ from its rows";
        let finding =
            Finding::new(FindingSeverity::Warning, FindingArea::Database, store_name(dir), problem);
        findings.push(finding.with_repair(RepairAction::Recount));
    }
    queue_check::examine(db, findings)?;
    record_check::examine(db, findings)
}

fn broken(dir: &StateDir, problem: String) -> Finding {
    Finding::new(FindingSeverity::Error, FindingArea::Database, store_name(dir), problem)
        .with_remedy(REBUILD_REMEDY)
}

fn cannot_open(dir: &StateDir, error: &DatabaseOpenError) -> Finding {
    let (severity, area, remedy) = match error {
        // Backups prove that a database existed, so its absence is a loss and not a fresh start.
        DatabaseOpenError::Missing { .. }
            if backup::list_backups(dir).is_ok_and(|list| !list.is_empty()) =>
        {
            (FindingSeverity::Error, FindingArea::Database, REBUILD_REMEDY)
        }
        DatabaseOpenError::Missing { .. } if is_adoptable(dir.root()) => (
            FindingSeverity::Note,
            FindingArea::Database,
            "any other heeler command adopts the existing state",
        ),
        DatabaseOpenError::Missing { .. } => (
            FindingSeverity::Note,
            FindingArea::Database,
            "it is made by the first command that writes",
        ),
        DatabaseOpenError::Newer { .. } => {
            (FindingSeverity::Error, FindingArea::Versions, "use that version of heeler")
        }
        DatabaseOpenError::Older { .. } => (
            FindingSeverity::Warning,
            FindingArea::Versions,
            "`heeler doctor --fix` brings it up to date, after a backup",
        ),
        DatabaseOpenError::ReadOnlyWithLog { .. } => (
            FindingSeverity::Error,
            FindingArea::Database,
            "copy the directory to a writable place",
        ),
        DatabaseOpenError::PathTooLong { .. } => {
            (FindingSeverity::Error, FindingArea::Database, "use a shorter path")
        }
        DatabaseOpenError::Create { .. } => {
            (FindingSeverity::Error, FindingArea::Database, "check the disk")
        }
        DatabaseOpenError::Moved { .. } => {
            (FindingSeverity::Error, FindingArea::Database, "put `store.json` back")
        }
        DatabaseOpenError::Postgres { .. } => (
            FindingSeverity::Error,
            FindingArea::Database,
            "check the server, the password and docs/hosts.md; agents that are running continue",
        ),
        DatabaseOpenError::Led { .. } => {
            (FindingSeverity::Error, FindingArea::Database, "use the host that leads")
        }
        DatabaseOpenError::Sqlite { .. } => {
            (FindingSeverity::Error, FindingArea::Database, REBUILD_REMEDY)
        }
    };
    let problem = match severity {
        FindingSeverity::Error if matches!(error, DatabaseOpenError::Missing { .. }) => {
            "it is missing, although backups of it exist".to_owned()
        }
        _ => error.to_string(),
    };
    Finding::new(severity, area, store_name(dir), problem).with_remedy(remedy)
}

fn old_sqlite(number: i32) -> Option<Finding> {
    (number < SQLITE_VERSION_MIN).then(|| {
        let problem = format!("version {} is older than any tested version", rusqlite::version());
        Finding::new(FindingSeverity::Warning, FindingArea::Versions, "SQLite", problem)
            .with_remedy("use a heeler that is built with its own SQLite")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_sqlite_is_found_and_ours_is_not() {
        assert!(old_sqlite(SQLITE_VERSION_MIN - 1).is_some());
        assert!(old_sqlite(rusqlite::version_number()).is_none());
    }
}
