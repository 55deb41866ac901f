//! What each kind of failure means: for the job, for trying again, and what a person can do.

use crate::ExitReason;
use crate::run::{ErrorClass, RunError};

impl RunError {
    /// Makes an error of a class, with what is known of every error of that class.
    pub fn new(class: ErrorClass, message: &str) -> RunError {
        RunError {
            class,
            message: message.to_owned(),
            recoverable: class.is_recoverable(),
            retry_after_ms: None,
            resets_at: None,
            messages_received: 0,
            cure: class.cure().to_owned(),
        }
    }
}

impl ErrorClass {
    /// Returns why a job ended that failed so. A connection that timed out is more than its class
    /// tells: that is a timeout too.
    pub fn exit_reason(self) -> ExitReason {
        match self {
            ErrorClass::Timeout | ErrorClass::Stalled => ExitReason::Timeout,
            ErrorClass::Cancelled => ExitReason::Cancelled,
            ErrorClass::MaxTurns => ExitReason::MaxTurns,
            _ => ExitReason::Error,
        }
    }

    /// Says whether the same again may succeed, without anyone doing something about it.
    pub fn is_recoverable(self) -> bool {
        match self {
            ErrorClass::TokenExpired
            | ErrorClass::Network
            | ErrorClass::RateLimited
            | ErrorClass::Overloaded
            | ErrorClass::ServerError
            | ErrorClass::SessionExpired
            | ErrorClass::SessionBusy
            | ErrorClass::AgentDied
            | ErrorClass::Stalled
            | ErrorClass::Interrupted => true,
            ErrorClass::Authentication
            | ErrorClass::SessionMovedOn
            | ErrorClass::InvalidRequest
            | ErrorClass::ModelNotFound
            | ErrorClass::Malformed
            | ErrorClass::NotStarted
            | ErrorClass::AgentFailed
            | ErrorClass::Timeout
            | ErrorClass::MaxTurns
            | ErrorClass::Budget
            | ErrorClass::Cancelled
            | ErrorClass::Disk
            | ErrorClass::Internal => false,
        }
    }

    /// Returns what a person can do.
    pub fn cure(self) -> &'static str {
        match self {
            ErrorClass::Authentication => {
                "set ANTHROPIC_API_KEY to a valid key, or log in by running `claude` and `/login`"
            }
            ErrorClass::TokenExpired => "log in again by running `claude` and `/login`",
            ErrorClass::Network => {
                "check the network, the proxy and ANTHROPIC_BASE_URL, then trigger the job again"
            }
            ErrorClass::RateLimited => {
                "wait until the limit is lifted, run fewer agents at once, or use a higher plan"
            }
            ErrorClass::Overloaded => "wait some minutes and trigger the job again",
            ErrorClass::ServerError => {
                "trigger the job again; if it fails for long, see status.anthropic.com"
            }
            ErrorClass::InvalidRequest => {
                "read the message: the prompt or the conversation may be too long; \
                 `--fresh` starts a new one"
            }
            ErrorClass::ModelNotFound => {
                "name a `model` in the agent's config that your account can use"
            }
            ErrorClass::SessionExpired => {
                "trigger the job with `--fresh`: the agent no longer has this conversation"
            }
            ErrorClass::SessionBusy => {
                "wait for the run that holds the session, cancel it, or use `--fresh`"
            }
            ErrorClass::SessionMovedOn => {
                "read what was said there (`heeler session show ID --history`), then go on with \
                 `--take-in`, which makes it part of the session, or start anew with `--fresh`"
            }
            ErrorClass::Malformed => {
                "check that `claude_path` names Claude Code and not another program, \
                 and that its version is supported"
            }
            ErrorClass::NotStarted => "do what the message says, then trigger the job again",
            ErrorClass::AgentDied => {
                "read the job's log and stderr.log in the run's folder; if something killed it, \
                 the machine may have run out of memory"
            }
            ErrorClass::AgentFailed => "read the job's log: `heeler jobs logs`",
            ErrorClass::Timeout => "give the agent a longer `timeout`, or less to do",
            ErrorClass::Stalled => {
                "trigger the job again; a longer `stall_timeout` helps if the work is slow"
            }
            ErrorClass::MaxTurns => "raise `max_turns`, or resume the session to go on",
            ErrorClass::Budget => {
                "raise the agent's budget or add credit, then resume the session to go on"
            }
            ErrorClass::Cancelled => "nothing went wrong; resume the session to go on",
            ErrorClass::Interrupted => "resume the session to go on where it was cut off",
            ErrorClass::Disk => "free space on the disk of the state directory",
            ErrorClass::Internal => "please report this, with the run's folder: it is our fault",
        }
    }
}
