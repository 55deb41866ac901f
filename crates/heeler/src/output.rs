//! Output for people (aligned tables, relative times, sanitized text) and JSON for programs.
//!
//! All text for a terminal passes through [`SafeText`], so that nothing written by an agent or a
//! cloned repository can control it.

use std::fmt;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

use anstyle::Style;
use camino::Utf8Path;
use comfy_table::{Cell, ColumnConstraint, ContentArrangement, Row, Table, Width, presets};
use heeler_config::ConfigFaults;
use heeler_model::{JobStatus, is_hidden_char, iso_millis};
pub(crate) use heeler_model::{one_line, reveal_hidden, reveal_line, sanitize};
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use serde_json::Value;

use crate::failure::CommandResult;
use crate::wrap::{self, VALUE_INDENT};

/// Prints one JSON document, as `--json` promises.
pub(crate) fn print_json(value: &impl Serialize) -> io::Result<()> {
    let mut value = serde_json::to_value(value)?;
    align_times(&mut value);
    let text = serde_json::to_string_pretty(&value)?;
    writeln!(io::stdout().lock(), "{}", escape_json(&text))
}

/// Writes all times with milliseconds: times of one width can be compared and sorted as text.
fn align_times(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(align_times),
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::String(text) if key.ends_with("At") || key.ends_with("_at") => {
                        if let Ok(at) = text.parse::<Timestamp>() {
                            *text = iso_millis(at);
                        }
                    }
                    value => align_times(value),
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Prints one line of JSON; for a program, unchanged.
pub(crate) fn print_json_line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.is_terminal() {
        true => writeln!(out, "{}", escape_json(text)),
        false => writeln!(out, "{text}"),
    }
}

/// Writes hidden characters of a JSON text as `\u009b`. A terminal would obey some of them.
fn escape_json(text: &str) -> String {
    // JSON itself escapes all other characters of this kind.
    let is_hidden = |c: char| c == '\u{7f}' || (!c.is_ascii() && is_hidden_char(c));
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if !is_hidden(c) {
            shown.push(c);
            continue;
        }
        let mut units = [0; 2];
        shown.extend(c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
    }
    shown
}

/// Text for a terminal: untrusted text is sanitized, and only Heeler adds styles.
#[derive(Debug, Clone, Default)]
pub(crate) struct SafeText(String);

impl SafeText {
    /// Creates text in a style.
    pub(crate) fn styled(style: Style, text: &str) -> SafeText {
        SafeText(format!("{style}{}{style:#}", sanitize(text)))
    }

    /// Formats faults with the lines they concern; the renderer sanitizes each part.
    pub(crate) fn from_faults(faults: &ConfigFaults, base: &Utf8Path) -> SafeText {
        SafeText(faults.render(heeler_config::RenderStyle::Coloured, base))
    }

    pub(crate) fn append(mut self, more: impl Into<SafeText>) -> SafeText {
        self.0.push_str(&more.into().0);
        self
    }

    /// Returns true if there is no visible text.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.trim_end().is_empty()
    }

    /// Returns the text without styles.
    pub(crate) fn plain(&self) -> String {
        anstream::adapter::strip_str(&self.0).to_string()
    }

    /// Indents every line except the first.
    pub(crate) fn indented(self, columns: usize) -> SafeText {
        SafeText(self.0.trim_end().replace('\n', &format!("\n{:columns$}", "")))
    }
}

impl From<&str> for SafeText {
    fn from(text: &str) -> SafeText {
        SafeText(sanitize(text))
    }
}

impl From<String> for SafeText {
    fn from(text: String) -> SafeText {
        SafeText::from(text.as_str())
    }
}

impl fmt::Display for SafeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Prints one line to stdout; colours go to terminals only.
pub(crate) fn print_line(text: impl Into<SafeText>) -> io::Result<()> {
    writeln!(anstream::stdout().lock(), "{}", text.into())
}

