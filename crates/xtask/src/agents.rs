//! Fetches the agents besides Claude Code that the tests run.
//!
//! Each is pinned by version and checksum and stored in the user's cache, once for all clones;
//! `heeler_testkit` finds it there. Most are one package of npm without further dependencies. The
//! others have a file with the versions and checksums of all their dependencies, and no package runs
//! a script when it is installed. CI needs those of [`fetch`], and `cargo xtask prove agents` also
//! those of [`fetch_others`].

use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::packages::{install_debian_packages, run_npm, tool_cache};
use crate::shell::{run, succeeds};

/// Also read by `heeler_testkit`.
const CODEX_VERSION: &str = include_str!("../../heeler-testkit/codex-version");
const GEMINI_VERSION: &str = include_str!("../../heeler-testkit/gemini-version");

/// Codex's packages of this version with their checksums, by Rust's names of system and processor.
const CODEX_PACKAGES: [(&str, &str, &str, &str); 4] = [
    (
        "linux",
        "x86_64",
        "linux-x64",
        "sha512-CxDm3+D1cpbGJeHrdzINoG+3wn9BVncP4qpZaaNYkxe8iPtRJOYyCJnnPoVjWRIBvI9vPKbRoifsMSA5xDaUpw==",
    ),
    (
        "linux",
        "aarch64",
        "linux-arm64",
        "sha512-w0ScAsBr9aZKtIFrh6HN6KU2yjKKeSCzYfbb7DB0Ccj4BYPzeZtUeQprbycLCwuX3AFQdbdjapmLho2iot74jQ==",
    ),
    (
        "macos",
        "x86_64",
        "darwin-x64",
        "sha512-Vj5wXJPizKmrzNtnRNQf9PP6FJkG3iJU/UO3NE4WvkENZGoQfmImdwf4MVRI5NgwjSuC6LT0HbBRHPVVnwGHuw==",
    ),
    (
        "macos",
        "aarch64",
        "darwin-arm64",
        "sha512-5fWH6qqUInACcRADIewjlnRxDb4QLe0uriwehiZz0+viuAAB8I+WWefqw4xwHvyKaxeiGX4uK56+vrgfvFk3FQ==",
    ),
];

/// Checksum of Gemini CLI, which is the same package for every system.
const GEMINI_INTEGRITY: &str = "sha512-dbQ9A0qBtFJNi6XBkHvfZ6Azpn6PNgH/P8h2MZ67RLlX8hSAVjup39CRWqdRxZv7YXIuhrFaytr8y0jKnkoxnQ==";

/// Also read by `heeler_testkit`.
const GOOSE_VERSION: &str = include_str!("../../heeler-testkit/goose-version");

/// Checksum of goose for Linux on x86-64, the only system for which this version is published.
const GOOSE_INTEGRITY: &str = "sha512-XYf4tu5Z1zkMNPm/ROwEuBD+21urw4trIlpBHJnbqNdMLiAyQQ2G5xplt71jdGm5q0VxhZT7VRvi9DPDTN+enQ==";

/// Node.js for Qwen Code, which needs a newer one than many systems have, with its checksums by Rust's
/// names of system and processor.
const NODE_VERSION: &str = include_str!("../../heeler-testkit/node-version");
const NODE_PACKAGES: [(&str, &str, &str, &str); 3] = [
    (
        "linux",
        "x86_64",
        "linux-x64",
        "sha512-qHnz5tFsHoj/WM+uRENVjWONi5hVvmwrgq8A4V76KpuVNAc4+jwK8x4gwbobE9BtHNg/AKR2583eYorLF/c7ng==",
    ),
    (
        "linux",
        "aarch64",
        "linux-arm64",
        "sha512-l3DAHZreylo+p9QXDtsOrjG2JXJqVzYXnAGmIQNOUNARcMppTO2cmewVQP+36tjJnSE+dzpMNtgW+c3oiDvXtA==",
    ),
    (
        "macos",
        "x86_64",
        "darwin-x64",
        "sha512-V6W/fNXsKFF0DMrBrpLNp9meU45Qbe6tQ3HlzrpdiPWW+zlbmTGou1LE8aGHOghVWXJFexvi7RDCQVQi1I1t8w==",
    ),
];

