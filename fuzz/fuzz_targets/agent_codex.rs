//! The runtime of Codex on arbitrary output.
#![no_main]

use heeler_runner::protocol_fuzz::drive_codex;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|output: &[u8]| drive_codex(output));
