//! One HTTP request to the address of a channel.
//!
//! Redirects are not followed and no proxy is used. Errors name only the host, because an address may
//! hold a secret. Start at [`WebPost::send`].

use std::time::Duration;

use ureq::http::Request;
use ureq::http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use url::Url;

use crate::notice_error::NoticeSendError;

/// Time limit of a request.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Longest pause that a receiver can demand.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// Most bytes of a response that are read.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

/// Media type of most requests.
pub(crate) const JSON_TYPE: &str = "application/json; charset=utf-8";

/// A request with a body.
pub(crate) struct WebPost<'a> {
    pub(crate) url: &'a Url,
    /// Headers by name in lower case. All values are treated as secrets.
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) content_type: &'static str,
    pub(crate) body: Vec<u8>,
}

impl WebPost<'_> {
    /// Sends the request; fails unless the status is one of success.
    pub(crate) fn send(self) -> Result<(), NoticeSendError> {
        let host = self.url.host_str().unwrap_or("the address").to_owned();
        let agent = ureq::Agent::new_with_config(
            ureq::Agent::config_builder()
                .timeout_global(Some(CALL_TIMEOUT))
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
            .uri(self.url.as_str())
            .header(CONTENT_TYPE, self.content_type);
        for (name, value) in self.headers {
            let value = HeaderValue::try_from(value);
            let mut value = value
                .map_err(|_| NoticeSendError::permanent(format!("the header {name} is invalid")))?;
            // Sensitive values are left out when headers are logged.
            value.set_sensitive(true);
            request = request.header(name, value);
        }
        let request = request.body(self.body).map_err(|_| {
            NoticeSendError::permanent(format!("the address of {host} cannot be used"))
        })?;
        let mut response = agent.run(request).map_err(|error| describe(&error, &host))?;
        let status = response.status().as_u16();
        let demanded = response.headers().get(RETRY_AFTER).and_then(|it| it.to_str().ok());
        let demanded = demanded.and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
        // Read so that the connection ends in order; the content does not matter.
        drop(response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec());
        let answered = format!("{host} answered {status}");
        let error = match status {
            200..=299 => return Ok(()),
            429 | 503 => NoticeSendError {
                retry_after: demanded.map(|pause| pause.min(RETRY_AFTER_MAX)),
                ..NoticeSendError::transient(answered)
            },
            408 | 425 | 500.. => NoticeSendError::transient(answered),
            300..=399 => NoticeSendError::permanent(format!(
                "{answered}: redirects are not followed, so set the final address"
            )),
            _ => NoticeSendError::permanent(answered),
        };
        Err(NoticeSendError { status: Some(status), ..error })
    }
}

/// Describes a transport error. The text contains nothing of the request except its host.
fn describe(error: &ureq::Error, host: &str) -> NoticeSendError {
    NoticeSendError::transient(match error {
        ureq::Error::Timeout(_) => format!("{host} did not answer in time"),
        ureq::Error::Io(error) => format!("cannot reach {host}: {error}"),
        ureq::Error::HostNotFound => format!("there is no host {host}"),
        ureq::Error::ConnectionFailed => format!("cannot connect to {host}"),
        ureq::Error::Rustls(error) => format!("cannot trust {host}: {error}"),
        ureq::Error::Tls(error) => format!("cannot trust {host}: {error}"),
        _ => format!("{host} sent an invalid HTTP response"),
    })
}