const QWEN_VERSION: &str = include_str!("../../heeler-testkit/qwen-version");
const QWEN_INTEGRITY: &str = "sha512-pmexy/Nj+BKd3Un1ogqGQE8V4GJn5B6N9PQOrU1GH+lMR29kn6Bgf6YdbZa8hNIoTmAKT1LTPK+P8TibZRPPVg==";

/// Agents that CI does not run, for Linux on x86-64: name, version, package, checksum.
const OTHER_PACKAGES: [(&str, &str, &str, &str); 2] = [
    (
        "opencode",
        include_str!("../../heeler-testkit/opencode-version"),
        "opencode-linux-x64",
        "sha512-q/t/3p2CTxOT9y2kvjesb/LZab2+1eqlhhWA02Be6mjTtmYtNBcBsrI5yDo4Fw7ZSPBW2oyMIGMNRqiKQjiAWw==",
    ),
    (
        "copilot",
        include_str!("../../heeler-testkit/copilot-version"),
        "@github/copilot-linux-x64",
        "sha512-eGHPbsP0p2QgfVZCjtbGBFZPBOJQ0DN7xIbBRAo7oG8b1zfLirQIdfI4h8Iy68Dv2cKJGJZg2/EO7W7KpIMJOw==",
    ),
];

/// Grok Build for Linux on x86-64. The package contains the program in compressed form.
const GROK_VERSION: &str = include_str!("../../heeler-testkit/grok-version");
const GROK_INTEGRITY: &str = "sha512-5KS0AMeGYQh3++0EEZPKVjAcalFQma8K5SKMhBu1k1OVNpA/lO+fRgecS1/kOsLaGaPDPfQm611Z+a5J9dLfAg==";

/// Script for Node.js that unpacks Grok Build.
const UNPACK_GROK: &str = "const [, from, to] = process.argv, fs = require('fs'); \
    const bytes = require('zlib').brotliDecompressSync(fs.readFileSync(from)); \
    fs.writeFileSync(to, bytes, { mode: 0o755 });";

/// Agents with dependencies: name, version, package.json, package-lock.json.
const LOCKED_PACKAGES: [(&str, &str, &str, &str); 3] = [
    (
        "claude-acp",
        include_str!("../../heeler-testkit/claude-acp-version"),
        include_str!("../../heeler-testkit/packages/claude-acp/package.json"),
        include_str!("../../heeler-testkit/packages/claude-acp/package-lock.json"),
    ),
    (
        "codex-acp",
        include_str!("../../heeler-testkit/codex-acp-version"),
        include_str!("../../heeler-testkit/packages/codex-acp/package.json"),
        include_str!("../../heeler-testkit/packages/codex-acp/package-lock.json"),
    ),
    (
        "kimi",
        include_str!("../../heeler-testkit/kimi-version"),
        include_str!("../../heeler-testkit/packages/kimi/package.json"),
        include_str!("../../heeler-testkit/packages/kimi/package-lock.json"),
    ),
];

/// Mistral Vibe with its dependencies, of which the checksums are those for [`VIBE_PYTHON`].
const VIBE_VERSION: &str = include_str!("../../heeler-testkit/vibe-version");
const VIBE_REQUIREMENTS: &str = include_str!("../../heeler-testkit/packages/vibe/requirements.txt");
const VIBE_PYTHON: &str = "python3.12";
/// Where pyenv provides Python, it starts only a version that was chosen.
const PYENV_CHOICE: (&str, &str) = ("PYENV_VERSION", "3.12");

