//! Prepares a run before its agent starts.
//!
//! Nothing here is visible to the agent, and a crash leaves nothing that would make a second
//! attempt fail. Start at [`prepare_run`].

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use heeler_config::RuntimeType;
use heeler_egress::ModelRates;
use heeler_model::outcome::RunOutcomeBuilder;
use heeler_model::run::{RunStartRecord, RuntimeLaunchSpec, SessionStart, TokenRates};
use heeler_model::{AgentSessionId, error_chain};
use heeler_transcript::{LockFile, TranscriptDurability, TranscriptWriterOptions};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::executor::RunExecutor;
use super::external_messages::RunExternalMessages;
use super::host_servers::find_host_servers;
use super::kept_agent::AgentSurroundings;
use super::runner_error::RunPrepareError;
use super::sandbox::{self, RunSocketFolder};
use crate::client_tools::TerminalContext;
use crate::control::{ControlPeerVerifier, RunControlServer};
use crate::deadlines::RunDeadlines;
use crate::egress::{ContainerPid, EgressService, EgressSetup, GitAccessError, is_first_process};
use crate::event_loop::{ActiveRun, RunningHostServers, SnapshotProcessOptions};
use crate::files;
use crate::host_contact::LeaseWatch;
use crate::line_reader::AgentLineReader;
use crate::mcp::{
    FleetToolAccess, InjectedMcpServers, McpHttpBridge, ToolChannels, ToolNote, ToolQuestion,
};
use crate::output_log::JobOutputLog;
use crate::process::ProcessTree;
use crate::questions::RunQuestions;
use crate::runtime_context::RuntimeContext;
use crate::session::{self, RunSessionHistory};
use crate::signals::RunnerSignals;
use crate::transcript_writer::RunTranscriptWriter;

/// Run that is ready to start its agent.
pub(super) struct PreparedRun {
    pub(super) run: ActiveRun,
    pub(super) tree: ProcessTree,
    pub(super) bridge: Option<McpHttpBridge>,
    /// Network of a sandboxed agent.
    pub(super) network: Option<EgressService>,
    /// Sockets that the agent's sandbox contains.
    pub(super) sockets: Option<RunSocketFolder>,
    pub(super) first: RunSessionStart,
}

/// Start of the session, and the content of its first rows.
pub(super) struct RunSessionStart {
    pub(super) start: SessionStart,
    pub(super) reason: String,
    /// Description of imported external messages.
    pub(super) external_note: Option<String>,
}

fn refuse(error: impl std::error::Error) -> RunPrepareError {
    RunPrepareError::Refused(error_chain(&error))
}

fn snapshot_options(executor: &RunExecutor<'_>) -> SnapshotProcessOptions {
    SnapshotProcessOptions {
        program: executor.host.program.clone(),
        run_dir: executor.dir.to_owned(),
        path: executor.host.brief.env.get("PATH").cloned(),
        time_max: executor.dependencies.snapshot_time_max,
    }
}

