//! The runtime of Qwen Code on arbitrary output.
#![no_main]

use heeler_runner::protocol_fuzz::drive_qwen;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|output: &[u8]| drive_qwen(output));
