//! MCP servers of the config that run outside of the agent's sandbox: which they are, and their
//! processes.
//!
//! They are processes of the run like those of an agent without a sandbox: they carry the mark of
//! agents, and end with the run. They get few variables, and none of the run's credentials. Start at
//! [`find_host_servers`].

use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::MountMode;
use heeler_model::error_chain;
use heeler_model::run::{AgentLaunchSpec, McpServerSpec, RuntimeLaunchSpec};
use indexmap::IndexMap;
use serde_json::Value as Json;

use super::executor::RunExecutor;
use crate::claude::{AllowedToolsError, McpToolLists};
use crate::event_loop::ActiveRun;
use crate::mcp::{HostMcpServer, HostRequestFilter, HostServerStreams};
use crate::process::{AgentProcess, LaunchArg, LaunchSpec, ProcessTree, SpawnContext};

/// Directory in which the servers are started. From the working directory, which the agent writes,
/// package runners would take their config and programs.
const SERVER_FOLDER: &str = "/";

/// Variables of the agent's environment that a server gets besides its own.
const PASSED_VARIABLES: [&str; 21] = [
    "ALL_PROXY",
    "HOME",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "LANG",
    "LANGUAGE",
    "LOGNAME",
    "NODE_EXTRA_CA_CERTS",
    "NO_PROXY",
    "PATH",
    "SHELL",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TERM",
    "TMPDIR",
    "TZ",
    "USER",
    "all_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];

/// Beginnings of further variables that a server gets.
const PASSED_PREFIXES: [&str; 2] = ["LC_", "XDG_"];

/// Returns the servers that run outside of the agent's sandbox. Without a sandbox there are none: the
/// agent starts all servers itself.
pub(super) fn find_host_servers(
    brief: &AgentLaunchSpec,
) -> Result<Vec<HostMcpServer>, AllowedToolsError> {
    if brief.sandbox.is_none() && brief.authority.file_limits.is_none() {
        return Ok(Vec::new());
    }
    let filter: Arc<HostRequestFilter> = match &brief.work {
        RuntimeLaunchSpec::Claude(claude) => {
            let lists = McpToolLists::from_brief(claude)?;
            Arc::new(move |server: &str, method: &str, params: &Json| {
                lists.denial(server, method, params)
            })
        }
        // These agents have no lists of tools.
        _ => Arc::new(|_: &str, _: &str, _: &Json| None),
    };
    let servers = configured_servers(brief).into_iter().flatten();
    let on_host = servers.filter(|(_, server)| is_on_host(server));
    Ok(on_host.map(|(name, _)| HostMcpServer::new(name, Arc::clone(&filter))).collect())
}

fn configured_servers(brief: &AgentLaunchSpec) -> Option<&IndexMap<String, McpServerSpec>> {
    match &brief.work {
        RuntimeLaunchSpec::Claude(claude) => Some(&claude.mcp_servers),
        RuntimeLaunchSpec::Acp(program)
        | RuntimeLaunchSpec::Codex(program)
        | RuntimeLaunchSpec::Qwen(program) => Some(&program.mcp_servers),
        RuntimeLaunchSpec::Script { .. } | RuntimeLaunchSpec::Command { .. } => None,
    }
}

fn is_on_host(server: &McpServerSpec) -> bool {
    matches!(server, McpServerSpec::Stdio { is_on_host: true, .. })
}

impl RunExecutor<'_> {
    /// Starts the MCP servers that run outside of the agent's sandbox. A server that cannot be started
    /// is one without an answer for the agent, and a row says why.
    pub(super) fn start_host_servers(&self, run: &mut ActiveRun, tree: &ProcessTree) {
        for server in run.injected.clone().host_servers() {
            let name = server.name();
            let started = self.start_host_server(name, tree);
            let reason = match started {
                Ok(mut process) => {
                    let streams =
                        (process.stdin.take(), process.stdout.take(), process.stderr.take());
                    if let (Some(input), Some(output), Some(errors)) = streams {
                        let streams = HostServerStreams { input, output, errors };
                        server.connect(streams, run.note_sender.clone());
                    }
                    run.host_servers.add(process);
                    continue;
                }
                Err(reason) => reason,
            };
            run.add_note("warning", &format!("the MCP server {name} was not started: {reason}"));
            server.fail(reason);
        }
    }

    fn start_host_server(&self, name: &str, tree: &ProcessTree) -> Result<AgentProcess, String> {
        let brief = &self.host.brief;
        let server = configured_servers(brief).and_then(|servers| servers.get(name));
        let Some(McpServerSpec::Stdio { command, args, env, .. }) = server else {
            return Err("it has no program".to_owned());
        };
        let folders = self.writable_folders();
        for word in [command].into_iter().chain(args) {
            check_not_writable(word, &folders)?;
        }
        let args = args.iter().map(|arg| LaunchArg::ConfigText("mcp_servers", arg.clone()));
        let launch = LaunchSpec {
            program: command.into(),
            args: args.collect(),
            env: env.clone().into_iter().collect(),
        };
        let is_passed = |name: &str| {
            PASSED_VARIABLES.contains(&name)
                || PASSED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        };
        let passed = brief.env.iter().filter(|(name, _)| is_passed(name));
        let env = passed.map(|(name, value)| (name.clone(), value.clone())).collect();
        let context = SpawnContext {
            cwd: Utf8Path::new(SERVER_FOLDER),
            env: &env,
            inherit: &[],
            secrets: self.host.argument_redactor(),
        };
        tree.spawn_outside(&launch, &context).map_err(|error| error_chain(&error))
    }

    /// Returns the directories that the agent writes.
    fn writable_folders(&self) -> Vec<Utf8PathBuf> {
        let brief = &self.host.brief;
        let mut folders = vec![self.spec.working_directory.clone()];
        if let Some(limits) = &brief.authority.file_limits {
            folders.extend(limits.writable.iter().cloned());
        }
        if let Some(sandbox) = &brief.sandbox {
            folders.extend(sandbox.writable.iter().cloned());
            let volumes = sandbox.container.iter().flat_map(|container| &container.volumes);
            let writable = volumes.filter(|it| !it.is_named && it.mode == MountMode::ReadWrite);
            folders.extend(writable.map(|volume| volume.source.as_str().into()));
        }
        let real = |folder: Utf8PathBuf| folder.canonicalize_utf8().unwrap_or(folder);
        folders.into_iter().map(real).collect()
    }
}

