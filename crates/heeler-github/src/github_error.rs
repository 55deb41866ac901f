//! Errors of calls to GitHub. No error contains a credential.

use jiff::Timestamp;
use thiserror::Error;

use crate::app_key::AppKeyError;

/// Error of a call to GitHub.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GithubError {
    #[error("cannot {attempt}: {reason}")]
    Unreachable { attempt: String, reason: String },
    #[error(
        "cannot {attempt}: GitHub does not accept the credentials ({said}); check `github` in the \
         config and the variables that it names"
    )]
    Unauthorized { attempt: String, said: String },
    #[error(
        "cannot {attempt}: GitHub forbids it ({said}); give the App or the token the permission"
    )]
    Forbidden { attempt: String, said: String },
    #[error(
        "cannot {attempt}: GitHub does not find it ({said}); check the name, and that the App or \
         the token may read the repository"
    )]
    NotFound { attempt: String, said: String },
    #[error("cannot {attempt}: the rate limit of GitHub is reached until {until}; try again then")]
    RateLimited { attempt: String, until: Timestamp },
    #[error("cannot {attempt}: GitHub answered {status} ({said})")]
    Refused { attempt: String, status: u16, said: String },
    #[error("cannot {attempt}: GitHub's answer cannot be used: {reason}")]
    BadAnswer { attempt: String, reason: String },
    #[error("cannot {attempt}: {source}")]
    Key { attempt: String, source: AppKeyError },
}

impl GithubError {
    /// Returns true if the same call may succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            GithubError::Unreachable { .. } | GithubError::RateLimited { .. } => true,
            GithubError::Refused { status, .. } => *status >= 500,
            _ => false,
        }
    }
}