/// True if notes are suppressed.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Suppresses all further notes, for `--quiet`.
pub(crate) fn set_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Prints a note to stderr, dimmed, so that stdout holds results only; prints nothing with
/// `--quiet`.
pub(crate) fn print_note(text: &str) -> io::Result<()> {
    if QUIET.load(Ordering::Relaxed) {
        return Ok(());
    }
    let lines = wrap::wrap_remark(text, wrap::screen_width(io::stderr()));
    lines.iter().try_for_each(|line| print_error(SafeText::styled(Style::new().dimmed(), line)))
}

/// Prints an error to stderr.
pub(crate) fn print_error(text: impl Into<SafeText>) -> io::Result<()> {
    writeln!(anstream::stderr().lock(), "{}", text.into())
}

/// Prints `name: value` if there is a value; further lines are indented.
pub(crate) fn print_field(name: &str, value: Option<SafeText>) -> io::Result<()> {
    let Some(value) = value else { return Ok(()) };
    let plain = value.plain();
    let fits = |columns: usize| wrap::text_width(&plain) + VALUE_INDENT <= columns;
    // Styled values are short, so only plain ones are wrapped.
    if plain != value.0 || wrap::screen_width(io::stdout()).is_none_or(fits) {
        return print_line(field_label(name).append(" ").append(value.indented(VALUE_INDENT)));
    }
    let lines = wrap::wrap_beside_name(&plain, wrap::screen_width(io::stdout()));
    print_line(field_label(name).append(" ").append(SafeText(lines.join("\n"))))
}

/// Prints `name: command` if there is one, unwrapped, so that it can be copied.
pub(crate) fn print_command(name: &str, text: Option<&str>) -> io::Result<()> {
    let Some(text) = text else { return Ok(()) };
    let has_room = |columns: usize| wrap::text_width(text) + VALUE_INDENT <= columns;
    let gap = if wrap::screen_width(io::stdout()).is_none_or(has_room) { " " } else { "\n" };
    print_line(field_label(name).append(gap).append(text))
}

fn field_label(name: &str) -> SafeText {
    let width = VALUE_INDENT - 1;
    SafeText::styled(Style::new().bold(), &format!("{:<width$}", format!("{name}:")))
}

/// Asks a yes-or-no question at the terminal; Enter chooses the default.
pub(crate) fn confirm(question: &str, default: bool) -> CommandResult<bool> {
    let choices = if default { "[Y/n]" } else { "[y/N]" };
    // The question goes to stderr, because stdout may be a file or a pipe.
    write!(anstream::stderr().lock(), "{} {choices} ", SafeText::from(question))?;
    let mut answer = String::new();
    // The end of input counts as no.
    if io::stdin().read_line(&mut answer)? == 0 {
        return Ok(false);
    }
    Ok(match answer.trim().to_lowercase().as_str() {
        "" => default,
        "y" | "yes" => true,
        // Anything unclear counts as no, whatever the default is.
        _ => false,
    })
}

/// Columns between two table columns.
const COLUMN_GAP: u16 = 2;
/// Narrowest flexible column; below this width it is left out.
const FLEXIBLE_WIDTH_MIN: u16 = 8;

/// Table for a terminal or a pipe: no borders, one line per row.
pub(crate) struct OutputTable {
    table: Table,
    flexible: Vec<usize>,
    /// A column that is never left out, besides the first.
    kept_column: Option<usize>,
    has_headings: bool,
}

