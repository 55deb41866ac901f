//! How a command fails: an exit code that scripts can rely on, what was attempted, what to do next.

use std::fmt::Write as _;
use std::io;

use heeler_engine::{Refused, RefusedKind};
use heeler_model::IdError;
use heeler_query::{QueryError, QueryErrorKind};
use heeler_server::ClientError;
use heeler_store::{DbError, LayoutError, LookupError, OpenError, StoreError};

/// What every command returns.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// The exit codes, as `docs/cli.md` lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
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

impl Code {
    /// Returns the word that `--json` errors carry.
    fn word(self) -> &'static str {
        match self {
            Code::Failed => "failed",
            Code::Usage => "usage",
            Code::NoDaemon => "no_daemon",
            Code::NotFound => "not_found",
            Code::Refused => "refused",
            Code::Unusable => "unusable",
            Code::Bug => "bug",
            Code::Interrupted => "interrupted",
        }
    }
}

/// A failed command.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit code.
    pub(crate) code: Code,
    /// What was attempted and why it failed.
    pub(crate) error: anyhow::Error,
    /// What to do next, where there is something to do.
    pub(crate) hint: Option<String>,
}

impl Failure {
    /// Makes a failure from anything that reads as an error.
    pub(crate) fn new(code: Code, error: impl Into<anyhow::Error>) -> Failure {
        Failure { code, error: error.into(), hint: None }
    }

    /// Makes a failure from a message.
    pub(crate) fn message(code: Code, message: impl Into<String>) -> Failure {
        Failure::new(code, anyhow::Error::msg(message.into()))
    }

    /// Makes a failure whose output has been printed already.
    pub(crate) fn silent(code: Code) -> Failure {
        Failure::message(code, "")
    }

    /// Says whether there is nothing left to print.
    pub(crate) fn is_silent(&self) -> bool {
        self.hint.is_none() && self.error.to_string().is_empty()
    }

    /// Adds what to do next.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Failure {
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
            "code": self.code.word(),
            "message": format!("{:#}", self.error),
            "hint": self.hint,
        }})
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        Failure::new(Code::Failed, error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::new(Code::Failed, error)
    }
}

impl From<IdError> for Failure {
    fn from(error: IdError) -> Failure {
        Failure::new(Code::Usage, error)
    }
}

impl From<DbError> for Failure {
    fn from(error: DbError) -> Failure {
        Failure::new(Code::Failed, error)
    }
}

impl From<LayoutError> for Failure {
    fn from(error: LayoutError) -> Failure {
        Failure::new(Code::Refused, error)
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        match error {
            OpenError::Newer { .. } | OpenError::Older { .. } => Failure::new(Code::Refused, error),
            other => Failure::new(Code::Failed, other).hint("heeler doctor"),
        }
    }
}

impl From<LookupError> for Failure {
    fn from(error: LookupError) -> Failure {
        match error {
            LookupError::Unknown { what, .. } => {
                Failure::new(Code::NotFound, error).hint(match what {
                    "job" => "heeler jobs",
                    "approval" => "heeler approvals list --all",
                    "workflow run" => "heeler workflow runs",
                    _ => "heeler session list",
                })
            }
            LookupError::Ambiguous { .. } => Failure::new(Code::Usage, error),
            LookupError::Db(error) => error.into(),
        }
    }
}

impl From<QueryError> for Failure {
    fn from(error: QueryError) -> Failure {
        let hint = error.hint().map(str::to_owned);
        let code = match error.kind() {
            QueryErrorKind::NotFound => Code::NotFound,
            QueryErrorKind::Usage => Code::Usage,
            QueryErrorKind::Refused => Code::Refused,
            QueryErrorKind::Trouble => Code::Failed,
        };
        match error {
            QueryError::Lookup(error) => error.into(),
            QueryError::Layout(error) => error.into(),
            QueryError::Open(error) => error.into(),
            QueryError::Db(error) => error.into(),
            QueryError::Daemon(refused) => refused.into(),
            error => Failure { hint, ..Failure::new(code, error) },
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        match error {
            StoreError::Lock { .. } | StoreError::Restoring { .. } => {
                Failure::new(Code::Refused, error)
            }
            other => Failure::new(Code::Failed, other).hint("heeler doctor"),
        }
    }
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Failure {
        let code = match refused.kind {
            RefusedKind::NotFound => Code::NotFound,
            RefusedKind::Busy | RefusedKind::Conflict | RefusedKind::NotAllowed => Code::Refused,
            RefusedKind::Usage => Code::Usage,
            RefusedKind::Trouble => Code::Failed,
        };
        let hint = refused.hint.clone();
        Failure { hint, ..Failure::new(code, refused) }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        match error {
            ClientError::Refused(refused) => refused.into(),
            error @ (ClientError::NoDaemon { .. } | ClientError::Ending) => {
                Failure::new(Code::NoDaemon, error).hint("heeler start")
            }
            error @ ClientError::Protocol { .. } => {
                Failure::new(Code::Failed, error).hint("heeler restart")
            }
            error @ ClientError::Io { .. } => {
                Failure::new(Code::Failed, error).hint("heeler status")
            }
        }
    }
}
