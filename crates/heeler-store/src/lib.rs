//! The state directory: layout, locks, database, migrations, backups and published views.
//!
//! This crate starts no process and decides no policy. One [`Store`] per directory writes; any
//! number of [`StoreReader`]s read, with or without a writer. Files under `jobs/` and
//! `agent-sessions/` that end in `.jsonl` belong to `heeler-transcript`. Start at [`StateDir`].

mod archive;
mod backup;
pub mod bundle;
mod cron_override;
mod daemon_file;
mod database_files;
mod db;
pub mod doctor;
mod failed_hooks;
mod file_archive;
mod file_archive_table;
mod fleet_environment;
mod herdctl_layout;
mod hex;
pub mod history;
mod host_files;
mod host_lease;
mod host_link;
mod host_part_batches;
mod host_records;
mod host_release;
mod host_row;
mod host_runs;
mod idle_session;
mod json_selector;
mod layout;
mod lead_lease;
mod lenient_record;
pub mod native;
mod packed_file;
mod reader;
mod reader_pool;
mod restore;
mod run_message_table;
mod run_messages;
mod sent_files;
mod server_store;
mod session_expiry;
mod session_holder;
pub mod session_lineage;
mod session_move_table;
mod session_moves;
pub mod staging;
mod state_file_keeper;
mod store;
mod store_location;
mod store_move;
mod store_writer;
mod table_copy;
mod transaction;
mod view_publisher;
pub mod view_records;
mod views;
mod writer_lock;

pub use archive::{ArchiveError, ArchiveManifest, ArchiveReport, ManifestFile, backup_to_file};
pub use backup::{BackupError, list_backups as backups, take_daily_backup as backup_daily};
pub use cron_override::{cron_name, cron_override};
pub use daemon_file::{DaemonFile, DaemonFileError};
pub use db::answered_requests::AnsweredRequestRecord;
pub use db::approvals::{ApprovalCursor, ApprovalFilter};
pub use db::chat::{
    ChatMessageRecord, ChatQuestionRecord, ConversationPlace, InboxRecord, ListedConversation,
    MessagingSessionRecord,
};
pub use db::chat_gaps::{ChatGapKey, ChatGapMark};
pub use db::deleted_sessions::DeletedSession;
pub use db::effects::EffectRecord;
pub use db::imported_journal::{JournalPlace, UnplacedApproval, UnplacedExecution};
pub use db::job_list_text::JobListText;
pub use db::jobs::{JobCursor, JobFilter, JobListRow, LastLightExecution};
pub use db::lastlight_tables::LastLightTable;
pub use db::meta::{
    CONFIG_BASELINE, CONFIG_EXPOSED_BY, CONFIG_EXPOSED_SINCE, HOOK_KEYS, STARTED_AT, STOPPED_AT,
};
pub use db::network_grants::NetworkGrant;
pub use db::notices::{NoticeEnd, NoticeRecord};
pub use db::open_steps::StepEnd;
pub use db::overrides::{CronOverride, WorkflowOverride};
pub use db::permission_rules::KeptPermissionRule;
pub use db::postgres_error::PostgresError;
pub use db::push_browsers::{PushBrowser, WEB_PUSH_KEY, WEB_PUSH_PUBLIC_KEY};
pub use db::runs::{CountedRunCost, RunRecord, is_run_alive};
pub use db::schedules::{
    OccurrenceRecord, ScheduleOverrideRecord, ScheduleProgressRecord, ScheduledWorkId, SkipRecord,
};
pub use db::sessions::{SessionCursor, SessionFilter};
pub use db::spending::{AgentSpendAccount, DailySpendRecord};
pub use db::views::ViewRow;
pub use db::workflow_parts::WorkflowPartRow;
pub use db::workflow_run_list::{WorkflowRunCursor, WorkflowRunFilter};
pub use db::workflows::{
    InstantPart, JournalRow, WorkflowEventRecord, WorkflowRunHead, WorkflowRunRow,
};
pub use db::{DatabaseError, DatabaseOpenError, IdLookupError, StateDatabase};
pub use failed_hooks::{FailedHook, failed_hooks};
pub use file_archive::{
    ARCHIVED_BYTES_MAX, ArchiveDecision, ArchiveFault, ArchivedFile, FileArchivePolicy,
    UnarchivedFile,
};
pub use fleet_environment::FleetEnvironment;
pub use herdctl_layout::{HERDCTL_ENTRIES, is_adoptable};
pub use host_files::{
    PartReceipt, ReceivedPart, SharedFileForm, SharedFileOwner, SharedPart, UnshippedRun,
    stderr_copy_relative,
};
pub use host_lease::{HostLease, LeasedRun};
pub use host_link::{
    FleetPulse, HOST_COMMANDS_AT_ONCE, HOST_MESSAGE_BYTES_MAX, HostCommandRow, HostLink,
    HostReplyRow, HostReportRow,
};
pub use host_records::{HOST_LABELS_MAX, HostFacts, HostRecord, HostState};
pub use host_runs::{ASSIGNED_RUN, RefusedResult};
pub use idle_session::{UNKNOWN_AGENT, idle_session};
pub use layout::{StateDir, StateDirError, WRITER_LOCK_FILE};
pub use lead_lease::LeadLease;
pub use lenient_record::{DURATION_MS_MAX, LenientRecord};
pub use packed_file::{FileUnpacker, PackError, PackedFile, UnpackError, pack_file};
pub use reader::StoreReader;
pub use reader_pool::{PooledReader, ReaderPool};
pub use restore::{RestoreError, RestoreReport, restore_from_file};
pub use run_messages::{RunMessage, RunMessageState};
pub use sent_files::{SentFile, is_sent_file};
pub use server_store::{fleet_at, holds_fleet};
pub use session_expiry::expired_sessions;
pub use session_holder::{SessionHolder, session_holder};
pub use session_move_table::SESSION_MOVE_SECONDS_MAX;
pub use session_moves::{
    MOVE_PART_BYTES, NewSessionMove, SESSION_MOVE_BYTES_MAX, SessionMoveReport, SessionMoveRow,
    ShippedBundle,
};
pub use state_file_keeper::StateFileKeeper;
pub use store::{OpenedStore, Store, StoreOpenError};
pub use store_location::{HostIdentity, PostgresLocation, StoreCredentials, set_store_credentials};
pub use store_move::{MoveError, MoveReport, move_to_postgres, move_to_sqlite};
pub use store_writer::StoreWriteError;
pub use table_copy::TableSummary;
pub use transaction::StoreTransaction;
pub use view_publisher::ViewPublisher;
pub use views::{
    HandEdits, PublishCallback, PublishError, PublishReport, PublishedView, StatusEdit,
    ViewFailure, render_view, sha256_hex,
};
pub use writer_lock::acquire_writer_lock;

/// Schema version of the database that this build reads and writes.
pub const SCHEMA_VERSION: i64 = db::migrate::SCHEMA_VERSION;

/// Returns the version of the linked SQLite.
pub fn sqlite_version() -> &'static str {
    rusqlite::version()
}

#[cfg(test)]
mod tests;
