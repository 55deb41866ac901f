//! Client of one bucket. Start at [`S3Client::put`] and [`S3Client::get`].

use std::fmt;
use std::fs::File;
use std::time::Duration;

use heeler_config::S3Location;
use jiff::Timestamp;
use ureq::http::header::{AUTHORIZATION, CONTENT_LENGTH, HOST, HeaderValue};
use ureq::http::{Request, Response, request};
use ureq::{Agent, AsSendBody, Body, BodyReader};
use url::Url;

use crate::s3_error::{S3Error, S3ErrorKind};
use crate::signature::{SignedCall, amz_date, encode_path};

/// Time limit of a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit of an answer's head.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Time limit of a body in each direction.
const BODY_TIMEOUT: Duration = Duration::from_secs(600);

/// Most bytes of an error's body that are read.
const ERROR_BYTES_MAX: u64 = 16 << 10;

/// SHA-256 of nothing.
const EMPTY_SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Server and region of a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3Place {
    pub location: S3Location,
    /// Address of a server other than that of AWS. The bucket is part of the path there.
    pub endpoint: Option<Url>,
    pub region: String,
}

/// Credentials of a bucket.
#[derive(Clone, PartialEq, Eq)]
pub struct S3Credentials {
    pub access_key: String,
    pub secret_key: String,
}

impl fmt::Debug for S3Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("S3Credentials(…)")
    }
}

/// Client of one bucket. Redirects are not followed, and no proxy is used.
#[derive(Debug)]
pub struct S3Client {
    place: S3Place,
    credentials: S3Credentials,
    agent: Agent,
}

impl S3Client {
    pub fn new(place: S3Place, credentials: S3Credentials) -> S3Client {
        let agent = Agent::new_with_config(
            Agent::config_builder()
                .timeout_connect(Some(CONNECT_TIMEOUT))
                .timeout_send_body(Some(BODY_TIMEOUT))
                .timeout_recv_response(Some(ANSWER_TIMEOUT))
                .timeout_recv_body(Some(BODY_TIMEOUT))
                .http_status_as_error(false)
                .max_redirects(0)
                .max_redirects_will_error(false)
                // By default the library reads proxy settings from the environment.
                .proxy(None)
                .user_agent(concat!("heeler/", env!("CARGO_PKG_VERSION")))
                .build(),
        );
        S3Client { place, credentials, agent }
    }

    /// Stores an object, or replaces it. `sha256` is that of the content, in hexadecimal.
    pub fn put(
        &self,
        key: &str,
        content: File,
        (length, sha256): (u64, &str),
        now: Timestamp,
    ) -> Result<(), S3Error> {
        let request = self.request("PUT", key, sha256, now)?.header(CONTENT_LENGTH, length);
        self.store(request, content)
    }

    /// Stores an object without content.
    pub fn put_empty(&self, key: &str, now: Timestamp) -> Result<(), S3Error> {
        let request = self.request("PUT", key, EMPTY_SHA256, now)?.header(CONTENT_LENGTH, 0);
        self.store(request, ())
    }

    fn store(&self, request: request::Builder, content: impl AsSendBody) -> Result<(), S3Error> {
        let mut response = self.run(request, content)?;
        // An answer that is not whole may be one of a store that does not have the object.
        let read = response.body_mut().with_config().limit(ERROR_BYTES_MAX).read_to_vec();
        let (_, host, _) = self.address("");
        read.map(drop).map_err(|error| S3Error::of_transport(&host, &error))
    }

