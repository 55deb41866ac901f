//! Links: one thread for each bot, which receives events and acknowledges those that are recorded.
//!
//! A link decides nothing. An event that could not be recorded is not acknowledged, so the platform
//! delivers it again. A link that cannot reach its platform tries again, and its state says so. Start
//! at [`ChatLinks::update`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use heeler_connect::{
    ChatApiError, ChatContent, ChatPlatform, TelegramBot, TelegramUser, parse_update,
};
use heeler_model::daemon_status::{ChatLinkState, ChatLinkStatus};
use jiff::Timestamp;
use serde_json::Value as Json;

use super::credential::{ChatCredential, chat_credentials};
use crate::command::{CommandReply, DaemonCommandError, PendingReply, ReplyCallback};
use crate::daemon_handle::DaemonHandle;
use crate::dispatch_input::DispatchInput;
use crate::fault::{self, FaultPoint};
use crate::setup::DaemonSetup;

/// Time for which a platform may hold a request for events.
const POLL_WAIT: Duration = Duration::from_secs(25);

/// Pause after the first failed attempt. Each further pause is twice as long.
const PAUSE_FIRST: Duration = Duration::from_millis(500);

/// Longest pause. A link that works again is used again within this time.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Interval at which a pausing link looks whether it must end.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// The links of a daemon.
#[derive(Debug, Default)]
pub(crate) struct ChatLinks {
    /// Config for which the links were made.
    setup: Option<Arc<DaemonSetup>>,
    links: Vec<ChatLink>,
    /// Reasons why some agents have no link.
    problems: Vec<String>,
}

#[derive(Debug)]
struct ChatLink {
    credential: ChatCredential,
    stop: Arc<AtomicBool>,
    status: Arc<Mutex<ChatLinkStatus>>,
}

