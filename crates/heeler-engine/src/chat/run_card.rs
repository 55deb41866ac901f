//! The run card: a post that shows what a job of a chat is doing.
//!
//! A card is made of the rows of the job's transcript. The rows are text of an agent, so names are
//! shortened and everything else is in blocks of code. Start at [`RunCard`].

use std::collections::VecDeque;

use heeler_connect::LiveOutput;
use heeler_model::job_row::{JobRow, JobRowKind, block_text, format_duration};
use heeler_model::{Job, JobId, JobStatus, reveal_hidden};

/// Most kinds of tools that a card names.
const TOOLS_MAX: usize = 12;

/// Longest name of a tool, in characters.
const TOOL_CHARS_MAX: usize = 40;

/// Longest message of the agent in a card, in characters. The end is shown.
const MESSAGE_CHARS_MAX: usize = 500;

/// Longest system event in a card, in characters.
const EVENT_CHARS_MAX: usize = 120;

/// Longest tool result that is kept for a card that grows, in characters. The config allows no more.
const RESULT_CHARS_MAX: usize = 1_000;

/// Most news that wait for a card that grows. Later ones take the place of the oldest.
const NEWS_MAX: usize = 100;

/// Length after which the text of an addition to a card that grows has no further news, in characters.
const ADDITION_CHARS_MAX: usize = 4_000;

/// A change of a posted card, which is recorded so that the next daemon can finish the card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RunCardChange {
    Posted { job: JobId, channel: String, message: String },
    Finished { job: JobId },
}

/// Progress of a job.
#[derive(Debug, Default)]
pub(crate) struct RunCard {
    /// Tools in the order of their first use, with the number of uses.
    tools: Vec<(String, u32)>,
    /// Uses of tools beyond the limit.
    other_tools: u32,
    tool_result: Option<String>,
    message: Option<String>,
    event: Option<String>,
    /// Facts that a card that grows does not show yet, oldest first.
    news: VecDeque<CardNews>,
}

/// A fact that is added to a card that grows.
#[derive(Debug)]
enum CardNews {
    Tool(String),
    ToolResult(String),
    Message(String),
    Event(String),
}

impl RunCard {
    /// Takes a row of the job's transcript.
    pub(crate) fn add_row(&mut self, row: &JobRow) {
        match row.kind() {
            JobRowKind::ToolCall { tool, .. } => self.count_tool(tool),
            JobRowKind::ToolResult(result) => {
                let text = result.output();
                self.add_news(CardNews::ToolResult(kept_beginning(&text, RESULT_CHARS_MAX)));
                self.tool_result = Some(text);
            }
            JobRowKind::Assistant if !row.is_aside() => {
                let text = row.content().map(block_text).unwrap_or_default();
                if !text.trim().is_empty() {
                    self.add_news(CardNews::Message(kept_end(&text, MESSAGE_CHARS_MAX)));
                    self.message = Some(text);
                }
            }
            JobRowKind::System { subtype } if is_shown_event(subtype) => {
                let text = row.notice_text();
                self.add_news(CardNews::Event(kept_beginning(&text, EVENT_CHARS_MAX)));
                self.event = Some(text);
            }
            _ => {}
        }
    }

    fn count_tool(&mut self, tool: &str) {
        let is_plain = |c: &char| c.is_ascii_alphanumeric() || "_-:.".contains(*c);
        let name: String = tool.chars().filter(is_plain).take(TOOL_CHARS_MAX).collect();
        self.add_news(CardNews::Tool(name.clone()));
        if let Some((_, count)) = self.tools.iter_mut().find(|(known, _)| *known == name) {
            *count += 1;
        } else if self.tools.len() < TOOLS_MAX {
            self.tools.push((name, 1));
        } else {
            self.other_tools += 1;
        }
    }

    fn add_news(&mut self, news: CardNews) {
        if self.news.len() == NEWS_MAX {
            self.news.pop_front();
        }
        self.news.push_back(news);
    }

    /// Returns the text of the oldest news, which is added to a card that grows, and their number.
    pub(crate) fn news_text(&self, output: LiveOutput<'_>) -> (String, usize) {
        let (mut text, mut count) = (String::new(), 0);
        for news in &self.news {
            if text.chars().count() > ADDITION_CHARS_MAX {
                break;
            }
            text.extend(news.text(output));
            count += 1;
        }
        (text, count)
    }

