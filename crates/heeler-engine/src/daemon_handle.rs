//! The handle through which every caller sends commands to the dispatcher.
//!
//! Start at [`DaemonHandle`].

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use heeler_model::RunId;

use crate::caller::{Caller, PeerIdentity};
use crate::capability::HookGrants;
use crate::chat::{SlackCall, WaitingSlackCall};
use crate::command::{
    CommandReply, DaemonCommand, DaemonCommandError, DaemonCommandErrorKind,
    DispatcherStoppedError, IdempotencyKey, PendingReply, ReplyCallback,
};
use crate::dispatch_input::DispatchInput;

/// Capacity of the dispatcher's input channel. Senders block while it is full.
pub(crate) const INPUTS_MAX: usize = 1024;

/// Cloneable handle to the dispatcher. Every holder may send commands.
#[derive(Clone)]
pub struct DaemonHandle {
    inputs: SyncSender<DispatchInput>,
    caller: Caller,
    hook_grants: HookGrants,
}

impl DaemonHandle {
    /// Creates a handle and the receiver for the dispatcher.
    pub(crate) fn channel(hook_grants: HookGrants) -> (DaemonHandle, Receiver<DispatchInput>) {
        let (inputs, receiver) = sync_channel(INPUTS_MAX);
        (DaemonHandle { inputs, caller: Caller::Person, hook_grants }, receiver)
    }

    /// Creates a handle that passes every command to a function on a separate thread, which ends
    /// with the last handle. For tests of code that sends commands.
    #[cfg(any(test, feature = "fault-points"))]
    pub fn scripted(
        mut each: impl FnMut(DaemonCommand, ReplyCallback) + Send + 'static,
    ) -> DaemonHandle {
        let (handle, inputs) = DaemonHandle::channel(HookGrants::default());
        std::thread::spawn(move || {
            for input in inputs {
                if let DispatchInput::Command { command, pending: owed, .. } = input {
                    each(command, owed.reply);
                }
            }
        });
        handle
    }

    /// Returns a handle with another caller. A process of a run may create jobs and cancel those;
    /// it may not control the fleet that runs it.
    pub fn with_caller(&self, by: Caller) -> DaemonHandle {
        DaemonHandle { caller: by, ..self.clone() }
    }

    /// Returns true if a text is the capability of a hook that the daemon executes.
    pub fn is_hook_capability(&self, run: RunId, text: &str) -> bool {
        self.hook_grants.is_capability(run, text)
    }

    /// Returns the holder of a capability that a process presents. The agent's process of a
    /// conversation has the capability of its first run, which counts for the run that it executes.
    pub fn holder_in_turn(&self, peer: PeerIdentity, holder: Caller) -> Caller {
        match (holder, peer.runner()) {
            (Caller::Run(first), Some(run)) if self.hook_grants.is_handed_over(first, run) => {
                Caller::Run(run)
            }
            _ => holder,
        }
    }

    /// Sends a command. Blocks while the dispatcher's input channel is full.
    ///
    /// If the dispatcher stops before it has executed the command, the reply is
    /// [`DispatcherStoppedError`].
    pub fn send(
        &self,
        command: DaemonCommand,
        reply: ReplyCallback,
    ) -> Result<(), DispatcherStoppedError> {
        self.send_once(command, None, reply)
    }

    /// Sends a command with an idempotency key: a command that was already executed under the key
    /// is not executed again.
    pub fn send_once(
        &self,
        command: DaemonCommand,
        key: Option<IdempotencyKey>,
        reply: ReplyCallback,
    ) -> Result<(), DispatcherStoppedError> {
        // The guard replies if the command is dropped anywhere on its way.
        let mut unanswered = ReplyGuard(Some(reply));
        let reply: ReplyCallback = Box::new(move |answer| unanswered.send(answer));
        let (by, owed) = (self.caller, PendingReply { reply, key, waits_for_views: true });
        self.inputs
            .send(DispatchInput::Command { command, caller: by, pending: owed })
            // The guard in the returned input replies to the caller too.
            .map_err(|_| DispatcherStoppedError)
    }

    pub(crate) fn send_input(&self, input: DispatchInput) -> Result<(), DispatcherStoppedError> {
        self.inputs.send(input).map_err(|_| DispatcherStoppedError)
    }