impl OutputTable {
    /// Creates a table with headings. On a narrow terminal the `flexible` columns shrink or
    /// disappear, the last ones first, then the others except the first two. The first column holds
    /// IDs to type, so it is never shortened.
    pub(crate) fn new(headings: &[&str], flexible: &[&str]) -> OutputTable {
        // A heading that wraps would break the rule of one line per row.
        let mut header: Row = headings.iter().map(Cell::new).collect::<Vec<_>>().into();
        header.max_height(1);
        let mut table = Table::new();
        table
            .load_style(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_header(header);
        let mut gives_way = Vec::new();
        for (number, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, COLUMN_GAP));
            if flexible.contains(&headings[number]) {
                gives_way.push(number);
            } else {
                column.set_constraint(ColumnConstraint::ContentWidth);
            }
        }
        OutputTable { table, flexible: gives_way, kept_column: None, has_headings: true }
    }

    /// Keeps this column on any terminal, because the rest is meaningless without it.
    pub(crate) fn keep_column(mut self, heading: &str) -> OutputTable {
        let mut headings = self.table.header().into_iter().flat_map(Row::cell_iter);
        self.kept_column = headings.position(|cell| cell.content() == heading);
        self
    }

    /// Creates a table without headings; the column with index `flexible` shrinks.
    pub(crate) fn without_headings(columns: usize, flexible: usize) -> OutputTable {
        // The headings are never printed; the names only mark the flexible column.
        const GIVES_WAY: &str = " ";
        let headings: Vec<&str> =
            (0..columns).map(|number| if number == flexible { GIVES_WAY } else { "" }).collect();
        OutputTable { has_headings: false, ..OutputTable::new(&headings, &[GIVES_WAY]) }
    }

    /// Adds a row; text beyond the terminal's width is cut with an ellipsis.
    pub(crate) fn push(&mut self, cells: Vec<SafeText>) {
        let mut row = Row::from(cells);
        // A pipe gets the whole text: programs and `grep` need it.
        if self.table.width().is_some() {
            row.max_height(1);
        }
        self.table.add_row(row);
    }

    pub(crate) fn print(self) -> io::Result<()> {
        let mut out = anstream::stdout().lock();
        self.lines().iter().try_for_each(|line| writeln!(out, "{line}"))
    }

    /// Returns the table's lines.
    pub(crate) fn lines(mut self) -> Vec<SafeText> {
        self.drop_columns_that_do_not_fit();
        // The table always draws its headings, so an unwanted line is skipped here.
        let above = usize::from(!self.has_headings);
        self.table.lines().skip(above).map(|line| SafeText(line.trim_end().to_owned())).collect()
    }

    fn drop_columns_that_do_not_fit(&mut self) {
        // Without a terminal everything fits.
        let Some(room) = self.table.width() else { return };
        let widths = self.table.column_max_content_widths();
        let least = |number: &usize| match self.flexible.contains(number) {
            true => FLEXIBLE_WIDTH_MIN.min(widths[*number]),
            false => widths[*number],
        };
        let needed = |columns: &[usize]| {
            // A flexible column includes its gap, even as the last column.
            let is_last_fitted = columns.last().is_some_and(|last| self.flexible.contains(last));
            let gaps = columns.len() - usize::from(!is_last_fitted);
            let gaps = COLUMN_GAP.saturating_mul(u16::try_from(gaps).unwrap_or(u16::MAX));
            columns.iter().map(least).fold(gaps, u16::saturating_add)
        };
        let mut kept: Vec<usize> = (0..widths.len()).collect();
        while needed(&kept) > room && kept.len() > 1 {
            let gives_way = |number: &usize| Some(*number) != self.kept_column;
            let is_flexible = |number: &usize| self.flexible.contains(number);
            let flexible = kept.iter().rposition(|it| is_flexible(it) && gives_way(it));
            // The first two columns stay: an ID alone does not say what it is.
            let last = kept.iter().rposition(gives_way).filter(|at| *at > 0 && kept.len() > 2);
            match flexible.or(last) {
                Some(at) => drop(kept.remove(at)),
                None => break,
            }
        }
        // Even the kept columns are too wide together, so the last of them is cut.
        let last = kept.last().copied().filter(|_| needed(&kept) > room);
        let rest = room.saturating_sub(kept.first().map_or(0, &least) + COLUMN_GAP);
        for (number, column) in self.table.column_iter_mut().enumerate() {
            let is_cut = Some(number) == last && number != kept[0];
            if !kept.contains(&number) || is_cut && rest == 0 {
                column.set_constraint(ColumnConstraint::Hidden);
            } else if is_cut {
                let width = Width::Fixed(rest + COLUMN_GAP);
                column.set_constraint(ColumnConstraint::Absolute(width));
            }
        }
    }
}

