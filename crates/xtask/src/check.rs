//! `cargo xtask check`: the fast inner loop.
//!
//! Format, lints and unit tests of the crates that changed since `main`, and of every crate that
//! depends on them. No network, no browser, no real agents. Start at [`run_check`].

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::shell::{has_nextest, run, step};
use crate::test_runner;

/// Checks the crates that changed since `main`: on a branch, since it left `main`; on `main`
/// itself, since the last published commit (or the last commit, if there is no remote).
pub(crate) fn run_check() -> Result<()> {
    let crates = affected_crates()?;
    if crates.is_empty() {
        eprintln!("xtask: no crate changed since main");
        return step("format", || run(&["cargo", "fmt", "--all", "--check"], &[]));
    }
    eprintln!("xtask: checking {}", crates.iter().cloned().collect::<Vec<_>>().join(", "));
    step("format", || run(&["cargo", "fmt", "--all", "--check"], &[]))?;
    // Cargo itself skips crates that are not affected. With a list of packages it would choose
    // other features for shared dependencies, and compile all of them again for each list.
    let lint = ["cargo", "clippy", "--workspace", "--lib", "--bins", "--tests"];
    step("lints", || run(&[&lint[..], &["--", "-D", "warnings"]].concat(), &[]))?;
    step("unit tests", || unit_tests(&crates))
}

fn unit_tests(crates: &BTreeSet<String>) -> Result<()> {
    if !has_nextest() {
        return test_runner::run_unit_tests(crates);
    }
    let names: Vec<String> = crates.iter().map(|name| format!("package(={name})")).collect();
    let wanted = format!("({}) - test(proof_)", names.join(" + "));
    let threads = test_runner::unit_test_threads()?.to_string();
    let run_units = ["cargo", "nextest", "run", "--workspace", "--lib", "--bins"];
    let filter = ["--test-threads", &threads, "--no-tests", "pass", "-E", &wanted];
    run(&[&run_units[..], &filter].concat(), &[])
}

fn affected_crates() -> Result<BTreeSet<String>> {
    let paths = changed_paths()?;
    let metadata: Value = serde_json::from_str(&stdout_of(&[
        "cargo",
        "metadata",
        "--format-version",
        "1",
        "--no-deps",
        "--offline",
    ])?)?;
    let mut dependants: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut names = BTreeSet::new();
    for package in metadata["packages"].as_array().context("metadata has packages")? {
        let name = package["name"].as_str().context("a package has a name")?;
        names.insert(name);
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let on = dependency["name"].as_str().unwrap_or_default();
            dependants.entry(on).or_default().push(name);
        }
    }
    // These files decide the versions and settings of every crate.
    let everything = |path: &String| path == "Cargo.toml" || path == "Cargo.lock";
    if paths.iter().any(everything) {
        return Ok(names.into_iter().map(str::to_owned).collect());
    }
    let changed = paths.iter().filter_map(|path| path.strip_prefix("crates/")?.split('/').next());
    let mut waiting: Vec<&str> = changed.filter(|name| names.contains(name)).collect();
    let mut affected = BTreeSet::new();
    while let Some(name) = waiting.pop() {
        if affected.insert(name.to_owned()) {
            waiting.extend(dependants.get(name).into_iter().flatten());
        }
    }
    Ok(affected)
}

/// Returns the files that differ from the base, including uncommitted and untracked ones.
fn changed_paths() -> Result<Vec<String>> {
    let branch = stdout_of(&["git", "rev-parse", "--abbrev-ref", "HEAD"])?;
    let on_main = branch.trim() == "main";
    let upstream = if on_main { "origin/main" } else { "main" };
    // Without a remote or a branch `main` there is no common base.
    let base = stdout_of(&["git", "merge-base", "HEAD", upstream])
        .unwrap_or_else(|_| "HEAD".to_owned())
        .trim()
        .to_owned();
    let differing = stdout_of(&["git", "diff", "--name-only", &base])?;
    let untracked = stdout_of(&["git", "ls-files", "--others", "--exclude-standard"])?;
    Ok(differing.lines().chain(untracked.lines()).map(str::to_owned).collect())
}

fn stdout_of(command: &[&str]) -> Result<String> {
    let (program, args) = command.split_first().context("empty command")?;
    let output = Command::new(program)
        .args(args)
        .output()
        .with_context(|| format!("cannot start {program}"))?;
    ensure!(output.status.success(), "`{}` ended with {}", command.join(" "), output.status);
    Ok(String::from_utf8(output.stdout)?)
}
