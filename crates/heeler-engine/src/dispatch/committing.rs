//! One turn's transaction, and what is done when it cannot be committed.
//!
//! While a commit fails, nothing new starts; what is known is then read anew, and what nobody would
//! tell again is kept. Start at [`Dispatcher::commit`].

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use heeler_model::workflow::Happening;
use heeler_model::{RunId, chain};
use heeler_store::{DbError, Reader, StateDir, Tx, WriteError};
use jiff::Timestamp;

use super::board::{self, Board, day_of};
use super::turn::{self, Turn};
use super::{Deed, Dispatcher, Task};
use crate::access::AccessOrder;
use crate::command::{Answer, Command, Owed, Refused, RefusedKind, RequestKey};
use crate::fault::{self, FaultPoint};
use crate::outlook::Change;
use crate::recover::{self, Compare};

/// How long the dispatcher waits after a commit failed; nothing new starts meanwhile.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// What a turn wrote, and what follows from it.
struct Written {
    outcomes: Vec<turn::Outcome>,
    deeds: Vec<Deed>,
    is_stale: bool,
}

/// What could not be recorded.
pub(super) struct Failed {
    /// When that is tried again.
    pub(super) again: Instant,
    /// Why, in words, where that is known.
    pub(super) why: Option<String>,
    /// Runs that are to be looked at anew.
    runs: Vec<RunId>,
    /// What nobody tells again.
    tasks: Vec<Task>,
}

impl Task {
    /// Says whether it changes who may do what.
    fn changes_access(&self) -> bool {
        let Task::Order(Command::Access { order, .. }) = self else { return false };
        !matches!(order, AccessOrder::TokensUsed { .. })
    }

    /// Returns a copy of what nobody tells again.
    fn told_once(&self) -> Option<Task> {
        match self {
            Task::Hook(outcome) => Some(Task::Hook(outcome.clone())),
            Task::Questions { run, asks, delivered } => Some(Task::Questions {
                run: *run,
                asks: asks.clone(),
                delivered: delivered.clone(),
            }),
            Task::Fired { wanted, changed } => {
                Some(Task::Fired { wanted: wanted.clone(), changed: changed.clone() })
            }
            _ => None,
        }
    }
}

impl Dispatcher {
    /// Does tasks, and what is due, in one transaction, then what follows from it. Says whether it is
    /// on record.
    pub(super) fn commit(&mut self, tasks: Vec<(Task, Option<Owed>)>) -> bool {
        let now = (self.fleet.now)();
        if tasks.is_empty() && !self.has_due(now) {
            return true;
        }
        let (tasks, owed): (Vec<Task>, Vec<Option<Owed>>) = tasks.into_iter().unzip();
        let keys: Vec<Option<RequestKey>> =
            owed.iter().map(|owed| owed.as_ref()?.key.clone()).collect();
        let ended = |task: &Task| match task {
            Task::Ended(gone) => Some(gone.result.run),
            _ => None,
        };
        let runs: Vec<Option<RunId>> = tasks.iter().map(ended).collect();
        // Nobody tells these again.
        let once: Vec<Task> = tasks.iter().filter_map(Task::told_once).collect();
        let setup = Arc::clone(&self.board().setup);
        fault::reach(FaultPoint::BeforeCommit);
        let has_names = keys.iter().any(Option::is_some);
        let has_access = tasks.iter().any(Task::changes_access);
        let began = Instant::now();
        let done = self.write(tasks.into_iter().zip(keys).collect(), now);
        let took = began.elapsed();
        fault::reach(FaultPoint::AfterCommit);
        if has_names {
            fault::reach(FaultPoint::RequestDone);
        }
        if has_access {
            fault::reach(FaultPoint::AccessDone);
        }
        match done {
            Ok(written) => {
                self.follow(written, owed, &runs);
                let ended = runs.into_iter().flatten().collect();
                self.outlook.changed(&Change { took, ended });
                true
            }
            Err(error) => {
                let why = chain(&error);
                tracing::error!(why, "the state cannot be saved: nothing new starts");
                let message = format!("the state cannot be saved: {why}");
                let refused = Refused::new(RefusedKind::Trouble, message).hint("heeler doctor");
                owed.into_iter().flatten().for_each(|owed| owed.tell(Err(refused.clone())));
                self.put_off(runs.into_iter().flatten().collect(), once);
                if let Some(failed) = &mut self.pending.failed {
                    failed.why = Some(format!("{}; nothing new starts", refused.message));
                }
                // A config that is not on record does not count.
                self.board().setup = setup;
                if matches!(error, WriteError::Restored) {
                    self.accept_restore();
                }
                self.read_anew();
                false
            }
        }
    }

