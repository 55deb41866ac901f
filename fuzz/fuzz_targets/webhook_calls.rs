//! Signatures and bodies of calls of Slack, GitHub and others.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| heeler_server::drive_call(text));
