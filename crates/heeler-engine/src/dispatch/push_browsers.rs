//! Applies changes of the browsers that receive notices, in a transaction.
//!
//! Start at [`DispatchTransaction::apply_browser_operation`].

use std::sync::Arc;

use heeler_config::{NotifyConfig, NotifyTarget, reveal_line};
use heeler_notify::{BrowserKeysText, PushEndpoint, PushKey};
use heeler_store::{DatabaseError, PushBrowser, WEB_PUSH_KEY, WEB_PUSH_PUBLIC_KEY};

use super::notifications::WAITING_MAX;
use super::transaction::DispatchTransaction;
use crate::browser_operation::{
    BROWSER_LABEL_CHARS_MAX, BROWSER_WAITING_MAX, BROWSERS_MAX, BROWSERS_PER_PERSON_MAX,
    BrowserOperation, NewBrowser,
};
use crate::command::{CommandReply, DaemonCommandError, DaemonCommandErrorKind};
use crate::dispatch_failure::DispatchFailure;
use crate::notices::NoticePlan;

/// Next step of a person in a fleet that has no channel for browsers.
const CHANNEL_HINT: &str =
    "add a channel to the fleet file: notify: {channels: {browsers: {web_push: true}}}";

impl DispatchTransaction<'_, '_> {
    pub(super) fn apply_browser_operation(
        &mut self,
        order: BrowserOperation,
        by: &str,
    ) -> Result<Option<CommandReply>, DispatchFailure> {
        tracing::info!(?order, by, "browsers");
        let message = match order {
            BrowserOperation::EnsureKey => self.ensure_push_key()?,
            BrowserOperation::Add(browser) => self.add_browser(*browser, by)?,
            BrowserOperation::Remove { browser, owner } => {
                self.remove_browser(&browser, owner.as_deref())?
            }
        };
        Ok(Some(CommandReply::Done { message }))
    }

    /// Creates the key of the fleet, unless there is one. Both parts are one commit, so none is ever
    /// replaced by a second one: the browsers would accept no message of that.
    fn ensure_push_key(&mut self) -> Result<String, DispatchFailure> {
        self.web_push_channels()?;
        if self.tx.meta(WEB_PUSH_PUBLIC_KEY)?.is_some() {
            return Ok("the key exists".to_owned());
        }
        let trouble = |reason| DaemonCommandError::new(DaemonCommandErrorKind::Trouble, reason);
        let stored = PushKey::generate().map_err(trouble)?;
        let public_key = PushKey::parse(&stored).map_err(trouble)?.public_key();
        self.tx.set_meta(WEB_PUSH_KEY, &stored)?;
        self.tx.set_meta(WEB_PUSH_PUBLIC_KEY, &public_key)?;
        Ok("the key is created".to_owned())
    }

    fn add_browser(&mut self, new: NewBrowser, owner: &str) -> Result<String, DispatchFailure> {
        let setup = Arc::clone(&self.state.setup);
        let channel = self.channel_for_browser(new.channel.as_deref())?;
        let config = setup.root().and_then(|root| root.notify.as_ref());
        let services = config.map(NotifyConfig::push_services).unwrap_or_default();
        PushEndpoint::parse(&new.endpoint, services).map_err(usage)?;
        let keys = BrowserKeysText { public_key: &new.public_key, auth_secret: &new.auth_secret };
        keys.check().map_err(usage)?;
        let id = PushBrowser::id_of(&new.endpoint);
        let others: Vec<_> =
            self.tx.push_browsers()?.into_iter().filter(|other| other.id != id).collect();
        let own = others.iter().filter(|other| other.owner == owner).count();
        let limits = [
            (own, BROWSERS_PER_PERSON_MAX, "a person can add"),
            (others.len(), BROWSERS_MAX, "a fleet has"),
        ];
        for (count, max, subject) in limits {
            if count >= max {
                let message = format!("{subject} at most {max} browsers");
                let refused = DaemonCommandError::new(DaemonCommandErrorKind::Busy, message);
                let hint = "remove one: heeler notify remove BROWSER";
                return Err(refused.with_hint(hint).into());
            }
        }
        let label: String = reveal_line(&new.label).chars().take(BROWSER_LABEL_CHARS_MAX).collect();
        let label = if label.trim().is_empty() { "a browser".to_owned() } else { label };
        let message = format!("{label} receives the notices of the channel {channel}");
        self.tx.put_push_browser(&PushBrowser {
            id,
            channel,
            owner: owner.to_owned(),
            label,
            added_at: self.now,
            endpoint: new.endpoint,
            public_key: new.public_key,
            auth_secret: new.auth_secret,
        })?;
        Ok(message)
    }

