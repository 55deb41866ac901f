//! Search page for transcripts.

use heeler_query::search::{SearchHitSummary, SearchPage};
use maud::{Markup, html};

use crate::components::{empty_notice, encode_path, format_grouped, highlight_matches};
use crate::transcript::row_speech;
use crate::{DashboardSection, PageFrame};

/// Characters shown before a match.
const BEFORE_CHARS: usize = 80;

/// Characters shown in total.
const SHOWN_CHARS: usize = 320;

/// Data of the search form.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SearchView {
    /// Searched text; empty before the first search.
    pub text: String,
    /// Only jobs of this agent.
    pub agent: String,
    /// All agents, for the selection.
    pub agents: Vec<String>,
    /// Error of the search.
    pub problem: Option<String>,
}

/// Returns the page; `found` is `None` before the first search.
pub fn page(frame: &PageFrame, view: &SearchView, found: Option<&SearchPage>) -> Markup {
    let content = html! {
        div.head { h1 { "Search" } }
        form.filters role="search" aria-label="Search transcripts" {
            div.field.grow {
                label for="s-text" { "Text in transcripts" }
                input #s-text type="search" name="q" value=(view.text) autocomplete="off" required;
            }
            div.field {
                label for="s-agent" { "Agent" }
                select #s-agent name="agent" {
                    option value="" { "All agents" }
                    @for agent in &view.agents {
                        option value=(agent) selected[*agent == view.agent] { (agent) }
                    }
                }
            }
            button.button.primary { "Search" }
        }
        @if let Some(problem) = &view.problem { p.banner.bad role="alert" { (problem) } }
        @match found {
            None => { section.card { (empty_notice("Search transcripts", html! { "Finds prompts, messages and tool calls in all transcripts." })) } }
            Some(found) => { (results(view, found)) }
        }
    };
    frame.page(DashboardSection::Search, "Search", content)
}

fn results(view: &SearchView, found: &SearchPage) -> Markup {
    let count = found.hits.len();
    html! {
        p.muted role="status" {
            @match count {
                0 => { "Nothing found" }
                1 => { "1 row" }
                _ => { (format_grouped(count as i64)) " rows" }
            }
            @if found.more { ", and there are more" }
            " in " (format_grouped(found.transcripts as i64)) " transcripts"
        }
        section.card aria-label="Results" {
            @if found.hits.is_empty() {
                (empty_notice("Nothing found", html! { "Lower-case text also matches upper case." }))
            } @else {
                ol.list role="list" { @for hit in &found.hits { (hit_item(view, hit)) } }
            }
        }
    }
}

fn hit_item(view: &SearchView, hit: &SearchHitSummary) -> Markup {
    // Rows of a job are numbered from zero. A message of a session may consist of many lines of its
    // file.
    let row = hit.id.starts_with("job-").then(|| hit.line.saturating_sub(1));
    let href = match row {
        Some(row) => format!("{}#row-{row}", encode_path("/jobs", &[&hit.id])),
        None => encode_path("/sessions", &[&hit.id]),
    };
    let (speaker, text) = row_speech(&hit.row);
    html! {
        li data-row {
            div.line {
                a.mono href=(href) { (hit.id) }
                span.muted.small { (speaker) @if let Some(row) = row { ", row " (row) } @else { ", line " (hit.line) } }
            }
            p.small.clamp { (highlight_matches(&excerpt_around(&text, &view.text), &view.text)) }
        }
    }
}

/// Returns the part of a text around the first match.
fn excerpt_around(text: &str, wanted: &str) -> String {
    let low = text.to_lowercase();
    let at = low.find(&wanted.to_lowercase()).unwrap_or(0);
    // Lower case may have another length; then the position is approximate.
    let before = low[..at].chars().count().saturating_sub(BEFORE_CHARS);
    let mut part: String = text.chars().skip(before).take(SHOWN_CHARS).collect();
    if before > 0 {
        part.insert(0, '…');
    }
    part
}
