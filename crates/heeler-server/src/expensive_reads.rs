//! Reads that open many files or run git: only a few of each kind run at once.
//!
//! Any caller with the scope `read` may request them at any rate, so without a limit one caller
//! could keep all threads and the disk busy. A permit is held until the work is done, even if the
//! caller is gone. Start at [`ExpensiveReads`].

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, WeakShared};
use heeler_query::health::HealthReport;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::problem::ProblemDetails;

/// Most concurrent searches.
pub(crate) const SEARCHES_MAX: usize = 2;

/// Most concurrent diffs.
pub(crate) const DIFFS_MAX: usize = 2;

/// Most concurrent session exports; each occupies a thread. Further requests are refused.
pub(crate) const EXPORTS_MAX: usize = 8;

/// Longest wait for a permit; then the request is refused with a `Retry-After`.
const PERMIT_WAIT_MAX: Duration = Duration::from_secs(5);

/// `Retry-After` of a request that got no permit.
const BUSY_RETRY_AFTER: Duration = Duration::from_secs(5);

/// Kind of an expensive read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum ExpensiveReadKind {
    /// Searches transcripts, or reads those of two jobs.
    Search,
    /// Compares snapshots.
    Diff,
    /// Examines the state directory.
    Examination,
}

/// Result of an examination of the state directory.
pub(crate) type ExaminationResult = Result<Arc<HealthReport>, ProblemDetails>;

/// Examination of the state directory.
pub(crate) type ExaminationFuture = BoxFuture<'static, ExaminationResult>;

/// Permits for expensive reads.
#[derive(Debug)]
pub struct ExpensiveReads {
    searches: Arc<Semaphore>,
    diffs: Arc<Semaphore>,
    examinations: Arc<Semaphore>,
    exports: Arc<Semaphore>,
    /// Examination in progress, while a request waits for it.
    examination: Mutex<Option<WeakShared<ExaminationFuture>>>,
}

impl Default for ExpensiveReads {
    fn default() -> ExpensiveReads {
        let [searches, diffs, examinations, exports] =
            [SEARCHES_MAX, DIFFS_MAX, 1, EXPORTS_MAX].map(|most| Arc::new(Semaphore::new(most)));
        ExpensiveReads { searches, diffs, examinations, exports, examination: Mutex::default() }
    }
}

impl ExpensiveReads {
    /// Acquires a permit for an export without waiting, because an export lasts as long as its
    /// client takes.
    pub(crate) fn acquire_export(&self) -> Result<OwnedSemaphorePermit, ProblemDetails> {
        Arc::clone(&self.exports).try_acquire_owned().map_err(|_| {
            let detail = format!("{EXPORTS_MAX} exports are running, which is the limit");
            let problem = ProblemDetails::new(StatusCode::SERVICE_UNAVAILABLE, "too-many", detail);
            problem.with_hint("try again later")
        })
    }

    /// Waits for a permit, at most [`PERMIT_WAIT_MAX`].
    pub(crate) async fn acquire(
        &self,
        kind: ExpensiveReadKind,
    ) -> Result<OwnedSemaphorePermit, ProblemDetails> {
        match kind {
            ExpensiveReadKind::Search => acquire_permit(&self.searches, "searches").await,
            ExpensiveReadKind::Diff => acquire_permit(&self.diffs, "diffs").await,
            ExpensiveReadKind::Examination => {
                acquire_permit(&self.examinations, "examinations").await
            }
        }
    }

    /// Returns the result of the examination in progress; starts one if there is none.
    pub(crate) async fn share_examination(
        &self,
        start: impl FnOnce() -> ExaminationFuture,
    ) -> ExaminationResult {
        // The block ends the lock before the wait.
        let examination = {
            let mut current = self.examination.lock().unwrap_or_else(PoisonError::into_inner);
            // A finished examination would give a new request an old result.
            match current.as_ref().and_then(WeakShared::upgrade).filter(|it| it.peek().is_none()) {
                Some(in_progress) => in_progress,
                None => {
                    let started = start().shared();
                    *current = started.downgrade();
                    started
                }
            }
        };
        examination.await
    }
}

async fn acquire_permit(
    permits: &Arc<Semaphore>,
    read_name: &str,
) -> Result<OwnedSemaphorePermit, ProblemDetails> {
    let permit = tokio::time::timeout(PERMIT_WAIT_MAX, Arc::clone(permits).acquire_owned()).await;
    permit.ok().and_then(Result::ok).ok_or_else(|| {
        let detail = format!("the limit of concurrent {read_name} is reached");
        let problem = ProblemDetails::new(StatusCode::SERVICE_UNAVAILABLE, "too-many", detail);
        problem.with_hint("try again in a moment").with_retry_after(BUSY_RETRY_AFTER)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use camino::Utf8Path;
    use heeler_engine::DaemonHandle;

    use super::*;
    use crate::server_state::SharedServerState;
    use crate::tests::app;

    fn daemon() -> (tempfile::TempDir, SharedServerState) {
        let temp = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(temp.path()).unwrap();
        let handle = DaemonHandle::scripted(|_, _| {});
        let app = app(folder, handle, "version: 1\nagents: []\n", BTreeMap::new());
        (temp, app)
    }

    #[tokio::test(start_paused = true)]
    async fn one_question_too_many_of_a_kind_is_told_when_to_come_again() {
        let reads = ExpensiveReads::default();
        for (kind, other, most) in [
            (ExpensiveReadKind::Search, ExpensiveReadKind::Diff, SEARCHES_MAX),
            (ExpensiveReadKind::Diff, ExpensiveReadKind::Search, DIFFS_MAX),
        ] {
            let mut held = Vec::new();
            for _ in 0..most {
                held.push(reads.acquire(kind).await.unwrap());
            }
            let problem = reads.acquire(kind).await.unwrap_err();
            assert_eq!((problem.status, problem.kind), (503, "too-many"));
            let reply = axum::response::IntoResponse::into_response(problem);
            assert_eq!(reply.headers()["retry-after"], BUSY_RETRY_AFTER.as_secs().to_string());
            drop(reads.acquire(other).await.unwrap());
            held.pop();
            drop(reads.acquire(kind).await.unwrap());
        }
    }

    #[tokio::test]
    async fn a_turn_lasts_as_long_as_the_work_also_if_nobody_waits_for_it() {
        let (_temp, app) = daemon();
        let (begun, on) = (Arc::new(Semaphore::new(0)), std::sync::mpsc::channel::<()>());
        let (go, gone) = on;
        let signal = Arc::clone(&begun);
        let asked = app.read_expensive(ExpensiveReadKind::Diff, move |_| {
            signal.add_permits(1);
            // Blocks until the other end is dropped.
            gone.recv().unwrap_err();
            Ok(())
        });
        tokio::select! {
            _ = asked => panic!("it waits"),
            seen = begun.acquire() => drop(seen.unwrap()),
        }
        assert_eq!(app.expensive_reads.diffs.available_permits(), DIFFS_MAX - 1);
        drop(go);
        let most = u32::try_from(DIFFS_MAX).unwrap();
        drop(app.expensive_reads.diffs.acquire_many(most).await.unwrap());
    }

    #[tokio::test]
    async fn those_who_ask_for_an_examination_at_once_share_one() {
        let (_temp, app) = daemon();
        let (one, other) = tokio::join!(app.examine_state_dir(), app.examine_state_dir());
        let (one, other) = (one.unwrap(), other.unwrap());
        assert!(Arc::ptr_eq(&one, &other));
        // A finished examination is not reused.
        assert!(!Arc::ptr_eq(&one, &app.examine_state_dir().await.unwrap()));
    }
}
