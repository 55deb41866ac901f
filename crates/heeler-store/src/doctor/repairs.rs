//! Doctor repairs that lose nothing.
//!
//! Repairs of the database use a [`Store`], which is refused while another process is the
//! writer; that process then makes these repairs itself. Start at [`fix`].

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::{AgentStatus, JobId, JobStatus, JobTransition, RunId, error_chain};
use jiff::Timestamp;

use super::finding::{Finding, RepairAction};
use super::rebuild::LOCK_WAIT;
use super::{files, transcripts};
use crate::db::effects::EffectRecord;
use crate::db::{DatabaseError, queue, spending};
use crate::layout::StateDir;
use crate::staging::finish_rebuild;
use crate::store::Store;
use crate::transaction::StoreTransaction;
use crate::views::PublishedView;
use crate::writer_lock::acquire_writer_lock;
use heeler_transcript::LockHolder;

/// Error recorded for an orphaned job.
const INTERRUPTED: &str = "interrupted: no process was working on this job";

/// A finding, and the result of its repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepairOutcome {
    pub finding: Finding,
    /// The action taken, or the reason why there was none.
    pub outcome: Result<String, String>,
}

/// Performs the repairs that lose nothing. Findings without such a repair are not in the
/// result.
pub fn fix(root: &Utf8Path, findings: &[Finding], now: Timestamp) -> Vec<RepairOutcome> {
    let mut fixer = RepairExecutor { root, store: None, now };
    let fixable = findings.iter().filter_map(|finding| Some((finding, finding.repair.as_ref()?)));
    let fixed = fixable.map(|(finding, fix)| {
        let outcome = fixer.apply(fix);
        RepairOutcome { finding: finding.clone(), outcome }
    });
    fixed.collect()
}

struct RepairExecutor<'a> {
    root: &'a Utf8Path,
    /// Opened by the first repair that needs it.
    store: Option<Store>,
    now: Timestamp,
}

