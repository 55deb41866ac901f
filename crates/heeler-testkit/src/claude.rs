//! The real Claude Code, as `cargo xtask setup` fetched it.

use camino::Utf8PathBuf;

/// Also read by `cargo xtask setup`.
const VERSION: &str = include_str!("../claude-version");

/// Returns the path of the pinned claude.
///
/// # Panics
/// If it was not fetched.
#[expect(clippy::disallowed_methods, reason = "the user's cache is named by the environment")]
pub fn claude() -> Utf8PathBuf {
    let variable = |name| std::env::var(name).ok().map(Utf8PathBuf::from);
    let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    let cache = cache.expect("HOME says where the user's cache is");
    let program = cache.join(format!("heeler-tools/claude-{}/claude", VERSION.trim()));
    assert!(program.is_file(), "{program} is missing: run `cargo xtask setup`, which fetches it");
    program
}