    /// Forgets news that the card shows.
    pub(crate) fn forget_news(&mut self, count: usize) {
        self.news.drain(..count.min(self.news.len()));
    }

    /// Returns the first line of the card of a running job.
    pub(crate) fn heading(job: &Job) -> String {
        format!("**Working** (`{}`)", job.head.id)
    }

    /// Returns the text of the card while the job runs.
    pub(crate) fn running_text(&self, job: &Job, output: LiveOutput<'_>) -> String {
        let mut parts = vec![RunCard::heading(job)];
        parts.extend(self.tool_line());
        if output.shows_system
            && let Some(event) = &self.event
        {
            parts.push(block(event, EVENT_CHARS_MAX, KeptPart::Beginning));
        }
        if let (Some(most), Some(result)) = (output.tool_result_chars, &self.tool_result) {
            parts.push(block(result, most, KeptPart::Beginning));
        }
        if output.shows_messages
            && let Some(message) = &self.message
        {
            parts.push(block(message, MESSAGE_CHARS_MAX, KeptPart::End));
        }
        parts.join("\n")
    }

    /// Returns the text of the card after the end of the job.
    pub(crate) fn final_text(&self, job: &Job) -> String {
        let word = match job.head.status {
            JobStatus::Completed => "Done",
            JobStatus::Cancelled => "Stopped",
            _ => "Failed",
        };
        let mut facts = vec![format!("**{word}**")];
        facts.extend(job.head.duration_ms.map(format_duration));
        facts.extend(job.head.cost_usd.map(heeler_model::format_usd));
        facts.push(format!("`{}`", job.head.id));
        let tools = self.tool_line();
        [facts.join(" · ")].into_iter().chain(tools).collect::<Vec<_>>().join("\n")
    }

    fn tool_line(&self) -> Option<String> {
        let name = |(tool, count): &(String, u32)| match count {
            1 => format!("`{tool}`"),
            count => format!("`{tool}` ×{count}"),
        };
        let mut names: Vec<String> = self.tools.iter().map(name).collect();
        if self.other_tools > 0 {
            names.push(format!("{} others", self.other_tools));
        }
        (!names.is_empty()).then(|| format!("Tools: {}", names.join(", ")))
    }
}

impl CardNews {
    /// Returns the lines of the news; `None` if the settings show no such news.
    fn text(&self, output: LiveOutput<'_>) -> Option<String> {
        let lines = match self {
            CardNews::Tool(name) => format!("`{name}`"),
            CardNews::ToolResult(result) => {
                block(result, output.tool_result_chars?, KeptPart::Beginning)
            }
            CardNews::Message(_) if !output.shows_messages => return None,
            CardNews::Message(message) => block(message, MESSAGE_CHARS_MAX, KeptPart::End),
            CardNews::Event(_) if !output.shows_system => return None,
            CardNews::Event(event) => block(event, EVENT_CHARS_MAX, KeptPart::Beginning),
        };
        // Lines without a blank line between them would be one paragraph.
        Some(format!("\n{lines}\n"))
    }
}

/// Returns one character more than the beginning that is shown, so that a shortened text is marked.
fn kept_beginning(text: &str, most: usize) -> String {
    text.trim().chars().take(most + 1).collect()
}

/// Returns one character more than the end that is shown, so that a shortened text is marked.
fn kept_end(text: &str, most: usize) -> String {
    let text = text.trim();
    text.chars().skip(text.chars().count().saturating_sub(most + 1)).collect()
}

/// Returns true for events that tell a person something. Prompts and output of commands do not.
fn is_shown_event(subtype: &str) -> bool {
    matches!(subtype, "compact_boundary" | "compacted" | "api_retry" | "rate_limit" | "status")
}

#[derive(Clone, Copy)]
enum KeptPart {
    Beginning,
    End,
}

/// Returns a block of code with the beginning or the end of a text.
fn block(text: &str, most: usize, keep: KeptPart) -> String {
    // Characters that reorder or hide text are shown as numbers.
    let text = reveal_hidden(text.trim()).replace("```", "'''");
    let count = text.chars().count();
    let shown: String = match keep {
        _ if count <= most => text,
        KeptPart::Beginning => text.chars().take(most).chain(['…']).collect(),
        KeptPart::End => ['…'].into_iter().chain(text.chars().skip(count - most)).collect(),
    };
    format!("```\n{shown}\n```")
}

