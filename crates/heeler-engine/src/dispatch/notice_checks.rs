//! Checks of the dispatcher that concern notices to people, besides the events that cause them.
//!
//! Start at [`Dispatcher::check_chat_links`].

use heeler_model::daemon_status::ChatLinkState;
use heeler_model::error_chain;
use heeler_store::{DatabaseError, StoreReader, StoreWriteError};
use jiff::SignedDuration;

use super::dispatcher::Dispatcher;
use super::event::DispatchEvent;
use super::notifications::ALIVE_SINCE;
use crate::command::DaemonMode;
use crate::notices::{LinkNotice, channel_problems};

/// Time after which a notice says that a chat platform cannot be reached.
const LINK_DOWN_AFTER: SignedDuration = SignedDuration::from_secs(30);

/// Retention of notices that have ended.
const NOTICES_KEPT: SignedDuration = SignedDuration::from_hours(90 * 24);

/// Most notices that are looked at.
const NOTICES_MAX: usize = 2_000;

impl Dispatcher {
    /// Tells of chat platforms that cannot be reached, and of those that can be again.
    pub(super) fn check_chat_links(&mut self) {
        let now = (self.fleet.now)();
        let has_open_notices = self.state().has_open_notices;
        let mut changed = Vec::new();
        for link in self.deferred.chat_links.statuses() {
            let key = (link.platform.clone(), link.account.clone());
            let known = self.deferred.links_down.get(&key).copied();
            let is_long = now.duration_since(link.since) >= LINK_DOWN_AFTER;
            let down_since = match (link.state, known) {
                (ChatLinkState::Failed, None | Some(false)) if is_long => Some(link.since),
                (ChatLinkState::Connected, Some(true)) => None,
                // An earlier daemon may have sent a notice that it is down.
                (ChatLinkState::Connected, None) if has_open_notices => None,
                _ => continue,
            };
            self.deferred.links_down.insert(key, down_since.is_some());
            let problem = link.problem.unwrap_or_default();
            let (platform, account) = (link.platform, link.account);
            let notice = LinkNotice { platform, account, down_since, problem };
            changed.push((DispatchEvent::LinkChanged(Box::new(notice)), None));
        }
        if !changed.is_empty() {
            self.commit(changed);
        }
    }

    /// Records that this daemon ended in order, so that the next one does not tell of a crash.
    pub(super) fn note_orderly_end(&self) {
        if self.mode != DaemonMode::Permanent {
            return;
        }
        let noted: Result<(), StoreWriteError<DatabaseError>> =
            self.store.write(move |tx| tx.set_meta(ALIVE_SINCE, ""));
        // At worst the next daemon tells of a crash that was none.
        if let Err(error) = noted {
            tracing::warn!(reason = error_chain(&error), "cannot note that the daemon ended");
        }
    }

    /// Returns true if a notice is due that was never tried. A daemon for one command sends it before it
    /// exits; the others wait for the next daemon.
    pub(super) fn has_new_notices(&self, reader: &StoreReader) -> bool {
        let now = (self.fleet.now)();
        let waiting = reader.waiting_notices(NOTICES_MAX).unwrap_or_default();
        waiting.iter().any(|notice| notice.attempts == 0 && notice.due_at <= now)
    }

    /// Lists the channels that cannot be used or that fail.
    pub(super) fn notice_faults(&self) -> Vec<String> {
        let setup = std::sync::Arc::clone(&self.state().setup);
        let Some(config) = setup.root().and_then(|root| root.notify.as_ref()) else {
            return Vec::new();
        };
        let reader = StoreReader::open(&self.fleet.dir).ok();
        let mut faults = channel_problems(Some(config), &setup.env, reader.as_deref());
        let waiting = reader.and_then(|reader| reader.waiting_notices(NOTICES_MAX).ok());
        let waiting = waiting.unwrap_or_default();
        for channel in &config.channels {
            let own = waiting.iter().filter(|notice| notice.channel_name() == channel.name);
            let failed = own.clone().find(|notice| notice.attempts > 0);
            let Some(error) = failed.and_then(|notice| notice.last_error.as_deref()) else {
                continue;
            };
            faults.push(format!(
                "notices of the channel {} are not sent ({} wait): {error}",
                channel.name,
                own.count()
            ));
        }
        faults
    }

    /// Removes notices that ended long ago.
    pub(super) fn prune_notices(&self) {
        let Ok(before) = (self.fleet.now)().checked_sub(NOTICES_KEPT) else { return };
        let pruned: Result<(), StoreWriteError<DatabaseError>> =
            self.store.write(move |tx| tx.prune_notices(before));
        // Harmless, and the next commit reports a persistent problem.
        if let Err(error) = pruned {
            tracing::debug!(reason = error_chain(&error), "old notices are kept");
        }
    }
}