#[expect(clippy::too_many_lines, reason = "it fills the fields of one value")]
pub(super) async fn prepare_run(
    executor: &RunExecutor<'_>,
    mut external_messages: RunExternalMessages,
    surroundings: Option<AgentSurroundings>,
) -> Result<PreparedRun, RunPrepareError> {
    let RunExecutor { dir, spec, host, dependencies, started_at, .. } = *executor;
    let (kept_tree, kept_sockets) =
        surroundings.map(|AgentSurroundings { tree, sockets }| (tree, sockets)).unzip();
    let lease = LeaseWatch::new(&spec.limits, host.brief.authority.lease.as_ref(), Instant::now())
        .map_err(RunPrepareError::Refused)?;
    // Signals are caught first, so that one during the preparation does not kill the process.
    let signals = RunnerSignals::listen().map_err(refuse)?;
    let files_folder = host.brief.send_files_to.as_deref();
    let redactor = host.redactor().clone();
    let (client, may_start_jobs) = (host.fleet_client.clone(), host.brief.may_start_jobs);
    let access = FleetToolAccess { client, may_start_jobs };
    let (injected, channels) =
        InjectedMcpServers::new(&spec.working_directory, files_folder, &redactor, access);
    let ToolChannels { notes, questions: tool_questions, note_sender, question_sender } = channels;
    let sockets = match kept_sockets {
        Some(kept) => kept.inspect(RunSocketFolder::clear),
        None => open_sockets(executor)?,
    };
    let injected = injected.with_host_servers(find_host_servers(&host.brief).map_err(refuse)?);
    let container = ContainerPid::default();
    let network = {
        let sinks = (note_sender.clone(), question_sender);
        start_network(executor, sockets.as_ref(), sinks, container.clone())?
    };
    let bridge = open_bridge(executor, &injected, sockets.as_ref(), &container).await?;
    let endpoint = bridge.as_ref().map(McpHttpBridge::endpoint);
    let api_base = network.as_ref().and_then(EgressService::api_base);
    let context = RuntimeContext { spec, host, injected: &injected, endpoint, api_base };
    // The first prompt of a fork that is handed over contains its history.
    session::copy_history(dependencies.disk.as_ref(), spec)?;
    let runtime = (dependencies.runtime)(&context).map_err(RunPrepareError::Refused)?;
    let (start, reason) = executor.resolve_session_start().map_err(RunPrepareError::Refused)?;
    let session = spec.session.start.id().clone();
    let mut journal = RunTranscriptWriter::open(
        &session::log_path(spec, &session),
        &spec.job_log,
        &log_options(executor),
        &redactor,
        spec.run,
    )?;
    // The history that is read below must include them.
    executor.add_external_messages(&mut external_messages, &mut journal)?;
    if let Some(path) = &spec.output_file {
        journal.set_output(JobOutputLog::open(path)?);
    }
    let RunSessionHistory { recorder, last_result } = session::load_history(spec, &session)?;
    let tally = tally(executor, last_result.as_ref());
    let verifier = ControlPeerVerifier { daemon_lock: host.brief.authority.daemon_lock.clone() };
    let control =
        RunControlServer::bind(&spec.sockets, spec.run, verifier).await.map_err(refuse)?;
    let run = ActiveRun {
        spec: spec.clone(),
        session,
        now: host.now,
        started_at,
        runtime,
        journal,
        recorder,
        tally,
        control,
        questions: RunQuestions::new(dir, host.result_key.clone()),
        deadlines: RunDeadlines::new(&spec.limits, Instant::now())
            .with_opening_time_max(dependencies.opening_time_max),
        lease,
        lines: AgentLineReader::new(dir, &redactor, dependencies.lines),
        redactor,
        signals,
        injected,
        host_servers: RunningHostServers::default(),
        note_sender,
        endpoint: bridge.as_ref().map(McpHttpBridge::endpoint).cloned(),
        api_base,
        notes,
        tool_questions,
        question_replies: HashMap::new(),
        network_questions: HashMap::new(),
        ending: None,
        last_line_at: None,
        session_is_known: matches!(start, SessionStart::Resume { .. }),
        has_spoken: false,
        disk_failure: None,
        side_reply: None,
        snapshot_options: snapshot_options(executor),
        terminal_context: TerminalContext {
            env: host.brief.env.clone(),
            secrets: host.argument_redactor().clone(),
        },
        may_keep_agent: false,
        companion_wait_max: dependencies.companion_wait_max,
        kept_agent: None,
        early_requests: Vec::new(),
        message_outcomes: HashMap::new(),
    };
    let first = RunSessionStart { start, reason, external_note: external_messages.note };
    let tree = kept_tree
        .unwrap_or_else(|| claim_tree(executor, sockets.as_ref(), network.as_ref(), container));
    Ok(PreparedRun { run, tree, bridge, network, sockets, first })
}

/// Opens the injected servers to an agent that reaches them by HTTP only.
async fn open_bridge(
    executor: &RunExecutor<'_>,
    injected: &InjectedMcpServers,
    sockets: Option<&RunSocketFolder>,
    container: &ContainerPid,
) -> Result<Option<McpHttpBridge>, RunPrepareError> {
    let token = &executor.host.token;
    let sockets = sockets.filter(|_| sandbox::has_own_loopback(&executor.host.brief));
    let bridge = match (executor.spec.runtime, sockets) {
        (RuntimeType::Sdk | RuntimeType::Scripted | RuntimeType::Command, _) => return Ok(None),
        (RuntimeType::Cli | RuntimeType::Acp | RuntimeType::Codex | RuntimeType::Qwen, None) => {
            McpHttpBridge::open(injected, token).await
        }
        // The agent's network has no port of this machine, and the machine gets none.
        (
            RuntimeType::Cli | RuntimeType::Acp | RuntimeType::Codex | RuntimeType::Qwen,
            Some(sockets),
        ) => {
            let container = container.clone();
            let is_agent = move |peer: BorrowedFd<'_>| is_first_process(peer, &container);
            let socket = sockets.mcp_socket();
            let place = (socket.as_path(), sandbox::MCP_PORT);
            McpHttpBridge::open_socket(injected, token, place, Arc::new(is_agent))
        }
    };
    bridge.map(Some).map_err(refuse)
}

/// Creates the directory of sockets that a sandbox contains.
#[cfg(target_os = "linux")]
fn open_sockets(executor: &RunExecutor<'_>) -> Result<Option<RunSocketFolder>, RunPrepareError> {
    let RunExecutor { spec, host, .. } = *executor;
    let is_sandboxed = host.brief.sandbox.is_some();
    is_sandboxed.then(|| RunSocketFolder::create(spec, &host.brief)).transpose().map_err(refuse)
}

