//! Check of the channels, and test messages, for people.
//!
//! Start at [`check_channels`] and [`send_test_notice`].

use std::collections::BTreeMap;

use heeler_config::{LoadedConfig, NotifyEvent};
use heeler_notify::PersonNotice;
use jiff::Timestamp;

use super::channel_client::ChannelClient;
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
pub fn check_channels(loaded: &LoadedConfig, env: &BTreeMap<String, String>) -> Vec<ChannelReport> {
    let config = loaded.fleets.first().and_then(|root| root.notify.as_ref());
    let channels = config
        .into_iter()
        .flat_map(|config| config.channels.iter().map(move |channel| (config, channel)));
    channels
        .map(|(config, channel)| ChannelReport {
            name: channel.name.clone(),
            kind: channel.target.kind(),
            person: channel.person.clone(),
            problem: ChannelClient::new(config, channel, env).err(),
        })
        .collect()
}

/// Sends a test message to a channel; fails with the reason.
pub fn send_test_notice(
    loaded: &LoadedConfig,
    env: &BTreeMap<String, String>,
    channel: &str,
    now: Timestamp,
) -> Result<(), String> {
    let root = loaded.fleets.first().ok_or("there is no fleet")?;
    let config = root.notify.as_ref().ok_or("the config has no `notify`")?;
    let channel =
        config.channel(channel).ok_or_else(|| format!("there is no channel `{channel}`"))?;
    let client = ChannelClient::new(config, channel, env)?;
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
        is_closing: false,
        subject: format!("test {at}"),
        at: now,
    };
    let sent = client.send(&format!("test {at} {}", channel.name), &notice, None);
    sent.map(drop).map_err(|error| error.to_string())
}