    /// Sends an input if there is room. Returns true if it was sent.
    pub(crate) fn try_send_input(&self, input: DispatchInput) -> bool {
        self.inputs.try_send(input).is_ok()
    }

    /// Makes the daemon look for messages on GitHub at once. Without room it looks at its next time.
    pub fn look_at_github(&self) {
        let _sent = self.try_send_input(DispatchInput::GithubChanged);
    }

    /// Passes a call of Slack on. The reply comes after the commit of the event; it is an error if the event
    /// is not recorded.
    pub fn pass_slack_call(&self, call: SlackCall, reply: ReplyCallback) {
        let mut unanswered = ReplyGuard(Some(reply));
        let reply: ReplyCallback = Box::new(move |answer| unanswered.send(answer));
        let pending = PendingReply::after_commit(reply);
        let call = Box::new(WaitingSlackCall { call, pending });
        // The guard in a dropped input replies.
        let _sent = self.try_send_input(DispatchInput::SlackCall(call));
    }

    /// Sends a command and waits for its reply.
    pub fn send_and_wait(
        &self,
        command: DaemonCommand,
    ) -> Result<CommandReply, DaemonCommandError> {
        let (sender, receiver) = sync_channel(1);
        // Sending fails only if this thread has ended, and then no reply is needed.
        let reply: ReplyCallback = Box::new(move |answer| drop(sender.send(answer)));
        self.send(command, reply)?;
        let lost = || {
            DaemonCommandError::new(
                DaemonCommandErrorKind::Trouble,
                "the daemon ended before it answered",
            )
        };
        receiver.recv().unwrap_or_else(|_| Err(lost()))
    }
}

/// Replies with an error when dropped unused. The dispatcher replies to every command it executes,
/// so a dropped command was not executed, unless the dispatcher panicked.
struct ReplyGuard(Option<ReplyCallback>);

impl ReplyGuard {
    fn send(&mut self, answer: Result<CommandReply, DaemonCommandError>) {
        if let Some(reply) = self.0.take() {
            reply(answer);
        }
    }
}

impl Drop for ReplyGuard {
    fn drop(&mut self) {
        // After a panic it is unknown whether the command was executed. No error is sent, because
        // the caller would retry.
        if !std::thread::panicking() {
            self.send(Err(DispatcherStoppedError.into()));
        }
    }
}

impl std::fmt::Debug for DaemonHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Handle")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_asks_hears_the_answer() {
        let handle = DaemonHandle::scripted(|command, reply| {
            reply(match command {
                DaemonCommand::Reload => Ok(CommandReply::Reloaded { changes: Vec::new() }),
                _ => Err(DaemonCommandError::new(DaemonCommandErrorKind::NotFound, "no")),
            });
        });
        assert_eq!(
            handle.send_and_wait(DaemonCommand::Reload),
            Ok(CommandReply::Reloaded { changes: Vec::new() })
        );
        let refused = handle.send_and_wait(DaemonCommand::Status).unwrap_err();
        assert_eq!(refused.kind, DaemonCommandErrorKind::NotFound);
    }

    #[test]
    fn a_dispatcher_that_ends_refuses_what_it_did_not_answer() {
        let (handle, inputs) = DaemonHandle::channel(HookGrants::default());
        let ending = std::thread::spawn(move || drop(inputs.recv()));
        assert_eq!(handle.send_and_wait(DaemonCommand::Reload), Err(DispatcherStoppedError.into()));
        ending.join().unwrap();
        assert_eq!(
            handle.send(DaemonCommand::Reload, Box::new(|_| {})),
            Err(DispatcherStoppedError)
        );
        assert_eq!(handle.send_and_wait(DaemonCommand::Reload), Err(DispatcherStoppedError.into()));
    }

    #[test]
    fn of_what_a_dispatcher_dies_of_nobody_knows_whether_it_was_done() {
        let handle = DaemonHandle::scripted(|_, _reply| panic!("it dies of it"));
        let lost = handle.send_and_wait(DaemonCommand::Reload).unwrap_err();
        assert_eq!(lost.message, "the daemon ended before it answered");
    }
}
