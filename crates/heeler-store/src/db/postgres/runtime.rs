//! The thread that drives the sockets of all PostgreSQL connections of the process, and the wait for a
//! reply. Start at [`spawn`] and [`wait_for`].

use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::db::postgres_error::PostgresError;

/// Runs a task on the thread, which is started with the first one.
pub(super) fn spawn(task: impl Future<Output = ()> + Send + 'static) -> Result<(), PostgresError> {
    static DRIVER: OnceLock<Result<Handle, String>> = OnceLock::new();
    let driver = DRIVER.get_or_init(|| start_driver().map_err(|error| error.to_string()));
    match driver {
        Ok(handle) => {
            // The task belongs to its connection: it ends when the client is dropped.
            drop(handle.spawn(task));
            Ok(())
        }
        Err(why) => Err(PostgresError::Unusable(format!("cannot start a thread: {why}"))),
    }
}

fn start_driver() -> std::io::Result<Handle> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    // It lives as long as the process and holds nothing that must be written.
    std::thread::Builder::new()
        .name("heeler-postgres".to_owned())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
    Ok(handle)
}

/// Wakes a parked thread.
struct ThreadWaker(Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future on this thread; `None` after `limit`.
pub(super) fn wait_for<T>(future: impl Future<Output = T>, limit: Duration) -> Option<T> {
    let deadline = Instant::now() + limit;
    let waker = Waker::from(Arc::new(ThreadWaker(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return Some(value);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        // Another wake-up of this thread only makes the loop poll once more.
        std::thread::park_timeout(left);
    }
}
