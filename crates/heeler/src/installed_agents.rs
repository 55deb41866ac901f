//! Agent programs that are installed on this machine: their paths, versions and logins.
//!
//! Only programs of Heeler's own table are executed, and only from absolute directories of `PATH`, so
//! a config cannot choose what runs here. Start at [`find_installed_agents`].

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::{DetectableAgent, LoginState, VersionRange, detectable_agents, find_version};
use rustix::fs::{Access, access};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// Time after which a program that does not report its version is ended.
const VERSION_TIME_MAX: Duration = Duration::from_secs(10);

/// Maximum number of bytes of a program's output that are read.
const VERSION_BYTES_MAX: u64 = 4096;

/// Interval at which the end of a program is looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Variables that a program receives. It gets no keys.
const PASSED_VARIABLES: [&str; 3] = ["HOME", "PATH", "TMPDIR"];

/// Agent program of this machine.
#[derive(Debug, Clone)]
pub(crate) struct InstalledAgent {
    pub(crate) agent: DetectableAgent,
    pub(crate) path: Utf8PathBuf,
    pub(crate) login: LoginState,
}

/// Installed agent with the version that it reports.
#[derive(Debug, Clone)]
pub(crate) struct VersionedAgent {
    pub(crate) installed: InstalledAgent,
    /// `None` if the program reports none in time.
    pub(crate) version: Option<String>,
}

impl VersionedAgent {
    pub(crate) fn range(&self) -> VersionRange {
        VersionRange::of(self.version.as_deref(), self.installed.agent.tested_version)
    }

    /// Returns the name and the version.
    pub(crate) fn title(&self) -> String {
        let name = self.installed.agent.name;
        self.version.as_ref().map_or(name.to_owned(), |version| format!("{name} {version}"))
    }

    /// Returns a warning if the version is outside the tested range.
    pub(crate) fn range_warning(&self) -> Option<String> {
        let word = match self.range() {
            range @ (VersionRange::Older | VersionRange::Newer) => range.as_str(),
            VersionRange::Tested | VersionRange::Unknown => return None,
        };
        let (title, tested) = (self.title(), self.installed.agent.tested_version);
        Some(format!(
            "{title} is {word} than {tested}, with which Heeler was tested: it may behave differently"
        ))
    }
}

/// Returns the agent programs that are on `PATH`.
pub(crate) fn find_installed_agents(env: &BTreeMap<String, String>) -> Vec<InstalledAgent> {
    detectable_agents().into_iter().filter_map(|agent| find_installed(agent, env)).collect()
}

fn find_installed(
    agent: DetectableAgent,
    env: &BTreeMap<String, String>,
) -> Option<InstalledAgent> {
    let folders = env.get("PATH")?.split(':').filter(|folder| folder.starts_with('/'));
    let mut files = folders.map(|folder| Utf8Path::new(folder).join(agent.program));
    let is_program =
        |path: &Utf8PathBuf| path.is_file() && access(path.as_std_path(), Access::EXEC_OK).is_ok();
    let path = files.find(is_program)?;
    let home = env.get("HOME").map(Utf8Path::new);
    let has_file = |file: &str| home.is_some_and(|home| home.join(file).is_file());
    let has_variable = |name: &str| env.get(name).is_some_and(|value| !value.is_empty());
    let login = agent.login.find(has_file, has_variable);
    Some(InstalledAgent { agent, path, login })
}

/// Asks programs for their versions, all at the same time.
pub(crate) fn ask_versions(
    agents: Vec<InstalledAgent>,
    env: &BTreeMap<String, String>,
) -> Vec<VersionedAgent> {
    std::thread::scope(|scope| {
        let ask = |installed: InstalledAgent| {
            scope.spawn(move || {
                let output = run_version_command(&installed.path, env);
                let version = output.as_deref().and_then(find_version);
                VersionedAgent { installed, version }
            })
        };
        let threads: Vec<_> = agents.into_iter().map(ask).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.filter_map(Result::ok).collect()
    })
}

