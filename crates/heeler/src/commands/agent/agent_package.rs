//! Packages of agents: a folder with an `agent.yaml`, on this machine or in a git repository.
//!
//! A package is a stranger's: git runs without hooks and helpers of the repository, links and special
//! files are not copied, and sizes are limited. Start at [`AgentPackage::fetch`].

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::LocalName;
use serde_json::Value;

use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::text_file;

/// Name of the agent's file in a package.
pub(super) const AGENT_FILE: &str = "agent.yaml";

/// Most files of a package.
const FILES_MAX: usize = 2000;
/// Most bytes of a package.
const BYTES_MAX: u64 = 64 << 20;

/// Folders that are not copied.
const LEFT_OUT: [&str; 2] = [".git", "node_modules"];

/// Settings under which git runs no program that the repository names.
const GIT_SETTINGS: [&str; 4] = [
    "protocol.ext.allow=never",
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "submodule.recurse=false",
];

/// Where a package comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PackageSource {
    Folder(Utf8PathBuf),
    Git { url: String, reference: Option<String> },
}

impl PackageSource {
    /// Reads a source: a path, a git URL, `owner/repo` or `github:owner/repo`, the last two with an
    /// optional `@branch-or-tag`.
    pub(super) fn parse(text: &str, working_dir: &Utf8Path) -> CommandResult<PackageSource> {
        let usage = |reason: &str| {
            let forms = "./folder, https://host/repo.git, or owner/repo[@tag]";
            Err(CommandFailure::message(FailureCode::Usage, format!("`{text}` {reason}"))
                .hint(format!("heeler agent add {forms}")))
        };
        let schemes = ["https://", "http://", "ssh://", "git://", "file://", "git@"];
        if schemes.iter().any(|scheme| text.starts_with(scheme)) {
            return Ok(PackageSource::Git { url: text.to_owned(), reference: None });
        }
        if text.starts_with(['.', '/']) || working_dir.join(text).is_dir() {
            return Ok(PackageSource::Folder(working_dir.join(text)));
        }
        let short = text.strip_prefix("github:").unwrap_or(text);
        let (repository, reference) = match short.split_once('@') {
            Some((repository, reference)) => (repository, Some(reference.to_owned())),
            None => (short, None),
        };
        let is_word = |word: &str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            !word.is_empty() && !word.starts_with(['-', '.']) && word.chars().all(plain)
        };
        match repository.split_once('/') {
            Some((owner, name)) if is_word(owner) && is_word(name) => {
                if reference.as_deref().is_some_and(|it| it.is_empty() || it.starts_with('-')) {
                    return usage("names no branch or tag after the `@`");
                }
                let url = format!("https://github.com/{owner}/{name}.git");
                Ok(PackageSource::Git { url, reference })
            }
            _ => usage("is neither a folder nor a repository"),
        }
    }
}

/// A package that was fetched.
pub(super) struct AgentPackage {
    pub(super) name: LocalName,
    pub(super) folder: Utf8PathBuf,
    /// Text of the agent's file.
    pub(super) text: String,
    /// Commit of the repository.
    pub(super) commit: Option<String>,
    /// Deleted with the package.
    _clone: Option<tempfile::TempDir>,
}

impl AgentPackage {
    /// Fetches a package and reads the agent's name.
    pub(super) fn fetch(source: &PackageSource) -> CommandResult<AgentPackage> {
        let (folder, commit, clone) = match source {
            PackageSource::Folder(folder) => (folder.canonicalize_utf8()?, None, None),
            PackageSource::Git { url, reference } => {
                let clone = tempfile::tempdir()?;
                let top = clone.path().join("package");
                let top = Utf8PathBuf::from_path_buf(top)
                    .map_err(|path| io::Error::other(format!("{} is not UTF-8", path.display())))?;
                clone_repository(url, reference.as_deref(), &top)?;
                let commit = run_git(&["-C", top.as_str(), "rev-parse", "HEAD"])?;
                (top, Some(commit.trim().to_owned()), Some(clone))
            }
        };
        let file = folder.join(AGENT_FILE);
        // A link could lead to any file of the user.
        if file.is_symlink() || !file.is_file() {
            let message = format!("there is no {AGENT_FILE} in {folder}");
            return Err(CommandFailure::message(FailureCode::NotFound, message)
                .hint("a package is a folder with the agent's file at its top"));
        }
        let text = text_file::read_text(&file)?;
        let value: Value = serde_saphyr::from_str(&text).map_err(|error| {
            CommandFailure::message(FailureCode::Usage, format!("cannot read {file}: {error}"))
        })?;
        let name = value["name"].as_str().ok_or_else(|| {
            CommandFailure::message(FailureCode::Usage, format!("{file} has no `name`"))
        })?;
        let name = name.parse()?;
        Ok(AgentPackage { name, folder, text, commit, _clone: clone })
    }

