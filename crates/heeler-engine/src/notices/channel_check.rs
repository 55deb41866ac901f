//! Check of the channels, and test messages, for people.
//!
//! Start at [`check_channels`] and [`send_test_notice`].

use std::collections::BTreeMap;

use heeler_config::{FleetConfig, LoadedConfig, NotifyEvent, NotifyTarget};
use heeler_model::error_chain;
use heeler_notify::PersonNotice;
use heeler_store::StateDatabase;
use jiff::Timestamp;

use super::browser_client::browser_client;
use super::channel_client::{ChannelClient, channel_problem};
use super::page_link;

/// State of a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelReport {
    pub name: String,
    /// Kind of place, such as `ntfy`.
    pub kind: &'static str,
    /// Person to whom it belongs.
    pub person: Option<String>,
    /// Reason why it cannot be used, with the cure.
    pub problem: Option<String>,
}

/// Lists the channels of a config, and the reasons why some cannot be used. Nothing is sent.
pub fn check_channels(
    loaded: &LoadedConfig,
    env: &BTreeMap<String, String>,
    db: Option<&StateDatabase>,
) -> Vec<ChannelReport> {
    let config = loaded.fleets.first().and_then(|root| root.notify.as_ref());
    let channels = config
        .into_iter()
        .flat_map(|config| config.channels.iter().map(move |channel| (config, channel)));
    channels
        .map(|(config, channel)| ChannelReport {
            name: channel.name.clone(),
            kind: channel.target.kind(),
            person: channel.person.clone(),
            problem: channel_problem(config, channel, env, db),
        })
        .collect()
}

/// Sends a test message to a channel, or to all browsers of a channel; fails with the reason.
pub fn send_test_notice(
    loaded: &LoadedConfig,
    env: &BTreeMap<String, String>,
    db: Option<&StateDatabase>,
    channel: &str,
    now: Timestamp,
) -> Result<(), String> {
    let root = loaded.fleets.first().ok_or("there is no fleet")?;
    let config = root.notify.as_ref().ok_or("the config has no `notify`")?;
    let channel =
        config.channel(channel).ok_or_else(|| format!("there is no channel `{channel}`"))?;
    let at = now.as_millisecond();
    let notice = PersonNotice {
        event: NotifyEvent::Takeover,
        agent: None,
        title: "Test of Heeler".to_owned(),
        text: format!(
            "This is a test of the channel `{}`. Messages arrive here when a person is needed.",
            channel.name
        ),
        quote: None,
        link: page_link(root, "/"),
        page: None,
        is_closing: false,
        subject: format!("test {at}"),
        at: now,
    };
    if channel.target == NotifyTarget::WebPush {
        if let Some(problem) = channel_problem(config, channel, env, db) {
            return Err(problem);
        }
        let db = db.ok_or("there is no state directory")?;
        return send_to_browsers(root, db, &channel.name, &notice);
    }
    let client = ChannelClient::new(config, channel, env)?;
    let sent = client.send(&format!("test {at} {}", channel.name), &notice, None);
    sent.map(drop).map_err(|error| error.to_string())
}

/// Sends a notice to all browsers of a channel; fails with the reasons of those that fail.
fn send_to_browsers(
    root: &FleetConfig,
    db: &StateDatabase,
    channel: &str,
    notice: &PersonNotice,
) -> Result<(), String> {
    let mut problems = Vec::new();
    for browser in db.push_browsers_of(channel).map_err(|error| error_chain(&error))? {
        let client = browser_client(root, db, &browser, notice.at);
        let sent = client.and_then(|client| {
            client.send("test", notice, None).map_err(|error| error.to_string())
        });
        if let Err(problem) = sent {
            problems.push(format!("{} ({}): {problem}", browser.label, browser.id));
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
}
