//! API route that streams a session bundle, as `heeler session export` writes it.
//!
//! A thread writes the bundle, at most a few chunks ahead of the client. An error before the first
//! chunk is sent as a problem. A later error cuts the reply off without its end: HTTP clients
//! detect that, and `session import` detects it by the checksums at the end of a bundle.

use std::io::{self, BufWriter, Write};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream::{self, StreamExt as _};
use heeler_model::{AccessScope, error_chain};
use heeler_query::export::{SessionExport, SnapshotInclusion};
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::{JoinHandle, spawn_blocking};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api_routes::ApiRoutes;
use super::path_params::IdPathParams;
use crate::caller::RequestCaller;
use crate::extractors::{PathParams, QueryParams};
use crate::problem::ProblemDetails;
use crate::server_state::SharedServerState;

/// Size of a chunk.
const CHUNK_BYTES: usize = 64 << 10;

/// Chunks that wait for the client; then the writing thread waits.
const CHUNKS_MAX: usize = 2;

/// Media type of a bundle. It is JSON, but may be too large to parse at once.
const BUNDLE_TYPE: &str = "application/vnd.heeler.session+json";

pub(super) fn routes() -> ApiRoutes {
    ApiRoutes { operate: OpenApiRouter::new().routes(routes!(export)), ..ApiRoutes::default() }
}

/// Export options.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ExportSessionParams {
    /// Include the snapshots of the session's files. They may contain secrets, and files deleted
    /// since. Needs the scope `admin`.
    #[serde(default)]
    workspace: bool,
}

/// Download a session as one file that `heeler session import` reads.
///
/// The file holds the session's record, its jobs, all messages and all tool results, without the
/// fleet's secrets. A reply that is cut off has no end.
#[utoipa::path(
    get, path = "/sessions/{id}/export", tag = "sessions", params(IdPathParams, ExportSessionParams),
    responses((status = OK, body = Object, content_type = BUNDLE_TYPE)),
)]
async fn export(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
    QueryParams(params): QueryParams<ExportSessionParams>,
) -> Result<Response, ProblemDetails> {
    let files =
        if params.workspace { SnapshotInclusion::Included } else { SnapshotInclusion::Excluded };
    // Snapshots may contain secrets, and files that were deleted since.
    if files == SnapshotInclusion::Included && caller.scope < AccessScope::Admin {
        let detail = format!("{} may not export files: this needs the scope admin", caller.name);
        return Err(ProblemDetails::new(StatusCode::FORBIDDEN, "not-allowed", detail));
    }
    // Acquired before the records are read, so that a refusal costs nothing.
    let permit = app.expensive_reads.acquire_export()?;
    let export = app.read(move |records| records.export(&id, files)).await?;
    let name = format!("attachment; filename=\"{}.json\"", export.session.id);
    let mut sending =
        SessionExportStream::start(permit, move |pieces| write_export(&export, pieces));
    let first = match sending.next().await {
        Some(Ok(first)) => first,
        Some(Err(error)) => {
            return Err(
                ProblemDetails::internal_error(error_chain(&error)).with_hint("heeler doctor")
            );
        }
        None => Bytes::new(),
    };
    let rest = stream::unfold(sending, async |mut sending: SessionExportStream| {
        Some((sending.next().await?, sending))
    });
    let pieces = stream::once(async { Ok(first) }).chain(rest);
    let headers = [(CONTENT_TYPE, BUNDLE_TYPE), (CONTENT_DISPOSITION, name.as_str())];
    Ok((headers, Body::from_stream(pieces)).into_response())
}

/// Session bundle that is being sent.
struct SessionExportStream {
    chunks: mpsc::Receiver<Bytes>,
    /// Thread that writes the chunks; taken when its result has been returned.
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl SessionExportStream {
    fn start(
        permit: OwnedSemaphorePermit,
        write: impl FnOnce(ExportChannelWriter) -> io::Result<()> + Send + 'static,
    ) -> SessionExportStream {
        let (sender, pieces) = mpsc::channel(CHUNKS_MAX);
        let thread = spawn_blocking(move || {
            // The thread may outlive the request, and counts until it ends.
            let _permit = permit;
            write(ExportChannelWriter(sender))
        });
        SessionExportStream { chunks: pieces, thread: Some(thread) }
    }

    /// Returns the next chunk or the error; `None` at the end.
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        if let Some(piece) = self.chunks.recv().await {
            return Some(Ok(piece));
        }
        // The channel closes when the thread ends, so this does not wait long.
        let failed = match self.thread.take()?.await {
            Ok(Ok(())) => return None,
            Ok(Err(error)) => error,
            Err(error) => io::Error::other(error),
        };
        tracing::error!(why = error_chain(&failed), "cannot export a session");
        Some(Err(failed))
    }
}

