//! The `heeler` program. All code is in the library of the same name.

use std::process::ExitCode;

#[cfg(target_env = "musl")]
use heeler_musl as _;

fn main() -> ExitCode {
    heeler::main()
}
