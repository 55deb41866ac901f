//! What can be read of a fleet, as data: the same for programs, for the API and for pages.
//!
//! It changes nothing, prints nothing and knows no HTTP. Every type here that is `Serialize` is what
//! `--json` prints and what the API replies, with camelCase keys. Start at [`Records`].

mod error;
pub mod figures;
pub mod jobs;
pub mod live;
mod records;

pub use error::{QueryError, QueryErrorKind};
pub use records::{Known, Records};

#[cfg(test)]
mod tests;
