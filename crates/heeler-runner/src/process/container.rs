//! Starts an agent in a container.
//!
//! The engine only creates and starts the container. Its first process is `heeler inside`, which
//! connects to a socket of the runner and receives the agent's pipes, arguments and environment, as
//! in a sandbox: no secret is in a file of the engine, and the engine may end while the agent works.
//! When the runner dies, the connection closes, the first process exits, and the kernel kills every
//! process of the container. Start at [`ProcessTree::spawn_in_container`].

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::{ImagePull, MountMode, RuntimeType};
use heeler_container::{ContainerEngine, ContainerImage, EngineError, EngineFacts};
use heeler_inside::{InsideReport, InsideRequest, MountCheck};
use heeler_model::error_chain;
use heeler_model::run::{ContainerRecord, ContainerSpec, PROTOCOL};
use heeler_transcript::LockFile;
use rustix::process::Pid;
use tokio::net::{UnixListener, UnixStream};

use super::container_body::{
    ContainerBody, ContainerInputs, ContainerOwner, HOME_INSIDE, SOCKETS_INSIDE,
};
use super::container_settle::remove_containers;
use super::first_process_path::find_first_process;
use super::os::ProcessHandle;
use super::running_container::{ContainerFlags, KeptContainer, RunningContainer};
use super::sandbox::{AgentSandbox, agent_pipes, exchange};
use super::sandbox_mounts::SandboxMounts;
use super::{AgentProcess, AgentSpawnError, LaunchSpec, ProcessTree, SpawnContext};
use crate::fault::{self, RunnerFaultPoint};
use crate::files;

/// Time that a started container has to connect.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(60);

/// Search path of an image that defines none.
const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Container of a run that is ready to be created.
pub(crate) struct PreparedContainer {
    engine: ContainerEngine,
    image: ContainerImage,
    facts: EngineFacts,
    owner: ContainerOwner,
    name: String,
}

/// Container with a running first process.
struct StartedContainer {
    /// Connection of the first process.
    runner: std::os::unix::net::UnixStream,
    /// PID of the first process.
    pid: Pid,
    id: String,
    /// Set if the container is kept.
    kept_lock: Option<LockFile>,
}

impl ProcessTree {
    /// Prepares the agent's container, if it has one. Pulls its image if the engine lacks it: `tell` is
    /// called before, because that may take minutes.
    pub(crate) async fn prepare_container(
        &self,
        tell: impl FnOnce(&str),
    ) -> Result<Option<PreparedContainer>, String> {
        let Some(sandbox) = &self.sandbox else { return Ok(None) };
        let Some(spec) = &sandbox.spec.container else { return Ok(None) };
        let told = |error: EngineError| error_chain(&error);
        let engine = ContainerEngine::connect(&spec.engine).await.map_err(told)?;
        // The engine needs a while for its properties.
        let (image, facts) = tokio::join!(engine.image(&spec.image), engine.facts());
        let (image, facts) = (image.map_err(told)?, facts.map_err(told)?);
        let image = match image {
            Some(image) => image,
            None => pull_image(&engine, spec, tell).await?,
        };
        let state_dir = sandbox.run_dir.parent().and_then(Utf8Path::parent);
        let state_dir = state_dir.ok_or("the run has no state directory")?.to_owned();
        let kept_for = sandbox.kept.as_ref().map(|plan| plan.session.clone());
        let agent = sandbox.agent.clone();
        let owner = ContainerOwner { run: self.run, state_dir, agent, kept_for };
        let name = format!("heeler-{}", self.run);
        Ok(Some(PreparedContainer { engine, image, facts, owner, name }))
    }

