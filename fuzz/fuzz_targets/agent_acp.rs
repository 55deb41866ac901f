//! The runtime of ACP agents on arbitrary output.
#![no_main]

use heeler_runner::protocol_fuzz::drive_acp;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|output: &[u8]| drive_acp(output));
