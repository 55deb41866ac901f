//! Refusal of container settings that cannot be honoured, or that would break the isolation.
//!
//! Some of them are accepted with `docker.allow_unsafe: true`. Others never are, because the end of
//! a run relies on them. Start at [`check_docker`].

use serde_json::Value as Json;

use crate::agent::AgentKeys;
use crate::docker::{DockerConfig, NetworkMode, VolumeMount, VolumeParts, VolumeSource};
use crate::egress::{CredentialMode, EgressConfig};
use crate::reader::ConfigReader;
use crate::sandbox::SandboxConfig;

/// Smallest memory limit that engines accept.
const MEMORY_BYTES_MIN: u64 = 6 << 20;

/// Limits of the kernel for the period of a CPU quota, and for the quota, in microseconds.
const CPU_PERIOD_MIN: u32 = 1_000;
const CPU_PERIOD_MAX: u32 = 1_000_000;

/// Prefix of labels that only Heeler sets.
const OWN_LABELS: &str = "heeler.";

/// Directory of a container for files of Heeler.
const OWN_FOLDER: &str = "/.heeler";

/// Settings of `HostConfig` that Heeler sets itself, with the key to use instead.
const OWN_SETTINGS: [(&str, &str); 17] = [
    ("AutoRemove", "`docker.ephemeral`"),
    ("Binds", "`docker.volumes`"),
    ("ContainerIDFile", "the label `heeler.run`"),
    ("CpuPeriod", "`docker.cpu_period`"),
    ("CpuQuota", "`docker.cpu_quota`"),
    ("CpuShares", "`docker.cpu_shares`"),
    ("Init", "nothing: Heeler has a first process of its own"),
    ("Memory", "`docker.memory`"),
    ("MemorySwap", "`docker.memory`"),
    ("Mounts", "`docker.volumes`"),
    ("NetworkMode", "`docker.network`"),
    ("PidMode", "nothing: all processes of a run end with its own PID namespace"),
    ("PidsLimit", "`docker.pids_limit`"),
    ("PortBindings", "`docker.ports`"),
    ("RestartPolicy", "nothing: Heeler starts every run itself"),
    ("Tmpfs", "`docker.tmpfs`"),
    ("UsernsMode", "`docker.user`"),
];

/// Settings of `HostConfig` that give an agent nothing but resources and names.
const HARMLESS_SETTINGS: [&str; 26] = [
    "BlkioDeviceReadBps",
    "BlkioDeviceReadIOps",
    "BlkioDeviceWriteBps",
    "BlkioDeviceWriteIOps",
    "BlkioWeight",
    "BlkioWeightDevice",
    "ConsoleSize",
    "CpuCount",
    "CpuPercent",
    "CpuRealtimePeriod",
    "CpuRealtimeRuntime",
    "CpusetCpus",
    "CpusetMems",
    "Dns",
    "DnsOptions",
    "DnsSearch",
    "ExtraHosts",
    "IOMaximumBandwidth",
    "IOMaximumIOps",
    "MemoryReservation",
    "MemorySwappiness",
    "NanoCpus",
    "OomScoreAdj",
    "ReadonlyRootfs",
    "ShmSize",
    "Ulimits",
];

/// Paths of this machine that give an agent control over it.
const UNSAFE_FOLDERS: [&str; 10] = [
    "/boot",
    "/dev",
    "/etc",
    "/proc",
    "/run",
    "/sys",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/lib/docker",
    "/var/run",
];

/// Fault of the settings: what is wrong, and what to do.
struct DockerFault {
    message: String,
    cure: String,
}

impl DockerFault {
    fn new(message: impl Into<String>, cure: impl Into<String>) -> DockerFault {
        DockerFault { message: message.into(), cure: cure.into() }
    }

    /// Fault that `allow_unsafe` accepts.
    fn unsafe_setting(what: &str, why: &str) -> DockerFault {
        let message = format!("{what} breaks the isolation of the container: {why}");
        DockerFault::new(message, "remove it, or set `docker.allow_unsafe: true` in the fleet file")
    }
}

/// Refuses settings of an agent's container, unless it has none.
pub(crate) fn check_docker(keys: &AgentKeys, reader: &mut ConfigReader) {
    let Some(docker) = keys.docker.as_ref().filter(|docker| docker.value.enabled) else { return };
    let mut faults = find_faults(&docker.value);
    faults.extend(network_faults(&docker.value, keys.sandbox.as_ref().map(|it| &it.value)));
    if keys.allow_new_privileges.as_ref().is_some_and(|allowed| allowed.value) {
        let message = "no process gains privileges in a container, so `allow_new_privileges` cannot be honoured";
        faults.push(DockerFault::new(message, "remove one of both keys"));
    }
    for DockerFault { message, cure } in faults {
        reader.error(docker.at, message).expected(cure);
    }
}

