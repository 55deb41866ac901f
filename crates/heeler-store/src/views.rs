//! Views: YAML and JSON files for people and scripts, made from the database.
//!
//! A view is never authoritative, with two documented exceptions: a `status` reset by hand in
//! `state.yaml`, and a deleted `sessions/<agent>.json`. Unknown keys are preserved. Start at
//! [`PublishedView`] for the list of views, and at `publish::publish` for how they are written.

mod due_signal;
mod hand_edits;
mod publish;
mod published_view;
mod render;
mod temp_files;
mod view_node;

pub use due_signal::PublishCallback;
pub(crate) use due_signal::{DueSignal, PublishTask};
pub(crate) use hand_edits::apply_hand_edits;
pub use hand_edits::{HandEdits, StatusEdit};
pub(crate) use publish::{PlainStateHash, publish, publish_some, record_placed};
pub use publish::{PublishError, PublishReport, ViewFailure, sha256_hex};
pub use published_view::PublishedView;
pub use render::render_view;
pub(crate) use temp_files::remove_temp_files;
pub(crate) use view_node::ViewFormat;
