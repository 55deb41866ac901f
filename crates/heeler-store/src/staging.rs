//! Durable insertion of records that come with files: imports, adoptions, rebuilds, restores.
//!
//! The caller writes the files of such records first, with [`state_files`], and then passes
//! the rows to [`RecordTarget::commit`]. That function makes all files durable before it commits
//! the rows that refer to them. So a row never refers to a file that a power loss removes, and an
//! interrupted insertion can be repeated. A directory without a usable database gets a
//! [`DraftDatabase`], which is installed only when it is complete. Start at [`RecordTarget`].

pub(crate) mod database_placement;
mod draft_database;
mod error;
mod record_target;
pub mod state_files;

pub use self::database_placement::{
    finish_rebuild, is_database_file, is_unfinished as has_unfinished_rebuild,
    refuse_unexpected_marker as refuse_foreign_rebuild,
};
pub(crate) use self::database_placement::{place_database, replace_database};
pub use self::draft_database::DraftDatabase;
pub use self::error::StagingError;
pub use self::record_target::RecordTarget;
