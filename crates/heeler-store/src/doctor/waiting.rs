//! Whether the queue and the jobs agree, and whether money is set aside for runs that live.

use std::fmt;

use super::finding::{Area, Finding, Fix, Severity, first_of};
use crate::db::{Db, DbError, money, queue};

/// Finds what waits for nothing, and what nobody waits for.
pub(crate) fn examine(db: &Db, findings: &mut Vec<Finding>) -> Result<(), DbError> {
    let idle = queue::not_pending(&db.conn)?;
    if !idle.is_empty() {
        let problem = "is in the queue and waits no longer";
        findings.push(warning(&idle, problem).fixable(Fix::Dequeue(idle.clone())));
    }
    let forgotten = queue::not_queued(&db.conn)?;
    if !forgotten.is_empty() {
        let problem = "is pending and not in the queue, so nothing starts it";
        let cure = "`heeler jobs cancel` ends it, `heeler trigger` asks again";
        findings.push(warning(&forgotten, problem).cure(cure));
    }
    let unused = money::unused(&db.conn)?;
    if !unused.is_empty() {
        let problem = "has ended, and money is still set aside for it";
        findings.push(warning(&unused, problem).fixable(Fix::Release(unused.clone())));
    }
    Ok(())
}

fn warning<T: fmt::Display>(subjects: &[T], problem: &str) -> Finding {
    Finding::new(Severity::Warning, Area::Database, first_of(subjects), problem)
}
