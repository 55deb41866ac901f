//! One HTTP call to a chat platform.
//!
//! Redirects are not followed and no proxy is used, because addresses and headers hold tokens.
//! Errors name only the host. Start at [`call_api`].

use std::time::Duration;

use serde_json::Value as Json;
use ureq::http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use ureq::http::{HeaderMap, Request, request};

use crate::outgoing_post::PostedFile;

/// Name under which the program makes calls.
const USER_AGENT: &str = concat!("heeler/", env!("CARGO_PKG_VERSION"));

/// Longest response, in bytes.
const ANSWER_BYTES_MAX: u64 = 8 << 20;

/// Longest text of a platform in an error, in characters.
const SAID_CHARS_MAX: usize = 200;

/// A call to a platform.
pub(crate) struct PlatformRequest<'a> {
    pub(crate) method: &'static str,
    pub(crate) url: &'a str,
    /// Value of the header `authorization`.
    pub(crate) authorization: Option<String>,
    pub(crate) user_agent: &'static str,
    pub(crate) body: Option<RequestBody<'a>>,
    pub(crate) timeout: Duration,
}

/// Body of a call.
#[derive(Clone, Copy)]
pub(crate) enum RequestBody<'a> {
    Json(&'a Json),
    /// Members of an object as the fields of a form. Lists and objects are sent as JSON.
    Form(&'a Json),
    /// A file as it is. The response need not be JSON.
    File(&'a [u8]),
    /// Bytes with their type.
    Bytes {
        content_type: &'a str,
        bytes: &'a [u8],
    },
    /// Members of an object, and a file, as the parts of a form.
    Upload {
        fields: &'a Json,
        file: UploadPart<'a>,
    },
}

/// A file in a form.
#[derive(Clone, Copy)]
pub(crate) struct UploadPart<'a> {
    /// Name of the field.
    pub(crate) field: &'static str,
    pub(crate) file: &'a PostedFile,
}

impl RequestBody<'_> {
    fn content_type(self) -> String {
        match self {
            RequestBody::Json(_) => "application/json; charset=utf-8".to_owned(),
            RequestBody::Form(_) => "application/x-www-form-urlencoded; charset=utf-8".to_owned(),
            RequestBody::File(_) => "application/octet-stream".to_owned(),
            RequestBody::Bytes { content_type, .. } => content_type.to_owned(),
            RequestBody::Upload { fields, file } => {
                format!("multipart/form-data; boundary={}", boundary(fields, file))
            }
        }
    }

    fn encode(self) -> Vec<u8> {
        match self {
            RequestBody::Json(body) => body.to_string().into_bytes(),
            RequestBody::File(bytes) => bytes.to_vec(),
            RequestBody::Bytes { bytes, .. } => bytes.to_vec(),
            RequestBody::Upload { fields, file } => encode_upload(fields, file),
            RequestBody::Form(body) => {
                let mut form = url::form_urlencoded::Serializer::new(String::new());
                for (key, value) in body.as_object().into_iter().flatten() {
                    match value {
                        Json::Null => {}
                        Json::String(text) => drop(form.append_pair(key, text)),
                        other => drop(form.append_pair(key, &other.to_string())),
                    }
                }
                form.finish().into_bytes()
            }
        }
    }
}

/// Returns a text between the parts of a form that occurs in none of them. An agent wrote the file.
fn boundary(fields: &Json, UploadPart { file, .. }: UploadPart<'_>) -> String {
    let fields = fields.to_string();
    let occurs = |text: &str| {
        let mut places = file.content.windows(text.len());
        fields.contains(text) || places.any(|place| place == text.as_bytes())
    };
    let mut number = 0_u32;
    loop {
        let boundary = format!("heeler-part-{number:08}");
        if !occurs(&boundary) {
            return boundary;
        }
        number += 1;
    }
}

