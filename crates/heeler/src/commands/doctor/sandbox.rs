//! `heeler doctor sandbox`: tests whether agents can run in a sandbox on this machine. Start at
//! [`run`].

use serde_json::json;

use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::output;
#[cfg(target_os = "linux")]
use crate::process_env;

/// Starts a sandbox, attacks it from inside, and prints what it found.
pub(super) fn run(json: bool) -> CommandResult {
    let found = probe();
    if json {
        let document = match &found {
            Ok(program) => json!({"sandbox": "bubblewrap", "program": program}),
            Err(reason) => json!({"sandbox": null, "reason": reason}),
        };
        output::print_json(&document)?;
    }
    match found {
        Ok(_) if json => Ok(()),
        Ok(program) => Ok(output::print_line(format!(
            "agents can run in a sandbox: {program} works, and attacks from inside failed"
        ))?),
        Err(_) if json => Err(CommandFailure::silent(FailureCode::Failed)),
        Err(reason) => Err(CommandFailure::message(
            FailureCode::Failed,
            format!("agents cannot run in a sandbox on this machine: {reason}"),
        )),
    }
}

/// Returns the program that makes sandboxes, or the reason that there can be none.
pub(crate) fn probe() -> Result<String, String> {
    #[cfg(target_os = "linux")]
    {
        let program = process_env::program().map_err(|failure| format!("{:#}", failure.error))?;
        heeler_runner::probe_sandbox(&program)
    }
    #[cfg(not(target_os = "linux"))]
    Err("sandboxes exist on Linux only".to_owned())
}