/// Starts the network of a sandboxed agent.
fn start_network(
    executor: &RunExecutor<'_>,
    sockets: Option<&RunSocketFolder>,
    (notes, questions): (mpsc::Sender<ToolNote>, mpsc::Sender<ToolQuestion>),
    container: ContainerPid,
) -> Result<Option<EgressService>, RunPrepareError> {
    let RunExecutor { spec, host, .. } = *executor;
    let (Some(sandbox), Some(sockets)) = (&host.brief.sandbox, sockets) else { return Ok(None) };
    if !sandbox::has_proxy(&host.brief) {
        return match (sandbox.git.is_empty(), sandbox.forward.is_empty()) {
            (true, true) => Ok(None),
            // The agent would have the tokens.
            (false, _) => Err(refuse(GitAccessError::NoProxy)),
            (true, false) => Err(RunPrepareError::Refused(
                "`sandbox.forward` needs a network of the run's own: set `docker: {network: none}`, or \
                 remove `sandbox.forward`"
                    .to_owned(),
            )),
        };
    }
    let setup = EgressSetup {
        socket: &sockets.egress_socket(),
        network: &sandbox.network,
        credentials: sandbox.credentials,
        git: &sandbox.git,
        forward: sandbox.forward.iter().cloned().zip(sockets.forward_sockets()).collect(),
        runtime: spec.runtime,
        program: executor.agent_program(),
        rates: model_rates(&host.brief.work),
        env: &host.brief.env,
        budget_usd: spec.limits.budget_usd,
        attendance: spec.attendance,
        agent: spec.agent.as_str(),
        notes,
        questions,
        container,
    };
    EgressService::start(setup).map(Some).map_err(refuse)
}

/// Returns the prices of the agent's model, if they are known.
fn model_rates(work: &RuntimeLaunchSpec) -> Option<ModelRates> {
    let (RuntimeLaunchSpec::Acp(program)
    | RuntimeLaunchSpec::Codex(program)
    | RuntimeLaunchSpec::Qwen(program)) = work
    else {
        return None;
    };
    let TokenRates { input, output, cache_read, cache_write } = program.rates?;
    let model = program.model.clone()?;
    Some(ModelRates { model, input, output, cache_read, cache_write })
}

/// Refuses a sandbox, which exists on Linux only.
#[cfg(not(target_os = "linux"))]
fn open_sockets(executor: &RunExecutor<'_>) -> Result<Option<RunSocketFolder>, RunPrepareError> {
    let brief = &executor.host.brief;
    match brief.sandbox.is_some() || brief.authority.file_limits.is_some() {
        false => Ok(None),
        true => Err(RunPrepareError::Refused(
            "sandboxes exist on Linux only: set `sandbox: off` for this agent if it may run without one"
                .to_owned(),
        )),
    }
}

fn claim_tree(
    executor: &RunExecutor<'_>,
    sockets: Option<&RunSocketFolder>,
    network: Option<&EgressService>,
    container: ContainerPid,
) -> ProcessTree {
    let mut tree = ProcessTree::claim(executor.spec.run);
    tree.set_new_privileges(executor.host.brief.authority.allow_new_privileges);
    #[cfg(target_os = "linux")]
    tree.set_sandbox(sandbox::agent_sandbox(executor, sockets, network, container));
    #[cfg(target_os = "linux")]
    tree.set_file_limits(sandbox::agent_file_limits(executor));
    #[cfg(not(target_os = "linux"))]
    let _ = (sockets, network, container);
    tree
}

fn log_options(executor: &RunExecutor<'_>) -> TranscriptWriterOptions {
    let durability = if executor.spec.sync_each_row {
        TranscriptDurability::Event
    } else {
        TranscriptDurability::Interval
    };
    TranscriptWriterOptions { durability, disk: executor.dependencies.disk.clone() }
}

fn tally(executor: &RunExecutor<'_>, last_result: Option<&serde_json::Value>) -> RunOutcomeBuilder {
    let tally = RunOutcomeBuilder::for_runtime(executor.spec.runtime);
    match last_result {
        Some(result) => tally.with_previous_result(result),
        None => tally,
    }
}

impl RunExecutor<'_> {
    /// Moves the run to a new session of its own; returns that session's lock.
    pub(super) fn start_new_session(
        &self,
        run: &mut ActiveRun,
        started: &mut RunStartRecord,
    ) -> Result<LockFile, String> {
        let id = Uuid::new_v4().to_string();
        let id: AgentSessionId = id.parse().expect("a UUID can be a session's id");
        let lock = session::lock_session(self.spec, &id, (run.now)())
            .map_err(|error| error_chain(&error))?;
        let log = session::log_path(self.spec, &id);
        let sink = run.journal.open_session(&log).map_err(|error| error_chain(&error))?;
        let history = session::load_history(self.spec, &id).map_err(|error| error_chain(&error))?;
        let restarted = RunStartRecord {
            session: id.clone(),
            session_log: log,
            session_rows_before: 0,
            ..started.clone()
        };
        // From here on, settling must look for this run's rows in the new transcript, and not
        // before.
        files::write_started(self.dir, &restarted).map_err(|error| error_chain(&error))?;
        *started = restarted;
        run.journal.change_session(sink);
        run.session = id;
        run.recorder = history.recorder;
        run.tally = RunOutcomeBuilder::new();
        (run.session_is_known, run.has_spoken) = (false, false);
        Ok(lock)
    }
}
