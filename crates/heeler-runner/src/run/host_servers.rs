//! MCP servers of the config that run outside of the agent's sandbox: which they are, and their
//! processes.
//!
//! They are processes of the run like those of an agent without a sandbox: they carry the mark of
//! agents, and end with the run. They get few variables, and none of the run's credentials. Start at
//! [`find_host_servers`].

use std::sync::Arc;

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};
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

/// Files that an interpreter runs if it gets their directory.
const INDEX_FILES: [&str; 6] =
    ["__main__.py", "index.cjs", "index.js", "index.mjs", "index.node", "index.ts"];

/// Limit on links that are followed in a path, as in the kernel.
const LINKS_MAX: usize = 40;

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
        check_words(command, args, &folders)?;
        let args = args.iter().map(|arg| LaunchArg::ConfigText("mcp_servers", arg.clone()));
        let own = env.iter().filter_map(|(name, value)| safe_variable(name, value, &folders));
        let launch =
            LaunchSpec { program: command.into(), args: args.collect(), env: own.collect() };
        let is_passed = |name: &str| {
            PASSED_VARIABLES.contains(&name)
                || PASSED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        };
        let passed = brief.env.iter().filter(|(name, _)| is_passed(name));
        let env = passed.filter_map(|(name, value)| safe_variable(name, value, &folders)).collect();
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

/// Returns a variable for a server. Its `PATH` has no directory that the agent can write: an interpreter
/// that a script names would be taken from there.
fn safe_variable(name: &str, value: &str, folders: &[Utf8PathBuf]) -> Option<(String, String)> {
    if name != "PATH" {
        return Some((name.to_owned(), value.to_owned()));
    }
    let is_safe = |entry: &&str| {
        let path = Utf8Path::new(entry);
        path.is_absolute() && writable_folder(path, folders).is_none()
    };
    let entries: Vec<&str> = value.split(':').filter(is_safe).collect();
    // An empty text would stand for the current directory.
    (!entries.is_empty()).then(|| (name.to_owned(), entries.join(":")))
}

/// Refuses a program or an argument by which a server runs code that the agent can write: it could run
/// programs outside of its sandbox.
fn check_words(command: &str, args: &[String], folders: &[Utf8PathBuf]) -> Result<(), String> {
    check_not_writable(command, true, folders)?;
    let script = args.iter().position(|arg| !arg.starts_with('-'));
    for (at, arg) in args.iter().enumerate() {
        check_not_writable(arg, script == Some(at), folders)?;
        if let Some((_, value)) = arg.split_once('=') {
            check_not_writable(value, false, folders)?;
        }
    }
    Ok(())
}

/// Refuses an absolute path below a directory that the agent can write. Another word than the script
/// may be a directory without a program, on which the server works.
fn check_not_writable(word: &str, is_script: bool, folders: &[Utf8PathBuf]) -> Result<(), String> {
    let path = Utf8Path::new(word);
    if !path.is_absolute() {
        return Ok(());
    }
    let is_data = || path.is_dir() && !INDEX_FILES.iter().any(|name| path.join(name).exists());
    match writable_folder(path, folders) {
        Some(folder) if is_script || !is_data() => Err(format!(
            "{path} is in {folder}, which the agent can write, so it could run programs outside of \
             its sandbox: move it to another directory"
        )),
        _ => Ok(()),
    }
}

/// Returns the directory of `folders` through which a path leads, also by links. The path need not
/// exist.
fn writable_folder<'f>(path: &Utf8Path, folders: &'f [Utf8PathBuf]) -> Option<&'f Utf8Path> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let mut real = Utf8PathBuf::new();
        let mut parts = path.components();
        let followed = loop {
            match parts.next() {
                None => return None,
                Some(Utf8Component::ParentDir) => drop(real.pop()),
                Some(part) => real.push(part),
            }
            if let Some(folder) = folders.iter().find(|folder| real.starts_with(folder)) {
                return Some(folder);
            }
            if let Ok(target) = real.read_link_utf8() {
                let folder = real.parent().unwrap_or(Utf8Path::new("/"));
                break folder.join(target).join(parts.as_path());
            }
        };
        path = followed;
    }
    // No program can open it.
    None
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
        let check = |path: &Utf8Path| check_not_writable(path.as_str(), false, &folders);
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

    #[test]
    fn no_argument_leads_to_code_that_the_agent_writes() {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(temp.path()).unwrap().canonicalize_utf8().unwrap();
        let work = root.join("work");
        for folder in ["data", "node", "python"] {
            std::fs::create_dir_all(work.join(folder)).unwrap();
        }
        std::fs::write(work.join("node/index.js"), "").unwrap();
        std::fs::write(work.join("python/__main__.py"), "").unwrap();
        std::os::unix::fs::symlink(work.join("later"), root.join("link")).unwrap();
        let folders = [work.clone()];
        let check = |args: &[String]| check_words("server", args, &folders);
        let text = |text: &str| text.to_owned();
        for path in ["work/node", "work/python", "work/later", "link", "link/x", "no/../work/x"] {
            let path = root.join(path);
            for args in [
                vec![path.to_string()],
                vec![text("-y"), text("pkg"), path.to_string()],
                vec![format!("--import={path}")],
                vec![format!("KEY={path}")],
            ] {
                assert!(check(&args).is_err(), "{args:?}");
            }
        }
        let data = work.join("data");
        assert_eq!(check(&[text("-y"), text("pkg"), data.to_string()]), Ok(()));
        assert_eq!(check(&[format!("--root={data}"), text("pkg")]), Ok(()));
        assert_eq!(check(&[root.join("new").into_string(), text("https://x/?a=b")]), Ok(()));
        assert!(check(&[text("-y"), data.to_string()]).is_err());
        assert!(check_words(data.join("new").as_str(), &[], &folders).is_err());
    }

    #[test]
    fn programs_are_not_taken_from_a_directory_that_the_agent_writes() {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(temp.path()).unwrap().canonicalize_utf8().unwrap();
        let (work, other) = (root.join("work"), root.join("other"));
        for folder in [work.join("bin"), other.clone()] {
            std::fs::create_dir_all(folder).unwrap();
        }
        std::os::unix::fs::symlink(work.join("bin"), root.join("link")).unwrap();
        std::os::unix::fs::symlink(&other, work.join("out")).unwrap();
        std::os::unix::fs::symlink(work.join("out"), root.join("chain")).unwrap();
        let folders = [work.clone()];
        let safe = |value: &str| safe_variable("PATH", value, &folders).map(|it| it.1);
        let path = format!(
            "{work}/bin::{other}:bin:.:{root}/link:{work}/out:{root}/chain:{work}/later:/usr/bin:"
        );
        assert_eq!(safe(&path), Some(format!("{other}:/usr/bin")));
        assert_eq!(safe(&format!("{work}/bin:")), None);
        let home = safe_variable("HOME", work.as_str(), &folders);
        assert_eq!(home, Some(("HOME".to_owned(), work.into_string())));
    }
}
