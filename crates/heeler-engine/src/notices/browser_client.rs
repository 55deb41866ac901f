//! Clients of browsers, with the key of the fleet.
//!
//! Start at [`browser_client`].

use heeler_config::{FleetConfig, NotifyConfig};
use heeler_model::error_chain;
use heeler_notify::{BrowserKeysText, NoticeClient, PushEndpoint, PushKey, PushReceiver};
use heeler_store::{PushBrowser, StateDatabase, WEB_PUSH_KEY};
use jiff::Timestamp;

use super::page_link;

/// Returns the client of a browser; fails with the reason.
pub(super) fn browser_client(
    root: &FleetConfig,
    db: &StateDatabase,
    browser: &PushBrowser,
    now: Timestamp,
) -> Result<NoticeClient, String> {
    let stored = db.meta(WEB_PUSH_KEY).map_err(|error| error_chain(&error))?;
    let stored =
        stored.ok_or("the key of Web Push is missing: remove the browser and add it again")?;
    let config = root.notify.as_ref();
    let services = config.map(NotifyConfig::push_services).unwrap_or_default();
    // The config may have changed since the browser was added.
    let endpoint = PushEndpoint::parse(&browser.endpoint, services)?;
    let settings = config.and_then(|config| config.web_push.as_ref());
    let contact = settings.and_then(|it| it.contact.clone()).or_else(|| default_contact(root));
    let PushBrowser { public_key, auth_secret, .. } = browser;
    let keys = BrowserKeysText { public_key, auth_secret };
    PushReceiver::new(PushKey::parse(&stored)?, contact, endpoint, keys, now)
        .map(|receiver| NoticeClient::WebPush(Box::new(receiver)))
}

/// Returns the address of the dashboard, if push services accept it.
fn default_contact(root: &FleetConfig) -> Option<String> {
    page_link(root, "").filter(|link| link.starts_with("https://"))
}

/// Returns the reason why a channel for browsers reaches no person.
pub(super) fn browser_problem(
    config: &NotifyConfig,
    channel: &str,
    db: Option<&StateDatabase>,
) -> Option<String> {
    let browsers = db.and_then(|db| db.push_browsers_of(channel).ok()).unwrap_or_default();
    if browsers.is_empty() {
        return Some(
            "no browser was added: open the settings page of the dashboard, and choose \
             `Notify this browser`"
                .to_owned(),
        );
    }
    let services = config.push_services();
    browsers.iter().find_map(|browser| {
        let problem = PushEndpoint::parse(&browser.endpoint, services).err()?;
        Some(format!("{} ({}): {problem}", browser.label, browser.id))
    })
}
