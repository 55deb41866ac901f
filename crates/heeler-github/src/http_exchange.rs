//! One call to the API: sending, redirects, rate limits, repetition and pages.
//!
//! A call that changes something is repeated only if GitHub has certainly not executed it. Start at
//! [`GithubClient::send_json`].

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use ureq::http::Request;
use ureq::http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LINK, LOCATION,
    RETRY_AFTER,
};
use url::Url;

use crate::github_client::GithubClient;
use crate::github_error::GithubError;

/// Longest response, in bytes.
const ANSWER_BYTES_MAX: u64 = 8 << 20;

/// Most attempts of one call.
const ATTEMPTS_MAX: u32 = 3;

/// Pause before the first repetition; it doubles each time.
const PAUSE_FIRST: Duration = Duration::from_secs(1);

/// Most redirects of one call, all within the host.
const REDIRECTS_MAX: usize = 3;

/// Entries per page; GitHub's maximum.
const PAGE_SIZE: usize = 100;

/// Longest text of GitHub in an error, in characters.
const SAID_CHARS_MAX: usize = 200;

/// Pause if GitHub names none for a secondary rate limit; its documentation says a minute.
const SECONDARY_LIMIT_PAUSE: SignedDuration = SignedDuration::from_secs(60);

const API_VERSION: HeaderName = HeaderName::from_static("x-github-api-version");
const LIMIT_LEFT: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const LIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// A call to be sent.
pub(crate) struct ApiRequestSpec {
    pub(crate) method: &'static str,
    pub(crate) url: Url,
    pub(crate) body: Option<Json>,
    pub(crate) auth: ApiRequestAuth,
    /// True if the call may be executed twice.
    pub(crate) is_repeatable: bool,
    /// Attempted operation, for errors: "list the issues of acme/app".
    pub(crate) attempt: String,
}

/// Authentication of a call.
pub(crate) enum ApiRequestAuth {
    /// The credentials of the client.
    Client,
    /// This value of the header.
    Given(String),
}

impl ApiRequestSpec {
    pub(crate) fn new(
        method: &'static str,
        url: Url,
        attempt: impl Into<String>,
    ) -> ApiRequestSpec {
        ApiRequestSpec {
            method,
            url,
            body: None,
            auth: ApiRequestAuth::Client,
            // These change nothing, or the same thing twice.
            is_repeatable: matches!(method, "GET" | "PUT" | "DELETE"),
            attempt: attempt.into(),
        }
    }

    fn bad_answer(&self, reason: impl Into<String>) -> GithubError {
        GithubError::BadAnswer { attempt: self.attempt.clone(), reason: reason.into() }
    }
}

