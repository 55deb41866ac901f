//! The runtime of Claude Code, with the control protocol and for one prompt, on arbitrary output.
#![no_main]

use heeler_runner::protocol_fuzz::drive_claude;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|output: &[u8]| drive_claude(output));
