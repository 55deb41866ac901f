//! The decision about one call of a tool: deny it, let a person approve it, or leave it to Claude's
//! own rules.
//!
//! Claude has deny rules for the same paths. The hook that asks this policy is a second check, which
//! does not depend on how a version of Claude reads its rules. Start at [`CallPolicy::verdict`].

#[cfg(test)]
mod tests;

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};
use heeler_model::run::ClaudeLaunchSpec;
use serde_json::Value as Json;

use super::tool_allowlist::{AllowedToolsError, ToolAllowlist};

/// Claude's tools that write files.
const WRITE_TOOLS: [&str; 4] = ["Write", "Edit", "MultiEdit", "NotebookEdit"];

/// Claude's tools that return the content of files.
const READ_TOOLS: [&str; 5] = ["Read", "NotebookRead", "Grep", "Glob", "LS"];

/// Keys under which tools receive the path of a file or folder.
const PATH_KEYS: [&str; 3] = ["file_path", "notebook_path", "path"];

/// Tools that change nothing outside the conversation, and send nothing to other hosts. With
/// `approvals: review` only these run without a person's approval.
const REVIEW_FREE_TOOLS: [&str; 17] = [
    "Read",
    "NotebookRead",
    "Grep",
    "Glob",
    "LS",
    "TodoWrite",
    "ToolSearch",
    // It asks the person itself.
    "AskUserQuestion",
    "ExitPlanMode",
    "EnterPlanMode",
    "mcp__heeler__report_progress",
    "mcp__heeler__ask_human",
    "mcp__heeler__list_workers",
    "mcp__heeler__wait_for_worker",
    "mcp__heeler__add_tasks",
    "mcp__heeler__list_tasks",
    "mcp__heeler__finish_task",
];

/// Files and directories from which Claude takes instructions, in every directory that it visits.
pub(super) const NESTED_INSTRUCTION_NAMES: [&str; 3] = ["CLAUDE.md", "CLAUDE.local.md", ".claude"];

/// Directory of a git repository, in which hooks and config run commands.
const GIT_FOLDER: &str = ".git";

/// Rules about the calls of one run.
#[derive(Debug, Clone, Default)]
pub(super) struct CallPolicy {
    allowed: Option<ToolAllowlist>,
    protected: Vec<Utf8PathBuf>,
    /// Directories in which instruction files are protected at any depth.
    instructed: Vec<Utf8PathBuf>,
    unreadable: Vec<Utf8PathBuf>,
    /// A person approves each call that is not read-only.
    has_review: bool,
}

/// Decision about one call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CallVerdict {
    /// The call must not run. The agent receives the reason.
    Deny(String),
    /// A person decides, whatever Claude's own rules say.
    AskPerson,
    /// Claude's own rules decide.
    Pass,
}

impl CallPolicy {
    /// Builds the policy; fails if a tool allowlist cannot be enforced.
    pub(super) fn from_brief(
        brief: &ClaudeLaunchSpec,
        injected: &[String],
    ) -> Result<CallPolicy, AllowedToolsError> {
        Ok(CallPolicy {
            allowed: ToolAllowlist::from_brief(brief, injected)?,
            protected: brief.protected.clone(),
            instructed: brief.instructed.clone(),
            unreadable: brief.unreadable.clone(),
            has_review: brief.review,
        })
    }

    pub(super) fn has_review(&self) -> bool {
        self.has_review
    }

    pub(super) fn allowed(&self) -> Option<&ToolAllowlist> {
        self.allowed.as_ref()
    }

    /// Returns true if some call could be denied or reviewed, so that the hook is needed.
    pub(super) fn is_restrictive(&self) -> bool {
        self.allowed.is_some() || self.has_review || self.has_protection()
    }

    fn has_protection(&self) -> bool {
        let lists = [&self.protected, &self.instructed, &self.unreadable];
        lists.into_iter().any(|list| !list.is_empty())
    }

    /// Decides about a call. Relative paths are resolved in the working directory of the call;
    /// without one they are denied.
    pub(super) fn verdict(&self, tool: &str, input: &Json, cwd: Option<&str>) -> CallVerdict {
        if let Some(allowed) = &self.allowed
            && !allowed.permits(tool, input)
        {
            return CallVerdict::Deny(allowed.denial_reason(tool));
        }
        if let Some(reason) = self.protection_denial(tool, input, cwd) {
            return CallVerdict::Deny(reason);
        }
        match self.has_review && !REVIEW_FREE_TOOLS.contains(&tool) {
            true => CallVerdict::AskPerson,
            false => CallVerdict::Pass,
        }
    }

    /// Decides about a call without a readable name: it is denied wherever any call could be.
    pub(super) fn verdict_without_name(&self) -> CallVerdict {
        match self.is_restrictive() {
            true => CallVerdict::Deny("The name of the tool cannot be read.".to_owned()),
            false => CallVerdict::Pass,
        }
    }

    fn protection_denial(&self, tool: &str, input: &Json, cwd: Option<&str>) -> Option<String> {
        if !self.has_protection() {
            return None;
        }
        let (writes, reads) = (WRITE_TOOLS.contains(&tool), READ_TOOLS.contains(&tool));
        if !writes && !reads {
            return None;
        }
        let named = PATH_KEYS.iter().filter_map(|key| input[*key].as_str());
        for named in named {
            let Some(path) = resolve_path(named, cwd) else {
                return Some(format!("{named}: name the file by its absolute path."));
            };
            let is_below = |paths: &[Utf8PathBuf]| paths.iter().any(|it| path.starts_with(it));
            let is_instruction = || is_below(&self.instructed) && is_instruction_file(&path);
            if writes && (is_below(&self.protected) || is_git_file(&path) || is_instruction()) {
                return Some(format!(
                    "{path} is protected: it decides what agents may do, or is loaded by other \
                     agents. Only a person may change it."
                ));
            }
            if is_below(&self.unreadable) {
                return Some(format!("{path} holds secrets of the fleet, and must not be read."));
            }
        }
        None
    }
}

fn is_git_file(path: &Utf8Path) -> bool {
    path.components().any(|part| part.as_str() == GIT_FOLDER)
}

/// Returns true for a file from which Claude takes instructions when it reads a file beside it.
fn is_instruction_file(path: &Utf8Path) -> bool {
    path.components().any(|part| NESTED_INSTRUCTION_NAMES.contains(&part.as_str()))
}

/// Returns an absolute path without `.` and `..`. `None` if it cannot be known: a home directory,
/// or a relative path without a directory.
fn resolve_path(named: &str, cwd: Option<&str>) -> Option<Utf8PathBuf> {
    let path = Utf8Path::new(named);
    if path.is_absolute() {
        return Some(normalize_path(path));
    }
    match named.starts_with('~') {
        true => None,
        false => Some(normalize_path(&Utf8Path::new(cwd?).join(path))),
    }
}

/// Resolves `.` and `..` in a path lexically, without file access.
fn normalize_path(path: &Utf8Path) -> Utf8PathBuf {
    let mut tidy = Utf8PathBuf::new();
    for part in path.components() {
        match part {
            Utf8Component::CurDir => {}
            Utf8Component::ParentDir => drop(tidy.pop()),
            part => tidy.push(part),
        }
    }
    tidy
}
