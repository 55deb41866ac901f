//! Claude's config directory in a sandbox.
//!
//! Claude runs hooks that its settings name, also when a person starts it later. Therefore an agent
//! in a sandbox sees the settings but cannot write them, and writes only the sessions of its own
//! working directory. Everything else is private to the run. Start at [`mount_claude_folder`].

use std::io;

use camino::Utf8Path;
use heeler_config::{CLAUDE_FOLDER_ENTRIES, CLAUDE_STATE_FILE};
use indexmap::IndexMap;
use serde_json::Value as Json;

use super::sandbox_mounts::{SandboxMount, SandboxMounts};

/// File with the login of Claude. Claude replaces the login in it before it expires: a sandbox that
/// could not write it would log the person out.
const LOGIN_FILE: &str = ".credentials.json";

/// Adds the mounts of the config directory, whose sessions are in `sessions`.
pub(super) fn mount_claude_folder(
    mounts: &mut SandboxMounts,
    sessions: &Utf8Path,
    working_directory: &Utf8Path,
    env: &IndexMap<String, String>,
) -> io::Result<()> {
    let Some(config) = sessions.parent() else { return Ok(()) };
    let config = config.canonicalize_utf8()?;
    let is_set = env.get("CLAUDE_CONFIG_DIR").is_some_and(|folder| !folder.is_empty());
    let home = env.get("HOME").map(|home| working_directory.join(home));
    let state = match home.filter(|_| !is_set) {
        Some(home) => home.join(CLAUDE_STATE_FILE),
        None => config.join(CLAUDE_STATE_FILE),
    };
    mounts.set(config.clone(), SandboxMount::EmptyFolder);
    for name in CLAUDE_FOLDER_ENTRIES {
        let Ok(entry) = config.join(name).canonicalize_utf8() else { continue };
        // A link that leads elsewhere shows nothing that the sandbox hides.
        if entry == config.join(name) {
            mounts.set(entry, SandboxMount::ReadOnly);
        }
    }
    let login = config.join(LOGIN_FILE);
    if login.symlink_metadata().is_ok_and(|found| found.is_file()) {
        mounts.set(login, SandboxMount::Writable);
    }
    if let Ok(text) = std::fs::read(&state) {
        let copy = reduce_state(&text, working_directory);
        mounts.set(config.join(CLAUDE_STATE_FILE), SandboxMount::PrivateCopy(copy));
        if state.parent() != Some(&config)
            && let Ok(state) = state.canonicalize_utf8()
        {
            mounts.set(state, SandboxMount::EmptyFile);
        }
    }
    Ok(())
}

/// Removes the login from the mounts of a config directory: the proxy of the run has it.
pub(super) fn hide_login(mounts: &mut SandboxMounts, config: &Utf8Path) {
    let login = config.join(LOGIN_FILE);
    if login.symlink_metadata().is_ok() {
        mounts.set(login, SandboxMount::EmptyFile);
    }
}

/// Returns Claude's global state without the entries of other projects, which may hold secrets.
fn reduce_state(text: &[u8], working_directory: &Utf8Path) -> Vec<u8> {
    // Claude makes a new file of one that it cannot read.
    let Ok(mut state) = serde_json::from_slice::<Json>(text) else { return b"{}".to_vec() };
    if let Some(projects) = state.get_mut("projects").and_then(Json::as_object_mut) {
        projects.retain(|path, _| path == working_directory.as_str());
    }
    state.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claude_gets_no_state_of_other_projects() {
        let text = br#"{"userID": "u", "projects": {"/w": {"a": 1}, "/other": {"token": "x"}}}"#;
        let reduced = reduce_state(text, Utf8Path::new("/w"));
        assert_eq!(reduced, br#"{"userID":"u","projects":{"/w":{"a":1}}}"#);
        assert_eq!(reduce_state(b"{", Utf8Path::new("/w")), b"{}");
    }
}
