//! Format of a daemon's log lines for people: time, event, fields.
//!
//! `09:00:00 due  schedule=coder/nightly job=job-2026-11-15-a1b2c3`

use std::fmt::{self, Write as _};

use anstyle::{AnsiColor, Style};
use jiff::tz::TimeZone;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::output;
use crate::process_env;

/// Formats each event as one line.
pub(super) struct LogLineFormat {
    /// True for a terminal: times are local and short, and colours are on.
    pub(super) is_terminal: bool,
}

impl<S, N> FormatEvent<S, N> for LogLineFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut to: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let now = process_env::now();
        let time = match self.is_terminal {
            true => now.to_zoned(TimeZone::system()).strftime("%H:%M:%S").to_string(),
            false => heeler_model::iso_millis(now),
        };
        let mut fields = LogEventFields::default();
        event.record(&mut fields);
        writeln!(to, "{}", self.line(&time, *event.metadata().level(), &fields))
    }
}

impl LogLineFormat {
    fn line(&self, time: &str, level: Level, fields: &LogEventFields) -> String {
        let (word, style) = match level {
            Level::ERROR => ("error: ", AnsiColor::Red.on_default()),
            Level::WARN => ("warning: ", AnsiColor::Yellow.on_default()),
            Level::INFO => ("", Style::new()),
            _ => ("debug: ", Style::new().dimmed()),
        };
        let dimmed = Style::new().dimmed();
        // Escape sequences would make a log file unreadable for other programs.
        let (style, dimmed) =
            if self.is_terminal { (style, dimmed) } else { (Style::new(), Style::new()) };
        let mut line = format!("{dimmed}{time}{dimmed:#} {style}{word}{}{style:#}", fields.message);
        if !fields.fields.is_empty() {
            let _ = write!(line, "  {dimmed}{}{dimmed:#}", fields.fields.join(" "));
        }
        line
    }
}

/// Message and fields of an event.
#[derive(Debug, Default)]
struct LogEventFields {
    message: String,
    fields: Vec<String>,
}

impl LogEventFields {
    fn add(&mut self, name: &str, value: &str) {
        // Errors and names may hold untrusted text of an agent.
        let value = output::one_line(value);
        match name {
            "message" => self.message = value,
            // Quoted, so that the end of the value is clear.
            _ if value.contains(' ') => self.fields.push(format!("{name}={value:?}")),
            _ => self.fields.push(format!("{name}={value}")),
        }
    }
}

impl Visit for LogEventFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field.name(), value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field.name(), &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(&str, &str)]) -> LogEventFields {
        let mut fields = LogEventFields::default();
        pairs.iter().for_each(|(name, value)| fields.add(name, value));
        fields
    }

    #[test]
    fn a_line_says_when_what_and_to_what() {
        let lines = LogLineFormat { is_terminal: false };
        let event =
            fields(&[("message", "due"), ("schedule", "coder/nightly"), ("why", "two words")]);
        let line = lines.line("09:00:00", Level::INFO, &event);
        assert_eq!(line, "09:00:00 due  schedule=coder/nightly why=\"two words\"");
        let line = lines.line("09:00:00", Level::WARN, &event);
        assert!(line.starts_with("09:00:00 warning: due  "), "{line}");
    }

    #[test]
    fn what_an_agent_wrote_stays_on_its_line_and_steers_nothing() {
        let event = fields(&[("message", "a\x1b[31mb\nc")]);
        assert_eq!(event.message, "ab c");
    }
}