    /// Reads an object. The reader may fail later.
    pub fn get(&self, key: &str, now: Timestamp) -> Result<BodyReader<'static>, S3Error> {
        let response = self.run(self.request("GET", key, EMPTY_SHA256, now)?, ())?;
        Ok(response.into_body().into_reader())
    }

    /// Returns the length of an object; `None` if there is none.
    pub fn head(&self, key: &str, now: Timestamp) -> Result<Option<u64>, S3Error> {
        match self.run(self.request("HEAD", key, EMPTY_SHA256, now)?, ()) {
            Ok(response) => {
                let length = response.headers().get(CONTENT_LENGTH);
                Ok(length.and_then(|value| value.to_str().ok()?.parse().ok()))
            }
            Err(error) if error.kind == S3ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the scheme, the host with its port, and the path of a key.
    fn address(&self, key: &str) -> (String, String, String) {
        let (bucket, key) = (&self.place.location.bucket, encode_path(key));
        match &self.place.endpoint {
            None => {
                let host = format!("{bucket}.s3.{}.amazonaws.com", self.place.region);
                ("https".to_owned(), host, format!("/{key}"))
            }
            Some(endpoint) => {
                let name = endpoint.host_str().unwrap_or_default();
                let port = endpoint.port().map(|port| format!(":{port}")).unwrap_or_default();
                let base = endpoint.path().trim_end_matches('/');
                let path = format!("{base}/{bucket}/{key}");
                (endpoint.scheme().to_owned(), format!("{name}{port}"), path)
            }
        }
    }

    fn request(
        &self,
        method: &str,
        key: &str,
        sha256: &str,
        now: Timestamp,
    ) -> Result<request::Builder, S3Error> {
        let (scheme, host, path) = self.address(key);
        let date = amz_date(now);
        let headers = [("host", &*host), ("x-amz-content-sha256", sha256), ("x-amz-date", &date)];
        let (region, at) = (self.place.region.as_str(), now);
        let call =
            SignedCall { method, path: &path, headers: &headers, body_sha256: sha256, region, at };
        let S3Credentials { access_key, secret_key } = &self.credentials;
        let text = || S3Error {
            kind: S3ErrorKind::Refused,
            text: "the access key has characters that no header allows".to_owned(),
        };
        let mut signed =
            HeaderValue::try_from(call.authorize(access_key, secret_key)).map_err(|_| text())?;
        // Sensitive values are left out when headers are logged.
        signed.set_sensitive(true);
        Ok(Request::builder()
            .method(method)
            .uri(format!("{scheme}://{host}{path}"))
            .header(HOST, host.as_str())
            .header("x-amz-content-sha256", sha256)
            .header("x-amz-date", date)
            .header(AUTHORIZATION, signed))
    }

    fn run(
        &self,
        request: request::Builder,
        body: impl AsSendBody,
    ) -> Result<Response<Body>, S3Error> {
        let (_, host, _) = self.address("");
        let request = request.body(body).map_err(|_| S3Error {
            kind: S3ErrorKind::Refused,
            text: format!("the address of {host} cannot be used"),
        })?;
        let mut response =
            self.agent.run(request).map_err(|error| S3Error::of_transport(&host, &error))?;
        let status = response.status().as_u16();
        if (200..=299).contains(&status) {
            return Ok(response);
        }
        let body = response.body_mut().with_config().limit(ERROR_BYTES_MAX).read_to_vec();
        Err(S3Error::of_answer(&host, status, &body.unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _, SeekFrom, Write as _};

    use heeler_testkit::{FakeS3, S3Failure};
    use sha2::{Digest as _, Sha256};

    use super::*;
    use crate::signature::hex;

    const BUCKET: &str = "heeler-files";

    fn now() -> Timestamp {
        "2026-01-02T03:04:05Z".parse().unwrap()
    }

    fn client(server: &FakeS3, secret_key: &str) -> S3Client {
        let place = S3Place {
            location: format!("s3://{BUCKET}/team/fleet").parse().unwrap(),
            endpoint: Some(server.url().parse().unwrap()),
            region: "eu-central-1".to_owned(),
        };
        let (access_key, secret_key) = ("AKTEST".to_owned(), secret_key.to_owned());
        S3Client::new(place, S3Credentials { access_key, secret_key })
    }

    fn server() -> FakeS3 {
        FakeS3::start(BUCKET, "eu-central-1", "AKTEST", "s3cr3t/key+1")
    }

    fn put(client: &S3Client, key: &str, content: &[u8]) -> Result<(), S3Error> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        let sha256 = hex(&Sha256::digest(content));
        client.put(key, file, (content.len() as u64, &sha256), now())
    }

    fn get(client: &S3Client, key: &str) -> Result<Vec<u8>, S3Error> {
        let mut bytes = Vec::new();
        client.get(key, now())?.read_to_end(&mut bytes).unwrap();
        Ok(bytes)
    }

    #[test]
    fn objects_are_stored_replaced_looked_at_and_read() {
        let server = server();
        let client = client(&server, "s3cr3t/key+1");
        let key = client.place.location.key("jobs/a b+ä.gz");
        assert_eq!(client.head(&key, now()).unwrap(), None);
        assert_eq!(get(&client, &key).unwrap_err().kind, S3ErrorKind::NotFound);
        for content in [vec![7; 3 << 20], b"new".to_vec(), Vec::new()] {
            put(&client, &key, &content).unwrap();
            assert_eq!(client.head(&key, now()).unwrap(), Some(content.len() as u64));
            assert!(get(&client, &key).unwrap() == content);
        }
        assert_eq!(server.keys(), ["team/fleet/jobs/a b+ä.gz"]);
    }

    #[test]
    fn failures_have_a_kind_and_no_secret() {
        let server = server();
        let wrong = client(&server, "another-secret");
        let error = put(&wrong, "a", b"x").unwrap_err();
        assert_eq!(error.kind, S3ErrorKind::Refused);
        assert!(error.text.contains("SignatureDoesNotMatch"), "{error}");
        assert!(
            !error.text.contains("another-secret") && !format!("{wrong:?}").contains("another")
        );
        let client = client(&server, "s3cr3t/key+1");
        for failure in [S3Failure::Status(500), S3Failure::Status(503), S3Failure::Drop] {
            server.fail_next(failure);
            let error = put(&client, "a", b"x").unwrap_err();
            assert_eq!(error.kind, S3ErrorKind::Transient, "{error}");
        }
        server.fail_next(S3Failure::Status(403));
        assert_eq!(put(&client, "a", b"x").unwrap_err().kind, S3ErrorKind::Refused);
        assert_eq!(server.keys(), Vec::<String>::new());
    }

    #[test]
    fn a_bucket_of_aws_is_part_of_the_host_name() {
        let aws = S3Place {
            location: "s3://heeler-files".parse().unwrap(),
            endpoint: None,
            region: "eu-west-1".to_owned(),
        };
        let (access_key, secret_key) = (String::new(), String::new());
        let client = S3Client::new(aws, S3Credentials { access_key, secret_key });
        let (scheme, host, path) = client.address("a/b");
        assert_eq!(
            format!("{scheme}://{host}{path}"),
            "https://heeler-files.s3.eu-west-1.amazonaws.com/a/b"
        );
    }
}
