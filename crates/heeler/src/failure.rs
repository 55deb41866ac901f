//! Failures of commands: an exit code for scripts, an error for people, a hint at the next step.
//! Start at [`CommandFailure`].

use std::fmt::Write as _;
use std::io;

use heeler_engine::{DaemonCommandError, DaemonCommandErrorKind};
use heeler_model::IdParseError;
use heeler_query::{QueryError, QueryErrorKind};
use heeler_server::DaemonClientError;
use heeler_store::{
    DatabaseError, DatabaseOpenError, IdLookupError, StateDirError, StoreOpenError,
};

/// Result of every command.
pub(crate) type CommandResult<T = ()> = Result<T, CommandFailure>;

/// Exit codes, as listed in `docs/cli.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureCode {
    /// The job or check failed.
    Failed = 1,
    /// The command line or the configuration is invalid.
    Usage = 2,
    /// The command needs a daemon, and none runs.
    NoDaemon = 3,
    NotFound = 4,
    /// Refused: busy, locked or not allowed.
    Refused = 5,
    /// A person has not agreed to what the fleet would run.
    Untrusted = 6,
    /// The run's files are permanently damaged; used only between the runner and the daemon.
    Unusable = 65,
    /// Internal error: a bug in Heeler.
    Bug = 70,
    Interrupted = 130,
}

impl FailureCode {
    /// Returns the error code of `--json` output.
    fn json_name(self) -> &'static str {
        match self {
            FailureCode::Failed => "failed",
            FailureCode::Usage => "usage",
            FailureCode::NoDaemon => "no_daemon",
            FailureCode::NotFound => "not_found",
            FailureCode::Refused => "refused",
            FailureCode::Untrusted => "untrusted",
            FailureCode::Unusable => "unusable",
            FailureCode::Bug => "bug",
            FailureCode::Interrupted => "interrupted",
        }
    }
}

#[derive(Debug)]
pub(crate) struct CommandFailure {
    pub(crate) code: FailureCode,
    /// The attempted action, and why it failed.
    pub(crate) error: anyhow::Error,
    /// Suggested next step, if there is one.
    pub(crate) hint: Option<String>,
}

impl CommandFailure {
    /// Creates a failure from an error.
    pub(crate) fn new(code: FailureCode, error: impl Into<anyhow::Error>) -> CommandFailure {
        CommandFailure { code, error: error.into(), hint: None }
    }

    /// Creates a failure from a message.
    pub(crate) fn message(code: FailureCode, message: impl Into<String>) -> CommandFailure {
        CommandFailure::new(code, anyhow::Error::msg(message.into()))
    }

    /// Creates a failure that has been printed already.
    pub(crate) fn silent(code: FailureCode) -> CommandFailure {
        CommandFailure::message(code, "")
    }

    /// Returns true if there is nothing left to print.
    pub(crate) fn is_silent(&self) -> bool {
        self.hint.is_none() && self.error.to_string().is_empty()
    }

    /// Adds a hint at the next step.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> CommandFailure {
        self.hint = Some(hint.into());
        self
    }

    /// Returns true if the reader of the output closed the pipe, which is no error.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        // The error may be wrapped by any library, so the whole chain is searched.
        self.error
            .chain()
            .filter_map(|cause| cause.downcast_ref::<io::Error>())
            .any(|error| error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Returns the message with its causes and hint, for people.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("error: {}", self.error);
        let mut shown = self.error.to_string();
        for cause in self.error.chain().skip(1) {
            let cause = cause.to_string();
            // Libraries often repeat their source in their own message.
            if !shown.contains(&cause) {
                let _ = write!(text, "\n  because: {cause}");
            }
            // A cause is quoted, if at all, by the message directly above it.
            shown = cause;
        }
        if let Some(hint) = &self.hint {
            let _ = write!(text, "\n  try: {hint}");
        }
        text
    }

    /// Returns the failure as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::json!({ "error": {
            "code": self.code.json_name(),
            "message": format!("{:#}", self.error),
            "hint": self.hint,
        }})
    }
}

impl From<anyhow::Error> for CommandFailure {
    fn from(error: anyhow::Error) -> CommandFailure {
        CommandFailure::new(FailureCode::Failed, error)
    }
}

impl From<io::Error> for CommandFailure {
    fn from(error: io::Error) -> CommandFailure {
        CommandFailure::new(FailureCode::Failed, error)
    }
}

impl From<IdParseError> for CommandFailure {
    fn from(error: IdParseError) -> CommandFailure {
        CommandFailure::new(FailureCode::Usage, error)
    }
}

impl From<DatabaseError> for CommandFailure {
    fn from(error: DatabaseError) -> CommandFailure {
        CommandFailure::new(FailureCode::Failed, error)
    }
}

