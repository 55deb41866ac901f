//! Failures of an object store. Start at [`S3Error`].

use thiserror::Error;

/// Most characters of an error code that are shown.
const CODE_LEN_MAX: usize = 40;

/// Failure of a request. Its text names the host, and nothing of the request that could be secret.
#[derive(Debug, Error)]
#[error("{text}")]
pub struct S3Error {
    pub kind: S3ErrorKind,
    pub text: String,
}

/// Kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum S3ErrorKind {
    /// There is no such object.
    NotFound,
    /// The store refuses: the credentials, the bucket or the request.
    Refused,
    /// It may succeed later.
    Transient,
}

impl S3Error {
    /// Describes an answer that is no success, with the start of its body.
    pub(crate) fn of_answer(host: &str, status: u16, body: &[u8]) -> S3Error {
        let body = String::from_utf8_lossy(body);
        let code = body.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
        let is_plain = |c: char| c.is_ascii_alphanumeric();
        let code = code.map(|(code, _)| code.chars().filter(|c| is_plain(*c)));
        let code: String = code.map(|code| code.take(CODE_LEN_MAX).collect()).unwrap_or_default();
        let kind = match status {
            404 if code != "NoSuchBucket" => S3ErrorKind::NotFound,
            408 | 425 | 429 | 500.. => S3ErrorKind::Transient,
            _ => S3ErrorKind::Refused,
        };
        let code = if code.is_empty() { code } else { format!(" {code}") };
        let hint = match status {
            300..=399 => "; redirects are not followed, so set the region or the endpoint",
            401 | 403 => "; check the credentials and their rights",
            _ => "",
        };
        S3Error { kind, text: format!("{host} answered {status}{code}{hint}") }
    }

    /// Describes a failure of the transport.
    pub(crate) fn of_transport(host: &str, error: &ureq::Error) -> S3Error {
        let text = match error {
            ureq::Error::Timeout(_) => format!("{host} did not answer in time"),
            ureq::Error::Io(error) => format!("cannot reach {host}: {error}"),
            ureq::Error::HostNotFound => format!("there is no host {host}"),
            ureq::Error::ConnectionFailed => format!("cannot connect to {host}"),
            ureq::Error::Rustls(error) => format!("cannot trust {host}: {error}"),
            ureq::Error::Tls(error) => format!("cannot trust {host}: {error}"),
            _ => format!("{host} sent an invalid HTTP response"),
        };
        S3Error { kind: S3ErrorKind::Transient, text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_described_by_its_status_and_code() {
        let of = |status, body: &str| {
            let error = S3Error::of_answer("s3", status, body.as_bytes());
            (error.kind, error.text)
        };
        let code = |code: &str| format!("<?xml?><Error><Code>{code}</Code></Error>");
        let (kind, text) = of(403, &code("SignatureDoesNotMatch"));
        assert_eq!(kind, S3ErrorKind::Refused);
        assert!(text.starts_with("s3 answered 403 SignatureDoesNotMatch; check"), "{text}");
        assert_eq!(of(404, &code("NoSuchKey")).0, S3ErrorKind::NotFound);
        assert_eq!(of(404, &code("NoSuchBucket")).0, S3ErrorKind::Refused);
        assert_eq!(
            of(503, &code("SlowDown")),
            (S3ErrorKind::Transient, "s3 answered 503 SlowDown".into())
        );
        assert_eq!(of(301, "").0, S3ErrorKind::Refused);
        let (_, text) = of(500, &code("\u{1b}[31m evil\n"));
        assert_eq!(text, "s3 answered 500 31mevil");
    }
}
