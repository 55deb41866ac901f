//! HTTP hooks: webhooks, Slack, Discord.
//!
//! Addresses and headers may hold secrets, and a response may repeat them. Errors therefore contain
//! only the host name and, of a response, only the service's own error code.

use std::time::{Duration, Instant};

use heeler_config::{ConfigDuration, HookMethod, SecretText, VarName, WebUrl};
use heeler_model::hook::{HookContext, discord_message, slack_message};
use heeler_model::is_terminal_control;
use heeler_model::redact::SecretRedactor;
use indexmap::IndexMap;
use jiff::Timestamp;
use serde_json::Value as Json;
use ureq::http::header::{CONTENT_TYPE, HeaderName, HeaderValue, LOCATION, RETRY_AFTER};
use ureq::http::{HeaderMap, Request};
use url::Url;

use super::HookExecutionContext;
use super::hook_error::HookExecutionError;

/// Time limit for Slack and Discord.
const CHAT_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of redirects within a host. Redirects to another host are never followed, because
/// headers hold secrets.
const REDIRECTS_MAX: usize = 3;

/// Maximum number of bytes read from a response.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

/// Maximum length of a service's error text in an error.
const ERROR_CHARS_MAX: usize = 200;

/// Header with the event ID.
const EVENT_HEADER: HeaderName = HeaderName::from_static("x-heeler-event");

/// Transient errors that Slack reports with status 200.
const SLACK_TRANSIENT_ERRORS: [&str; 5] =
    ["ratelimited", "internal_error", "fatal_error", "service_unavailable", "request_timeout"];

