//! `heeler doctor docker`: tells which container engine agents would use, and what is left of
//! containers. Start at [`run`].

use std::collections::BTreeMap;

use camino::Utf8Path;
use heeler_container::{EngineFacts, EngineKind};
use heeler_engine::{ContainerSurvey, EngineSurvey, OrphanContainer, survey_containers};
use serde_json::{Value, json};

use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config::{self, OptionalFleetConfig};
use crate::global_args::GlobalArgs;
use crate::output;
use crate::process_env;
use crate::trust::visible;

/// Asks the engine, and prints what it says.
pub(super) fn run(global: &GlobalArgs, json: bool) -> CommandResult {
    // Without a fleet, the engine can be tested all the same.
    let context = CommandContext::find(global).ok();
    let env = context.as_ref().map_or_else(process_env::environment, environment);
    let state_dir = context.as_ref().map(|context| context.state_dir.as_path());
    let found = examine(&env, state_dir);
    if json {
        output::print_json(&to_json(&found))?;
    }
    match found {
        Ok(_) if json => Ok(()),
        Ok(survey) => print(&survey),
        Err(_) if json => Err(CommandFailure::silent(FailureCode::Failed)),
        Err(reason) => Err(CommandFailure::message(
            FailureCode::Failed,
            format!("agents cannot run in containers on this machine: {reason}"),
        )),
    }
}

/// Returns the environment that names the engine: of this process, and of the fleet if there is one.
pub(crate) fn engine_environment(global: &GlobalArgs) -> BTreeMap<String, String> {
    let context = CommandContext::find(global).ok();
    context.as_ref().map_or_else(process_env::environment, environment)
}

fn environment(context: &CommandContext) -> BTreeMap<String, String> {
    let with_dotenv =
        context.config.as_deref().and_then(|it| fleet_config::environment(context, it).ok());
    with_dotenv.unwrap_or_else(process_env::environment)
}

fn examine(
    env: &BTreeMap<String, String>,
    state_dir: Option<&Utf8Path>,
) -> Result<EngineSurvey, String> {
    #[cfg(target_os = "linux")]
    {
        let program = process_env::program().map_err(|failure| format!("{:#}", failure.error))?;
        heeler_runner::find_first_process(&program)?;
    }
    survey_containers(env, state_dir, process_env::now())
}

/// Returns the containers of Heeler, if an agent of the fleet has one and the engine replies.
pub(super) fn containers(context: &CommandContext) -> ContainerSurvey {
    let loaded = OptionalFleetConfig::load(context).ok().and_then(OptionalFleetConfig::into_loaded);
    let has_container = |loaded: heeler_config::LoadedConfig| {
        loaded.agents.iter().any(|agent| agent.container().is_some())
    };
    if !loaded.is_some_and(has_container) {
        return ContainerSurvey::default();
    }
    // A run says why its engine cannot be used, and so does `doctor docker`.
    let survey =
        survey_containers(&environment(context), Some(&context.state_dir), process_env::now());
    survey.map(|survey| survey.containers).unwrap_or_default()
}

fn print(EngineSurvey { socket, facts, containers }: &EngineSurvey) -> CommandResult {
    let EngineFacts { version, is_rootless, .. } = facts;
    let rights = if *is_rootless { "without root" } else { "as root" };
    let kind = kind_name(facts.kind);
    output::print_line(format!(
        "agents can run in containers: {kind} {} at {socket} ({rights})",
        visible(version)
    ))?;
    for warning in warnings(facts) {
        output::print_line(format!("note     {warning}"))?;
    }
    for kept in &containers.kept {
        let state = if kept.is_running { "running" } else { "idle" };
        output::print_line(format!(
            "kept     {} of agent {} for session {}: {state}",
            visible(&kept.name),
            visible(&kept.agent),
            visible(&kept.session),
        ))?;
    }
    print_orphans(containers)
}

/// Prints the containers that no run needs.
pub(super) fn print_orphans(containers: &ContainerSurvey) -> CommandResult {
    for OrphanContainer { name, agent, state_dir, reason, .. } in &containers.orphans {
        let (name, agent, state_dir) = (visible(name), visible(agent), visible(state_dir));
        output::print_line(format!(
            "orphan   {name} of agent {agent} in {state_dir}: {}; remove it with `docker rm -f {name}`",
            reason.as_str(),
        ))?;
    }
    Ok(())
}

/// Returns the containers that no run needs, as JSON.
pub(super) fn orphans_json(containers: &ContainerSurvey) -> Value {
    let orphan = |it: &OrphanContainer| {
        json!({
            "name": it.name,
            "agent": it.agent,
            "stateDir": it.state_dir,
            "reason": it.reason.as_str(),
        })
    };
    containers.orphans.iter().map(orphan).collect()
}

fn kind_name(kind: EngineKind) -> &'static str {
    match kind {
        EngineKind::Docker => "Docker",
        EngineKind::Podman => "Podman",
    }
}

/// Returns what the engine cannot do.
fn warnings(facts: &EngineFacts) -> Vec<&'static str> {
    let checks = [
        (
            facts.survives_restart,
            "a restart of the engine ends running agents: set `\"live-restore\": true` in \
             /etc/docker/daemon.json",
        ),
        (facts.limits_memory, "this kernel or engine cannot limit memory (`docker.memory`)"),
        (
            facts.limits_processes,
            "this kernel or engine cannot limit processes (`docker.pids_limit`)",
        ),
    ];
    checks.into_iter().filter(|(is_good, _)| !is_good).map(|(_, text)| text).collect()
}

fn to_json(found: &Result<EngineSurvey, String>) -> Value {
    match found {
        Err(reason) => json!({"engine": null, "reason": reason}),
        Ok(EngineSurvey { socket, facts, containers }) => {
            let kept = containers.kept.iter().map(|it| {
                json!({
                    "name": it.name,
                    "agent": it.agent,
                    "session": it.session,
                    "running": it.is_running,
                })
            });
            json!({
                "engine": kind_name(facts.kind),
                "version": facts.version,
                "socket": socket,
                "rootless": facts.is_rootless,
                "notes": warnings(facts),
                "kept": kept.collect::<Vec<Value>>(),
                "orphans": orphans_json(containers),
            })
        }
    }
}
