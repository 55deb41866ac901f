//! The sandbox of a run, and the sockets by which its agent reaches the runner. Start at
//! [`agent_sandbox`].

use std::io;
use std::os::unix::fs::DirBuilderExt as _;

use camino::{Utf8Path, Utf8PathBuf};
#[cfg(target_os = "linux")]
use heeler_config::RuntimeType;
use heeler_config::{LOOPBACK_FORWARDS_MAX, NetworkMode};
use heeler_model::outcome::AgentProcessExit;
#[cfg(target_os = "linux")]
use heeler_model::project_slug;
use heeler_model::run::{AgentLaunchSpec, RunSpec, socket_name};
#[cfg(target_os = "linux")]
use heeler_transcript::LockHolder;
use sha2::{Digest as _, Sha256};

use super::executor::RunExecutor;
#[cfg(target_os = "linux")]
use crate::egress::{ContainerPid, EgressService, PROXY_PORT};
use crate::event_loop::ActiveRun;
#[cfg(target_os = "linux")]
use crate::files;
#[cfg(target_os = "linux")]
use crate::process::{AgentFileLimits, AgentSandbox, KeptContainerPlan};
use crate::process::{PreparedContainer, ProcessTree};
#[cfg(target_os = "linux")]
use crate::session::runner_command;

/// Loopback port in a sandbox at which the agent reaches the injected servers.
pub(super) const MCP_PORT: u16 = 3129;

/// Name of the socket of the injected servers.
const MCP_SOCKET: &str = "m";

/// Name of the socket of the egress proxy.
const EGRESS_SOCKET: &str = "e";

/// Name of the socket on which the runner waits for the first process of a container.
const CONTROL_SOCKET: &str = "r";

/// Name of an empty file, which covers files in a container.
const EMPTY_FILE: &str = "empty";

/// Names of the sockets of forwarded addresses, in their order.
const FORWARD_SOCKETS: [&str; LOOPBACK_FORWARDS_MAX] =
    ["f0", "f1", "f2", "f3", "f4", "f5", "f6", "f7"];

/// Names of all other files in a run's directory of sockets.
const FILE_NAMES: [&str; 4] = [MCP_SOCKET, EGRESS_SOCKET, CONTROL_SOCKET, EMPTY_FILE];

/// Length of the name of a session's directory of sockets, in bytes of its hash.
const KEPT_NAME_BYTES: usize = 6;

/// Directory of a run with files for its agent to read.
#[cfg(target_os = "linux")]
const SKILLS_FOLDER: &str = "skills";

/// Directory of a run for temporary files of an agent whose files Landlock limits.
#[cfg(target_os = "linux")]
const TEMPORARY_FOLDER: &str = "tmp";

/// Directory of the sockets of one run that its sandbox contains. It is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct RunSocketFolder(Utf8PathBuf);

impl RunSocketFolder {
    pub(super) fn create(spec: &RunSpec, brief: &AgentLaunchSpec) -> io::Result<RunSocketFolder> {
        let path = match keeps_container(brief) {
            true => kept_socket_folder(spec),
            false => socket_folder(spec),
        };
        // An earlier runner of this run, or of the session, may have left it.
        remove_sockets(&path);
        std::fs::DirBuilder::new().mode(0o700).recursive(true).create(&path)?;
        Ok(RunSocketFolder(path))
    }

    /// Removes the sockets, so that the next run of a kept agent can listen on them.
    pub(super) fn clear(&self) {
        for name in FILE_NAMES.into_iter().chain(FORWARD_SOCKETS) {
            drop(std::fs::remove_file(self.0.join(name)));
        }
    }

    pub(super) fn egress_socket(&self) -> Utf8PathBuf {
        self.0.join(EGRESS_SOCKET)
    }

    /// Returns the sockets of forwarded addresses.
    pub(super) fn forward_sockets(&self) -> impl Iterator<Item = Utf8PathBuf> {
        FORWARD_SOCKETS.into_iter().map(|name| self.0.join(name))
    }

