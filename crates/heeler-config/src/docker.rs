//! Container of an agent. `docker_check` refuses settings that would break its isolation.

use std::num::NonZeroU32;
use std::str::FromStr;

use indexmap::IndexMap;
use serde_json::{Value as Json, json};

use crate::amount::ByteSize;
use crate::shape::section;
use crate::value::{EnvVars, text_value, word_value};
use crate::words::words;

/// Keys that only the fleet file may set, because they would let an agent leave its container.
pub(crate) const FLEET_ONLY_KEYS: &[&str] =
    &["image", "network", "user", "volumes", "env", "ports", "host_config", "allow_unsafe"];

/// Image of a container whose config names none. No registry has it, so it is never pulled.
const IMAGE_DEFAULT: &str = "localhost/heeler-agent:latest";

words! {
    /// Network access of a container.
    pub enum NetworkMode ("network mode") {
        /// No network, except for the listed hosts through the proxy of the run.
        None = "none",
        /// Bridged network.
        Bridge = "bridge",
        /// The host's network.
        Host = "host",
    }
}

words! {
    /// Access to the working directory.
    pub enum MountMode ("mount mode") {
        /// Read and write.
        ReadWrite = "rw",
        /// Read only.
        ReadOnly = "ro",
    }
}

words! {
    /// Use of a registry for an image that the engine lacks.
    pub enum ImagePull ("image pull") {
        /// Pull an image that the engine lacks.
        Missing = "missing",
        /// Never pull an image.
        Never = "never",
    }
}

word_value!(NetworkMode, MountMode, ImagePull);

section! {
    /// Container in which the agent runs; described in `docs/isolation.md`.
    pub struct DockerConfig ("docker") {
        /// Run the agent in a container.
        enabled: bool = "false",
        /// Remove the container after each run; `false` keeps its file system for the next run of the
        /// same session.
        ephemeral: bool = "true",
        /// Memory limit, such as `512m` or `2g`. There is no swap beyond it.
        memory: ByteSize = "2g",
        /// CPU weight relative to other containers.
        cpu_shares: Option<NonZeroU32>,
        /// Maximum number of containers to keep for the agent with `ephemeral: false`. The one that is
        /// idle for the longest time is removed first; one with a running agent is never removed.
        max_containers: NonZeroU32 = "5",
        /// Access of the agent to its working directory: read and write (`rw`) or read only (`ro`).
        workspace_mode: MountMode = "rw",
        /// In-memory mounts: `/path` or `/path:options`.
        tmpfs: Vec<TmpfsMount>,
        /// Maximum number of processes.
        pids_limit: Option<NonZeroU32>,
        /// Labels of the container.
        labels: IndexMap<String, String>,
        /// Period of the CPU quota, in microseconds.
        cpu_period: Option<NonZeroU32>,
        /// CPU time per period, in microseconds.
        cpu_quota: Option<NonZeroU32>,
        /// Container image, by name or digest. Defaults to `localhost/heeler-agent:latest`, which you
        /// build. Only the fleet file may set it.
        image alias "base_image": Option<String>,
        /// Use of a registry for an image that the engine lacks: `missing` pulls it, `never` refuses
        /// the run.
        pull: ImagePull = "missing",
        /// Network access: `none` (the hosts of `sandbox.network`, through the proxy of the run),
        /// `bridge` (everything that the machine reaches) or `host`. Only the fleet file may set it.
        network: NetworkMode = "none",
        /// User, as `UID` or `UID:GID`. Defaults to the user that runs Heeler. Only the fleet file
        /// may set it.
        user: Option<ContainerUser>,
        /// Mounts of host directories: `host:container` or `host:container:ro`. Only the fleet file
        /// may set them.
        volumes: Vec<VolumeMount>,
        /// Environment variables of the agent. Only the fleet file may set them.
        env: EnvVars,
        /// Ports published on 127.0.0.1: `host:container` or `container`. They need `network: bridge`.
        /// Only the fleet file may set them.
        ports: Vec<PortBinding>,
        /// Further settings of the engine's `HostConfig`. Only the fleet file may set them.
        host_config: Option<Json>,
        /// Accept settings by which the agent can leave its container. Only the fleet file may set it.
        allow_unsafe: bool = "false",
    }
}

