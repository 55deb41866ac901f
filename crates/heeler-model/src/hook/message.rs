//! Chat messages about a job's end: a Slack attachment and a Discord embed.
//!
//! Both services count UTF-16 units. Texts are truncated by that count, never inside a character.

use heeler_config::HookEvent;
use serde_json::{Value as Json, json};

use super::HookContext;
use crate::job_row::format_duration;
use crate::parse_iso;

/// Longest output in a Slack message.
pub const SLACK_TEXT_MAX: usize = 3500;
/// Longest output in a Discord message: Discord's limit for a description.
pub const DISCORD_TEXT_MAX: usize = 4096;
/// Longest error and longest metadata in either message, without code fences.
pub const FIELD_MAX: usize = 900;
/// Longest total text of a Discord embed. Discord rejects longer ones.
pub const DISCORD_EMBED_MAX: usize = 6000;

/// Longest name of an agent or schedule in either message.
const NAME_MAX: usize = 200;
const FOOTER: &str = "heeler";
/// Mark of a truncated text.
const ELLIPSIS: &str = "…";

/// Field of a message, below its text.
struct HookMessageField {
    title: &'static str,
    value: String,
    /// True if the field may share a line with others.
    is_short: bool,
}

/// Returns the request body of Slack's `chat.postMessage`.
pub fn slack_message(channel: &str, context: &HookContext) -> Json {
    let fields: Vec<Json> = fields(context, slack_escaped)
        .into_iter()
        .map(|it| json!({"title": it.title, "value": it.value, "short": it.is_short}))
        .collect();
    // Names are cut before they are escaped, so that no escape is cut in half.
    let name = slack_escaped(&truncate_utf16(name(context), NAME_MAX));
    let ended = parse_iso(&context.job.completed_at).map_or(0, |at| at.as_second());
    let mut attachment = json!({
        "color": format!("#{:06x}", color(context.event)),
        "fallback": format!("{}: {name}", title(context.event)),
        "title": title(context.event),
        "fields": fields,
        "footer": FOOTER,
        "ts": ended,
        "mrkdwn_in": ["fields"],
    });
    let output = context.result.output.trim();
    if !output.is_empty() {
        attachment["text"] = slack_escaped(&truncate_utf16(output, SLACK_TEXT_MAX)).into();
    }
    json!({"channel": channel, "attachments": [attachment]})
}

/// Returns the request body of Discord's "create message".
pub fn discord_message(context: &HookContext) -> Json {
    let fields = fields(context, str::to_owned);
    // Discord limits the embed as a whole, so the description gets what the fields leave.
    let others: usize = fields.iter().map(|it| utf16_len(it.title) + utf16_len(&it.value)).sum();
    let left = DISCORD_EMBED_MAX - others - utf16_len(title(context.event)) - utf16_len(FOOTER);
    let fields: Vec<Json> = fields
        .into_iter()
        .map(|it| json!({"name": it.title, "value": it.value, "inline": it.is_short}))
        .collect();
    let mut embed = json!({
        "title": title(context.event),
        "color": color(context.event),
        "fields": fields,
        "timestamp": context.job.completed_at,
        "footer": {"text": FOOTER},
    });
    let output = context.result.output.trim();
    if !output.is_empty() {
        embed["description"] = truncate_utf16(output, left.min(DISCORD_TEXT_MAX)).into();
    }
    // An agent's output must not mention (notify) people.
    json!({"embeds": [embed], "allowed_mentions": {"parse": []}})
}

fn fields(context: &HookContext, escaped: impl Fn(&str) -> String) -> Vec<HookMessageField> {
    let job = &context.job;
    let line = |title, value: &str| HookMessageField {
        title,
        value: escaped(&truncate_utf16(value, NAME_MAX)),
        is_short: true,
    };
    let mut fields = vec![
        line("Agent", name(context)),
        // The ID is safe text and needs no escape.
        HookMessageField { title: "Job", value: format!("`{}`", job.id), is_short: true },
        line("Duration", &format_duration(job.duration_ms)),
    ];
    fields.extend(job.schedule_name.as_ref().map(|schedule| line("Schedule", schedule)));
    let block = |title, text: &str| {
        let text = escaped(&truncate_utf16(text.trim(), FIELD_MAX));
        HookMessageField { title, value: format!("```\n{text}\n```"), is_short: false }
    };
    let said = |text: &&String| !text.trim().is_empty();
    fields.extend(context.result.error.as_ref().filter(said).map(|error| block("Error", error)));
    let metadata =
        context.metadata.as_ref().filter(|json| json.as_object().is_none_or(|it| !it.is_empty()));
    fields.extend(metadata.map(|metadata| block("Metadata", &format!("{metadata:#}"))));
    fields
}

fn name(context: &HookContext) -> &str {
    // An agent without a display name.
    match context.agent.name.trim() {
        "" => &context.agent.id,
        name => name,
    }
}

fn title(event: HookEvent) -> &'static str {
    match event {
        HookEvent::Completed => "Job completed",
        HookEvent::Failed => "Job failed",
        HookEvent::Timeout => "Job ran out of time",
        HookEvent::Cancelled => "Job cancelled",
    }
}

/// Returns the color of an event: green, red, orange or grey.
fn color(event: HookEvent) -> u32 {
    match event {
        HookEvent::Completed => 0x002e_a04d,
        HookEvent::Failed => 0x00d7_3a49,
        HookEvent::Timeout => 0x00e3_8b16,
        HookEvent::Cancelled => 0x006e_7681,
    }
}

/// Escapes text by Slack's rules, so that an agent's output cannot link or mention `<!channel>`.
fn slack_escaped(text: &str) -> String {
    // The ampersand comes first, or it would escape the other escapes.
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn utf16_len(text: &str) -> usize {
    text.encode_utf16().count()
}

/// Truncates a text to `max` UTF-16 units at a character boundary, and marks it.
fn truncate_utf16(text: &str, max: usize) -> String {
    if utf16_len(text) <= max {
        return text.to_owned();
    }
    let mut left = max - utf16_len(ELLIPSIS);
    let kept = text.chars().take_while(|c| {
        let fits = c.len_utf16() <= left;
        // Saturating, since the last character may need two units.
        left = left.saturating_sub(c.len_utf16());
        fits
    });
    kept.chain(ELLIPSIS.chars()).collect()
}