/// Progress display on stderr for long work.
pub(crate) struct ProgressIndicator(indicatif::ProgressBar);

impl ProgressIndicator {
    /// Starts a bar that counts bytes.
    pub(crate) fn bytes(what: &'static str, hidden: bool) -> ProgressIndicator {
        let style = "{msg} {bar:30} {bytes}/{total_bytes} {eta}";
        ProgressIndicator::start(what, style, hidden)
    }

    /// Starts a spinner for work of unknown length.
    pub(crate) fn spinner(what: &'static str, hidden: bool) -> ProgressIndicator {
        ProgressIndicator::start(what, "{spinner} {msg} {elapsed}", hidden)
    }

    fn start(what: &'static str, style: &str, hidden: bool) -> ProgressIndicator {
        // A hidden bar draws nothing, so callers need no second code path.
        if hidden {
            return ProgressIndicator(indicatif::ProgressBar::hidden());
        }
        // The work reports progress irregularly, and a spinner must move meanwhile.
        let style = indicatif::ProgressStyle::with_template(style).expect("templates are tested");
        let bar = indicatif::ProgressBar::new(0).with_style(style).with_message(what);
        bar.enable_steady_tick(std::time::Duration::from_millis(100));
        ProgressIndicator(bar)
    }

    pub(crate) fn update(&self, done: u64, all: u64) {
        self.0.set_length(all);
        self.0.set_position(done);
    }

    /// Removes the display from the screen.
    pub(crate) fn end(&self) {
        self.0.finish_and_clear();
    }
}

/// Frames of a spinner.
pub(crate) const SPINNER_FRAMES: [char; 10] = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];

/// Width of stderr without a terminal.
const WIDTH: usize = 120;
/// Narrowest terminal that a line is fitted to.
const WIDTH_MIN: usize = 20;

/// Returns the width of stderr; a terminal may change it at any time.
pub(crate) fn width() -> usize {
    let size = rustix::termios::tcgetwinsize(io::stderr());
    let columns = size.map_or(0, |size| usize::from(size.ws_col));
    // Some terminals, such as a serial line, report a width of zero.
    if columns == 0 { WIDTH } else { columns.max(WIDTH_MIN) }
}

/// Cuts a line to this width: a line that wraps cannot be erased.
pub(crate) fn truncate_to_width(text: &str, columns: usize) -> &str {
    let mut used = 0;
    for (at, character) in text.char_indices() {
        // A non-ASCII character may occupy two columns.
        used += if character.is_ascii() { 1 } else { 2 };
        if used > columns {
            return &text[..at];
        }
    }
    text
}

/// Removes colours, and keeps the sequences that move the cursor.
pub(crate) fn strip_colours(frame: &str) -> String {
    let mut text = String::with_capacity(frame.len());
    let mut rest = frame;
    while let Some(at) = rest.find("\x1b[") {
        // A sequence ends with its first letter; `m` is the one that sets colours.
        let end = rest[at + 2..].find(|c: char| c.is_ascii_alphabetic());
        // A sequence without an end is left as it is.
        let Some(end) = end.map(|end| at + 3 + end) else { break };
        text.push_str(&rest[..at]);
        if !rest[..end].ends_with('m') {
            text.push_str(&rest[at..end]);
        }
        rest = &rest[end..];
    }
    text + rest
}

/// Formats a size: `12 MB`.
pub(crate) fn format_size(bytes: u64) -> String {
    indicatif::DecimalBytes(bytes).to_string()
}

/// Formats an ID for a list. Its random end, which commands accept instead of the whole ID, is bold.
pub(crate) fn id_cell(id: &str) -> SafeText {
    match id.rsplit_once('-') {
        Some((start, end)) => {
            SafeText::from(format!("{start}-")).append(SafeText::styled(Style::new().bold(), end))
        }
        None => id.into(),
    }
}

