//! A receiver of webhooks: it records requests, and fails on demand.
//!
//! Start at [`FakeWebhook`].

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde_json::Value as Json;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::WAIT_MAX;

/// A running server; dropping it stops it.
#[derive(Debug)]
pub struct FakeWebhook {
    url: String,
    shared: Arc<SharedWebhook>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A request that was received.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceivedNotice {
    pub path: String,
    /// Headers by name in lower case.
    pub headers: BTreeMap<String, String>,
    /// The body as it was sent.
    pub bytes: Vec<u8>,
    pub body: Json,
}

#[derive(Debug, Default)]
struct SharedWebhook {
    state: Mutex<WebhookState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct WebhookState {
    received: Vec<ReceivedNotice>,
    /// Statuses with which the next requests fail.
    failures: Vec<u16>,
    /// Requests that were received, with those that failed.
    attempts: usize,
}

impl FakeWebhook {
    /// Starts a server on a free local port.
    pub fn start() -> Self {
        let shared = Arc::new(SharedWebhook::default());
        let (stop, stopped) = oneshot::channel();
        let (told, url) = std::sync::mpsc::channel();
        let served = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                told.send(format!("http://{}", listener.local_addr().unwrap())).unwrap();
                let router = Router::new().fallback(handle).with_state(served);
                tokio::select! {
                    served = axum::serve(listener, router) => served.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        let url = url.recv().unwrap();
        Self { url, shared, stop: Some(stop), thread: Some(thread) }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Makes the next request fail.
    pub fn fail_next(&self, status: u16) {
        self.shared.lock().failures.push(status);
    }

    /// Returns the number of requests, with those that failed.
    pub fn attempts(&self) -> usize {
        self.shared.lock().attempts
    }

    /// Returns the requests that were accepted.
    pub fn received(&self) -> Vec<ReceivedNotice> {
        self.shared.lock().received.clone()
    }

    /// Waits until so many requests were accepted.
    #[track_caller]
    pub fn wait_for(&self, count: usize) -> Vec<ReceivedNotice> {
        let deadline = Instant::now() + WAIT_MAX;
        let mut state = self.shared.lock();
        while state.received.len() < count {
            assert!(Instant::now() < deadline, "waited in vain: {:#?}", state.received);
            state = self.shared.changed.wait_timeout(state, Duration::from_millis(100)).unwrap().0;
        }
        state.received.clone()
    }
}

impl Drop for FakeWebhook {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl SharedWebhook {
    fn lock(&self) -> MutexGuard<'_, WebhookState> {
        self.state.lock().unwrap()
    }
}

async fn handle(State(shared): State<Arc<SharedWebhook>>, request: Request<Body>) -> Response {
    let path = request.uri().path().to_owned();
    let headers = request.headers().iter();
    let headers: BTreeMap<String, String> = headers
        .map(|(name, value)| {
            (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        })
        .collect();
    let bytes = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap_or_default();
    let body: Json = serde_json::from_slice(&bytes).unwrap_or_default();
    let mut state = shared.lock();
    state.attempts += 1;
    if !state.failures.is_empty() {
        let status = state.failures.remove(0);
        return StatusCode::from_u16(status).unwrap().into_response();
    }
    state.received.push(ReceivedNotice { path, headers, bytes: bytes.to_vec(), body });
    drop(state);
    shared.changed.notify_all();
    axum::Json(serde_json::json!({})).into_response()
}
