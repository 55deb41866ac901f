//! Questions that read many files or run git: only a few of each kind are answered at once.
//!
//! Whoever may look may ask them as often as they like, so without a bound one reader would keep every
//! thread and the disk busy. A turn lasts until the work is done, also if nobody waits for it any more.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, WeakShared};
use heeler_query::health::HealthReport;
use heeler_query::{FleetReader, QueryError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::problem::ProblemDetails;
use crate::server_state::{ServerState, SharedServerState};

/// How many searches are done at once.
pub(crate) const SEARCHES_MAX: usize = 2;

/// How many differences of files are made at once.
pub(crate) const DIFFS_MAX: usize = 2;

/// How many sessions are sent at once, each by a thread of this process; whoever comes then is refused.
pub(crate) const EXPORTS_MAX: usize = 8;

/// How long a question waits for its turn; then whoever asks is told to come again.
const PERMIT_WAIT_MAX: Duration = Duration::from_secs(5);

/// When whoever found no turn is to ask again.
const BUSY_RETRY_AFTER: Duration = Duration::from_secs(5);

/// A kind of question that costs much.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum ExpensiveReadKind {
    /// Reads transcripts.
    Search,
    /// Compares files.
    Diff,
}

type ExaminationFuture = BoxFuture<'static, Result<Arc<HealthReport>, ProblemDetails>>;

/// The turns of costly questions.
#[derive(Debug)]
pub struct ExpensiveReads {
    searches: Arc<Semaphore>,
    diffs: Arc<Semaphore>,
    examinations: Arc<Semaphore>,
    exports: Arc<Semaphore>,
    /// The one that is going on, while somebody waits for it.
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
    /// Takes a turn to send a session, if there is one: each takes as long as whoever takes it, so
    /// nobody waits.
    pub(crate) fn acquire_export(&self) -> Result<OwnedSemaphorePermit, ProblemDetails> {
        Arc::clone(&self.exports).try_acquire_owned().map_err(|_| {
            let detail = format!("{EXPORTS_MAX} sessions are exported already, the most at once");
            let problem = ProblemDetails::new(StatusCode::SERVICE_UNAVAILABLE, "too-many", detail);
            problem.with_hint("try again later")
        })
    }

    /// Waits for a turn, but not long.
    pub(crate) async fn acquire(
        &self,
        cost: ExpensiveReadKind,
    ) -> Result<OwnedSemaphorePermit, ProblemDetails> {
        match cost {
            ExpensiveReadKind::Search => acquire_permit(&self.searches, "searches are done").await,
            ExpensiveReadKind::Diff => acquire_permit(&self.diffs, "differences are made").await,
        }
    }
}

async fn acquire_permit(
    turns: &Arc<Semaphore>,
    what: &str,
) -> Result<OwnedSemaphorePermit, ProblemDetails> {
    let turn = tokio::time::timeout(PERMIT_WAIT_MAX, Arc::clone(turns).acquire_owned()).await;
    turn.ok().and_then(Result::ok).ok_or_else(|| {
        let detail = format!("as many {what} already as may be at once");
        let problem = ProblemDetails::new(StatusCode::SERVICE_UNAVAILABLE, "too-many", detail);
        problem.with_hint("ask again in a moment").with_retry_after(BUSY_RETRY_AFTER)
    })
}

impl ServerState {
    /// Asks the records something that costs much, when it is its turn.
    pub(crate) async fn read_expensive<T: Send + 'static>(
        &self,
        cost: ExpensiveReadKind,
        question: impl FnOnce(&FleetReader) -> Result<T, QueryError> + Send + 'static,
    ) -> Result<T, ProblemDetails> {
        let turn = self.expensive_reads.acquire(cost).await?;
        self.read(move |records| {
            let _turn = turn;
            question(records)
        })
        .await
    }

    /// Examines the state directory. Whoever asks while that goes on gets what it finds.
    pub(crate) async fn examine_state_dir(
        self: &Arc<Self>,
    ) -> Result<Arc<HealthReport>, ProblemDetails> {
        let going_on = {
            let costly = &self.expensive_reads;
            let mut known = costly.examination.lock().unwrap_or_else(PoisonError::into_inner);
            match known.as_ref().and_then(WeakShared::upgrade).filter(|it| it.peek().is_none()) {
                Some(going_on) => going_on,
                None => {
                    let begun = start_examination(Arc::clone(self)).boxed().shared();
                    *known = begun.downgrade();
                    begun
                }
            }
        };
        going_on.await
    }
}

async fn start_examination(app: SharedServerState) -> Result<Arc<HealthReport>, ProblemDetails> {
    // One that nobody waits for any more is still to end.
    let turn = acquire_permit(&app.expensive_reads.examinations, "examinations are made").await?;
    let now = (app.clock)();
    let question = move |records: &FleetReader| {
        let _turn = turn;
        Ok(Arc::new(records.check_health(now)))
    };
    app.read(question).await
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use camino::Utf8Path;
    use heeler_engine::DaemonHandle;

    use super::*;
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
        let costly = ExpensiveReads::default();
        for (cost, other, most) in [
            (ExpensiveReadKind::Search, ExpensiveReadKind::Diff, SEARCHES_MAX),
            (ExpensiveReadKind::Diff, ExpensiveReadKind::Search, DIFFS_MAX),
        ] {
            let mut held = Vec::new();
            for _ in 0..most {
                held.push(costly.acquire(cost).await.unwrap());
            }
            let problem = costly.acquire(cost).await.unwrap_err();
            assert_eq!((problem.status, problem.kind), (503, "too-many"));
            let reply = axum::response::IntoResponse::into_response(problem);
            assert_eq!(reply.headers()["retry-after"], BUSY_RETRY_AFTER.as_secs().to_string());
            drop(costly.acquire(other).await.unwrap());
            held.pop();
            drop(costly.acquire(cost).await.unwrap());
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
            // Until the other end is dropped.
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
        // What is over is not told again.
        assert!(!Arc::ptr_eq(&one, &app.examine_state_dir().await.unwrap()));
    }
}
