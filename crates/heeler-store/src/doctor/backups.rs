//! Doctor check of the database backups: existence and age.

use jiff::{SignedDuration, Timestamp};

use super::finding::{Finding, FindingArea, FindingSeverity};
use crate::backup;
use crate::layout::StateDir;

/// Age at which the newest backup is reported. A running daemon takes one a day.
const AGE_MAX: SignedDuration = SignedDuration::from_hours(72);

const BACKUP_REMEDY: &str = "`heeler backup FILE` takes one of everything";

/// Reports a missing or old backup.
pub(crate) fn examine(dir: &StateDir, now: Timestamp) -> Option<Finding> {
    // Without a database there is nothing to back up.
    if !dir.has_database() {
        return None;
    }
    let subject = dir.backups();
    let newest = match backup::list_backups(dir) {
        Ok(backups) => backups.last().cloned(),
        Err(error) => {
            let problem = format!("cannot be listed: {error}");
            let finding =
                Finding::new(FindingSeverity::Warning, FindingArea::Backups, subject, problem);
            return Some(finding.with_remedy("check its permissions and the disk"));
        }
    };
    let Some(newest) = newest else {
        let problem = "holds no backup of the database yet";
        return Some(
            Finding::new(FindingSeverity::Note, FindingArea::Backups, subject, problem)
                .with_remedy(BACKUP_REMEDY),
        );
    };
    // The time of the file and not of its name, because the label follows the time in it.
    let taken = newest.metadata().and_then(|meta| meta.modified()).ok();
    let age = now.duration_since(Timestamp::try_from(taken?).ok()?);
    let problem = format!("is the newest backup, and {} days old", age.as_hours() / 24);
    (age > AGE_MAX).then(|| {
        Finding::new(FindingSeverity::Warning, FindingArea::Backups, newest, problem)
            .with_remedy(BACKUP_REMEDY)
    })
}