#[cfg(test)]
mod tests {
    use heeler_model::TriggerType;
    use serde_json::json;

    use super::*;

    const ALL: LiveOutput<'_> = LiveOutput {
        shows_card: true,
        streams: true,
        shows_typing: true,
        tool_result_chars: Some(10),
        shows_system: true,
        shows_messages: true,
        acknowledge: None,
    };

    fn job() -> Job {
        let id = "job-2026-01-19-abc123".parse().unwrap();
        Job::new_pending(id, "coder", TriggerType::Chat, jiff::Timestamp::UNIX_EPOCH)
    }

    fn card(rows: &[serde_json::Value]) -> RunCard {
        let mut card = RunCard::default();
        rows.iter().for_each(|row| card.add_row(&JobRow::new(row.clone())));
        card
    }

    #[test]
    fn a_card_counts_tools_and_shows_the_last_result_and_message() {
        let call = |tool: &str| json!({"type": "tool_use", "tool_name": tool, "tool_use_id": "1"});
        let card = card(&[
            call("Bash"),
            call("Read"),
            call("Bash"),
            json!({"type": "tool_result", "tool_use_id": "1", "result": "0123456789abc"}),
            json!({"type": "assistant", "content": "I am\n``` @everyone"}),
        ]);
        assert_eq!(
            card.running_text(&job(), ALL),
            "**Working** (`job-2026-01-19-abc123`)\nTools: `Bash` ×2, `Read`\n\
             ```\n0123456789…\n```\n```\nI am\n''' @everyone\n```"
        );
        let less = LiveOutput { tool_result_chars: None, shows_messages: false, ..ALL };
        assert_eq!(
            card.running_text(&job(), less),
            "**Working** (`job-2026-01-19-abc123`)\nTools: `Bash` ×2, `Read`"
        );
    }

    #[test]
    fn news_are_added_once_and_in_order() {
        let call = json!({"type": "tool_use", "tool_name": "Bash", "tool_use_id": "1"});
        let result = json!({"type": "tool_result", "tool_use_id": "1", "result": "0123456789abc"});
        let mut card =
            card(&[call.clone(), result, json!({"type": "assistant", "content": "I am"})]);
        let (text, count) = card.news_text(ALL);
        assert_eq!(text, "\n`Bash`\n\n```\n0123456789…\n```\n\n```\nI am\n```\n");
        // Without a call that succeeded, the same is added later.
        assert_eq!(card.news_text(ALL), (text, count));
        card.forget_news(count);
        assert_eq!(card.news_text(ALL), (String::new(), 0));
        card.add_row(&JobRow::new(call));
        assert_eq!(card.news_text(ALL), ("\n`Bash`\n".to_owned(), 1));
    }

    #[test]
    fn news_have_limits_and_leave_out_what_the_settings_hide() {
        let message =
            |n: usize| json!({"type": "assistant", "content": format!("{n}é").repeat(400)});
        let mut card = card(&(0..300).map(message).collect::<Vec<_>>());
        assert_eq!(card.news.len(), NEWS_MAX);
        let (text, count) = card.news_text(ALL);
        assert!(count < NEWS_MAX && text.chars().count() < 2 * ADDITION_CHARS_MAX, "{count}");
        assert!(text.contains("…é200é") || text.contains("…200é"), "{text}");
        let silent = LiveOutput { shows_messages: false, ..ALL };
        assert_eq!(card.news_text(silent), (String::new(), NEWS_MAX));
        card.forget_news(usize::MAX);
        assert!(card.news.is_empty());
    }

    #[test]
    fn names_of_tools_have_limits() {
        let rows: Vec<serde_json::Value> = (0..20)
            .map(|n| json!({"type": "tool_use", "tool_name": format!("<!channel> `t{n}`")}))
            .collect();
        let line = card(&rows).tool_line().unwrap();
        assert!(line.starts_with("Tools: `channelt0`, ") && line.ends_with("8 others"), "{line}");
        let long = json!({"type": "tool_use", "tool_name": "x".repeat(900)});
        assert_eq!(card(&[long]).tools[0].0.len(), TOOL_CHARS_MAX);
    }
}