impl From<StateDirError> for CommandFailure {
    fn from(error: StateDirError) -> CommandFailure {
        CommandFailure::new(FailureCode::Refused, error)
    }
}

impl From<DatabaseOpenError> for CommandFailure {
    fn from(error: DatabaseOpenError) -> CommandFailure {
        match error {
            // Nothing is damaged, so the hint at `doctor` would mislead.
            DatabaseOpenError::Newer { .. } | DatabaseOpenError::Older { .. } => {
                CommandFailure::new(FailureCode::Refused, error)
            }
            DatabaseOpenError::Moved { .. } => CommandFailure::new(FailureCode::Refused, error),
            DatabaseOpenError::Led { .. } => CommandFailure::new(FailureCode::Refused, error)
                .hint("heeler start, which makes this host pass commands on"),
            DatabaseOpenError::Postgres { .. } => CommandFailure::new(FailureCode::Failed, error)
                .hint("running agents continue, and nothing new starts until the server is back"),
            other => CommandFailure::new(FailureCode::Failed, other).hint("heeler doctor"),
        }
    }
}

impl From<IdLookupError> for CommandFailure {
    fn from(error: IdLookupError) -> CommandFailure {
        match error {
            IdLookupError::Unknown { what, .. } => {
                CommandFailure::new(FailureCode::NotFound, error).hint(match what {
                    "job" => "heeler jobs",
                    "approval" => "heeler approvals list --all",
                    "workflow run" => "heeler workflow runs",
                    _ => "heeler session list",
                })
            }
            IdLookupError::Ambiguous { .. } => CommandFailure::new(FailureCode::Usage, error),
            IdLookupError::Db(error) => error.into(),
        }
    }
}

impl From<QueryError> for CommandFailure {
    fn from(error: QueryError) -> CommandFailure {
        // Read both before the match below consumes the error.
        let hint = error.hint().map(str::to_owned);
        let code = match error.kind() {
            QueryErrorKind::NotFound => FailureCode::NotFound,
            QueryErrorKind::Usage => FailureCode::Usage,
            QueryErrorKind::Refused => FailureCode::Refused,
            QueryErrorKind::Internal => FailureCode::Failed,
        };
        match error {
            QueryError::Lookup(error) => error.into(),
            QueryError::Layout(error) => error.into(),
            QueryError::Open(error) => error.into(),
            QueryError::Db(error) => error.into(),
            error => CommandFailure { hint, ..CommandFailure::new(code, error) },
        }
    }
}

impl From<StoreOpenError> for CommandFailure {
    fn from(error: StoreOpenError) -> CommandFailure {
        match error {
            // The command can be repeated once the other process has finished.
            StoreOpenError::Lock { .. } | StoreOpenError::Restoring { .. } => {
                CommandFailure::new(FailureCode::Refused, error)
            }
            other => CommandFailure::new(FailureCode::Failed, other).hint("heeler doctor"),
        }
    }
}

impl From<DaemonCommandError> for CommandFailure {
    fn from(refused: DaemonCommandError) -> CommandFailure {
        let code = match refused.kind {
            DaemonCommandErrorKind::NotFound => FailureCode::NotFound,
            DaemonCommandErrorKind::Busy
            | DaemonCommandErrorKind::Conflict
            | DaemonCommandErrorKind::NotAllowed => FailureCode::Refused,
            DaemonCommandErrorKind::Unconfirmed => FailureCode::Untrusted,
            DaemonCommandErrorKind::Usage => FailureCode::Usage,
            DaemonCommandErrorKind::Trouble => FailureCode::Failed,
        };
        let hint = refused.hint.clone();
        CommandFailure { hint, ..CommandFailure::new(code, refused) }
    }
}

impl From<DaemonClientError> for CommandFailure {
    fn from(error: DaemonClientError) -> CommandFailure {
        match error {
            DaemonClientError::Refused(refused) => refused.into(),
            error @ (DaemonClientError::NoDaemon { .. } | DaemonClientError::Ending) => {
                CommandFailure::new(FailureCode::NoDaemon, error).hint("heeler start")
            }
            error @ DaemonClientError::Unproven { .. } => {
                CommandFailure::new(FailureCode::Refused, error).hint("heeler doctor")
            }
            DaemonClientError::Outdated { pid, .. } => {
                // Its jobs continue, and the next daemon takes them over.
                CommandFailure::new(FailureCode::Refused, error)
                    .hint(format!("kill {pid}, which keeps its jobs; then repeat the command"))
            }
            // The daemon is most likely of another release.
            error @ DaemonClientError::Protocol { .. } => {
                CommandFailure::new(FailureCode::Failed, error).hint("heeler restart")
            }
            // The command may or may not have been executed, so only the status can tell.
            error @ DaemonClientError::Io { .. } => {
                CommandFailure::new(FailureCode::Failed, error).hint("heeler status")
            }
        }
    }
}
