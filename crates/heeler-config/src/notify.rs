//! Channels that tell people when they are needed.
//!
//! [`NotifyKeys`] declares the accepted keys, [`NotifyConfig`] is the checked form. The names of
//! channels that agents use are checked by [`check_channel_names`].

use std::str::FromStr;

use camino::Utf8PathBuf;
use indexmap::IndexMap;
use jiff::civil::Time;
use serde_json::json;
use url::Url;

use crate::chat_token::{ChatApiUrl, TokenVariable};
use crate::cron::ConfigTimeZone;
use crate::duration::ConfigDuration;
use crate::github::is_safe_for_credentials;
use crate::notify_person::{
    NotifyPeople, NotifyPerson, add_person_rules, people_with_accounts, resolve_names,
};
use crate::notify_web_push::NotifyWebPush;
use crate::reader::{ConfigReader, SourceSpan};
use crate::shape::section;
use crate::text::did_you_mean;
use crate::value::{BoundedInt, SpannedValue, VarName, WebUrl, text_value, word_value};
use crate::web::WebOrigin;
use crate::words::words;

/// Most channels of a fleet.
pub const NOTIFY_CHANNELS_MAX: usize = 32;

words! {
    /// Event about which people are notified.
    pub enum NotifyEvent ("event") {
        /// An agent or a gate of a workflow waits for an answer.
        Question = "question",
        /// A job failed.
        Failed = "failed",
        /// An agent was denied a tool in a job that no person follows.
        Denied = "denied",
        /// A budget is nearly spent, or spent.
        Budget = "budget",
        /// An agent is parked until a usage limit resets.
        Parked = "parked",
        /// The daemon replaced one that did not end in order.
        Takeover = "takeover",
        /// A chat platform cannot be reached.
        LinkDown = "link_down",
    }
}

words! {
    /// Protection of the connection to a mail server.
    pub enum SmtpSecurity ("security") {
        /// The connection begins without TLS and must change to it.
        StartTls = "starttls",
        /// TLS from the beginning.
        Tls = "tls",
        /// No TLS; only for a server on this machine.
        None = "none",
    }
}

word_value!(NotifyEvent, SmtpSecurity);

section! {
    /// Channels that tell people when they are needed.
    pub(crate) struct NotifyKeys ("notify") {
        /// Address of the dashboard for the links in notices, such as `https://heeler.example.com`. Defaults to the
        /// first of `web.origins`, then to the address on this machine if `web.port` is a number.
        link_base: Option<WebOrigin>,
        /// Share of a budget, in percent, at which the first `budget` notice is sent.
        budget_percent: BoundedInt<1, 100> = "80",
        /// Mail server of the channels with `email`.
        smtp: Option<SpannedValue<SmtpKeys>>,
        /// Settings of the channels with `web_push`.
        web_push: Option<SpannedValue<NotifyWebPush>>,
        /// Channels by name. Each has exactly one of `webhook`, `ntfy`, `telegram`, `slack`, `discord`, `email`, `web_push` and `desktop`.
        channels: IndexMap<String, SpannedValue<NotifyChannelKeys>>,
        /// People by name, with their channels and the rules that hold for all of these.
        people: NotifyPeople,
    }
}

section! {
    /// A mail server.
    pub(crate) struct SmtpKeys ("notify.smtp") {
        /// Name of the server.
        host: String,
        /// Port. Defaults to 587 for `starttls`, to 465 for `tls` and to 25 for `none`.
        port: Option<BoundedInt<1, 65535>>,
        /// Protection of the connection: `starttls`, `tls`, or `none` for a server on this machine.
        security: SmtpSecurity = "starttls",
        /// File with the certificates of the authorities that the server's certificate must come from, in
        /// PEM form, relative to this file. Defaults to the public authorities.
        ca_file: Option<Utf8PathBuf>,
        /// Name of the account, if the server asks for one.
        user: Option<String>,
        /// Environment variable that holds the password.
        password_env: Option<TokenVariable>,
        /// Sender of the messages, such as `Heeler <heeler@example.com>`.
        from: String,
    }
}