    fn remove_browser(&mut self, id: &str, owner: Option<&str>) -> Result<String, DispatchFailure> {
        // The browser of another person is as unknown as one that does not exist.
        let browsers = self.tx.push_browsers()?.into_iter();
        let browsers = browsers.filter(|it| owner.is_none_or(|owner| it.owner == owner));
        let mut found: Vec<_> = browsers.filter(|it| has_prefix(&it.id, id)).collect();
        let (Some(known), true) = (found.pop(), found.is_empty()) else {
            let (kind, message) = match found.is_empty() {
                true => (DaemonCommandErrorKind::NotFound, "no browser has the ID"),
                false => (DaemonCommandErrorKind::Usage, "several browsers have an ID with"),
            };
            let message = format!("{message} {}", reveal_line(id));
            let refused = DaemonCommandError::new(kind, message);
            return Err(refused.with_hint("heeler notify browsers").into());
        };
        self.tx.remove_push_browser(&known.id)?;
        Ok(format!("{} ({}) receives no notices any more", known.label, known.id))
    }

    /// Returns the names of the channels for browsers; fails if there is none.
    fn web_push_channels(&self) -> Result<Vec<String>, DispatchFailure> {
        let root = self.state.setup.root();
        let config = root.and_then(|root| root.notify.as_ref());
        let names = config.into_iter().flat_map(NotifyConfig::web_push_channels);
        let names: Vec<String> = names.map(str::to_owned).collect();
        if names.is_empty() {
            let message = "the config has no channel with `web_push`";
            let refused = DaemonCommandError::new(DaemonCommandErrorKind::NotFound, message);
            return Err(refused.with_hint(CHANNEL_HINT).into());
        }
        Ok(names)
    }

    /// Returns the channel that a browser is added to.
    fn channel_for_browser(&self, wanted: Option<&str>) -> Result<String, DispatchFailure> {
        let mut names = self.web_push_channels()?;
        let found = match wanted {
            Some(wanted) => names.iter().position(|name| name == wanted),
            None if names.len() == 1 => Some(0),
            None => {
                let message = format!("choose one of the channels {}", names.join(", "));
                return Err(usage(message).into());
            }
        };
        let Some(found) = found else {
            let wanted = reveal_line(wanted.unwrap_or_default());
            let message = format!("there is no channel `{wanted}` with `web_push`");
            let refused = DaemonCommandError::new(DaemonCommandErrorKind::NotFound, message);
            let hint = format!("choose one of the channels {}", names.join(", "));
            return Err(refused.with_hint(hint).into());
        };
        Ok(names.swap_remove(found))
    }

    /// Replaces the plan of a channel for browsers by one for each of its browsers, except those for
    /// which too many notices wait.
    pub(super) fn expand_plans(
        &self,
        config: &NotifyConfig,
        plans: Vec<NoticePlan>,
    ) -> Result<Vec<NoticePlan>, DatabaseError> {
        let mut expanded = Vec::new();
        for plan in plans {
            let channel = config.channel(&plan.channel);
            if !channel.is_some_and(|channel| channel.target == NotifyTarget::WebPush) {
                expanded.push(plan);
                continue;
            }
            let waiting = self.tx.waiting_notices(WAITING_MAX)?;
            for browser in self.tx.push_browsers_of(&plan.channel)? {
                let channel = browser.notice_channel();
                let count = waiting.iter().filter(|notice| notice.channel == channel).count();
                if count >= BROWSER_WAITING_MAX {
                    let browser = browser.id;
                    tracing::warn!(browser, "a notice is dropped: {count} others wait");
                    continue;
                }
                expanded.push(NoticePlan { channel, ..plan.clone() });
            }
        }
        Ok(expanded)
    }
}

/// Returns true if a text is the ID of a browser, or the beginning of its digits.
fn has_prefix(id: &str, text: &str) -> bool {
    let digits = text.strip_prefix("browser-").unwrap_or(text);
    let is_given = !digits.is_empty();
    is_given && id.strip_prefix("browser-").is_some_and(|known| known.starts_with(digits))
}

fn usage(message: String) -> DaemonCommandError {
    DaemonCommandError::new(DaemonCommandErrorKind::Usage, message)
}
