//! Classification of failures, by status code and error code if present, otherwise by phrases.
//!
//! Start at [`FailureReport`].

use jiff::Timestamp;

use crate::message::{ApiError, RateLimit, TurnResult};
use crate::parse_iso;
use crate::run::ErrorClass;

/// Words of the proxy of a run that has spent its budget, in lower case. Programs repeat them after the
/// status, which alone would mean a wrong key.
const PROXY_BUDGET_REPORT: &str = "heeler: the run has spent its budget";

/// Everything that was reported about a failure.
pub(super) struct FailureReport<'t> {
    message: &'t str,
    /// Message in lower case, with all further messages appended.
    lowercase_text: String,
    codes: Vec<&'t str>,
    status: Option<u64>,
}

impl<'t> FailureReport<'t> {
    /// Builds a report from a result.
    pub(super) fn from_result(result: &'t TurnResult, message: &'t str) -> FailureReport<'t> {
        let mut symptoms = FailureReport::from_text(message);
        // The result's own field is reliable; a number in its text is a guess.
        symptoms.status = result.api_error_status.or(symptoms.status);
        symptoms.codes.extend(result.api_error_type.as_deref());
        symptoms
    }

    /// Builds a report from an error message.
    pub(super) fn from_error(message: &'t str, api: &'t ApiError) -> FailureReport<'t> {
        let mut symptoms = FailureReport::from_text("");
        symptoms.add(message, api);
        symptoms
    }

    /// Builds a report from text alone.
    pub(super) fn from_text(message: &'t str) -> FailureReport<'t> {
        let words = message.to_lowercase();
        FailureReport {
            message,
            status: find_status(&words),
            lowercase_text: words,
            codes: Vec::new(),
        }
    }

    /// Adds a further error message.
    pub(super) fn add(&mut self, message: &'t str, api: &'t ApiError) {
        // The first message is shown: later ones repeat it or add details.
        if self.message.is_empty() {
            self.message = message;
        }
        self.lowercase_text.push('\n');
        self.lowercase_text.push_str(&message.to_lowercase());
        // Codes and numbers of the first report win, as it is the most specific one.
        self.status = self.status.or(api.status).or_else(|| find_status(&self.lowercase_text));
        self.codes.extend(api.code.as_deref());
        self.codes.extend(api.kind.as_deref());
    }

    /// Returns the message to show to people.
    pub(super) fn message(&self) -> &'t str {
        self.message
    }

    /// Returns the class of the failure, or [`ErrorClass::AgentFailed`] if it is unknown.
    pub(super) fn class(&self) -> ErrorClass {
        // Some failures share a status with others, and only their words tell them apart.
        let special = self.class_by_specific_phrase();
        special.or_else(|| self.class_by_status()).or_else(|| self.class_by_phrase()).unwrap_or(
            match self.status {
                Some(500..=599) => ErrorClass::ServerError,
                Some(400..=499) => ErrorClass::InvalidRequest,
                _ => ErrorClass::AgentFailed,
            },
        )
    }

    /// Returns the class for phrases that are unambiguous, regardless of the status.
    fn class_by_specific_phrase(&self) -> Option<ErrorClass> {
        let oauth = self.contains_any(&["oauth", "access token", "refresh token", "login"]);
        Some(match () {
            () if self.is_session_lost() => ErrorClass::SessionExpired,
            () if self.contains_any(&["session id"])
                && self.contains_any(&["is already in use"]) =>
            {
                ErrorClass::SessionBusy
            }
            // An expired login is renewed by the next start, unlike a wrong key.
            () if oauth && self.contains_any(&["expired"]) => ErrorClass::TokenExpired,
            // The API reports this as an invalid request, and Heeler's proxy as a denial.
            () if self.contains_any(&["credit balance is too low", PROXY_BUDGET_REPORT])
                || self.has_code("billing_error") =>
            {
                ErrorClass::Budget
            }
            () if self.contains_any(&[
                "usage limit reached",
                "hit your limit",
                "hit your session limit",
            ]) =>
            {
                ErrorClass::RateLimited
            }
            () => return None,
        })
    }

    /// Returns true if the agent program does not have the session that it should resume.
    fn is_session_lost(&self) -> bool {
        // Claude's own words, those of its SDK, those of earlier versions, and those of Qwen Code.
        const WORDS: [&str; 19] = [
            "no conversation found",
            "conversation not found",
            "conversation does not exist",
            "conversation has expired",
            "invalid conversation",
            "session expired",
            "session has expired",
            "session_expired",
            "stale session",
            "session not found",
            "session does not exist",
            "invalid session",
            "resume failed",
            "cannot resume",
            "unable to resume",
            "failed to resume",
            "could not resume",
            "no session found",
            "no saved session found",
        ];
        const CODES: [&str; 5] = [
            "session_expired",
            "session_not_found",
            "invalid_session",
            "conversation_expired",
            "conversation_not_found",
        ];
        let is_login = self.contains_any(&["oauth", "access token", "refresh token", "login"]);
        let is_named = self.contains_any(&["session id"]) && self.contains_any(&["not found"]);
        CODES.iter().any(|code| self.has_code(code))
            || (!is_login && (is_named || self.contains_any(&WORDS)))
    }

    fn class_by_status(&self) -> Option<ErrorClass> {
        Some(match self.status? {
            401 | 403 => ErrorClass::Authentication,
            402 => ErrorClass::Budget,
            404 => ErrorClass::ModelNotFound,
            // The API gave up waiting for the request, which a bad connection causes.
            408 => ErrorClass::Network,
            429 => ErrorClass::RateLimited,
            529 => ErrorClass::Overloaded,
            _ => return None,
        })
    }

    fn class_by_phrase(&self) -> Option<ErrorClass> {
        const BY_CODE: [(&str, ErrorClass); 13] = [
            ("authentication_failed", ErrorClass::Authentication),
            ("authentication_error", ErrorClass::Authentication),
            ("permission_error", ErrorClass::Authentication),
            ("oauth_org_not_allowed", ErrorClass::Authentication),
            ("rate_limit", ErrorClass::RateLimited),
            ("rate_limit_error", ErrorClass::RateLimited),
            ("overloaded", ErrorClass::Overloaded),
            ("overloaded_error", ErrorClass::Overloaded),
            ("model_not_found", ErrorClass::ModelNotFound),
            ("invalid_request", ErrorClass::InvalidRequest),
            ("invalid_request_error", ErrorClass::InvalidRequest),
            ("server_error", ErrorClass::ServerError),
            ("api_error", ErrorClass::ServerError),
        ];
        const BY_WORDS: [(&[&str], ErrorClass); 6] = [
            (
                &[
                    "not logged in",
                    "invalid api key",
                    "please run /login",
                    "failed to authenticate",
                ],
                ErrorClass::Authentication,
            ),
            (&["rate limit", "too many requests"], ErrorClass::RateLimited),
            (&["overloaded"], ErrorClass::Overloaded),
            (&["issue with the selected model"], ErrorClass::ModelNotFound),
            (NETWORK_ERROR_PHRASES, ErrorClass::Network),
            (&["prompt is too long", "request too large"], ErrorClass::InvalidRequest),
        ];
        // Phrases take precedence over a code that only says that the API failed.
        let by_words =
            || BY_WORDS.iter().find(|(words, _)| self.contains_any(words)).map(|found| found.1);
        let by_code = || BY_CODE.iter().find(|(code, _)| self.has_code(code)).map(|found| found.1);
        match by_code() {
            None | Some(ErrorClass::ServerError) => by_words().or_else(by_code),
            class => class,
        }
    }

    /// Returns true if the connection timed out.
    pub(super) fn is_timeout(&self) -> bool {
        self.contains_any(&["etimedout", "request timed out"])
    }

    /// Returns the delay that the API requested in its message. The agent's own delays between
    /// retries are guesses and do not count.
    pub(super) fn retry_after_ms(&self) -> Option<u64> {
        const SAID: [&str; 5] =
            ["retry-after: ", "retry after ", "retry in ", "try again in ", "wait "];
        SAID.iter().find_map(|said| {
            let (_, rest) = self.lowercase_text.split_once(said)?;
            parse_period_ms(rest)
        })
    }

    /// Returns the time at which the limit resets, if it was reported.
    pub(super) fn resets_at(&self, limit: Option<&RateLimit>) -> Option<Timestamp> {
        // Claude reports limits that are not reached, too; their reset is not the one to wait for.
        let told = limit.filter(|limit| limit.status.as_deref() != Some("allowed"));
        let told = told.and_then(|limit| Timestamp::from_second(limit.resets_at?).ok());
        told.or_else(|| {
            // Older versions reported a subscription limit as `usage limit reached|1735689600`.
            let (_, rest) = self.lowercase_text.split_once("limit reached|")?;
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
            Timestamp::from_second(digits.parse().ok()?).ok()
        })
        .or_else(|| {
            let (_, rest) = self.lowercase_text.split_once("resets at ")?;
            // The text was lowered for the search, and the format needs its `T` and `Z`.
            parse_iso(&rest.split_whitespace().next()?.to_uppercase())
        })
    }

    fn contains_any(&self, phrases: &[&str]) -> bool {
        phrases.iter().any(|phrase| self.lowercase_text.contains(phrase))
    }

    fn has_code(&self, code: &str) -> bool {
        self.codes.contains(&code)
    }
}

