//! Doctor check that records can be true, and that no spending was removed.

use super::finding::{Finding, FindingArea, FindingSeverity, describe_first};
use crate::db::{DatabaseError, StateDatabase, runs};

const CHANGED_REMEDY: &str = "somebody changed the database: compare it with a backup \
    (`heeler restore` lists them), and check which agents can write to the state directory";

/// Reports impossible jobs and runs, and daily totals that are less than the amounts of the runs.
pub(crate) fn examine(
    db: &StateDatabase,
    findings: &mut Vec<Finding>,
) -> Result<(), DatabaseError> {
    let checks = [
        (runs::impossible_jobs(&db.conn)?, "has times, costs or counts that cannot be true"),
        (runs::impossible_runs(&db.conn)?, "is a run with times or costs that cannot be true"),
        (runs::unearned_successes(&db.conn)?, "is completed, but its last run did not succeed"),
    ];
    for (ids, problem) in checks {
        if !ids.is_empty() {
            findings.push(warning(describe_first(&ids), problem.to_owned()));
        }
    }
    // The day does not matter: all days are compared.
    for account in db.spend_accounts(jiff::civil::Date::MIN)? {
        if account.missing > 0 {
            let missing = heeler_model::format_micros(account.missing);
            let problem = format!(
                "its daily spending lacks {missing} that its runs have spent; the budgets count it \
                 when the daemon starts"
            );
            findings.push(warning(account.agent, problem));
        }
    }
    Ok(())
}

fn warning(subject: String, problem: String) -> Finding {
    Finding::new(FindingSeverity::Warning, FindingArea::Database, subject, problem)
        .with_remedy(CHANGED_REMEDY)
}
