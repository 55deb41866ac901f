//! Builds the static program that is the first process of a container: `heeler-inside` for musl,
//! which needs no library of an image. Start at [`build_static_program`].

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::elf::needs_interpreter;
use crate::shell::{run, succeeds, workspace_root};

/// File name of the program, beside `heeler`. The runner looks for it there.
pub(crate) const STATIC_PROGRAM: &str = "heeler-inside-static";

/// Profile of the build. It is small and starts fast.
const PROFILE: &str = "dist";

/// Limit on the size of the program.
const SIZE_BYTES_MAX: u64 = 3 << 20;

/// Builds the program, checks it, and puts it beside `heeler` in each of cargo's folders.
pub(crate) fn build_static_program() -> Result<()> {
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    if !succeeds(&["rustup", "target", "add", &target]) {
        bail!("the static program needs the target {target}: `rustup target add {target}` failed");
    }
    check_dependencies()?;
    let package = ["cargo", "build", "--quiet", "--package", "heeler-inside", "--bins"];
    run(&[&package[..], &["--profile", PROFILE, "--target", &target]].concat(), &[])?;
    let folder = target_folder()?;
    let built = folder.join(&target).join(PROFILE).join("heeler-inside");
    check_program(&built)?;
    for profile in ["debug", "release", "dist"] {
        place_program(&built, &folder.join(profile))?;
    }
    Ok(())
}

/// Refuses an async runtime in the program: it would multiply its size and its memory.
fn check_dependencies() -> Result<()> {
    let tree = ["tree", "--package", "heeler-inside", "--edges", "normal", "--prefix", "none"];
    let output = Command::new("cargo").args(tree).output().context("cannot start cargo")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let packages = String::from_utf8(output.stdout)?;
    let is_runtime = |line: &&str| line.starts_with("tokio ") || line.starts_with("async-");
    match packages.lines().find(is_runtime) {
        Some(found) => bail!("heeler-inside depends on {found}"),
        None => Ok(()),
    }
}

/// Refuses a program that is too large, or that needs an interpreter of the image.
fn check_program(program: &Path) -> Result<()> {
    let bytes =
        std::fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    let size = bytes.len() as u64;
    ensure!(size <= SIZE_BYTES_MAX, "heeler-inside has {size} bytes, more than {SIZE_BYTES_MAX}");
    ensure!(
        !needs_interpreter(&bytes).context("heeler-inside is no ELF program")?,
        "heeler-inside is not static"
    );
    eprintln!("setup: heeler-inside is static and has {size} bytes");
    Ok(())
}

/// Copies the program into a folder, by rename: a run may execute the old one.
fn place_program(program: &Path, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let placed = folder.join(STATIC_PROGRAM);
    let is_same = std::fs::read(&placed).ok() == Some(std::fs::read(program)?);
    if is_same {
        return Ok(());
    }
    let new = folder.join(format!("{STATIC_PROGRAM}.new"));
    std::fs::copy(program, &new)?;
    std::fs::rename(&new, &placed).with_context(|| format!("cannot replace {}", placed.display()))
}

/// Returns cargo's folder of built files.
pub(crate) fn target_folder() -> Result<PathBuf> {
    let configured = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    Ok(configured.unwrap_or(workspace_root()?.join("target")))
}