/// Calls a webhook with the context.
pub(super) fn call_webhook(
    url: &WebUrl,
    method: HookMethod,
    headers: &IndexMap<String, SecretText>,
    timeout: ConfigDuration,
    (context, around): (&HookContext, &HookExecutionContext<'_>),
) -> Result<(), HookExecutionError> {
    let mut call = HookHttpRequest::new(url.expose(), context, around)?;
    call.method = method.as_str();
    call.timeout = timeout.get();
    call.body = serde_json::to_vec(context).expect("a context has only text keys");
    // The headers of the config come last, so they may replace the default content type.
    for (name, value) in headers {
        call.add_header(name, value.expose())?;
    }
    let answer = call.send()?;
    answer.check(&call)
}

/// Posts to a Slack channel.
pub(super) fn post_to_slack(
    channel: &str,
    token: &VarName,
    context: &HookContext,
    around: &HookExecutionContext<'_>,
) -> Result<(), HookExecutionError> {
    let services = &around.config.services;
    let mut call =
        HookHttpRequest::new(&format!("{}/chat.postMessage", services.slack), context, around)?;
    let token = find_token(token, around)?;
    call.add_header("authorization", &format!("Bearer {token}"))?;
    call.add_header("content-type", "application/json; charset=utf-8")?;
    call.body = slack_message(channel, context).to_string().into_bytes();
    let answer = call.send()?;
    answer.check(&call)?;
    let Some(json) = answer.json().filter(|json| json["ok"].is_boolean()) else {
        return Err(HookExecutionError::transient("Slack's response cannot be parsed"));
    };
    if json["ok"] == true {
        return Ok(());
    }
    let word = json["error"].as_str().unwrap_or_default();
    // The text is recorded, so only a plain code is taken over from the response.
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let message = match !word.is_empty() && word.len() <= 64 && word.chars().all(is_word) {
        true => format!("Slack answered `{word}`"),
        false => "Slack refused it without a reason".to_owned(),
    };
    match SLACK_TRANSIENT_ERRORS.contains(&word) {
        true => Err(HookExecutionError::Transient { message, after: answer.retry_after }),
        false => Err(HookExecutionError::Permanent(message)),
    }
}

/// Posts to a Discord channel.
pub(super) fn post_to_discord(
    channel: &str,
    token: &VarName,
    context: &HookContext,
    around: &HookExecutionContext<'_>,
) -> Result<(), HookExecutionError> {
    let mut call = HookHttpRequest::new(&around.config.services.discord, context, around)?;
    if let Ok(mut path) = call.url.path_segments_mut() {
        // The channel is added as a path segment, so it cannot change the rest of the address.
        path.pop_if_empty().extend(["channels", channel, "messages"]);
    }
    let token = find_token(token, around)?;
    call.add_header("authorization", &format!("Bot {token}"))?;
    call.body = discord_message(context).to_string().into_bytes();
    let answer = call.send()?;
    let checked = answer.check(&call);
    let said = answer.json().and_then(|json| json["message"].as_str().map(str::to_owned));
    match (checked, said) {
        (Err(HookExecutionError::Permanent(message)), Some(said)) => {
            // The service may repeat the token in its message.
            let said = SecretRedactor::new(&[token]).redact_text(&said).into_owned();
            // The text is shown in terminals.
            let plain = said.chars().filter(|c| !is_terminal_control(*c) && *c != '\n');
            let said: String = plain.take(ERROR_CHARS_MAX).collect();
            Err(HookExecutionError::Permanent(format!("{message}: {said}")))
        }
        (checked, _) => checked,
    }
}

fn find_token(
    name: &VarName,
    around: &HookExecutionContext<'_>,
) -> Result<String, HookExecutionError> {
    let name = name.as_str();
    let token = around.config.env.get(name).map(|token| token.trim());
    token.filter(|token| !token.is_empty()).map(str::to_owned).ok_or_else(|| {
        HookExecutionError::Permanent(format!(
            "there is no {name}: set it in the daemon's environment or in the `.env` beside the \
             config, or name another variable in `bot_token_env`"
        ))
    })
}

/// A request to be sent.
struct HookHttpRequest {
    method: &'static str,
    url: Url,
    headers: HeaderMap,
    body: Vec<u8>,
    timeout: Duration,
    now: fn() -> Timestamp,
}

impl HookHttpRequest {
    fn new(
        url: &str,
        context: &HookContext,
        around: &HookExecutionContext<'_>,
    ) -> Result<HookHttpRequest, HookExecutionError> {
        let no_url = |_| HookExecutionError::Permanent("it has no usable address".to_owned());
        let mut call = HookHttpRequest {
            method: "POST",
            url: url.parse().map_err(no_url)?,
            headers: HeaderMap::new(),
            body: Vec::new(),
            timeout: CHAT_TIMEOUT,
            now: around.fleet.now,
        };
        call.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        call.add_header(EVENT_HEADER.as_str(), &context.event_id)?;
        Ok(call)
    }

    fn add_header(&mut self, name: &str, value: &str) -> Result<(), HookExecutionError> {
        let bad = |what: &str| {
            HookExecutionError::Permanent(format!("{what} of the header `{name}` cannot be sent"))
        };
        let header = HeaderName::try_from(name).map_err(|_| bad("the name"))?;
        let mut value = HeaderValue::try_from(value.trim()).map_err(|_| bad("the value"))?;
        // Sensitive values are left out when headers are logged.
        value.set_sensitive(true);
        self.headers.insert(header, value);
        Ok(())
    }

    fn host(&self) -> &str {
        self.url.host_str().unwrap_or("its address")
    }

    /// Sends the request and follows redirects within the same host.
    fn send(&mut self) -> Result<HookHttpResponse, HookExecutionError> {
        // The limit covers all redirects together.
        let deadline = Instant::now() + self.timeout;
        for _ in 0..REDIRECTS_MAX {
            let answer = self.send_once(deadline)?;
            match self.redirect_target(&answer) {
                Some(url) => self.url = url,
                None => return Ok(answer),
            }
        }
        self.send_once(deadline)
    }

    /// Returns the redirect target. Only 307 and 308 keep method and body.
    fn redirect_target(&self, answer: &HookHttpResponse) -> Option<Url> {
        let location = answer.location.as_ref().filter(|_| matches!(answer.status, 307 | 308))?;
        let url = self.url.join(location).ok()?;
        (url.origin() == self.url.origin()).then_some(url)
    }

    fn send_once(&self, deadline: Instant) -> Result<HookHttpResponse, HookExecutionError> {
        let left = deadline.saturating_duration_since(Instant::now());
        let agent = ureq::Agent::new_with_config(
            ureq::Agent::config_builder()
                .timeout_global(Some(left.max(Duration::from_millis(1))))
                // The status is judged below, with the response's retry time.
                .http_status_as_error(false)
                // The library would follow redirects to other hosts.
                .max_redirects(0)
                .max_redirects_will_error(false)
                // By default the library reads proxy settings from the environment.
                .proxy(None)
                .user_agent(concat!("heeler/", env!("CARGO_PKG_VERSION")))
                .build(),
        );
        let mut request = Request::builder().method(self.method).uri(self.url.as_str());
        if let Some(headers) = request.headers_mut() {
            headers.clone_from(&self.headers);
        }
        let request = request.body(self.body.as_slice()).map_err(|_| {
            HookExecutionError::Permanent("its address cannot be called".to_owned())
        })?;
        let mut response = agent.run(request).map_err(|error| self.transport_error(&error))?;
        let header = |name| response.headers().get(name).and_then(|it| it.to_str().ok());
        let location = header(LOCATION).map(str::to_owned);
        let retry_after =
            header(RETRY_AFTER).and_then(|text| parse_retry_after(text, (self.now)()));
        let status = response.status().as_u16();
        // The body is optional: failing to read it is no error.
        let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        Ok(HookHttpResponse { status, location, retry_after, body: body.unwrap_or_default() })
    }

    /// Converts a transport error to a text that contains nothing of the request except its host.
    fn transport_error(&self, error: &ureq::Error) -> HookExecutionError {
        let host = self.host();
        HookExecutionError::transient(match error {
            ureq::Error::Timeout(_) => {
                format!("{host} did not answer within {} s", self.timeout.as_secs_f64())
            }
            ureq::Error::Io(error) => format!("cannot reach {host}: {error}"),
            ureq::Error::HostNotFound => format!("there is no host {host}"),
            ureq::Error::ConnectionFailed => format!("cannot connect to {host}"),
            ureq::Error::Rustls(error) => format!("cannot trust {host}: {error}"),
            ureq::Error::Tls(error) => format!("cannot trust {host}: {error}"),
            ureq::Error::Http(_) | ureq::Error::BadUri(_) => {
                return HookExecutionError::Permanent("its address cannot be called".to_owned());
            }
            _ => format!("{host} sent an invalid HTTP response"),
        })
    }
}

struct HookHttpResponse {
    status: u16,
    location: Option<String>,
    retry_after: Option<Duration>,
    body: Vec<u8>,
}

impl HookHttpResponse {
    fn check(&self, call: &HookHttpRequest) -> Result<(), HookExecutionError> {
        let (host, status) = (call.host(), self.status);
        match status {
            200..=299 => Ok(()),
            300..=399 => Err(HookExecutionError::Permanent(format!(
                "{host} answered {status}, a redirect that is not followed: only 307 and 308 \
                 within the same host are, since headers may hold secrets; set `url` to where it is"
            ))),
            429 | 500..=599 => {
                let message = format!("{host} answered {status}");
                Err(HookExecutionError::Transient { message, after: self.retry_after })
            }
            _ => Err(HookExecutionError::Permanent(format!("{host} answered {status}"))),
        }
    }

    fn json(&self) -> Option<Json> {
        serde_json::from_slice(&self.body).ok()
    }
}

/// Parses `Retry-After`: seconds or a date.
fn parse_retry_after(text: &str, now: Timestamp) -> Option<Duration> {
    if let Ok(seconds) = text.trim().parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let at = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text.trim()).ok()?;
    // A date in the past is no delay.
    Duration::try_from(at.duration_since(now)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_a_number_of_seconds_or_a_moment() {
        let now: Timestamp = "2026-11-15T09:00:00Z".parse().unwrap();
        assert_eq!(parse_retry_after(" 7 ", now), Some(Duration::from_secs(7)));
        let at = parse_retry_after("Sun, 15 Nov 2026 09:01:00 GMT", now);
        assert_eq!(at, Some(Duration::from_secs(60)));
        assert_eq!(parse_retry_after("Sun, 15 Nov 2026 08:00:00 GMT", now), None);
        assert_eq!(parse_retry_after("soon", now), None);
    }
}
