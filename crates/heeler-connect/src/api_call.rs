//! One HTTP call to a chat platform.
//!
//! Redirects are not followed and no proxy is used, because addresses and headers hold tokens.
//! Errors name only the host. Start at [`post_json`].

use std::time::Duration;

use serde_json::Value as Json;
use ureq::http::Request;
use ureq::http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};

/// Longest response, in bytes.
const ANSWER_BYTES_MAX: u64 = 8 << 20;

/// Longest text of a platform in an error, in characters.
const SAID_CHARS_MAX: usize = 200;

/// Response of a platform.
#[derive(Debug)]
pub(crate) struct PlatformAnswer {
    pub(crate) status: u16,
    /// Seconds of the header `retry-after`.
    pub(crate) retry_after: Option<u64>,
    pub(crate) body: Json,
}

/// Posts JSON; returns the reason if no response with JSON arrived.
pub(crate) fn post_json(
    url: &str,
    bearer: Option<&str>,
    body: &Json,
    timeout: Duration,
) -> Result<PlatformAnswer, String> {
    let host = url.parse::<url::Url>().ok().and_then(|url| url.host_str().map(str::to_owned));
    let host = host.unwrap_or_else(|| "the address".to_owned());
    let agent = ureq::Agent::new_with_config(
        ureq::Agent::config_builder()
            .timeout_global(Some(timeout))
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            // By default the library reads proxy settings from the environment.
            .proxy(None)
            .user_agent(concat!("heeler/", env!("CARGO_PKG_VERSION")))
            .build(),
    );
    let mut request = Request::builder()
        .method("POST")
        .uri(url)
        .header(CONTENT_TYPE, "application/json; charset=utf-8");
    if let Some(token) = bearer {
        let value = HeaderValue::try_from(format!("Bearer {token}"));
        let mut value = value.map_err(|_| "the token cannot be sent".to_owned())?;
        // Sensitive values are left out when headers are logged.
        value.set_sensitive(true);
        request = request.header(AUTHORIZATION, value);
    }
    let request = request.body(body.to_string());
    let request = request.map_err(|_| format!("the address of {host} is invalid"))?;
    let mut response = agent.run(request).map_err(|error| describe(&error, &host))?;
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let bytes = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
    let bytes = bytes.map_err(|error| describe(&error, &host))?;
    let retry_after = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let retry_after = retry_after.and_then(|text| text.trim().parse().ok());
    match serde_json::from_slice(&bytes) {
        Ok(body) => Ok(PlatformAnswer { status, retry_after, body }),
        // A gateway answers with a page.
        Err(_) => Err(format!("{host} answered {status} without JSON")),
    }
}

/// Returns a platform's own text in a form that is safe to show.
pub(crate) fn safe_text(text: &str) -> String {
    text.chars().filter(|c| !heeler_config::is_terminal_control(*c)).take(SAID_CHARS_MAX).collect()
}

/// Describes a transport error. The text contains nothing of the request except its host.
fn describe(error: &ureq::Error, host: &str) -> String {
    match error {
        ureq::Error::Timeout(_) => format!("{host} did not answer in time"),
        ureq::Error::Io(error) => format!("cannot reach {host}: {error}"),
        ureq::Error::HostNotFound => format!("there is no host {host}"),
        ureq::Error::ConnectionFailed => format!("cannot connect to {host}"),
        ureq::Error::Rustls(error) => format!("cannot trust {host}: {error}"),
        ureq::Error::Tls(error) => format!("cannot trust {host}: {error}"),
        ureq::Error::BodyExceedsLimit(_) => format!("{host} answered with too many bytes"),
        _ => format!("{host} sent an invalid HTTP response"),
    }
}
