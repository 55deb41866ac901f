//! Questions that read many files or run git: only a few of each kind are answered at once.
//!
//! Whoever may look may ask them as often as they like, so without a bound one reader would keep every
//! thread and the disk busy. A turn lasts until the work is done, also if nobody waits for it any more.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, WeakShared};
use heeler_query::health::Examined;
use heeler_query::{QueryError, Records};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::app::{App, Served};
use crate::problem::Problem;

/// How many searches are done at once.
pub(crate) const SEARCHES_MAX: usize = 2;

/// How many differences of files are made at once.
pub(crate) const DIFFS_MAX: usize = 2;

/// How many sessions are sent at once, each by a thread of this process; whoever comes then is refused.
pub(crate) const EXPORTS_MAX: usize = 8;

/// How long a question waits for its turn; then whoever asks is told to come again.
const TURN_WAIT: Duration = Duration::from_secs(5);

/// When whoever found no turn is to ask again.
const AGAIN: Duration = Duration::from_secs(5);

/// A kind of question that costs much.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Cost {
    /// Reads transcripts.
    Search,
    /// Compares files.
    Diff,
}

type Examination = BoxFuture<'static, Result<Arc<Examined>, Problem>>;

/// The turns of costly questions.
#[derive(Debug)]
pub struct Costly {
    searches: Arc<Semaphore>,
    diffs: Arc<Semaphore>,
    examinations: Arc<Semaphore>,
    exports: Arc<Semaphore>,
    /// The one that is going on, while somebody waits for it.
    examination: Mutex<Option<WeakShared<Examination>>>,
}

impl Default for Costly {
    fn default() -> Costly {
        let [searches, diffs, examinations, exports] =
            [SEARCHES_MAX, DIFFS_MAX, 1, EXPORTS_MAX].map(|most| Arc::new(Semaphore::new(most)));
        Costly { searches, diffs, examinations, exports, examination: Mutex::default() }
    }
}

impl Costly {
    /// Takes a turn to send a session, if there is one: each takes as long as whoever takes it, so
    /// nobody waits.
    pub(crate) fn export(&self) -> Result<OwnedSemaphorePermit, Problem> {
        Arc::clone(&self.exports).try_acquire_owned().map_err(|_| {
            let detail = format!("{EXPORTS_MAX} sessions are exported already, the most at once");
            let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too-many", detail);
            problem.hint("try again later")
        })
    }

    /// Waits for a turn, but not long.
    pub(crate) async fn turn(&self, cost: Cost) -> Result<OwnedSemaphorePermit, Problem> {
        match cost {
            Cost::Search => turn(&self.searches, "searches are done").await,
            Cost::Diff => turn(&self.diffs, "differences are made").await,
        }
    }
}

async fn turn(turns: &Arc<Semaphore>, what: &str) -> Result<OwnedSemaphorePermit, Problem> {
    let turn = tokio::time::timeout(TURN_WAIT, Arc::clone(turns).acquire_owned()).await;
    turn.ok().and_then(Result::ok).ok_or_else(|| {
        let detail = format!("as many {what} already as may be at once");
        let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too-many", detail);
        problem.hint("ask again in a moment").retry_after(AGAIN)
    })
}

impl Served {
    /// Asks the records something that costs much, when it is its turn.
    pub(crate) async fn read_costly<T: Send + 'static>(
        &self,
        cost: Cost,
        question: impl FnOnce(&Records) -> Result<T, QueryError> + Send + 'static,
    ) -> Result<T, Problem> {
        let turn = self.costly.turn(cost).await?;
        self.read(move |records| {
            let _turn = turn;
            question(records)
        })
        .await
    }

    /// Examines the state directory. Whoever asks while that goes on gets what it finds.
    pub(crate) async fn examined(self: &Arc<Self>) -> Result<Arc<Examined>, Problem> {
        let going_on = {
            let costly = &self.costly;
            let mut known = costly.examination.lock().unwrap_or_else(PoisonError::into_inner);
            match known.as_ref().and_then(WeakShared::upgrade).filter(|it| it.peek().is_none()) {
                Some(going_on) => going_on,
                None => {
                    let begun = examine(Arc::clone(self)).boxed().shared();
                    *known = begun.downgrade();
                    begun
                }
            }
        };
        going_on.await
    }
}

async fn examine(app: App) -> Result<Arc<Examined>, Problem> {
    // One that nobody waits for any more is still to end.
    let turn = turn(&app.costly.examinations, "examinations are made").await?;
    let now = (app.now)();
    let question = move |records: &Records| {
        let _turn = turn;
        Ok(Arc::new(records.examine(now)))
    };
    app.read(question).await
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use camino::Utf8Path;
    use heeler_engine::Handle;

    use super::*;
    use crate::tests::app;

    fn daemon() -> (tempfile::TempDir, App) {
        let temp = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(temp.path()).unwrap();
        let handle = Handle::scripted(|_, _| {});
        let app = app(folder, handle, "version: 1\nagents: []\n", BTreeMap::new());
        (temp, app)
    }

    #[tokio::test(start_paused = true)]
    async fn one_question_too_many_of_a_kind_is_told_when_to_come_again() {
        let costly = Costly::default();
        for (cost, other, most) in
            [(Cost::Search, Cost::Diff, SEARCHES_MAX), (Cost::Diff, Cost::Search, DIFFS_MAX)]
        {
            let mut held = Vec::new();
            for _ in 0..most {
                held.push(costly.turn(cost).await.unwrap());
            }
            let problem = costly.turn(cost).await.unwrap_err();
            assert_eq!((problem.status, problem.kind), (503, "too-many"));
            let reply = axum::response::IntoResponse::into_response(problem);
            assert_eq!(reply.headers()["retry-after"], AGAIN.as_secs().to_string());
            drop(costly.turn(other).await.unwrap());
            held.pop();
            drop(costly.turn(cost).await.unwrap());
        }
    }

    #[tokio::test]
    async fn a_turn_lasts_as_long_as_the_work_also_if_nobody_waits_for_it() {
        let (_temp, app) = daemon();
        let (begun, on) = (Arc::new(Semaphore::new(0)), std::sync::mpsc::channel::<()>());
        let (go, gone) = on;
        let signal = Arc::clone(&begun);
        let asked = app.read_costly(Cost::Diff, move |_| {
            signal.add_permits(1);
            // Until the other end is dropped.
            gone.recv().unwrap_err();
            Ok(())
        });
        tokio::select! {
            _ = asked => panic!("it waits"),
            seen = begun.acquire() => drop(seen.unwrap()),
        }
        assert_eq!(app.costly.diffs.available_permits(), DIFFS_MAX - 1);
        drop(go);
        let most = u32::try_from(DIFFS_MAX).unwrap();
        drop(app.costly.diffs.acquire_many(most).await.unwrap());
    }

    #[tokio::test]
    async fn those_who_ask_for_an_examination_at_once_share_one() {
        let (_temp, app) = daemon();
        let (one, other) = tokio::join!(app.examined(), app.examined());
        let (one, other) = (one.unwrap(), other.unwrap());
        assert!(Arc::ptr_eq(&one, &other));
        // What is over is not told again.
        assert!(!Arc::ptr_eq(&one, &app.examined().await.unwrap()));
    }
}
