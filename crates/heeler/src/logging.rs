//! Diagnostics for people who debug: to stderr, never to stdout.

use tracing_subscriber::EnvFilter;

/// Starts logging at the level that `-v`, `-q` or `HEELER_LOG` asks for.
pub(crate) fn start(verbose: u8, quiet: bool) {
    let default = match (quiet, verbose) {
        (true, _) => "error",
        (false, 0) => "warn",
        (false, 1) => "info",
        (false, 2) => "debug",
        (false, _) => "trace",
    };
    let filter = EnvFilter::builder()
        .with_env_var("HEELER_LOG")
        .try_from_env()
        .unwrap_or_else(|_| EnvFilter::new(default));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .without_time()
        .init();
}
