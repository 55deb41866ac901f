//! A transcription service with the form of OpenAI's `/v1/audio/transcriptions`.
//!
//! It demands its key and all fields of the form, and its words are those of the audio, which is a text in
//! tests. Start at [`FakeTranscription`].

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value as Json, json};

use crate::fake_server::FakeServer;

/// A running service; dropping it stops it.
#[derive(Debug)]
pub struct FakeTranscription {
    server: FakeServer,
    state: Arc<Mutex<TranscriptionState>>,
}

/// A voice message that was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedVoice {
    /// Text fields of the form.
    pub fields: BTreeMap<String, String>,
    pub file_name: String,
    pub media_type: String,
    pub audio: String,
}

#[derive(Debug)]
struct TranscriptionState {
    key: String,
    /// Statuses with which the next calls fail.
    failures: VecDeque<u16>,
    received: Vec<ReceivedVoice>,
    calls: usize,
}

impl FakeTranscription {
    /// Starts a service that accepts a key.
    pub fn start(key: &str) -> FakeTranscription {
        let state = TranscriptionState {
            key: key.to_owned(),
            failures: VecDeque::new(),
            received: Vec::new(),
            calls: 0,
        };
        let state = Arc::new(Mutex::new(state));
        let router = Router::new().fallback(handle).with_state(Arc::clone(&state));
        FakeTranscription { server: FakeServer::start(router), state }
    }

    /// Returns the address, as the config names it.
    pub fn url(&self) -> String {
        format!("{}/v1", self.server.url())
    }

    /// Makes the next call fail.
    pub fn fail_next(&self, status: u16) {
        self.lock().failures.push_back(status);
    }

    /// Returns the voice messages that were transcribed.
    pub fn received(&self) -> Vec<ReceivedVoice> {
        self.lock().received.clone()
    }

    /// Returns the number of calls, with those that failed.
    pub fn calls(&self) -> usize {
        self.lock().calls
    }

    fn lock(&self) -> MutexGuard<'_, TranscriptionState> {
        self.state.lock().unwrap()
    }
}

async fn handle(
    State(state): State<Arc<Mutex<TranscriptionState>>>,
    request: Request<Body>,
) -> Response {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap_or_default();
    let header = |name: &str| {
        let value = head.headers.get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    };
    let is_call = head.method == "POST" && head.uri.path() == "/v1/audio/transcriptions";
    let mut state = state.lock().unwrap();
    state.calls += 1;
    if let Some(status) = state.failures.pop_front() {
        return answer(status, &json!({"error": {"message": "the engine is overloaded"}}));
    }
    if header("authorization") != format!("Bearer {}", state.key) {
        let message = format!("Incorrect API key provided: {}", header("authorization"));
        return answer(401, &json!({"error": {"message": message}}));
    }
    match parse_form(&header("content-type"), &String::from_utf8_lossy(&body)) {
        Some(voice) if is_call && voice.fields.contains_key("model") => {
            let text = json!({"text": voice.audio});
            state.received.push(voice);
            answer(200, &text)
        }
        _ if !is_call => answer(404, &json!({"error": {"message": "Invalid URL"}})),
        _ => answer(400, &json!({"error": {"message": "you must provide a file and a model"}})),
    }
}

/// Returns the parts of a form; `None` if it has no file.
fn parse_form(content_type: &str, body: &str) -> Option<ReceivedVoice> {
    let boundary = format!("--{}", content_type.split_once("boundary=")?.1);
    let mut voice = ReceivedVoice {
        fields: BTreeMap::new(),
        file_name: String::new(),
        media_type: String::new(),
        audio: String::new(),
    };
    let parts = body.split(boundary.as_str()).skip(1).take_while(|part| !part.starts_with("--"));
    for part in parts {
        let (head, content) = part.strip_prefix("\r\n")?.split_once("\r\n\r\n")?;
        let content = content.strip_suffix("\r\n")?.to_owned();
        let quoted = |key: &str| {
            let (_, rest) = head.split_once(&format!(" {key}=\""))?;
            rest.split('"').next().map(str::to_owned)
        };
        match quoted("filename") {
            Some(name) => {
                voice.file_name = name;
                voice.media_type =
                    head.split_once("content-type: ").map(|it| it.1.to_owned()).unwrap_or_default();
                voice.audio = content;
            }
            None => drop(voice.fields.insert(quoted("name")?, content)),
        }
    }
    (!voice.file_name.is_empty()).then_some(voice)
}

fn answer(status: u16, body: &Json) -> Response {
    let mut response = axum::Json(body.clone()).into_response();
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response
}