    /// Does tasks, and what is due, in one transaction.
    fn write(
        &self,
        tasks: Vec<(Task, Option<RequestKey>)>,
        now: Timestamp,
    ) -> Result<Written, WriteError<DbError>> {
        let (board, dir) = (Arc::clone(&self.board), self.fleet.dir.clone());
        let keeps_schedules = self.keeps_schedules();
        let (fires, is_stopping) =
            (keeps_schedules && self.pending.failed.is_none(), self.pending.stop.is_some());
        self.store.write(move |tx| {
            let mut board = board.lock().unwrap_or_else(PoisonError::into_inner);
            let day = day_of(&board.setup, now);
            if day != board.ledger.day() {
                board.ledger.turn_to(day, tx.spent_by_agent(day)?);
            }
            let mut work = Work { board: &mut board, dir: &dir, now, keeps_schedules, is_stopping };
            let mut outcomes = Vec::new();
            let mut deeds = Vec::new();
            for (task, key) in tasks {
                let (outcome, more) =
                    work.attempt(tx, |turn| turn.take_once(task, key.as_ref()))?;
                outcomes.push(outcome);
                deeds.extend(more);
            }
            let due = if fires { work.board.due(now) } else { Vec::new() };
            for (key, verdict) in due {
                // One that is refused stands in no other's way.
                let (_, more) = work.attempt(tx, |turn| {
                    turn.fire(&key, &verdict)?;
                    Ok(Ok(None))
                })?;
                deeds.extend(more);
            }
            let (_, more) = work.attempt(tx, |turn| {
                turn.expire_gates()?;
                turn.admit_workflows()?;
                Ok(Ok(None))
            })?;
            deeds.extend(more);
            for id in work.board.workflows_with_more() {
                // One that is refused stands in no other's way, and does not come again.
                let (done, more) = work.attempt(tx, |turn| {
                    turn.happens(&id, Happening::GoOn)?;
                    Ok(Ok(None))
                })?;
                deeds.extend(more);
                if let Err(refused) = done {
                    let why = format!("it cannot go on: {}", refused.message);
                    let (_, more) = work.attempt(tx, |turn| {
                        turn.give_up_workflow(&id, &why)?;
                        Ok(Ok(None))
                    })?;
                    deeds.extend(more);
                }
            }
            let (_, more) = work.attempt(tx, |turn| {
                turn.expire()?;
                turn.unpark()?;
                turn.explain()?;
                Ok(Ok(None))
            })?;
            deeds.extend(more);
            Ok(Written { outcomes, deeds, is_stale: board.is_stale })
        })
    }

    /// Does what follows from a commit, and answers.
    fn follow(&mut self, written: Written, owed: Vec<Option<Owed>>, runs: &[Option<RunId>]) {
        let Written { outcomes, deeds, is_stale } = written;
        if is_stale {
            self.read_anew();
        }
        for ((owed, outcome), run) in owed.into_iter().zip(outcomes).zip(runs) {
            if let (Err(refused), Some(run)) = (&outcome, run) {
                self.unsettled(*run, Some(refused.message.clone()), AFTER_FAILURE);
            }
            let Some(owed) = owed else { continue };
            let nothing = || Answer::Done { message: String::new() };
            owed.tell(outcome.map(|answer| answer.unwrap_or_else(nothing)));
        }
        deeds.into_iter().for_each(|deed| self.act(deed));
    }

    /// Says whether time brings something that is to be written.
    fn has_due(&self, now: Timestamp) -> bool {
        let board = self.board();
        let is_due = |at: Option<Timestamp>| at.is_some_and(|at| at <= now);
        let schedules = self.keeps_schedules() && board.calendar.is_due(now);
        // What waits for money may start on a new day.
        let is_new_day = board::day_of(&board.setup, now) != board.ledger.day();
        let mut queue = board.queue();
        schedules
            || is_new_day
            || board.has_more_of_workflows()
            || is_due(board.gate_expires_at)
            || queue.any(|asked| is_due(asked.row.expires_at))
            || board.parked.values().any(|parked| parked.until <= now)
    }