fn write_export(export: &SessionExport, pieces: ExportChannelWriter) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(CHUNK_BYTES, pieces);
    match export.write(&mut out) {
        Ok(_) => out.flush(),
        Err(error) => {
            // A plain drop would flush the buffer, and the reply would look complete.
            drop(out.into_parts());
            Err(io::Error::other(error))
        }
    }
}

/// Writer that passes chunks to the reply. Fails as soon as the client is gone.
struct ExportChannelWriter(mpsc::Sender<Bytes>);

impl Write for ExportChannelWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // `BufWriter` passes a large write on unbuffered, so it is split here.
        let piece = &bytes[..bytes.len().min(CHUNK_BYTES)];
        let sent = self.0.blocking_send(Bytes::copy_from_slice(piece));
        sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::expensive_reads::{EXPORTS_MAX, ExpensiveReads};

    /// Reads the whole stream; returns the number of bytes and whether the bundle is complete.
    async fn take(mut sending: SessionExportStream) -> (usize, bool) {
        let mut count = 0;
        while let Some(piece) = sending.next().await {
            match piece {
                Ok(piece) => count += piece.len(),
                Err(_) => {
                    assert!(sending.next().await.is_none(), "an error is told once");
                    return (count, false);
                }
            }
        }
        (count, true)
    }

    fn sending(
        write: impl FnOnce(ExportChannelWriter) -> io::Result<()> + Send + 'static,
    ) -> SessionExportStream {
        SessionExportStream::start(ExpensiveReads::default().acquire_export().unwrap(), write)
    }

    #[tokio::test]
    async fn what_breaks_off_is_told_from_what_is_whole() {
        let bytes = vec![b'x'; 10 * CHUNK_BYTES + 7];
        let (whole, length) = (bytes.clone(), bytes.len());
        assert_eq!(take(sending(move |mut to| to.write_all(&whole))).await, (length, true));
        let broken = sending(move |mut to| {
            to.write_all(&bytes)?;
            Err(io::Error::other("the disk has had enough"))
        });
        assert_eq!(take(broken).await, (length, false));
        let panics = sending(|mut to| {
            to.write_all(b"begun")?;
            panic!("a fault of ours")
        });
        assert_eq!(take(panics).await, (5, false));
    }

    #[tokio::test]
    async fn so_many_are_sent_at_once_and_no_more() {
        let temp = tempfile::tempdir().unwrap();
        let folder = camino::Utf8Path::from_path(temp.path()).unwrap();
        let handle = heeler_engine::DaemonHandle::scripted(|_, _| {});
        let app = crate::tests::app(folder, handle, "agents: []", BTreeMap::new());
        let ask = async || {
            let (state, id) =
                (State(app.clone()), PathParams(IdPathParams { id: "sess-1".to_owned() }));
            let caller = RequestCaller {
                name: "me".to_owned(),
                scope: AccessScope::Operate,
                engine_caller: heeler_engine::Caller::Unknown,
                csrf_token: None,
            };
            let asked = QueryParams(ExportSessionParams { workspace: false });
            export(state, caller, id, asked).await.unwrap_err().kind
        };
        let take_all = || -> Vec<_> {
            (0..EXPORTS_MAX).map(|_| app.expensive_reads.acquire_export().unwrap()).collect()
        };
        let taken = take_all();
        assert_eq!(ask().await, "too-many");
        drop(taken);
        assert_ne!(ask().await, "too-many");
        // A failed export releases its permit.
        drop(take_all());
    }

    #[tokio::test]
    async fn whoever_goes_away_ends_the_thread_which_was_only_a_little_ahead() {
        let (told, ended) = std::sync::mpsc::channel();
        let mut sending = sending(move |mut to| {
            let mut pieces = 0;
            while to.write_all(&[0; CHUNK_BYTES]).is_ok() {
                pieces += 1;
            }
            told.send(pieces).unwrap();
            Err(io::ErrorKind::BrokenPipe.into())
        });
        sending.next().await.unwrap().unwrap();
        drop(sending);
        let pieces = tokio::task::spawn_blocking(move || ended.recv().unwrap()).await.unwrap();
        assert!((1..=1 + CHUNKS_MAX).contains(&pieces), "{pieces}");
    }
}