impl RepairExecutor<'_> {
    fn apply(&mut self, fix: &RepairAction) -> Result<String, String> {
        match fix {
            RepairAction::RestrictPermissions(paths) => {
                each(paths, files::restrict_permissions, "closed to others")
            }
            RepairAction::RemoveTempFiles(paths) => each(paths, files::remove_temp_file, "removed"),
            RepairAction::RepairTail(log) => transcripts::repair(log),
            RepairAction::RepublishViews(views) => self.publish(views),
            RepairAction::Recount => self.recount(),
            RepairAction::Interrupt(job) => self.interrupt(job),
            RepairAction::Dequeue(jobs) => self.dequeue(jobs),
            RepairAction::ReleaseReservations(runs) => self.release(runs),
            RepairAction::FinishRebuild => self.finish_rebuild(),
        }
    }

    fn store(&mut self) -> Result<&Store, String> {
        if self.store.is_none() {
            // Opened late, because most repairs work beside a running daemon, which holds the lock.
            let dir = StateDir::open(self.root).map_err(|error| error_chain(&error))?;
            let opened =
                Store::open(&dir, "doctor --fix", self.now).map_err(|error| error_chain(&error))?;
            self.store = Some(opened.store);
        }
        Ok(self.store.as_ref().expect("it was opened above"))
    }

    fn publish(&mut self, views: &[PublishedView]) -> Result<String, String> {
        let now = self.now;
        let store = self.store()?;
        // Hand edits are read first: the publication would overwrite them.
        store.apply_hand_edits(now).map_err(|error| error_chain(&error))?;
        let due = views.to_vec();
        let marked = store.write::<(), DatabaseError, _>(move |tx| {
            due.iter().try_for_each(|view| tx.mark_view_due(view))
        });
        marked.map_err(|error| error_chain(&error))?;
        let report = store.publish_views(now).map_err(|error| error_chain(&error))?;
        match report.failed.first() {
            None => Ok(format!("published {}", counted(views.len(), "file"))),
            Some(failure) => Err(format!("{}: {}", failure.path, failure.reason)),
        }
    }

    fn recount(&mut self) -> Result<String, String> {
        let recounted = self.store()?.write(|tx| tx.recount());
        recounted.map_err(|error| error_chain(&error))?;
        Ok("counted anew".to_owned())
    }

    fn interrupt(&mut self, job: &JobId) -> Result<String, String> {
        let (id, now) = (job.clone(), self.now);
        let done = self.store()?.write(move |tx| interrupt(tx, &id, now));
        match done.map_err(|error| error_chain(&error))? {
            true => Ok("marked as interrupted".to_owned()),
            false => Ok("it has ended meanwhile".to_owned()),
        }
    }

    fn dequeue(&mut self, jobs: &[JobId]) -> Result<String, String> {
        let jobs = jobs.to_vec();
        let done = self.store()?.write::<usize, DatabaseError, _>(move |tx| {
            // One of them may be waiting again by now.
            let mut idle = queue::stale_queue_entries(&tx.conn)?;
            idle.retain(|job| jobs.contains(job));
            idle.iter().try_for_each(|job| tx.dequeue(job).map(drop))?;
            Ok(idle.len())
        });
        let count = done.map_err(|error| error_chain(&error))?;
        Ok(format!("removed {} from the queue", counted(count, "job")))
    }

    fn release(&mut self, runs: &[RunId]) -> Result<String, String> {
        let runs = runs.to_vec();
        let done = self.store()?.write::<usize, DatabaseError, _>(move |tx| {
            // One of them may belong to a live run again by now.
            let mut unused = spending::stale_reservations(&tx.conn)?;
            unused.retain(|run| runs.contains(run));
            unused.iter().try_for_each(|run| tx.release(*run).map(drop))?;
            Ok(unused.len())
        });
        let count = done.map_err(|error| error_chain(&error))?;
        Ok(format!("released the reservations of {}", counted(count, "run")))
    }

    fn finish_rebuild(&mut self) -> Result<String, String> {
        let dir = StateDir::open(self.root).map_err(|error| error_chain(&error))?;
        let holder = LockHolder::this_process("doctor --fix", self.now);
        let _lock = acquire_writer_lock(&dir, &dir.lock(), &holder, LOCK_WAIT)
            .map_err(|error| error_chain(&error))?;
        finish_rebuild(&dir).map_err(|error| error_chain(&error))?;
        Ok("completed the rebuild".to_owned())
    }
}

/// Ends an orphaned job, and resets its agent if that was working on it; returns false if there
/// was nothing to do.
pub fn interrupt(
    tx: &mut StoreTransaction<'_>,
    id: &JobId,
    now: Timestamp,
) -> Result<bool, DatabaseError> {
    // The job may have ended since it was examined.
    let Some(mut job) = tx.job(id)?.filter(|job| job.head.status == JobStatus::Running) else {
        return Ok(false);
    };
    job.apply(JobTransition::Fail { why: INTERRUPTED.to_owned(), at: now });
    job.interrupted = true;
    tx.update_job(&job)?;
    tx.add_effect(&EffectRecord::job_end(&job, now))?;
    if let Some(mut agent) = tx.agent(&job.head.agent)?
        // The agent may already work on another job.
        && agent.current_job.as_ref() == Some(id)
    {
        agent.status = AgentStatus::Idle;
        agent.current_job = None;
        agent.last_job = Some(id.clone());
        tx.put_agent(&job.head.agent, &agent)?;
    }
    Ok(true)
}

fn each(
    paths: &[Utf8PathBuf],
    work: impl Fn(&Utf8Path) -> std::io::Result<()>,
    done: &str,
) -> Result<String, String> {
    for path in paths {
        match work(path) {
            Ok(()) => {}
            // The file is gone, which is the aim of the repair.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("{path}: {error}")),
        }
    }
    Ok(format!("{done}: {}", counted(paths.len(), "file")))
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
