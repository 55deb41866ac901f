//! People that are notified: their channels, and the rules that hold for all of them.
//!
//! Start at [`NotifyPersonKeys`]. The checked form is [`NotifyChannel::person`] with the rules of the
//! person in its channel.

use indexmap::IndexMap;

use crate::chat_config::ChatConfig;
use crate::duration::ConfigDuration;
use crate::notify::{
    NotifyChannel, NotifyChannelKeys, NotifyEscalation, NotifyEvent, NotifyKeys, QuietHours,
    report_unknown,
};
use crate::reader::ConfigReader;
use crate::shape::section;
use crate::text::did_you_mean;
use crate::value::SpannedValue;

section! {
    /// IDs of a person on chat platforms.
    pub struct PersonAccounts ("notify.person.accounts") {
        /// ID of the user on Discord.
        discord: Option<String>,
        /// ID of the user on GitHub.
        github: Option<String>,
        /// ID of the user on Slack.
        slack: Option<String>,
        /// ID of the user on Telegram.
        telegram: Option<String>,
    }
}

/// A person with accounts on chat platforms.
#[derive(Debug, Clone, PartialEq)]
pub struct NotifyPerson {
    pub name: String,
    pub accounts: PersonAccounts,
}

impl NotifyPerson {
    /// Returns the ID of the person on a chat platform.
    pub fn account(&self, platform: &str) -> Option<&str> {
        let PersonAccounts { discord, github, slack, telegram } = &self.accounts;
        match platform {
            "discord" => discord.as_deref(),
            "github" => github.as_deref(),
            "slack" => slack.as_deref(),
            "telegram" => telegram.as_deref(),
            _ => None,
        }
    }
}

/// Replaces names of people in the lists of users of an agent's chats by their IDs.
pub(crate) fn resolve_chat_people(chat: &mut ChatConfig, people: &[NotifyPerson]) {
    for (platform, list) in chat.user_lists() {
        resolve_names(list, people, platform);
    }
}

/// Replaces names of people by their IDs on a platform. A name of a person without an account there stays
/// and matches no user.
pub(crate) fn resolve_names(list: &mut [String], people: &[NotifyPerson], platform: &str) {
    for entry in list {
        let person = people.iter().find(|person| person.name == *entry);
        if let Some(id) = person.and_then(|person| person.account(platform)) {
            id.clone_into(entry);
        }
    }
}

section! {
    /// A person, with the channels that reach the person and the rules for all of them.
    pub(crate) struct NotifyPersonKeys ("notify.person") {
        /// Names of the channels that reach the person. A channel belongs to one person at most.
        channels: Vec<SpannedValue<String>>,
        /// IDs of the person on chat platforms. Lists of users, such as `approvers`, then take the name of the person.
        accounts: Option<PersonAccounts>,
        /// Events about which the person is notified. A channel may list fewer.
        events: Vec<NotifyEvent> = "[question, failed, denied, budget, parked, takeover, link_down]",
        /// Hours without notices, for the channels that have none of their own.
        quiet_hours: Option<SpannedValue<QuietHours>>,
        /// Collect events for this long, for the channels that do not set it. Questions are sent at once.
        digest: Option<ConfigDuration>,
        /// Person or channel that receives a question that is still open after some time.
        escalate: Option<SpannedValue<NotifyEscalation>>,
    }
}

/// People by name.
pub(crate) type NotifyPeople = IndexMap<String, SpannedValue<NotifyPersonKeys>>;

impl NotifyPersonKeys {
    fn has_channel(&self, channel: &str) -> bool {
        self.channels.iter().any(|name| name.value == channel)
    }

    /// Adds the rules of the person to one of the person's channels.
    fn add_rules(&self, name: &str, channel: &mut NotifyChannel) {
        channel.person = Some(name.to_owned());
        channel.events.retain(|event| self.events.contains(event));
        let quiet = || self.quiet_hours.as_ref().map(|quiet| quiet.value.clone());
        channel.quiet_hours = channel.quiet_hours.take().or_else(quiet);
        channel.digest = channel.digest.or(self.digest);
        channel.escalate = self.escalate.as_ref().map(|escalate| escalate.value.clone());
    }
}

/// Returns the people with accounts on chat platforms.
pub(crate) fn people_with_accounts(people: &NotifyPeople) -> Vec<NotifyPerson> {
    let accounts = people.iter().filter_map(|(name, keys)| {
        Some(NotifyPerson { name: name.clone(), accounts: keys.value.accounts.clone()? })
    });
    accounts.collect()
}

/// Adds the rules of people to their channels.
pub(crate) fn add_person_rules(people: &NotifyPeople, channels: &mut [NotifyChannel]) {
    for channel in channels {
        if let Some((name, keys)) = owner(people, &channel.name) {
            keys.add_rules(name, channel);
        }
    }
}

