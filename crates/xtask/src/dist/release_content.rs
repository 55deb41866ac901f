//! Content that all packages of a release share: programs, manual pages, completions, licences.
//! Start at [`ReleaseContent`].

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::archive::ArchiveEntry;
use super::target::DistTarget;
use crate::inside::STATIC_PROGRAM;
use crate::shell::workspace_root;

/// Completion scripts: the shell, and the path below `share` where it looks for them.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "bash-completion/completions/heeler"),
    ("fish", "fish/vendor_completions.d/heeler.fish"),
    ("zsh", "zsh/site-functions/_heeler"),
];

/// Everything that is installed on a machine.
pub(crate) struct ReleaseContent {
    pub(crate) version: String,
    pub(crate) target: DistTarget,
    /// Time of all entries, in seconds since 1970.
    pub(crate) time: u64,
    pub(crate) program: Vec<u8>,
    /// First process of containers; it must be beside the program.
    pub(crate) inside: Vec<u8>,
    /// Manual pages and completions, with paths below `share`.
    pub(crate) shared: Vec<ArchiveEntry>,
    /// Licences, README and CHANGELOG, by file name.
    pub(crate) documents: Vec<ArchiveEntry>,
    /// Unit file of systemd.
    pub(crate) unit: Vec<u8>,
    /// List of the libraries in the program.
    pub(crate) sbom: Vec<u8>,
}

impl ReleaseContent {
    /// Programs with their modes, for the folder that holds them.
    pub(crate) fn programs(&self) -> Vec<ArchiveEntry> {
        vec![
            ArchiveEntry::file("heeler", 0o755, self.program.clone()),
            ArchiveEntry::file(STATIC_PROGRAM, 0o755, self.inside.clone()),
        ]
    }
}

/// Lets the program write its manual pages and completions.
pub(crate) fn shared_files(program: &Path) -> Result<Vec<ArchiveEntry>> {
    let folder = tempfile::tempdir()?;
    let call = |args: &[&str]| -> Result<Vec<u8>> {
        let output = Command::new(program).args(args).env("HOME", folder.path()).output()?;
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "`heeler {}` failed: {why}", args.join(" "));
        Ok(output.stdout)
    };
    let pages = folder.path().join("man1");
    call(&["man", pages.to_str().context("the folder of temporary files is not text")?])?;
    let mut entries = Vec::new();
    for page in std::fs::read_dir(pages)? {
        let page = page?;
        let name = page.file_name().into_string().ok().context("a page's name is not text")?;
        entries.push(ArchiveEntry::file(
            format!("man/man1/{name}"),
            0o644,
            std::fs::read(page.path())?,
        ));
    }
    ensure!(!entries.is_empty(), "`heeler man` wrote no page");
    for (shell, path) in COMPLETIONS {
        entries.push(ArchiveEntry::file(path, 0o644, call(&["completions", shell])?));
    }
    entries.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(entries)
}

/// Reads the documents of the repository that every package has.
pub(crate) fn documents() -> Result<Vec<ArchiveEntry>> {
    let root = workspace_root()?;
    let read = |name: &&str| -> Result<ArchiveEntry> {
        let bytes =
            std::fs::read(root.join(name)).with_context(|| format!("cannot read {name}"))?;
        Ok(ArchiveEntry::file(*name, 0o644, bytes))
    };
    ["CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT", "README.md"].iter().map(read).collect()
}
