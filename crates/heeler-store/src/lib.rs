//! The state directory: layout, locks, database, migrations, backups and published views.
//!
//! This crate starts no process and decides no policy. One [`Store`] per directory writes; any
//! number of [`Reader`]s read, with or without it. Files under `jobs/` and `agent-sessions/` that
//! end in `.jsonl` belong to `heeler-transcript`. Start at [`StateDir`].

mod archive;
mod backup;
pub mod bundle;
mod db;
pub mod doctor;
pub mod history;
pub mod import;
mod layout;
pub mod native;
mod reader;
mod restore;
mod sent;
mod skim;
mod store;
mod tx;
mod views;

pub use archive::{ArchiveError, ArchiveReport, Manifest, ManifestFile, backup_to_file};
pub use backup::{BackupError, daily as backup_daily, list as backups};
pub use db::approvals::{ApprovalCursor, ApprovalFilter};
pub use db::deleted::DeletedSession;
pub use db::effects::Effect;
pub use db::foreign::ForeignTable;
pub use db::jobs::{ForeignExecution, JobCursor, JobFilter, JobLine};
pub use db::meta::{STARTED_AT, STOPPED_AT};
pub use db::money::{Reservation, Spent};
pub use db::overrides::{CronOverride, WorkflowOverride};
pub use db::parts::PartRow;
pub use db::queue::{Parked, Queued};
pub use db::requests::AnsweredRequest;
pub use db::runs::{Run, is_run_alive};
pub use db::schedules::{Occurrence, Override, ScheduleMark, SkipRow};
pub use db::sessions::{SessionCursor, SessionFilter};
pub use db::views::ViewRow;
pub use db::workflows::{
    JournalRow, Step, WorkflowEvent, WorkflowRunCursor, WorkflowRunFilter, WorkflowRunHead,
    WorkflowRunRow,
};
pub use db::{Db, DbError, LookupError, OpenError};
pub use layout::{LayoutError, StateDir};
pub use reader::Reader;
pub use restore::{RestoreError, RestoreReport, restore_from_file};
pub use sent::{SentFile, is_sent_file};
pub use store::{Opened, Store, StoreError, WriteError};
pub use tx::Tx;
pub use views::{
    HandEdits, PublishError, PublishReport, Publisher, StatusEdit, View, ViewFailure, render_view,
};

/// The version of the database's schema that this build reads and writes.
pub const SCHEMA_VERSION: i64 = db::migrate::SCHEMA_VERSION;

/// Returns the version of SQLite inside this build.
pub fn sqlite_version() -> &'static str {
    rusqlite::version()
}

#[cfg(test)]
mod tests;
