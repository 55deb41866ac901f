//! What the daemon keeps besides jobs and runs: due times, the queue, money, people's settings.

use heeler_model::timetable::Skip;
use heeler_model::{JobId, RunId};
use jiff::Timestamp;
use jiff::civil::Date;

use super::Tx;
use crate::db::money::Reservation;
use crate::db::queue::{Parked, Queued};
use crate::db::requests::AnsweredRequest;
use crate::db::schedules::{Override, ScheduleMark};
use crate::db::{DbError, agents, effects, money, queue, requests, schedules};
use crate::views::View;

impl Tx<'_> {
    /// Writes how far a schedule has come; the schedule and its agent come into being with it.
    ///
    /// [`Tx::put_agent`] leaves the mark alone, [`Tx::remove_schedule`] and [`Tx::remove_agent`]
    /// forget it: a schedule that comes back later is a new one.
    pub fn set_schedule_mark(&mut self, mark: &ScheduleMark) -> Result<(), DbError> {
        match schedules::set_mark(&self.conn, mark)? {
            true => self.mark(&View::State),
            false => Ok(()),
        }
    }

    /// Records the job of a due time; returns false if that is on record already.
    pub fn add_occurrence(
        &mut self,
        agent: &str,
        schedule: &str,
        due: Timestamp,
        job: &JobId,
    ) -> Result<bool, DbError> {
        schedules::add_occurrence(&self.conn, agent, schedule, due, job)
    }

    /// Records due times that got no job. They join the span before them if that has the same
    /// reason and nothing lies between. So occurrences of the same decision are recorded first.
    /// Returns whether they begin a span.
    pub fn add_skip(
        &mut self,
        agent: &str,
        schedule: &str,
        skip: &Skip,
        now: Timestamp,
    ) -> Result<bool, DbError> {
        schedules::add_skip(&self.conn, agent, schedule, skip, now)
    }

    /// Removes what became of due times before a moment, but the newest of each schedule: of the
    /// next few schedules after one. Returns the last of those, to go on from; `None` if there were
    /// no more.
    pub fn prune_due_times(
        &mut self,
        after: Option<(String, String)>,
        before: Timestamp,
    ) -> Result<Option<(String, String)>, DbError> {
        schedules::prune(&self.conn, after, before)
    }

    /// Puts a job into the queue, or changes its place there.
    pub fn enqueue(&mut self, queued: &Queued) -> Result<(), DbError> {
        queue::enqueue(&self.conn, queued)
    }

    /// Takes a job out of the queue; returns whether it was there.
    pub fn dequeue(&mut self, job: &JobId) -> Result<bool, DbError> {
        queue::dequeue(&self.conn, job)
    }

    /// Records what was answered to a request, under the name that its asker gave it.
    pub fn answer_request(
        &mut self,
        asker: &str,
        name: &str,
        request: &AnsweredRequest,
        at: Timestamp,
    ) -> Result<(), DbError> {
        requests::answer(&self.conn, asker, name, request, at)
    }

    /// Forgets requests that were answered before a moment.
    pub fn forget_requests(&mut self, before: Timestamp) -> Result<(), DbError> {
        requests::forget(&self.conn, before)
    }

    /// Sets money aside for a run, in place of what was set aside for it.
    pub fn reserve(&mut self, reservation: &Reservation) -> Result<(), DbError> {
        money::reserve(&self.conn, reservation)
    }

    /// Frees what was set aside for a run, and returns it.
    pub fn release(&mut self, run: RunId) -> Result<Option<Reservation>, DbError> {
        money::release(&self.conn, run)
    }

    /// Adds to what an agent spent on a model in a day.
    pub fn spend(
        &mut self,
        day: Date,
        agent: &str,
        model: &str,
        micros: i64,
    ) -> Result<(), DbError> {
        money::spend(&self.conn, day, agent, model, micros)
    }

    /// Records that a credential's quota is used up.
    pub fn park(&mut self, parked: &Parked) -> Result<(), DbError> {
        queue::park(&self.conn, parked)
    }

    /// Records that a credential can be used again.
    pub fn unpark(&mut self, credential: &str) -> Result<(), DbError> {
        queue::unpark(&self.conn, credential)
    }

    /// Writes what a person set a schedule to.
    pub fn put_override(&mut self, change: &Override) -> Result<(), DbError> {
        schedules::put_override(&self.conn, change)
    }

    /// Lets a schedule follow its config again; returns whether it did not.
    pub fn remove_override(&mut self, agent: &str, schedule: &str) -> Result<bool, DbError> {
        schedules::remove_override(&self.conn, agent, schedule)
    }

    /// Switches an agent on or off; it comes into being with it.
    pub fn set_agent_enabled(&mut self, agent: &str, enabled: bool) -> Result<(), DbError> {
        agents::set_enabled(&self.conn, agent, enabled)?;
        self.mark(&View::State)
    }

    /// Records that an attempt at an effect failed, and when to try again.
    pub fn postpone_effect(
        &mut self,
        id: &str,
        error: &str,
        until: Timestamp,
    ) -> Result<(), DbError> {
        effects::postpone(&self.conn, id, error, until)
    }
}
