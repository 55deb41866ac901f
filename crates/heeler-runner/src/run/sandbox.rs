//! The sandbox of a run, and the sockets by which its agent reaches the runner. Start at
//! [`agent_sandbox`].

use std::io;
use std::os::unix::fs::DirBuilderExt as _;

use camino::{Utf8Path, Utf8PathBuf};
#[cfg(target_os = "linux")]
use heeler_config::RuntimeType;
#[cfg(target_os = "linux")]
use heeler_model::project_slug;
use heeler_model::run::{RunSpec, socket_name};

#[cfg(target_os = "linux")]
use super::executor::RunExecutor;
#[cfg(target_os = "linux")]
use crate::egress::{EgressService, PROXY_PORT};
#[cfg(target_os = "linux")]
use crate::process::AgentSandbox;

/// Loopback port in a sandbox at which the agent reaches the injected servers.
pub(super) const MCP_PORT: u16 = 3129;

/// Name of the socket of the injected servers.
const MCP_SOCKET: &str = "m";

/// Name of the socket of the egress proxy.
const EGRESS_SOCKET: &str = "e";

/// Names of all sockets in a run's directory of sockets.
const SOCKET_NAMES: [&str; 2] = [MCP_SOCKET, EGRESS_SOCKET];

/// Directory of a run with files for its agent to read.
#[cfg(target_os = "linux")]
const SKILLS_FOLDER: &str = "skills";

/// Directory of the sockets of one run that its sandbox contains. It is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct RunSocketFolder(Utf8PathBuf);

impl RunSocketFolder {
    pub(super) fn create(spec: &RunSpec) -> io::Result<RunSocketFolder> {
        let path = socket_folder(spec);
        // An earlier runner of this run may have left it.
        remove_socket_folder(spec);
        std::fs::DirBuilder::new().mode(0o700).recursive(true).create(&path)?;
        Ok(RunSocketFolder(path))
    }

    pub(super) fn egress_socket(&self) -> Utf8PathBuf {
        self.0.join(EGRESS_SOCKET)
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

fn remove_sockets(folder: &Utf8Path) {
    // Only files with known names are removed. What remains is harmless.
    for name in SOCKET_NAMES {
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
) -> Option<AgentSandbox> {
    let RunExecutor { dir, spec, host, .. } = *executor;
    let is_cli = spec.runtime == RuntimeType::Cli;
    let mut mounts = host.brief.sandbox.clone()?;
    // The state directory is hidden, and the prompt may name files that the engine put here.
    mounts.readable.extend(Some(dir.join(SKILLS_FOLDER)).filter(|folder| folder.is_dir()));
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
            is_cli.then_some((MCP_PORT, MCP_SOCKET)),
        ]
        .into_iter()
        .flatten()
        .collect(),
        variables: network.map(|network| network.variables().to_vec()).unwrap_or_default(),
        hides_login: network.is_some_and(EgressService::is_proxied),
    })
}