section! {
    /// A channel that tells people when they are needed.
    pub(crate) struct NotifyChannelKeys ("notify.channel") {
        /// Web address that receives each event as JSON.
        webhook: Option<NotifyWebhook>,
        /// Topic of ntfy, for its app on a phone.
        ntfy: Option<NotifyNtfy>,
        /// Chat of a Telegram bot.
        telegram: Option<NotifyTelegram>,
        /// Channel of a Slack app, or an incoming webhook of Slack.
        slack: Option<NotifySlack>,
        /// Channel of a Discord bot.
        discord: Option<NotifyDiscord>,
        /// Mail, by the server in `notify.smtp`.
        email: Option<NotifyEmail>,
        /// Messages in browsers, also on phones. People add their browsers on the settings page of the dashboard.
        web_push: Option<bool>,
        /// Messages on the desktop of the machine on which the daemon runs, by `notify-send`.
        desktop: Option<bool>,
        /// Events that the channel receives.
        events: Vec<NotifyEvent> = "[question, failed, denied, budget, parked, takeover, link_down]",
        /// Hours without notices. The events of these hours are sent afterwards, in one message.
        quiet_hours: Option<SpannedValue<QuietHours>>,
        /// Collect events for this long and send them in one message. Questions are sent at once.
        digest: Option<ConfigDuration>,
        /// Channel or person that receives a question that is still open after some time.
        escalate: Option<SpannedValue<NotifyEscalation>>,
    }
}

section! {
    /// Web address that receives each event as JSON.
    pub struct NotifyWebhook ("notify.webhook") {
        /// The address.
        url: WebUrl,
        /// Environment variable that holds the secret with which the body is signed, in the header
        /// `x-heeler-signature-256`.
        secret_env: Option<TokenVariable>,
    }
}

section! {
    /// Topic of ntfy.
    pub struct NotifyNtfy ("notify.ntfy") {
        /// Address of the topic, such as `https://ntfy.sh/my-topic`.
        url: WebUrl,
        /// Environment variable that holds an access token.
        token_env: Option<TokenVariable>,
    }
}

section! {
    /// Chat of a Telegram bot.
    pub struct NotifyTelegram ("notify.telegram") {
        /// ID of the person or of the group.
        chat: String,
        /// Environment variable that holds the bot token.
        bot_token_env: TokenVariable = "TELEGRAM_BOT_TOKEN",
        /// Address of the Bot API. Set it if you run a Bot API server of your own.
        api_url: ChatApiUrl = "https://api.telegram.org",
        /// IDs of the users who may answer gates of workflows here. Defaults to the `approvers` of the workflows' agent.
        approvers: Vec<String>,
    }
}

section! {
    /// Channel of a Slack app, or an incoming webhook of Slack.
    pub struct NotifySlack ("notify.slack") {
        /// ID of a channel, such as `C012DEV`, in which the app posts. Questions can be answered there. Without this key, the notices go to an incoming webhook.
        channel: Option<String>,
        /// Environment variable that holds the bot token, for `channel`.
        bot_token_env: TokenVariable = "SLACK_BOT_TOKEN",
        /// Address of the Web API, for `channel`.
        api_url: ChatApiUrl = "https://slack.com/api",
        /// IDs of the users who may answer gates of workflows in `channel`. Defaults to the `approvers` of the workflows' agent.
        approvers: Vec<String>,
        /// Environment variable that holds the address of an incoming webhook, which is a secret. Only without `channel`.
        url_env: TokenVariable = "SLACK_WEBHOOK_URL",
    }
}

section! {
    /// Channel of a Discord bot.
    pub struct NotifyDiscord ("notify.discord") {
        /// ID of the channel, in which the bot posts. Questions can be answered there.
        channel: String,
        /// Environment variable that holds the bot token.
        bot_token_env: TokenVariable = "DISCORD_BOT_TOKEN",
        /// Address of the REST API.
        api_url: ChatApiUrl = "https://discord.com/api/v10",
        /// IDs of the users who may answer gates of workflows here. Defaults to the `approvers` of the workflows' agent.
        approvers: Vec<String>,
    }
}

