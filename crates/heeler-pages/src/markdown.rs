//! Markdown of agents as safe HTML.
//!
//! HTML in the text is shown as text. Links do not reveal the dashboard's URL, images become links,
//! and a sanitiser then removes everything that is not on a short list.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use ammonia::{Builder, UrlRelative};
use maud::{Markup, PreEscaped, html};
use pulldown_cmark::{CowStr, Event, HeadingLevel, LinkType, Options, Parser, Tag, TagEnd};

use crate::components::visible_line;

/// Size limit of text rendered as markdown; longer text is shown unformatted.
pub const MARKDOWN_BYTES_MAX: usize = 128 * 1024;

/// Bytes of a text that are read for a line.
const LINE_BYTES_MAX: usize = 4 * 1024;

/// Most nesting levels; deeper text is shown unformatted, because the time grows with the square of
/// the depth.
const DEPTH_MAX: usize = 32;

/// Allowed elements.
const TAGS: [&str; 26] = [
    "a",
    "blockquote",
    "br",
    "code",
    "del",
    "em",
    "h3",
    "h4",
    "h5",
    "h6",
    "hr",
    "li",
    "ol",
    "p",
    "pre",
    "strong",
    "sub",
    "sup",
    "table",
    "tbody",
    "td",
    "th",
    "thead",
    "tr",
    "ul",
    "span",
];

static SANITISER: LazyLock<Builder<'static>> = LazyLock::new(|| {
    let mut builder = Builder::empty();
    builder
        .tags(HashSet::from(TAGS))
        .tag_attributes(HashMap::from([
            ("a", HashSet::from(["href"])),
            ("ol", HashSet::from(["start"])),
        ]))
        .url_schemes(HashSet::from(["http", "https", "mailto"]))
        .url_relative(UrlRelative::Deny)
        // Sites that a link leads to must not learn the dashboard's address or reach its window.
        .link_rel(Some("noopener noreferrer nofollow"));
    builder
});

/// Returns markdown as HTML.
pub fn markdown(text: &str) -> Markup {
    if text.len() > MARKDOWN_BYTES_MAX {
        return html! { pre.code { (text) } };
    }
    if depth(Parser::new_ext(text, options())) > DEPTH_MAX {
        return html! { pre.code { (text) } };
    }
    let events = Parser::new_ext(text, options()).map(sanitise_event);
    let mut out = String::with_capacity(text.len() * 2);
    pulldown_cmark::html::push_html(&mut out, events);
    html! { div.prose { (PreEscaped(SANITISER.clean(&out).to_string())) } }
}

/// Returns markdown as one line of plain text, for lists; blocks are separated by ` · `.
pub fn markdown_line(text: &str) -> String {
    let start = &text[..text.floor_char_boundary(LINE_BYTES_MAX)];
    let mut line = String::with_capacity(start.len());
    let mut is_apart = false;
    for event in Parser::new_ext(start, options()) {
        let part = match event {
            Event::Text(text) | Event::Code(text) | Event::Html(text) | Event::InlineHtml(text) => {
                text
            }
            Event::TaskListMarker(true) => CowStr::Borrowed("☑ "),
            Event::TaskListMarker(false) => CowStr::Borrowed("☐ "),
            Event::SoftBreak | Event::HardBreak => CowStr::Borrowed(" "),
            Event::Start(tag) => {
                is_apart |= is_block(&tag);
                continue;
            }
            _ => continue,
        };
        if std::mem::take(&mut is_apart) && !line.is_empty() {
            line.push_str(" · ");
        }
        line.push_str(&part);
    }
    visible_line(&line)
}

fn is_block(tag: &Tag<'_>) -> bool {
    matches!(
        tag,
        Tag::Paragraph | Tag::Heading { .. } | Tag::Item | Tag::TableCell | Tag::CodeBlock(_)
    )
}

fn options() -> Options {
    Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS
}

/// Returns the nesting depth of a document.
fn depth<'t>(events: impl Iterator<Item = Event<'t>>) -> usize {
    let (mut now, mut most) = (0_usize, 0);
    for event in events {
        match event {
            Event::Start(_) => now += 1,
            Event::End(_) => now = now.saturating_sub(1),
            _ => {}
        }
        most = most.max(now);
    }
    most
}

/// Replaces events that must not be rendered: HTML becomes text, images become links.
fn sanitise_event(event: Event<'_>) -> Event<'_> {
    match event {
        // The sanitiser would remove it, and people could not see what the agent wrote.
        Event::Html(text) | Event::InlineHtml(text) => Event::Text(text),
        Event::Start(Tag::HtmlBlock) => Event::Start(Tag::Paragraph),
        Event::End(TagEnd::HtmlBlock) => Event::End(TagEnd::Paragraph),
        // Viewing a page must not fetch anything from other sites.
        Event::Start(Tag::Image { dest_url, .. }) => Event::Start(Tag::Link {
            link_type: LinkType::Inline,
            dest_url,
            title: CowStr::Borrowed(""),
            id: CowStr::Borrowed(""),
        }),
        Event::End(TagEnd::Image) => Event::End(TagEnd::Link),
        Event::Start(Tag::Heading { level, id, classes, attrs }) => {
            Event::Start(Tag::Heading { level: demote_heading(level), id, classes, attrs })
        }
        Event::End(TagEnd::Heading(level)) => Event::End(TagEnd::Heading(demote_heading(level))),
        // A checkbox is a form element, which the sanitiser removes.
        Event::TaskListMarker(true) => Event::Text(CowStr::Borrowed("☑ ")),
        Event::TaskListMarker(false) => Event::Text(CowStr::Borrowed("☐ ")),
        other => other,
    }
}

/// Returns the level of an agent's heading below those of the page.
fn demote_heading(level: HeadingLevel) -> HeadingLevel {
    match level {
        HeadingLevel::H1 => HeadingLevel::H3,
        HeadingLevel::H2 => HeadingLevel::H4,
        HeadingLevel::H3 => HeadingLevel::H5,
        _ => HeadingLevel::H6,
    }
}
