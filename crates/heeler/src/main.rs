//! The `heeler` program. All code is in the library of the same name.

use std::process::ExitCode;

fn main() -> ExitCode {
    heeler::main()
}
