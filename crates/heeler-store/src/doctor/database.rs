//! The database itself: opens, sound, of our version, its totals true.

use super::finding::{Area, Finding, Fix, Severity};
use super::{rebuild, waiting};
use crate::backup;
use crate::db::counters::{self, Kind};
use crate::db::{Attempt as _, Db, DbError, OpenError, jobs, sessions};
use crate::import::is_adoptable;
use crate::layout::StateDir;

/// The oldest SQLite that this was tried with; ours is built in, a package may link another.
const SQLITE_VERSION_MIN: i32 = 3_045_000;

const REBUILD: &str = "run `heeler doctor --rebuild`; the old files go to trash/";

/// Finds what is wrong with the database, and returns it if it can be asked.
pub(crate) fn examine(dir: &StateDir, findings: &mut Vec<Finding>) -> Option<Db> {
    findings.extend(old_sqlite(rusqlite::version_number()));
    if rebuild::is_unfinished(dir) {
        let problem = "a rebuild was cut off";
        let subject = dir.database();
        let finding = Finding::new(Severity::Error, Area::Database, subject, problem);
        findings.push(finding.fixable(Fix::FinishRebuild));
        return None;
    }
    let db = match Db::read(&dir.database()) {
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

/// Checks in one read transaction: a living writer must not come between two questions.
fn check_at_one_moment(
    dir: &StateDir,
    db: &Db,
    findings: &mut Vec<Finding>,
) -> Result<(), DbError> {
    db.conn.execute_batch("BEGIN").attempt("begin to check the database")?;
    let checked = check(dir, db, findings);
    db.conn.execute_batch("ROLLBACK").attempt("end the check of the database")?;
    checked
}

fn check(dir: &StateDir, db: &Db, findings: &mut Vec<Finding>) -> Result<(), DbError> {
    let faults = db.integrity_faults()?;
    if let Some(first) = faults.first() {
        let more = if faults.len() > 1 {
            format!(" and {} more", faults.len() - 1)
        } else {
            String::new()
        };
        findings.push(broken(dir, format!("it is damaged: {first}{more}")));
    }
    let dangling = db.foreign_key_faults()?;
    if let Some(first) = dangling.first() {
        let problem =
            format!("{} rows point to rows that are gone, the first in {first}", dangling.len());
        let finding = Finding::new(Severity::Warning, Area::Database, dir.database(), problem);
        findings.push(finding.cure(REBUILD));
    }
    let are_true = counters::by_kind(&db.conn, Kind::Job)? == jobs::real_counts(&db.conn)?
        && counters::by_kind(&db.conn, Kind::Session)? == sessions::real_counts(&db.conn)?;
    if !are_true {
        let problem = "its totals differ from what is in it";
        let finding = Finding::new(Severity::Warning, Area::Database, dir.database(), problem);
        findings.push(finding.fixable(Fix::Recount));
    }
    waiting::examine(db, findings)
}

fn broken(dir: &StateDir, problem: String) -> Finding {
    Finding::new(Severity::Error, Area::Database, dir.database(), problem).cure(REBUILD)
}

fn cannot_open(dir: &StateDir, error: &OpenError) -> Finding {
    let (severity, area, cure) = match error {
        OpenError::Missing { .. } if backup::list(dir).is_ok_and(|list| !list.is_empty()) => {
            (Severity::Error, Area::Database, REBUILD)
        }
        OpenError::Missing { .. } if is_adoptable(dir.root()) => {
            (Severity::Note, Area::Database, "any other heeler command adopts what is there")
        }
        OpenError::Missing { .. } => {
            (Severity::Note, Area::Database, "it is made by the first command that writes")
        }
        OpenError::Newer { .. } => (Severity::Error, Area::Versions, "use that version of heeler"),
        OpenError::Older { .. } => (
            Severity::Warning,
            Area::Versions,
            "`heeler doctor --fix` brings it up to date, after a backup",
        ),
        OpenError::ReadOnlyWithLog { .. } => {
            (Severity::Error, Area::Database, "copy the directory to a writable place")
        }
        OpenError::Create { .. } => (Severity::Error, Area::Database, "check the disk"),
        OpenError::Sqlite { .. } => (Severity::Error, Area::Database, REBUILD),
    };
    let problem = match severity {
        Severity::Error if matches!(error, OpenError::Missing { .. }) => {
            "it is gone, though there are backups of it".to_owned()
        }
        _ => error.to_string(),
    };
    Finding::new(severity, area, dir.database(), problem).cure(cure)
}

fn old_sqlite(number: i32) -> Option<Finding> {
    (number < SQLITE_VERSION_MIN).then(|| {
        let problem = format!("version {} is older than any that was tried", rusqlite::version());
        Finding::new(Severity::Warning, Area::Versions, "SQLite", problem)
            .cure("use a heeler that is built with its own SQLite")
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