/// Response to a call.
struct ApiAnswer {
    status: u16,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl ApiAnswer {
    fn header(&self, name: &HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Returns the time at which a rate limit ends, if the response reports one.
    fn rate_limit_end(&self, now: Timestamp) -> Option<Timestamp> {
        if !matches!(self.status, 403 | 429) {
            return None;
        }
        let after = |span: SignedDuration| now.checked_add(span).ok();
        let seconds = self.header(&RETRY_AFTER).and_then(|text| text.trim().parse::<u32>().ok());
        if let Some(seconds) = seconds {
            return after(SignedDuration::from_secs(seconds.into()));
        }
        if self.header(&LIMIT_LEFT) == Some("0") {
            let reset = self.header(&LIMIT_RESET).and_then(|text| text.trim().parse::<i64>().ok());
            return reset.and_then(|at| Timestamp::from_second(at).ok());
        }
        // A 403 without these headers is a missing permission.
        let said = self.said().to_ascii_lowercase();
        (self.status == 429 || said.contains("secondary rate limit"))
            .then(|| after(SECONDARY_LIMIT_PAUSE))
            .flatten()
    }

    /// Returns GitHub's message in a form that is safe to show.
    fn said(&self) -> String {
        let json: Json = serde_json::from_slice(&self.body).unwrap_or_default();
        let mut said = json["message"].as_str().unwrap_or("without a reason").to_owned();
        let details = json["errors"].as_array().into_iter().flatten();
        for text in details.filter_map(|it| it.as_str().or(it["message"].as_str())) {
            said.push_str(&format!("; {text}"));
        }
        // The text comes from outside and is shown in terminals.
        said.chars().filter(|c| !c.is_control()).take(SAID_CHARS_MAX).collect()
    }

    /// Returns the address of the next page.
    fn next_page(&self) -> Option<&str> {
        let links = self.header(&LINK)?;
        links.split(',').find_map(|link| {
            let (address, kinds) = link.split_once('>')?;
            let is_next = kinds.split(';').any(|kind| kind.trim() == "rel=\"next\"");
            is_next.then(|| address.trim().trim_start_matches('<'))
        })
    }

    fn into_error(self, attempt: &str) -> GithubError {
        let (attempt, said) = (attempt.to_owned(), self.said());
        match self.status {
            401 => GithubError::Unauthorized { attempt, said },
            403 => GithubError::Forbidden { attempt, said },
            404 | 410 => GithubError::NotFound { attempt, said },
            status => GithubError::Refused { attempt, status, said },
        }
    }
}

impl GithubClient {
    /// Sends a call and parses the response.
    pub(crate) fn send_json<T: DeserializeOwned>(
        &self,
        request: &ApiRequestSpec,
    ) -> Result<T, GithubError> {
        let answer = self.send(request)?;
        serde_json::from_slice(&answer.body)
            .map_err(|error| request.bad_answer(format!("it has an unexpected form ({error})")))
    }

    /// Sends a call whose response does not matter.
    pub(crate) fn send_only(&self, request: &ApiRequestSpec) -> Result<(), GithubError> {
        self.send(request).map(drop)
    }

    /// Reads pages until `enough` entries are read. `entries` returns those of a page.
    pub(crate) fn list<P: DeserializeOwned, T>(
        &self,
        mut request: ApiRequestSpec,
        enough: usize,
        mut entries: impl FnMut(P) -> Vec<T>,
    ) -> Result<Vec<T>, GithubError> {
        let size = enough.clamp(1, PAGE_SIZE).to_string();
        request.url.query_pairs_mut().append_pair("per_page", &size);
        let mut found = Vec::new();
        // A page may have no entry that counts, so the number of pages is limited too.
        for _ in 0..enough.div_ceil(PAGE_SIZE).saturating_add(10) {
            let answer = self.send(&request)?;
            let page: P = serde_json::from_slice(&answer.body).map_err(|error| {
                request.bad_answer(format!("it has an unexpected form ({error})"))
            })?;
            found.extend(entries(page));
            let next = answer.next_page().filter(|_| found.len() < enough);
            let Some(next) = next else { break };
            request.url = self.within_host(&request, next)?;
        }
        found.truncate(enough);
        Ok(found)
    }

    /// Parses an address that a response names. A credential is never sent to another host.
    fn within_host(&self, request: &ApiRequestSpec, text: &str) -> Result<Url, GithubError> {
        let url = request.url.join(text).ok();
        url.filter(|url| url.origin() == self.config.api_url.origin())
            .ok_or_else(|| request.bad_answer("it leads to another host, which is not followed"))
    }

    /// Sends a call, repeats it where that is safe, and returns a successful response.
    fn send(&self, request: &ApiRequestSpec) -> Result<ApiAnswer, GithubError> {
        let mut pause = PAUSE_FIRST;
        let mut may_renew = matches!(request.auth, ApiRequestAuth::Client);
        for attempt in 1.. {
            let is_last = attempt >= ATTEMPTS_MAX;
            let answer = match self.send_with_redirects(request) {
                Ok(answer) => answer,
                // Whether GitHub has executed the call is unknown.
                Err(error) if is_last || !request.is_repeatable || !error.is_transient() => {
                    return Err(error);
                }
                Err(_) => {
                    pause = self.pause(pause);
                    continue;
                }
            };
            let now = (self.config.clock.now)();
            if let Some(until) = answer.rate_limit_end(now) {
                let left = Duration::try_from(until.duration_since(now)).unwrap_or_default();
                // A limited call was not executed, so it may be repeated whatever it does.
                if is_last || left > self.config.pause_max {
                    let attempt = request.attempt.clone();
                    return Err(GithubError::RateLimited { attempt, until });
                }
                (self.config.clock.pause)(left);
                continue;
            }
            match answer.status {
                200..=299 => return Ok(answer),
                // A cached token may have been revoked.
                401 if may_renew && self.discard_token() => may_renew = false,
                500..=599 if request.is_repeatable && !is_last => pause = self.pause(pause),
                _ => return Err(answer.into_error(&request.attempt)),
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Pauses, and returns the next pause.
    fn pause(&self, pause: Duration) -> Duration {
        (self.config.clock.pause)(pause.min(self.config.pause_max));
        pause * 2
    }

    /// Sends a call. Reading calls follow redirects, for example of a renamed repository.
    fn send_with_redirects(&self, request: &ApiRequestSpec) -> Result<ApiAnswer, GithubError> {
        let mut url = request.url.clone();
        for _ in 0..REDIRECTS_MAX {
            let answer = self.send_once(request, &url)?;
            if !matches!(answer.status, 301 | 302 | 307 | 308) {
                return Ok(answer);
            }
            if request.method != "GET" {
                return Err(request.bad_answer(
                    "it was moved; name the repository by its current name in the config",
                ));
            }
            let place = answer.header(&LOCATION).unwrap_or_default();
            url = self.within_host(request, place)?;
        }
        Err(request.bad_answer("it redirects too often"))
    }

    fn send_once(&self, request: &ApiRequestSpec, url: &Url) -> Result<ApiAnswer, GithubError> {
        let auth = match &request.auth {
            ApiRequestAuth::Client => self.authorization()?,
            ApiRequestAuth::Given(value) => value.clone(),
        };
        let agent = ureq::Agent::new_with_config(
            ureq::Agent::config_builder()
                .timeout_global(Some(self.config.timeout))
                .http_status_as_error(false)
                // The library would send the credential to other hosts.
                .max_redirects(0)
                .max_redirects_will_error(false)
                // By default the library reads proxy settings from the environment.
                .proxy(None)
                .user_agent(concat!("heeler/", env!("CARGO_PKG_VERSION")))
                .build(),
        );
        let mut auth = HeaderValue::try_from(auth).map_err(|_| {
            let said = "it contains characters that cannot be sent".to_owned();
            GithubError::Unauthorized { attempt: request.attempt.clone(), said }
        })?;
        // Sensitive values are left out when headers are logged.
        auth.set_sensitive(true);
        let built = Request::builder()
            .method(request.method)
            .uri(url.as_str())
            .header(AUTHORIZATION, auth)
            .header(ACCEPT, "application/vnd.github+json")
            .header(API_VERSION, "2022-11-28")
            .header(CONTENT_TYPE, "application/json");
        let body = request.body.as_ref().map(Json::to_string).unwrap_or_default();
        let unreachable =
            |reason: String| GithubError::Unreachable { attempt: request.attempt.clone(), reason };
        let built = built.body(body).map_err(|_| unreachable("its address is invalid".into()))?;
        let host = url.host_str().unwrap_or("GitHub");
        let mut response = agent.run(built).map_err(|error| unreachable(describe(&error, host)))?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        match body {
            Ok(body) => Ok(ApiAnswer { status, headers, body }),
            Err(ureq::Error::BodyExceedsLimit(_)) => {
                Err(request.bad_answer(format!("it is longer than {ANSWER_BYTES_MAX} bytes")))
            }
            Err(error) => Err(unreachable(describe(&error, host))),
        }
    }
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
        _ => format!("{host} sent an invalid HTTP response"),
    }
}
