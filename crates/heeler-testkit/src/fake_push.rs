//! A push service of browsers, and the browsers behind it.
//!
//! It checks what the real ones check: the signature of the sender (RFC 8292), the headers and the size
//! (RFC 8030). Messages are decrypted with the keys of the browser (RFC 8291). Start at
//! [`FakePushService`].

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::agreement::{ECDH_P256, EphemeralPrivateKey, UnparsedPublicKey, agree_ephemeral};
use ring::error::Unspecified;
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{self, ECDSA_P256_SHA256_FIXED};
use serde_json::Value as Json;

use crate::WAIT_MAX;
use crate::fake_server::FakeServer;

/// Largest message that it accepts.
const BODY_BYTES_MAX: usize = 4096;

/// Longest validity of a signature.
const SIGNATURE_SECONDS_MAX: u64 = 24 * 60 * 60;

/// A running push service; dropping it stops it.
#[derive(Debug)]
pub struct FakePushService {
    server: FakeServer,
    shared: Arc<SharedPush>,
}

/// Subscription of a browser.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushSubscription {
    pub endpoint: String,
    /// Public key, as base64.
    pub p256dh: String,
    /// Shared secret, as base64.
    pub auth: String,
}

/// A message that was accepted.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceivedPush {
    pub endpoint: String,
    pub ttl: u32,
    pub urgency: String,
    pub topic: String,
    /// `sub` of the signature.
    pub contact: Option<String>,
    /// The decrypted message.
    pub message: Json,
}

#[derive(Debug, Default)]
struct SharedPush {
    state: Mutex<PushState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct PushState {
    url: String,
    /// Browsers by the path of their endpoint.
    browsers: BTreeMap<String, PushBrowserKeys>,
    received: Vec<ReceivedPush>,
    /// Statuses with which the next requests fail.
    failures: Vec<u16>,
    /// Requests that were received, with those that failed.
    attempts: usize,
    /// Problems that a real service or browser would not accept.
    problems: Vec<String>,
}

#[derive(Debug, Clone)]
struct PushBrowserKeys {
    private_key: [u8; 32],
    public_key: Vec<u8>,
    auth: [u8; 16],
    /// Public key of the only sender that may send.
    sender: String,
    is_expired: bool,
}

impl FakePushService {
    /// Starts a server on a free local port.
    pub fn start() -> Self {
        let shared = Arc::new(SharedPush::default());
        let router = Router::new().fallback(handle).with_state(Arc::clone(&shared));
        let server = FakeServer::start(router);
        shared.lock().url = server.url().to_owned();
        Self { server, shared }
    }

    pub fn url(&self) -> &str {
        self.server.url()
    }

    /// Makes a browser subscribe to a sender, by the sender's public key.
    pub fn subscribe(&self, sender: &str) -> PushSubscription {
        let mut keys = PushBrowserKeys {
            private_key: random_bytes(),
            public_key: Vec::new(),
            auth: random_bytes(),
            sender: sender.to_owned(),
            is_expired: false,
        };
        let public_key = private_key(&keys.private_key).compute_public_key().unwrap();
        public_key.as_ref().clone_into(&mut keys.public_key);
        let mut state = self.shared.lock();
        let path = format!("/push/{}-{:02x?}", state.browsers.len(), random_bytes::<2>());
        let path = path.replace(['[', ']', ',', ' '], "");
        let subscription = PushSubscription {
            endpoint: format!("{}{path}", state.url),
            p256dh: URL_SAFE_NO_PAD.encode(&keys.public_key),
            auth: URL_SAFE_NO_PAD.encode(keys.auth),
        };
        state.browsers.insert(path, keys);
        subscription
    }

    /// Makes a browser forget its subscription.
    pub fn expire(&self, endpoint: &str) {
        let mut state = self.shared.lock();
        let path = endpoint.strip_prefix(&state.url).unwrap().to_owned();
        state.browsers.get_mut(&path).unwrap().is_expired = true;
    }

    /// Makes the next request fail.
    pub fn fail_next(&self, status: u16) {
        self.shared.lock().failures.push(status);
    }

