//! Whether records and logs know each other, and whether what is `running` runs.

use std::collections::HashSet;
use std::fs::Metadata;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::{JobHead, JobId, JobStatus, Session};

use super::finding::{Area, Finding, Fix, Severity, first_of};
use super::{locks, transcripts};
use crate::db::jobs::{self, JobCursor, JobFilter};
use crate::db::sessions::{SessionCursor, SessionFilter};
use crate::db::{Db, DbError};
use crate::layout::StateDir;
use crate::sent::is_sent_file;

/// How many records are asked for at once.
const PAGE: usize = 1000;

/// Returns every log among the files.
pub(crate) fn logs(files: &[(Utf8PathBuf, Metadata)]) -> Vec<Utf8PathBuf> {
    let is_log = |path: &Utf8Path| {
        matches!(path.extension(), Some("jsonl" | "ndjson")) && !is_sent_file(path)
    };
    let logs = files.iter().filter(|(path, meta)| meta.is_file() && is_log(path));
    logs.map(|(path, _)| path.clone()).collect()
}

/// Finds logs without records, records without logs, and jobs that nobody works on.
pub(crate) fn examine(dir: &StateDir, db: &Db, logs: &[Utf8PathBuf], findings: &mut Vec<Finding>) {
    if let Err(error) = try_examine(dir, db, logs, findings) {
        let finding =
            Finding::new(Severity::Error, Area::Database, dir.database(), error.to_string());
        findings.push(finding.cure("run `heeler doctor --rebuild`"));
    }
}

fn try_examine(
    dir: &StateDir,
    db: &Db,
    logs: &[Utf8PathBuf],
    findings: &mut Vec<Finding>,
) -> Result<(), DbError> {
    let session_logs = session_logs(dir, db)?;
    findings.extend(transcripts::missing(&session_logs));
    findings.extend(missing_worktrees(db)?);
    let mut named = session_logs.into_iter().collect::<HashSet<_>>();
    for log in logs {
        // Sub-agents' logs belong to a session that their name does not tell.
        let is_sub_agent = log.file_name().is_some_and(|name| name.starts_with("agent-"));
        let job = log.file_stem().filter(|_| log.parent() == Some(&dir.jobs()));
        let is_jobs = match job.map(str::parse) {
            Some(Ok(id)) => jobs::exists(&db.conn, &id)?,
            _ => false,
        };
        if is_jobs || is_sub_agent {
            named.insert(log.clone());
        }
    }
    findings.extend(transcripts::unnamed(logs, &named));
    findings.extend(jobs_without_log(dir, db)?);
    if !locks::has_writer(dir) {
        for job in db.running_jobs()? {
            findings.extend(dead_job(dir, db, &job)?);
        }
    }
    Ok(())
}

/// Finds completed jobs whose transcript is gone. What Last Light ran is in its session's log.
fn jobs_without_log(dir: &StateDir, db: &Db) -> Result<Option<Finding>, DbError> {
    let filter = JobFilter { status: Some(JobStatus::Completed), ..JobFilter::default() };
    let mut bare = Vec::new();
    let mut before: Option<JobCursor> = None;
    loop {
        let page = db.jobs(&filter, before.as_ref(), PAGE)?;
        let Some(last) = page.last() else { break };
        before = Some(JobCursor::after(last));
        let own = page.into_iter().filter(|head| head.id.is_own());
        // What was put away is where the config wants it.
        let has_log = |id: &JobId| dir.log_of(id).exists() || dir.trashed_job(id).exists();
        bare.extend(own.filter(|head| !has_log(&head.id)).map(|head| head.id));
    }
    if bare.is_empty() {
        return Ok(None);
    }
    let problem = "is completed and has no transcript";
    let finding = Finding::new(Severity::Note, Area::Transcripts, first_of(&bare), problem);
    Ok(Some(finding.cure("`heeler restore` puts it back from a backup that has it")))
}

fn session_logs(dir: &StateDir, db: &Db) -> Result<Vec<Utf8PathBuf>, DbError> {
    let mut logs = Vec::new();
    each_session(db, |session| logs.extend(session.log_path.map(|log| dir.root().join(log))))?;
    Ok(logs)
}

/// Finds sessions whose own worktree is gone.
fn missing_worktrees(db: &Db) -> Result<Vec<Finding>, DbError> {
    let mut findings = Vec::new();
    each_session(db, |session| {
        let Some(top) = session.workspace.filter(|top| top.symlink_metadata().is_err()) else {
            return;
        };
        let id = session.id;
        let problem = format!("its worktree {top} is gone");
        let finding = Finding::new(Severity::Warning, Area::Worktrees, id.as_str(), problem);
        findings.push(finding.cure(format!(
            "`heeler session resume {id}` makes it again from its newest snapshot, without what was \
             done since; `heeler session delete {id}` if nobody needs it"
        )));
    })?;
    Ok(findings)
}

fn each_session(db: &Db, mut take: impl FnMut(Session)) -> Result<(), DbError> {
    let mut before: Option<SessionCursor> = None;
    loop {
        let page = db.sessions(&SessionFilter::default(), before.as_ref(), PAGE)?;
        let Some(last) = page.last() else { return Ok(()) };
        before = Some(SessionCursor::after(last));
        page.into_iter().for_each(&mut take);
    }
}

/// Finds that a job is `running` though no daemon lives and no run of it holds its lock.
fn dead_job(dir: &StateDir, db: &Db, job: &JobHead) -> Result<Option<Finding>, DbError> {
    if db.is_alive(dir, &job.id)? {
        return Ok(None);
    }
    let problem = "is shown as running, and nobody works on it";
    let finding = Finding::new(Severity::Warning, Area::Database, job.id.as_str(), problem);
    Ok(Some(finding.fixable(Fix::Interrupt(job.id.clone()))))
}
