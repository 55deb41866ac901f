//! The program of a release: built static and reproducible, or given. Start at [`build_program`].

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use super::target::DistTarget;
use crate::elf::needs_interpreter;
use crate::packages::install_debian_packages;
use crate::shell::{run, succeeds, workspace_root};

/// Limit on the size of the program, somewhat above its present size: it must not grow unnoticed.
const PROGRAM_BYTES_MAX: u64 = 36_000_000;

/// Size that the program should have.
const PROGRAM_BYTES_GOAL: u64 = 25_000_000;

/// Builds the static program and returns its path.
pub(crate) fn build_program(target: DistTarget) -> Result<PathBuf> {
    let triple = target.triple();
    if !succeeds(&["rustup", "target", "add", &triple]) {
        bail!("`rustup target add {triple}` failed");
    }
    let compiler = c_compiler(target)?;
    let flags = path_flags()?;
    let variable = triple.replace('-', "_");
    let env = [
        ("RUSTFLAGS".to_owned(), flags.join(" ")),
        (format!("CC_{variable}"), compiler),
        // Debug information is stripped, but assertions of C name their files.
        (format!("CFLAGS_{variable}"), c_path_flags()?.join(" ")),
    ];
    let env: Vec<(&str, &str)> =
        env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let package = ["cargo", "build", "--locked", "--package", "heeler", "--bins"];
    run(&[&package[..], &["--profile", "dist", "--target", &triple]].concat(), &env)?;
    let folder = crate::inside::target_folder()?;
    Ok(folder.join(triple).join("dist/heeler"))
}

/// Returns the C compiler for SQLite and ring: that of musl for this processor.
fn c_compiler(target: DistTarget) -> Result<String> {
    ensure!(
        target.processor == std::env::consts::ARCH,
        "cannot build for {} on {}: run `cargo xtask dist` on such a machine, as the release \
         workflow does, and then `cargo xtask dist --finish` over the files of all",
        target.processor,
        std::env::consts::ARCH
    );
    install_debian_packages(&[("musl-gcc", "musl-tools")])?;
    Ok("musl-gcc".to_owned())
}

/// Folders whose names must not be in the program, each with its replacement.
fn mapped_folders() -> Result<Vec<(String, &'static str)>> {
    let cargo = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo"));
    let cargo = cargo.or(home).context("neither CARGO_HOME nor HOME is set")?;
    let text = |path: &Path| path.to_str().map(str::to_owned).context("a path is not text");
    Ok(vec![(text(&cargo)?, "cargo"), (text(&workspace_root()?)?, "heeler")])
}

fn path_flags() -> Result<Vec<String>> {
    let folders = mapped_folders()?.into_iter();
    Ok(folders.map(|(from, to)| format!("--remap-path-prefix={from}=/{to}")).collect())
}

fn c_path_flags() -> Result<Vec<String>> {
    let folders = mapped_folders()?.into_iter();
    Ok(folders.map(|(from, to)| format!("-ffile-prefix-map={from}=/{to}")).collect())
}

/// Refuses a program that is too large, needs a library, names folders of this machine, or is of
/// another version.
pub(crate) fn check_program(program: &Path, version: &str) -> Result<()> {
    let shown = program.display();
    let bytes = std::fs::read(program).with_context(|| format!("cannot read {shown}"))?;
    let size = bytes.len() as u64;
    ensure!(size <= PROGRAM_BYTES_MAX, "{shown} has {size} bytes, more than {PROGRAM_BYTES_MAX}");
    let is_dynamic = needs_interpreter(&bytes).with_context(|| format!("{shown} is no program"))?;
    ensure!(!is_dynamic, "{shown} is not static");
    for (folder, _) in mapped_folders()? {
        let found = bytes.windows(folder.len()).any(|part| part == folder.as_bytes());
        ensure!(!found, "{shown} contains the path {folder}, so another folder gives other bytes");
    }
    let output = Command::new(program).arg("--version").output()?;
    let says = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    ensure!(says == format!("heeler {version}"), "{shown} says `{says}`, not `heeler {version}`");
    eprintln!("dist: heeler is static and has {size} bytes; the goal is {PROGRAM_BYTES_GOAL}");
    Ok(())
}