/// Returns the person to whom a channel belongs.
fn owner<'p>(people: &'p NotifyPeople, channel: &str) -> Option<(&'p str, &'p NotifyPersonKeys)> {
    let (name, keys) = people.iter().find(|(_, keys)| keys.value.has_channel(channel))?;
    Some((name, &keys.value))
}

impl NotifyKeys {
    /// Refuses people that cannot be reached as the config says. Each person needs a channel, so the
    /// limit of channels is one of people too.
    pub(crate) fn check_people(&self, reader: &mut ConfigReader) {
        for (name, SpannedValue { value: keys, at, .. }) in &self.people {
            if name.parse::<crate::LocalName>().is_err() {
                let message = format!("`{name}` is not a name of a person");
                reader.error(*at, message).expected("expected letters, digits, `-` and `_`");
            }
            if self.channels.contains_key(name) {
                let message = format!("`{name}` is the name of a channel and of a person");
                reader.error(*at, message).expected("give one of them another name");
            }
            if keys.channels.is_empty() && keys.accounts.is_none() {
                let message = format!("`{name}` has no channel");
                reader.error(*at, message).expected("expected `channels: [NAME]` or `accounts`");
            }
            if let Some(SpannedValue { value: quiet, at, .. }) = &keys.quiet_hours
                && quiet.from == quiet.to
            {
                let message = "`quiet_hours` begins and ends at the same time".to_owned();
                reader.error(*at, message).expected("remove it, or set another `to`");
            }
            for channel in &keys.channels {
                self.check_channel_of_person(name, keys, channel, reader);
            }
        }
    }

    fn check_channel_of_person(
        &self,
        name: &str,
        keys: &NotifyPersonKeys,
        SpannedValue { value: channel, at, .. }: &SpannedValue<String>,
        reader: &mut ConfigReader,
    ) {
        let Some(written) = self.channels.get(channel) else {
            let message = format!("there is no channel `{channel}`");
            let fault = reader.error(*at, message).expected("expected a name in `notify.channels`");
            if let Some(near) = did_you_mean(channel, self.channels.keys().map(String::as_str)) {
                fault.help(format!("did you mean `{near}`?"));
            }
            return;
        };
        let NotifyChannelKeys { events, escalate, .. } = &written.value;
        if let Some((other, _)) = owner(&self.people, channel)
            && other != name
        {
            let message = format!("the channel `{channel}` belongs to `{other}` already");
            reader.error(*at, message).expected("a channel belongs to one person at most");
        }
        if !events.iter().any(|event| keys.events.contains(event)) {
            let message = format!("the channel `{channel}` receives no event of `{name}`");
            reader.error(*at, message).expected("both must list the event in `events`");
        }
        if escalate.is_some() {
            let message = format!("the channel `{channel}` of `{name}` has its own `escalate`");
            reader.error(*at, message).expected("set `escalate` of the person");
        }
    }

    /// Refuses channels and people that escalate to none or to each other.
    pub(crate) fn check_escalations(&self, reader: &mut ConfigReader) {
        let of_channels = self.channels.iter().map(|(name, it)| (name, &it.value.escalate));
        let of_people = self.people.iter().map(|(name, it)| (name, &it.value.escalate));
        for (name, escalate) in of_channels.chain(of_people) {
            let Some(SpannedValue { value: first, at, .. }) = escalate else { continue };
            if !self.has_receiver(&first.to) {
                let known = self.channels.keys().chain(self.people.keys());
                report_unknown(&first.to, *at, known, reader);
                continue;
            }
            if self.escalates_to(&first.to, name) {
                let what = if self.people.contains_key(name) { "person" } else { "channel" };
                let message = format!("the {what} `{name}` escalates to itself");
                reader.error(*at, message).expected("one of a chain must be the last");
            }
        }
    }

    /// Returns true if a chain that begins at `from` reaches `name`, or never ends.
    fn escalates_to(&self, from: &str, name: &str) -> bool {
        let most = self.channels.len() + self.people.len();
        let (mut next, mut steps) = (self.receiver(from), 0);
        while next != name && steps <= most {
            steps += 1;
            match self.escalation(next) {
                Some(further) => next = self.receiver(&further.to),
                None => return false,
            }
        }
        true
    }

    /// Returns the person of a channel, or the name itself.
    fn receiver<'n>(&'n self, name: &'n str) -> &'n str {
        owner(&self.people, name).map_or(name, |(person, _)| person)
    }

    fn escalation(&self, name: &str) -> Option<&NotifyEscalation> {
        let of_person = self.people.get(name).and_then(|it| it.value.escalate.as_ref());
        let of_channel = || self.channels.get(name).and_then(|it| it.value.escalate.as_ref());
        of_person.or_else(of_channel).map(|escalate| &escalate.value)
    }

    fn has_receiver(&self, name: &str) -> bool {
        self.channels.contains_key(name) || self.people.contains_key(name)
    }
}
