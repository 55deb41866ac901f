//! Container settings. They are parsed and checked, but containers are not supported yet: an agent
//! that requests one is refused rather than run without it.

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
    &["image", "network", "user", "volumes", "env", "ports", "host_config"];

words! {
    /// Network access of a container.
    pub enum NetworkMode ("network mode") {
        /// No network.
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

word_value!(NetworkMode, MountMode);

section! {
    /// Container in which the agent runs.
    pub struct DockerConfig ("docker") {
        /// Run the agent in a container.
        enabled: bool = "false",
        /// Create a container for each job and remove it afterwards; `false` keeps one container
        /// for all jobs.
        ephemeral: bool = "true",
        /// Memory limit, such as `512m` or `2g`.
        memory: ByteSize = "2g",
        /// CPU weight relative to other containers.
        cpu_shares: Option<NonZeroU32>,
        /// Number of old containers to keep.
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
        /// Container image. Only the fleet file may set it.
        image alias "base_image": Option<String>,
        /// Network access. Only the fleet file may set it.
        network: NetworkMode = "bridge",
        /// User, as `UID` or `UID:GID`. Defaults to the user that runs Heeler. Only the fleet file
        /// may set it.
        user: Option<ContainerUser>,
        /// Mounts of host directories: `host:container` or `host:container:ro`. Only the fleet file
        /// may set them.
        volumes: Vec<VolumeMount>,
        /// Environment variables of the container. Only the fleet file may set them.
        env: EnvVars,
        /// Published ports: `host:container` or `container`. Only the fleet file may set them.
        ports: Vec<PortBinding>,
        /// Settings passed to Docker unchanged. Only the fleet file may set them.
        host_config: Option<Json>,
    }
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
    VolumeMount, "a mount", "`/data:/data:ro`", "write host:container, and :ro or :rw",
    |text| {
        let parts: Vec<&str> = text.split(':').collect();
        let mode = parts.get(2).is_none_or(|mode| matches!(*mode, "ro" | "rw"));
        (2..=3).contains(&parts.len()) && mode && parts.iter().all(|part| !part.is_empty())
    }
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
    let numbers: Option<Vec<u32>> = text.split(':').map(|part| part.parse().ok()).collect();
    numbers.filter(|numbers| numbers.len() <= 2)
}
