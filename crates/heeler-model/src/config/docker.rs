//! Containers for agents. Everything here is accepted and checked; nothing runs in a container
//! yet, and an agent that asks for one is refused rather than run without.

use std::num::NonZeroU32;
use std::str::FromStr;

use indexmap::IndexMap;
use serde_json::{Value as Json, json};

use super::amount::ByteSize;
use super::shape::section;
use super::value::{EnvVars, text_value, word_value};
use crate::words::words;

/// Keys that only the fleet file may set: with them an agent could leave its container.
pub(crate) const FLEET_ONLY_KEYS: &[&str] =
    &["image", "network", "user", "volumes", "env", "ports", "host_config"];

words! {
    /// How a container reaches the network.
    pub enum NetworkMode ("network mode") {
        /// Not at all.
        None = "none",
        /// Through the host.
        Bridge = "bridge",
        /// As the host.
        Host = "host",
    }
}

words! {
    /// How the working directory is mounted.
    pub enum MountMode ("mount mode") {
        /// For reading and writing.
        ReadWrite = "rw",
        /// For reading.
        ReadOnly = "ro",
    }
}

word_value!(NetworkMode, MountMode);

section! {
    /// Runs the agent in a container.
    pub struct DockerConfig ("docker") {
        /// Whether the agent runs in a container.
        enabled: bool = "false",
        /// A new container for each job, removed afterwards; `false` keeps one for all jobs.
        ephemeral: bool = "true",
        /// The most memory, such as `512m` or `2g`.
        memory: ByteSize = "2g",
        /// The relative weight among containers that compete for processors.
        cpu_shares: Option<NonZeroU32>,
        /// How many old containers are kept.
        max_containers: NonZeroU32 = "5",
        /// Whether the agent may write to its working directory.
        workspace_mode: MountMode = "rw",
        /// Mounts in memory: `/path` or `/path:options`.
        tmpfs: Vec<TmpfsMount>,
        /// The most processes.
        pids_limit: Option<NonZeroU32>,
        /// Labels of the container.
        labels: IndexMap<String, String>,
        /// The period of the processor quota, in microseconds.
        cpu_period: Option<NonZeroU32>,
        /// The processor time per period, in microseconds.
        cpu_quota: Option<NonZeroU32>,
        /// The image. Only the fleet file may set it.
        image alias "base_image": Option<String>,
        /// How the network is reached. Only the fleet file may set it.
        network: NetworkMode = "bridge",
        /// `UID` or `UID:GID`; the caller's own if left out. Only the fleet file may set it.
        user: Option<ContainerUser>,
        /// Mounts: `host:container`, `host:container:ro`. Only the fleet file may set them.
        volumes: Vec<VolumeMount>,
        /// Environment variables of the container. Only the fleet file may set them.
        env: EnvVars,
        /// Ports: `host:container` or `container`. Only the fleet file may set them.
        ports: Vec<PortBinding>,
        /// Settings handed to Docker as they are. Only the fleet file may set them.
        host_config: Option<Json>,
    }
}

/// Declares a text with a checked form that is kept as written.
macro_rules! checked_text {
    ($(#[$meta:meta])* $name:ident, $what:literal, $example:literal, $reason:literal, $check:expr) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name(String);

        impl $name {
            /// Returns the text.
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
    /// A mount in memory.
    TmpfsMount, "a mount in memory", "`/tmp:size=100m`", "it must start with `/`",
    |text| text.starts_with('/')
}

checked_text! {
    /// A user and group by number.
    ContainerUser, "a user", "`1000:1000`", "write UID or UID:GID",
    |text| parse_numbers(text).is_some()
}

checked_text! {
    /// A mount of a host folder.
    VolumeMount, "a mount", "`/data:/data:ro`", "write host:container, and :ro or :rw",
    |text| {
        let parts: Vec<&str> = text.split(':').collect();
        let mode = parts.get(2).is_none_or(|mode| matches!(*mode, "ro" | "rw"));
        (2..=3).contains(&parts.len()) && mode && parts.iter().all(|part| !part.is_empty())
    }
}

checked_text! {
    /// A published port.
    PortBinding, "a port", "`8080:80`", "write host:container or container, from 1 to 65535",
    |text| {
        let is_port = |port: &u32| (1..=u32::from(u16::MAX)).contains(port);
        parse_numbers(text).is_some_and(|ports| ports.iter().all(is_port))
    }
}

/// Reads one number, or two with a colon between them.
fn parse_numbers(text: &str) -> Option<Vec<u32>> {
    let numbers: Option<Vec<u32>> = text.split(':').map(|part| part.parse().ok()).collect();
    numbers.filter(|numbers| numbers.len() <= 2)
}
