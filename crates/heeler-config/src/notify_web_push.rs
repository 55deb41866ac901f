//! Settings of notices to browsers.
//!
//! Start at [`NotifyWebPush`].

use url::Url;

use crate::github::is_safe_for_credentials;
use crate::notify::NotifyKeys;
use crate::reader::{ConfigReader, SourceSpan};
use crate::shape::section;
use crate::web::WebOrigin;

section! {
    /// Notices to browsers by Web Push.
    pub struct NotifyWebPush ("notify.web_push") {
        /// Push services that are used besides those of Google, Mozilla, Apple and Microsoft, such as `https://push.example.com`. The daemon sends requests there.
        services: Vec<WebOrigin>,
        /// Address at which a push service can reach you, such as `mailto:ann@example.com`. Apple demands one. Defaults to `link_base`, if that begins with `https://`.
        contact: Option<String>,
    }
}

impl NotifyWebPush {
    /// Refuses settings that cannot be honoured.
    pub(crate) fn check(&self, at: SourceSpan, reader: &mut ConfigReader) {
        for service in self.services.iter().filter(|it| !is_safe_for_credentials(it.as_str())) {
            let message = format!("{} is not a safe push service", service.as_str());
            reader.error(at, message).expected("expected an address that begins with https://");
        }
        if let Some(contact) = &self.contact
            && !is_contact(contact)
        {
            let message = format!("`{contact}` is not a contact");
            let expected =
                "expected an address such as mailto:ann@example.com or https://example.com";
            reader.error(at, message).expected(expected);
        }
    }
}

impl NotifyKeys {
    /// Refuses channels to which no browser can be added.
    pub(crate) fn check_dashboard(&self, has_dashboard: bool, reader: &mut ConfigReader) {
        for (name, channel) in &self.channels {
            if !has_dashboard && channel.value.web_push == Some(true) {
                let message = format!("the channel `{name}` needs the dashboard");
                reader.error(channel.at, message).expected("set `web.enabled` to true");
            }
        }
    }
}

fn is_contact(text: &str) -> bool {
    let Ok(url) = text.parse::<Url>() else { return false };
    match url.scheme() {
        "https" => true,
        "mailto" => url
            .path()
            .split_once('@')
            .is_some_and(|(name, domain)| !name.is_empty() && !domain.is_empty()),
        _ => false,
    }
}