/// Refuses a program, or a file that it gets as an argument, which the agent can change: it could run
/// programs outside of its sandbox.
fn check_not_writable(word: &str, folders: &[Utf8PathBuf]) -> Result<(), String> {
    let path = Utf8Path::new(word);
    if !path.is_absolute() || !path.is_file() {
        return Ok(());
    }
    let real = path.canonicalize_utf8().map_err(|error| format!("{path}: {error}"))?;
    let names = [path, &real];
    match folders.iter().find(|folder| names.iter().any(|name| name.starts_with(folder))) {
        None => Ok(()),
        Some(folder) => Err(format!(
            "{path} is in {folder}, which the agent can write, so it could run programs outside of \
             its sandbox: move the file to another directory"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_the_agent_writes_is_no_server() {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(temp.path()).unwrap().canonicalize_utf8().unwrap();
        let (work, other) = (root.join("work"), root.join("other"));
        for folder in [&work, &other] {
            std::fs::create_dir(folder).unwrap();
            std::fs::write(folder.join("server.py"), "").unwrap();
        }
        std::os::unix::fs::symlink(work.join("server.py"), other.join("link.py")).unwrap();
        std::os::unix::fs::symlink(other.join("server.py"), work.join("link.py")).unwrap();
        let folders = [work.clone()];
        let check = |path: &Utf8Path| check_not_writable(path.as_str(), &folders);
        for refused in [work.join("server.py"), other.join("link.py"), work.join("link.py")] {
            assert!(
                check(&refused).unwrap_err().contains("which the agent can write"),
                "{refused}"
            );
        }
        // A directory may be what the server works on.
        for accepted in [other.join("server.py"), work.clone(), "npx".into(), "-y".into()] {
            assert_eq!(check(&accepted), Ok(()), "{accepted}");
        }
    }
}
