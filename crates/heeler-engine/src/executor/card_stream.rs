//! State of a run card that grows, which only Slack offers.
//!
//! Additions to a stream cannot be repeated safely. So a stream with an unclear addition is ended, and the card
//! is replaced by a change from then on. Start at [`CardStream`].

use std::time::{Duration, Instant};

use heeler_connect::{ChatApiError, ChatBot, ChatPlace, STREAM_TEXT_MAX};

/// Age at which a stream is ended. Slack ends it after about five minutes.
const STREAM_AGE_MAX: Duration = Duration::from_secs(240);

/// Length at which a stream is ended, in characters.
const STREAM_LENGTH_MAX: usize = STREAM_TEXT_MAX;

/// Way in which a card changes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CardStream {
    /// The card is not posted.
    Untried,
    /// The card grows.
    Open { since: Instant, length: usize },
    /// The card may be a stream, so it is ended before the card is changed.
    Unknown,
    /// The card is an ordinary post.
    Ended,
}

impl CardStream {
    /// Returns the state of a card that an earlier daemon may have posted.
    pub(super) fn of_card(is_resumed: bool) -> CardStream {
        if is_resumed { CardStream::Unknown } else { CardStream::Untried }
    }

    /// Returns the state of a stream that has begun with a text.
    pub(super) fn open(text: &str) -> CardStream {
        CardStream::Open { since: Instant::now(), length: text.chars().count() }
    }

    pub(super) fn is_untried(&self) -> bool {
        *self == CardStream::Untried
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self, CardStream::Open { .. })
    }

    /// Returns true if something may be added to the card.
    pub(super) fn may_grow(&self) -> bool {
        self.is_untried() || self.is_open()
    }

    /// Returns true if a bot can change the card.
    pub(super) fn is_ended(&self, bot: &ChatBot) -> bool {
        !matches!(bot, ChatBot::Slack(_)) || matches!(self, CardStream::Untried | CardStream::Ended)
    }

    /// Returns true if the stream must be ended now, so that the card can be changed.
    pub(super) fn must_end(&self, bot: &ChatBot, now: Instant) -> bool {
        match self {
            CardStream::Open { since, length } => {
                now.duration_since(*since) > STREAM_AGE_MAX || *length > STREAM_LENGTH_MAX
            }
            CardStream::Unknown => !self.is_ended(bot),
            CardStream::Untried | CardStream::Ended => false,
        }
    }

    /// Adds a text. A failure after which the text may be in the stream is no failure of the call: the
    /// stream is ended, and the whole card is shown by a change.
    pub(super) fn append(
        &mut self,
        bot: &ChatBot,
        (place, message): (&ChatPlace, &str),
        text: &str,
    ) -> Result<(), ChatApiError> {
        let (ChatBot::Slack(slack), CardStream::Open { length, .. }) = (bot, &mut *self) else {
            return Ok(());
        };
        match slack.append_stream(place, message, text) {
            Ok(()) => *length = length.saturating_add(text.chars().count()),
            Err(error @ (ChatApiError::Refused { .. } | ChatApiError::Unreachable { .. })) => {
                tracing::info!(%error, "a stream ends early: the run card is changed instead");
                *self = CardStream::Unknown;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Ends the stream.
    pub(super) fn end(
        &mut self,
        bot: &ChatBot,
        place: &ChatPlace,
        message: &str,
    ) -> Result<(), ChatApiError> {
        if let ChatBot::Slack(slack) = bot {
            slack.stop_stream(place, message)?;
        }
        *self = CardStream::Ended;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use heeler_connect::{SlackBot, SlackTokens};

    use super::*;

    fn slack() -> ChatBot {
        let text = |text: &str| text.to_owned();
        let tokens = SlackTokens {
            bot_token: text("xoxb-1"),
            bot_variable: text("B"),
            app_token: text("xapp-1"),
            app_variable: text("A"),
        };
        ChatBot::Slack(SlackBot::new("https://slack.example/api", tokens))
    }

    #[test]
    fn an_old_long_or_unknown_stream_ends_before_the_card_is_changed() {
        let (now, bot) = (Instant::now(), slack());
        let open = |length| CardStream::Open { since: now, length };
        assert!(!open(0).must_end(&bot, now) && !open(0).is_ended(&bot));
        let later = now + STREAM_AGE_MAX + Duration::from_secs(1);
        assert!(open(0).must_end(&bot, later) && open(STREAM_LENGTH_MAX + 1).must_end(&bot, now));
        let resumed = CardStream::of_card(true);
        assert!(resumed.must_end(&bot, now) && !resumed.is_ended(&bot) && !resumed.is_untried());
        assert!(CardStream::of_card(false).is_untried());
        assert!(CardStream::Ended.is_ended(&bot) && !CardStream::Ended.must_end(&bot, now));
    }
}