/// Returns the style of a job status.
pub(crate) fn status_style(status: JobStatus) -> Style {
    use anstyle::AnsiColor::{Blue, Cyan, Green, Red, Yellow};
    let color = match status {
        JobStatus::Pending => Blue,
        JobStatus::Running => Cyan,
        JobStatus::Completed => Green,
        JobStatus::Failed => Red,
        JobStatus::Cancelled => Yellow,
    };
    color.on_default()
}

/// Formats a time as `3m ago`, `in 2h`, or a date if it is more than 30 days away.
pub(crate) fn relative_time(at: Timestamp, now: Timestamp) -> String {
    const FAR: SignedDuration = SignedDuration::from_hours(24 * 30);
    let distance = now.duration_since(at);
    let span = format_short_duration(distance.abs());
    match () {
        () if distance.abs() > FAR => at.strftime("%Y-%m-%d").to_string(),
        // "0s ago" reads like an error.
        () if span == "0s" => "now".to_owned(),
        () if distance.is_negative() => format!("in {span}"),
        () => format!("{span} ago"),
    }
}

/// Formats a due time as `in 5m`, or `overdue` if it has passed.
pub(crate) fn due_text(at: Timestamp, now: Timestamp) -> String {
    if at < now { "overdue".to_owned() } else { relative_time(at, now) }
}

