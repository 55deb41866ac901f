//! Dashboard pages: data in, HTML out.
//!
//! This crate reads no data, knows no HTTP and makes no decisions. All text of agents is untrusted:
//! it is escaped, or sanitised if it is markdown. A page is a function that takes results of
//! `heeler-query` and a [`PageFrame`], and returns HTML. Pages have no inline scripts or styles:
//! scripts are in `assets/` and find their elements by data attributes. Start at [`PageFrame`].

pub mod agents;
pub mod api_docs;
pub mod approvals;
pub mod assets;
pub mod charts;
pub mod components;
pub mod config_editor;
pub mod costs;
pub mod diff;
pub mod error_page;
mod graph;
pub mod hosts;
pub mod job;
pub mod job_compare;
pub mod jobs;
pub mod login;
mod markdown;
pub mod notices;
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
