//! Where an agent keeps its own record of its sessions.
//!
//! For claude that file is what the model remembers; ours is what was seen.

use camino::{Utf8Path, Utf8PathBuf};
use indexmap::IndexMap;

use crate::config::RuntimeType;

/// Where an agent keeps its own sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NativeSessionLocation {
    /// In the folders of this one, one for each project; each session is `<id>.jsonl`.
    Directory(Utf8PathBuf),
    /// It keeps none.
    None,
    /// It finds its home itself.
    Unknown,
}

impl NativeSessionLocation {
    /// Returns where an agent with this environment and working directory keeps them. `home` is the
    /// user's folder of ours.
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
            RuntimeType::Command => NativeSessionLocation::None,
            RuntimeType::Sdk | RuntimeType::Cli => {
                // The agent takes them from where it works.
                let there = |path: &String| working_directory.join(path);
                match (folder("CLAUDE_CONFIG_DIR"), folder("HOME")) {
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