const NETWORK_ERROR_PHRASES: &[&str] = &[
    "econnrefused",
    "econnreset",
    "enotfound",
    "etimedout",
    "epipe",
    "eai_again",
    "ehostunreach",
    "enetunreach",
    "connection refused",
    "connection reset",
    "connection attempts failed",
    "peer closed connection",
    "error decoding response body",
    "connection error",
    "connection to the api was lost",
    "request timed out",
    "socket hang up",
    "socket connection was closed",
    "fetch failed",
    "unable to connect",
    "network error",
];

/// Finds the status in `api error: 500 …` and `request rejected (429)`, in lower case.
fn find_status(words: &str) -> Option<u64> {
    ["api error: ", "request rejected ("].iter().find_map(|said| {
        let (_, rest) = words.split_once(said)?;
        let digits = rest.get(..3)?;
        // A longer number is not a status.
        let ends = !rest[3..].starts_with(|c: char| c.is_ascii_alphanumeric());
        digits.parse().ok().filter(|status| ends && (400..600).contains(status))
    })
}

/// Parses `30`, `30s`, `30 seconds`, `5 minutes`, `1 hour`. A bare number is in seconds.
fn parse_period_ms(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    // A sentence may end right after the number.
    let amount: f64 = text[..end].trim_end_matches('.').parse().ok()?;
    let unit = text[end..].trim_start();
    let unit = unit.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
    let ms = match unit {
        "ms" | "millisecond" | "milliseconds" => 1.0,
        "m" | "min" | "minute" | "minutes" => 60_000.0,
        "h" | "hour" | "hours" => 3_600_000.0,
        // Seconds are the unit of the HTTP header, and of unknown words.
        _ => 1000.0,
    };
    Some((amount * ms).round() as u64)
}
