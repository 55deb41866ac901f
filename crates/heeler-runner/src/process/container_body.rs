//! The container of a run, as the engine's API describes it. Start at [`ContainerBody::build`].
//!
//! Files of this machine have the same path in the container. Nothing here is secret: the engine
//! keeps it in files of its own.

use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::{MountMode, is_absent_setting};
use heeler_container::{
    AGENT_LABEL, EngineFacts, EngineKind, IMAGE_LABEL, RUN_LABEL, SESSION_LABEL, SETTINGS_LABEL,
    STATE_LABEL,
};
use heeler_inside::InsideFile;
use heeler_model::run::ContainerSpec;
use heeler_model::{AgentSessionId, RunId};
use serde_json::{Map, Value as Json, json};
use sha2::{Digest as _, Sha256};

use super::sandbox_mounts::{PRIVATE_FOLDERS, SandboxMount, SandboxMounts};

/// Directory of the run's sockets in the container.
pub(super) const SOCKETS_INSIDE: &str = "/.heeler";

/// Path of the first process in the container.
const PROGRAM_INSIDE: &str = "/.heeler-inside";

/// Home directory of an agent whose image names none.
pub(super) const HOME_INSIDE: &str = "/home/agent";

/// Options of directories in memory. Programs are built and executed there.
const TMPFS_OPTIONS: &str = "rw,exec,nosuid,nodev,mode=1777";

/// Most processes of a container for which the config sets no limit. It stops a fork bomb, and no
/// build comes close to it.
const PIDS_DEFAULT: u32 = 4096;

/// Who the container belongs to.
#[derive(Debug, Clone)]
pub(super) struct ContainerOwner {
    pub(super) run: RunId,
    pub(super) state_dir: Utf8PathBuf,
    pub(super) agent: String,
    /// Session for which the container is kept; `None` if it ends with the run.
    pub(super) kept_for: Option<AgentSessionId>,
}

/// Inputs of a container, besides its settings.
pub(super) struct ContainerInputs<'c> {
    pub(super) owner: &'c ContainerOwner,
    pub(super) facts: &'c EngineFacts,
    /// Digest of the image.
    pub(super) image: &'c str,
    pub(super) mounts: &'c SandboxMounts,
    /// Directory of the run's sockets.
    pub(super) sockets: &'c Utf8Path,
    /// An empty file.
    pub(super) empty: &'c Utf8Path,
    /// The first process, on this machine.
    pub(super) program: &'c Utf8Path,
    /// Name of the socket on which the runner waits for the first process.
    pub(super) control: &'c str,
    /// True if the agent needs a home directory in memory.
    pub(super) needs_home: bool,
    /// User and group of the runner.
    pub(super) ids: (u32, u32),
}

/// Description of a container.
pub(super) struct ContainerBody {
    pub(super) body: Json,
    /// Files that the first process creates.
    pub(super) copies: Vec<InsideFile>,
}

/// Mounts of a container.
#[derive(Default)]
struct ContainerMounts {
    binds: Vec<Json>,
    tmpfs: Map<String, Json>,
    copies: Vec<InsideFile>,
}

