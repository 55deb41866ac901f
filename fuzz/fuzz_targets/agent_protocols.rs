//! The runtimes of ACP agents, of Codex and of Qwen Code on arbitrary output.
#![no_main]

use heeler_runner::protocol_fuzz::{drive_acp, drive_codex, drive_qwen};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|output: &[u8]| {
    drive_acp(output);
    drive_codex(output);
    drive_qwen(output);
});
