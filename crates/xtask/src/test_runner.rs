//! Runs every test of the workspace in a process of its own, as cargo-nextest does.
//!
//! Used if cargo-nextest is not installed: building it takes longer than many test runs, and
//! `cargo test` would run tests that reap child processes or change signals in one process.
//! Start at [`run_all`]; [`run_unit_tests`] is for the inner loop.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::shell::command;

/// Time after which a test is killed and fails. Generous, for slow and busy machines.
const TEST_TIME_MAX: Duration = Duration::from_secs(1800);

const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Number of tests between two lines that report the progress.
const PROGRESS_STEP: usize = 100;

struct TestBinary {
    path: PathBuf,
    /// Cargo runs tests in the folder of their package; so does this runner.
    package_dir: PathBuf,
}

struct TestCase<'a> {
    binary: &'a TestBinary,
    name: String,
    /// Place of its group in [`TEST_GROUPS`].
    group: Option<usize>,
}

/// Tests of which only so many run at once. The same groups are in `.config/nextest.toml`.
struct TestGroup {
    tests_at_once: usize,
    contains: fn(&str) -> bool,
}

const TEST_GROUPS: &[TestGroup] = &[
    // A browser takes a core for itself.
    TestGroup { tests_at_once: 1, contains: |name| name.starts_with("browser") },
    // The real claude takes seconds and 200 MB to start.
    TestGroup { tests_at_once: 2, contains: is_of_claude },
];

fn is_of_claude(name: &str) -> bool {
    name.starts_with("claude") || name.contains("_of_claudes_")
}

/// Tests beside which no other runs: they check that a port is kept.
const TESTS_ALONE: &[&str] = &["a_restart_keeps_the_port", "a_link_lets_nobody_in_twice"];

/// Number of tests that run at once: two for each processor, since most tests wait for processes
/// and timers much of the time.
pub(crate) fn test_threads() -> Result<usize> {
    Ok(2 * std::thread::available_parallelism()?.get())
}

/// Number of unit tests that run at once. They need little memory, and wait even more.
pub(crate) fn unit_test_threads() -> Result<usize> {
    Ok(2 * test_threads()?)
}

/// The tests that are still to be run, and how many of each group are running.
struct TestQueue<'a> {
    tests: Vec<TestCase<'a>>,
    running: Vec<usize>,
}

impl<'a> TestQueue<'a> {
    /// Removes the last test whose group has room.
    fn take(&mut self) -> Option<TestCase<'a>> {
        let has_room = |test: &TestCase<'_>| {
            test.group.is_none_or(|group| self.running[group] < TEST_GROUPS[group].tests_at_once)
        };
        let test = self.tests.remove(self.tests.iter().rposition(has_room)?);
        if let Some(group) = test.group {
            self.running[group] += 1;
        }
        Some(test)
    }
}

/// Builds the tests of the whole workspace and runs them, [`test_threads`] at once.
pub(crate) fn run_all() -> Result<()> {
    let binaries = build_binaries(&[])?;
    let tests = list_all_tests(&binaries)?;
    ensure!(!tests.is_empty(), "no test was built");
    run_tests(tests, test_threads()?)
}

/// Builds the unit tests of the whole workspace and runs those of some crates, without proofs.
pub(crate) fn run_unit_tests(crates: &BTreeSet<String>) -> Result<()> {
    let mut binaries = build_binaries(&["--lib", "--bins"])?;
    // The folder of a crate has its name.
    let folder = |binary: &TestBinary| binary.package_dir.file_name().map(OsStr::to_owned);
    let is_wanted = |name: OsString| name.to_str().is_some_and(|name| crates.contains(name));
    binaries.retain(|binary| folder(binary).is_some_and(is_wanted));
    let mut tests = list_all_tests(&binaries)?;
    // Proofs take too long for the inner loop.
    tests.retain(|test| !test.name.contains("proof_"));
    run_tests(tests, unit_test_threads()?)
}

fn list_all_tests(binaries: &[TestBinary]) -> Result<Vec<TestCase<'_>>> {
    let mut tests = Vec::new();
    for binary in binaries {
        tests.extend(list_tests(binary)?);
    }
    Ok(tests)
}

fn run_tests(tests: Vec<TestCase<'_>>, threads: usize) -> Result<()> {
    let total = tests.len();
    let is_alone = |test: &TestCase<'_>| TESTS_ALONE.iter().any(|name| test.name.contains(name));
    let (alone, mut tests): (Vec<_>, Vec<_>) = tests.into_iter().partition(is_alone);
    // Long proofs first, so that the last minutes are not spent waiting for one of them.
    tests.sort_by_key(|test| test.name.contains("proof_"));
    let mut failures = run_side_by_side(tests, threads);
    failures.extend(run_side_by_side(alone, 1));
    eprintln!("{total} tests run: {} passed, {} failed", total - failures.len(), failures.len());
    ensure!(failures.is_empty(), "failed: {}", failures.join(", "));
    Ok(())
}

