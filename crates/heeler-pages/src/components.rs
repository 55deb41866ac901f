//! Components that many pages share: status, times, money, names, links.

pub use heeler_model::format_usd;
use std::fmt::Write as _;

use heeler_config::reveal_hidden;
use jiff::Timestamp;
use maud::{Markup, PreEscaped, html};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::PageFrame;

/// Renders untrusted text in a line: without control characters, and isolated so that its text
/// direction does not affect its surroundings.
pub fn isolated_text(text: &str) -> Markup {
    html! { bdi { (visible_line(text)) } }
}

/// Returns text as one line: whitespace becomes single spaces; control characters, invisible ones
/// and those that change the text direction are written as numbers.
pub fn visible_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for word in text.split_ascii_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(&reveal_hidden(word));
    }
    line
}

/// Length limit of a line that is shown clamped.
pub(crate) const CLAMPED_CHARS_MAX: usize = 300;

/// Returns the beginning of a text as one line.
pub(crate) fn clamp_line(text: &str) -> String {
    // By characters, so that no character is cut.
    match text.char_indices().nth(CLAMPED_CHARS_MAX) {
        Some((end, _)) => visible_line(&text[..end]) + "…",
        None => visible_line(text),
    }
}

/// Renders a trusted line in which text between backticks becomes code.
pub(crate) fn inline_code(text: &str) -> Markup {
    let line = visible_line(text);
    let parts: Vec<&str> = line.split('`').collect();
    // An unpaired backtick is ordinary text.
    if parts.len().is_multiple_of(2) {
        return html! { (line) };
    }
    html! {
        @for (place, part) in parts.iter().enumerate() {
            @if place.is_multiple_of(2) { (part) } @else { code { (part) } }
        }
    }
}

/// Characters that are percent-encoded in a path segment.
// All others are encoded, so that a name can contain slashes, dots and quotes.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Percent-encodes text for a path segment or a query value.
pub fn encode_segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

/// Appends percent-encoded segments to a path: `encode_path("/agents", &["a b"])`.
pub fn encode_path(start: &str, names: &[&str]) -> String {
    let mut path = start.to_owned();
    for name in names {
        path.push('/');
        path += &encode_segment(name);
    }
    path
}

/// Renders a status: an icon and a word.
pub fn status_badge(word: &str) -> Markup {
    // The attribute selects the icon; the word makes it readable without colours.
    html! { span.status data-s=(word) { (visible_line(word).replace('_', " ")) } }
}

/// Renders the status of a job; `dead` means that the record says `running` but no process exists.
pub fn job_status_badge(word: &str, dead: bool) -> Markup {
    if dead {
        return html! {
            span.status data-s="dead" title="Its process is gone; the next start of the daemon resolves it" { "dead" }
        };
    }
    status_badge(word)
}

/// Renders a time relative to now; a script keeps it current.
pub fn relative_time(frame: &PageFrame, at: Timestamp) -> Markup {
    // The server's text is shown until the script runs, and without scripts.
    let exact = format_exact(frame, at);
    html! { time data-rel datetime=(at) title=(exact) { (format_relative(at, frame.now)) } }
}

/// Like [`relative_time`], with a dash for `None`.
pub fn optional_relative_time(frame: &PageFrame, at: Option<Timestamp>) -> Markup {
    at.map_or_else(|| html! { span.muted { "–" } }, |at| relative_time(frame, at))
}

/// Renders the time elapsed since `at`; a script keeps it current.
pub fn elapsed_time(frame: &PageFrame, at: Timestamp) -> Markup {
    // A clock that was set back must not show a negative time.
    let seconds = frame.now.as_second().saturating_sub(at.as_second());
    html! { time data-since datetime=(at) title=(format_exact(frame, at)) { (format_clock(seconds)) } }
}

/// Returns a time in the fleet's time zone.
pub fn format_exact(frame: &PageFrame, at: Timestamp) -> String {
    at.to_zoned(frame.zone.clone()).strftime("%Y-%m-%d %H:%M:%S %Z").to_string()
}

/// Returns a time relative to now: `5 min ago`, `in 3 h`.
pub fn format_relative(at: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second().saturating_sub(at.as_second());
    match seconds {
        0 => "now".to_owned(),
        1.. => format!("{} ago", format_span(seconds)),
        _ => format!("in {}", format_span(seconds.saturating_neg())),
    }
}

/// Returns seconds in the largest unit: `42 s`, `5 min`, `3 h`, `2 d`.
pub fn format_span(seconds: i64) -> String {
    let units = [(86_400, "d"), (3_600, "h"), (60, "min")];
    match units.into_iter().find(|(size, _)| seconds >= *size) {
        Some((size, unit)) => format!("{} {unit}", seconds / size),
        None => format!("{} s", seconds.max(0)),
    }
}

/// Returns seconds as a clock: `1:05`, `2:01:09`.
pub fn format_clock(seconds: i64) -> String {
    let seconds = seconds.max(0);
    let (hours, minutes, rest) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes}:{rest:02}"),
        _ => format!("{hours}:{minutes:02}:{rest:02}"),
    }
}

/// Returns a duration in the form of the clock that ran meanwhile: `40 ms`, `1.8 s`, `12 s`, `1:05`,
/// `2:01:09`.
pub fn format_clock_duration(seconds: f64) -> String {
    match seconds {
        // Just below one second, so that rounding does not show `1000 ms`.
        s if s < 0.9995 => format!("{:.0} ms", s.max(0.0) * 1_000.0),
        s if s < 9.95 => format!("{s:.1} s"),
        s if s < 60.0 => format!("{s:.0} s"),
        s => format_clock(s as i64),
    }
}