section! {
    /// Mail.
    pub struct NotifyEmail ("notify.email") {
        /// Addresses of the receivers.
        to: Vec<String>,
    }
}

section! {
    /// Hours without notices.
    pub struct QuietHours ("quiet_hours") {
        /// First minute, such as `22:00`.
        from: ClockTime,
        /// End, such as `07:00`. It may be on the next day.
        to: ClockTime,
        /// Time zone. Defaults to that of the fleet.
        timezone: Option<ConfigTimeZone>,
        /// Events that are sent nevertheless.
        except: Vec<NotifyEvent>,
    }
}

section! {
    /// Channel or person that receives a question that is still open after some time.
    pub struct NotifyEscalation ("escalate") {
        /// Time after the question was sent.
        after: ConfigDuration,
        /// Name of the channel or person.
        to: String,
    }
}

/// Time of day, in hours and minutes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockTime(Time);

impl ClockTime {
    pub fn get(self) -> Time {
        self.0
    }
}

impl FromStr for ClockTime {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<ClockTime, &'static str> {
        let wrong = "it has not the form HH:MM";
        let (hour, minute) = text.split_once(':').ok_or(wrong)?;
        let is_number = |part: &str| part.len() == 2 && part.bytes().all(|b| b.is_ascii_digit());
        if !is_number(hour) || !is_number(minute) {
            return Err(wrong);
        }
        let (hour, minute) = (hour.parse().map_err(|_| wrong)?, minute.parse().map_err(|_| wrong)?);
        Time::new(hour, minute, 0, 0).map(ClockTime).map_err(|_| "there is no such time of day")
    }
}

text_value! {
    ClockTime: "a time of day", "`22:00`", Some("^[0-9]{2}:[0-9]{2}$"), |time| {
        json!(time.0.strftime("%H:%M").to_string())
    };
}

/// Checked form of `notify`.
#[derive(Debug, Clone, PartialEq)]
pub struct NotifyConfig {
    /// Address of the dashboard, for links.
    pub link_base: Option<WebOrigin>,
    /// Share of a budget at which the first notice is sent.
    pub budget_percent: u8,
    pub smtp: Option<SmtpConfig>,
    pub web_push: Option<NotifyWebPush>,
    pub channels: Vec<NotifyChannel>,
    /// People with accounts on chat platforms.
    pub people: Vec<NotifyPerson>,
}

/// Checked mail server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SmtpConfig {
    pub host: String,
    pub port: u16,
    pub security: SmtpSecurity,
    /// Authorities of the server's certificate, instead of the public ones.
    pub ca_file: Option<Utf8PathBuf>,
    pub user: Option<String>,
    /// Variable that holds the password.
    pub password_env: Option<String>,
    pub from: String,
}

/// Checked channel.
#[derive(Debug, Clone, PartialEq)]
pub struct NotifyChannel {
    pub name: String,
    /// Person to whom it belongs. The rules of the person are in the other fields.
    pub person: Option<String>,
    pub target: NotifyTarget,
    pub events: Vec<NotifyEvent>,
    pub quiet_hours: Option<QuietHours>,
    pub digest: Option<ConfigDuration>,
    pub escalate: Option<NotifyEscalation>,
}

/// Place of a channel.
#[derive(Debug, Clone, PartialEq)]
pub enum NotifyTarget {
    Webhook(NotifyWebhook),
    Ntfy(NotifyNtfy),
    Telegram(NotifyTelegram),
    Slack(NotifySlack),
    Discord(NotifyDiscord),
    Email(NotifyEmail),
    WebPush,
    Desktop,
}