    /// Returns the number of requests, with those that failed.
    pub fn attempts(&self) -> usize {
        self.shared.lock().attempts
    }

    /// Returns the messages that were accepted.
    #[track_caller]
    pub fn received(&self) -> Vec<ReceivedPush> {
        let state = self.shared.lock();
        assert!(state.problems.is_empty(), "a message is not valid: {:?}", state.problems);
        state.received.clone()
    }

    /// Waits until so many messages were accepted.
    #[track_caller]
    pub fn wait_for(&self, count: usize) -> Vec<ReceivedPush> {
        let deadline = Instant::now() + WAIT_MAX;
        let mut state = self.shared.lock();
        while state.received.len() < count {
            assert!(state.problems.is_empty(), "a message is not valid: {:?}", state.problems);
            assert!(Instant::now() < deadline, "waited in vain: {:#?}", state.received);
            state = self.shared.changed.wait_timeout(state, Duration::from_millis(100)).unwrap().0;
        }
        state.received.clone()
    }
}

impl SharedPush {
    fn lock(&self) -> MutexGuard<'_, PushState> {
        self.state.lock().unwrap()
    }
}

async fn handle(State(shared): State<Arc<SharedPush>>, request: Request<Body>) -> Response {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap_or_default();
    let mut state = shared.lock();
    state.attempts += 1;
    if !state.failures.is_empty() {
        let status = state.failures.remove(0);
        return StatusCode::from_u16(status).unwrap().into_response();
    }
    let path = head.uri.path().to_owned();
    let Some(keys) = state.browsers.get(&path).cloned() else {
        return StatusCode::NOT_FOUND.into_response();
    };
    if keys.is_expired {
        return StatusCode::GONE.into_response();
    }
    let endpoint = format!("{}{path}", state.url);
    match accept(&state.url, &endpoint, &keys, &head.headers, &body) {
        Ok(push) => {
            state.received.push(push);
            drop(state);
            shared.changed.notify_all();
            StatusCode::CREATED.into_response()
        }
        Err((status, problem)) => {
            state.problems.push(format!("{status}: {problem}"));
            (status, problem).into_response()
        }
    }
}

/// Checks a request as a push service does, and decrypts its message as a browser does.
fn accept(
    origin: &str,
    endpoint: &str,
    keys: &PushBrowserKeys,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<ReceivedPush, (StatusCode, String)> {
    let bad = |problem: &str| (StatusCode::BAD_REQUEST, problem.to_owned());
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let contact = check_sender(origin, keys, header("authorization").unwrap_or_default())
        .map_err(|problem| (StatusCode::FORBIDDEN, problem))?;
    let ttl = header("ttl").and_then(|text| text.parse().ok()).ok_or_else(|| bad("no TTL"))?;
    let urgency = header("urgency").unwrap_or("normal").to_owned();
    if !["very-low", "low", "normal", "high"].contains(&urgency.as_str()) {
        return Err(bad("unknown urgency"));
    }
    let topic = header("topic").unwrap_or_default().to_owned();
    let is_topic = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if topic.len() > 32 || !topic.chars().all(is_topic) {
        return Err(bad("invalid topic"));
    }
    if header("content-encoding") != Some("aes128gcm") {
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, "unknown coding".to_owned()));
    }
    if body.len() > BODY_BYTES_MAX {
        return Err((StatusCode::PAYLOAD_TOO_LARGE, body.len().to_string()));
    }
    let text = decrypt(body, keys).map_err(|_| bad("cannot be decrypted"))?;
    let message = serde_json::from_slice(&text).map_err(|error| bad(&error.to_string()))?;
    Ok(ReceivedPush { endpoint: endpoint.to_owned(), ttl, urgency, topic, contact, message })
}

