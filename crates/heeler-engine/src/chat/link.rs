//! Links: one thread for each bot, which receives events and acknowledges those that are recorded.
//!
//! A link decides nothing. An event that could not be recorded is not acknowledged, so the platform
//! delivers it again. A link that cannot reach its platform tries again, and its state says so. Start
//! at [`ChatLinks::update`].

use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};

use heeler_connect::ChatPlatform;
use heeler_model::daemon_status::{ChatLinkState, ChatLinkStatus};

use super::credential::{ChatCredential, chat_credentials};
use super::discord_link::run_discord;
use super::github_link::run_github;
use super::link_worker::{LinkSignals, LinkWorker, SharedSetup, lock};
use super::rate_limits::rate_limit_count;
use super::slack_call::WaitingSlackCall;
use super::slack_calls::{CALLS_MAX, run_slack_calls};
use super::slack_link::run_slack;
use super::telegram_link::run_telegram;
use crate::command::DispatcherStoppedError;
use crate::daemon_handle::DaemonHandle;
use crate::dispatch_input::DispatchInput;
use crate::fleet::EngineContext;
use crate::setup::DaemonSetup;

/// The links of a daemon.
#[derive(Debug, Default)]
pub(crate) struct ChatLinks {
    /// Config for which the links were made.
    setup: Option<SharedSetup>,
    /// False until the links fit the config.
    is_updated: bool,
    links: Vec<ChatLink>,
    /// Reasons why some agents have no link.
    problems: Vec<String>,
}

#[derive(Debug)]
struct ChatLink {
    credential: ChatCredential,
    signals: Arc<LinkSignals>,
    status: Arc<Mutex<ChatLinkStatus>>,
    /// Calls of Slack for the link.
    calls: Option<SyncSender<Box<WaitingSlackCall>>>,
}

impl Drop for ChatLink {
    fn drop(&mut self) {
        // The thread ends by itself. It may wait for its platform, so it is not awaited.
        self.signals.stop();
    }
}

impl ChatLinks {
    /// Starts and ends links so that they fit a config. Those of unchanged credentials stay.
    pub(crate) fn update(
        &mut self,
        setup: &Arc<DaemonSetup>,
        dispatcher: &DaemonHandle,
        fleet: &EngineContext,
    ) {
        let shared = self.setup.get_or_insert_with(|| Arc::new(Mutex::new(Arc::clone(setup))));
        let is_known = Arc::ptr_eq(&lock(shared), setup);
        if is_known && self.is_updated {
            return;
        }
        *lock(shared) = Arc::clone(setup);
        self.is_updated = true;
        let shared = Arc::clone(shared);
        let (credentials, problems) = chat_credentials(&setup.loaded, &setup.env);
        self.problems = problems;
        self.links.retain(|link| credentials.contains(&link.credential));
        for credential in credentials {
            if self.links.iter().any(|link| link.credential == credential) {
                continue;
            }
            match ChatLink::start(credential, dispatcher.clone(), fleet, &shared) {
                Ok(link) => self.links.push(link),
                Err(error) => self.problems.push(format!("cannot start a link: {error}")),
            }
        }
    }

    /// Ends all links.
    pub(crate) fn stop(&mut self) {
        self.links.clear();
        self.is_updated = false;
    }

    /// Takes an input that concerns links: they look for messages, or take a call. Others are ignored.
    pub(crate) fn take_input(&self, input: DispatchInput) {
        match input {
            DispatchInput::SlackCall(call) => self.pass_slack_call(call),
            DispatchInput::GithubChanged => self.wake(ChatPlatform::Github),
            _ => {}
        }
    }

    /// Makes the links of a platform look for messages at once.
    fn wake(&self, platform: ChatPlatform) {
        let links = self.links.iter().filter(|link| link.credential.platform == platform);
        links.for_each(|link| link.signals.wake());
    }

    /// Passes a call of Slack to its link. It is refused if there is none, or if too many calls wait.
    fn pass_slack_call(&self, call: Box<WaitingSlackCall>) {
        let is_meant = |link: &&ChatLink| {
            let ChatCredential { platform, account, .. } = &link.credential;
            *platform == ChatPlatform::Slack && *account == call.call.account
        };
        let calls = self.links.iter().find(is_meant).and_then(|link| link.calls.as_ref());
        let refused = match calls.map(|calls| calls.try_send(call)) {
            None | Some(Ok(())) => return,
            Some(Err(TrySendError::Full(call) | TrySendError::Disconnected(call))) => call,
        };
        refused.pending.send(Err(DispatcherStoppedError.into()));
    }

    /// Returns the state of all links.
    pub(crate) fn statuses(&self) -> Vec<ChatLinkStatus> {
        let status = |link: &ChatLink| {
            let status = lock(&link.status).clone();
            let rate_limits = rate_limit_count(&status.platform, &status.account);
            ChatLinkStatus { rate_limits, ..status }
        };
        self.links.iter().map(status).collect()
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
        fleet: &EngineContext,
        setup: &SharedSetup,
    ) -> std::io::Result<ChatLink> {
        let status = ChatLinkStatus {
            platform: credential.platform.to_string(),
            account: credential.account.clone(),
            state: ChatLinkState::Connecting,
            since: (fleet.now)(),
            last_event_at: None,
            record_ms: None,
            rate_limits: 0,
            problem: None,
        };
        let (signals, status) = (Arc::<LinkSignals>::default(), Arc::new(Mutex::new(status)));
        let worker = LinkWorker::new(
            dispatcher,
            fleet,
            Arc::clone(setup),
            Arc::clone(&signals),
            Arc::clone(&status),
        );
        let of_thread = credential.clone();
        let (sender, calls) = sync_channel(CALLS_MAX);
        let is_called = credential.signing_secret.is_some();
        // A thread of its own, so that no other work delays an acknowledgement.
        std::thread::Builder::new().name("heeler-link".to_owned()).spawn(
            move || match of_thread.platform {
                ChatPlatform::Telegram => run_telegram(worker, &of_thread),
                ChatPlatform::Slack if is_called => run_slack_calls(worker, &of_thread, &calls),
                ChatPlatform::Slack => run_slack(worker, &of_thread),
                ChatPlatform::Discord => run_discord(worker, &of_thread),
                ChatPlatform::Github => run_github(worker, &of_thread),
            },
        )?;
        let calls = is_called.then_some(sender);
        Ok(ChatLink { credential, signals, status, calls })
    }
}