/// A chat in which a bot posts notices, and in which questions can be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotifyChat<'c> {
    /// Name of the chat platform.
    pub platform: &'static str,
    /// ID of the chat.
    pub chat: &'c str,
    /// Variable that holds the bot token.
    pub token_variable: &'c str,
    /// Users who may answer gates of workflows; empty if those of the workflows' agent may.
    pub approvers: &'c [String],
}

impl NotifyTarget {
    /// Returns the key of the config.
    pub fn kind(&self) -> &'static str {
        match self {
            NotifyTarget::Webhook(_) => "webhook",
            NotifyTarget::Ntfy(_) => "ntfy",
            NotifyTarget::Telegram(_) => "telegram",
            NotifyTarget::Slack(_) => "slack",
            NotifyTarget::Discord(_) => "discord",
            NotifyTarget::Email(_) => "email",
            NotifyTarget::WebPush => "web_push",
            NotifyTarget::Desktop => "desktop",
        }
    }

    /// Returns the chat of the place, if it is one in which a bot posts.
    pub fn chat(&self) -> Option<NotifyChat<'_>> {
        let (platform, chat, token, approvers) = match self {
            NotifyTarget::Telegram(it) => ("telegram", &it.chat, &it.bot_token_env, &it.approvers),
            NotifyTarget::Slack(it) => {
                ("slack", it.channel.as_ref()?, &it.bot_token_env, &it.approvers)
            }
            NotifyTarget::Discord(it) => ("discord", &it.channel, &it.bot_token_env, &it.approvers),
            _ => return None,
        };
        Some(NotifyChat { platform, chat, token_variable: token.as_str(), approvers })
    }
}

impl NotifyChannel {
    /// Returns true if a name is that of the channel or of its person.
    pub fn is_receiver(&self, name: &str) -> bool {
        self.name == name || self.person.as_deref() == Some(name)
    }
}

impl NotifyConfig {
    /// Replaces names of people among the approvers of chats by their IDs.
    pub(crate) fn resolve_approvers(&mut self) {
        for channel in &mut self.channels {
            let (platform, approvers) = match &mut channel.target {
                NotifyTarget::Telegram(chat) => ("telegram", &mut chat.approvers),
                NotifyTarget::Slack(chat) => ("slack", &mut chat.approvers),
                NotifyTarget::Discord(chat) => ("discord", &mut chat.approvers),
                _ => continue,
            };
            resolve_names(approvers, &self.people, platform);
        }
    }

    pub fn channel(&self, name: &str) -> Option<&NotifyChannel> {
        self.channels.iter().find(|channel| channel.name == name)
    }

    /// Returns the channel of a name, or the channels of a person.
    pub fn receivers<'c>(&'c self, name: &'c str) -> impl Iterator<Item = &'c NotifyChannel> {
        self.channels.iter().filter(move |channel| channel.is_receiver(name))
    }

    /// Returns the names of the channels for browsers.
    pub fn web_push_channels(&self) -> impl Iterator<Item = &str> {
        let channels = self.channels.iter();
        let channels = channels.filter(|channel| channel.target == NotifyTarget::WebPush);
        channels.map(|channel| channel.name.as_str())
    }

    /// Returns the push services that are used besides the known ones.
    pub fn push_services(&self) -> &[WebOrigin] {
        self.web_push.as_ref().map(|it| it.services.as_slice()).unwrap_or_default()
    }

    /// Returns the variables that hold secrets.
    pub(crate) fn secret_variables(&self) -> Vec<VarName> {
        let of_channels = self.channels.iter().filter_map(|channel| match &channel.target {
            NotifyTarget::Webhook(webhook) => webhook.secret_env.as_ref(),
            NotifyTarget::Ntfy(ntfy) => ntfy.token_env.as_ref(),
            NotifyTarget::Telegram(telegram) => Some(&telegram.bot_token_env),
            NotifyTarget::Slack(slack) if slack.channel.is_some() => Some(&slack.bot_token_env),
            NotifyTarget::Slack(slack) => Some(&slack.url_env),
            NotifyTarget::Discord(discord) => Some(&discord.bot_token_env),
            NotifyTarget::Email(_) | NotifyTarget::WebPush | NotifyTarget::Desktop => None,
        });
        let of_smtp = self.smtp.as_ref().and_then(|smtp| smtp.password_env.as_ref());
        let of_smtp = of_smtp.and_then(|name| name.parse::<VarName>().ok());
        of_channels.map(|variable| variable.name().clone()).chain(of_smtp).collect()
    }