fn encode_upload(fields: &Json, part: UploadPart<'_>) -> Vec<u8> {
    let boundary = boundary(fields, part);
    let mut body = String::new();
    for (name, value) in fields.as_object().into_iter().flatten() {
        let value = match value {
            Json::Null => continue,
            Json::String(text) => text.clone(),
            other => other.to_string(),
        };
        body.push_str(&format!(
            "--{boundary}\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"
        ));
    }
    let UploadPart { field, file: PostedFile { name, media_type, content, .. } } = part;
    body.push_str(&format!(
        "--{boundary}\r\ncontent-disposition: form-data; name=\"{field}\"; filename=\"{name}\"\r\n\
         content-type: {media_type}\r\n\r\n"
    ));
    let end = format!("\r\n--{boundary}--\r\n");
    [body.as_bytes(), content, end.as_bytes()].concat()
}

/// Response of a platform.
#[derive(Debug)]
pub(crate) struct PlatformAnswer {
    pub(crate) status: u16,
    /// Seconds of the header `retry-after`.
    pub(crate) retry_after: Option<u64>,
    /// Time for which this kind of call is used up.
    pub(crate) bucket_wait: Option<Duration>,
    /// Scopes of the token, as Slack lists them.
    pub(crate) scopes: Option<String>,
    /// Null if the response has none.
    pub(crate) body: Json,
}

/// Posts a body; returns the reason if no response with JSON arrived.
pub(crate) fn post_body(
    url: &str,
    bearer: Option<&str>,
    body: RequestBody<'_>,
    timeout: Duration,
) -> Result<PlatformAnswer, String> {
    let authorization = bearer.map(|token| format!("Bearer {token}"));
    let body = Some(body);
    let user_agent = USER_AGENT;
    call_api(PlatformRequest { method: "POST", url, authorization, user_agent, body, timeout })
}

/// Makes a call; returns the reason if no usable response arrived.
pub(crate) fn call_api(call: PlatformRequest<'_>) -> Result<PlatformAnswer, String> {
    let PlatformRequest { method, url, authorization, user_agent, body, timeout } = call;
    let host = host_of(url);
    let agent = http_agent(user_agent, timeout);
    let request = authorized(Request::builder().method(method).uri(url), authorization)?;
    let needs_json = !matches!(body, Some(RequestBody::File(_)));
    let invalid = |_| format!("the address of {host} is invalid");
    let sent = match body {
        Some(body) => {
            let request = request.header(CONTENT_TYPE, body.content_type());
            agent.run(request.body(body.encode()).map_err(invalid)?)
        }
        None => agent.run(request.body(()).map_err(invalid)?),
    };
    let mut response = sent.map_err(|error| describe(&error, &host))?;
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let bytes = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
    let bytes = bytes.map_err(|error| describe(&error, &host))?;
    let retry_after = header_text(&headers, "retry-after").and_then(|text| text.parse().ok());
    let body = match serde_json::from_slice(&bytes) {
        Ok(body) => body,
        // A proxy limits calls without JSON.
        Err(_) if bytes.is_empty() || status == 429 || !needs_json => Json::Null,
        // A gateway answers with a page.
        Err(_) => return Err(format!("{host} answered {status} without JSON")),
    };
    let scopes = header_text(&headers, "x-oauth-scopes").map(str::to_owned);
    Ok(PlatformAnswer { status, retry_after, bucket_wait: bucket_wait(&headers), scopes, body })
}

/// Returns the host of an address, for errors.
fn host_of(url: &str) -> String {
    let host = url.parse::<url::Url>().ok().and_then(|url| url.host_str().map(str::to_owned));
    host.unwrap_or_else(|| "the address".to_owned())
}

fn http_agent(user_agent: &str, timeout: Duration) -> ureq::Agent {
    ureq::Agent::new_with_config(
        ureq::Agent::config_builder()
            .timeout_global(Some(timeout))
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            // By default the library reads proxy settings from the environment.
            .proxy(None)
            .user_agent(user_agent)
            .build(),
    )
}

/// Adds the header `authorization` to a request.
fn authorized(
    request: request::Builder,
    authorization: Option<String>,
) -> Result<request::Builder, String> {
    let Some(value) = authorization else { return Ok(request) };
    let value = HeaderValue::try_from(value);
    let mut value = value.map_err(|_| "the token cannot be sent".to_owned())?;
    // Sensitive values are left out when headers are logged.
    value.set_sensitive(true);
    Ok(request.header(AUTHORIZATION, value))
}

