//! Programs that `cargo xtask setup` downloads: real agents, and axe-core.
//!
//! Start at [`claude()`].

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

/// Also read by `cargo xtask setup`.
const CODEX_VERSION: &str = include_str!("../codex-version");
const GEMINI_VERSION: &str = include_str!("../gemini-version");

/// Returns the path of the pinned codex.
///
/// # Panics
///
/// If it was not downloaded.
pub fn codex() -> Utf8PathBuf {
    let package = tools().join(format!("codex-{}", CODEX_VERSION.trim()));
    let vendor = package.join("vendor");
    let platforms = vendor.read_dir_utf8().into_iter().flatten().filter_map(Result::ok);
    let mut programs = platforms
        .flat_map(|platform| ["bin/codex", "codex/codex"].map(|it| platform.path().join(it)));
    programs.find(|program| program.is_file()).unwrap_or_else(|| {
        panic!("{vendor} has no codex: run `cargo xtask setup`, which fetches it")
    })
}

/// Returns the path of the pinned gemini. It needs `node` on PATH.
///
/// # Panics
///
/// If it was not downloaded.
pub fn gemini() -> Utf8PathBuf {
    let package = tools().join(format!("gemini-{}", GEMINI_VERSION.trim()));
    let program = package.join("bundle/gemini.js");
    assert!(program.is_file(), "{program} is missing: run `cargo xtask setup`, which fetches it");
    program
}

/// Also read by `cargo xtask setup`. The version of the package; the program has another one.
const GOOSE_VERSION: &str = include_str!("../goose-version");

/// Returns the path of the pinned goose.
///
/// # Panics
///
/// If it was not downloaded.
pub fn goose() -> Utf8PathBuf {
    let program = tools().join(format!("goose-{}/bin/goose", GOOSE_VERSION.trim()));
    assert!(program.is_file(), "{program} is missing: run `cargo xtask setup`, which fetches it");
    program
}

/// Also read by `cargo xtask setup`.
const QWEN_VERSION: &str = include_str!("../qwen-version");
const NODE_VERSION: &str = include_str!("../node-version");
const OPENCODE_VERSION: &str = include_str!("../opencode-version");
const COPILOT_VERSION: &str = include_str!("../copilot-version");

/// Returns the path of the pinned Node.js, which is newer than that of many systems.
///
/// # Panics
///
/// If it was not downloaded.
pub fn node() -> Utf8PathBuf {
    downloaded(&format!("node-{}/bin/node", NODE_VERSION.trim()))
}

/// Returns the path of the pinned qwen, a script for [`node()`].
///
/// # Panics
///
/// If it was not downloaded.
pub fn qwen() -> Utf8PathBuf {
    downloaded(&format!("qwen-{}/cli-entry.js", QWEN_VERSION.trim()))
}

/// Returns the path of the pinned opencode. Only `cargo xtask setup --agents` fetches it.
///
/// # Panics
///
/// If it was not downloaded.
pub fn opencode() -> Utf8PathBuf {
    downloaded(&format!("opencode-{}/bin/opencode", OPENCODE_VERSION.trim()))
}

/// Returns the path of the pinned copilot. Only `cargo xtask setup --agents` fetches it.
///
/// # Panics
///
/// If it was not downloaded.
pub fn copilot() -> Utf8PathBuf {
    downloaded(&format!("copilot-{}/copilot", COPILOT_VERSION.trim()))
}

/// Also read by `cargo xtask setup`.
const GROK_VERSION: &str = include_str!("../grok-version");
const KIMI_VERSION: &str = include_str!("../kimi-version");
const VIBE_VERSION: &str = include_str!("../vibe-version");
const CLAUDE_ACP_VERSION: &str = include_str!("../claude-acp-version");
const CODEX_ACP_VERSION: &str = include_str!("../codex-acp-version");

/// Returns the path of the pinned grok. Only `cargo xtask setup --agents` fetches it.
///
/// # Panics
///
/// If it was not downloaded.
pub fn grok() -> Utf8PathBuf {
    downloaded(&format!("grok-{}/bin/grok", GROK_VERSION.trim()))
}

/// Returns the path of the pinned kimi, a script for [`node()`]. Only `cargo xtask setup --agents`
/// fetches it.
///
/// # Panics
///
/// If it was not downloaded.
pub fn kimi() -> Utf8PathBuf {
    let version = KIMI_VERSION.trim();
    downloaded(&format!("kimi-{version}/node_modules/@moonshot-ai/kimi-code/dist/main.mjs"))
}

/// Returns the paths of Python and of the pinned vibe, a script for it. Only
/// `cargo xtask setup --agents` fetches them.
///
/// # Panics
///
/// If they were not downloaded.
pub fn vibe() -> (Utf8PathBuf, Utf8PathBuf) {
    let folder = format!("vibe-{}/bin", VIBE_VERSION.trim());
    (downloaded(&format!("{folder}/python")), downloaded(&format!("{folder}/vibe-acp")))
}

/// Returns the path of the pinned ACP adapter of Claude Code, a script for [`node()`]. Only
/// `cargo xtask setup --agents` fetches it.
///
/// # Panics
///
/// If it was not downloaded.
pub fn claude_acp() -> Utf8PathBuf {
    adapter("claude-acp", CLAUDE_ACP_VERSION, "claude-agent-acp")
}

/// Returns the path of the pinned ACP adapter of Codex, a script for [`node()`]. Only
/// `cargo xtask setup --agents` fetches it.
///
/// # Panics
///
/// If it was not downloaded.
pub fn codex_acp() -> Utf8PathBuf {
    adapter("codex-acp", CODEX_ACP_VERSION, "codex-acp")
}

fn adapter(name: &str, version: &str, package: &str) -> Utf8PathBuf {
    let version = version.trim();
    let package = format!("node_modules/@agentclientprotocol/{package}");
    downloaded(&format!("{name}-{version}/{package}/dist/index.js"))
}

fn downloaded(path: &str) -> Utf8PathBuf {
    let program = tools().join(path);
    assert!(program.is_file(), "{program} is missing: run `cargo xtask setup --agents`");
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
