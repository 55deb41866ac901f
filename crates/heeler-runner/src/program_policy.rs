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
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ProgramPolicy {
    mode: PermissionMode,
    /// Files and directories that the agent must not write.
    protected: Vec<Utf8PathBuf>,
    /// Files and directories that the runner must not read for the agent.
    unreadable: Vec<Utf8PathBuf>,
    working_directory: Utf8PathBuf,
}

impl ProgramPolicy {
    pub(crate) fn new(
        mode: PermissionMode,
        protected: Vec<Utf8PathBuf>,
        unreadable: Vec<Utf8PathBuf>,
        working_directory: Utf8PathBuf,
    ) -> ProgramPolicy {
        ProgramPolicy { mode, protected, unreadable, working_directory }
    }

    /// Decides about an action on these paths, as the agent names them.
    pub(crate) fn decide(&self, action: ProgramAction, paths: &[String]) -> ProgramVerdict {
        let paths: Vec<Utf8PathBuf> = paths.iter().map(|path| self.absolute(path)).collect();
        if action != ProgramAction::Read
            && let Some(path) = paths.iter().find(|path| self.is_protected(path))
        {
            return ProgramVerdict::Deny(protection_reason(path));
        }
        let is_inside = || paths.iter().all(|path| self.is_inside(path));
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

    /// Decides about a command that the agent leaves to the client, and for which it has no permission.
    pub(crate) fn decide_command(&self) -> ProgramVerdict {
        match self.mode {
            // In this mode the agent decides what to ask.
            PermissionMode::Auto => ProgramVerdict::Allow,
            _ => self.decide(ProgramAction::Other, &[]),
        }
    }

    /// Decides about a file that the agent leaves to the client, and for which it has no permission.
    pub(crate) fn decide_file(&self, action: ProgramAction, path: &Utf8Path) -> ProgramVerdict {
        if let Some(reason) = self.file_refusal(action, path) {
            return ProgramVerdict::Deny(reason);
        }
        match action {
            // Agents do not ask before they read a file of the project.
            ProgramAction::Read if self.is_inside(path) => ProgramVerdict::Allow,
            _ if self.mode == PermissionMode::Auto && self.is_inside(path) => ProgramVerdict::Allow,
            action => self.decide(action, &[path.to_string()]),
        }
    }

    /// Checks where the path of a file really leads. `real` has no links. An answer to a question holds
    /// for the path that the question told.
    pub(crate) fn check_real_path(
        &self,
        action: ProgramAction,
        path: &Utf8Path,
        real: &Utf8Path,
        was_asked: bool,
    ) -> Result<(), String> {
        let is_as_told = real == path
            || (self.is_inside(path)
                && self.is_inside(real)
                && (action == ProgramAction::Read || !self.is_trusted_later(real)));
        match self.decide_file(action, real) {
            ProgramVerdict::Deny(reason) => Err(reason),
            ProgramVerdict::Allow => Ok(()),
            ProgramVerdict::AskPerson if was_asked && is_as_told => Ok(()),
            ProgramVerdict::AskPerson => {
                Err(format!("{path} leads to {real}, for which there is no permission"))
            }
        }
    }

    /// Returns the reason that no one can allow an action on a file, if so.
    fn file_refusal(&self, action: ProgramAction, path: &Utf8Path) -> Option<String> {
        match action {
            ProgramAction::Read => self
                .unreadable
                .iter()
                .any(|it| path.starts_with(it))
                .then(|| format!("{path} belongs to the fleet, and no agent may read it")),
            ProgramAction::Edit | ProgramAction::Other => {
                self.is_protected(path).then(|| protection_reason(path))
            }
        }
    }

    fn is_inside(&self, path: &Utf8Path) -> bool {
        path.starts_with(&self.working_directory)
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
    pub(crate) fn absolute(&self, path: &str) -> Utf8PathBuf {
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

fn protection_reason(path: &Utf8Path) -> String {
    format!("{path} is protected: it belongs to the fleet, and no agent may change it")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(mode: PermissionMode) -> ProgramPolicy {
        let (protected, unreadable) = (vec!["/w/heeler.yaml".into()], vec!["/w/secret".into()]);
        ProgramPolicy::new(mode, protected, unreadable, "/w".into())
    }

    #[track_caller]
    fn decide(mode: PermissionMode, action: ProgramAction, path: &str) -> ProgramVerdict {
        let policy = policy(mode);
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
    fn files_of_the_project_are_read_for_the_agent_and_others_are_asked_about() {
        for mode in PermissionMode::ALL {
            let read = |path: &str| policy(*mode).decide_file(ProgramAction::Read, path.into());
            assert_eq!(read("/w/src/a.rs"), ProgramVerdict::Allow, "{mode}");
            assert!(matches!(read("/w/secret/key"), ProgramVerdict::Deny(_)), "{mode}");
            let outside = match mode {
                PermissionMode::BypassPermissions => ProgramVerdict::Allow,
                PermissionMode::DontAsk => continue,
                _ => ProgramVerdict::AskPerson,
            };
            assert_eq!(read("/etc/passwd"), outside, "{mode}");
        }
    }

    #[test]
    fn commands_that_the_agent_did_not_ask_about_are_asked_about() {
        let commands = |mode| policy(mode).decide_command();
        assert_eq!(commands(PermissionMode::Default), ProgramVerdict::AskPerson);
        assert_eq!(commands(PermissionMode::AcceptEdits), ProgramVerdict::AskPerson);
        assert_eq!(commands(PermissionMode::Plan), ProgramVerdict::AskPerson);
        assert_eq!(commands(PermissionMode::Auto), ProgramVerdict::Allow);
        assert_eq!(commands(PermissionMode::BypassPermissions), ProgramVerdict::Allow);
        assert!(matches!(commands(PermissionMode::DontAsk), ProgramVerdict::Deny(_)));
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