    /// Returns the addresses of channels, of which some are secret.
    pub fn addresses(&self) -> impl Iterator<Item = &WebUrl> {
        self.channels.iter().filter_map(|channel| match &channel.target {
            NotifyTarget::Webhook(webhook) => Some(&webhook.url),
            NotifyTarget::Ntfy(ntfy) => Some(&ntfy.url),
            _ => None,
        })
    }
}

impl NotifyKeys {
    /// Refuses settings that cannot be honoured.
    pub(crate) fn check(&self, reader: &mut ConfigReader) {
        if self.channels.len() > NOTIFY_CHANNELS_MAX
            && let Some((_, last)) = self.channels.last()
        {
            let message = format!("there are more than {NOTIFY_CHANNELS_MAX} channels");
            reader.error(last.at, message).expected("remove some");
        }
        if let Some(smtp) = &self.smtp {
            check_smtp(smtp, reader);
        }
        if let Some(SpannedValue { value: web_push, at, .. }) = &self.web_push {
            web_push.check(*at, reader);
        }
        for (name, channel) in &self.channels {
            self.check_channel(name, channel, reader);
        }
        self.check_people(reader);
        self.check_escalations(reader);
    }

    fn check_channel(
        &self,
        name: &str,
        channel: &SpannedValue<NotifyChannelKeys>,
        reader: &mut ConfigReader,
    ) {
        let SpannedValue { value: keys, at, .. } = channel;
        if name.parse::<crate::LocalName>().is_err() {
            let message = format!("`{name}` is not a name of a channel");
            reader.error(*at, message).expected("expected letters, digits, `-` and `_`");
        }
        if keys.places() != 1 {
            let message = format!("the channel `{name}` has not exactly one place");
            let expected = "expected one of `webhook`, `ntfy`, `telegram`, `slack`, `discord`, \
                            `email`, `web_push: true`, `desktop: true`";
            reader.error(*at, message).expected(expected);
        }
        if let Some(ntfy) = &keys.ntfy {
            check_ntfy(ntfy, *at, reader);
        }
        if let Some(email) = &keys.email {
            if self.smtp.is_none() {
                let message = format!("the channel `{name}` has no mail server");
                reader.error(*at, message).expected("add `notify.smtp`");
            }
            let wrong = email.to.iter().find(|address| !is_mail_address(address));
            if email.to.is_empty() || wrong.is_some() {
                let message = format!("the channel `{name}` has no valid receiver");
                reader.error(*at, message).expected("expected `to: [ann@example.com]`");
            }
        }
        if let Some(telegram) = &keys.telegram {
            let digits = telegram.chat.strip_prefix('-').unwrap_or(&telegram.chat);
            if !is_number(digits) {
                let message = format!("`{}` is not the ID of a Telegram chat", telegram.chat);
                reader.error(*at, message).expected("expected a number such as `123456`");
            }
        }
        if let Some(slack) = &keys.slack {
            check_slack(slack, *at, reader);
        }
        if let Some(discord) = &keys.discord
            && !is_number(&discord.channel)
        {
            let message = format!("`{}` is not the ID of a Discord channel", discord.channel);
            reader.error(*at, message).expected("expected a number such as `345678901234567890`");
        }
        if let Some(SpannedValue { value: quiet, at, .. }) = &keys.quiet_hours
            && quiet.from == quiet.to
        {
            let message = "`quiet_hours` begins and ends at the same time".to_owned();
            reader.error(*at, message).expected("remove it, or set another `to`");
        }
    }

