//! The first process of a sandbox as a program of its own, which can be linked statically: a
//! container may have no library that `heeler` needs.

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    let socket = std::env::args_os().nth(1);
    if socket.as_deref().is_some_and(|argument| argument == "--version") {
        println!(
            "heeler-inside {} {:016x}",
            env!("CARGO_PKG_VERSION"),
            heeler_inside::SOURCES_HASH
        );
        return ExitCode::SUCCESS;
    }
    match heeler_inside::run_first_process(socket.as_deref().map(std::path::Path::new)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: the first process of the sandbox failed: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    eprintln!("error: sandboxes exist on Linux only");
    ExitCode::FAILURE
}
