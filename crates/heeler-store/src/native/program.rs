//! Programs with native sessions that Heeler reads, and the folders of those sessions.

use std::fmt;

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

/// Most project directories, and most files in each, that are examined.
// Another program owns this directory, so its size must not determine ours.
pub const NATIVE_FILES_MAX: usize = 100_000;

/// Program of which native sessions are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NativeProgram {
    Claude,
    Codex,
    Qwen,
    Gemini,
    Copilot,
    Kimi,
    Grok,
}

/// Folder of a program's native sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeFolder {
    pub program: NativeProgram,
    pub path: Utf8PathBuf,
}

impl NativeProgram {
    pub const ALL: [NativeProgram; 7] = [
        NativeProgram::Claude,
        NativeProgram::Codex,
        NativeProgram::Qwen,
        NativeProgram::Gemini,
        NativeProgram::Copilot,
        NativeProgram::Kimi,
        NativeProgram::Grok,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            NativeProgram::Claude => "claude",
            NativeProgram::Codex => "codex",
            NativeProgram::Qwen => "qwen",
            NativeProgram::Gemini => "gemini",
            NativeProgram::Copilot => "copilot",
            NativeProgram::Kimi => "kimi",
            NativeProgram::Grok => "grok",
        }
    }

    /// Splits the name of a native session into its program and its ID: `codex:ID`, `copilot:ID`
    /// and so on, and `ID` or `claude:ID` for Claude's.
    pub fn split_id(id: &str) -> (NativeProgram, &str) {
        let named = NativeProgram::ALL.into_iter().find_map(|program| {
            let rest = id.strip_prefix(program.as_str())?.strip_prefix(':')?;
            Some((program, rest))
        });
        named.unwrap_or((NativeProgram::Claude, id))
    }

    /// Returns the folder of the program's sessions, for a process with this environment and
    /// working directory. `None` if the environment does not tell it.
    pub fn folder<'e>(
        self,
        env: impl Fn(&str) -> Option<&'e str>,
        working_directory: &Utf8Path,
    ) -> Option<NativeFolder> {
        let (variable, in_home, below) = match self {
            NativeProgram::Claude => ("CLAUDE_CONFIG_DIR", ".claude", "projects"),
            NativeProgram::Codex => ("CODEX_HOME", ".codex", "sessions"),
            NativeProgram::Qwen => ("QWEN_HOME", ".qwen", "projects"),
            // Its variable names the directory that contains `.gemini`.
            NativeProgram::Gemini => ("GEMINI_CLI_HOME", ".gemini", "tmp"),
            NativeProgram::Copilot => ("COPILOT_HOME", ".copilot", "session-state"),
            NativeProgram::Kimi => ("KIMI_CODE_HOME", ".kimi-code", "sessions"),
            NativeProgram::Grok => ("GROK_HOME", ".grok", "sessions"),
        };
        let set = |name: &str| env(name).filter(|path| !path.is_empty());
        // The program resolves a relative path against its working directory.
        let home = || Some(working_directory.join(set("HOME")?).join(in_home));
        let named = set(variable).map(|path| working_directory.join(path));
        let named = match self {
            NativeProgram::Gemini => named.map(|path| path.join(in_home)),
            _ => named,
        };
        let own = named.or_else(home)?;
        Some(NativeFolder { program: self, path: own.join(below) })
    }
}

impl fmt::Display for NativeProgram {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// Returns the folders of all programs that the environment tells.
pub fn native_folders<'e>(
    env: impl Fn(&str) -> Option<&'e str> + Copy,
    working_directory: &Utf8Path,
) -> Vec<NativeFolder> {
    let programs = NativeProgram::ALL.into_iter();
    programs.filter_map(|program| program.folder(env, working_directory)).collect()
}
