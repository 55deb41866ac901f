//! The HTTP server of a fake service, on a thread of its own.
//!
//! Start at [`FakeServer::start`].

use std::thread::JoinHandle;

use axum::Router;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// A running server; dropping it stops it.
#[derive(Debug)]
pub(crate) struct FakeServer {
    url: String,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl FakeServer {
    /// Serves a router on a free port of this machine.
    pub(crate) fn start(router: Router) -> FakeServer {
        let (stop, stopped) = oneshot::channel();
        let (address, url) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                address.send(format!("http://{}", listener.local_addr().unwrap())).unwrap();
                tokio::select! {
                    served = axum::serve(listener, router) => served.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        FakeServer { url: url.recv().unwrap(), stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "a fake service panicked");
        }
    }
}