    /// Reads everything anew, since what is known may not be what is on record.
    fn read_anew(&mut self) {
        let (setup, now) = (Arc::clone(&self.board().setup), (self.fleet.now)());
        let read = Reader::open(&self.fleet.dir).map_err(|error| chain(&error));
        let read = read.and_then(|reader| {
            Board::load(&reader, Arc::clone(&setup), now).map_err(|error| chain(&error))
        });
        match read {
            Ok(mut board) => {
                let mut old = self.board();
                board.remember(&old);
                // A commit that failed may be on record after all; what it began is nobody's yet.
                let new = board.live.keys().filter(|run| !old.live.contains_key(run));
                let new: Vec<RunId> = new.copied().collect();
                *old = board;
                drop(old);
                self.put_off(new, Vec::new());
            }
            Err(why) => {
                tracing::error!(why, "the state cannot be read");
                self.board().is_stale = true;
                self.put_off(Vec::new(), Vec::new());
            }
        }
    }

    /// Goes on by a state that was brought back from a backup.
    fn accept_restore(&mut self) {
        let accepted = self.store.accept_restore().map(|_| ()).map_err(|error| chain(&error));
        let accepted = accepted.and_then(|()| {
            recover::prepare(&self.fleet, &self.store, Compare::WhenDue).map_err(|it| chain(&it))
        });
        match accepted {
            Ok(()) => tracing::warn!("the state was restored from a backup: it counts from now on"),
            Err(why) => tracing::error!(why, "a restored state cannot be used yet"),
        }
    }

    /// Lets nothing new start for a moment, then tries again.
    pub(super) fn put_off(&mut self, runs: Vec<RunId>, tasks: Vec<Task>) {
        let failed = self.pending.failed.get_or_insert_with(|| Failed {
            again: Instant::now() + AFTER_FAILURE,
            why: None,
            runs: Vec::new(),
            tasks: Vec::new(),
        });
        failed.runs.extend(runs);
        failed.tasks.extend(tasks);
    }

    pub(super) fn try_again(&mut self) {
        let now = Instant::now();
        let (due, later) =
            std::mem::take(&mut self.pending.unsettled).into_iter().partition(|it| it.0 <= now);
        self.pending.unsettled = later;
        let due: Vec<(Instant, RunId)> = due;
        due.into_iter().for_each(|(_, run)| self.hands.take_over(run));
        if self.pending.failed.as_ref().is_none_or(|failed| failed.again > Instant::now()) {
            return;
        }
        let Some(Failed { runs, tasks, .. }) = self.pending.failed.take() else { return };
        if self.board().is_stale {
            self.read_anew();
            self.put_off(runs, tasks);
            return;
        }
        let setup = Arc::clone(&self.board().setup);
        let setup = Task::Setup { setup, changes: None };
        let tasks = std::iter::once(setup).chain(tasks);
        self.commit(tasks.map(|task| (task, None)).collect());
        runs.into_iter().for_each(|run| self.hands.take_over(run));
    }
}

/// Where tasks are done, one after the other.
struct Work<'w> {
    board: &'w mut Board,
    dir: &'w StateDir,
    now: Timestamp,
    keeps_schedules: bool,
    is_stopping: bool,
}

impl Work<'_> {
    /// Does a part that may fail by itself. What the board then knows is to be read anew.
    fn attempt(
        &mut self,
        tx: &mut Tx<'_>,
        part: impl FnOnce(&mut Turn<'_, '_>) -> Result<turn::Outcome, DbError>,
    ) -> Result<(turn::Outcome, Vec<Deed>), DbError> {
        let Work { dir, now, keeps_schedules, is_stopping, .. } = *self;
        let setup = Arc::clone(&self.board.setup);
        let board = &mut *self.board;
        let done = tx.attempt(|tx| {
            let deeds = Vec::new();
            let mut turn = Turn { tx, board, dir, now, keeps_schedules, is_stopping, deeds };
            let outcome = part(&mut turn)?;
            Ok::<_, DbError>((outcome, turn.deeds))
        });
        match done {
            Err(error) if !error.is_of_storage() => {
                let why = chain(&error);
                tracing::error!(why, "a change was refused by the database");
                self.board.is_stale = true;
                self.board.setup = setup;
                Ok((Err(Refused::new(RefusedKind::Trouble, why).hint("heeler doctor")), Vec::new()))
            }
            done => done,
        }
    }
}
