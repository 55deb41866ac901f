//! Packages of Debian, cargo and npm, and the folder of fetched tools.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::shell::{run, succeeds};

/// Installs a cargo tool, unless it is installed.
pub(crate) fn install_cargo_tool(tool: &str, version: &str) -> Result<()> {
    let name = tool.trim_start_matches("cargo-");
    if succeeds(&["cargo", name, "--version"]) {
        eprintln!("setup: {tool} is installed");
        return Ok(());
    }
    eprintln!("setup: installing {tool} {version} (some minutes)");
    run(&["cargo", "install", "--locked", tool, "--version", version], &[])
}

/// Installs the Debian packages that are missing.
pub(crate) fn install_debian_packages(packages: &[(&str, &str)]) -> Result<()> {
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
    // A fresh container has no lists of packages.
    run(&["apt-get", "update", "--quiet"], &[])?;
    run(&command, &[("DEBIAN_FRONTEND", "noninteractive")])
}

/// Runs npm, which checks the download against the registry's checksum, and returns its output.
pub(crate) fn run_npm(args: &[&str]) -> Result<String> {
    eprintln!("$ npm {}", args.join(" "));
    let output = Command::new("npm").args(args).output().context("cannot start npm")?;
    if !output.status.success() {
        bail!("npm failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Returns the folder of fetched tools, the same as in `heeler-testkit`.
pub(crate) fn tool_cache() -> Result<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    Ok(cache.context("neither HOME nor XDG_CACHE_HOME is set")?.join("heeler-tools"))
}
