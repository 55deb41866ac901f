//! Tests the memory functions by a C program, with the C compiler that also builds SQLite.
#![expect(clippy::disallowed_methods, reason = "the test is a program in C")]

use std::path::Path;
use std::process::Command;

#[test]
fn memory_functions_copy_and_compare_texts_of_all_sizes() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("memory_test");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/memory_test.c");
    let flags = ["-O2", "-fno-builtin", "-fno-tree-loop-distribute-patterns", "-Wall", "-Werror"];
    let compiled = Command::new("cc").args(flags).arg(source).arg("-o").arg(&program).output();
    let compiled = compiled.unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let tested = Command::new(&program).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&tested.stdout), "all sizes are right\n");
}
