//! Events of the dispatcher, and the effects of a committed turn.
//!
//! Start at [`DispatchEvent`].

use std::sync::Arc;

use camino::Utf8PathBuf;
use heeler_connect::ChatEvent;
use heeler_model::config_change::ConfigContent;
use heeler_model::fleet::CancelRequest;
use heeler_model::{ApprovalAnswer, ApprovalId, JobId, JobRequest, RunId};
use jiff::Timestamp;

use crate::chat::{ChatGapChange, ChatPostResult, RunCardChange, SaidMessageResult};
use crate::command::DaemonCommand;
use crate::dispatch_input::{PreparedJob, RunExit};
use crate::github::GithubTaskResult;
use crate::hooks::HookOutcome;
use crate::notices::{LinkNotice, NoticeResult};
use crate::resolved_request::ResolvedJobRequest;
use crate::run_questions::RunQuestionFiles;
use crate::run_start::StartedRun;
use crate::sessions::SessionChange;
use crate::setup::DaemonSetup;

/// Event that the dispatcher applies inside a transaction.
#[derive(Debug)]
pub(crate) enum DispatchEvent {
    /// A command of a caller.
    Command(DaemonCommand),
    /// Preparation of a job's run has ended.
    JobPrepared(Box<PreparedJob>),
    RunEnded(Box<RunExit>),
    /// Give up runs whose hosts were silent for longer than the lease of the run.
    LeasesOver(Vec<RunId>),
    /// Record the ends of moves of sessions.
    MovesDue,
    /// A hook has finished.
    HookOutcome(HookOutcome),
    /// A run asked a question, or received an answer.
    QuestionsChanged {
        run: RunId,
        questions: Box<RunQuestionFiles>,
        delivered: Option<ApprovalId>,
    },
    /// A `watch` schedule fired.
    WatchFired {
        request: Box<JobRequest>,
        changed: Vec<Utf8PathBuf>,
    },
    /// A task on GitHub was attempted.
    GithubTaskAttempted(Box<GithubTaskResult>),
    /// Webhook deliveries up to a time were fetched from GitHub, and handled.
    DeliveriesFetched {
        until: Timestamp,
    },
    /// A chat platform delivered an event.
    ChatEvent(Box<ChatEvent>),
    /// A link begins or ends to read the messages of a gap.
    ChatGap(Box<ChatGapChange>),
    /// A post to a chat was attempted.
    ChatPostAttempted(Box<ChatPostResult>),
    /// A run card was posted or finished.
    RunCardChanged(RunCardChange),
    /// A message of a chat was sent to its run, or was not taken.
    SaidMessageAttempted(SaidMessageResult),
    /// A notice to a person was attempted.
    NoticeAttempted(Box<NoticeResult>),
    /// A chat platform cannot be reached, or can be again.
    LinkChanged(Box<LinkNotice>),
    /// The daemon has started.
    DaemonStarted {
        is_permanent: bool,
    },
    /// The config was reloaded. `changes` is the reply to the requester, if there is one.
    SetupReloaded {
        setup: Arc<DaemonSetup>,
        changes: Option<Vec<String>>,
        /// True if a person has confirmed its content.
        is_confirmed: bool,
    },
    /// A person has confirmed a content of the config files, which is not loaded yet.
    ConfigConfirmed(Box<ConfigContent>),
    /// No run is left that could change the config files.
    ConfigUnexposed,
    /// A session operation is ready to be committed.
    SessionChange {
        change: Box<SessionChange>,
        by: String,
    },
    /// Mark sessions as expired that have been unused for too long.
    ExpireSessions,
}

/// Action that is executed after the commit.
pub(crate) enum DispatchEffect {
    /// Start the runner of a recorded run.
    LaunchRunner { started: Box<StartedRun>, request: Box<ResolvedJobRequest> },
    /// Start a recorded run that was assigned to this host.
    StartAssignedRun { run: RunId },
    /// Use another config from now on.
    ReplaceSetup(Arc<DaemonSetup>),
    /// Execute the recorded hooks.
    WakeHooks,
    /// Ask a run to end.
    CancelRun { run: RunId, request: CancelRequest },
    /// Move session files to the places that the database specifies.
    MoveSessions,
    /// Execute the recorded tasks on GitHub.
    RunGithubTasks,
    /// Make the recorded posts to chats.
    RunChatPosts,
    /// Show live output of a job that a message in a chat created.
    ShowChatJob { job: JobId },
    /// Send the recorded messages of chats to their runs.
    SendSaidMessages,
    /// Send the recorded notices.
    RunNotices,
    /// Deliver an answer that was given in a chat to its run.
    DeliverAnswer { approval: ApprovalId, answer: ApprovalAnswer },
    /// Append a line to an agent's log.
    AppendLog { agent: String, text: String },
}