    pub(super) fn mcp_socket(&self) -> Utf8PathBuf {
        self.0.join(MCP_SOCKET)
    }
}

impl Drop for RunSocketFolder {
    fn drop(&mut self) {
        remove_sockets(&self.0);
    }
}

/// Removes the directory of sockets that a dead runner left.
pub(crate) fn remove_socket_folder(spec: &RunSpec) {
    remove_sockets(&socket_folder(spec));
}

/// Returns the directory of a run's sockets. Its name is as short as that of the control socket.
fn socket_folder(spec: &RunSpec) -> Utf8PathBuf {
    spec.sockets.join(socket_name(spec.run)).with_extension("d")
}

/// Returns the directory of the sockets of a session. A container that is kept has its mounts for
/// ever. The caller holds the lock of the session, so no other run uses it.
fn kept_socket_folder(spec: &RunSpec) -> Utf8PathBuf {
    let hash = Sha256::digest(spec.session.start.id().as_str());
    let name: String = hash.iter().take(KEPT_NAME_BYTES).map(|it| format!("{it:02x}")).collect();
    spec.sockets.join(name).with_extension("k")
}

/// Returns true if the container of the agent is kept after the run.
fn keeps_container(brief: &AgentLaunchSpec) -> bool {
    let container = brief.sandbox.as_ref().and_then(|sandbox| sandbox.container.as_ref());
    container.is_some_and(|container| container.kept_max.is_some())
}

fn remove_sockets(folder: &Utf8Path) {
    // Only files with known names are removed. What remains is harmless.
    for name in FILE_NAMES.into_iter().chain(FORWARD_SOCKETS) {
        drop(std::fs::remove_file(folder.join(name)));
    }
    drop(std::fs::remove_dir(folder));
}

/// Returns the sandbox of the run's agents, unless they have none.
#[cfg(target_os = "linux")]
pub(super) fn agent_sandbox(
    executor: &RunExecutor<'_>,
    sockets: Option<&RunSocketFolder>,
    network: Option<&EgressService>,
    container_pid: ContainerPid,
) -> Option<AgentSandbox> {
    let RunExecutor { dir, spec, host, .. } = *executor;
    let uses_bridge = spec.runtime == RuntimeType::Cli || spec.runtime.has_program();
    let mut mounts = host.brief.sandbox.clone()?;
    // The state directory is hidden, and the prompt may name files that the engine put here.
    mounts.readable.extend(Some(dir.join(SKILLS_FOLDER)).filter(|folder| folder.is_dir()));
    let ports: Vec<u16> = mounts.forward.iter().map(|address| address.port.get()).collect();
    let forwarded_ports = ports.into_iter().zip(FORWARD_SOCKETS);
    Some(AgentSandbox {
        spec: mounts,
        working_directory: spec.working_directory.clone(),
        runtime: spec.runtime,
        sessions: executor.native_sessions_folder(),
        project: project_slug(&spec.working_directory),
        program: host.program.clone(),
        sockets: sockets.map(|sockets| sockets.0.clone()),
        forwards: [
            network.map(|_| (PROXY_PORT, EGRESS_SOCKET)),
            (uses_bridge && has_own_loopback(&host.brief)).then_some((MCP_PORT, MCP_SOCKET)),
        ]
        .into_iter()
        .flatten()
        .chain(forwarded_ports)
        .collect(),
        variables: network.map(|network| network.variables().to_vec()).unwrap_or_default(),
        hides_login: network.is_some_and(EgressService::is_proxied),
        container_pid,
        control_socket: CONTROL_SOCKET,
        empty_file: EMPTY_FILE,
        run_dir: dir.to_owned(),
        agent: spec.agent.to_string(),
        kept: kept_container(executor),
    })
}