/// Cuts text to this number of characters, with an ellipsis if it was longer.
pub(crate) fn truncate_chars(text: &str, chars_max: usize) -> String {
    // Cut between characters: a byte index may lie inside one.
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Formats a duration in its largest unit: `45s`, `12m`, `3h`, `2d`.
pub(crate) fn format_short_duration(length: SignedDuration) -> String {
    let seconds = length.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..86_400 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Smallest price that is shown in lists; less rounds to zero.
const PRICE_MIN: f64 = 0.000_05;

/// Formats a price; returns `None` if it rounds to zero.
pub(crate) fn format_price(usd: Option<f64>) -> Option<String> {
    usd.filter(|usd| *usd >= PRICE_MIN).map(heeler_model::format_usd)
}

/// Formats a number with thousands separators.
pub(crate) fn group_thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a count with its noun: `1 job`, `1,234 jobs`.
pub(crate) fn pluralize(number: u64, word: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {word}{plural}", group_thousands(number))
}

/// Formats the estimated context size, if known.
pub(crate) fn format_token_estimate(estimate: i64) -> Option<SafeText> {
    let estimate = u64::try_from(estimate).ok().filter(|tokens| *tokens > 0)?;
    Some(format!("about {}", group_thousands(estimate)).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_as_people_tell_them() {
        let now: Timestamp = "2026-11-15T12:00:00Z".parse().unwrap();
        let ago = |text: &str| relative_time(text.parse().unwrap(), now);
        assert_eq!(ago("2026-11-15T12:00:00Z"), "now");
        assert_eq!(ago("2026-11-15T11:59:15Z"), "45s ago");
        assert_eq!(ago("2026-11-15T09:00:00Z"), "3h ago");
        assert_eq!(ago("2026-11-15T12:05:30Z"), "in 5m");
        assert_eq!(ago("2026-11-10T12:00:00Z"), "5d ago");
        assert_eq!(ago("2024-01-19T09:00:00Z"), "2024-01-19");
    }

    #[test]
    fn lengths_and_numbers_are_short() {
        assert_eq!(group_thousands(1_234_567), "1,234,567");
        assert_eq!(group_thousands(999), "999");
    }

    /// A table as a terminal of so many columns shows it.
    fn narrow(columns: u16, headings: &[&str], flexible: &[&str], row: &[&str]) -> Vec<String> {
        let mut lines = OutputTable::new(headings, flexible);
        lines.table.set_width(columns);
        lines.push(row.iter().map(|cell| SafeText::from(*cell)).collect());
        lines.lines().iter().map(SafeText::plain).collect()
    }

    #[test]
    fn a_narrow_terminal_shows_what_it_has_room_for_on_one_line_each() {
        let headings = ["ID", "AGENT", "STATUS", "STARTED", "SUMMARY"];
        let row =
            ["job-2026-11-15-k3v9q1", "documentation-writer", "completed", "5s ago", "Did it"];
        let shown = |columns| narrow(columns, &headings, &["AGENT", "SUMMARY"], &row);
        assert_eq!(
            shown(40),
            ["ID                     STATUS", "job-2026-11-15-k3v9q1  completed"]
        );
        for columns in 22..120 {
            let lines = shown(columns);
            assert_eq!(lines.len(), 2, "{columns}: {lines:?}");
            let fits = |line: &String| line.chars().count() <= usize::from(columns);
            assert!(lines.iter().all(fits), "{columns}: {lines:?}");
            assert!(lines[1].starts_with(row[0]), "{columns}: {lines:?}");
        }
        let mut kept = OutputTable::new(&headings, &["SUMMARY"]).keep_column("SUMMARY");
        kept.table.set_width(40);
        kept.push(row.iter().map(|cell| SafeText::from(*cell)).collect());
        assert_eq!(kept.lines()[1].plain(), "job-2026-11-15-k3v9q1  Did it");
        // Of two that are both too wide the second is cut.
        let both = narrow(30, &["ID", "AGENT"], &[], &[row[0], row[1]]);
        assert_eq!(both[1], "job-2026-11-15-k3v9q1  docume…");
    }

    #[test]
    fn the_part_of_an_id_to_type_is_bold() {
        let bold = Style::new().bold();
        let shown = id_cell("job-2026-11-15-k3v9q1").to_string();
        assert_eq!(shown, format!("job-2026-11-15-{bold}k3v9q1{bold:#}"));
        let lines = narrow(40, &["ID", "AGENT"], &[], &["job-2026-11-15-k3v9q1", "a"]);
        let mut styled = OutputTable::new(&["ID", "AGENT"], &[]);
        styled.table.set_width(40);
        styled.push(vec![id_cell("job-2026-11-15-k3v9q1"), "a".into()]);
        let styled: Vec<String> = styled.lines().iter().map(SafeText::plain).collect();
        assert_eq!(styled, lines, "the style takes no room");
    }

    #[test]
    fn a_line_is_cut_to_its_columns() {
        assert_eq!(truncate_to_width("abcdef", 3), "abc");
        assert_eq!(truncate_to_width("abc", 3), "abc");
        assert_eq!(truncate_to_width("日本語", 5), "日本");
        assert_eq!(truncate_to_width("", 0), "");
    }

    #[test]
    fn agent_text_cannot_steer_the_terminal() {
        assert_eq!(
            sanitize("a\x1b[31mred\x1b[0m\x07\x1b]0;title\x07b"),
            "ared\\u{7}\\u{1b}]0;title\\u{7}b"
        );
        assert_eq!(
            sanitize("\u{9b}31m\u{202e}txt.exe\u{2066}\r"),
            "\\u{9b}31m\\u{202e}txt.exe\\u{2066}\\u{d}"
        );
        assert_eq!(one_line("two\n  lines\t here"), "two lines here");
    }

    #[test]
    fn json_holds_no_character_that_a_terminal_obeys() {
        let text = "a\u{9b}2J\u{202e}\u{7f}\u{e0041}ä\n";
        let json = serde_json::to_string(text).unwrap();
        let shown = escape_json(&json);
        assert_eq!(shown, r#""a\u009b2J\u202e\u007f\udb40\udc41ä\n""#);
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), text);
    }

    #[test]
    fn only_our_own_styles_reach_the_terminal() {
        let bold = Style::new().bold();
        let text = SafeText::styled(bold, "ours \x1b[45mtheirs").append("\x1b[45mtheirs");
        assert_eq!(text.to_string(), format!("{bold}ours theirs{bold:#}theirs"));
    }
}
