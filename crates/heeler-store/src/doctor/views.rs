//! Doctor check of views against the database: missing, unreadable, edited by hand, outdated.

use std::collections::HashSet;

use super::finding::{Finding, FindingArea, FindingSeverity, RepairAction, describe_first};
use super::locks;
use crate::db::{DatabaseError, StateDatabase};
use crate::layout::StateDir;
use crate::view_records::{parse_job, parse_session};
use crate::views::{PublishedView, ViewFormat, render_view, sha256_hex};
use heeler_transcript::untrusted_file;

/// Views per query.
const PAGE: usize = 1000;

/// Views grouped by fault.
#[derive(Default)]
struct FaultyViews {
    /// Every view that the database knows.
    known: HashSet<String>,
    missing: Vec<PublishedView>,
    unreadable: Vec<PublishedView>,
    edited: Vec<PublishedView>,
    outdated: Vec<PublishedView>,
}

/// Reports views that differ from their published form.
pub(crate) fn examine(dir: &StateDir, db: &StateDatabase, findings: &mut Vec<Finding>) {
    let faulty = match classify_views(dir, db) {
        Ok(mut faulty) => {
            // A running writer publishes on its own, with a delay of up to half a second.
            if locks::has_writer(dir) {
                faulty.outdated.clear();
            }
            faulty
        }
        Err(error) => {
            let finding = Finding::new(
                FindingSeverity::Error,
                FindingArea::Database,
                dir.database(),
                error.to_string(),
            );
            findings.push(finding.with_remedy("run `heeler doctor --rebuild`"));
            return;
        }
    };
    find_unrecorded_files(dir, &faulty.known, findings);
    for (views, severity, problem) in [
        (faulty.missing, FindingSeverity::Warning, "is missing"),
        (faulty.unreadable, FindingSeverity::Warning, "cannot be parsed"),
        (faulty.edited, FindingSeverity::Note, "was changed by hand"),
        (faulty.outdated, FindingSeverity::Note, "is older than the database"),
    ] {
        if !views.is_empty() {
            let finding =
                Finding::new(severity, FindingArea::Views, describe_first(&views), problem);
            findings.push(finding.with_repair(RepairAction::RepublishViews(views)));
        }
    }
}

fn classify_views(dir: &StateDir, db: &StateDatabase) -> Result<FaultyViews, DatabaseError> {
    let mut faulty = FaultyViews::default();
    let due = due_paths(db)?;
    let mut after = String::new();
    loop {
        let paths = db.view_paths(&after, PAGE)?;
        let Some(last) = paths.last() else { return Ok(faulty) };
        after.clone_from(last);
        for path in &paths {
            faulty.known.insert(path.clone());
            let Some(view) = PublishedView::from_path(path) else { continue };
            let is_due = due.contains(path);
            classify_view(dir, db, view, is_due, &mut faulty)?;
        }
    }
}

fn classify_view(
    dir: &StateDir,
    db: &StateDatabase,
    view: PublishedView,
    is_due: bool,
    faulty: &mut FaultyViews,
) -> Result<(), DatabaseError> {
    let path = view.path();
    let Ok(bytes) = untrusted_file::read(&dir.root().join(&path), untrusted_file::RECORD_BYTES_MAX)
    else {
        // Deleting an agent's session file is a supported edit, which is applied at the next start.
        let means_something = matches!(view, PublishedView::AgentSession(_));
        if !means_something && render_view(db, &view)?.is_some() {
            faulty.missing.push(view);
        }
        return Ok(());
    };
    // The hash that is announced counts too: a crash may have kept its publication from being
    // recorded.
    let is_ours = db.view(&path)?.is_some_and(|row| row.is_published_hash(&sha256_hex(&bytes)));
    // A loss of power may empty a file while it is published.
    if bytes.is_empty() && is_due {
        faulty.outdated.push(view);
    } else if ViewFormat::from_path(&path).parse(&bytes).is_err() {
        faulty.unreadable.push(view);
    } else if is_due {
        faulty.outdated.push(view);
    } else if !is_ours {
        faulty.edited.push(view);
    }
    Ok(())
}

fn due_paths(db: &StateDatabase) -> Result<HashSet<String>, DatabaseError> {
    let mut found = HashSet::new();
    let mut after = String::new();
    loop {
        let due = db.due_views(&after, PAGE)?;
        let Some(last) = due.last() else { return Ok(found) };
        after.clone_from(&last.path);
        found.extend(due.into_iter().map(|view| view.path));
    }
}

/// Reports job and session files that the database does not know.
fn find_unrecorded_files(dir: &StateDir, known: &HashSet<String>, findings: &mut Vec<Finding>) {
    let mut unrecorded = Vec::new();
    for (folder, ending) in [("jobs", ".yaml"), ("sessions", ".json")] {
        let entries = dir.root().join(folder).read_dir_utf8().into_iter().flatten().flatten();
        let mut names = entries.map(|entry| entry.file_name().to_owned()).collect::<Vec<_>>();
        // A fixed order makes the findings of two runs comparable.
        names.sort();
        // Temporary files are reported by another check.
        for name in names.iter().filter(|name| !name.starts_with('.')) {
            let path = format!("{folder}/{name}");
            let Some(stem) = name.strip_suffix(ending).filter(|_| !known.contains(&path)) else {
                continue;
            };
            let text = untrusted_file::read_text(&dir.root().join(&path));
            let read = text.map_err(|error| error.to_string()).and_then(|text| match folder {
                "jobs" => parse_job(stem, &text).map(drop),
                _ => parse_session(stem, &text).map(drop),
            });
            match read {
                Ok(()) => unrecorded.push(path),
                Err(reason) => {
                    let problem = format!("is not a readable record: {reason}");
                    let finding =
                        Finding::new(FindingSeverity::Warning, FindingArea::Views, path, problem);
                    findings.push(finding.with_remedy(
                        "move it away; or repair it by hand and run `heeler doctor --rebuild`",
                    ));
                }
            }
        }
    }
    if !unrecorded.is_empty() {
        let problem = "is a record that the database does not have";
        let subject = describe_first(&unrecorded);
        let finding = Finding::new(FindingSeverity::Warning, FindingArea::Views, subject, problem);
        findings.push(finding.with_remedy("`heeler doctor --rebuild` imports it"));
    }
}