impl DockerConfig {
    /// Returns the name of the image.
    pub fn image_name(&self) -> &str {
        self.image.as_deref().unwrap_or(IMAGE_DEFAULT)
    }
}

/// Source of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeSource<'v> {
    /// Absolute path on this machine.
    Path(&'v str),
    /// Name of a volume that the engine keeps.
    Name(&'v str),
}

/// Parts of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeParts<'v> {
    pub source: VolumeSource<'v>,
    /// Absolute path in the container.
    pub target: &'v str,
    pub mode: MountMode,
}

impl VolumeMount {
    pub fn parts(&self) -> VolumeParts<'_> {
        parse_volume(&self.0).expect("the text was checked when it was read")
    }
}

impl TmpfsMount {
    /// Returns the path and the options.
    pub fn parts(&self) -> (&str, &str) {
        self.0.split_once(':').unwrap_or((&self.0, ""))
    }
}

impl PortBinding {
    /// Returns the port of this machine, if one is chosen, and that of the container.
    pub fn parts(&self) -> (Option<&str>, &str) {
        self.0.split_once(':').map_or((None, &self.0), |(host, inner)| (Some(host), inner))
    }
}

fn parse_volume(text: &str) -> Option<VolumeParts<'_>> {
    let mut parts = text.split(':');
    let (source, target) = (parts.next()?, parts.next()?);
    let mode = match parts.next() {
        None | Some("rw") => MountMode::ReadWrite,
        Some("ro") => MountMode::ReadOnly,
        Some(_) => return None,
    };
    let is_name = |text: &str| {
        let is_part = |it: char| it.is_ascii_alphanumeric() || matches!(it, '_' | '.' | '-');
        text.starts_with(|it: char| it.is_ascii_alphanumeric()) && text.chars().all(is_part)
    };
    let source = match source {
        path if path.starts_with('/') => VolumeSource::Path(path),
        name if is_name(name) => VolumeSource::Name(name),
        _ => return None,
    };
    let is_complete = target.starts_with('/') && parts.next().is_none();
    is_complete.then_some(VolumeParts { source, target, mode })
}

/// Declares a text type that is validated and stored as written.
macro_rules! checked_text {
    ($(#[$meta:meta])* $name:ident, $what:literal, $example:literal, $reason:literal, $check:expr) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name(String);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = &'static str;
            fn from_str(text: &str) -> Result<$name, &'static str> {
                let check: fn(&str) -> bool = $check;
                check(text).then(|| $name(text.to_owned())).ok_or($reason)
            }
        }

        text_value! {
            $name: $what, $example, None, |text| json!(text.as_str());
        }
    };
}

checked_text! {
    /// In-memory mount.
    TmpfsMount, "a mount in memory", "`/tmp:size=100m`", "it must start with `/`",
    |text| text.starts_with('/')
}

checked_text! {
    /// Numeric user ID, optionally with a group ID.
    ContainerUser, "a user", "`1000:1000`", "write UID or UID:GID",
    |text| parse_numbers(text).is_some()
}

checked_text! {
    /// Mount of a host directory.
    VolumeMount, "a mount", "`/data:/data:ro`",
    "write host:container, and :ro or :rw; both are absolute paths, or host is the name of a volume",
    |text| parse_volume(text).is_some()
}

checked_text! {
    PortBinding, "a port", "`8080:80`", "write host:container or container, from 1 to 65535",
    |text| {
        let is_port = |port: &u32| (1..=u32::from(u16::MAX)).contains(port);
        parse_numbers(text).is_some_and(|ports| ports.iter().all(is_port))
    }
}

/// Parses one number, or two numbers separated by a colon.
fn parse_numbers(text: &str) -> Option<Vec<u32>> {
    // A sign or a blank is not a number here, so neither reaches Docker.
    let number = |part: &str| {
        let is_plain = part.bytes().all(|byte| byte.is_ascii_digit());
        part.parse().ok().filter(|_| is_plain)
    };
    let numbers: Option<Vec<u32>> = text.split(':').map(number).collect();
    numbers.filter(|numbers| numbers.len() <= 2)
}
