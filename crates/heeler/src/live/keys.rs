//! Ctrl-C, and what a person types.

use std::io::{self, BufRead as _};
use std::sync::mpsc::SyncSender;

use tokio::signal::unix::{SignalKind, signal};

use super::Event;

/// Tells each Ctrl-C from now on, instead of ending this process.
pub(crate) fn on_interrupt(tell: SyncSender<Event>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let guard = runtime.enter();
    let mut interrupts = signal(SignalKind::interrupt())?;
    drop(guard);
    std::thread::spawn(move || {
        runtime.block_on(async {
            while interrupts.recv().await.is_some() {
                if tell.send(Event::Interrupt).is_err() {
                    return;
                }
            }
        });
    });
    Ok(())
}

/// Tells each line that is typed from now on, and the end of them.
pub(crate) fn read_lines(tell: SyncSender<Event>) {
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if tell.send(Event::Typed(Some(line))).is_err() {
                return;
            }
        }
        // Where nobody listens any more there is nobody to tell.
        let _told = tell.send(Event::Typed(None));
    });
}
