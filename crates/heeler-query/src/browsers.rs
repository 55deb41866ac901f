//! Browsers that receive notices by Web Push.

use heeler_config::{LoadedConfig, NotifyConfig};
use heeler_store::{PushBrowser, StateDatabase, WEB_PUSH_PUBLIC_KEY};
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::{FleetReader, QueryError};

/// Browsers that receive notices.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BrowserList {
    /// Public key of the fleet for push services, as base64. It is missing until the first browser is
    /// added.
    pub public_key: Option<String>,
    /// Channels of `notify` to which a browser can be added.
    pub channels: Vec<String>,
    /// Browsers, oldest first.
    pub browsers: Vec<BrowserSummary>,
}

/// A browser that receives notices.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BrowserSummary {
    /// ID of the browser: `browser-` and the beginning of the SHA-256 of its address.
    pub id: String,
    /// Description, such as `Firefox on Android`.
    pub label: String,
    /// Channel of `notify`.
    pub channel: String,
    /// Person who added it.
    pub owner: String,
    /// Host of its push service.
    pub service: String,
    /// Time at which it was added.
    #[schema(value_type = String, format = DateTime)]
    pub added_at: Timestamp,
    /// Time of the last notice that its push service accepted.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub sent_at: Option<Timestamp>,
}

impl BrowserSummary {
    fn read(db: &StateDatabase, browser: PushBrowser) -> Result<BrowserSummary, QueryError> {
        let last = db.last_notice(&browser.notice_channel(), "sent")?;
        // The rest of the address is a secret.
        let service = browser.endpoint.split("://").nth(1).and_then(|it| it.split('/').next());
        Ok(BrowserSummary {
            service: service.unwrap_or_default().to_owned(),
            id: browser.id,
            label: browser.label,
            channel: browser.channel,
            owner: browser.owner,
            added_at: browser.added_at,
            sent_at: last.and_then(|notice| notice.ended_at),
        })
    }
}

impl BrowserList {
    /// Lists browsers: those of a person, or all.
    pub fn read(
        db: &StateDatabase,
        config: Option<&LoadedConfig>,
        owner: Option<&str>,
    ) -> Result<BrowserList, QueryError> {
        let browsers = db.push_browsers()?.into_iter();
        let browsers = browsers.filter(|it| owner.is_none_or(|owner| it.owner == owner));
        let notify = config.and_then(|config| config.fleets.first());
        let notify = notify.and_then(|root| root.notify.as_ref());
        let channels = notify.into_iter().flat_map(NotifyConfig::web_push_channels);
        Ok(BrowserList {
            public_key: db.meta(WEB_PUSH_PUBLIC_KEY)?,
            channels: channels.map(str::to_owned).collect(),
            browsers: browsers.map(|it| BrowserSummary::read(db, it)).collect::<Result<_, _>>()?,
        })
    }
}

impl FleetReader {
    /// Lists the browsers that receive notices: those of a person, or all.
    pub fn browsers(&self, owner: Option<&str>) -> Result<BrowserList, QueryError> {
        let config = self.context().loaded;
        BrowserList::read(&*self.reader()?, config.as_deref(), owner)
    }
}