fn find_faults(docker: &DockerConfig) -> Vec<DockerFault> {
    let mut faults = limit_faults(docker);
    for label in docker.labels.keys().filter(|label| label.starts_with(OWN_LABELS)) {
        let message = format!("the label `{label}` is one that Heeler sets");
        faults.push(DockerFault::new(message, "choose another prefix than `heeler.`"));
    }
    let volumes = docker.volumes.iter().map(|volume| ("volumes", volume.parts().target));
    let memory = docker.tmpfs.iter().map(|mount| ("tmpfs", mount.parts().0));
    for (key, target) in volumes.chain(memory) {
        if normal_path(target).is_none_or(|path| path == "/" || path.starts_with(OWN_FOLDER)) {
            let message = format!("`docker.{key}` cannot replace `{target}` of the container");
            faults.push(DockerFault::new(message, "choose another path in the container"));
        }
    }
    let host_config = docker.host_config.as_ref();
    match host_config.map(|settings| settings.as_object().ok_or(())) {
        Some(Ok(settings)) => {
            let known = settings.iter().filter_map(|(name, value)| setting_fault(name, value));
            let (allowed, refused): (Vec<_>, Vec<_>) = known.partition(|(_, is_unsafe)| *is_unsafe);
            faults.extend(refused.into_iter().map(|(fault, _)| fault));
            if !docker.allow_unsafe {
                faults.extend(allowed.into_iter().map(|(fault, _)| fault));
            }
        }
        Some(Err(())) => {
            let message = "`docker.host_config` must be a map of settings";
            faults.push(DockerFault::new(message, "write names and values"));
        }
        None => {}
    }
    if !docker.allow_unsafe {
        faults.extend(docker.volumes.iter().filter_map(volume_fault));
        if docker.network == NetworkMode::Host {
            let why = "the agent reaches every service of this machine";
            faults.push(DockerFault::unsafe_setting("`docker.network: host`", why));
        }
    }
    faults
}

fn limit_faults(docker: &DockerConfig) -> Vec<DockerFault> {
    let mut faults = Vec::new();
    if docker.memory.bytes() < MEMORY_BYTES_MIN {
        faults.push(DockerFault::new("`docker.memory` is too small", "set at least `6m`"));
    }
    let range = CPU_PERIOD_MIN..=CPU_PERIOD_MAX;
    if docker.cpu_period.is_some_and(|period| !range.contains(&period.get())) {
        let message = "`docker.cpu_period` is no period that the kernel accepts";
        faults.push(DockerFault::new(message, "set 1000 to 1000000 microseconds"));
    }
    if docker.cpu_quota.is_some_and(|quota| quota.get() < CPU_PERIOD_MIN) {
        let message = "`docker.cpu_quota` is no quota that the kernel accepts";
        faults.push(DockerFault::new(message, "set at least 1000 microseconds"));
    }
    faults
}

/// Refuses what a network mode cannot give.
fn network_faults(docker: &DockerConfig, sandbox: Option<&SandboxConfig>) -> Vec<DockerFault> {
    let mut faults = Vec::new();
    if docker.network != NetworkMode::Bridge && !docker.ports.is_empty() {
        let message = "`docker.ports` cannot be published without a network";
        faults.push(DockerFault::new(message, "set `docker.network: bridge`, or remove them"));
    }
    let Some(settings) = sandbox.and_then(SandboxConfig::settings) else { return faults };
    if docker.network == NetworkMode::None {
        return faults;
    }
    let mode = docker.network;
    if settings.network != EgressConfig::default() {
        let message = format!("`docker.network: {mode}` leaves no way to honour `sandbox.network`");
        faults.push(DockerFault::new(message, "set `docker.network: none`"));
    }
    if settings.credentials == Some(CredentialMode::Proxied) {
        let message = format!("`docker.network: {mode}` leaves no way to proxy the credentials");
        faults.push(DockerFault::new(message, "set `docker.network: none`"));
    }
    faults
}

/// Returns true for values by which a setting of `HostConfig` is as if it were absent. They are not
/// passed on: an empty `CapDrop` must not replace that of Heeler.
pub fn is_absent_setting(value: &Json) -> bool {
    match value {
        Json::Null | Json::Bool(false) => true,
        Json::String(text) => text.is_empty(),
        Json::Array(items) => items.is_empty(),
        Json::Object(map) => map.is_empty(),
        Json::Bool(true) | Json::Number(_) => false,
    }
}

/// Returns the fault of a setting, and whether it may be accepted as unsafe.
fn setting_fault(name: &str, value: &Json) -> Option<(DockerFault, bool)> {
    if is_absent_setting(value) || HARMLESS_SETTINGS.contains(&name) {
        return None;
    }
    // The engine takes names in any case.
    let own = OWN_SETTINGS.iter().find(|(own, _)| own.eq_ignore_ascii_case(name));
    Some(match own {
        Some((_, instead)) => {
            let message = format!("`docker.host_config.{name}` is a setting of Heeler");
            (DockerFault::new(message, format!("use {instead}")), false)
        }
        None => {
            let what = format!("`docker.host_config.{name}`");
            let why = "it is not known to be harmless";
            (DockerFault::unsafe_setting(&what, why), true)
        }
    })
}

fn volume_fault(volume: &VolumeMount) -> Option<DockerFault> {
    let VolumeParts { source: VolumeSource::Path(source), .. } = volume.parts() else {
        return None;
    };
    let what = format!("the volume `{}`", volume.as_str());
    let Some(path) = normal_path(source) else {
        return Some(DockerFault::unsafe_setting(&what, "its path contains `..`"));
    };
    let is_below = |folder: &&str| {
        path.strip_prefix(*folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    if path == "/" || path == "/var" || UNSAFE_FOLDERS.iter().any(is_below) {
        let why = "it gives the agent files or sockets that control this machine";
        return Some(DockerFault::unsafe_setting(&what, why));
    }
    path.ends_with(".sock").then(|| {
        DockerFault::unsafe_setting(&what, "who listens on that socket may act for the agent")
    })
}

/// Returns a path without repeated and final slashes and `.`; `None` if it contains `..`.
fn normal_path(path: &str) -> Option<String> {
    let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    (!parts.contains(&"..")).then(|| format!("/{}", parts.join("/")))
}
