//! Diagnostics and the daemon's log. Written to stderr, never to stdout.
//!
//! A runner's stderr is a file that is kept, so no secret of the run may be written here. Other
//! crates may log their arguments, so only their warnings are logged. Start at [`start`].

mod daemon_log;
mod line_format;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal as _, Write};
use std::sync::{PoisonError, RwLock};

use heeler_model::redact::SecretRedactor;
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, fmt};

pub(crate) use daemon_log::log_to_file;

use crate::output;

/// Secrets that must not be logged, once they are known.
static SECRETS: RwLock<Option<SecretRedactor>> = RwLock::new(None);

fn known_secrets() -> Option<SecretRedactor> {
    // The value is replaced as a whole, so a panic elsewhere leaves it usable.
    SECRETS.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogOutputFormat {
    /// Remarks of a command next to its output.
    Remarks,
    /// Log of a daemon, as lines for people.
    Lines,
    /// Log of a daemon, as JSON.
    Json,
}

/// Starts logging at the level given by `-v`, `-q` or `HEELER_LOG`.
pub(crate) fn start(form: LogOutputFormat, verbose: u8, quiet: bool, wanted: Option<&str>) {
    // The log of a daemon is its output, so it is more verbose than the remarks of a command.
    let default = match (quiet, verbose) {
        (true, _) if form == LogOutputFormat::Remarks => "error",
        (true, _) => "warn",
        (false, 0) if form == LogOutputFormat::Remarks => "warn",
        (false, 0) => "info",
        (false, 1) => "info",
        (false, 2) => "debug",
        (false, _) => "trace",
    };
    let filter = match wanted.map(EnvFilter::try_new) {
        Some(Ok(filter)) => filter,
        Some(Err(error)) => {
            // An invalid filter must not fail the command, nor may a note that cannot be written.
            drop(output::print_note(&format!("HEELER_LOG is invalid: {error}")));
            EnvFilter::new(default)
        }
        None => EnvFilter::new(default),
    };
    // These crates log requests and addresses, which may hold secrets of hooks.
    let filter =
        ["ureq=warn", "ureq_proto=warn", "rustls=warn"].iter().fold(filter, |filter, quiet| {
            filter.add_directive(quiet.parse().expect("a target and a level are a directive"))
        });
    // The secrets are looked up for each line, because they become known after logging has started.
    let to_stderr = || RedactingWriter { to: io::stderr(), secrets: known_secrets() };
    let ansi = io::stderr().is_terminal();
    if form == LogOutputFormat::Remarks {
        return subscriber(filter, ansi, to_stderr).init();
    }
    let to_stderr = || RedactingWriter { to: daemon_log::DaemonStderr, secrets: known_secrets() };
    let to_file = || RedactingWriter { to: daemon_log::DaemonLogFile, secrets: known_secrets() };
    // The file has full timestamps and no colours, whatever stderr is.
    let lines = line_format::LogLineFormat { is_terminal: false };
    let kept = fmt::layer().with_ansi(false).event_format(lines).with_writer(to_file);
    let log = tracing_subscriber::registry().with(filter).with(filter_fn(is_loggable)).with(kept);
    let shown = fmt::layer().with_ansi(ansi).with_writer(to_stderr);
    match form {
        LogOutputFormat::Json => {
            let json = shown.json().flatten_event(true);
            log.with(json.with_current_span(false).with_span_list(false)).init();
        }
        _ => log.with(shown.event_format(line_format::LogLineFormat { is_terminal: ansi })).init(),
    }
}

/// Removes secrets from all further log lines and panic messages.
pub(crate) fn redact_secrets(secrets: &SecretRedactor) {
    // Only a runner sets them, for each run that it executes.
    *SECRETS.write().unwrap_or_else(PoisonError::into_inner) = Some(secrets.clone());
    // A panic message may quote a value, and the standard hook would write it unredacted.
    std::panic::set_hook(Box::new(|panic| {
        let trace = Backtrace::capture();
        let text = match trace.status() {
            BacktraceStatus::Captured => format!("{panic}\n{trace}\n"),
            _ => format!("{panic}\n"),
        };
        let mut clean = RedactingWriter { to: io::stderr(), secrets: known_secrets() };
        // If stderr is closed, there is nothing left to do.
        drop(clean.write_all(text.as_bytes()));
    }));
}

fn subscriber(
    filter: EnvFilter,
    ansi: bool,
    writer: impl for<'w> MakeWriter<'w> + Send + Sync + 'static,
) -> impl Subscriber + Send + Sync {
    let plain = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    plain.with_ansi(ansi).with_target(false).without_time().finish().with(filter_fn(is_loggable))
}

/// Returns true if an event may be logged, independent of the filter.
fn is_loggable(what: &Metadata<'_>) -> bool {
    // In tracing the more verbose level is the greater one.
    *what.level() <= Level::WARN || what.target().starts_with("heeler")
}

/// Writer that removes secrets. Each write must be a complete text.
struct RedactingWriter<W> {
    to: W,
    secrets: Option<SecretRedactor>,
}

impl<W: Write> Write for RedactingWriter<W> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        match &self.secrets {
            Some(secrets) => self.to.write_all(&secrets.redact_bytes(text))?,
            None => self.to.write_all(text)?,
        }
        // The redacted text may be shorter; the caller must not write a rest of it again.
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct TestLogBuffer(Arc<Mutex<Vec<u8>>>);

    impl Write for TestLogBuffer {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(text)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(wanted: &str, log: fn()) -> String {
        let kept = TestLogBuffer::default();
        let to = kept.clone();
        let secrets = SecretRedactor::new(&["hunter2hunter2".to_owned()]);
        let writer = move || RedactingWriter { to: to.clone(), secrets: Some(secrets.clone()) };
        tracing::subscriber::with_default(subscriber(EnvFilter::new(wanted), false, writer), log);
        let kept = kept.0.lock().unwrap().clone();
        String::from_utf8(kept).unwrap()
    }

    #[test]
    fn what_is_logged_holds_no_secret() {
        let log = logged("trace", || {
            tracing::info!(target: "heeler_runner", key = "hunter2hunter2", "it is {}", "hunter2hunter2");
        });
        assert_eq!(log, " INFO it is [secret] key=\"[secret]\"\n");
    }

    #[test]
    fn only_warnings_of_others_are_told_whatever_is_asked_for() {
        for wanted in ["trace", "rmcp=trace,heeler=trace", "rmcp::handler=trace,heeler=trace"] {
            let log = logged(wanted, || {
                tracing::trace!(target: "rmcp::handler", "arguments");
                tracing::info!(target: "hyper", "header");
                tracing::warn!(target: "rmcp::handler", "warning");
                tracing::trace!(target: "heeler::live", "ours");
            });
            assert_eq!(log, " WARN warning\nTRACE ours\n", "{wanted}");
        }
    }
}
