//! Fetches the Claude Code that the tests run. It may not be redistributed, so it is never
//! committed.
//!
//! It is stored in the user's cache, once for all clones; `heeler_testkit::claude` reads it there.
//! Start at [`fetch`].

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::packages::{install_debian_packages, run_npm, tool_cache};
use crate::shell::run;

/// Also read by `heeler_testkit::claude`.
const VERSION: &str = include_str!("../../heeler-testkit/claude-version");

/// npm's packages of this version with their checksums, by Rust's names of system and processor.
const PACKAGES: [(&str, &str, &str, &str); 4] = [
    (
        "linux",
        "x86_64",
        "linux-x64",
        "sha512-BqZzMvP/zgLLL34S+7OzbG+cyoFp7gwWHU5koVwsyMlTAz+0zZAmbY+UkzvtN2RXxp6AcMenbYIjQJxoXfUY3w==",
    ),
    (
        "linux",
        "aarch64",
        "linux-arm64",
        "sha512-NCvQcOxr685Y4mkYUjQT8l/Ouzw0k2xWloWeyzfsUtWiOedHosPkaW6XCSpzAl1dMuvDNBF97qpWgVDrSdK2Vw==",
    ),
    (
        "macos",
        "aarch64",
        "darwin-arm64",
        "sha512-Ds1f1B+qy2BWDI+VnmDHwkNyTbXCwFrBtrinPD95RBmUubFJu9nCzMgn+wrg5VwwF6vtkkzGexogneZIYZKb6A==",
    ),
    (
        "macos",
        "x86_64",
        "darwin-x64",
        "sha512-+wTK42IT/b5GZHxAVVMLNnCHG/CtngztTE6fNn5s4h47LNXrDQz2RpPLsY5XHr8astNzk7GWPU8GecCG+5EEIQ==",
    ),
];

/// Fetches Claude Code, unless it is in the cache.
pub(crate) fn fetch() -> Result<()> {
    let version = VERSION.trim();
    let folder = tool_cache()?.join(format!("claude-{version}"));
    let program = folder.join("claude");
    if program.is_file() {
        eprintln!("setup: claude {version} is installed");
        return Ok(());
    }
    install_debian_packages(&[("npm", "npm"), ("tar", "tar")])?;
    eprintln!("setup: fetching claude {version} (170 MB) into {}", folder.display());
    // Unpack next to the target and move it there, so that an existing target is complete.
    let parts = tool_cache()?.join(format!("claude-{version}.tmp.{}", std::process::id()));
    std::fs::create_dir_all(&parts)?;
    let unpacked = unpack(version, &parts);
    let moved = unpacked.and_then(|claude| {
        std::fs::create_dir_all(&folder)?;
        Ok(std::fs::rename(claude, &program)?)
    });
    // The parts are removed even if unpacking has failed.
    std::fs::remove_dir_all(&parts)?;
    moved
}

/// Downloads and unpacks the package; returns the program in it after checking its version.
fn unpack(version: &str, folder: &Path) -> Result<PathBuf> {
    let (system, processor) = (std::env::consts::OS, std::env::consts::ARCH);
    let known = PACKAGES.iter().find(|package| package.0 == system && package.1 == processor);
    let Some((_, _, package, integrity)) = known else {
        bail!("there is no claude {version} for {processor} {system}");
    };
    let package = format!("@anthropic-ai/claude-code-{package}@{version}");
    let to = folder.to_str().context("the cache's path is not text")?;
    let output = run_npm(&["pack", &package, "--json", "--pack-destination", to])?;
    // npm compares the download with the registry only; this pins the content itself.
    if !output.contains(integrity) {
        bail!("{package} does not have the checksum {integrity}");
    }
    let archive = std::fs::read_dir(folder)?.next().context("npm pack left no file")??.path();
    let archive = archive.to_str().context("the archive's path is not text")?;
    run(&["tar", "-xzf", archive, "-C", to, "package/claude"], &[])?;
    let program = folder.join("package/claude");
    let says = Command::new(&program).arg("--version").output()?;
    if !String::from_utf8_lossy(&says.stdout).starts_with(version) {
        bail!("{} does not report version {version}: {says:?}", program.display());
    }
    Ok(program)
}
