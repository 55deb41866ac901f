//! Doctor check that records and transcripts match, and that `running` jobs run.

use std::collections::HashSet;
use std::fs::Metadata;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::{JobHead, JobId, JobStatus, Session};

use super::finding::{Finding, FindingArea, FindingSeverity, RepairAction, describe_first};
use super::{locks, transcript_hashes, transcripts};
use crate::db::jobs::{JobCursor, JobFilter};
use crate::db::sessions::{SessionCursor, SessionFilter};
use crate::db::{DatabaseError, StateDatabase};
use crate::layout::StateDir;
use crate::sent_files::is_sent_file;

/// Records per query.
const PAGE: usize = 1000;

/// Returns the transcripts among the files.
pub(crate) fn logs(files: &[(Utf8PathBuf, Metadata)]) -> Vec<Utf8PathBuf> {
    let is_log = |path: &Utf8Path| {
        // agents-fleet calls its transcripts `.ndjson`.
        matches!(path.extension(), Some("jsonl" | "ndjson")) && !is_sent_file(path)
    };
    let logs = files.iter().filter(|(path, meta)| meta.is_file() && is_log(path));
    logs.map(|(path, _)| path.clone()).collect()
}

/// Reports transcripts without records, records without transcripts, and orphaned jobs.
pub(crate) fn examine(
    dir: &StateDir,
    db: &StateDatabase,
    logs: &[Utf8PathBuf],
    findings: &mut Vec<Finding>,
) {
    if let Err(error) = try_examine(dir, db, logs, findings) {
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
    logs: &[Utf8PathBuf],
    findings: &mut Vec<Finding>,
) -> Result<(), DatabaseError> {
    let session_logs = session_logs(dir, db)?;
    // With several hosts they may be on another one.
    if dir.host().is_none() {
        findings.extend(transcripts::missing(&session_logs));
        findings.extend(missing_worktrees(db)?);
    }
    let mut named = session_logs.into_iter().collect::<HashSet<_>>();
    for log in logs {
        // The name of a sub-agent's transcript does not show its session.
        let is_sub_agent = log.file_name().is_some_and(|name| name.starts_with("agent-"));
        let job = log.file_stem().filter(|_| log.parent() == Some(&dir.jobs()));
        let is_jobs = match job.map(str::parse) {
            Some(Ok(id)) => db.is_job_id_used(&id)?,
            _ => false,
        };
        if is_jobs || is_sub_agent {
            named.insert(log.clone());
        }
    }
    findings.extend(transcripts::find_unreferenced(logs, &named));
    findings.extend(jobs_without_log(dir, db)?);
    transcript_hashes::examine(dir, db, findings)?;
    // A running daemon settles such jobs itself.
    if !locks::has_writer(dir) {
        for job in db.running_jobs()? {
            findings.extend(check_orphaned_job(dir, db, &job)?);
        }
    }
    Ok(())
}

/// Reports completed jobs without a transcript. Executions of Last Light are in the transcript
/// of their session.
fn jobs_without_log(dir: &StateDir, db: &StateDatabase) -> Result<Option<Finding>, DatabaseError> {
    let filter = JobFilter { status: Some(JobStatus::Completed), ..JobFilter::default() };
    let mut bare = Vec::new();
    let mut before: Option<JobCursor> = None;
    loop {
        let page = db.jobs(&filter, before.as_ref(), PAGE)?;
        let Some(last) = page.last() else { break };
        before = Some(JobCursor::after(last));
        // Ids of other systems belong to imported jobs, which may have no transcript.
        let minted = page.into_iter().filter(|head| head.id.has_minted_form());
        // Retention moved the transcript to the trash, as configured.
        let has_log = |id: &JobId| dir.job_transcript(id).exists() || dir.trashed_job(id).exists();
        bare.extend(minted.filter(|head| !has_log(&head.id)).map(|head| head.id));
    }
    if bare.is_empty() {
        return Ok(None);
    }
    let problem = "is completed and has no transcript";
    let finding = Finding::new(
        FindingSeverity::Note,
        FindingArea::Transcripts,
        describe_first(&bare),
        problem,
    );
    Ok(Some(finding.with_remedy("`heeler restore` restores it from an archive that contains it")))
}

fn session_logs(dir: &StateDir, db: &StateDatabase) -> Result<Vec<Utf8PathBuf>, DatabaseError> {
    let mut logs = Vec::new();
    each_session(db, |session| logs.extend(session.log_path.map(|log| dir.root().join(log))))?;
    Ok(logs)
}

/// Reports sessions with a missing worktree.
fn missing_worktrees(db: &StateDatabase) -> Result<Vec<Finding>, DatabaseError> {
    let mut findings = Vec::new();
    each_session(db, |session| {
        let Some(top) = session.workspace.filter(|top| top.symlink_metadata().is_err()) else {
            return;
        };
        let id = session.id;
        let problem = format!("its worktree {top} is missing");
        let finding =
            Finding::new(FindingSeverity::Warning, FindingArea::Worktrees, id.as_str(), problem);
        findings.push(finding.with_remedy(format!(
            "`heeler session resume {id}` recreates it from its newest snapshot, without later \
             changes; `heeler session delete {id}` removes the session"
        )));
    })?;
    Ok(findings)
}

fn each_session(db: &StateDatabase, mut take: impl FnMut(Session)) -> Result<(), DatabaseError> {
    let mut before: Option<SessionCursor> = None;
    loop {
        let page = db.sessions(&SessionFilter::default(), before.as_ref(), PAGE)?;
        let Some(last) = page.last() else { return Ok(()) };
        before = Some(SessionCursor::after(last));
        page.into_iter().for_each(&mut take);
    }
}

/// Reports a `running` job if no daemon is alive and no run of the job holds its lock.
fn check_orphaned_job(
    dir: &StateDir,
    db: &StateDatabase,
    job: &JobHead,
) -> Result<Option<Finding>, DatabaseError> {
    if db.is_job_alive(dir, &job.id)? {
        return Ok(None);
    }
    let problem = "is shown as running, but no process works on it";
    let finding =
        Finding::new(FindingSeverity::Warning, FindingArea::Database, job.id.as_str(), problem);
    Ok(Some(finding.with_repair(RepairAction::Interrupt(job.id.clone()))))
}
