//! Failures of an ACP agent: from error replies, and from texts that are errors, to one form.
//!
//! Agents have no common codes. Some end a failed turn normally and say the error as if it were a
//! reply; the table of known agents lists their words. Start at [`AcpRuntime::classify_error`].

use heeler_config::KnownAgent;
use serde_json::Value as Json;

use super::AcpRuntime;
use super::opening::LOGIN_REQUIRED;
use crate::json_rpc::RpcError;
use crate::program_rows::{CollectedText, api_error_code, find_http_status};

/// Failure of a turn.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AcpFailure {
    pub(super) text: String,
    /// HTTP status of the API.
    pub(super) status: Option<u64>,
    /// Heeler's code of the failure.
    pub(super) code: Option<&'static str>,
}

impl AcpFailure {
    /// Returns the failure of a turn in which the agent said nothing.
    pub(super) fn without_reply(known: &KnownAgent) -> AcpFailure {
        let text = format!(
            "{} ended the turn without a reply, which it does if the API fails or is at its limit",
            known.title
        );
        AcpFailure { text, status: None, code: Some("server_error") }
    }
}

impl RpcError {
    /// Returns the message with the details that agents put beside it.
    pub(super) fn describe(&self) -> String {
        let details = match &self.data {
            Json::String(text) => Some(text.as_str()),
            data => ["details", "message", "error"].iter().find_map(|key| data[*key].as_str()),
        };
        match details.filter(|details| !self.message.contains(details)) {
            Some(details) => format!("{}: {details}", self.message),
            None => self.message.clone(),
        }
    }
}

impl AcpRuntime {
    pub(super) fn is_login_error(&self, error: &RpcError) -> bool {
        let known = self.options.known.map_or(&[][..], |known| known.login_error_codes);
        error.code == LOGIN_REQUIRED || known.contains(&error.code)
    }

    /// Classifies the error reply to a prompt.
    pub(super) fn classify_error(&self, error: &RpcError) -> AcpFailure {
        let text = error.describe();
        if self.is_login_error(error) {
            return AcpFailure { text, status: Some(401), code: Some("authentication_failed") };
        }
        // One agent uses the HTTP status as its code.
        let status = u64::try_from(error.code).ok().filter(|code| (400..600).contains(code));
        let by_kind = match error.data["errorKind"].as_str() {
            Some("rate_limit") => Some(429),
            Some("server_error") => Some(500),
            Some("overloaded") => Some(529),
            _ => None,
        };
        let status = status.or(by_kind).or_else(|| find_http_status(&text));
        AcpFailure { code: api_error_code(status), status, text }
    }
}

/// Returns the failure that the last text of a turn reports, if the agent is known to report
/// failures that way. `has_usage` tells whether the end of the turn came with token counts.
pub(super) fn find_silent_failure(
    known: &KnownAgent,
    text: &CollectedText,
    has_usage: bool,
) -> Option<AcpFailure> {
    // An agent may send notices before the error as parts of the same text.
    [text.last_piece(), text.last()]
        .into_iter()
        .find_map(|text| read_silent_failure(known, text.trim(), has_usage))
}

fn read_silent_failure(known: &KnownAgent, text: &str, has_usage: bool) -> Option<AcpFailure> {
    let status = find_http_status(text);
    let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| text.starts_with(prefix));
    let is_failure = begins(known.error_prefixes)
        || (begins(known.status_error_prefixes) && status.is_some())
        || (known.error_without_usage && !has_usage && !text.is_empty());
    is_failure.then(|| AcpFailure {
        text: text.to_owned(),
        status,
        code: api_error_code(status).or(Some("server_error")),
    })
}
