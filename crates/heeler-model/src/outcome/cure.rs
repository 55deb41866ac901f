//! Consequences of each error class: exit reason, recoverability and advice for people.

use heeler_config::{ApiCureWords, RuntimeType};

use crate::ExitReason;
use crate::run::{ErrorClass, RunError};

impl RunError {
    /// Creates an error with the properties of its class.
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

    /// Makes the advice fit the agent of the run. Advice that is about this error is kept.
    pub fn fit_cure(&mut self, runtime: RuntimeType, agent: &str) {
        if self.cure == self.class.cure() {
            self.cure = self.class.cure_for(runtime, agent);
        }
    }
}

impl ErrorClass {
    /// Returns the exit reason of a job that failed with this class. A connection timeout is not
    /// visible here: the caller reports it as [`ExitReason::Timeout`].
    pub fn exit_reason(self) -> ExitReason {
        match self {
            ErrorClass::Timeout | ErrorClass::Stalled => ExitReason::Timeout,
            ErrorClass::Cancelled => ExitReason::Cancelled,
            ErrorClass::MaxTurns => ExitReason::MaxTurns,
            _ => ExitReason::Error,
        }
    }

    /// Returns true if a retry may succeed without any intervention.
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

    /// Returns advice for the user of an agent: a runtime, and the name that the run records for the
    /// program.
    pub fn cure_for(self, runtime: RuntimeType, agent: &str) -> String {
        if !runtime.has_program() {
            return self.cure().to_owned();
        }
        let words = ApiCureWords::new(runtime, agent);
        let ApiCureWords { title, login, base_url_variable, program_key } = &words;
        match self {
            ErrorClass::Authentication => format!("{login}; the key or login must be valid"),
            ErrorClass::TokenExpired => format!("log in again: {login}"),
            ErrorClass::Network => match base_url_variable {
                Some(variable) => format!(
                    "check the network, the proxy and {variable}, then trigger the job again"
                ),
                None => "check the network and the proxy, then trigger the job again".to_owned(),
            },
            ErrorClass::ServerError => format!(
                "trigger the job again; if it fails for long, see the status page of the API that \
                 {title} uses"
            ),
            ErrorClass::Malformed => format!(
                "check that `{program_key}` names {title} and not another program, and that its \
                 version is supported (`heeler doctor agents`)"
            ),
            other => other.cure().to_owned(),
        }
    }

    /// Returns advice for the user of Claude, or of any agent if the class is not about the API.
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
                "wait until the limit resets, run fewer agents at once, or use a higher plan"
            }
            ErrorClass::Overloaded => "wait some minutes and trigger the job again",
            ErrorClass::ServerError => {
                "trigger the job again; if it fails for long, see status.anthropic.com"
            }
            ErrorClass::InvalidRequest => {
                "read the message: the prompt or the session may be too long; \
                 `--fresh` starts a new one"
            }
            ErrorClass::ModelNotFound => {
                "name a `model` in the agent's config that your account can use"
            }
            ErrorClass::SessionExpired => {
                "trigger the job with `--fresh`: the agent no longer has this session"
            }
            ErrorClass::SessionBusy => {
                "wait for the run that holds the session, cancel it, or use `--fresh`"
            }
            ErrorClass::SessionMovedOn => {
                "read the external messages (`heeler session show ID --history`), then resume with \
                 `--take-in`, which imports them, or start a new session with `--fresh`"
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
            ErrorClass::MaxTurns => "raise `max_turns`, or resume the session to continue",
            ErrorClass::Budget => {
                "raise the agent's budget or add credit, then resume the session to continue"
            }
            ErrorClass::Cancelled => "nothing went wrong; resume the session to continue",
            ErrorClass::Interrupted => "resume the session to continue after the interruption",
            ErrorClass::Disk => "free space on the disk of the state directory",
            ErrorClass::Internal => "this is a bug in Heeler: report it with the run's directory",
        }
    }
}
