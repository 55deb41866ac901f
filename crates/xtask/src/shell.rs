//! Starts programs; prints their command lines and reports their failures.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use std::path::PathBuf;

/// A named command with its environment variables.
pub(crate) type Step<'a> = (&'a str, &'a [&'a str], &'a [(&'a str, &'a str)]);

/// Returns the root of the workspace, wherever cargo was called.
pub(crate) fn workspace_root() -> Result<PathBuf> {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let root = manifest.ancestors().nth(2).context("xtask lives two folders below the root")?;
    Ok(root.to_owned())
}

/// Runs one named step and prints its duration.
pub(crate) fn step(name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    eprintln!("\nxtask: {name}");
    let start = Instant::now();
    work().with_context(|| format!("step `{name}` failed"))?;
    eprintln!("xtask: {name} done in {:.1} s", start.elapsed().as_secs_f32());
    Ok(())
}

/// Returns a command without the variables that describe xtask itself.
///
/// `cargo run` sets variables such as `CARGO_PKG_NAME` for the program that it starts. The build
/// scripts of some dependencies (ring) depend on them, so a cargo that inherits them would compile
/// these crates, and all that need them, again: once for xtask, and once for a person's own cargo.
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(describes_xtask) {
            command.env_remove(name);
        }
    }
    command
}

fn describes_xtask(variable: &str) -> bool {
    variable.starts_with("CARGO_PKG_") || variable.starts_with("CARGO_MANIFEST_")
}

/// Runs a command to its end; its output is inherited.
pub(crate) fn run(words: &[&str], env: &[(&str, &str)]) -> Result<()> {
    eprintln!("$ {}", words.join(" "));
    let (program, args) = words.split_first().context("empty command")?;
    let status = command(program)
        .args(args)
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot start {program}"))?;
    if !status.success() {
        bail!("`{}` ended with {status}", words.join(" "));
    }
    Ok(())
}

/// Returns true if a command can be run and succeeds; its output is dropped.
pub(crate) fn succeeds(words: &[&str]) -> bool {
    let Some((program, args)) = words.split_first() else { return false };
    command(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Returns true if cargo-nextest is installed. It is used if present but never built: building it
/// takes longer than the tests of most changes.
pub(crate) fn has_nextest() -> bool {
    succeeds(&["cargo", "nextest", "--version"])
}