    pub(crate) fn into_config(self) -> NotifyConfig {
        let channels = self.channels.into_iter();
        let mut channels: Vec<NotifyChannel> =
            channels.filter_map(|(name, keys)| keys.value.into_channel(name)).collect();
        add_person_rules(&self.people, &mut channels);
        NotifyConfig {
            link_base: self.link_base,
            budget_percent: u8::try_from(self.budget_percent.get()).unwrap_or(80),
            smtp: self.smtp.map(|smtp| smtp.value.into_config()),
            web_push: self.web_push.map(|web_push| web_push.value),
            channels,
            people: people_with_accounts(&self.people),
        }
    }
}

impl SmtpKeys {
    fn into_config(self) -> SmtpConfig {
        let usual = match self.security {
            SmtpSecurity::StartTls => 587,
            SmtpSecurity::Tls => 465,
            SmtpSecurity::None => 25,
        };
        let port = self.port.and_then(|port| u16::try_from(port.get()).ok()).unwrap_or(usual);
        SmtpConfig {
            host: self.host,
            port,
            security: self.security,
            ca_file: self.ca_file,
            user: self.user,
            password_env: self.password_env.map(|name| name.as_str().to_owned()),
            from: self.from,
        }
    }
}

impl NotifyChannelKeys {
    /// Returns the number of places.
    fn places(&self) -> usize {
        let places = [
            self.webhook.is_some(),
            self.ntfy.is_some(),
            self.telegram.is_some(),
            self.slack.is_some(),
            self.discord.is_some(),
            self.email.is_some(),
            self.web_push == Some(true),
            self.desktop == Some(true),
        ];
        places.into_iter().filter(|is_set| *is_set).count()
    }

    /// Returns the checked form; `None` if there is no place, which was reported.
    fn into_channel(self, name: String) -> Option<NotifyChannel> {
        let target = None
            .or(self.webhook.map(NotifyTarget::Webhook))
            .or(self.ntfy.map(NotifyTarget::Ntfy))
            .or(self.telegram.map(NotifyTarget::Telegram))
            .or(self.slack.map(NotifyTarget::Slack))
            .or(self.discord.map(NotifyTarget::Discord))
            .or(self.email.map(NotifyTarget::Email))
            .or(self.web_push.filter(|is_on| *is_on).map(|_| NotifyTarget::WebPush))
            .or(self.desktop.filter(|is_on| *is_on).map(|_| NotifyTarget::Desktop))?;
        Some(NotifyChannel {
            name,
            person: None,
            target,
            events: self.events,
            quiet_hours: self.quiet_hours.map(|quiet| quiet.value),
            digest: self.digest,
            escalate: self.escalate.map(|escalate| escalate.value),
        })
    }
}

