//! Transcript readers and the repair on arbitrary bytes, with the properties of the tests.
#![no_main]

use camino::Utf8Path;
use libfuzzer_sys::fuzz_target;

#[path = "../../crates/heeler-transcript/tests/it/properties.rs"]
mod properties;

fuzz_target!(|bytes: &[u8]| {
    let temp = tempfile::tempdir().expect("a temp folder can be made");
    let folder = Utf8Path::from_path(temp.path()).expect("the temp folder's name is UTF-8");
    properties::check_readers(folder, bytes);
});
