//! The dashboard's pages: data in, HTML out.
//!
//! It reads nothing, knows no HTTP and decides nothing. Everything that an agent wrote is untrusted:
//! it is escaped, or sanitised where it is markdown. A page is a function that takes what
//! `heeler-query` found and a [`Frame`], and returns its HTML. Pages have no inline script and no
//! style attribute: what moves is in `assets/`, by data attributes. Start at [`Frame`].

pub mod agents;
pub mod api_docs;
pub mod approvals;
pub mod assets;
pub mod charts;
pub mod diff;
mod frame;
mod graph;
pub mod job;
pub mod jobs;
pub mod login;
mod markdown;
pub mod overview;
pub mod parts;
pub mod problem;
pub mod runs;
pub mod schedules;
pub mod search;
pub mod sessions;
pub mod settings;
pub mod transcript;
pub mod workflows;

pub use frame::{Allowed, Counts, Frame, Section};
pub use markdown::{MARKDOWN_BYTES_MAX, markdown, markdown_line};

#[cfg(test)]
mod tests;