impl ContainerBody {
    pub(super) fn build(
        spec: &ContainerSpec,
        inputs: &ContainerInputs<'_>,
    ) -> io::Result<ContainerBody> {
        let mut mounts = ContainerMounts::build(spec, inputs)?;
        if matches!(inputs.facts.kind, EngineKind::Podman) {
            mounts.keep_tmpfs_empty();
        }
        let (user, user_namespace) = container_user(spec, inputs.facts, inputs.ids);
        let mut host = json!({
            "AutoRemove": removes_itself(inputs),
            "NetworkMode": spec.network.as_str(),
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "IpcMode": "private",
            // What the first process prints must not fill the disk.
            "LogConfig": {"Type": "none"},
            "Memory": spec.memory_bytes,
            // Equal values mean no swap.
            "MemorySwap": spec.memory_bytes,
            "PidsLimit": spec.pids_limit.unwrap_or(PIDS_DEFAULT),
            "CpuShares": spec.cpu_shares.unwrap_or(0),
            "CpuPeriod": spec.cpu_period.unwrap_or(0),
            "CpuQuota": spec.cpu_quota.unwrap_or(0),
            "Mounts": mounts.binds,
            "Tmpfs": mounts.tmpfs,
            "PortBindings": port_bindings(spec),
            "UsernsMode": user_namespace,
        });
        if let (Some(host), Some(Json::Object(more))) = (host.as_object_mut(), &spec.host_config) {
            let more = more.iter().filter(|(_, value)| !is_absent_setting(value));
            host.extend(more.map(|(name, value)| (name.clone(), value.clone())));
        }
        let labels = container_labels(spec, inputs);
        let ports = spec.ports.iter().map(|(_, port)| (format!("{port}/tcp"), json!({})));
        let mut body = json!({
            "Image": inputs.image,
            "Entrypoint": [PROGRAM_INSIDE],
            "Cmd": [format!("{SOCKETS_INSIDE}/{}", inputs.control)],
            "User": user,
            "WorkingDir": "/",
            "Labels": labels,
            "ExposedPorts": ports.collect::<Map<String, Json>>(),
            // The engine would start processes that belong to no agent.
            "Healthcheck": {"Test": ["NONE"]},
            "HostConfig": host,
        });
        if inputs.owner.kept_for.is_some() {
            body["Labels"][SETTINGS_LABEL] = json!(settings_hash(&body));
        }
        Ok(ContainerBody { body, copies: mounts.copies })
    }
}

/// Returns true if the engine removes the container by itself, so that none is left even if no process of
/// Heeler lives. Docker with `live-restore` also removes those that are running when it starts again,
/// so Heeler removes its containers there.
fn removes_itself(inputs: &ContainerInputs<'_>) -> bool {
    let EngineFacts { kind, survives_restart, .. } = inputs.facts;
    let ends_running_ones = matches!(kind, EngineKind::Docker) && *survives_restart;
    inputs.owner.kept_for.is_none() && !ends_running_ones
}

fn container_labels(spec: &ContainerSpec, inputs: &ContainerInputs<'_>) -> Map<String, Json> {
    let mut labels: Map<String, Json> =
        spec.labels.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    let ContainerOwner { run, state_dir, agent, kept_for } = inputs.owner;
    labels.insert(STATE_LABEL.to_owned(), json!(state_dir.as_str()));
    labels.insert(AGENT_LABEL.to_owned(), json!(agent));
    match kept_for {
        None => {
            labels.insert(RUN_LABEL.to_owned(), json!(run.to_string()));
        }
        // Labels cannot be changed, and it will have other runs.
        Some(session) => {
            labels.insert(SESSION_LABEL.to_owned(), json!(session.as_str()));
            labels.insert(IMAGE_LABEL.to_owned(), json!(inputs.image));
        }
    }
    labels
}

