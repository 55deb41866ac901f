//! Entry point of the fuzz target `chat_frames`: every parser and renderer, with any text.
//!
//! Start at [`drive_text`].

use serde_json::Value as Json;

use crate::bot_command::BotCommand;
use crate::chat_bot::post_parts;
use crate::chat_event::{ChatEvent, ChatPlatform};
use crate::discord_frame::{DiscordDirectory, DiscordDispatch, DiscordFrame};
use crate::github_text::render_github;
use crate::slack::SlackUser;
use crate::slack_frame::{SlackFrame, message_event, payload_event};
use crate::slack_text::render_slack;
use crate::telegram::TelegramUser;
use crate::telegram_html::render_telegram;
use crate::telegram_update::parse_update;

/// Passes a text to every parser and renderer. Panics if one breaks a promise.
pub fn drive_text(text: &str) {
    let slack = SlackUser { id: "UBOT".into(), name: "heeler".into(), team: "t".into() };
    let telegram = TelegramUser { id: "99".into(), username: "heeler_bot".into() };
    let mut discord = DiscordDirectory::new("900");
    if let SlackFrame::Envelope { event: Some(event), .. } = SlackFrame::parse(text, &slack, "A1") {
        check_event(Some(*event));
    }
    if let DiscordFrame::Dispatch { event, .. } = DiscordFrame::parse(text) {
        match event {
            DiscordDispatch::Message(data) => check_event(discord.message_event(&data)),
            DiscordDispatch::Interaction(data) => check_event(discord.interaction_event(&data)),
            DiscordDispatch::Directory(data) => discord.add(&data),
            _ => {}
        }
    }
    if let Ok(body) = serde_json::from_str::<Json>(text) {
        check_event(parse_update(&body, &telegram));
        check_event(message_event(&body, &slack, "A1"));
        check_event(discord.message_event(&body));
        check_event(discord.interaction_event(&body));
        // Calls by HTTP have the payloads of envelopes.
        for kind in ["events_api", "interactive", "slash_commands"] {
            check_event(payload_event(kind, &body, &slack, "A1").0);
        }
        discord.add(&body);
    }
    let _command = BotCommand::parse(text);
    let mrkdwn = render_slack(text);
    // Every `<` is that of a link, so nothing of an agent mentions people.
    assert!(!mrkdwn.contains("<!") && !mrkdwn.contains("<@") && !mrkdwn.contains("<#"));
    assert!(!render_telegram(text).html.contains("<script"));
    let _comment = render_github(text);
    for platform in ChatPlatform::ALL {
        for part in post_parts(*platform, text) {
            assert!(!part.trim().is_empty(), "an empty post");
        }
    }
}

