//! Views against the database: missing, unreadable, changed by hand, behind.

use std::collections::HashSet;

use super::finding::{Area, Finding, Fix, Severity, first_of};
use super::locks;
use crate::db::{Db, DbError};
use crate::import::herdctl::read;
use crate::layout::StateDir;
use crate::views::{Format, View, render_view, sha256_hex};
use heeler_transcript::plain;

/// How many views are asked for at once.
const PAGE: usize = 1000;

/// Views by what is wrong with them.
#[derive(Default)]
struct Faulty {
    /// Every view that the database knows of.
    known: HashSet<String>,
    missing: Vec<View>,
    unreadable: Vec<View>,
    edited: Vec<View>,
    behind: Vec<View>,
}

/// Finds views that are not as they were published.
pub(crate) fn examine(dir: &StateDir, db: &Db, findings: &mut Vec<Finding>) {
    let faulty = match sort(dir, db) {
        Ok(mut faulty) => {
            // A living writer publishes by itself, and is allowed half a second for it.
            if locks::has_writer(dir) {
                faulty.behind.clear();
            }
            faulty
        }
        Err(error) => {
            let finding =
                Finding::new(Severity::Error, Area::Database, dir.database(), error.to_string());
            findings.push(finding.cure("run `heeler doctor --rebuild`"));
            return;
        }
    };
    strangers(dir, &faulty.known, findings);
    for (views, severity, problem) in [
        (faulty.missing, Severity::Warning, "is not there"),
        (faulty.unreadable, Severity::Warning, "cannot be read as what it is"),
        (faulty.edited, Severity::Note, "was changed by hand"),
        (faulty.behind, Severity::Note, "is behind the database"),
    ] {
        if !views.is_empty() {
            let finding = Finding::new(severity, Area::Views, first_of(&views), problem);
            findings.push(finding.fixable(Fix::Publish(views)));
        }
    }
}

fn sort(dir: &StateDir, db: &Db) -> Result<Faulty, DbError> {
    let mut faulty = Faulty::default();
    let due = due_paths(db)?;
    let mut after = String::new();
    loop {
        let paths = db.view_paths(&after, PAGE)?;
        let Some(last) = paths.last() else { return Ok(faulty) };
        after.clone_from(last);
        for path in &paths {
            faulty.known.insert(path.clone());
            let Some(view) = View::at(path) else { continue };
            let is_due = due.contains(path);
            sort_one(dir, db, view, is_due, &mut faulty)?;
        }
    }
}

fn sort_one(
    dir: &StateDir,
    db: &Db,
    view: View,
    is_due: bool,
    faulty: &mut Faulty,
) -> Result<(), DbError> {
    let path = view.path();
    let Ok(bytes) = plain::read(&dir.root().join(&path), plain::RECORD_BYTES_MAX) else {
        // A deleted file of an agent's session means something, and is taken over at the start.
        let means_something = matches!(view, View::AgentSession(_));
        if !means_something && render_view(db, &view)?.is_some() {
            faulty.missing.push(view);
        }
        return Ok(());
    };
    let is_ours = db.view(&path)?.is_some_and(|row| row.is_ours(&sha256_hex(&bytes)));
    if Format::of(&path).parse(&bytes).is_err() {
        faulty.unreadable.push(view);
    } else if is_due {
        faulty.behind.push(view);
    } else if !is_ours {
        faulty.edited.push(view);
    }
    Ok(())
}

fn due_paths(db: &Db) -> Result<HashSet<String>, DbError> {
    let mut found = HashSet::new();
    let mut after = String::new();
    loop {
        let due = db.due_views(&after, PAGE)?;
        let Some(last) = due.last() else { return Ok(found) };
        after.clone_from(&last.path);
        found.extend(due.into_iter().map(|view| view.path));
    }
}

/// Finds records of jobs and sessions that the database does not know of.
fn strangers(dir: &StateDir, known: &HashSet<String>, findings: &mut Vec<Finding>) {
    let mut unrecorded = Vec::new();
    for (folder, ending) in [("jobs", ".yaml"), ("sessions", ".json")] {
        let entries = dir.root().join(folder).read_dir_utf8().into_iter().flatten().flatten();
        let mut names = entries.map(|entry| entry.file_name().to_owned()).collect::<Vec<_>>();
        names.sort();
        for name in names.iter().filter(|name| !name.starts_with('.')) {
            let path = format!("{folder}/{name}");
            let Some(stem) = name.strip_suffix(ending).filter(|_| !known.contains(&path)) else {
                continue;
            };
            let text = plain::read_text(&dir.root().join(&path));
            let read = text.map_err(|error| error.to_string()).and_then(|text| match folder {
                "jobs" => read::job(stem, &text).map(drop),
                _ => read::session(stem, &text).map(drop),
            });
            match read {
                Ok(()) => unrecorded.push(path),
                Err(reason) => {
                    let problem = format!("is no record that can be read: {reason}");
                    let finding = Finding::new(Severity::Warning, Area::Views, path, problem);
                    findings.push(finding.cure(
                        "move it away; or repair it by hand and run `heeler doctor --rebuild`",
                    ));
                }
            }
        }
    }
    if !unrecorded.is_empty() {
        let problem = "is a record that the database does not have";
        let subject = first_of(&unrecorded);
        let finding = Finding::new(Severity::Warning, Area::Views, subject, problem);
        findings.push(finding.cure("`heeler doctor --rebuild` takes it in"));
    }
}
