//! Accepting connections: who may talk, how many at once, and how it ends.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use heeler_engine::Handle;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use crate::bodies::Hello;
use crate::routes::router;

/// How many connections are served at once; more wait until one is closed.
pub(crate) const CONNECTIONS_MAX: usize = 256;

/// How long a connection may say nothing between two requests.
const IDLE_WAIT: Duration = Duration::from_secs(30);

/// How long those that still wait for an answer are given when the server ends.
const END_WAIT: Duration = Duration::from_secs(5);

/// How long nothing is accepted after that has failed: files may have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// How many connections are open. A daemon that ends when it is idle is not while there is one.
#[derive(Debug, Clone)]
pub struct Connections {
    open: Arc<AtomicUsize>,
    room: Arc<Semaphore>,
}

impl Default for Connections {
    fn default() -> Connections {
        let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        Connections { open: Arc::default(), room }
    }
}

impl Connections {
    /// Returns the number of open connections, which changes by itself.
    pub fn open(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.open)
    }

    /// Waits until one more may be opened.
    async fn room(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.room).acquire_owned().await.expect("the semaphore is never closed")
    }

    /// Counts a connection that was accepted, until what is returned is dropped.
    fn count(&self, room: OwnedSemaphorePermit) -> Counted {
        self.open.fetch_add(1, Ordering::SeqCst);
        Counted { open: self.open(), _room: room }
    }
}

/// A connection that counts.
struct Counted {
    open: Arc<AtomicUsize>,
    _room: OwnedSemaphorePermit,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Serves a socket until `stop`; requests that wait for an answer by then are given a moment.
pub async fn serve(
    listener: UnixListener,
    handle: Handle,
    version: &str,
    connections: &Connections,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let hello = Hello { pid: std::process::id(), version: version.to_owned() };
    let router = router(handle, hello);
    let (ending, ended) = watch::channel(false);
    let mut open = JoinSet::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        while open.try_join_next().is_some() {}
        let accepted = tokio::select! {
            () = &mut stop => break,
            accepted = accept(&listener, connections) => accepted,
        };
        match accepted {
            Ok((stream, counted)) => {
                let (router, ended) = (router.clone(), ended.clone());
                open.spawn(async move {
                    talk(stream, router, ended).await;
                    drop(counted);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    ending.send_replace(true);
    let all = async { while open.join_next().await.is_some() {} };
    if tokio::time::timeout(END_WAIT, all).await.is_err() {
        tracing::warn!("{} connections were cut off", open.len());
    }
    Ok(())
}

/// Accepts the next connection of somebody who may talk to us.
async fn accept(
    listener: &UnixListener,
    connections: &Connections,
) -> io::Result<(UnixStream, Counted)> {
    loop {
        let room = connections.room().await;
        let (stream, _) = listener.accept().await?;
        let counted = connections.count(room);
        let peer = stream.peer_cred()?.uid();
        if may_talk(peer, rustix::process::geteuid().as_raw()) {
            return Ok((stream, counted));
        }
        tracing::warn!("user {peer} may not talk to this daemon");
    }
}

/// Says whether a user may steer a daemon of another: only the same one and root.
fn may_talk(peer: u32, own: u32) -> bool {
    peer == own || peer == 0
}

async fn talk(stream: UnixStream, router: Router, mut ended: watch::Receiver<bool>) {
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(IDLE_WAIT);
    let service = TowerToHyperService::new(router);
    let mut connection = std::pin::pin!(server.serve_connection(TokioIo::new(stream), service));
    let done = tokio::select! {
        done = connection.as_mut() => done,
        () = async { drop(ended.wait_for(|ended| *ended).await) } => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = done {
        tracing::debug!(%error, "a connection broke off");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_user_and_root_may_steer_a_daemon() {
        assert!(may_talk(1000, 1000));
        assert!(may_talk(0, 1000));
        assert!(!may_talk(1001, 1000));
        assert!(!may_talk(1000, 0));
    }
}