impl Drop for ChatLink {
    fn drop(&mut self) {
        // The thread ends by itself. It may wait for its platform, so it is not awaited.
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl ChatLinks {
    /// Starts and ends links so that they fit a config. Those of unchanged credentials stay.
    pub(crate) fn update(
        &mut self,
        setup: &Arc<DaemonSetup>,
        dispatcher: &DaemonHandle,
        clock: fn() -> Timestamp,
    ) {
        if self.setup.as_ref().is_some_and(|known| Arc::ptr_eq(known, setup)) {
            return;
        }
        self.setup = Some(Arc::clone(setup));
        let (credentials, problems) = chat_credentials(&setup.loaded, &setup.env);
        self.problems = problems;
        self.links.retain(|link| credentials.contains(&link.credential));
        for credential in credentials {
            if self.links.iter().any(|link| link.credential == credential) {
                continue;
            }
            match ChatLink::start(credential, dispatcher.clone(), clock) {
                Ok(link) => self.links.push(link),
                Err(error) => self.problems.push(format!("cannot start a link: {error}")),
            }
        }
    }

    /// Ends all links.
    pub(crate) fn stop(&mut self) {
        self.links.clear();
    }

    /// Returns the state of all links.
    pub(crate) fn statuses(&self) -> Vec<ChatLinkStatus> {
        self.links.iter().map(|link| lock(&link.status).clone()).collect()
    }

    /// Returns the reasons why some agents have no link.
    pub(crate) fn problems(&self) -> &[String] {
        &self.problems
    }
}

impl ChatLink {
    fn start(
        credential: ChatCredential,
        dispatcher: DaemonHandle,
        clock: fn() -> Timestamp,
    ) -> std::io::Result<ChatLink> {
        let status = ChatLinkStatus {
            platform: credential.platform.to_string(),
            account: credential.account.clone(),
            state: ChatLinkState::Connecting,
            since: clock(),
            last_event_at: None,
            problem: None,
        };
        let (stop, status) = (Arc::<AtomicBool>::default(), Arc::new(Mutex::new(status)));
        let worker = LinkWorker {
            dispatcher,
            clock,
            stop: Arc::clone(&stop),
            status: Arc::clone(&status),
            pause: PAUSE_FIRST,
        };
        let of_thread = credential.clone();
        // A thread of its own, so that no other work delays an acknowledgement.
        std::thread::Builder::new().name("heeler-link".to_owned()).spawn(
            move || match of_thread.platform {
                ChatPlatform::Telegram => worker.run_telegram(&of_thread),
            },
        )?;
        Ok(ChatLink { credential, stop, status })
    }
}

/// The thread of a link.
struct LinkWorker {
    dispatcher: DaemonHandle,
    clock: fn() -> Timestamp,
    stop: Arc<AtomicBool>,
    status: Arc<Mutex<ChatLinkStatus>>,
    pause: Duration,
}

/// An event that was passed to the dispatcher.
struct PassedUpdate {
    id: i64,
    /// Receives the reply; `None` for an update that is no event.
    reply: Option<Receiver<Result<CommandReply, DaemonCommandError>>>,
    /// ID by which a click is answered.
    callback: Option<String>,
}

impl LinkWorker {
    fn run_telegram(mut self, credential: &ChatCredential) {
        let ChatCredential { api_url, token, variable, .. } = credential;
        // The form of the token was checked with the credential.
        let Ok(bot) = TelegramBot::new(api_url, token, variable) else { return };
        let mut user: Option<TelegramUser> = None;
        let mut offset = 0;
        while !self.is_stopped() {
            let received = match &user {
                None => bot.own_user().map(|own| {
                    user = Some(own);
                    Vec::new()
                }),
                Some(_) => bot.updates(offset, POLL_WAIT),
            };
            match (received, &user) {
                (Ok(updates), Some(user)) => {
                    self.note_contact();
                    offset = self.pass_updates(&bot, user, &updates, offset);
                }
                (Ok(_), None) => {}
                (Err(error), _) => self.pause_after(&error),
            }
        }
    }

    /// Passes updates to the dispatcher, and returns the offset that confirms the recorded ones.
    fn pass_updates(
        &mut self,
        bot: &TelegramBot,
        user: &TelegramUser,
        updates: &[Json],
        offset: i64,
    ) -> i64 {
        let passed: Vec<PassedUpdate> =
            updates.iter().filter_map(|update| self.pass_update(update, user)).collect();
        let (mut offset, mut clicks) = (offset, Vec::new());
        for PassedUpdate { id, reply, callback } in passed {
            let recorded = match reply {
                None => Ok(CommandReply::Done { message: String::new() }),
                // A dispatcher that ends drops its reply; the next daemon receives the update again.
                Some(reply) => reply
                    .recv()
                    .unwrap_or_else(|_| Err(crate::command::DispatcherStoppedError.into())),
            };
            match recorded {
                Ok(answer) => {
                    offset = id + 1;
                    clicks.extend(callback.map(|callback| (callback, answer)));
                }
                // Later updates of the answer may be recorded; they are recognized when they come
                // again.
                Err(refused) => {
                    self.note_problem(format!(
                        "a message is not recorded yet: {}",
                        refused.message
                    ));
                    self.rest();
                    break;
                }
            }
        }
        fault::reach(FaultPoint::ChatRecorded);
        for (callback, answer) in clicks {
            let CommandReply::Done { message } = answer else { continue };
            // Only the person's screen waits for it.
            if let Err(error) = bot.answer_click(&callback, &message) {
                tracing::debug!(%error, "a click was not answered");
            }
        }
        offset
    }

    fn pass_update(&self, update: &Json, user: &TelegramUser) -> Option<PassedUpdate> {
        let id = update["update_id"].as_i64()?;
        let Some(event) = parse_update(update, user) else {
            return Some(PassedUpdate { id, reply: None, callback: None });
        };
        lock(&self.status).last_event_at = Some((self.clock)());
        let callback = match &event.content {
            ChatContent::Click { callback, .. } => Some(callback.clone()),
            _ => None,
        };
        fault::reach(FaultPoint::ChatReceived);
        let (sender, receiver) = sync_channel(1);
        let reply: ReplyCallback = Box::new(move |answer| drop(sender.send(answer)));
        let pending = PendingReply { reply, key: None };
        let input = DispatchInput::ChatEvent { event: Box::new(event), pending };
        // Without a dispatcher the receiver reports it.
        let _stopped = self.dispatcher.send_input(input);
        Some(PassedUpdate { id, reply: Some(receiver), callback })
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn note_contact(&mut self) {
        self.pause = PAUSE_FIRST;
        self.set_state(ChatLinkState::Connected, None);
    }

    fn note_problem(&self, problem: String) {
        let state = ChatLinkState::Failed;
        if lock(&self.status).problem.as_ref() != Some(&problem) {
            tracing::warn!(problem, "a chat platform is not connected");
        }
        self.set_state(state, Some(problem));
    }

    fn set_state(&self, state: ChatLinkState, problem: Option<String>) {
        let mut status = lock(&self.status);
        if status.state != state {
            status.since = (self.clock)();
        }
        (status.state, status.problem) = (state, problem);
    }

    fn pause_after(&mut self, error: &ChatApiError) {
        if self.is_stopped() {
            return;
        }
        self.note_problem(error.to_string());
        // A refused token may be accepted later, for example after a failure of the platform.
        if !error.is_transient() {
            self.pause = PAUSE_MAX;
        }
        self.pause = self.pause.max(error.retry_after().unwrap_or_default());
        self.rest();
    }

    /// Pauses, for longer each time.
    fn rest(&mut self) {
        let until = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        while !self.is_stopped() && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            std::thread::park_timeout(left.min(STOP_CHECK_INTERVAL));
        }
    }
}

fn lock(status: &Mutex<ChatLinkStatus>) -> MutexGuard<'_, ChatLinkStatus> {
    status.lock().unwrap_or_else(PoisonError::into_inner)
}
