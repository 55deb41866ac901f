//! Programs that `cargo xtask setup` downloads: the real Claude Code, and axe-core.
//!
//! Start at [`claude()`] and [`axe`].

use camino::Utf8PathBuf;

/// Also read by `cargo xtask setup`.
const VERSION: &str = include_str!("../claude-version");

/// Returns the path of the pinned claude.
///
/// # Panics
///
/// If it was not downloaded.
pub fn claude() -> Utf8PathBuf {
    let program = tools().join(format!("claude-{}/claude", VERSION.trim()));
    assert!(program.is_file(), "{program} is missing: run `cargo xtask setup`, which fetches it");
    program
}

#[expect(clippy::disallowed_methods, reason = "the user's cache is named by the environment")]
fn tools() -> Utf8PathBuf {
    let variable = |name| std::env::var(name).ok().map(Utf8PathBuf::from);
    let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    cache.expect("HOME says where the user's cache is").join("heeler-tools")
}

/// Also read by `cargo xtask setup`.
const AXE_VERSION: &str = include_str!("../axe-version");

/// Returns axe-core, a script that finds accessibility problems of a page.
///
/// # Panics
///
/// If it was not downloaded.
pub fn axe() -> String {
    let script = tools().join(format!("axe-{}/axe.min.js", AXE_VERSION.trim()));
    std::fs::read_to_string(&script).unwrap_or_else(|_| {
        panic!("{script} is missing: run `cargo xtask setup`, which fetches it")
    })
}
