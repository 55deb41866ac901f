//! A conversation with a fleet: what holds its parts together. Start at [`hold`].

mod fleet;
mod plain;

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use heeler_chat::{Happened, Shown, Talk, Wish};
use tokio::signal::unix::{SignalKind, signal};

pub(crate) use self::fleet::DaemonFleet;
use self::plain::Plain;
use crate::failure::Outcome;
use crate::place;

/// How many things wait to be taken; whoever has one more waits.
const INPUTS_MAX: usize = 1024;
/// How often time passes for a conversation.
const TICK: Duration = Duration::from_millis(500);
/// How often it is tried again to write what a disk did not take.
const STUCK_TICK: Duration = Duration::from_millis(100);

/// What a conversation takes.
pub(crate) enum Input {
    /// Of a person.
    Wish(Wish),
    /// Of the fleet.
    Happened(Happened),
}

/// Returns where a conversation is told of things.
pub(crate) fn inputs() -> (SyncSender<Input>, Receiver<Input>) {
    sync_channel(INPUTS_MAX)
}

/// Makes every signal that ends a process a wish to leave.
pub(crate) fn on_signals(tell: SyncSender<Input>) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let guard = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    drop(guard);
    std::thread::spawn(move || {
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hangup.recv() => {}
                }
                if tell.send(Input::Wish(Wish::Leave)).is_err() {
                    return;
                }
            }
        });
    });
    Ok(())
}

/// Holds a conversation in lines until it ends.
pub(crate) fn hold_plain(talk: &mut Talk, tell: SyncSender<Input>, inputs: &Receiver<Input>) -> Outcome {
    let mut face = Plain::new(tell);
    let mut shows = |talk: &mut Talk, heard: bool| -> Outcome {
        if heard {
            face.heard();
        }
        for shown in talk.shown() {
            // Whoever read has gone: the conversation ends as it should.
            if face.show(&shown).is_err() && !talk.is_over() {
                talk.wish(Wish::Leave, place::now());
            }
        }
        face.settle();
        Ok(())
    };
    run(talk, inputs, &mut shows)
}

/// Hands in what comes, and time, until the conversation is over.
fn run(
    talk: &mut Talk,
    inputs: &Receiver<Input>,
    shows: &mut dyn FnMut(&mut Talk, bool) -> Outcome,
) -> Outcome {
    let mut next_tick = Instant::now() + TICK;
    shows(talk, false)?;
    while !talk.is_over() {
        if talk.is_stuck() {
            std::thread::sleep(STUCK_TICK);
            talk.tick(place::now());
            shows(talk, false)?;
            continue;
        }
        let wait = next_tick.saturating_duration_since(Instant::now());
        let heard = match inputs.recv_timeout(wait) {
            Ok(Input::Wish(wish)) => {
                let is_line = matches!(wish, Wish::Say(_));
                talk.wish(wish, place::now());
                is_line
            }
            Ok(Input::Happened(happened)) => {
                talk.happened(happened, place::now());
                false
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                talk.tick(place::now());
                next_tick = Instant::now() + TICK;
                false
            }
        };
        shows(talk, heard)?;
    }
    Ok(())
}