/// Returns a hash of everything that the engine knows of a container. A container with the same hash
/// can be started again; the settings of another one cannot be changed.
fn settings_hash(body: &Json) -> String {
    // Maps are written in the order of their keys, or of their creation, which is the same each time.
    let digest = Sha256::digest(body.to_string());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl ContainerMounts {
    fn build(spec: &ContainerSpec, inputs: &ContainerInputs<'_>) -> io::Result<ContainerMounts> {
        let mut mounts = ContainerMounts::default();
        let rules: Vec<(&Utf8Path, &SandboxMount)> = inputs.mounts.rules().collect();
        for (path, mount) in &rules {
            mounts.add(path, mount, &rules, inputs.empty)?;
        }
        if inputs.needs_home {
            mounts.add_tmpfs(HOME_INSIDE, TMPFS_OPTIONS);
        }
        for (path, options) in &spec.tmpfs {
            mounts.add_tmpfs(path, if options.is_empty() { TMPFS_OPTIONS } else { options });
        }
        for volume in &spec.volumes {
            let kind = if volume.is_named { "volume" } else { "bind" };
            let is_read_only = volume.mode == MountMode::ReadOnly;
            mounts.binds.push(mount_json(kind, &volume.source, &volume.target, is_read_only));
        }
        let (sockets, program) = (inputs.sockets.as_str(), inputs.program.as_str());
        mounts.binds.push(mount_json("bind", sockets, SOCKETS_INSIDE, true));
        mounts.binds.push(mount_json("bind", program, PROGRAM_INSIDE, true));
        Ok(mounts)
    }

    fn add(
        &mut self,
        path: &Utf8Path,
        mount: &SandboxMount,
        rules: &[(&Utf8Path, &SandboxMount)],
        empty: &Utf8Path,
    ) -> io::Result<()> {
        let above = rules.iter().rev().find(|(it, _)| path != *it && path.starts_with(it));
        // A container has no file of this machine, so only what is mounted needs to be hidden.
        let is_shown = above.is_some_and(|(_, mount)| is_bind(mount));
        match mount {
            SandboxMount::Writable => {
                self.binds.push(mount_json("bind", path.as_str(), path.as_str(), false));
            }
            SandboxMount::ReadOnly => {
                self.binds.push(mount_json("bind", path.as_str(), path.as_str(), true));
            }
            SandboxMount::EmptyFolder => {
                let is_private = PRIVATE_FOLDERS.contains(&path.as_str());
                let is_filled = rules.iter().any(|(it, inner)| {
                    let is_content =
                        is_bind(inner) || matches!(inner, SandboxMount::PrivateCopy(_));
                    it.starts_with(path) && *it != path && is_content
                });
                if is_shown {
                    // The engine would create a missing directory as root.
                    std::fs::create_dir_all(path)?;
                }
                if is_shown || is_private || is_filled {
                    self.add_tmpfs(path.as_str(), TMPFS_OPTIONS);
                }
            }
            SandboxMount::EmptyFile | SandboxMount::ClosedFile if is_shown => {
                // The same for a missing file.
                drop(std::fs::OpenOptions::new().create(true).append(true).open(path));
                std::fs::write(empty, "")?;
                self.binds.push(mount_json("bind", empty.as_str(), path.as_str(), true));
            }
            SandboxMount::EmptyFile | SandboxMount::ClosedFile => {}
            SandboxMount::PrivateCopy(bytes) => {
                let text = String::from_utf8_lossy(bytes).into_owned();
                self.copies.push(InsideFile { path: path.to_string(), text });
            }
        }
        Ok(())
    }

    /// Keeps Podman from copying the files below a directory in memory into it. The agent could read
    /// what the directory hides.
    fn keep_tmpfs_empty(&mut self) {
        for options in self.tmpfs.values_mut() {
            if let Json::String(text) = options {
                text.push_str(",notmpcopyup");
            }
        }
    }

    fn add_tmpfs(&mut self, path: &str, options: &str) {
        self.tmpfs.insert(path.to_owned(), json!(options));
    }
}

fn is_bind(mount: &SandboxMount) -> bool {
    matches!(mount, SandboxMount::ReadOnly | SandboxMount::Writable)
}

fn mount_json(kind: &str, source: &str, target: &str, is_read_only: bool) -> Json {
    let mut mount =
        json!({"Type": kind, "Source": source, "Target": target, "ReadOnly": is_read_only});
    if kind == "bind" && is_read_only {
        // A mount below it would stay writable.
        mount["BindOptions"] = json!({"NonRecursive": true});
    }
    mount
}

fn port_bindings(spec: &ContainerSpec) -> Map<String, Json> {
    let bind = |(host, port): &(Option<String>, String)| {
        let host = host.clone().unwrap_or_default();
        (format!("{port}/tcp"), json!([{"HostIp": "127.0.0.1", "HostPort": host}]))
    };
    spec.ports.iter().map(bind).collect()
}

/// Returns the user of the container's processes, and the mode of the user namespace: files that the
/// agent makes must belong to the user of the runner.
fn container_user(
    spec: &ContainerSpec,
    facts: &EngineFacts,
    (user, group): (u32, u32),
) -> (String, &'static str) {
    let same_mode = if facts.remaps_users && !facts.is_rootless { "host" } else { "" };
    match (&spec.user, facts.is_rootless, facts.kind) {
        (Some(user), _, _) => (user.clone(), ""),
        (None, true, EngineKind::Docker) => ("0:0".to_owned(), ""),
        (None, true, EngineKind::Podman) => (format!("{user}:{group}"), "keep-id"),
        (None, false, _) => (format!("{user}:{group}"), same_mode),
    }
}

#[cfg(test)]
mod tests;
