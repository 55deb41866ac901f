//! Installs the external programs that the checks need, and only those that are missing. Start at
//! [`all`].

use anyhow::{Result, bail};

use crate::shell::{run, succeeds};
use crate::{axe, claude, schemathesis};

/// Installs everything that is missing.
pub(crate) fn all() -> Result<()> {
    debian(&[("git", "git"), ("chromium", "chromium"), ("chromedriver", "chromium-driver")])?;
    claude::fetch()?;
    axe::fetch()?;
    schemathesis::install()
}

/// Installs a cargo tool, unless it is installed.
pub(crate) fn cargo_tool(tool: &str, version: &str) -> Result<()> {
    let name = tool.trim_start_matches("cargo-");
    if succeeds(&["cargo", name, "--version"]) {
        eprintln!("setup: {tool} is installed");
        return Ok(());
    }
    eprintln!("setup: installing {tool} {version} (some minutes)");
    run(&["cargo", "install", "--locked", tool, "--version", version], &[])
}

/// Installs the Debian packages that are missing.
pub(crate) fn debian(packages: &[(&str, &str)]) -> Result<()> {
    let missing: Vec<&str> = packages
        .iter()
        .filter(|(program, _)| !succeeds(&["sh", "-c", &format!("command -v {program}")]))
        .map(|(_, package)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !succeeds(&["sh", "-c", "command -v apt-get"]) {
        bail!("install {} by hand: this is not a Debian system", missing.join(", "));
    }
    eprintln!("setup: installing {}", missing.join(", "));
    let mut command = vec!["apt-get", "install", "--yes", "--no-install-recommends"];
    command.extend(missing);
    run(&["apt-get", "update", "--quiet"], &[])?;
    run(&command, &[("DEBIAN_FRONTEND", "noninteractive")])
}
