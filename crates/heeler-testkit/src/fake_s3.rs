//! An object store with the API of S3: one bucket, with its name in the path.
//!
//! It checks the signature of each request and the hash of each body, and fails on demand. Start at
//! [`FakeS3`].

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::request::Parts;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use ring::{digest, hmac};

use crate::fake_server::FakeServer;

/// A running store; dropping it stops it.
#[derive(Debug)]
pub struct FakeS3 {
    server: FakeServer,
    state: Arc<Mutex<StoreState>>,
}

/// Failure of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum S3Failure {
    /// The answer has this status.
    Status(u16),
    /// The connection ends within the answer.
    Drop,
    /// An object is read with other bytes than it has.
    OtherBytes,
}

#[derive(Debug)]
struct StoreState {
    bucket: String,
    region: String,
    access_key: String,
    secret_key: String,
    /// By key.
    objects: BTreeMap<String, Vec<u8>>,
    failures: VecDeque<S3Failure>,
    puts: usize,
}

impl FakeS3 {
    /// Starts a store with one bucket that accepts one pair of credentials.
    pub fn start(bucket: &str, region: &str, access_key: &str, secret_key: &str) -> FakeS3 {
        let state = StoreState {
            bucket: bucket.to_owned(),
            region: region.to_owned(),
            access_key: access_key.to_owned(),
            secret_key: secret_key.to_owned(),
            objects: BTreeMap::new(),
            failures: VecDeque::new(),
            puts: 0,
        };
        let state = Arc::new(Mutex::new(state));
        let router = Router::new().fallback(handle).with_state(Arc::clone(&state));
        FakeS3 { server: FakeServer::start(router), state }
    }

    /// Returns the address of the server.
    pub fn url(&self) -> &str {
        self.server.url()
    }

    /// Lets a later request fail. Several failures follow each other.
    pub fn fail_next(&self, failure: S3Failure) {
        self.lock().failures.push_back(failure);
    }

    /// Ends the failures that are left.
    pub fn recover(&self) {
        self.lock().failures.clear();
    }

    /// Returns the keys of all objects.
    pub fn keys(&self) -> Vec<String> {
        self.lock().objects.keys().cloned().collect()
    }

    /// Returns the number of objects that were stored or replaced.
    pub fn puts(&self) -> usize {
        self.lock().puts
    }

    /// Changes a byte in the middle of each object with a key that contains a text.
    pub fn damage(&self, key: &str) {
        for (_, bytes) in self.lock().objects.iter_mut().filter(|(name, _)| name.contains(key)) {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0xff;
        }
    }

    fn lock(&self) -> MutexGuard<'_, StoreState> {
        self.state.lock().unwrap()
    }
}

async fn handle(State(state): State<Arc<Mutex<StoreState>>>, request: Request<Body>) -> Response {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap_or_default();
    let mut state = state.lock().unwrap();
    let failure = state.failures.pop_front();
    match failure {
        Some(S3Failure::Status(status)) => return refuse(status, "Injected"),
        Some(S3Failure::Drop) => return dropped(),
        Some(S3Failure::OtherBytes) | None => {}
    }
    if let Err(code) = state.check(&head, &body) {
        return refuse(403, code);
    }
    let path = percent_decoded(head.uri.path());
    let Some(key) = path.strip_prefix(&format!("/{}/", state.bucket)).map(str::to_owned) else {
        return refuse(404, "NoSuchBucket");
    };
    match head.method.as_str() {
        "PUT" => {
            state.objects.insert(key, body.to_vec());
            state.puts += 1;
            StatusCode::OK.into_response()
        }
        "GET" | "HEAD" => match state.objects.get(&key) {
            None => refuse(404, "NoSuchKey"),
            Some(bytes) => {
                let mut bytes = bytes.clone();
                if failure == Some(S3Failure::OtherBytes) {
                    bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
                }
                bytes.into_response()
            }
        },
        _ => refuse(405, "MethodNotAllowed"),
    }
}

impl StoreState {
    /// Checks the signature of a request as AWS documents it, independently of the client's code.
    fn check(&self, head: &Parts, body: &Bytes) -> Result<(), &'static str> {
        let header = |name: &str| {
            let value = head.headers.get(name).and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        let (authorization, date) = (header("authorization"), header("x-amz-date"));
        let field = |name: &str| {
            let (_, rest) = authorization.split_once(&format!("{name}="))?;
            rest.split(',').next().map(str::to_owned)
        };
        let credential = field("Credential").ok_or("AccessDenied")?;
        let signed = field("SignedHeaders").ok_or("AccessDenied")?;
        let day = date.get(..8).ok_or("AccessDenied")?;
        let scope = format!("{day}/{}/s3/aws4_request", self.region);
        if credential != format!("{}/{scope}", self.access_key) {
            return Err("InvalidAccessKeyId");
        }
        let must = ["host", "x-amz-content-sha256", "x-amz-date"];
        if !must.iter().all(|name| signed.split(';').any(|known| known == *name)) {
            return Err("AccessDenied");
        }
        let hash = hex(digest::digest(&digest::SHA256, body).as_ref());
        if header("x-amz-content-sha256") != hash {
            return Err("XAmzContentSHA256Mismatch");
        }
        let headers: String =
            signed.split(';').map(|name| format!("{name}:{}\n", header(name).trim())).collect();
        let (method, path) = (head.method.as_str(), head.uri.path());
        let canonical = format!("{method}\n{path}\n\n{headers}\n{signed}\n{hash}");
        let canonical = hex(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref());
        let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{canonical}");
        let mut key = format!("AWS4{}", self.secret_key).into_bytes();
        for part in [day, &self.region, "s3", "aws4_request", &text] {
            let with = hmac::Key::new(hmac::HMAC_SHA256, &key);
            key = hmac::sign(&with, part.as_bytes()).as_ref().to_vec();
        }
        match field("Signature") == Some(hex(&key)) {
            true => Ok(()),
            false => Err("SignatureDoesNotMatch"),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn percent_decoded(path: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), path.as_bytes());
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        match digits.and_then(|two| u8::from_str_radix(two, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn refuse(status: u16, code: &str) -> Response {
    let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>");
    let status = StatusCode::from_u16(status).unwrap();
    (status, [("content-type", "application/xml")], body).into_response()
}

/// Returns an answer of which the connection ends before its body is complete.
fn dropped() -> Response {
    let body: [io::Result<Bytes>; 2] =
        [Ok(Bytes::from_static(b"<?xml")), Err(io::ErrorKind::ConnectionReset.into())];
    let body = Body::from_stream(stream::iter(body));
    Response::builder().header("content-length", "1000").body(body).unwrap()
}
