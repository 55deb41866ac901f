//! How a command fails: an exit code that scripts can rely on, what was attempted, what to do next.

use std::fmt::Write as _;
use std::io;

use heeler_engine::{DaemonCommandError, DaemonCommandErrorKind};
use heeler_model::IdParseError;
use heeler_query::{QueryError, QueryErrorKind};
use heeler_server::DaemonClientError;
use heeler_store::{
    DatabaseError, DatabaseOpenError, IdLookupError, StateDirError, StoreOpenError,
};

/// What every command returns.
pub(crate) type CommandResult<T = ()> = Result<T, CommandFailure>;

/// The exit codes, as `docs/cli.md` lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureCode {
    /// The job or check failed.
    Failed = 1,
    /// Usage or configuration.
    Usage = 2,
    /// There is no daemon, and the command needs one.
    NoDaemon = 3,
    /// Not found.
    NotFound = 4,
    /// Refused: busy, locked, not allowed.
    Refused = 5,
    /// What is to be worked on is damaged for good; only the engine is told so.
    Unusable = 65,
    /// Our bug.
    Bug = 70,
    /// Interrupted by Ctrl-C.
    Interrupted = 130,
}

impl FailureCode {
    /// Returns the word that `--json` errors carry.
    fn json_name(self) -> &'static str {
        match self {
            FailureCode::Failed => "failed",
            FailureCode::Usage => "usage",
            FailureCode::NoDaemon => "no_daemon",
            FailureCode::NotFound => "not_found",
            FailureCode::Refused => "refused",
            FailureCode::Unusable => "unusable",
            FailureCode::Bug => "bug",
            FailureCode::Interrupted => "interrupted",
        }
    }
}

/// A failed command.
#[derive(Debug)]
pub(crate) struct CommandFailure {
    /// The exit code.
    pub(crate) code: FailureCode,
    /// What was attempted and why it failed.
    pub(crate) error: anyhow::Error,
    /// What to do next, where there is something to do.
    pub(crate) hint: Option<String>,
}

impl CommandFailure {
    /// Makes a failure from anything that reads as an error.
    pub(crate) fn new(code: FailureCode, error: impl Into<anyhow::Error>) -> CommandFailure {
        CommandFailure { code, error: error.into(), hint: None }
    }

    /// Makes a failure from a message.
    pub(crate) fn message(code: FailureCode, message: impl Into<String>) -> CommandFailure {
        CommandFailure::new(code, anyhow::Error::msg(message.into()))
    }

    /// Makes a failure whose output has been printed already.
    pub(crate) fn silent(code: FailureCode) -> CommandFailure {
        CommandFailure::message(code, "")
    }

    /// Says whether there is nothing left to print.
    pub(crate) fn is_silent(&self) -> bool {
        self.hint.is_none() && self.error.to_string().is_empty()
    }

    /// Adds what to do next.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> CommandFailure {
        self.hint = Some(hint.into());
        self
    }

    /// Says whether the reader of our output went away, which is nobody's fault.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        self.error
            .chain()
            .filter_map(|cause| cause.downcast_ref::<io::Error>())
            .any(|error| error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Returns the message with its causes, for people.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("error: {}", self.error);
        let mut shown = self.error.to_string();
        for cause in self.error.chain().skip(1) {
            let cause = cause.to_string();
            // Libraries often repeat their source in their own message.
            if !shown.contains(&cause) {
                let _ = write!(text, "\n  because: {cause}");
            }
            shown = cause;
        }
        if let Some(hint) = &self.hint {
            let _ = write!(text, "\n  try: {hint}");
        }
        text
    }

    /// Returns the failure for programs.
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
            DatabaseOpenError::Newer { .. } | DatabaseOpenError::Older { .. } => {
                CommandFailure::new(FailureCode::Refused, error)
            }
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
            QueryError::Daemon(refused) => refused.into(),
            error => CommandFailure { hint, ..CommandFailure::new(code, error) },
        }
    }
}

impl From<StoreOpenError> for CommandFailure {
    fn from(error: StoreOpenError) -> CommandFailure {
        match error {
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
            error @ DaemonClientError::Protocol { .. } => {
                CommandFailure::new(FailureCode::Failed, error).hint("heeler restart")
            }
            error @ DaemonClientError::Io { .. } => {
                CommandFailure::new(FailureCode::Failed, error).hint("heeler status")
            }
        }
    }
}
