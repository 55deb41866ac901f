//! Frames and bodies of chat platforms, and the texts that are made of them.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| heeler_connect::frame_fuzz::drive_text(text));