/// Fetches the agents of `cargo xtask prove agents` that are not in the cache.
pub(crate) fn fetch_others() -> Result<()> {
    if (std::env::consts::OS, std::env::consts::ARCH) != ("linux", "x86_64") {
        bail!("the agents that CI does not run are pinned for Linux on x86-64 only");
    }
    OTHER_PACKAGES.iter().try_for_each(|(name, version, package, integrity)| {
        let version = version.trim();
        fetch_package(name, version, &format!("{package}@{version}"), integrity)
    })?;
    let grok = GROK_VERSION.trim();
    let package = format!("@xai-official/grok-linux-x64@{grok}");
    into_cache("grok", grok, |parts| {
        unpack(&package, GROK_INTEGRITY, parts)?;
        let programs = parts.join("package/bin");
        let (from, to) = (programs.join("grok.br"), programs.join("grok"));
        run(&["node", "-e", UNPACK_GROK, text(&from)?, text(&to)?], &[])?;
        std::fs::remove_file(&from)?;
        Ok("package")
    })?;
    LOCKED_PACKAGES.iter().try_for_each(|(name, version, manifest, lock)| {
        fetch_locked(name, version, manifest, lock)
    })?;
    fetch_vibe()
}

/// Installs a package of npm with the dependencies of its lock file, unless it is in the cache. npm
/// refuses a package that does not have the checksum of the lock file.
fn fetch_locked(name: &str, version: &str, manifest: &str, lock: &str) -> Result<()> {
    into_cache(name, version.trim(), |parts| {
        let folder = parts.join("package");
        std::fs::create_dir(&folder)?;
        std::fs::write(folder.join("package.json"), manifest)?;
        std::fs::write(folder.join("package-lock.json"), lock)?;
        let flags = ["--ignore-scripts", "--no-audit", "--no-fund"];
        run_npm(&[&["ci", "--prefix", text(&folder)?][..], &flags].concat())?;
        Ok("package")
    })
}

/// Installs Mistral Vibe into a Python environment of its own, unless it is in the cache.
fn fetch_vibe() -> Result<()> {
    let version = VIBE_VERSION.trim();
    let choice = format!("{}={}", PYENV_CHOICE.0, PYENV_CHOICE.1);
    if !succeeds(&["env", &choice, VIBE_PYTHON, "-c", "import venv, ensurepip"]) {
        eprintln!(
            "setup: vibe {version} needs {VIBE_PYTHON} with venv, which is missing; its tests will \
             fail here"
        );
        return Ok(());
    }
    into_cache("vibe", version, |parts| {
        let folder = parts.join("package");
        run(&[VIBE_PYTHON, "-m", "venv", text(&folder)?], &[PYENV_CHOICE])?;
        let requirements = parts.join("requirements.txt");
        std::fs::write(&requirements, VIBE_REQUIREMENTS)?;
        let python = folder.join("bin/python");
        let pip = [text(&python)?, "-m", "pip", "install", "--quiet", "--no-deps"];
        // A package that has to be built would run its own code here.
        let checks = ["--require-hashes", "--only-binary", ":all:", "-r", text(&requirements)?];
        run(&[&pip[..], &checks].concat(), &[])?;
        Ok("package")
    })
}