/// A download.
pub(crate) struct FetchRequest<'a> {
    pub(crate) url: &'a str,
    /// Value of the header `authorization`.
    pub(crate) authorization: Option<String>,
    /// Most bytes of the body.
    pub(crate) bytes_max: u64,
    pub(crate) timeout: Duration,
}

/// Response to a download.
#[derive(Debug)]
pub(crate) struct FetchedBody {
    pub(crate) status: u16,
    /// Seconds of the header `retry-after`.
    pub(crate) retry_after: Option<u64>,
    pub(crate) content_type: String,
    pub(crate) bytes: Vec<u8>,
}

/// Reason why a download failed.
#[derive(Debug)]
pub(crate) enum FetchFailure {
    TooLarge,
    Other(String),
}

/// Downloads a body.
pub(crate) fn fetch_bytes(fetch: FetchRequest<'_>) -> Result<FetchedBody, FetchFailure> {
    let FetchRequest { url, authorization, bytes_max, timeout } = fetch;
    let host = host_of(url);
    let failed = |error: &ureq::Error| match error {
        ureq::Error::BodyExceedsLimit(_) => FetchFailure::TooLarge,
        error => FetchFailure::Other(describe(error, &host)),
    };
    let request = authorized(Request::get(url), authorization).map_err(FetchFailure::Other)?;
    let invalid = |_| FetchFailure::Other(format!("the address of {host} is invalid"));
    let request = request.body(()).map_err(invalid)?;
    let sent = http_agent(USER_AGENT, timeout).run(request);
    let mut response = sent.map_err(|error| failed(&error))?;
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    // The library refuses a body that has exactly as many bytes as its limit.
    let limit = bytes_max.saturating_add(1);
    let bytes = response.body_mut().with_config().limit(limit).read_to_vec();
    Ok(FetchedBody {
        status,
        retry_after: header_text(&headers, "retry-after").and_then(|text| text.parse().ok()),
        content_type: header_text(&headers, "content-type").unwrap_or_default().to_owned(),
        bytes: bytes.map_err(|error| failed(&error))?,
    })
}

/// Returns the time for which a kind of call is used up, as Discord tells it.
fn bucket_wait(headers: &HeaderMap) -> Option<Duration> {
    header_text(headers, "x-ratelimit-remaining").filter(|left| *left == "0")?;
    let seconds: f64 = header_text(headers, "x-ratelimit-reset-after")?.parse().ok()?;
    (seconds > 0.0).then(|| Duration::from_secs_f64(seconds.min(3600.0)))
}

fn header_text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim)
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_form_has_text_as_it_is_and_lists_as_json() {
        let body = json!({"text": "a & b", "limit": 5, "all": true, "none": null, "list": ["x"]});
        let form = String::from_utf8(RequestBody::Form(&body).encode()).unwrap();
        let mut fields: Vec<&str> = form.split('&').collect();
        fields.sort_unstable();
        assert_eq!(fields, ["all=true", "limit=5", "list=%5B%22x%22%5D", "text=a+%26+b"]);
    }

    #[test]
    fn no_content_of_a_file_ends_its_part() {
        let fields = json!({"chat_id": 5, "none": null});
        let content = "--heeler-part-00000000\r\ncontent-disposition: form-data; name=\"chat_id\"";
        let file = PostedFile {
            name: "answer.md".to_owned(),
            media_type: "text/markdown",
            content: content.as_bytes().to_vec(),
            heading: String::new(),
        };
        let part = UploadPart { field: "document", file: &file };
        let upload = RequestBody::Upload { fields: &fields, file: part };
        let kind = "multipart/form-data; boundary=heeler-part-00000001";
        assert_eq!(upload.content_type(), kind);
        let encoded = String::from_utf8(upload.encode()).unwrap();
        assert_eq!(encoded.matches("--heeler-part-00000001").count(), 3, "{encoded}");
        assert!(encoded.contains(content) && encoded.ends_with("--heeler-part-00000001--\r\n"));
    }
}
