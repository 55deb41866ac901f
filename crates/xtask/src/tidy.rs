//! Tests for rules of the code base that the compiler does not check.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use crate::measure::shared_names;
use crate::shell::workspace_root;
use crate::source::sources;

/// Maximum length of a source file without its tests; a longer module has grown a second idea.
const FILE_LINES_MAX: usize = 700;

/// Type names that may be defined more than once, each with the reason.
const SHARED_NAMES: [(&str, &str); 2] = [
    ("FileWatch", "one for Linux and one for systems without inotify; only one is compiled"),
    ("ProcessHandle", "one for Linux and one for other systems; only one is compiled"),
];

#[test]
fn crate_edges_are_those_that_the_architecture_lists() {
    let root = workspace_root().unwrap();
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(&root)
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
    let architecture = std::fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let listed: BTreeSet<String> = architecture
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- `"))
        .filter_map(|line| line.split('`').next())
        .filter(|edge| edge.contains(" -> "))
        .map(str::to_owned)
        .collect();
    assert_eq!(real, listed, "ARCHITECTURE.md lists the edges under \"Edges\"");
}

#[test]
fn no_file_is_too_long() {
    for file in sources().unwrap() {
        let lines = file.shipped_lines().count();
        assert!(lines <= FILE_LINES_MAX, "{} has {lines} lines: split it", file.path.display());
    }
}

#[test]
fn every_module_has_a_module_comment() {
    for file in sources().unwrap() {
        assert!(file.text.starts_with("//!"), "{} does not start with //!", file.path.display());
    }
}

#[test]
fn only_the_program_prints() {
    for file in sources().unwrap() {
        let prints = file.text.lines().any(|line| {
            let line = line.trim_start();
            line.starts_with("println!") || line.starts_with("print!") || line.starts_with("eprint")
        });
        let allowed = ["crates/heeler/src", "crates/xtask/src", "src/bin"]
            .iter()
            .any(|part| file.path.to_string_lossy().contains(part));
        assert!(allowed || !prints, "{} prints", file.path.display());
    }
}

/// The life cycle of a job is one function, `Job::apply`.
#[test]
fn a_job_status_is_assigned_in_one_place() {
    // Rows of workflow runs have a status too, and a state machine of their own.
    let assigns =
        |line: &str| line.contains("head.status = ") && !line.contains("row.head.status = ");
    for file in sources().unwrap() {
        let is_allowed = file.path.ends_with("heeler-model/src/job.rs");
        let is_clean = !file.shipped_lines().any(assigns);
        assert!(is_allowed || is_clean, "{}: use Job::apply", file.path.display());
    }
}

/// A reader who jumps to a type by its name must find one type.
#[test]
fn no_two_types_share_a_name() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for definition in shared_names(&sources().unwrap()) {
        let place = format!("{}:{}", definition.path.display(), definition.line);
        places.entry(definition.name).or_default().push(place);
    }
    let allowed: BTreeSet<&str> = SHARED_NAMES.iter().map(|(name, _)| *name).collect();
    let unexpected: Vec<_> =
        places.iter().filter(|(name, _)| !allowed.contains(name.as_str())).collect();
    assert!(unexpected.is_empty(), "defined more than once: {unexpected:#?}");
    let unused: Vec<_> = allowed.iter().filter(|name| !places.contains_key(**name)).collect();
    assert!(unused.is_empty(), "no longer shared, remove from the list: {unused:?}");
}