fn check_event(event: Option<ChatEvent>) {
    let Some(event) = event else { return };
    assert!(!event.event_id.is_empty(), "{event:?}");
    // A direct conversation is posted to only if its person is on the list.
    let has_person = event.place.person.is_some() || event.platform == ChatPlatform::Telegram;
    assert!(!event.place.is_direct || has_person, "{event:?}");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Frames of the platforms, and texts that once were or could be difficult.
    const CORPUS: &[&str] = &[
        "",
        "{",
        "[]",
        "null",
        r#"{"type":"hello"}"#,
        r#"{"type":"disconnect","reason":"warning"}"#,
        r#"{"type":"events_api","envelope_id":"e1","payload":{"event":{"type":"message","channel":"C1","user":"U1","ts":"1.1","text":"<@UBOT> hi","thread_ts":"1.0"}}}"#,
        r#"{"type":"events_api","envelope_id":"e1","payload":{"event":{"type":"message","channel":"D1","user":"","ts":"","text":""}}}"#,
        r#"{"type":"interactive","envelope_id":"e2","payload":{"type":"block_actions","trigger_id":"t","channel":{"id":"D1"},"user":{"id":"U1"},"message":{"ts":"1.1"},"actions":[{"value":"a:ask-1:x"}]}}"#,
        r#"{"type":"slash_commands","envelope_id":"e3","payload":{"command":"/heeler","text":"status","trigger_id":"t","channel_id":"D1","user_id":"U1"}}"#,
        r#"{"op":0,"s":5,"t":"INTERACTION_CREATE","d":{"id":"5","type":2,"token":"t","channel_id":"10","user":{"id":"7"},"data":{"name":"skill","options":[{"name":"name","value":"x"}]}}}"#,
        r#"{"op":10,"d":{"heartbeat_interval":41250}}"#,
        r#"{"op":0,"s":1,"t":"READY","d":{"session_id":"s","resume_gateway_url":"wss://x"}}"#,
        r#"{"op":0,"s":2,"t":"MESSAGE_CREATE","d":{"id":"500","type":19,"channel_id":"10","guild_id":"1","content":"<@900> hi <@8>","author":{"id":"7","username":"ann"},"mentions":[{"id":"8","username":"bob"}],"message_reference":{"message_id":"499"}}}"#,
        r#"{"op":0,"s":3,"t":"INTERACTION_CREATE","d":{"id":"5","type":3,"token":"t","channel_id":"10","user":{"id":"7"},"message":{"id":"2"},"data":{"custom_id":"a:ask-1:x"}}}"#,
        r#"{"op":0,"s":4,"t":"GUILD_CREATE","d":{"id":"1","channels":[{"id":"10","type":0}],"threads":[{"id":"11","type":11,"parent_id":"10"}],"roles":[{"id":"70","tags":{"bot_id":"900"}}]}}"#,
        r#"{"update_id":1,"message":{"message_id":7,"chat":{"id":-5,"type":"supergroup"},"from":{"id":42,"is_bot":false,"first_name":"Ann"},"text":"@heeler_bot hi","reply_to_message":{"message_id":6}}}"#,
        r#"{"update_id":2,"callback_query":{"id":"c","from":{"id":42,"is_bot":false},"data":"a:ask-1:x","message":{"message_id":7,"chat":{"id":42,"type":"private"}}}}"#,
        r#"{"type":"event_callback","event_id":"Ev1","api_app_id":"A1","event":{"type":"app_mention","channel":"C1","user":"U1","ts":"1.1","text":"<@UBOT> hi","files":[{"id":"F1","name":"a","mimetype":"image/png","size":-1}]}}"#,
        r#"{"type":"block_actions","trigger_id":"t","api_app_id":"A1","channel":{"id":"C1"},"user":{"id":"U1","username":""},"message":{"ts":"1.1","thread_ts":"1.0"},"actions":[{"value":""}]}"#,
        r#"{"command":"/heeler","text":"coder: approve ask-1","trigger_id":"t","channel_id":"C1","user_id":"U1","user_name":"ann"}"#,
        r#"{"update_id":3,"message":{"message_id":8,"chat":{"id":42,"type":"private"},"from":{"id":42,"is_bot":false},"voice":{"file_id":"f","mime_type":"audio/ogg","file_size":9},"caption":"@heeler_bot"}}"#,
        r#"{"update_id":4,"message":{"message_id":9,"message_thread_id":3,"is_topic_message":true,"chat":{"id":-5,"type":"supergroup"},"from":{"id":42},"photo":[{"file_id":"p","file_size":9999999999}],"text":"/stop@heeler_bot"}}"#,
        r#"{"op":0,"s":6,"t":"MESSAGE_CREATE","d":{"id":"501","type":0,"channel_id":"10","content":"","author":{"id":"7","username":""},"attachments":[{"id":"1","filename":"../x","size":1,"url":"http://evil.example/"}]}}"#,
        r#"{"op":7}"#,
        r#"{"op":9,"d":true}"#,
        r#"{"op":11}"#,
        "/approve ask-1",
        "!deny",
        "<!channel> <@U1> <#C1|x> & < >",
        "```\n<script>alert(1)</script>",
        "| a | b |\n|---|---|\n| <!here> | ``` |",
        "[x](javascript:alert(1)) ![y](https://evil.example/<!channel>)",
        "\u{202e}\u{0}\u{feff}👩‍👩‍👧‍👦 @everyone",
        "\n\n\n   \n\t",
    ];

    #[test]
    fn every_entry_of_the_corpus_is_handled() {
        CORPUS.iter().for_each(|text| drive_text(text));
    }

    proptest! {
        #[test]
        fn every_prefix_and_mix_of_the_corpus_is_handled(
            one in 0..CORPUS.len(),
            other in 0..CORPUS.len(),
            at in 0.0..1.0_f64,
        ) {
            let (one, other) = (CORPUS[one], CORPUS[other]);
            let wanted = (one.len() as f64 * at) as usize;
            let cut = (0..=wanted).rev().find(|at| one.is_char_boundary(*at)).unwrap_or(0);
            drive_text(&one[..cut]);
            drive_text(&format!("{}{other}", &one[..cut]));
        }

        #[test]
        fn any_text_is_handled(text in "\\PC*") {
            drive_text(&text);
        }
    }
}