/// Checks the signature of a sender, and returns its contact.
fn check_sender(
    origin: &str,
    keys: &PushBrowserKeys,
    authorization: &str,
) -> Result<Option<String>, String> {
    let rest = authorization.strip_prefix("vapid ").ok_or("no vapid")?;
    let find = |key: &str| rest.split(',').find_map(|part| part.trim().strip_prefix(key));
    let (token, sender) = (find("t=").ok_or("no t")?, find("k=").ok_or("no k")?);
    if sender != keys.sender {
        return Err("the browser subscribed to another sender".to_owned());
    }
    let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).map_err(|error| error.to_string());
    let (signed, signature) = token.rsplit_once('.').ok_or("no signature")?;
    signature::UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, decode(sender)?)
        .verify(signed.as_bytes(), &decode(signature)?)
        .map_err(|_| "the signature is wrong")?;
    let (head, claims) = signed.split_once('.').ok_or("no claims")?;
    let parse = |text: &str| -> Result<Json, String> {
        serde_json::from_slice(&decode(text)?).map_err(|error| error.to_string())
    };
    let (head, claims) = (parse(head)?, parse(claims)?);
    if head["alg"] != "ES256" || claims["aud"] != origin {
        return Err(format!("it is signed for another service: {head} {claims}"));
    }
    let expires = claims["exp"].as_u64().ok_or("no exp")?;
    let now = unix_seconds();
    if expires <= now || expires > now + SIGNATURE_SECONDS_MAX {
        return Err(format!("it is valid until {expires}, and now is {now}"));
    }
    Ok(claims["sub"].as_str().map(str::to_owned))
}

#[expect(clippy::disallowed_methods, reason = "a service has a clock of its own")]
fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

fn random_bytes<const LENGTH: usize>() -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    SystemRandom::new().fill(&mut bytes).unwrap();
    bytes
}

/// Returns a private key for one use.
#[expect(deprecated, reason = "ring has no other way to use a given private key")]
fn private_key(bytes: &[u8; 32]) -> EphemeralPrivateKey {
    let random = ring::test::rand::FixedSliceRandom { bytes };
    EphemeralPrivateKey::generate(&ECDH_P256, &random).unwrap()
}

struct DerivedLength(usize);

impl KeyType for DerivedLength {
    fn len(&self) -> usize {
        self.0
    }
}

fn derive<const LENGTH: usize>(
    salt: &[u8],
    secret: &[u8],
    info: &[&[u8]],
) -> Result<[u8; LENGTH], Unspecified> {
    let mut out = [0; LENGTH];
    let key = Salt::new(HKDF_SHA256, salt).extract(secret);
    key.expand(info, DerivedLength(LENGTH))?.fill(&mut out)?;
    Ok(out)
}

/// Decrypts a message of one record.
fn decrypt(body: &[u8], keys: &PushBrowserKeys) -> Result<Vec<u8>, Unspecified> {
    let (salt, rest) = body.split_at_checked(16).ok_or(Unspecified)?;
    let (_record_size, rest) = rest.split_at_checked(4).ok_or(Unspecified)?;
    let (key_length, rest) = rest.split_first().ok_or(Unspecified)?;
    let (sender, record) = rest.split_at_checked(usize::from(*key_length)).ok_or(Unspecified)?;
    let sender_key = UnparsedPublicKey::new(&ECDH_P256, sender);
    let secret = agree_ephemeral(private_key(&keys.private_key), &sender_key, |shared| {
        let info: [&[u8]; 3] = [b"WebPush: info\0", &keys.public_key, sender];
        derive::<32>(&keys.auth, shared, &info)
    })??;
    let key = derive::<16>(salt, &secret, &[b"Content-Encoding: aes128gcm\0"])?;
    let nonce = derive::<12>(salt, &secret, &[b"Content-Encoding: nonce\0"])?;
    let cipher = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key)?);
    let mut record = record.to_vec();
    let nonce = Nonce::assume_unique_for_key(nonce);
    let text = cipher.open_in_place(nonce, Aad::empty(), &mut record)?;
    // The last record ends with a 2 and padding of zeros.
    let end = text.iter().rposition(|byte| *byte != 0).ok_or(Unspecified)?;
    if text[end] != 2 {
        return Err(Unspecified);
    }
    Ok(text[..end].to_vec())
}
