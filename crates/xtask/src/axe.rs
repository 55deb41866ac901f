//! Fetches axe-core, with which tests check that pages are accessible. It is not shipped.
//!
//! It is stored in the user's cache, once for all clones; `heeler_testkit::axe` reads it there.

use anyhow::{Context as _, Result, bail};

use crate::packages::{install_debian_packages, run_npm, tool_cache};
use crate::shell::run;

/// Also read by `heeler_testkit::axe`.
const VERSION: &str = include_str!("../../heeler-testkit/axe-version");

/// npm's checksum of this version.
const INTEGRITY: &str = "sha512-9WTZxEjsZ7b13TH8JPmbV2z8CHbl80/2hm3XPEG4JgNdQLK81IBRXmSxHfMAOkSqQeRxT/0dwNDz2GOm3zzpcQ==";

/// Fetches axe-core, unless it is in the cache.
pub(crate) fn fetch() -> Result<()> {
    let version = VERSION.trim();
    let folder = tool_cache()?.join(format!("axe-{version}"));
    let script = folder.join("axe.min.js");
    if script.is_file() {
        eprintln!("setup: axe-core {version} is installed");
        return Ok(());
    }
    install_debian_packages(&[("npm", "npm"), ("tar", "tar")])?;
    // Unpack next to the target and move it there, so that an existing target is complete.
    let parts = tool_cache()?.join(format!("axe-{version}.tmp.{}", std::process::id()));
    std::fs::create_dir_all(&parts)?;
    let to = parts.to_str().context("the cache's path is not text")?;
    let package = format!("axe-core@{version}");
    let output = run_npm(&["pack", &package, "--json", "--pack-destination", to])?;
    // npm compares the download with the registry only; this pins the content itself.
    if !output.contains(INTEGRITY) {
        bail!("{package} does not have the checksum {INTEGRITY}");
    }
    let archive = std::fs::read_dir(&parts)?.next().context("npm pack left no file")??.path();
    let archive = archive.to_str().context("the archive's path is not text")?;
    run(&["tar", "-xzf", archive, "-C", to, "package/axe.min.js"], &[])?;
    std::fs::create_dir_all(&folder)?;
    std::fs::rename(parts.join("package/axe.min.js"), &script)?;
    Ok(std::fs::remove_dir_all(&parts)?)
}