/// Fetches the agents that CI runs and that are not in the cache.
pub(crate) fn fetch() -> Result<()> {
    install_debian_packages(&[("npm", "npm"), ("node", "nodejs"), ("tar", "tar")])?;
    let (system, processor) = (std::env::consts::OS, std::env::consts::ARCH);
    let known = CODEX_PACKAGES.iter().find(|package| package.0 == system && package.1 == processor);
    let codex = CODEX_VERSION.trim();
    let Some((_, _, platform, integrity)) = known else {
        bail!("there is no codex {codex} for {processor} {system}");
    };
    fetch_package("codex", codex, &format!("@openai/codex@{codex}-{platform}"), integrity)?;
    let node = NODE_VERSION.trim();
    let known = NODE_PACKAGES.iter().find(|package| package.0 == system && package.1 == processor);
    match known {
        Some((_, _, platform, integrity)) => {
            fetch_package("node", node, &format!("node-{platform}@{node}"), integrity)?;
        }
        None => eprintln!(
            "setup: npm has no Node.js {node} for {processor} {system}; the tests of qwen will fail here"
        ),
    }
    let qwen = QWEN_VERSION.trim();
    fetch_package("qwen", qwen, &format!("@qwen-code/qwen-code@{qwen}"), QWEN_INTEGRITY)?;
    let gemini = GEMINI_VERSION.trim();
    let package = format!("@google/gemini-cli@{gemini}");
    fetch_package("gemini", gemini, &package, GEMINI_INTEGRITY)?;
    let goose = GOOSE_VERSION.trim();
    if (system, processor) != ("linux", "x86_64") {
        eprintln!("setup: goose {goose} exists for Linux on x86-64 only; its tests will fail here");
        return Ok(());
    }
    let package = format!("@aaif/goose-binary-linux-x64@{goose}");
    fetch_package("goose", goose, &package, GOOSE_INTEGRITY)
}

/// Fetches and unpacks a package, unless it is in the cache.
fn fetch_package(name: &str, version: &str, package: &str, integrity: &str) -> Result<()> {
    into_cache(name, version, |parts| {
        unpack(package, integrity, parts)?;
        Ok("package")
    })
}

/// Makes the folder of a program in the cache, unless it is there. `make` fills an empty folder and
/// returns the name of the part that is kept.
fn into_cache(
    name: &str,
    version: &str,
    make: impl FnOnce(&Path) -> Result<&'static str>,
) -> Result<()> {
    let folder = tool_cache()?.join(format!("{name}-{version}"));
    if folder.is_dir() {
        eprintln!("setup: {name} {version} is installed");
        return Ok(());
    }
    eprintln!("setup: fetching {name} {version} into {}", folder.display());
    // Unpack next to the target and move it there, so that an existing target is complete.
    let parts = tool_cache()?.join(format!("{name}-{version}.tmp.{}", std::process::id()));
    std::fs::create_dir_all(&parts)?;
    let moved = make(&parts).and_then(|kept| Ok(std::fs::rename(parts.join(kept), &folder)?));
    // The parts are removed even if unpacking has failed.
    std::fs::remove_dir_all(&parts)?;
    moved
}

fn unpack(package: &str, integrity: &str, folder: &Path) -> Result<()> {
    let to = text(folder)?;
    let output = run_npm(&["pack", package, "--json", "--pack-destination", to])?;
    // npm compares the download with the registry only; this pins the content itself.
    if !output.contains(integrity) {
        bail!("{package} does not have the checksum {integrity}");
    }
    let archive = std::fs::read_dir(folder)?.next().context("npm pack left no file")??.path();
    run(&["tar", "-xzf", text(&archive)?, "-C", to], &[])
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("the cache's path is not text")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The name of the fetched folder is that of the package in it.
    #[test]
    fn the_versions_of_agents_with_dependencies_agree() {
        for (name, version, manifest, lock) in LOCKED_PACKAGES {
            assert!(manifest.contains(&format!(": \"{}\"", version.trim())), "{name}");
            // A package without a checksum would be installed unchecked.
            let packages = lock.matches("    \"node_modules/").count();
            assert!(packages > 0, "{name}");
            assert_eq!(lock.matches("\"integrity\": \"sha512-").count(), packages, "{name}");
        }
        assert!(VIBE_REQUIREMENTS.contains(&format!("mistral-vibe=={} ", VIBE_VERSION.trim())));
        for line in VIBE_REQUIREMENTS.lines() {
            assert!(line.contains(" --hash=sha256:"), "{line}");
        }
    }
}
