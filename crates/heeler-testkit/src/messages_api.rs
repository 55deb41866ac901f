//! A fake Messages API, so that the real Claude Code runs without network, key or cost. It also
//! speaks the APIs of OpenAI and Gemini, for the real Codex, goose and Gemini CLI.
//!
//! It stores no script: each prompt carries its own as a directive (see [`ModelScript`]). So
//! tests share nothing, and a resumed or forked session still knows the next step. Start at
//! [`MessagesApi`].

mod chat_completions;
mod event_stream;
mod gemini;
mod mcp;
mod openai;
mod reply;
mod script;

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Instant;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{Method, Request, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value as Json, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::WAIT_MAX;

pub use self::script::{ModelScript, ModelScriptStep, ModelToolCall};

/// A running server; dropping it stops the server and every unfinished reply.
#[derive(Debug)]
pub struct MessagesApi {
    url: String,
    request_log: Arc<ApiRequestLog>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A recorded request.
#[derive(Debug, Clone)]
pub struct ApiRequest {
    /// `POST` and so on.
    pub method: String,
    /// Path with the query.
    pub path: String,
    /// Names in lower case.
    pub headers: HashMap<String, String>,
    /// Null if the request had no body.
    pub body: Json,
}

/// State of the server.
#[derive(Debug, Default)]
struct ApiRequestLog {
    state: Mutex<ApiRequestLogState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct ApiRequestLogState {
    requests: Vec<ApiRequest>,
    /// Number of failures of each step of each prompt, by the step's key.
    failures: HashMap<String, u32>,
}

impl MessagesApi {
    /// Starts a separate server on a free local port.
    pub fn start() -> Self {
        let seen = Arc::new(ApiRequestLog::default());
        let (stop, stopped) = oneshot::channel();
        let (told, url) = std::sync::mpsc::channel();
        let shared = Arc::clone(&seen);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                told.send(format!("http://{}", listener.local_addr().unwrap())).unwrap();
                let router = Router::new()
                    .fallback(handle)
                    .layer(DefaultBodyLimit::disable())
                    .with_state(shared);
                tokio::select! {
                    served = axum::serve(listener, router) => served.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        let url = url.recv().unwrap();
        Self { url, request_log: seen, stop: Some(stop), thread: Some(thread) }
    }

    /// Returns the value for `ANTHROPIC_BASE_URL`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the address of an MCP server with one tool, `add`.
    pub fn mcp_url(&self) -> String {
        format!("{}/mcp", self.url)
    }

    /// Returns all requests to date in order of arrival.
    pub fn requests(&self) -> Vec<ApiRequest> {
        self.request_log.lock().requests.clone()
    }

    /// Returns the requests for a model reply to date.
    pub fn messages(&self) -> Vec<ApiRequest> {
        self.requests().into_iter().filter(ApiRequest::is_message).collect()
    }

    /// Waits until `count` replies have been requested.
    #[track_caller]
    pub fn wait_for_messages(&self, count: usize) {
        let until = Instant::now() + WAIT_MAX;
        let mut state = self.request_log.lock();
        while state.requests.iter().filter(|request| request.is_message()).count() < count {
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{count} messages were awaited, got {:#?}", state.requests);
            state = self.request_log.changed.wait_timeout(state, left).unwrap().0;
        }
    }
}

impl Drop for MessagesApi {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the fake Messages API panicked");
        }
    }
}

impl ApiRequest {
    /// Returns a header by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// Returns the conversation as short lines, one per block, without Claude Code's additions.
    pub fn history(&self) -> Vec<String> {
        let path = self.path.split('?').next().unwrap_or_default();
        match path {
            "/v1/responses" => script::history(&openai::messages(&self.body)),
            "/v1/chat/completions" => script::history(&chat_completions::messages(&self.body)),
            _ if path.ends_with("enerateContent") => script::history(&gemini::messages(&self.body)),
            _ => script::history(&self.body),
        }
    }

    /// Returns the names of the tools that the model is offered.
    pub fn tools(&self) -> Vec<String> {
        let tools = self.body["tools"].as_array().into_iter().flatten();
        let name = |tool: &Json| {
            tool["name"].as_str().or(tool["function"]["name"].as_str()).map(str::to_owned)
        };
        tools.filter_map(name).collect()
    }

    /// Returns all blocks of the system prompt.
    pub fn system(&self) -> String {
        let blocks = self.body["system"].as_array().into_iter().flatten();
        blocks.filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n")
    }

    fn is_message(&self) -> bool {
        let path = self.path.split('?').next().unwrap_or_default();
        // Agents make titles by requests without tools.
        let has_tools = self.body["tools"].as_array().is_some_and(|tools| !tools.is_empty());
        let is_reply = matches!(path, "/v1/messages" | "/v1/responses")
            || (path == "/v1/chat/completions" && has_tools)
            || path.ends_with(":streamGenerateContent");
        self.method == "POST" && is_reply
    }
}

impl ApiRequestLog {
    fn lock(&self) -> MutexGuard<'_, ApiRequestLogState> {
        self.state.lock().unwrap()
    }

    /// Records a request and returns its number.
    fn record_request(&self, request: ApiRequest) -> usize {
        let mut state = self.lock();
        state.requests.push(request);
        self.changed.notify_all();
        state.requests.len()
    }

    /// Counts another failure of a step, unless it has failed `times` times already.
    fn fails_again(&self, key: &str, times: u32) -> bool {
        let mut state = self.lock();
        let count = state.failures.entry(key.to_owned()).or_default();
        let again = *count < times;
        *count += u32::from(again);
        again
    }
}

async fn handle(State(seen): State<Arc<ApiRequestLog>>, request: Request<Body>) -> Response {
    let (head, body) = request.into_parts();
    let raw: Bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap_or_default();
    let body: Json = serde_json::from_slice(&raw).unwrap_or(Json::Null);
    let headers = head.headers.iter().map(|(name, value)| {
        (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
    });
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let request = ApiRequest {
        method: head.method.to_string(),
        path,
        headers: headers.collect(),
        body: body.clone(),
    };
    let number = seen.record_request(request);
    match (head.method, head.uri.path()) {
        (Method::HEAD | Method::GET, "/") => StatusCode::OK.into_response(),
        (Method::POST, "/v1/messages/count_tokens") => {
            axum::Json(json!({"input_tokens": raw.len().div_ceil(4)})).into_response()
        }
        (Method::POST, "/v1/messages") => {
            let step = script::pick_step(&body, |key, times| seen.fails_again(key, times));
            reply::reply(step, &body, number).await
        }
        (Method::POST, "/mcp") => mcp::reply(&body),
        (Method::POST, "/v1/responses") => {
            let messages = openai::messages(&body);
            let step = script::pick_step(&messages, |key, times| seen.fails_again(key, times));
            openai::reply(step, &body, number).await
        }
        (Method::POST, "/v1/chat/completions") => {
            let messages = chat_completions::messages(&body);
            let scripted =
                || script::pick_step(&messages, |key, times| seen.fails_again(key, times));
            let step = chat_completions::side_step(&body).unwrap_or_else(scripted);
            chat_completions::reply(step, &body, number).await
        }
        (Method::GET, "/v1/models") => {
            axum::Json(json!({"object": "list", "data": []})).into_response()
        }
        (Method::POST, path) if path.ends_with(":countTokens") => {
            axum::Json(json!({"totalTokens": raw.len().div_ceil(4)})).into_response()
        }
        (Method::POST, path) if path.ends_with("enerateContent") => {
            let messages = gemini::messages(&body);
            let scripted =
                || script::pick_step(&messages, |key, times| seen.fails_again(key, times));
            let step = gemini::side_step(&body).unwrap_or_else(scripted);
            gemini::reply(step, &body, path.ends_with(":streamGenerateContent")).await
        }
        _ => reply::error(404, "not_found_error", "there is no such address", number),
    }
}

#[cfg(test)]
mod tests;
