//! The first process of a sandbox as a program of its own, which can be linked statically: a
//! container may have no library that `heeler` needs.

use std::process::ExitCode;

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    return heeler_inside::run_first_process();
    #[cfg(not(target_os = "linux"))]
    {
        eprintln!("error: sandboxes exist on Linux only");
        ExitCode::FAILURE
    }
}
