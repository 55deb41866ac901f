//! Downloads of files that people sent.
//!
//! A file is fetched only from hosts of the platform or from the configured API, without redirects. The
//! bot token is sent to those hosts only. Start at [`ChatBot::fetch_file`].

use std::time::Duration;

use serde_json::json;
use url::Url;

use crate::api_call::{FetchFailure, FetchRequest, FetchedBody, fetch_bytes};
use crate::chat_bot::ChatBot;
use crate::chat_error::ChatApiError;
use crate::discord::DiscordBot;
use crate::slack::SlackBot;
use crate::telegram::TelegramBot;

/// Name of the call in errors.
const ATTEMPT: &str = "fetch a file";

/// Hosts from which Discord hands out files.
const DISCORD_HOSTS: [&str; 2] = ["cdn.discordapp.com", "media.discordapp.net"];

/// Host from which Slack hands out files.
const SLACK_HOSTS: [&str; 1] = ["files.slack.com"];

/// A file to fetch.
#[derive(Debug, Clone, Copy)]
pub struct FileRequest<'f> {
    /// ID or address, as the event has it.
    pub source: &'f str,
    /// Media type that the platform told.
    pub media_type: &'f str,
    /// Most bytes. A larger file is refused.
    pub bytes_max: u64,
    pub timeout: Duration,
}

impl ChatBot {
    /// Fetches a file that a person sent.
    pub fn fetch_file(&self, file: FileRequest<'_>) -> Result<Vec<u8>, ChatApiError> {
        match self {
            ChatBot::Telegram(bot) => fetch_from_telegram(bot, file),
            ChatBot::Slack(bot) => fetch_from_slack(bot, file),
            ChatBot::Discord(bot) => fetch_from_discord(bot, file),
        }
    }
}

fn fetch_from_telegram(bot: &TelegramBot, file: FileRequest<'_>) -> Result<Vec<u8>, ChatApiError> {
    const PLATFORM: &str = "Telegram";
    let found = bot.call("getFile", ATTEMPT, &json!({"file_id": file.source}), Duration::ZERO)?;
    let path = found["file_path"].as_str().filter(|path| is_plain_path(path));
    let path = path.ok_or_else(|| refused(PLATFORM, "its path has an unexpected form"))?;
    let answer = fetch(PLATFORM, &bot.file_url(path), None, file)?;
    Ok(answer.bytes)
}

/// Returns true if a path stays below the address that it is added to.
fn is_plain_path(path: &str) -> bool {
    let is_plain = |part: &str| {
        let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
        !part.is_empty() && !part.starts_with('.') && part.bytes().all(is_allowed)
    };
    path.split('/').all(is_plain)
}

fn fetch_from_slack(bot: &SlackBot, file: FileRequest<'_>) -> Result<Vec<u8>, ChatApiError> {
    const PLATFORM: &str = "Slack";
    let url = own_url(PLATFORM, file.source, bot.api_url(), &SLACK_HOSTS)?;
    let answer = fetch(PLATFORM, &url, Some(bot.authorization()), file)?;
    let is_page = answer.content_type.starts_with("text/html");
    // Slack shows its login page to apps that may not read files.
    if is_page && file.media_type != "text/html" {
        let said = "the app lacks the scope files:read: add it and reinstall the app";
        return Err(refused(PLATFORM, said));
    }
    Ok(answer.bytes)
}

fn fetch_from_discord(bot: &DiscordBot, file: FileRequest<'_>) -> Result<Vec<u8>, ChatApiError> {
    const PLATFORM: &str = "Discord";
    let url = own_url(PLATFORM, file.source, bot.api_url(), &DISCORD_HOSTS)?;
    // The address is signed, so no token is needed.
    let answer = fetch(PLATFORM, &url, None, file)?;
    Ok(answer.bytes)
}

/// Returns an address if it is one of the platform: of its hosts over TLS, or of the configured API.
fn own_url(
    platform: &'static str,
    source: &str,
    api_url: &str,
    hosts: &[&str],
) -> Result<String, ChatApiError> {
    let is_own = |url: &Url| {
        let is_plain = url.username().is_empty() && url.password().is_none();
        let is_known = url.scheme() == "https"
            && url.port().is_none()
            && url.host_str().is_some_and(|host| hosts.contains(&host));
        let is_api = api_url.parse::<Url>().is_ok_and(|api| {
            matches!(api.scheme(), "https" | "http") && api.origin() == url.origin()
        });
        is_plain && (is_known || is_api)
    };
    let url = source.parse::<Url>().ok().filter(is_own);
    url.map(String::from).ok_or_else(|| refused(platform, "it is not on a host of the platform"))
}

fn refused(platform: &'static str, said: &str) -> ChatApiError {
    ChatApiError::Refused { platform, attempt: ATTEMPT, said: said.to_owned() }
}

fn fetch(
    platform: &'static str,
    url: &str,
    authorization: Option<String>,
    file: FileRequest<'_>,
) -> Result<FetchedBody, ChatApiError> {
    let FileRequest { bytes_max, timeout, .. } = file;
    let answer = fetch_bytes(FetchRequest { url, authorization, bytes_max, timeout });
    let answer = answer.map_err(|failure| match failure {
        FetchFailure::TooLarge => refused(platform, &format!("it has more than {bytes_max} bytes")),
        FetchFailure::Other(reason) => ChatApiError::Unreachable { attempt: ATTEMPT, reason },
    })?;
    match answer.status {
        200 => Ok(answer),
        429 => {
            let retry_after = Duration::from_secs(answer.retry_after.unwrap_or(1).clamp(1, 3600));
            Err(ChatApiError::RateLimited { platform, attempt: ATTEMPT, retry_after })
        }
        status @ 500.. => {
            let reason = format!("{platform} answered with status {status}");
            Err(ChatApiError::Unreachable { attempt: ATTEMPT, reason })
        }
        status @ 300..400 => {
            Err(refused(platform, &format!("status {status}; redirects are not followed")))
        }
        status => Err(refused(platform, &format!("status {status}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_the_platform_are_fetched() {
        let own = |source: &str| own_url("Slack", source, "https://slack.com/api", &SLACK_HOSTS);
        for source in
            ["https://files.slack.com/files-pri/T1-F1/download/a.png?t=1", "https://slack.com/x"]
        {
            assert_eq!(own(source).as_deref(), Ok(source));
        }
        for source in [
            "",
            "F123",
            "http://files.slack.com/a",
            "https://files.slack.com:8443/a",
            "https://files.slack.com.evil.example/a",
            "https://evil.example/files.slack.com",
            "https://files.slack.com@evil.example/a",
            "https://user:pass@files.slack.com/a",
            "file:///etc/passwd",
            "http://127.0.0.1/",
        ] {
            assert!(own(source).is_err(), "{source}");
        }
        let local =
            |source: &str| own_url("Slack", source, "http://127.0.0.1:99/api", &SLACK_HOSTS);
        assert!(local("http://127.0.0.1:99/files/1").is_ok());
        assert!(local("http://127.0.0.1:98/files/1").is_err());
    }

    #[test]
    fn a_path_of_telegram_stays_below_the_files_of_the_bot() {
        for path in ["photos/file_1.jpg", "documents/a-b_c.tar.gz"] {
            assert!(is_plain_path(path), "{path}");
        }
        for path in
            ["", "/etc/passwd", "../bot/getMe", "a//b", "a/../b", "a?b", "a#b", "a%2e/b", "a b"]
        {
            assert!(!is_plain_path(path), "{path}");
        }
    }
}
