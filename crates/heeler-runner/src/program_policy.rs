//! Decisions about questions of an agent program that is not Claude: allow, deny, or ask a person.
//!
//! An agent asks about what it considers worth asking. The policy answers as the permission mode
//! says, and denies what the config protects. It is no boundary: an agent that does not ask is held
//! by its sandbox only. Start at [`ProgramPolicy::decide`].

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};
use heeler_config::PermissionMode;

/// Files and directories of a project that programs later execute or take permissions, servers or keys
/// from. `acceptEdits` does not include them: an agent could give itself permissions for its next run.
const TRUSTED_NAMES: [&str; 16] = [
    ".claude",
    ".codex",
    ".copilot",
    ".env",
    ".gemini",
    ".git",
    ".goose",
    ".grok",
    ".kimi",
    ".mcp.json",
    ".opencode",
    ".qwen",
    ".vibe",
    ".vscode",
    "opencode.json",
    "opencode.jsonc",
];

/// Kind of action that an agent asks about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProgramAction {
    /// Reads files, searches, thinks.
    Read,
    /// Changes files.
    Edit,
    /// Anything else, such as a command.
    Other,
}

/// Answer to a question.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ProgramVerdict {
    Allow,
    Deny(String),
    AskPerson,
}

/// Rules for the questions of one run.
#[derive(Debug, Clone)]
pub(crate) struct ProgramPolicy {
    mode: PermissionMode,
    /// Files and directories that the agent must not write.
    protected: Vec<Utf8PathBuf>,
    working_directory: Utf8PathBuf,
}

impl ProgramPolicy {
    pub(crate) fn new(
        mode: PermissionMode,
        protected: Vec<Utf8PathBuf>,
        working_directory: Utf8PathBuf,
    ) -> ProgramPolicy {
        ProgramPolicy { mode, protected, working_directory }
    }

    /// Decides about an action on these paths, as the agent names them.
    pub(crate) fn decide(&self, action: ProgramAction, paths: &[String]) -> ProgramVerdict {
        let paths: Vec<Utf8PathBuf> = paths.iter().map(|path| self.absolute(path)).collect();
        if action != ProgramAction::Read
            && let Some(path) = paths.iter().find(|path| self.is_protected(path))
        {
            return ProgramVerdict::Deny(format!(
                "{path} is protected: it belongs to the fleet, and no agent may change it"
            ));
        }
        let is_inside = || paths.iter().all(|path| path.starts_with(&self.working_directory));
        match (self.mode, action) {
            (PermissionMode::BypassPermissions, _) => ProgramVerdict::Allow,
            (PermissionMode::DontAsk, _) => {
                ProgramVerdict::Deny("`permission_mode: dontAsk` denies every question".to_owned())
            }
            (PermissionMode::AcceptEdits, ProgramAction::Edit) if !paths.is_empty() => {
                match is_inside() && !paths.iter().any(|path| self.is_trusted_later(path)) {
                    true => ProgramVerdict::Allow,
                    false => ProgramVerdict::AskPerson,
                }
            }
            _ => ProgramVerdict::AskPerson,
        }
    }

    /// Returns true for a file of the working directory that programs later execute or take
    /// permissions from.
    fn is_trusted_later(&self, path: &Utf8Path) -> bool {
        let inside = path.strip_prefix(&self.working_directory).unwrap_or(path);
        let mut names = inside.components().map(|part| part.as_str());
        names.any(|name| TRUSTED_NAMES.iter().any(|known| name.eq_ignore_ascii_case(known)))
    }

    fn is_protected(&self, path: &Utf8Path) -> bool {
        self.protected.iter().any(|protected| path.starts_with(protected))
    }

    /// Returns an absolute path without `.` and `..`, as far as the text tells.
    fn absolute(&self, path: &str) -> Utf8PathBuf {
        let mut clean = Utf8PathBuf::new();
        for part in self.working_directory.join(path).components() {
            match part {
                Utf8Component::CurDir => {}
                Utf8Component::ParentDir => drop(clean.pop()),
                part => clean.push(part),
            }
        }
        clean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn decide(mode: PermissionMode, action: ProgramAction, path: &str) -> ProgramVerdict {
        let policy = ProgramPolicy::new(mode, vec!["/w/heeler.yaml".into()], "/w".into());
        policy.decide(action, &[path.to_owned()])
    }

    #[test]
    fn edits_in_the_working_directory_are_accepted_if_the_mode_says_so() {
        let mode = PermissionMode::AcceptEdits;
        assert_eq!(decide(mode, ProgramAction::Edit, "src/a.rs"), ProgramVerdict::Allow);
        assert_eq!(decide(mode, ProgramAction::Edit, "../b.rs"), ProgramVerdict::AskPerson);
        assert_eq!(decide(mode, ProgramAction::Other, "src/a.rs"), ProgramVerdict::AskPerson);
        let mode = PermissionMode::Default;
        assert_eq!(decide(mode, ProgramAction::Edit, "src/a.rs"), ProgramVerdict::AskPerson);
    }

    #[test]
    fn a_person_decides_about_files_that_programs_trust_later() {
        let mode = PermissionMode::AcceptEdits;
        let paths =
            [".qwen/settings.json", "sub/.gemini/settings.json", ".git/hooks/pre-commit", ".ENV"];
        for path in paths {
            assert_eq!(
                decide(mode, ProgramAction::Edit, path),
                ProgramVerdict::AskPerson,
                "{path}"
            );
        }
        for path in [".gitignore", "docs/qwen", ".env.example", "src/.qwenrc"] {
            assert_eq!(decide(mode, ProgramAction::Edit, path), ProgramVerdict::Allow, "{path}");
        }
    }

    #[test]
    fn no_mode_allows_to_change_a_protected_file() {
        for mode in PermissionMode::ALL {
            for path in ["heeler.yaml", "/w/x/../heeler.yaml", "./heeler.yaml"] {
                let verdict = decide(*mode, ProgramAction::Edit, path);
                assert!(matches!(verdict, ProgramVerdict::Deny(_)), "{mode} {path}");
            }
        }
    }
}
