//! Queue of a watch: events of the job, answers of the daemon, and Ctrl-C. Start at
//! [`JobEventListener`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use heeler_engine::{CommandReply, DaemonCommand};

use super::keyboard::on_interrupt;
use super::watch_event::JobWatchEvent;
use crate::context::CommandContext;
use crate::daemon;
use crate::failure::CommandResult;

/// Events that may wait to be shown. Beyond this, the threads that send events wait. The run never
/// waits: a feed reads the rows from its transcript.
pub(crate) const QUEUED_EVENTS_MAX: usize = 1024;

/// Receiver of a job's events, created before the job starts.
pub(crate) struct JobEventListener {
    sender: SyncSender<JobWatchEvent>,
    events: Receiver<JobWatchEvent>,
    interrupted: bool,
}

impl JobEventListener {
    /// Starts to handle Ctrl-C, which then no longer ends this process.
    pub(crate) fn new() -> CommandResult<JobEventListener> {
        let (sender, events) = sync_channel(QUEUED_EVENTS_MAX);
        let interrupts = sender.clone();
        // Fails only if the watch has ended.
        on_interrupt(move || drop(interrupts.send(JobWatchEvent::Interrupt)))?;
        Ok(JobEventListener { sender, events, interrupted: false })
    }

    /// Requests a job from the daemon. Ctrl-C aborts this until the daemon has received the
    /// request.
    pub(crate) fn request_job(
        &mut self,
        context: &CommandContext,
        command: DaemonCommand,
    ) -> CommandResult<CommandReply> {
        let is_given_up = Arc::new(AtomicBool::new(false));
        let (context, sender) = (context.clone(), self.sender.clone());
        let given_up = Arc::clone(&is_given_up);
        // A thread, so that Ctrl-C is seen while the daemon starts or clones a repository.
        std::thread::spawn(move || {
            let is_given_up = || given_up.load(Ordering::Relaxed);
            let answer = daemon::request_unless(&context, &command, &is_given_up);
            // Fails only if this function has returned.
            drop(sender.send(JobWatchEvent::DaemonAnswer(answer)));
        });
        loop {
            match self.events.recv().expect("the listener itself can tell") {
                JobWatchEvent::DaemonAnswer(answer) => return answer,
                JobWatchEvent::Interrupt => {
                    // If the daemon has the request already, the watch cancels the job.
                    self.interrupted = true;
                    is_given_up.store(true, Ordering::Relaxed);
                }
                _ => {}
            }
        }
    }

    /// Returns the sender and receiver of events, and true if Ctrl-C was pressed already.
    pub(crate) fn into_parts(self) -> (SyncSender<JobWatchEvent>, Receiver<JobWatchEvent>, bool) {
        (self.sender, self.events, self.interrupted)
    }
}
