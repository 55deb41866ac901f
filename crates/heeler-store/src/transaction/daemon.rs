//! Changes of the daemon's records besides jobs and runs: due times, the queue, money,
//! settings.

use heeler_model::fleet::{ParkedCredentialRecord, QueuedJobRecord, ReservationRecord};
use heeler_model::timetable::DueTimeSkip;
use heeler_model::{JobId, RunId};
use jiff::Timestamp;
use jiff::civil::Date;

use super::StoreTransaction;
use crate::db::answered_requests::AnsweredRequestRecord;
use crate::db::schedules::{ScheduleOverrideRecord, ScheduleProgressRecord, ScheduledWorkId};
use crate::db::{DatabaseError, agents, answered_requests, effects, queue, schedules, spending};
use crate::views::PublishedView;

impl StoreTransaction<'_> {
    /// Sets a schedule's progress; creates the schedule and its agent if they do not exist.
    ///
    /// [`StoreTransaction::put_agent`] does not change the progress;
    /// [`StoreTransaction::remove_schedule`] and [`StoreTransaction::remove_agent`] delete it: a
    /// schedule that returns later is a new one.
    pub fn set_schedule_progress(
        &mut self,
        record: &ScheduleProgressRecord,
    ) -> Result<(), DatabaseError> {
        match schedules::set_progress(&self.conn, record)? {
            // Only a new schedule appears in `state.yaml`; its progress is not shown there.
            true => self.mark_view_due(&PublishedView::State),
            false => Ok(()),
        }
    }

    /// Records the job or workflow run of a due time; returns false if it is already recorded.
    pub fn add_occurrence(
        &mut self,
        agent: &str,
        schedule: &str,
        due: Timestamp,
        work: impl Into<ScheduledWorkId>,
    ) -> Result<bool, DatabaseError> {
        schedules::add_occurrence(&self.conn, agent, schedule, due, &work.into())
    }

    /// Records due times without a job. They are merged with the preceding span if that has the
    /// same reason and nothing lies in between. So occurrences of the same decision must be
    /// recorded first. Returns true if they begin a new span.
    pub fn add_skip(
        &mut self,
        agent: &str,
        schedule: &str,
        skip: &DueTimeSkip,
        now: Timestamp,
    ) -> Result<bool, DatabaseError> {
        schedules::add_skip(&self.conn, agent, schedule, skip, now)
    }

    /// Removes records of due times before a time, except the newest of each schedule. One call
    /// handles the next few schedules after the given one; returns the last of them, from which to
    /// continue, or `None` if there were no more.
    pub fn prune_due_times(
        &mut self,
        after: Option<(String, String)>,
        before: Timestamp,
    ) -> Result<Option<(String, String)>, DatabaseError> {
        schedules::prune(&self.conn, after, before)
    }

    /// Adds a job to the queue, or changes its entry.
    pub fn enqueue(&mut self, queued: &QueuedJobRecord) -> Result<(), DatabaseError> {
        queue::enqueue(&self.conn, queued)
    }

    /// Removes a job from the queue; returns true if it was queued.
    pub fn dequeue(&mut self, job: &JobId) -> Result<bool, DatabaseError> {
        queue::dequeue(&self.conn, job)
    }

    /// Records the answer to a request under its idempotency key.
    pub fn answer_request(
        &mut self,
        asker: &str,
        name: &str,
        request: &AnsweredRequestRecord,
        at: Timestamp,
    ) -> Result<(), DatabaseError> {
        answered_requests::answer(&self.conn, asker, name, request, at)
    }

    /// Removes requests that were answered before a time.
    pub fn remove_answered_requests(&mut self, before: Timestamp) -> Result<(), DatabaseError> {
        answered_requests::forget(&self.conn, before)
    }

    /// Records a signed webhook call: its schedule, its signature, and the job that it created.
    pub fn record_webhook_call(
        &mut self,
        schedule: &str,
        mac: &str,
        call: &AnsweredRequestRecord,
        at: Timestamp,
    ) -> Result<(), DatabaseError> {
        answered_requests::record_call(&self.conn, schedule, mac, call, at)
    }

    /// Removes webhook calls that were recorded before a time.
    pub fn remove_webhook_calls(&mut self, before: Timestamp) -> Result<(), DatabaseError> {
        answered_requests::forget_calls(&self.conn, before)
    }

    /// Reserves money for a run; replaces an earlier reservation.
    pub fn reserve(&mut self, reservation: &ReservationRecord) -> Result<(), DatabaseError> {
        spending::reserve(&self.conn, reservation)
    }

    /// Releases the reservation of a run, and returns it.
    pub fn release(&mut self, run: RunId) -> Result<Option<ReservationRecord>, DatabaseError> {
        spending::release(&self.conn, run)
    }

    /// Adds to the amount that an agent spent on a model in a day.
    pub fn spend(
        &mut self,
        day: Date,
        agent: &str,
        model: &str,
        micros: i64,
    ) -> Result<(), DatabaseError> {
        spending::spend(&self.conn, day, agent, model, micros)
    }

    /// Records that a credential has reached its usage limit.
    pub fn park(&mut self, parked: &ParkedCredentialRecord) -> Result<(), DatabaseError> {
        queue::park(&self.conn, parked)
    }

    /// Records that a credential can be used again.
    pub fn unpark(&mut self, credential: &str) -> Result<(), DatabaseError> {
        queue::unpark(&self.conn, credential)
    }

    pub fn put_schedule_override(
        &mut self,
        change: &ScheduleOverrideRecord,
    ) -> Result<(), DatabaseError> {
        schedules::put_schedule_override(&self.conn, change)
    }

    /// Removes the override of a schedule; returns true if there was one.
    pub fn remove_schedule_override(
        &mut self,
        agent: &str,
        schedule: &str,
    ) -> Result<bool, DatabaseError> {
        schedules::remove_schedule_override(&self.conn, agent, schedule)
    }

    /// Enables or disables an agent; creates it if it does not exist.
    pub fn set_agent_enabled(&mut self, agent: &str, enabled: bool) -> Result<(), DatabaseError> {
        agents::set_enabled(&self.conn, agent, enabled)?;
        self.mark_view_due(&PublishedView::State)
    }

    /// Records a failed attempt at an effect, and the time of the next one.
    pub fn postpone_effect(
        &mut self,
        id: &str,
        error: &str,
        until: Timestamp,
    ) -> Result<(), DatabaseError> {
        effects::postpone(&self.conn, id, error, until)
    }
}
