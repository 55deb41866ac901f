//! Frames and bodies of chat platforms, and the texts that are made of them.
#![no_main]

use heeler_connect::{
    BotCommand, ChatEvent, ChatPlatform, DiscordDirectory, DiscordDispatch, DiscordFrame,
    SlackFrame, SlackUser, TelegramUser, message_event, parse_update, post_parts, render_slack,
    render_telegram,
};
use libfuzzer_sys::fuzz_target;
use serde_json::Value as Json;

fn check(event: Option<ChatEvent>) {
    let Some(event) = event else { return };
    assert!(!event.event_id.is_empty() && !event.sender.id.is_empty());
    // A direct conversation is posted to only if its person is on the list.
    assert!(
        !event.place.is_direct
            || event.platform == ChatPlatform::Telegram
            || event.place.person.is_some()
    );
}

fuzz_target!(|text: &str| {
    let slack = SlackUser { id: "UBOT".into(), name: "heeler".into(), team: "t".into() };
    let telegram = TelegramUser { id: "99".into(), username: "heeler_bot".into() };
    let mut discord = DiscordDirectory::new("900");
    if let SlackFrame::Envelope { event: Some(event), .. } = SlackFrame::parse(text, &slack, "A1") {
        check(Some(*event));
    }
    if let DiscordFrame::Dispatch { event, .. } = DiscordFrame::parse(text) {
        match event {
            DiscordDispatch::Message(data) => check(discord.message_event(&data)),
            DiscordDispatch::Click(data) => check(discord.click_event(&data)),
            DiscordDispatch::Directory(data) => discord.add(&data),
            _ => {}
        }
    }
    if let Ok(body) = serde_json::from_str::<Json>(text) {
        check(parse_update(&body, &telegram));
        check(message_event(&body, &slack, "A1"));
        check(discord.message_event(&body));
        check(discord.click_event(&body));
        discord.add(&body);
    }
    let _command = BotCommand::parse(text);
    let mrkdwn = render_slack(text);
    // Every `<` is that of a link, so nothing of an agent mentions people.
    assert!(!mrkdwn.contains("<!") && !mrkdwn.contains("<@") && !mrkdwn.contains("<#"));
    assert!(!render_telegram(text).html.contains("<script"));
    for platform in [ChatPlatform::Slack, ChatPlatform::Telegram, ChatPlatform::Discord] {
        for part in post_parts(platform, text) {
            assert!(!part.trim().is_empty());
        }
    }
});
