//! What can be read of a fleet, as data: the same for programs, for the API and for pages.
//!
//! It changes nothing, prints nothing and knows no HTTP. Every type here that is `Serialize` is what
//! `--json` prints and what the API replies, with camelCase keys. Start at [`Records`].

pub mod access;
pub mod agents;
pub mod approvals;
pub mod calendar;
pub mod charts;
pub mod config;
pub mod costs;
pub mod diff;
mod error;
pub mod export;
pub mod figures;
pub mod fleet;
pub mod health;
pub mod holder;
pub mod jobs;
pub mod live;
pub mod messages;
pub mod overview;
mod records;
pub mod rows;
pub mod runs;
pub mod schedules;
pub mod search;
pub mod sessions;
pub mod stand;
pub mod told;
pub mod words;
pub mod workers;
pub mod workflows;

pub use error::{QueryError, QueryErrorKind};
pub use records::{Borrowed, Keeper, Known, Records};

#[cfg(test)]
mod tests;
