//! The dashboard's pages: data in, HTML out.
//!
//! It reads nothing, knows no HTTP and decides nothing. Everything that an agent wrote is untrusted:
//! it is escaped, or sanitised where it is markdown. A page is a function that takes what
//! `heeler-query` found and a [`PageFrame`], and returns its HTML. Pages have no inline script and no
//! style attribute: what moves is in `assets/`, by data attributes. Start at [`PageFrame`].

pub mod agents;
pub mod api_docs;
pub mod approvals;
pub mod assets;
pub mod charts;
pub mod components;
pub mod diff;
pub mod error_page;
mod graph;
pub mod job;
pub mod jobs;
pub mod login;
mod markdown;
pub mod overview;
mod page_frame;
pub mod schedules;
pub mod search;
pub mod sessions;
pub mod settings;
pub mod transcript;
pub mod workflow_runs;
pub mod workflows;

pub use markdown::{MARKDOWN_BYTES_MAX, markdown, markdown_line};
pub use page_frame::{DashboardSection, NavigationCounts, PageFrame, ViewerScope};

#[cfg(test)]
mod tests;
