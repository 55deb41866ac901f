//! `heeler doctor docker`: tells which container engine agents would use, and what is left of
//! containers. Start at [`run`].

use std::collections::BTreeMap;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_container::{
    AGENT_LABEL, ContainerEngine, EngineFacts, EngineKind, ListedContainer, RUN_LABEL, STATE_LABEL,
    find_engine_socket,
};
use heeler_model::error_chain;
use heeler_transcript::LockFile;
use serde_json::{Value, json};

use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config;
use crate::global_args::GlobalArgs;
use crate::output;
use crate::process_env;
use crate::trust::visible;

/// Time that the engine has for all replies.
const ENGINE_TIME_MAX: Duration = Duration::from_secs(20);

/// Container of Heeler that no run uses any more.
#[derive(Debug, PartialEq, Eq)]
struct OrphanContainer {
    name: String,
    agent: String,
    state_dir: String,
    /// True if that state directory does not exist any more.
    is_abandoned: bool,
}

/// Facts about the engine.
struct EngineReport {
    socket: Utf8PathBuf,
    facts: EngineFacts,
    orphans: Vec<OrphanContainer>,
}

/// Asks the engine, and prints what it says.
pub(super) fn run(global: &GlobalArgs, json: bool) -> CommandResult {
    // Without a fleet, the engine can be tested all the same.
    let context = CommandContext::find(global).ok();
    let with_dotenv = context
        .as_ref()
        .and_then(|context| fleet_config::environment(context, context.config.as_deref()?).ok());
    let env = with_dotenv.unwrap_or_else(process_env::environment);
    let state_dir = context.as_ref().map(|context| context.state_dir.as_path());
    let found = examine(&env, state_dir);
    if json {
        output::print_json(&to_json(&found))?;
    }
    match found {
        Ok(_) if json => Ok(()),
        Ok(report) => print(&report),
        Err(_) if json => Err(CommandFailure::silent(FailureCode::Failed)),
        Err(reason) => Err(CommandFailure::message(
            FailureCode::Failed,
            format!("agents cannot run in containers on this machine: {reason}"),
        )),
    }
}

fn examine(
    env: &BTreeMap<String, String>,
    state_dir: Option<&Utf8Path>,
) -> Result<EngineReport, String> {
    let variable = |name: &str| env.get(name).map(String::as_str);
    let exists = |path: &Utf8Path| path.exists();
    let socket = find_engine_socket(variable("DOCKER_HOST"), variable("XDG_RUNTIME_DIR"), exists)
        .map_err(|error| error.to_string())?;
    #[cfg(target_os = "linux")]
    {
        let program = process_env::program().map_err(|failure| format!("{:#}", failure.error))?;
        heeler_runner::find_first_process(&program)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let ask = async {
        let engine = ContainerEngine::connect(&socket).await?;
        let listed = engine.list(&[STATE_LABEL.to_owned()]).await?;
        Ok((engine.facts().await?, listed))
    };
    let asked = runtime.block_on(async { tokio::time::timeout(ENGINE_TIME_MAX, ask).await });
    let seconds = ENGINE_TIME_MAX.as_secs();
    let asked = asked.map_err(|_| format!("the engine at {socket} is silent for {seconds} s"))?;
    let (facts, listed) =
        asked.map_err(|error: heeler_container::EngineError| error_chain(&error))?;
    let orphans = find_orphans(listed, state_dir, is_state_directory, is_run_alive);
    Ok(EngineReport { socket, facts, orphans })
}

fn is_state_directory(path: &Utf8Path) -> bool {
    path.is_dir()
}

/// Returns true if a runner works on the run, or may.
fn is_run_alive(run_dir: &Utf8Path) -> bool {
    !matches!(LockFile::probe(&run_dir.join("lock")), Ok(None))
}

/// Returns the containers of this state directory without a run, and those of state directories that
/// do not exist any more. Containers of others are not Heeler's to judge.
fn find_orphans(
    listed: Vec<ListedContainer>,
    own: Option<&Utf8Path>,
    exists: impl Fn(&Utf8Path) -> bool,
    is_alive: impl Fn(&Utf8Path) -> bool,
) -> Vec<OrphanContainer> {
    let own = own.map(|it| it.canonicalize_utf8().unwrap_or_else(|_| it.to_owned()));
    let orphans = listed.into_iter().filter_map(|container| {
        let label = |name: &str| container.labels.get(name).cloned();
        let (state_dir, run) = (label(STATE_LABEL)?, label(RUN_LABEL)?);
        let folder = Utf8Path::new(&state_dir);
        let is_abandoned = folder.is_absolute() && !exists(folder);
        let is_left = own.as_deref() == Some(folder) && !is_alive(&folder.join("runs").join(run));
        (is_abandoned || is_left).then(|| OrphanContainer {
            name: container.name.clone(),
            agent: label(AGENT_LABEL).unwrap_or_default(),
            state_dir: state_dir.clone(),
            is_abandoned,
        })
    });
    orphans.collect()
}

fn print(EngineReport { socket, facts, orphans }: &EngineReport) -> CommandResult {
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
    for orphan in orphans {
        let why = match orphan.is_abandoned {
            true => "its state directory does not exist any more",
            false => "its run has ended",
        };
        output::print_line(format!(
            "orphan   {} of agent {} in {}: {why}; remove it with `docker rm -f {}`",
            visible(&orphan.name),
            visible(&orphan.agent),
            visible(&orphan.state_dir),
            visible(&orphan.name),
        ))?;
    }
    Ok(())
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

fn to_json(found: &Result<EngineReport, String>) -> Value {
    match found {
        Err(reason) => json!({"engine": null, "reason": reason}),
        Ok(EngineReport { socket, facts, orphans }) => {
            let orphan = |it: &OrphanContainer| {
                json!({
                    "name": it.name,
                    "agent": it.agent,
                    "stateDir": it.state_dir,
                    "abandoned": it.is_abandoned,
                })
            };
            json!({
                "engine": kind_name(facts.kind),
                "version": facts.version,
                "socket": socket,
                "rootless": facts.is_rootless,
                "notes": warnings(facts),
                "orphans": orphans.iter().map(orphan).collect::<Vec<Value>>(),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn only_own_and_abandoned_containers_are_orphans() {
        let container = |name: &str, state: Option<&str>, run: &str| {
            let mut labels = HashMap::from([(RUN_LABEL.to_owned(), run.to_owned())]);
            labels.extend(state.map(|state| (STATE_LABEL.to_owned(), state.to_owned())));
            let (id, name) = (name.to_owned(), name.to_owned());
            ListedContainer { id, name, is_running: false, labels }
        };
        let listed = vec![
            container("alive", Some("/own"), "1"),
            container("ended", Some("/own"), "2"),
            container("other", Some("/other"), "3"),
            container("abandoned", Some("/gone"), "4"),
            container("relative", Some("gone"), "5"),
            container("foreign", None, "6"),
        ];
        let exists = |path: &Utf8Path| path == "/own" || path == "/other";
        let is_alive = |run: &Utf8Path| run == "/own/runs/1";
        let orphans = find_orphans(listed, Some(Utf8Path::new("/own")), exists, is_alive);
        let names: Vec<&str> = orphans.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["ended", "abandoned"]);
        assert!(!orphans[0].is_abandoned && orphans[1].is_abandoned);
    }
}