    /// Starts an agent in its container.
    pub(super) async fn spawn_in_container(
        &self,
        sandbox: &AgentSandbox,
        spec: &ContainerSpec,
        prepared: PreparedContainer,
        (launch, context): (&LaunchSpec, &SpawnContext<'_>),
    ) -> Result<AgentProcess, AgentSpawnError> {
        let refused =
            |reason: String| AgentSpawnError::Container { program: launch.program.clone(), reason };
        let failed = |error: io::Error| refused(error_chain(&error));
        let sockets = sandbox
            .sockets
            .as_deref()
            .ok_or_else(|| refused("the run has no directory of sockets".to_owned()))?;
        let mounts = container_mounts(sandbox, spec, launch, context).map_err(failed)?;
        let program = find_first_process(&sandbox.program).map_err(refused)?;
        let inputs = ContainerInputs {
            owner: &prepared.owner,
            facts: &prepared.facts,
            image: &prepared.image.id,
            mounts: &mounts,
            sockets,
            empty: &sockets.join(sandbox.empty_file),
            program: &program,
            control: sandbox.control_socket,
            needs_home: home_inside(spec, &prepared.image) == HOME_INSIDE,
            ids: (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()),
        };
        let body = ContainerBody::build(spec, &inputs).map_err(failed)?;
        let (mut request, files) =
            self.inside_request(sandbox, &mounts, launch, context).map_err(failed)?;
        adapt_request(&mut request, spec, &prepared.image, launch).map_err(failed)?;
        request.copies = body.copies;
        let (pipes, agent_ends) = agent_pipes().map_err(failed)?;
        let started = self.start_container(sandbox, spec, &prepared, (sockets, &body.body)).await;
        let StartedContainer { runner, pid, id, kept_lock } = started.map_err(refused)?;
        sandbox.container_pid.set(pid.as_raw_nonzero().get().cast_unsigned());
        let mut descriptors: Vec<BorrowedFd<'_>> =
            agent_ends.iter().map(|end| end.as_fd()).collect();
        descriptors.extend(context.inherit);
        descriptors.extend(files.iter().map(OwnedFd::as_fd));
        let kept = sandbox.kept.clone().zip(kept_lock);
        let kept =
            kept.map(|(plan, lock)| KeptContainer { plan, owner: prepared.owner.clone(), lock });
        // The first process waits for the request. Later, a short agent may have ended already.
        let attached = self.attach_container(prepared.engine, sandbox, spec, (pid, id, kept));
        let (handle, flags) = attached.map_err(failed)?;
        let report = exchange(&runner, &request, &descriptors);
        if matches!(report, Ok(Some(InsideReport::Started))) {
            let process = AgentProcess::in_container(pid, handle, &self.children, pipes);
            let mut process = process.map_err(failed)?;
            process.attach_control(runner, Some(flags)).map_err(failed)?;
            return Ok(process);
        }
        // The first process ends with its connection.
        drop(runner);
        let _reason = self.end_container().await;
        Err(refused(start_failure(report, spec)))
    }

    /// Registers a started container, so that it is removed on every path from here on.
    fn attach_container(
        &self,
        engine: ContainerEngine,
        sandbox: &AgentSandbox,
        spec: &ContainerSpec,
        (pid, id, kept): (Pid, String, Option<KeptContainer>),
    ) -> io::Result<(ProcessHandle, ContainerFlags)> {
        let flags = ContainerFlags::default();
        self.set_running_container(RunningContainer {
            engine,
            id,
            first_process: ProcessHandle::open(pid)?,
            out_of_memory: Arc::clone(&flags.out_of_memory),
            is_lost: Arc::clone(&flags.is_lost),
            memory_bytes: spec.memory_bytes,
            known_pid: sandbox.container_pid.clone(),
            kept,
        });
        Ok((ProcessHandle::open(pid)?, flags))
    }

    /// Creates a container, or takes that of the session, and starts it.
    async fn start_container(
        &self,
        sandbox: &AgentSandbox,
        spec: &ContainerSpec,
        prepared: &PreparedContainer,
        (sockets, body): (&Utf8Path, &serde_json::Value),
    ) -> Result<StartedContainer, String> {
        let engine = &prepared.engine;
        let told = |error: EngineError| error_chain(&error);
        // Settling needs it to find the container, so it is durable before there is one.
        let record = ContainerRecord { protocol: PROTOCOL, engine: spec.engine.clone() };
        files::write_container(&sandbox.run_dir, &record).map_err(|it| error_chain(&it))?;
        fault::point(RunnerFaultPoint::ContainerNamed);
        let path = sockets.join(sandbox.control_socket);
        // An earlier attempt of this run may have left it.
        drop(std::fs::remove_file(&path));
        let listener = UnixListener::bind(&path).map_err(|it| error_chain(&it))?;
        let (id, kept_lock) = self.provide_container(sandbox, prepared, body).await?;
        fault::point(RunnerFaultPoint::ContainerCreated);
        let connected = async {
            engine.start(&id).await.map_err(told)?;
            fault::point(RunnerFaultPoint::ContainerStarted);
            let state = engine.state(&id).await.map_err(told)?;
            let pid = state.and_then(|state| Pid::from_raw(state.pid?));
            let pid = pid.ok_or("the container ended before its first process connected")?;
            let runner = accept_first_process(&listener, pid, engine, &id).await?;
            Ok((runner, pid))
        };
        // Nobody else may connect.
        let result: Result<_, String> = connected.await;
        drop(std::fs::remove_file(&path));
        match result {
            Ok((runner, pid)) => Ok(StartedContainer { runner, pid, id, kept_lock }),
            Err(reason) => {
                let ended = match kept_lock {
                    None => engine.remove(&id).await,
                    // It has files of earlier runs.
                    Some(_) => engine.kill(&id).await,
                };
                if let Err(error) = ended {
                    tracing::warn!(error = error_chain(&error), "a container is left");
                }
                Err(reason)
            }
        }
    }

    /// Returns the ID of the container to start, and its lock if it is kept.
    async fn provide_container(
        &self,
        sandbox: &AgentSandbox,
        PreparedContainer { engine, owner, name, .. }: &PreparedContainer,
        body: &serde_json::Value,
    ) -> Result<(String, Option<LockFile>), String> {
        let told = |error: EngineError| error_chain(&error);
        if let Some(plan) = &sandbox.kept {
            let lock = plan.lock().await.map_err(|error| error_chain(&error))?;
            let provided = plan.provide(engine, owner, body).await.map_err(told)?;
            if let Some(note) = provided.note {
                self.add_container_note(note);
            }
            return Ok((provided.id, Some(lock)));
        }
        // An earlier attempt of this run may not be removed completely.
        remove_containers(engine, owner).await.map_err(told)?;
        let id = match engine.create(name, body).await {
            // Its name is free only some time after its removal.
            Err(error) if error.status() == Some(409) => {
                let name = format!("{name}-{}", fastrand::u32(..));
                engine.create(&name, body).await
            }
            result => result,
        };
        Ok((id.map_err(told)?, None))
    }

    /// Ends the container of the last agent. Returns the reason for which it ended the agent, if it
    /// did.
    pub(crate) async fn end_container(&self) -> Option<String> {
        let running = self.take_running_container()?;
        running.end().await
    }
}

/// Pulls the image of a container.
async fn pull_image(
    engine: &ContainerEngine,
    spec: &ContainerSpec,
    tell: impl FnOnce(&str),
) -> Result<ContainerImage, String> {
    let name = &spec.image;
    // No registry has an image of this machine, and someone could register its name.
    if spec.pull == ImagePull::Never || name.starts_with("localhost/") {
        return Err(format!(
            "the engine lacks the image {name}, which is never pulled: build it (`heeler image build`), \
             pull it (`docker pull`), or set `docker.image`"
        ));
    }
    tell(name);
    let told = |error: EngineError| error_chain(&error);
    engine.pull(name).await.map_err(told)?;
    let pulled = engine.image(name).await.map_err(told)?;
    pulled.ok_or_else(|| format!("the engine lacks the image {name}, although it has pulled it"))
}

/// Returns the reason that the first process has not started the agent.
fn start_failure(report: io::Result<Option<InsideReport>>, spec: &ContainerSpec) -> String {
    match report {
        Ok(Some(InsideReport::NotStarted { errno })) => {
            let error = io::Error::from_raw_os_error(errno);
            format!("its image {} cannot execute it: {error}", spec.image)
        }
        Ok(Some(InsideReport::Refused { reason })) => reason,
        Ok(_) => "its first process ended without a report".to_owned(),
        Err(error) => error_chain(&error),
    }
}

/// Waits for the connection of the first process. Other processes of this user can connect, too, and
/// would get the secrets of the agent.
async fn accept_first_process(
    listener: &UnixListener,
    pid: Pid,
    engine: &ContainerEngine,
    id: &str,
) -> Result<std::os::unix::net::UnixStream, String> {
    let accept = async {
        loop {
            let (stream, _) = listener.accept().await.map_err(|it| error_chain(&it))?;
            let peer = stream.peer_cred().ok().and_then(|peer| Pid::from_raw(peer.pid()?));
            if peer == Some(pid) {
                return to_blocking(stream).map_err(|it| error_chain(&it));
            }
            tracing::warn!(?peer, "a process that is not the first one of the container connected");
        }
    };
    tokio::select! {
        connected = accept => connected,
        ended = engine.wait(id) => Err(match ended {
            Ok(code) => format!(
                "its first process ended with code {code} before it connected: the engine must be \
                 on this machine, and its user must be able to open {SOCKETS_INSIDE}"
            ),
            Err(error) => error_chain(&error),
        }),
        () = tokio::time::sleep(CONNECT_TIME_MAX) => Err(format!(
            "its first process has not connected within {} s: the engine must be on this machine",
            CONNECT_TIME_MAX.as_secs()
        )),
    }
}

fn to_blocking(stream: UnixStream) -> io::Result<std::os::unix::net::UnixStream> {
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Returns the files of this machine in the container.
fn container_mounts(
    sandbox: &AgentSandbox,
    spec: &ContainerSpec,
    launch: &LaunchSpec,
    context: &SpawnContext<'_>,
) -> io::Result<SandboxMounts> {
    let mut mounts = sandbox.base_mounts(context)?;
    if spec.workspace == MountMode::ReadOnly {
        mounts.close(&sandbox.working_directory, &sandbox.spec.writable);
    }
    // A scripted agent is this program, which no image has.
    if sandbox.runtime == RuntimeType::Scripted {
        mounts.set(
            launch.program.canonicalize_utf8()?,
            super::sandbox_mounts::SandboxMount::ReadOnly,
        );
    }
    Ok(mounts)
}

/// Changes a request for a sandbox to one for a container.
fn adapt_request(
    request: &mut InsideRequest,
    spec: &ContainerSpec,
    image: &ContainerImage,
    launch: &LaunchSpec,
) -> io::Result<()> {
    // The path of a program is one of the image.
    request.program = launch.program.to_string();
    request.has_own_cgroup = true;
    let mut env: Vec<(String, String)> = vec![("PATH".to_owned(), PATH_DEFAULT.to_owned())];
    let defined = image.env.iter().filter_map(|variable| variable.split_once('='));
    env.extend(defined.map(|(name, value)| (name.to_owned(), value.to_owned())));
    env.push(("HOME".to_owned(), home_inside(spec, image)));
    let local = &spec.local_env;
    env.extend(request.env.drain(..).filter(|(name, _)| !local.contains_key(name)));
    let configured = local.iter().filter_map(|(name, value)| Some((name.clone(), value.clone()?)));
    env.extend(configured);
    // Later values replace earlier ones.
    let env: indexmap::IndexMap<String, String> = env.into_iter().collect();
    request.env = env.into_iter().collect();
    for forward in &mut request.forwards {
        if let Some(name) = Utf8PathBuf::from(&forward.socket).file_name() {
            forward.socket = format!("{SOCKETS_INSIDE}/{name}");
        }
    }
    let paths = spec.volumes.iter().filter(|volume| !volume.is_named);
    for volume in paths {
        let found = std::fs::symlink_metadata(&volume.source)?;
        let (device, inode) = (found.dev(), found.ino());
        request.checks.push(MountCheck { path: volume.target.clone(), device, inode });
    }
    Ok(())
}

/// Returns the home directory of the agent in its container.
fn home_inside(spec: &ContainerSpec, image: &ContainerImage) -> String {
    let defined = image.env.iter().find_map(|variable| variable.strip_prefix("HOME="));
    let configured = spec.local_env.get("HOME").and_then(Option::as_deref);
    configured.or(defined).unwrap_or(HOME_INSIDE).to_owned()
}
