//! The container of a run. Start at [`run_container`].

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::{AgentConfig, DockerConfig, VolumeMount, VolumeParts, VolumeSource};
use heeler_container::{EngineSocketError, find_engine_socket};
use heeler_model::run::{ContainerSpec, ContainerVolume};
use indexmap::IndexMap;
use thiserror::Error;

/// Variables that describe this machine, and mean nothing in a container.
const LOCAL_VARIABLES: [&str; 4] = ["PATH", "HOME", "USER", "TMPDIR"];

/// Reason that an agent cannot run in its container.
#[derive(Debug, Error)]
pub enum ContainerError {
    #[error(transparent)]
    Engine(#[from] EngineSocketError),
    #[error("the volume {path} cannot be mounted; create it, or change `docker.volumes`")]
    Volume {
        path: Utf8PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(
        "the volume {path} would give the agent {protected}, which belongs to Heeler; mount a \
         directory that neither contains it nor is in it"
    )]
    Protected { path: Utf8PathBuf, protected: Utf8PathBuf },
}

/// Returns the container of an agent's run, unless it has none. `variables` are those of the daemon,
/// and no mount may contain one of `own_folders`. Variables of the container are added to `env`.
pub(super) fn run_container(
    agent: &AgentConfig,
    variables: &BTreeMap<String, String>,
    own_folders: &[Utf8PathBuf],
    env: &mut IndexMap<String, String>,
) -> Result<Option<ContainerSpec>, ContainerError> {
    let Some(docker) = agent.container() else { return Ok(None) };
    let variable = |name: &str| variables.get(name).map(String::as_str);
    let exists = |path: &Utf8Path| path.exists();
    let engine = find_engine_socket(variable("DOCKER_HOST"), variable("XDG_RUNTIME_DIR"), exists)?;
    let configured = |name: &str| {
        let value = docker.env.get().get(name).or_else(|| agent.env.get().get(name));
        value.map(|value| value.expose().to_owned())
    };
    let local_env = LOCAL_VARIABLES.map(|name| (name.to_owned(), configured(name)));
    for (name, value) in docker.env.get().iter().filter(|(name, _)| !is_local(name)) {
        // The agent's own variables take precedence.
        env.entry(name.clone()).or_insert_with(|| value.expose().to_owned());
    }
    let volumes = docker.volumes.iter().map(|volume| resolve_volume(volume, own_folders));
    let volumes = volumes.collect::<Result<Vec<_>, _>>()?;
    Ok(Some(container_spec(docker, engine, volumes, local_env.into_iter().collect())))
}

fn container_spec(
    docker: &DockerConfig,
    engine: Utf8PathBuf,
    volumes: Vec<ContainerVolume>,
    local_env: IndexMap<String, Option<String>>,
) -> ContainerSpec {
    let number = |number: Option<std::num::NonZeroU32>| number.map(std::num::NonZeroU32::get);
    ContainerSpec {
        pull: docker.pull,
        network: docker.network,
        workspace: docker.workspace_mode,
        user: docker.user.as_ref().map(|user| user.as_str().to_owned()),
        memory_bytes: docker.memory.bytes(),
        pids_limit: number(docker.pids_limit),
        cpu_shares: number(docker.cpu_shares),
        cpu_period: number(docker.cpu_period),
        cpu_quota: number(docker.cpu_quota),
        volumes,
        tmpfs: docker
            .tmpfs
            .iter()
            .map(|mount| {
                let (path, options) = mount.parts();
                (path.to_owned(), options.to_owned())
            })
            .collect(),
        ports: docker
            .ports
            .iter()
            .map(|port| {
                let (host, inner) = port.parts();
                (host.map(str::to_owned), inner.to_owned())
            })
            .collect(),
        labels: docker.labels.clone(),
        host_config: docker.host_config.clone(),
        kept_max: (!docker.ephemeral).then(|| docker.max_containers.get()),
        local_env,
        ..ContainerSpec::new(engine, docker.image_name().to_owned())
    }
}

fn is_local(name: &str) -> bool {
    LOCAL_VARIABLES.contains(&name)
}

/// Returns a mount with its real path. A mount has its own path in the container, so files of Heeler
/// in it could not be hidden.
fn resolve_volume(
    volume: &VolumeMount,
    own_folders: &[Utf8PathBuf],
) -> Result<ContainerVolume, ContainerError> {
    let VolumeParts { source, target, mode } = volume.parts();
    let (source, is_named) = match source {
        VolumeSource::Name(name) => (name.to_owned(), true),
        VolumeSource::Path(path) => {
            let path = Utf8Path::new(path);
            let failed = |source| ContainerError::Volume { path: path.to_owned(), source };
            let real = path.canonicalize_utf8().map_err(failed)?;
            for protected in own_folders.iter().filter_map(|it| it.canonicalize_utf8().ok()) {
                if protected.starts_with(&real) || real.starts_with(&protected) {
                    return Err(ContainerError::Protected { path: real, protected });
                }
            }
            (real.into_string(), false)
        }
    };
    Ok(ContainerVolume { source, is_named, target: target.to_owned(), mode })
}
