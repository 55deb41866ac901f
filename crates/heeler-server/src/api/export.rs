//! A session as one file, sent while it is made: what `heeler session export` writes.
//!
//! It is made by a thread that is only a few pieces ahead of whoever takes it. What fails before the
//! first piece is a problem; after that the reply breaks off without its end, which clients tell from
//! a whole one, and so does `session import` by the sums that a bundle ends with.

use std::io::{self, BufWriter, Write};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream::{self, StreamExt as _};
use heeler_model::{Scope, chain};
use heeler_query::export::{Files, SessionExport};
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::{JoinHandle, spawn_blocking};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Routes;
use super::paths::ById;
use crate::app::App;
use crate::caller::Caller;
use crate::problem::Problem;
use crate::request::{Asked, Named};

/// How much is sent at a time.
const PIECE_BYTES: usize = 64 << 10;

/// How many pieces wait for whoever takes them; then the thread does.
const PIECES_MAX: usize = 2;

/// Says what is sent. It is JSON of a size that nobody should parse at once.
const BUNDLE_TYPE: &str = "application/vnd.heeler.session+json";

pub(super) fn routes() -> Routes {
    Routes { operate: OpenApiRouter::new().routes(routes!(export)), ..Routes::default() }
}

/// What to export.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ExportParams {
    /// With the snapshots of its files, which may hold secrets, also such as were deleted since: this
    /// needs the scope `admin`.
    #[serde(default)]
    workspace: bool,
}

/// Download a session as one file, which `heeler session import` reads: its record, its jobs, all that
/// was said and all that tools gave, without the fleet's secrets. A reply that breaks off has no end.
#[utoipa::path(
    get, path = "/sessions/{id}/export", tag = "sessions", params(ById, ExportParams),
    responses((status = OK, body = Object, content_type = BUNDLE_TYPE)),
)]
async fn export(
    State(app): State<App>,
    caller: Caller,
    Named(ById { id }): Named<ById>,
    Asked(asked): Asked<ExportParams>,
) -> Result<Response, Problem> {
    let files = if asked.workspace { Files::Included } else { Files::LeftOut };
    if files == Files::Included && caller.scope < Scope::Admin {
        let detail = format!("{} may not have files: that needs the scope admin", caller.by);
        return Err(Problem::new(StatusCode::FORBIDDEN, "not-allowed", detail));
    }
    let room = app.costly.export()?;
    let export = app.read(move |records| records.export(&id, files)).await?;
    let name = format!("attachment; filename=\"{}.json\"", export.session.id);
    let mut sending = Sending::start(room, move |pieces| write(&export, pieces));
    let first = match sending.next().await {
        Some(Ok(first)) => first,
        Some(Err(error)) => return Err(Problem::trouble(chain(&error)).hint("heeler doctor")),
        None => Bytes::new(),
    };
    let rest = stream::unfold(sending, async |mut sending: Sending| {
        Some((sending.next().await?, sending))
    });
    let pieces = stream::once(async { Ok(first) }).chain(rest);
    let headers = [(CONTENT_TYPE, BUNDLE_TYPE), (CONTENT_DISPOSITION, name.as_str())];
    Ok((headers, Body::from_stream(pieces)).into_response())
}

/// A session that is being sent.
struct Sending {
    pieces: mpsc::Receiver<Bytes>,
    /// Makes them; taken when it has said how it ended.
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Sending {
    fn start(
        room: OwnedSemaphorePermit,
        write: impl FnOnce(Pieces) -> io::Result<()> + Send + 'static,
    ) -> Sending {
        let (sender, pieces) = mpsc::channel(PIECES_MAX);
        let thread = spawn_blocking(move || {
            let _room = room;
            write(Pieces(sender))
        });
        Sending { pieces, thread: Some(thread) }
    }

    /// Returns the next piece, or why there is none; `None` at the end of all.
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        if let Some(piece) = self.pieces.recv().await {
            return Some(Ok(piece));
        }
        let failed = match self.thread.take()?.await {
            Ok(Ok(())) => return None,
            Ok(Err(error)) => error,
            Err(error) => io::Error::other(error),
        };
        tracing::error!(why = chain(&failed), "cannot export a session");
        Some(Err(failed))
    }
}

fn write(export: &SessionExport, pieces: Pieces) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(PIECE_BYTES, pieces);
    match export.write(&mut out) {
        Ok(_) => out.flush(),
        Err(error) => {
            // Dropped as it is, it would send what it holds.
            drop(out.into_parts());
            Err(io::Error::other(error))
        }
    }
}

/// Hands over what is written; fails as soon as nobody takes it any more.
struct Pieces(mpsc::Sender<Bytes>);

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = &bytes[..bytes.len().min(PIECE_BYTES)];
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
    use crate::costly::{Costly, EXPORTS_MAX};

    /// Takes all that is sent; returns how many bytes came and whether they are all.
    async fn take(mut sending: Sending) -> (usize, bool) {
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

    fn sending(write: impl FnOnce(Pieces) -> io::Result<()> + Send + 'static) -> Sending {
        Sending::start(Costly::default().export().unwrap(), write)
    }

    #[tokio::test]
    async fn what_breaks_off_is_told_from_what_is_whole() {
        let bytes = vec![b'x'; 10 * PIECE_BYTES + 7];
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
        let handle = heeler_engine::Handle::scripted(|_, _| {});
        let app = crate::tests::app(folder, handle, "agents: []", BTreeMap::new());
        let ask = async || {
            let (state, id) = (State(app.clone()), Named(ById { id: "sess-1".to_owned() }));
            let caller = Caller {
                by: "me".to_owned(),
                scope: Scope::Operate,
                origin: heeler_engine::Origin::Unknown,
                csrf: None,
            };
            let asked = Asked(ExportParams { workspace: false });
            export(state, caller, id, asked).await.unwrap_err().kind
        };
        let take_all =
            || -> Vec<_> { (0..EXPORTS_MAX).map(|_| app.costly.export().unwrap()).collect() };
        let taken = take_all();
        assert_eq!(ask().await, "too-many");
        drop(taken);
        assert_ne!(ask().await, "too-many");
        // One that fails keeps no room.
        drop(take_all());
    }

    #[tokio::test]
    async fn whoever_goes_away_ends_the_thread_which_was_only_a_little_ahead() {
        let (told, ended) = std::sync::mpsc::channel();
        let mut sending = sending(move |mut to| {
            let mut pieces = 0;
            while to.write_all(&[0; PIECE_BYTES]).is_ok() {
                pieces += 1;
            }
            told.send(pieces).unwrap();
            Err(io::ErrorKind::BrokenPipe.into())
        });
        sending.next().await.unwrap().unwrap();
        drop(sending);
        let pieces = tokio::task::spawn_blocking(move || ended.recv().unwrap()).await.unwrap();
        assert!((1..=1 + PIECES_MAX).contains(&pieces), "{pieces}");
    }
}
