//! Doctor check of run directories: without a record, without a result, or missing.

use std::collections::HashSet;
use std::fs::DirEntry;
use std::io::ErrorKind;

use heeler_model::RunId;
use heeler_model::run::{RunSpec, file};
use heeler_transcript::untrusted_file;

use super::finding::{Finding, FindingArea, FindingSeverity};
use crate::db::runs::is_run_alive;
use crate::db::{DatabaseError, StateDatabase};
use crate::layout::StateDir;

const SETTLE_REMEDY: &str = "nothing is lost: `heeler doctor --fix` settles it";

/// Reports runs with a directory and record that do not match.
pub(crate) fn examine(dir: &StateDir, db: &StateDatabase, findings: &mut Vec<Finding>) {
    if let Err(error) = try_examine(dir, db, findings) {
        let finding = Finding::new(
            FindingSeverity::Error,
            FindingArea::Database,
            dir.database(),
            error.to_string(),
        );
        findings.push(finding.with_remedy("run `heeler doctor --rebuild`"));
    }
}

fn try_examine(
    dir: &StateDir,
    db: &StateDatabase,
    findings: &mut Vec<Finding>,
) -> Result<(), DatabaseError> {
    let mut folders = HashSet::new();
    let entries = std::fs::read_dir(dir.runs()).into_iter().flatten().flatten();
    let name = |entry: DirEntry| entry.file_name().to_string_lossy().into_owned();
    let mut names = entries.map(name).collect::<Vec<_>>();
    names.sort();
    for name in names {
        let warn = |problem: &str, remedy: &str| {
            let subject = format!("runs/{name}");
            Finding::new(FindingSeverity::Warning, FindingArea::Runs, subject, problem)
                .with_remedy(remedy)
        };
        // Only Heeler creates folders here, but a person may have copied one.
        let Ok(id) = name.parse::<RunId>() else {
            findings.push(warn("is not the folder of a run", "move it elsewhere"));
            continue;
        };
        folders.insert(id);
        let has = |file: &str| dir.run(id).join(file).exists();
        if has(&format!("{}.{}", file::RESULT, file::REFUSED_SUFFIX)) {
            findings.push(warn(
                "has a result that was refused: its runner did not sign it, or it cannot be true",
                "its agent, or another process, wrote it: look at the agent's transcript, then remove \
                 the file",
            ));
        }
        if has(&format!("{}.{}", file::RESULT, file::SUPERSEDED_SUFFIX)) {
            let problem = "has a settled result without a valid signature, which was not used: a daemon \
                died before it recorded it, or an agent wrote it";
            let finding = Finding { severity: FindingSeverity::Note, ..warn(problem, "") };
            findings.push(finding);
        }
        if has_refused_question(dir, id) {
            findings.push(warn(
                "has a question that was refused: its runner did not sign it",
                "its agent, or another process, wrote it: look at the agents' transcripts, then remove \
                 the files `asks/*.refused`",
            ));
        }
        // The state was restored, or the daemon died before it recorded the run.
        if db.run(id)?.is_none() {
            let remedy = match can_be_adopted(dir, id) {
                true => {
                    "`heeler doctor --fix` adopts it; its result counts only after a restore or rebuild \
                     of the database, because an agent may have made it"
                }
                false => "its spec.json cannot be used, so it cannot be adopted: move it elsewhere",
            };
            findings.push(warn("has no record in the database", remedy));
        } else if has(file::STARTED) && !has(file::RESULT) && !is_run_alive(&dir.run(id)) {
            findings.push(warn(
                "was started, has no result, and no process works on it",
                SETTLE_REMEDY,
            ));
        }
    }
    for run in db.uncommitted_runs()? {
        if !folders.contains(&run.id) && !run.is_elsewhere(dir) {
            let subject = format!("runs/{}", run.id);
            let problem = "is missing, and its result is not in the database";
            findings.push(
                Finding::new(FindingSeverity::Warning, FindingArea::Runs, subject, problem)
                    .with_remedy(SETTLE_REMEDY),
            );
        }
    }
    Ok(())
}

/// Returns true if a file of a question was set aside.
fn has_refused_question(dir: &StateDir, id: RunId) -> bool {
    let entries = std::fs::read_dir(dir.run(id).join("asks")).into_iter().flatten().flatten();
    let refused = format!(".{}", file::REFUSED_SUFFIX);
    entries.map(|entry| entry.file_name()).any(|name| name.to_string_lossy().contains(&refused))
}

/// Returns true if the run's spec is readable, or may be readable by another version or at
/// another time.
fn can_be_adopted(dir: &StateDir, id: RunId) -> bool {
    match untrusted_file::read(&dir.run(id).join(file::SPEC), file::BYTES_MAX) {
        Ok(bytes) => match file::parse_run_file::<RunSpec>(&bytes) {
            // A folder that was copied under another name is not that run.
            Ok(spec) => spec.run == id,
            // A newer release may understand the file, so it is not declared unusable.
            Err(error) => !error.is_permanent(),
        },
        Err(error) => !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput),
    }
}
