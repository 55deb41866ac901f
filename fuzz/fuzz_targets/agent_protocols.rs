//! The runtimes of ACP agents and of Codex on arbitrary output.
#![no_main]

use heeler_runner::protocol_fuzz::{drive_acp, drive_codex};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|output: &[u8]| {
    drive_acp(output);
    drive_codex(output);
});
