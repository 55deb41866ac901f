//! Where an agent keeps its own record of its sessions.
//!
//! For claude that file is what the model remembers; ours is what was seen.

use camino::{Utf8Path, Utf8PathBuf};
use indexmap::IndexMap;

use crate::config::RuntimeType;

/// Where an agent keeps its own sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnSessions {
    /// In the folders of this one, one for each project; each session is `<id>.jsonl`.
    In(Utf8PathBuf),
    /// It keeps none.
    None,
    /// It finds its home itself.
    Unknown,
}

impl OwnSessions {
    /// Returns where an agent with this environment and working directory keeps them. `home` is the
    /// user's folder of ours.
    pub fn of(
        runtime: RuntimeType,
        env: &IndexMap<String, String>,
        home: &Utf8Path,
        working_directory: &Utf8Path,
    ) -> OwnSessions {
        let folder = |name: &str| env.get(name).filter(|path| !path.is_empty());
        match runtime {
            RuntimeType::Scripted => OwnSessions::In(home.join("scripted/projects")),
            RuntimeType::Command => OwnSessions::None,
            RuntimeType::Sdk | RuntimeType::Cli => {
                // The agent takes them from where it works.
                let there = |path: &String| working_directory.join(path);
                match (folder("CLAUDE_CONFIG_DIR"), folder("HOME")) {
                    (Some(config), _) => OwnSessions::In(there(config).join("projects")),
                    (None, Some(home)) => OwnSessions::In(there(home).join(".claude/projects")),
                    (None, None) => OwnSessions::Unknown,
                }
            }
        }
    }
}
