//! Location of native sessions, the agent program's own records of its sessions.
//!
//! For Claude, the native session is the model's memory. Heeler's transcript is the record of the
//! messages that Heeler saw. Start at [`NativeSessionLocation`].

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::RuntimeType;
use indexmap::IndexMap;
use serde_json::{Value as Json, json};

/// Subtype of the row with the agent's own ID of a session.
pub const NATIVE_SESSION_SUBTYPE: &str = "native_session";

/// Key of the agent's own ID of the session, in such a row.
pub const NATIVE_SESSION_KEY: &str = "nativeSessionId";

/// Key of the agent that gave the ID, in such a row.
pub const NATIVE_AGENT_KEY: &str = "nativeAgent";

/// Builds the row from which a later run learns the agent's own ID of the session.
pub fn native_session_row(agent: &str, id: &str) -> Json {
    json!({
        "type": "system", "subtype": NATIVE_SESSION_SUBTYPE, NATIVE_SESSION_KEY: id,
        NATIVE_AGENT_KEY: agent, "content": format!("session {id} of {agent}"),
    })
}

/// Location of an agent's native sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NativeSessionLocation {
    /// Subdirectories of this directory, one per project. Each session is `<id>.jsonl`.
    Directory(Utf8PathBuf),
    /// The runtime keeps no native sessions.
    None,
    /// Unknown: the agent determines its home directory itself.
    Unknown,
}

impl NativeSessionLocation {
    /// Returns the location for an agent with this environment and working directory. `home` is
    /// Heeler's directory for this user.
    pub fn for_agent(
        runtime: RuntimeType,
        env: &IndexMap<String, String>,
        home: &Utf8Path,
        working_directory: &Utf8Path,
    ) -> NativeSessionLocation {
        let folder = |name: &str| env.get(name).filter(|path| !path.is_empty());
        match runtime {
            RuntimeType::Scripted => {
                NativeSessionLocation::Directory(home.join("scripted/projects"))
            }
            // Each agent program keeps its sessions in its own place and format.
            RuntimeType::Acp | RuntimeType::Codex | RuntimeType::Qwen => {
                NativeSessionLocation::Unknown
            }
            // A command has no conversation.
            RuntimeType::Command => NativeSessionLocation::None,
            RuntimeType::Sdk | RuntimeType::Cli => {
                // The agent resolves relative paths against its working directory.
                let there = |path: &String| working_directory.join(path);
                match (folder("CLAUDE_CONFIG_DIR"), folder("HOME")) {
                    // The variable replaces the whole `.claude` directory, wherever HOME is.
                    (Some(config), _) => {
                        NativeSessionLocation::Directory(there(config).join("projects"))
                    }
                    (None, Some(home)) => {
                        NativeSessionLocation::Directory(there(home).join(".claude/projects"))
                    }
                    (None, None) => NativeSessionLocation::Unknown,
                }
            }
        }
    }
}
