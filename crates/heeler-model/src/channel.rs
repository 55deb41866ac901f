//! Name of a chat channel, which selects the session in [`crate::SessionMode::PerChannel`].

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Longest channel name, in bytes.
pub const CHANNEL_BYTES_MAX: usize = 256;

/// Chat channel or thread: `platform/channel[/thread]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelKey(String);

/// Error for a text that is not a channel name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{reason}; a channel is PLATFORM/CHANNEL or PLATFORM/CHANNEL/THREAD, as in slack/C0123/1731.55"
)]
pub struct ChannelParseError {
    reason: &'static str,
}

impl FromStr for ChannelKey {
    type Err = ChannelParseError;

    fn from_str(text: &str) -> Result<ChannelKey, ChannelParseError> {
        let wrong = |reason| Err(ChannelParseError { reason });
        let parts: Vec<&str> = text.split('/').collect();
        let is_platform =
            |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
        match parts[..] {
            // First, so that a long text is not scanned.
            _ if text.len() > CHANNEL_BYTES_MAX => wrong("it is longer than 256 bytes"),
            _ if text.chars().any(|c| c.is_whitespace() || c.is_control()) => {
                wrong("it has a space in it")
            }
            [_] => wrong("the platform or the channel is missing"),
            [_, _] | [_, _, _] if parts.contains(&"") => wrong("a part of it is empty"),
            [platform, ..] if !platform.chars().all(is_platform) => {
                wrong("the platform is a word in lower case")
            }
            [_, _] | [_, _, _] => Ok(ChannelKey(text.to_owned())),
            _ => wrong("it has more than three parts"),
        }
    }
}

impl fmt::Display for ChannelKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_has_a_platform_and_perhaps_a_thread() {
        for text in ["slack/C0123", "slack/C0123/1731.55", "discord/99", "my-chat_2/#général/t"] {
            assert_eq!(text.parse::<ChannelKey>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_channel_is_refused_with_the_form() {
        let long = format!("slack/{}", "x".repeat(CHANNEL_BYTES_MAX));
        for (text, why) in [
            ("", "the platform or the channel is missing"),
            ("C0123", "the platform or the channel is missing"),
            ("slack/", "a part of it is empty"),
            ("/C0123", "a part of it is empty"),
            ("slack/C0123/", "a part of it is empty"),
            ("slack/C 1", "it has a space in it"),
            ("slack/C\n", "it has a space in it"),
            ("Slack/C1", "the platform is a word in lower case"),
            ("slack/a/b/c", "it has more than three parts"),
            (&long, "it is longer than 256 bytes"),
        ] {
            let error = text.parse::<ChannelKey>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{why}; a channel is PLATFORM/CHANNEL")), "{error}");
        }
    }
}