/// Runs tests, and returns the names of those that failed.
fn run_side_by_side(tests: Vec<TestCase<'_>>, threads: usize) -> Vec<String> {
    let (total, ended) = (tests.len(), AtomicUsize::new(0));
    let queue = Mutex::new(TestQueue { tests, running: vec![0; TEST_GROUPS.len()] });
    let group_has_room = Condvar::new();
    let failures = Mutex::new(Vec::new());
    let take_next = || {
        let mut queue = queue.lock().expect("no worker panics");
        loop {
            if let Some(test) = queue.take() {
                return Some(test);
            }
            // The remaining tests wait until another worker leaves their group.
            if queue.tests.is_empty() {
                return None;
            }
            queue = group_has_room.wait(queue).expect("no worker panics");
        }
    };
    let work = || {
        while let Some(test) = take_next() {
            if let Err(error) = run_one(&test) {
                eprintln!("FAIL {}: {error:#}", test.name);
                failures.lock().expect("no worker panics").push(test.name);
            }
            let ended = ended.fetch_add(1, Ordering::Relaxed) + 1;
            if ended.is_multiple_of(PROGRESS_STEP) {
                eprintln!("{ended} of {total} tests have run");
            }
            if let Some(group) = test.group {
                queue.lock().expect("no worker panics").running[group] -= 1;
                group_has_room.notify_all();
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    failures.into_inner().expect("no worker panics")
}

fn build_binaries(targets: &[&str]) -> Result<Vec<TestBinary>> {
    let output = command("cargo")
        .args(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"])
        .args(targets)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    ensure!(output.status.success(), "building the tests ended with {}", output.status);
    let text = String::from_utf8(output.stdout)?;
    let messages = text.lines().map(serde_json::from_str::<Value>);
    let mut binaries = Vec::new();
    for message in messages {
        let message = message?;
        // Libraries and build scripts are reported too, but are no tests.
        let (Some(path), Some(true)) =
            (message["executable"].as_str(), message["profile"]["test"].as_bool())
        else {
            continue;
        };
        let manifest = message["manifest_path"].as_str().context("a binary has a manifest")?;
        let package_dir = PathBuf::from(manifest).parent().context("a file has a folder")?.into();
        binaries.push(TestBinary { path: path.into(), package_dir });
    }
    Ok(binaries)
}

fn list_tests(binary: &TestBinary) -> Result<Vec<TestCase<'_>>> {
    let output = Command::new(&binary.path).args(["--list", "--format", "terse"]).output()?;
    let text = String::from_utf8(output.stdout)?;
    let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
    let group_of = |name: &str| TEST_GROUPS.iter().position(|group| (group.contains)(name));
    let test = |name: &str| TestCase { binary, group: group_of(name), name: name.to_owned() };
    Ok(names.map(test).collect())
}

fn run_one(test: &TestCase<'_>) -> Result<()> {
    // A file holds any amount of output, while a full pipe would block the test.
    let mut output = tempfile::tempfile()?;
    let mut child = Command::new(&test.binary.path)
        .args(["--exact", &test.name, "--nocapture"])
        .current_dir(&test.binary.package_dir)
        .env("CARGO_MANIFEST_DIR", &test.binary.package_dir)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output.try_clone()?)
        .spawn()?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if start.elapsed() > TEST_TIME_MAX {
            child.kill()?;
            child.wait()?;
            break None;
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    if status.is_some_and(|status| status.success()) {
        return Ok(());
    }
    // The output is shown only for a failure, so that failures stand out.
    let mut text = String::new();
    std::io::Seek::rewind(&mut output)?;
    std::io::Read::read_to_string(&mut output, &mut text)?;
    match status {
        Some(status) => bail!("{status}\n{text}"),
        None => bail!("killed after {} s\n{text}", TEST_TIME_MAX.as_secs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_of_a_full_group_waits_and_another_is_taken() {
        let binary = TestBinary { path: "it".into(), package_dir: "crates/heeler".into() };
        let test = |name: &str, group| TestCase { binary: &binary, name: name.to_owned(), group };
        let tests =
            vec![test("plain", None), test("browser_b", Some(0)), test("browser_a", Some(0))];
        let mut queue = TestQueue { tests, running: vec![0; TEST_GROUPS.len()] };
        let take = |queue: &mut TestQueue<'_>| queue.take().map(|test| test.name);
        assert_eq!(take(&mut queue).as_deref(), Some("browser_a"));
        assert_eq!(take(&mut queue).as_deref(), Some("plain"));
        assert_eq!(take(&mut queue), None);
        queue.running[0] -= 1;
        assert_eq!(take(&mut queue).as_deref(), Some("browser_b"));
    }
}
