//! Diagnostics for people who debug: to stderr, never to stdout.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::output;

/// Starts logging at the level that `-v`, `-q` or `HEELER_LOG` asks for.
pub(crate) fn start(verbose: u8, quiet: bool, wanted: Option<&str>) {
    let default = match (quiet, verbose) {
        (true, _) => "error",
        (false, 0) => "warn",
        (false, 1) => "info",
        (false, 2) => "debug",
        (false, _) => "trace",
    };
    let filter = match wanted.map(EnvFilter::try_new) {
        Some(Ok(filter)) => filter,
        Some(Err(error)) => {
            // Logging is not worth a failure, and where this cannot be said nobody listens.
            drop(output::note(&format!("HEELER_LOG is not understood: {error}")));
            EnvFilter::new(default)
        }
        None => EnvFilter::new(default),
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .without_time()
        .init();
}
