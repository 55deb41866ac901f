//! What the daemon keeps besides jobs and runs: due times, the queue, money, people's settings.

use heeler_model::timetable::DueTimeSkip;
use heeler_model::{JobId, RunId};
use jiff::Timestamp;
use jiff::civil::Date;

use super::StoreTransaction;
use crate::db::answered_requests::AnsweredRequestRecord;
use crate::db::queue::{ParkedCredentialRecord, QueuedJobRecord};
use crate::db::schedules::{ScheduleOverrideRecord, ScheduleProgressRecord};
use crate::db::spending::ReservationRecord;
use crate::db::{DatabaseError, agents, answered_requests, effects, queue, schedules, spending};
use crate::views::PublishedView;

impl StoreTransaction<'_> {
    /// Writes how far a schedule has come; the schedule and its agent come into being with it.
    ///
    /// [`StoreTransaction::put_agent`] leaves the mark alone, [`StoreTransaction::remove_schedule`] and [`StoreTransaction::remove_agent`]
    /// forget it: a schedule that comes back later is a new one.
    pub fn set_schedule_progress(
        &mut self,
        mark: &ScheduleProgressRecord,
    ) -> Result<(), DatabaseError> {
        match schedules::set_progress(&self.conn, mark)? {
            true => self.mark_view_due(&PublishedView::State),
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
    ) -> Result<bool, DatabaseError> {
        schedules::add_occurrence(&self.conn, agent, schedule, due, job)
    }

    /// Records due times that got no job. They join the span before them if that has the same
    /// reason and nothing lies between. So occurrences of the same decision are recorded first.
    /// Returns whether they begin a span.
    pub fn add_skip(
        &mut self,
        agent: &str,
        schedule: &str,
        skip: &DueTimeSkip,
        now: Timestamp,
    ) -> Result<bool, DatabaseError> {
        schedules::add_skip(&self.conn, agent, schedule, skip, now)
    }

    /// Removes what became of due times before a moment, but the newest of each schedule: of the
    /// next few schedules after one. Returns the last of those, to go on from; `None` if there were
    /// no more.
    pub fn prune_due_times(
        &mut self,
        after: Option<(String, String)>,
        before: Timestamp,
    ) -> Result<Option<(String, String)>, DatabaseError> {
        schedules::prune(&self.conn, after, before)
    }

    /// Puts a job into the queue, or changes its place there.
    pub fn enqueue(&mut self, queued: &QueuedJobRecord) -> Result<(), DatabaseError> {
        queue::enqueue(&self.conn, queued)
    }

    /// Takes a job out of the queue; returns whether it was there.
    pub fn dequeue(&mut self, job: &JobId) -> Result<bool, DatabaseError> {
        queue::dequeue(&self.conn, job)
    }

    /// Records what was answered to a request, under the name that its asker gave it.
    pub fn answer_request(
        &mut self,
        asker: &str,
        name: &str,
        request: &AnsweredRequestRecord,
        at: Timestamp,
    ) -> Result<(), DatabaseError> {
        answered_requests::answer(&self.conn, asker, name, request, at)
    }

    /// Forgets requests that were answered before a moment.
    pub fn remove_answered_requests(&mut self, before: Timestamp) -> Result<(), DatabaseError> {
        answered_requests::forget(&self.conn, before)
    }

    /// Sets money aside for a run, in place of what was set aside for it.
    pub fn reserve(&mut self, reservation: &ReservationRecord) -> Result<(), DatabaseError> {
        spending::reserve(&self.conn, reservation)
    }

    /// Frees what was set aside for a run, and returns it.
    pub fn release(&mut self, run: RunId) -> Result<Option<ReservationRecord>, DatabaseError> {
        spending::release(&self.conn, run)
    }

    /// Adds to what an agent spent on a model in a day.
    pub fn spend(
        &mut self,
        day: Date,
        agent: &str,
        model: &str,
        micros: i64,
    ) -> Result<(), DatabaseError> {
        spending::spend(&self.conn, day, agent, model, micros)
    }

    /// Records that a credential's quota is used up.
    pub fn park(&mut self, parked: &ParkedCredentialRecord) -> Result<(), DatabaseError> {
        queue::park(&self.conn, parked)
    }

    /// Records that a credential can be used again.
    pub fn unpark(&mut self, credential: &str) -> Result<(), DatabaseError> {
        queue::unpark(&self.conn, credential)
    }

    /// Writes what a person set a schedule to.
    pub fn put_schedule_override(
        &mut self,
        change: &ScheduleOverrideRecord,
    ) -> Result<(), DatabaseError> {
        schedules::put_schedule_override(&self.conn, change)
    }

    /// Lets a schedule follow its config again; returns whether it did not.
    pub fn remove_schedule_override(
        &mut self,
        agent: &str,
        schedule: &str,
    ) -> Result<bool, DatabaseError> {
        schedules::remove_schedule_override(&self.conn, agent, schedule)
    }

    /// Switches an agent on or off; it comes into being with it.
    pub fn set_agent_enabled(&mut self, agent: &str, enabled: bool) -> Result<(), DatabaseError> {
        agents::set_enabled(&self.conn, agent, enabled)?;
        self.mark_view_due(&PublishedView::State)
    }

    /// Records that an attempt at an effect failed, and when to try again.
    pub fn postpone_effect(
        &mut self,
        id: &str,
        error: &str,
        until: Timestamp,
    ) -> Result<(), DatabaseError> {
        effects::postpone(&self.conn, id, error, until)
    }
}