/// Returns a number with separated thousands: `12 345`.
pub fn format_grouped(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut text = if number < 0 { "-".to_owned() } else { String::new() };
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            // A narrow space that does not break.
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// Returns a number of bytes: `512 B`, `1.5 MB`.
pub fn format_bytes(count: u64) -> String {
    let units = [(1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    let count = count as f64;
    match units.into_iter().find(|(size, _)| count >= *size) {
        Some((size, unit)) => format!("{:.1} {unit}", count / size),
        None => format!("{count:.0} B"),
    }
}

pub fn agent_link(name: &str) -> Markup {
    html! { a href=(encode_path("/agents", &[name])) title=(visible_line(name)) { (isolated_text(name)) } }
}

pub fn job_link(id: &str) -> Markup {
    html! { a.mono.nowrap href=(encode_path("/jobs", &[id])) { (id) } }
}

pub fn session_link(id: &str) -> Markup {
    html! { a.mono.nowrap href=(encode_path("/sessions", &[id])) { (id) } }
}

/// Links a workflow run.
pub fn run_link(id: &str) -> Markup {
    html! { a.mono.nowrap href=(encode_path("/runs", &[id])) { (id) } }
}

/// Returns the stylesheet of pages with transcripts, graphs, diffs or questions.
pub(crate) fn activity_styles() -> Markup {
    html! { link rel="stylesheet" href=(crate::assets::href("work.css")); }
}

/// Returns the beginning of a text, with a note of the number of omitted bytes.
pub(crate) fn truncate_text(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        // Hidden characters are made visible also in short texts.
        return reveal_hidden(text);
    }
    let end = text.floor_char_boundary(bytes_max);
    format!("{}\n… [{} more bytes]", reveal_hidden(&text[..end]), text.len() - end)
}

/// Renders the selection of an agent.
pub(crate) fn agent_field(agents: &[String], chosen: &str) -> Markup {
    choice_field("agent", ("Agent", "All agents"), agents, chosen)
}

/// Renders the selection of a host.
pub(crate) fn host_field(hosts: &[String], chosen: &str) -> Markup {
    choice_field("host", ("Host", "All hosts"), hosts, chosen)
}

/// Renders the selection of a name; a chosen one that no longer exists stays selectable.
fn choice_field(key: &str, (label, all): (&str, &str), names: &[String], chosen: &str) -> Markup {
    let id = format!("f-{key}");
    html! {
        div.field {
            label for=(id) { (label) }
            select id=(id) name=(key) {
                option value="" { (all) }
                @if !chosen.is_empty() && !names.iter().any(|name| name == chosen) {
                    option value=(chosen) selected { (visible_line(chosen)) }
                }
                @for name in names {
                    option value=(name) selected[name == chosen] { (visible_line(name)) }
                }
            }
        }
    }
}

/// Renders the selection of a status.
pub(crate) fn state_field<'w>(words: impl Iterator<Item = &'w str>, chosen: &str) -> Markup {
    html! {
        div.field {
            label for="f-status" { "State" }
            select #f-status name="status" {
                option value="" { "All states" }
                @for word in words { option value=(word) selected[word == chosen] { (word) } }
            }
        }
    }
}

/// Renders the notice for an empty list, with a suggestion.
pub fn empty_notice(title: &str, more: Markup) -> Markup {
    html! { div.empty { strong { (title) } p { (more) } } }
}

/// Renders the used share of a limit, with a text for screen readers.
pub fn meter(used: f64, limit: f64, words: &str) -> Markup {
    // A limit of zero is exceeded by any amount, which the class shows.
    let share = if limit > 0.0 { (used / limit).clamp(0.0, 1.0) } else { 0.0 };
    let class = if used > limit { "meter over" } else { "meter" };
    html! {
        div class=(class) role="img" aria-label=(words) {
            svg viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true" {
                rect width=(format!("{:.1}", share * 100.0)) height="1" {}
            }
        }
    }
}

/// Returns a URL with query parameters; empty ones are omitted.
pub fn url_with_params(path: &str, params: &[(&str, &str)]) -> String {
    let mut address = path.to_owned();
    let given = params.iter().filter(|(_, value)| !value.is_empty());
    for (number, (key, value)) in given.enumerate() {
        let sign = if number == 0 { '?' } else { '&' };
        write!(address, "{sign}{key}={}", encode_segment(value))
            .expect("a string takes everything");
    }
    address
}

/// Renders text with the matches of a search highlighted, ignoring case.
pub fn highlight_matches(text: &str, wanted: &str) -> Markup {
    let line = visible_line(text);
    let (low, low_wanted) = (line.to_lowercase(), wanted.to_lowercase());
    // If lower case has another length, its offsets are not valid in the text.
    if low_wanted.is_empty() || low.len() != line.len() {
        return html! { (line) };
    }
    let mut out = String::new();
    let mut from = 0;
    for (at, found) in low.match_indices(&low_wanted) {
        let end = at + found.len();
        // A match may begin inside a character if lower case changed its bytes.
        if !line.is_char_boundary(at) || !line.is_char_boundary(end) {
            continue;
        }
        let (before, hit) = (&line[from..at], &line[at..end]);
        // Each part is escaped by the template before the parts are joined.
        out += &html! { (before) mark { (hit) } }.into_string();
        from = end;
    }
    let rest = &line[from..];
    html! { (PreEscaped(out)) (rest) }
}
