//! Replies of an engine, reduced to what a run needs.

use std::collections::HashMap;

use serde::Deserialize;

/// Program that serves the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineKind {
    Docker,
    Podman,
}

/// Properties of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineFacts {
    pub kind: EngineKind,
    pub version: String,
    /// True if the engine runs without rights over the machine: root in a container is its user.
    pub is_rootless: bool,
    /// True if users of containers are other users of this machine.
    pub remaps_users: bool,
    /// True if running containers survive a restart of the engine.
    pub survives_restart: bool,
    pub limits_memory: bool,
    pub limits_processes: bool,
}

/// Image that the engine has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerImage {
    /// Digest of the image.
    pub id: String,
    /// Environment that the image defines, as `NAME=value`.
    pub env: Vec<String>,
    pub labels: HashMap<String, String>,
}

/// State of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerState {
    pub is_running: bool,
    /// PID of the first process on this machine; `None` if it does not run.
    pub pid: Option<i32>,
    pub exit_code: i64,
    /// Reason that the engine could not start it.
    pub error: String,
    /// Digest of its image.
    pub image: String,
    /// Times in RFC 3339. The second one is in the year 1 if it has not run.
    pub created_at: String,
    pub finished_at: String,
}

/// Container in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedContainer {
    pub id: String,
    pub name: String,
    pub is_running: bool,
    /// Creation time, in seconds since 1970.
    pub created: i64,
    pub labels: HashMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[derive(Default)]
pub(crate) struct InfoReply {
    pub(crate) server_version: String,
    pub(crate) security_options: Option<Vec<String>>,
    pub(crate) live_restore_enabled: bool,
    pub(crate) memory_limit: bool,
    pub(crate) pids_limit: bool,
}

impl InfoReply {
    pub(crate) fn has_option(&self, name: &str) -> bool {
        let wanted = format!("name={name}");
        let options = self.security_options.iter().flatten();
        options.into_iter().any(|option| option.split(',').any(|part| part == wanted))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ImageReply {
    pub(crate) id: String,
    pub(crate) config: Option<ImageConfigReply>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ImageConfigReply {
    pub(crate) env: Option<Vec<String>>,
    pub(crate) labels: Option<HashMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct CreatedReply {
    pub(crate) id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct InspectReply {
    pub(crate) state: StateReply,
    #[serde(default)]
    pub(crate) image: String,
    #[serde(default)]
    pub(crate) created: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[derive(Default)]
pub(crate) struct StateReply {
    pub(crate) running: bool,
    pub(crate) pid: i32,
    pub(crate) exit_code: i64,
    pub(crate) error: String,
    pub(crate) finished_at: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ListReply {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) names: Vec<String>,
    #[serde(default)]
    pub(crate) state: String,
    #[serde(default)]
    pub(crate) created: i64,
    pub(crate) labels: Option<HashMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct WaitReply {
    pub(crate) status_code: i64,
}
