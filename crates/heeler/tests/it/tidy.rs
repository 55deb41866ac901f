//! The house rules that a compiler does not check.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The longest source file, tests aside; past it a module has grown a second idea.
const FILE_LINES_MAX: usize = 700;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// Every Rust file under `crates/*/src`, with its text.
fn sources() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let is_test = path.components().any(|part| part.as_os_str() == "tests");
            let in_src = path.components().any(|part| part.as_os_str() == "src");
            if path.is_dir() {
                folders.push(path);
            } else if in_src && !is_test && path.extension().is_some_and(|ext| ext == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    assert!(found.len() > 20, "the walk lost its way: {} files", found.len());
    found
}

#[test]
fn crate_edges_are_those_that_the_architecture_draws() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut real = BTreeSet::new();
    for package in metadata["packages"].as_array().unwrap() {
        for dependency in package["dependencies"].as_array().unwrap() {
            let (from, to) =
                (package["name"].as_str().unwrap(), dependency["name"].as_str().unwrap());
            if dependency["kind"].is_null() && to.starts_with("heeler") {
                real.insert(format!("{from} -> {to}"));
            }
        }
    }
    let architecture = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let drawn: BTreeSet<String> = architecture
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- `"))
        .filter_map(|line| line.split('`').next())
        .filter(|edge| edge.contains(" -> "))
        .map(str::to_owned)
        .collect();
    assert_eq!(real, drawn, "ARCHITECTURE.md lists the edges under \"Edges\"");
}

#[test]
fn no_file_has_grown_too_long() {
    for (path, text) in sources() {
        let lines = text.lines().take_while(|line| !line.starts_with("#[cfg(test)]")).count();
        assert!(lines <= FILE_LINES_MAX, "{} has {lines} lines: split it", path.display());
    }
}

#[test]
fn every_module_says_what_it_owns() {
    for (path, text) in sources() {
        assert!(text.starts_with("//!"), "{} does not start with //!", path.display());
    }
}

#[test]
fn only_the_program_prints() {
    for (path, text) in sources() {
        let prints = text.lines().any(|line| {
            let line = line.trim_start();
            line.starts_with("println!") || line.starts_with("print!") || line.starts_with("eprint")
        });
        let may = ["crates/heeler/src", "crates/xtask/src", "src/bin", "examples"]
            .iter()
            .any(|part| path.to_string_lossy().contains(part));
        assert!(may || !prints, "{} prints", path.display());
    }
}
