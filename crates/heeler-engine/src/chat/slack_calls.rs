//! Link to Slack by HTTP: Slack calls the daemon for each event.
//!
//! The server checks the signature of a call and passes it on. It is answered after the commit, and Slack
//! repeats a call that is not answered within 3 s. After a time without a daemon, the messages of that
//! time are read from the channels. Start at [`run_slack_calls`].

use std::sync::mpsc::{Receiver, RecvTimeoutError, TrySendError};
use std::time::Duration;

use heeler_connect::{ChatContent, ChatEvent, SlackBot, render_slack};

use super::credential::ChatCredential;
use super::link_worker::{LinkTasks, LinkWorker, done_message};
use super::slack_call::WaitingSlackCall;
use super::slack_catch_up::SlackGap;
use super::slack_event_reader::SlackEventReader;
use super::slack_link::ask_own_user;
use crate::command::{CommandReply, PendingReply, ReplyCallback};
use crate::fault::{self, FaultPoint};

/// Most calls that wait for the link.
pub(super) const CALLS_MAX: usize = 64;

/// Interval at which the link looks whether it must end.
const IDLE_WAIT: Duration = Duration::from_millis(200);

/// Receives calls until the link is stopped.
pub(super) fn run_slack_calls(
    mut worker: LinkWorker,
    credential: &ChatCredential,
    calls: &Receiver<Box<WaitingSlackCall>>,
) {
    let bot = credential.slack_bot();
    let Some(own) = ask_own_user(&mut worker, &bot) else { return };
    let mut reader = SlackEventReader::new(&bot, own, &credential.account);
    let (gaps, tasks) = match (reader.start_catch_up(&worker), LinkTasks::new()) {
        (Ok(gaps), Ok(tasks)) => (gaps, tasks),
        (Err(error), _) | (_, Err(error)) => {
            worker.note_problem(format!("cannot start a thread: {error}"));
            return;
        }
    };
    // Before the first call: later messages must not hide those of the gap.
    while !worker.is_stopped() {
        match SlackGap::begin(&worker, &credential.account) {
            Ok(gap) => {
                if let Err(TrySendError::Full(_)) = gaps.try_send(gap) {
                    worker.note_limitation("the messages of a gap are not read yet".to_owned());
                }
                break;
            }
            Err(reason) => {
                worker.note_problem(format!("cannot record the time without a link: {reason}"));
                worker.rest();
            }
        }
    }
    worker.note_contact();
    while !worker.is_stopped() {
        match calls.recv_timeout(IDLE_WAIT) {
            Ok(waiting) => {
                let WaitingSlackCall { call, pending } = *waiting;
                let event = reader.read_call(&worker, call.kind.envelope(), &call.payload);
                match event {
                    Some(event) => pass_event(&worker, (&bot, &tasks), event, pending),
                    // What no person wrote is received and has no effect.
                    None => pending.send(Ok(CommandReply::Done { message: String::new() })),
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Passes an event on. The caller is answered after the commit.
fn pass_event(
    worker: &LinkWorker,
    (bot, tasks): (&SlackBot, &LinkTasks),
    event: ChatEvent,
    pending: PendingReply,
) {
    let is_command = matches!(event.content, ChatContent::Command { .. });
    let whisper = match &event.content {
        // The answer to a click is no part of the response.
        ChatContent::Click { .. } => {
            let (bot, tasks) = (bot.clone(), tasks.clone());
            Some((bot, tasks, event.place.clone(), event.sender.id.clone()))
        }
        _ => None,
    };
    let reply: ReplyCallback = Box::new(move |answer| {
        fault::reach(FaultPoint::ChatRecorded);
        let answer = match whisper {
            Some((bot, tasks, place, user)) => answer.map(|reply| {
                let text = done_message(reply);
                if !text.is_empty() {
                    tasks.start(move || {
                        // Only the person's screen waits for it.
                        if let Err(error) = bot.whisper(&place, &user, &text) {
                            tracing::debug!(%error, "a click was not answered");
                        }
                    });
                }
                CommandReply::Done { message: String::new() }
            }),
            None if is_command => answer
                .map(|reply| CommandReply::Done { message: render_slack(&done_message(reply)) }),
            None => answer,
        };
        pending.send(answer);
    });
    worker.pass_event_to(event, reply);
}
