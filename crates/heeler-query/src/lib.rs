//! Read access to a fleet as data, shared by the command line, the API and the dashboard.
//!
//! This crate changes nothing, prints nothing and does not use HTTP. Every `Serialize` type here is
//! printed by `--json` and returned by the API, with camelCase keys. Start at [`FleetReader`].

pub mod access;
pub mod agents;
pub mod approvals;
pub mod browsers;
pub mod calendar;
pub mod charts;
pub mod chat_links;
pub mod chat_messages;
pub mod config;
pub mod config_change;
pub mod costs;
pub mod diff;
pub mod enum_schemas;
mod error;
pub mod export;
pub mod fleet;
mod fleet_reader;
pub mod health;
pub mod hosts;
pub mod job_comparison;
pub mod job_feed;
mod job_lists;
pub mod jobs;
pub mod live_updates;
pub mod messages;
pub mod metrics;
pub mod notices;
pub mod overview;
pub mod progress;
pub mod rewind;
pub mod rows;
pub mod schedules;
pub mod search;
pub mod session_holder;
pub mod session_moves;
pub mod sessions;
mod unpublished_views;
pub mod workers;
pub mod workflow_runs;
pub mod workflows;

pub use error::{QueryError, QueryErrorKind};
pub use fleet_reader::{FleetReader, QueryContext, StateLockOwner};
pub use job_lists::JobListSnapshot;
pub use unpublished_views::UnpublishedViews;

#[cfg(test)]
mod tests;