/// Returns the files that the run's agents may use, if Landlock limits them.
#[cfg(target_os = "linux")]
pub(super) fn agent_file_limits(executor: &RunExecutor<'_>) -> Option<AgentFileLimits> {
    let RunExecutor { dir, spec, host, .. } = *executor;
    let is_claude = matches!(spec.runtime, RuntimeType::Sdk | RuntimeType::Cli);
    let sessions = executor.native_sessions_folder().filter(|_| is_claude);
    Some(AgentFileLimits {
        spec: host.brief.authority.file_limits.clone()?,
        working_directory: spec.working_directory.clone(),
        temporary: dir.join(TEMPORARY_FOLDER),
        claude_config: sessions.and_then(|sessions| sessions.parent().map(Utf8Path::to_owned)),
        readable: Some(dir.join(SKILLS_FOLDER))
            .filter(|folder| folder.is_dir())
            .into_iter()
            .collect(),
    })
}

/// Returns how the run keeps its container, if it does.
#[cfg(target_os = "linux")]
fn kept_container(executor: &RunExecutor<'_>) -> Option<KeptContainerPlan> {
    let RunExecutor { spec, host, started_at, .. } = *executor;
    let container = host.brief.sandbox.as_ref()?.container.as_ref()?;
    Some(KeptContainerPlan {
        session: spec.session.start.id().clone(),
        kept_max: container.kept_max?,
        locks: spec.home.join("locks"),
        holder: LockHolder::this_process(&runner_command(spec), started_at),
    })
}

/// Returns true if ports of the agent's loopback interface are not those of this machine.
pub(super) fn has_own_loopback(brief: &AgentLaunchSpec) -> bool {
    let container = brief.sandbox.as_ref().map(|sandbox| sandbox.container.as_ref());
    match container {
        None => false,
        Some(None) => true,
        Some(Some(container)) => container.network != NetworkMode::Host,
    }
}

/// Returns true if the agent reaches the network through the proxy of the run only.
pub(super) fn has_proxy(brief: &AgentLaunchSpec) -> bool {
    let container = brief.sandbox.as_ref().map(|sandbox| sandbox.container.as_ref());
    match container {
        None => false,
        Some(None) => true,
        Some(Some(container)) => container.network == NetworkMode::None,
    }
}

/// Ends the container of an agent that has ended. Returns the reason for which the container ended
/// the agent, if it did.
pub(super) async fn end_container(tree: &ProcessTree) -> Option<String> {
    #[cfg(target_os = "linux")]
    return tree.end_container().await;
    #[cfg(not(target_os = "linux"))]
    {
        let _ = tree;
        None
    }
}

impl RunExecutor<'_> {
    /// Prepares the container of the agent, if it has one. Returns the end of the run if that is not
    /// possible, or if the run was cancelled meanwhile.
    #[cfg(target_os = "linux")]
    pub(super) async fn prepare_container(
        &self,
        run: &mut ActiveRun,
        tree: &ProcessTree,
    ) -> Result<Option<PreparedContainer>, AgentProcessExit> {
        let (pulling, mut pull_started) = tokio::sync::oneshot::channel();
        let prepare = tree.prepare_container(|image| drop(pulling.send(image.to_owned())));
        let mut prepare = std::pin::pin!(prepare);
        let mut is_told = false;
        let prepared = loop {
            tokio::select! {
                prepared = &mut prepare => break prepared,
                image = &mut pull_started, if !is_told => {
                    is_told = true;
                    if let Ok(image) = image {
                        run.add_note("pulling", &format!("pulling the image {image}"));
                        run.flush_notes();
                        files::set_pulling(self.dir, true);
                    }
                }
                by = run.wait_for_cancel() => {
                    if is_told {
                        files::set_pulling(self.dir, false);
                    }
                    let cancelled = AgentProcessExit::Cancelled { by };
                    run.ending = Some(cancelled.clone());
                    return Err(cancelled);
                }
            }
        };
        // A pull is no silence of the agent.
        if is_told {
            files::set_pulling(self.dir, false);
            run.deadlines.restart(std::time::Instant::now());
        }
        prepared.map_err(|reason| AgentProcessExit::NotStarted { reason })
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) async fn prepare_container(
        &self,
        _: &mut ActiveRun,
        _: &ProcessTree,
    ) -> Result<Option<PreparedContainer>, AgentProcessExit> {
        Ok(None)
    }
}
