//! Doctor check that the queue matches the jobs, and that reservations belong to unfinished
//! runs.

use std::fmt;

use super::finding::{Finding, FindingArea, FindingSeverity, RepairAction, describe_first};
use crate::db::{DatabaseError, StateDatabase, queue, spending};

/// Reports stale queue entries, pending jobs outside the queue, and stale reservations.
pub(crate) fn examine(
    db: &StateDatabase,
    findings: &mut Vec<Finding>,
) -> Result<(), DatabaseError> {
    let idle = queue::stale_queue_entries(&db.conn)?;
    if !idle.is_empty() {
        let problem = "is in the queue but no longer waiting";
        findings.push(warning(&idle, problem).with_repair(RepairAction::Dequeue(idle.clone())));
    }
    let forgotten = queue::unqueued_pending_jobs(&db.conn)?;
    if !forgotten.is_empty() {
        let problem = "is pending and not in the queue, so nothing starts it";
        let remedy = "`heeler jobs cancel` ends it, `heeler trigger` asks again";
        // Not repaired: the request of such a job is lost, so only a person can repeat it.
        findings.push(warning(&forgotten, problem).with_remedy(remedy));
    }
    let unused = spending::stale_reservations(&db.conn)?;
    if !unused.is_empty() {
        let problem = "has ended but still has a budget reservation";
        findings.push(
            warning(&unused, problem)
                .with_repair(RepairAction::ReleaseReservations(unused.clone())),
        );
    }
    Ok(())
}

fn warning<T: fmt::Display>(subjects: &[T], problem: &str) -> Finding {
    Finding::new(FindingSeverity::Warning, FindingArea::Database, describe_first(subjects), problem)
}
