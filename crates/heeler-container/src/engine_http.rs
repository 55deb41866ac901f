//! One HTTP request to an engine, over its unix socket. Start at [`EngineHttp::request`].

use std::future::Future;
use std::io;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::http::response;
use hyper::{HeaderMap, Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::Value as Json;
use thiserror::Error;
use tokio::net::UnixStream;
use tokio_util::task::AbortOnDropHandle;

use crate::build_context::BuildContext;

/// Time that an engine has for a reply. It takes seconds on a busy machine.
const REPLY_TIME_MAX: Duration = Duration::from_secs(90);

/// Time between two parts of a long reply, such as the progress of a pull.
const PART_TIME_MAX: Duration = Duration::from_secs(300);

/// Limit on the length of a reply that is kept.
const REPLY_BYTES_MAX: usize = 8 << 20;

const JSON_TYPE: &str = "application/json";

const TAR_TYPE: &str = "application/x-tar";

/// Limit on the length of an engine's message in an error.
const MESSAGE_CHARS_MAX: usize = 400;

/// Failure of a request to an engine.
#[derive(Debug, Error)]
pub enum EngineError {
    /// The engine cannot be reached.
    #[error(
        "cannot reach the container engine at {socket}; start it, and check that this user may \
         use its socket"
    )]
    Unreachable {
        socket: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
    /// The engine has refused a request.
    #[error("the container engine cannot {attempt}: {message}")]
    Refused {
        attempt: String,
        status: u16,
        /// Message of the engine.
        message: String,
    },
    /// The engine has not replied, or not in the expected form.
    #[error("the container engine did not {attempt}: {reason}")]
    Broken { attempt: String, reason: String },
    /// The engine is too old.
    #[error(
        "the container engine offers API version {found}, and {needed} is needed; install a newer one"
    )]
    Version { found: String, needed: &'static str },
}

impl EngineError {
    /// Returns the HTTP status with which the engine refused the request.
    pub fn status(&self) -> Option<u16> {
        match self {
            EngineError::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }
}

/// Reply of an engine.
#[derive(Debug)]
pub(crate) struct EngineReply {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

/// Connection data of an engine. Each request has a connection of its own.
#[derive(Debug, Clone)]
pub(crate) struct EngineHttp {
    pub(crate) socket: Utf8PathBuf,
}

impl EngineHttp {
    pub(crate) fn new(socket: &Utf8Path) -> EngineHttp {
        EngineHttp { socket: socket.to_owned() }
    }

    /// Sends a request and returns the reply, if the engine accepts the request. `attempt` completes
    /// "the engine cannot".
    pub(crate) async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Json>,
        attempt: &str,
    ) -> Result<EngineReply, EngineError> {
        let content = Full::new(Bytes::from(body.map(Json::to_string).unwrap_or_default()));
        let (head, mut body, _connection) =
            self.send((method, path), (content, JSON_TYPE), attempt).await?;
        let bytes = read_reply(&mut body, attempt).await?;
        match head.status.is_success() || head.status == StatusCode::NOT_MODIFIED {
            true => Ok(EngineReply { headers: head.headers, body: bytes }),
            false => Err(refusal(head.status, &bytes, attempt)),
        }
    }

    /// Sends the files of a build, and passes the progress on as it comes.
    pub(crate) async fn upload(
        &self,
        path: &str,
        context: BuildContext,
        attempt: &str,
        on_part: &mut dyn FnMut(&[u8]),
    ) -> Result<(), EngineError> {
        let (head, mut body, _connection) =
            self.send((Method::POST, path), (context, TAR_TYPE), attempt).await?;
        if !head.status.is_success() {
            return Err(refusal(head.status, &read_reply(&mut body, attempt).await?, attempt));
        }
        while let Some(part) = next_part(&mut body, attempt).await? {
            on_part(&part);
        }
        Ok(())
    }

    async fn send<B>(
        &self,
        (method, path): (Method, &str),
        (content, content_type): (B, &str),
        attempt: &str,
    ) -> Result<(response::Parts, Incoming, AbortOnDropHandle<()>), EngineError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let unreachable = |source| EngineError::Unreachable { socket: self.socket.clone(), source };
        let broken = |error: hyper::Error| broken(attempt, error);
        let connect = UnixStream::connect(&self.socket);
        let stream = in_time(REPLY_TIME_MAX, connect, attempt).await?.map_err(unreachable)?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let connection = AbortOnDropHandle::new(tokio::spawn(async move {
            // A failure is seen by the request, too.
            drop(connection.await);
        }));
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("Host", "localhost")
            .header("Content-Type", content_type)
            .body(content)
            .map_err(|error| self::broken(attempt, error))?;
        // A large request has its time, too.
        let at_most = if content_type == TAR_TYPE { PART_TIME_MAX } else { REPLY_TIME_MAX };
        let reply = in_time(at_most, sender.send_request(request), attempt).await?;
        let (head, body) = reply.map_err(broken)?.into_parts();
        Ok((head, body, connection))
    }
}

async fn read_reply(body: &mut Incoming, attempt: &str) -> Result<Vec<u8>, EngineError> {
    let mut bytes = Vec::new();
    while let Some(part) = next_part(body, attempt).await? {
        // The end of a long stream of progress matters most, but only its parts are JSON.
        if bytes.len() + part.len() <= REPLY_BYTES_MAX {
            bytes.extend(part);
        }
    }
    Ok(bytes)
}

fn refusal(status: StatusCode, body: &[u8], attempt: &str) -> EngineError {
    let message = error_message(body);
    EngineError::Refused { attempt: attempt.to_owned(), status: status.as_u16(), message }
}

async fn next_part(body: &mut Incoming, attempt: &str) -> Result<Option<Bytes>, EngineError> {
    loop {
        match in_time(PART_TIME_MAX, body.frame(), attempt).await? {
            None => return Ok(None),
            Some(Err(error)) => return Err(broken(attempt, error)),
            Some(Ok(frame)) => {
                // Trailers are of no interest.
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

async fn in_time<T>(
    at_most: Duration,
    work: impl Future<Output = T>,
    attempt: &str,
) -> Result<T, EngineError> {
    let seconds = at_most.as_secs();
    let reason = format!("no reply within {seconds} s");
    tokio::time::timeout(at_most, work).await.map_err(|_| broken(attempt, reason))
}

pub(crate) fn broken(attempt: &str, reason: impl ToString) -> EngineError {
    EngineError::Broken { attempt: attempt.to_owned(), reason: reason.to_string() }
}

/// Returns the message of an engine, on one line.
fn error_message(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct RefusalBody {
        message: String,
    }
    let message = serde_json::from_slice::<RefusalBody>(body)
        .map_or_else(|_| String::from_utf8_lossy(body).into_owned(), |refusal| refusal.message);
    let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
    message.chars().take(MESSAGE_CHARS_MAX).collect()
}