    /// Copies the files to a new folder; returns the number of files, and what was left out.
    pub(super) fn copy_to(&self, target: &Utf8Path) -> CommandResult<CopiedPackage> {
        let mut copied = CopiedPackage::default();
        copy_folder(&self.folder, target, &mut copied)?;
        Ok(copied)
    }

    /// Lists the variables that the agent's file needs from the environment.
    pub(super) fn needed_variables(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for part in self.text.split("${").skip(1) {
            let Some((name, _)) = part.split_once('}') else { continue };
            // With a default it need not be set.
            if !name.contains(":-") && !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
        names
    }
}

/// Result of copying a package.
#[derive(Debug, Default)]
pub(super) struct CopiedPackage {
    pub(super) files: usize,
    bytes: u64,
    /// Links and special files.
    pub(super) left_out: Vec<String>,
}

fn copy_folder(from: &Utf8Path, to: &Utf8Path, copied: &mut CopiedPackage) -> CommandResult {
    fs::create_dir(to)?;
    for entry in from.read_dir_utf8()? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        let target = to.join(name);
        if kind.is_dir() && LEFT_OUT.contains(&name) {
            continue;
        }
        if kind.is_dir() {
            copy_folder(entry.path(), &target, copied)?;
        } else if kind.is_file() {
            copied.files += 1;
            copied.bytes += fs::copy(entry.path(), &target)?;
            // No special bits of a stranger.
            let mode = fs::metadata(&target)?.permissions().mode() & 0o755;
            fs::set_permissions(&target, fs::Permissions::from_mode(mode))?;
        } else {
            copied.left_out.push(entry.path().to_string());
        }
        if copied.files > FILES_MAX || copied.bytes > BYTES_MAX {
            let most = BYTES_MAX >> 20;
            let message = format!("the package has more than {FILES_MAX} files or {most} MiB");
            return Err(CommandFailure::message(FailureCode::Refused, message));
        }
    }
    Ok(())
}

fn clone_repository(url: &str, reference: Option<&str>, to: &Utf8Path) -> CommandResult {
    let mut args = vec!["clone", "--quiet", "--depth=1", "--no-tags", "--template="];
    let branch = reference.map(|reference| format!("--branch={reference}"));
    args.extend(branch.as_deref());
    // The dashes keep an address that begins with a dash from becoming an option.
    args.extend(["--", url, to.as_str()]);
    run_git(&args).map(drop)
}

#[expect(clippy::disallowed_methods, reason = "git fetches what the user named")]
fn run_git(args: &[&str]) -> CommandResult<String> {
    let mut git = Command::new("git");
    for setting in GIT_SETTINGS {
        git.args(["-c", setting]);
    }
    // A question would wait for an answer that a script cannot give.
    git.args(args).env("GIT_TERMINAL_PROMPT", "0").stdin(Stdio::null());
    let done = git.output().map_err(|error| {
        let error = anyhow::Error::new(error).context("cannot start git");
        CommandFailure::new(FailureCode::Failed, error).hint("install git")
    })?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
        let message = format!("git could not fetch the package: {said}");
        return Err(CommandFailure::message(FailureCode::Failed, message));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_told_apart() {
        let here = Utf8Path::new("/nowhere");
        let parse = |text: &str| PackageSource::parse(text, here);
        let git = |url: &str, reference: Option<&str>| PackageSource::Git {
            url: url.to_owned(),
            reference: reference.map(str::to_owned),
        };
        let hub = "https://github.com/ann/coder.git";
        assert_eq!(parse("ann/coder").ok(), Some(git(hub, None)));
        assert_eq!(parse("github:ann/coder@v1").ok(), Some(git(hub, Some("v1"))));
        assert_eq!(parse("git@host:x.git").ok(), Some(git("git@host:x.git", None)));
        assert_eq!(parse("./x").ok(), Some(PackageSource::Folder("/nowhere/./x".into())));
        for text in ["coder", "ann/coder/x", "ext::sh", "-u/x", "ann/coder@", "ann/coder@-b", ""] {
            assert_eq!(parse(text).err().unwrap().code, FailureCode::Usage, "{text}");
        }
    }
}
