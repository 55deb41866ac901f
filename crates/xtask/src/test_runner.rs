//! Runs every test of the workspace in a process of its own, as cargo-nextest does.
//!
//! Used if cargo-nextest is not installed: building it takes longer than many test runs, and
//! `cargo test` would run tests that reap child processes or change signals in one process.
//! Start at [`run_all`].

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

/// Time after which a test is killed and fails. Generous, for slow and busy machines.
const TEST_TIME_MAX: Duration = Duration::from_secs(1800);

const POLL_INTERVAL: Duration = Duration::from_millis(5);

struct TestBinary {
    path: PathBuf,
    /// Cargo runs tests in the folder of their package; so does this runner.
    package_dir: PathBuf,
}

struct TestCase<'a> {
    binary: &'a TestBinary,
    name: String,
}

/// Builds the tests of the whole workspace and runs them, as many at once as there are processors.
pub(crate) fn run_all() -> Result<()> {
    let binaries = build_binaries()?;
    let mut queue = Vec::new();
    for binary in &binaries {
        queue.extend(list_tests(binary)?);
    }
    ensure!(!queue.is_empty(), "no test was built");
    let total = queue.len();
    // Long proofs first, so that the last minutes are not spent waiting for one of them.
    queue.sort_by_key(|test| test.name.contains("proof_"));
    let queue = Mutex::new(queue);
    let browser = Mutex::new(());
    let failures = Mutex::new(Vec::new());
    let workers = std::thread::available_parallelism()?.get();
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().expect("no worker panics").pop();
                    let Some(test) = next else { break };
                    // Two browsers at once starve each other on small machines.
                    let _turn = test
                        .name
                        .starts_with("browser")
                        .then(|| browser.lock().expect("no worker panics"));
                    if let Err(error) = run_one(&test) {
                        eprintln!("FAIL {}: {error:#}", test.name);
                        failures.lock().expect("no worker panics").push(test.name);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no worker panics");
    eprintln!("{total} tests run: {} passed, {} failed", total - failures.len(), failures.len());
    ensure!(failures.is_empty(), "failed: {}", failures.join(", "));
    Ok(())
}

fn build_binaries() -> Result<Vec<TestBinary>> {
    let output = Command::new("cargo")
        .args(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    ensure!(output.status.success(), "building the tests ended with {}", output.status);
    let text = String::from_utf8(output.stdout)?;
    let messages = text.lines().map(serde_json::from_str::<Value>);
    let mut binaries = Vec::new();
    for message in messages {
        let message = message?;
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
    Ok(names.map(|name| TestCase { binary, name: name.to_owned() }).collect())
}

fn run_one(test: &TestCase<'_>) -> Result<()> {
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
    let mut text = String::new();
    std::io::Seek::rewind(&mut output)?;
    std::io::Read::read_to_string(&mut output, &mut text)?;
    match status {
        Some(status) => bail!("{status}\n{text}"),
        None => bail!("killed after {} s\n{text}", TEST_TIME_MAX.as_secs()),
    }
}
