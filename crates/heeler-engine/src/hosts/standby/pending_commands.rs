//! Commands that a standby has passed on and that have no answer yet. Start at [`PendingCommands`].

use std::time::{Duration, Instant};

use heeler_model::daemon_status::DaemonStatus;
use heeler_model::error_chain;
use heeler_store::HostLink;

use super::super::host_message::ForwardedReply;
use crate::command::{
    CommandReply, DaemonCommandError, DaemonCommandErrorKind, DispatcherStoppedError, ReplyCallback,
};

/// Interval at which answers are looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Longest wait for a leader that takes a command.
const LEADER_WAIT: Duration = Duration::from_secs(20);

/// The same for the status, which this host can answer in part.
const STATUS_WAIT: Duration = Duration::from_secs(5);

/// Commands that were passed on.
#[derive(Default)]
pub(super) struct PendingCommands {
    pending: Vec<PendingCommand>,
    polled_at: Option<Instant>,
}

struct PendingCommand {
    id: String,
    body: String,
    reply: ReplyCallback,
    /// Answer to the status command if no leader answers.
    instead: Option<Box<DaemonStatus>>,
    /// True if the row is in the database.
    is_sent: bool,
    /// True if a leader has begun to execute it.
    is_taken: bool,
    deadline: Instant,
}

impl PendingCommand {
    /// Inserts the row. A repeated insertion has no effect.
    fn send(&mut self, link: &HostLink) {
        match link.send_command(&self.id, &self.body) {
            Ok(()) => self.is_sent = true,
            Err(error) => {
                tracing::warn!(reason = error_chain(&error), "a command is passed on later");
            }
        }
    }

    fn refuse(self, text: &str) {
        let (reply, instead) = (self.reply, self.instead);
        reply(match instead {
            Some(status) => Ok(CommandReply::Status(status)),
            None => Err(DaemonCommandError::new(DaemonCommandErrorKind::Busy, text)
                .with_hint("heeler host list")),
        });
    }
}

impl PendingCommands {
    /// Passes a command on.
    pub(super) fn send(
        &mut self,
        link: Option<&HostLink>,
        body: String,
        reply: ReplyCallback,
        instead: Option<Box<DaemonStatus>>,
    ) {
        let wait = if instead.is_some() { STATUS_WAIT } else { LEADER_WAIT };
        let mut command = PendingCommand {
            id: uuid::Uuid::new_v4().to_string(),
            body,
            reply,
            instead,
            is_sent: false,
            is_taken: false,
            deadline: Instant::now() + wait,
        };
        if let Some(link) = link {
            command.send(link);
        }
        self.pending.push(command);
    }

    /// Returns the time of the next look for answers.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        let is_waiting = !self.pending.is_empty();
        is_waiting.then(|| self.polled_at.map_or_else(Instant::now, |at| at + POLL_INTERVAL))
    }

    /// Answers callers whose command was executed, or that no leader took in time.
    pub(super) fn poll(&mut self, link: Option<&HostLink>) {
        if self.wake_at().is_none_or(|at| at > Instant::now()) {
            return;
        }
        if let Some(link) = link {
            self.fetch_replies(link);
        }
        self.polled_at = Some(Instant::now());
        let is_late = |it: &mut PendingCommand| !it.is_taken && it.deadline <= Instant::now();
        let late: Vec<PendingCommand> = self.pending.extract_if(.., is_late).collect();
        for command in late {
            match link.map(|link| link.withdraw_command(&command.id)) {
                Some(Ok(true)) => command.refuse("no host leads the fleet at present"),
                // It was taken just now, or removed because of its age.
                Some(Ok(false)) if command.is_sent => {
                    let deadline = Instant::now() + LEADER_WAIT;
                    self.pending.push(PendingCommand { deadline, is_taken: true, ..command });
                }
                Some(Ok(false)) => command.refuse("the database cannot be reached"),
                Some(Err(_)) | None => command.refuse(
                    "the database cannot be reached; it is not known if the command is executed",
                ),
            }
        }
    }

    fn fetch_replies(&mut self, link: &HostLink) {
        for command in self.pending.iter_mut().filter(|command| !command.is_sent) {
            command.send(link);
        }
        let ids: Vec<String> = self.pending.iter().map(|command| command.id.clone()).collect();
        let rows = match link.replies(&ids) {
            Ok(rows) => rows,
            Err(error) => {
                tracing::warn!(reason = error_chain(&error), "cannot read the leader's answers");
                return;
            }
        };
        // A server that took over may lack the row, and then also what the leader has changed because of it.
        let is_lost =
            |it: &&mut PendingCommand| it.is_sent && rows.iter().all(|row| row.id != it.id);
        for lost in self.pending.iter_mut().filter(is_lost) {
            tracing::warn!(id = lost.id, "the database has lost a command; it is passed on again");
            (lost.is_sent, lost.is_taken) = (false, false);
            lost.deadline = Instant::now() + LEADER_WAIT;
        }
        for row in rows {
            let Some(at) = self.pending.iter().position(|command| command.id == row.id) else {
                continue;
            };
            self.pending[at].is_taken |= row.is_taken;
            let Some(text) = row.reply else { continue };
            let command = self.pending.swap_remove(at);
            let reply = serde_json::from_str::<ForwardedReply>(&text);
            (command.reply)(match reply {
                Ok(reply) => reply.into_result(),
                Err(error) => {
                    let text = format!("the leader's answer cannot be read: {error}");
                    Err(DaemonCommandError::new(DaemonCommandErrorKind::Trouble, text)
                        .with_hint("use the same release of heeler on all hosts"))
                }
            });
            // An answer that stays is removed later because of its age.
            if let Err(error) = link.forget_command(&row.id) {
                tracing::debug!(reason = error_chain(&error), "an answer stays on record");
            }
        }
    }

    /// Answers all callers at the end of this host's standby. A command that no leader took is not
    /// executed, and the caller may repeat it.
    pub(super) fn abandon(&mut self, link: Option<&HostLink>) {
        for command in self.pending.drain(..) {
            let is_withdrawn = !command.is_sent
                || link.is_some_and(|link| link.withdraw_command(&command.id).unwrap_or(false));
            (command.reply)(Err(match is_withdrawn {
                true => DispatcherStoppedError.into(),
                false => DaemonCommandError::new(
                    DaemonCommandErrorKind::Trouble,
                    "this host stopped before the leader answered; the command may be executed",
                ),
            }));
        }
    }
}
