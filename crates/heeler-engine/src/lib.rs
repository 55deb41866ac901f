//! The engine of a fleet: creates jobs, starts runs and commits their results.
//!
//! It makes decisions with the model, writes through the store, and talks to runners only through
//! their directories and sockets. It never parses an agent's output. A [`Daemon`] is the only
//! process that changes a fleet's state; callers send it commands through a [`DaemonHandle`]. To
//! watch a run, use [`ControlClient`].

mod access;
mod approvals;
mod browser_operation;
mod caller;
mod cancel;
mod capability;
mod chat;
mod checkout;
mod claude_settings;
mod command;
mod commit;
mod config_files;
mod config_guard;
mod containers;
mod daemon;
mod daemon_file;
mod daemon_handle;
mod daemon_open;
mod dispatch;
mod dispatch_failure;
mod dispatch_input;
mod executor;
#[cfg(feature = "fault-points")]
pub mod fault;
#[cfg(not(feature = "fault-points"))]
#[expect(unreachable_pub, reason = "the feature makes this module public")]
mod fault;
mod file_watcher;
mod fleet;
mod fleet_monitor;
mod github;
pub mod hooks;
mod hosts;
mod launch;
pub mod logs;
mod named_session;
mod notices;
mod prepare;
mod recovery;
mod resolved_request;
pub mod retention;
mod run_assignment;
mod run_clone;
mod run_questions;
mod run_start;
mod runner_watcher;
mod session_operation;
mod sessions;
mod setup;
mod skill_folder;
mod socket_folder;
mod stored_workflow_run;
mod thread_pool;
mod watchdog;
mod work_limits;
mod workflows;

pub use access::{
    AccessOperation, AccessSecret, ApiTokenError, LOGIN_LIFETIME, LOGINS_MAX, LoginMethod,
    SecretGenerationError, TOKENS_MAX, has_remote_access,
};
pub use browser_operation::{BROWSERS_PER_PERSON_MAX, BrowserOperation, NewBrowser};
pub use caller::{Caller, PeerIdentity};
pub use capability::{HookGrants, run_of_capability};
pub use chat::{ChatAccessReport, SlackCall, SlackCallKind, check_chat_access};
pub use checkout::{CheckoutError, ensure_checkout};
pub use claude_settings::claude_settings_files;
pub use command::{
    AgentChange, BudgetStatus, CommandReply, DaemonCommand, DaemonCommandError,
    DaemonCommandErrorKind, DaemonMode, DaemonScheduleStatus, DaemonStatus, DispatcherStoppedError,
    HostDrain, IdempotencyKey, ParkedCredential, RenamedItem, ReplyCallback, RunningJob,
    ScheduleChange, ScheduleOverride, StopMode, WEBHOOK_BYTES_MAX, WaitingJob, WebhookCall,
    WebhookWorkflowInputs,
};
pub use commit::{CommitError, CommittedRun};
pub use config_files::{ConfigDrafts, ConfigFileRecorder, list_skill_files, list_workflow_files};
pub use config_guard::ConfigGuard;
pub use containers::{
    ContainerSurvey, EngineSurvey, OrphanContainer, OrphanReason, SessionContainer,
    survey_containers,
};
pub use daemon::{Daemon, DaemonOptions};
pub use daemon_file::{remove_daemon_file, write_daemon_file};
pub use daemon_handle::DaemonHandle;
pub use daemon_open::DaemonOpenError;
pub use dispatch::{
    DaemonExit, REQUEST_RETENTION, RESUME_PROMPT, SetupLoader, WebhookEndpoint, WebhookSecret,
    recorded_reply,
};
pub use file_watcher::{
    CHANGES_REPORTED_MAX, FileWatcher, WATCHED_FOLDERS_MAX, WatchEvent, WatchSpec,
};
pub use fleet::{EngineContext, StateOpenError};
pub use fleet_monitor::{CommitNotice, FleetMonitor};
pub use github::{GithubAccessReport, check_github_access};
pub use heeler_control::{ControlClient, ControlError, read_started_file};
pub use heeler_store::WRITER_LOCK_FILE;
pub use hosts::{StandbyDaemon, StandbyExit, StandbyOptions, check_file_archive};
pub use launch::{LaunchError, StartingDaemon, launch_daemon};
pub use notices::{ChannelReport, check_channels, send_test_notice};
pub use prepare::{
    PrepareContext, PrepareError, ProtectedFiles, SANDBOX_VARIABLE, StateDirFinder, prepare_request,
};
pub use recovery::{RecoveryError, RecoveryReport, RunFolderCheck, recover_runs};
pub use resolved_request::ResolvedJobRequest;
pub use run_start::RunStartError;
pub use session_operation::{
    AdoptedSession, ForkedSession, NATIVE_ORIGIN, RetainedSession, SessionOperation,
};
pub use sessions::{CLEANUP_MAX, CleanupPlan, plan_cleanup};
pub use setup::DaemonSetup;
pub use socket_folder::{SocketFolderError, ensure_socket_folder, known_socket_folders};
pub use watchdog::RUNNER_SILENCE_MAX;
pub use workflows::{WorkflowMode, WorkflowOperation, WorkflowRunRequest};

#[cfg(test)]
mod tests;
