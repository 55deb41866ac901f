//! `heeler doctor sandbox`: tests whether agents can run in a sandbox on this machine; and the
//! agents that have none. Start at [`run`].

use serde_json::json;

use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config::OptionalFleetConfig;
use crate::output;
#[cfg(target_os = "linux")]
use crate::process_env;

/// Maximum number of agents that a recommendation names.
const NAMED_AGENTS_MAX: usize = 5;

/// Starts a sandbox, attacks it from inside, and prints what it found.
pub(super) fn run(json: bool) -> CommandResult {
    let found = probe();
    if json {
        let mut document = match &found {
            Ok(program) => json!({"sandbox": "bubblewrap", "program": program}),
            Err(reason) => json!({"sandbox": null, "reason": reason}),
        };
        document["landlock"] = landlock_problem().is_none().into();
        output::print_json(&document)?;
    }
    match found {
        Ok(_) if json => Ok(()),
        Ok(program) => {
            output::print_line(format!(
                "agents can run in a sandbox: {program} works, and attacks from inside failed"
            ))?;
            Ok(output::print_line(match landlock_problem() {
                None => "the weaker level works too (`sandbox: {level: landlock}`)".to_owned(),
                Some(reason) => format!("the weaker level does not work: {reason}"),
            })?)
        }
        Err(_) if json => Err(CommandFailure::silent(FailureCode::Failed)),
        Err(reason) => Err(CommandFailure::message(
            FailureCode::Failed,
            match landlock_problem() {
                Some(_) => format!("agents cannot run in a sandbox on this machine: {reason}"),
                None => format!(
                    "agents cannot run in a sandbox on this machine: {reason}\nthe weaker level works \
                     (`sandbox: {{level: landlock}}`, docs/isolation.md)"
                ),
            },
        )),
    }
}

/// Returns the reason that Landlock cannot limit the files of an agent, if it cannot.
fn landlock_problem() -> Option<String> {
    #[cfg(target_os = "linux")]
    return heeler_runner::landlock_unavailable_reason();
    #[cfg(not(target_os = "linux"))]
    Some("Landlock exists on Linux only".to_owned())
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

/// Returns the names of the agents whose config says nothing about a sandbox. For an agent with
/// `sandbox: off`, a person has decided.
pub(super) fn unconfined_agents(context: &CommandContext) -> Vec<String> {
    // A config with faults is no problem of the state, and other commands report it.
    let loaded = OptionalFleetConfig::load(context).ok().and_then(OptionalFleetConfig::into_loaded);
    let agents = loaded.into_iter().flat_map(|loaded| loaded.agents);
    agents.filter(|agent| agent.sandbox.is_none()).map(|agent| agent.name.to_string()).collect()
}

/// Recommends a sandbox for agents that have none. Nothing is wrong with them, so this is no finding.
pub(super) fn recommendation(context: &CommandContext, unconfined: &[String]) -> Option<String> {
    if unconfined.is_empty() || !cfg!(target_os = "linux") {
        return None;
    }
    let named: Vec<&str> = unconfined.iter().take(NAMED_AGENTS_MAX).map(String::as_str).collect();
    let others = match unconfined.len() - named.len() {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    let (verb, names) = (if unconfined.len() == 1 { "has" } else { "have" }, named.join(", "));
    let file =
        context.config.as_ref().and_then(|config| config.file_name()).unwrap_or("the config");
    let first = match probe() {
        Ok(_) => String::new(),
        Err(reason) => format!("; before that, {reason}"),
    };
    Some(format!(
        "no sandbox: {names}{others} {verb} your rights on this machine; recommended: \
         `sandbox: true` in `defaults` of {file} (docs/isolation.md){first}"
    ))
}
