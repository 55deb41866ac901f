//! Stored records of the queue, reservations and parked credentials.

use jiff::Timestamp;
use jiff::civil::Date;

use crate::{JobId, RunId};

/// A job in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedJobRecord {
    pub job: JobId,
    /// Higher starts first.
    pub priority: i64,
    /// Among equal priorities the oldest starts first.
    pub requested_at: Timestamp,
    /// Earliest time to start.
    pub not_before: Option<Timestamp>,
    /// Time at which the job is given up.
    pub expires_at: Option<Timestamp>,
    /// The request as JSON.
    pub request_json: String,
    /// Reason why it waits.
    pub reason: String,
}

/// A credential that has reached its usage limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedCredentialRecord {
    pub credential: String,
    /// Time at which the limit resets.
    pub until: Timestamp,
    pub since: Timestamp,
    /// Message of the service.
    pub reason: String,
    /// The job that received the message.
    pub job: JobId,
}

/// Money reserved for a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservationRecord {
    pub run: RunId,
    pub agent: String,
    /// The day on which the budget is charged.
    pub day: Date,
    pub micros: i64,
}
