//! The config loader and the editing of a fleet file on arbitrary text.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/heeler-config/tests/config/any_text.rs"]
mod any_text;

fuzz_target!(|text: &str| {
    // A NUL parts the fleet file, the agent's file and `.env`.
    let mut parts = text.splitn(3, '\0');
    let mut part = || parts.next().unwrap_or_default();
    let (fleet, agent, dotenv) = (part(), part(), part());
    any_text::check_loader(fleet, agent, dotenv);
    any_text::check_add_agent(fleet);
});