fn check_smtp(smtp: &SpannedValue<SmtpKeys>, reader: &mut ConfigReader) {
    let SpannedValue { value: keys, at, .. } = smtp;
    let is_local = matches!(keys.host.as_str(), "localhost" | "127.0.0.1" | "::1");
    if keys.security == SmtpSecurity::None && !is_local {
        let message = format!("mail is not sent to {} without TLS", keys.host);
        reader.error(*at, message).expected("set `security` to `starttls` or `tls`");
    }
    if keys.security == SmtpSecurity::None && keys.ca_file.is_some() {
        let message = "`ca_file` has no effect without TLS".to_owned();
        reader.error(*at, message).expected("set `security` to `starttls` or `tls`");
    }
    if keys.user.is_some() != keys.password_env.is_some() {
        let message = "a login needs a name and a password".to_owned();
        reader.error(*at, message).expected("set both of `user` and `password_env`, or none");
    }
    let address = keys.from.rsplit_once('<').map_or(keys.from.as_str(), |(_, rest)| rest);
    if !is_mail_address(address.trim_end_matches('>').trim()) {
        let message = format!("`{}` is not a sender of mail", keys.from);
        reader.error(*at, message).expected("expected `Heeler <heeler@example.com>`");
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// Refuses places to which an app cannot post, or in which its questions cannot be answered.
fn check_slack(slack: &NotifySlack, at: SourceSpan, reader: &mut ConfigReader) {
    match &slack.channel {
        None if !slack.approvers.is_empty() => {
            let message = "a webhook of Slack receives no answers".to_owned();
            reader.error(at, message).expected("set `channel`, or remove `approvers`");
        }
        // A direct chat begins with D, a person with U: their answers would come from another place.
        Some(id) if !is_slack_channel(id) => {
            let message = format!("`{id}` is not the ID of a Slack channel");
            reader.error(at, message).expected("expected an ID such as `C012DEV`");
        }
        _ => {}
    }
}

fn is_slack_channel(id: &str) -> bool {
    let rest = id.strip_prefix(['C', 'G']).unwrap_or_default();
    !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit())
}

fn check_ntfy(ntfy: &NotifyNtfy, at: SourceSpan, reader: &mut ConfigReader) {
    let topic = ntfy.url.expose().parse::<Url>().ok().and_then(|url| {
        let mut parts = url.path_segments()?;
        parts.rfind(|part| !part.is_empty()).map(str::to_owned)
    });
    if topic.is_none() {
        let message = "the address of ntfy has no topic".to_owned();
        reader.error(at, message).expected("expected an address such as https://ntfy.sh/my-topic");
    }
    if ntfy.token_env.is_some() && !is_safe_for_credentials(ntfy.url.expose()) {
        let message = "the token is not sent to this address".to_owned();
        let expected = "expected an address that begins with https://, without a login or a query";
        reader.error(at, message).expected(expected);
    }
}

/// Returns true for an address of the usual form. Others are refused, because a header or a command
/// of the mail server could be hidden in them.
fn is_mail_address(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~.".contains(c);
    let Some((name, domain)) = text.split_once('@') else { return false };
    let is_domain = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
    let has_both = !name.is_empty() && !domain.is_empty();
    has_both && name.chars().all(is_plain) && domain.chars().all(is_domain)
}

/// Refuses names of channels that the root fleet does not have.
pub(crate) fn check_channel_names(
    written: &[SpannedValue<String>],
    config: Option<&NotifyConfig>,
    reader: &mut ConfigReader,
) {
    let channels = config.map(|config| config.channels.as_slice()).unwrap_or_default();
    for SpannedValue { value: name, at, .. } in written {
        if !channels.iter().any(|channel| channel.is_receiver(name)) {
            let people = channels.iter().filter_map(|channel| channel.person.as_ref());
            let known = channels.iter().map(|channel| &channel.name).chain(people);
            report_unknown(name, *at, known, reader);
        }
    }
}

/// Reports a name that is neither of a channel nor of a person.
pub(crate) fn report_unknown<'n>(
    name: &str,
    at: SourceSpan,
    known: impl Iterator<Item = &'n String>,
    reader: &mut ConfigReader,
) {
    let message = format!("there is no channel or person `{name}`");
    let expected = "expected a name in `notify.channels` or `notify.people`";
    let fault = reader.error(at, message).expected(expected);
    if let Some(near) = did_you_mean(name, known.map(String::as_str)) {
        fault.help(format!("did you mean `{near}`?"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_day_has_two_digits_each() {
        assert_eq!("07:30".parse::<ClockTime>().unwrap().get(), Time::constant(7, 30, 0, 0));
        for wrong in ["7:30", "24:00", "12:60", "12", "ab:cd", "-1:00", "12:00:00"] {
            assert!(wrong.parse::<ClockTime>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_address_of_mail_hides_no_command() {
        assert!(is_mail_address("ann+heeler@example.com"));
        for wrong in ["ann", "@example.com", "ann@", "a b@x", "ann@x\r\nDATA", "a,b@x", "<a@x>"] {
            assert!(!is_mail_address(wrong), "{wrong}");
        }
    }
}
