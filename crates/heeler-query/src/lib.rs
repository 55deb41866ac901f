//! What can be read of a fleet, as data: the same for programs, for the API and for pages.
//!
//! It changes nothing, prints nothing and knows no HTTP. Every type here that is `Serialize` is what
//! `--json` prints and what the API replies, with camelCase keys. Start at [`FleetReader`].

pub mod access;
pub mod agents;
pub mod approvals;
pub mod calendar;
pub mod charts;
pub mod config;
pub mod costs;
pub mod diff;
pub mod enum_schemas;
mod error;
pub mod export;
pub mod fleet;
mod fleet_reader;
pub mod health;
pub mod jobs;
pub mod live_updates;
pub mod messages;
pub mod metrics;
pub mod overview;
pub mod progress;
pub mod replies;
pub mod rows;
pub mod schedules;
pub mod search;
pub mod session_holder;
pub mod sessions;
pub mod workers;
pub mod workflow_runs;
pub mod workflows;

pub use error::{QueryError, QueryErrorKind};
pub use fleet_reader::{FleetReader, PooledReader, QueryContext, StateLockOwner};

#[cfg(test)]
mod tests;