/// Returns the output of `PROGRAM --version`.
#[expect(clippy::disallowed_methods, reason = "programs report their versions only when they run")]
fn run_version_command(path: &Utf8Path, env: &BTreeMap<String, String>) -> Option<String> {
    let passed = PASSED_VARIABLES.into_iter().filter_map(|name| Some((name, env.get(name)?)));
    // A process that the program leaves behind would keep a pipe open.
    let mut output = tempfile::tempfile().ok()?;
    let child = Command::new(path)
        .arg("--version")
        .env_clear()
        .envs(passed)
        // Settings of a project may make a program run something.
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(output.try_clone().ok()?)
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .ok()?;
    wait_for_end(child)?;
    read_output(&mut output)
}

/// Waits for the end of a program, and ends everything that is left of its group.
fn wait_for_end(mut child: Child) -> Option<()> {
    let group = Pid::from_child(&child);
    let deadline = Instant::now() + VERSION_TIME_MAX;
    // The program is not reaped yet, so the number of its group belongs to no other.
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let has_ended = || !matches!(waitid(WaitId::Pid(group), look), Ok(None));
    while Instant::now() < deadline && !has_ended() {
        std::thread::sleep(POLL_INTERVAL);
    }
    let is_in_time = has_ended();
    let _ended = kill_process_group(group, Signal::KILL);
    let _status = child.wait();
    is_in_time.then_some(())
}

fn read_output(file: &mut File) -> Option<String> {
    file.rewind().ok()?;
    let mut bytes = Vec::new();
    file.take(VERSION_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// Writes programs and returns an environment in which they are found.
    fn machine(folder: &Utf8Path, programs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let bin = folder.join("bin");
        std::fs::create_dir_all(&bin).unwrap();
        for (name, script) in programs {
            std::fs::write(bin.join(name), format!("#!/bin/sh\n{script}\n")).unwrap();
            let mode = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(bin.join(name), mode).unwrap();
        }
        let path = format!("relative:{bin}:/usr/bin:/bin");
        [("PATH", path.as_str()), ("HOME", folder.as_str()), ("CODEX_API_KEY", "secret-key")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into()
    }

    #[test]
    fn installed_agents_are_found_with_versions_and_logins_and_get_no_keys() {
        let folder = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(folder.path()).unwrap();
        let script = "echo \"$1 ${CODEX_API_KEY:-no-key} $(pwd) 9.8.7\"";
        let env = machine(folder, &[("codex", script), ("claude", "exit 3"), ("gemini", "true")]);
        std::fs::create_dir(folder.join(".gemini")).unwrap();
        std::fs::write(folder.join(".gemini/oauth_creds.json"), "unread").unwrap();
        let installed = find_installed_agents(&env);
        let of = |name: &str| installed.iter().find(|it| it.agent.name == name).unwrap().clone();
        assert_eq!(of("codex").login, LoginState::Variable("CODEX_API_KEY"));
        assert_eq!(of("gemini").login, LoginState::File(".gemini/oauth_creds.json"));
        assert_eq!(
            run_version_command(&of("codex").path, &env).unwrap(),
            "--version no-key / 9.8.7\n"
        );
        let versioned = ask_versions(vec![of("codex"), of("claude")], &env);
        assert_eq!(versioned[0].version.as_deref(), Some("9.8.7"));
        let warning = versioned[0].range_warning().unwrap();
        assert!(warning.starts_with("codex 9.8.7 is newer than "), "{warning}");
        assert_eq!((versioned[1].version.as_deref(), versioned[1].range_warning()), (None, None));
    }

    #[test]
    fn a_process_that_the_program_leaves_behind_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(folder.path()).unwrap();
        let script = "tail -f /dev/null & echo $! > \"$HOME/pid\"; echo 1.2.3";
        let env = machine(folder, &[("codex", script)]);
        let path = folder.join("bin/codex");
        assert_eq!(run_version_command(&path, &env).unwrap(), "1.2.3\n");
        let pid = std::fs::read_to_string(folder.join("pid")).unwrap();
        let stat = format!("/proc/{}/stat", pid.trim());
        let is_gone = || std::fs::read_to_string(&stat).map_or(true, |it| it.contains(") Z "));
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_gone() {
            assert!(Instant::now() < deadline, "{pid} is still alive");
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}
