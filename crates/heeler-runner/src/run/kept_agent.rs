//! An agent's process between two turns of a conversation.
//!
//! It belongs to no run: it holds no lock, its sandbox reaches no network, and its capability is that
//! of a run that has ended. It ends if it does anything by itself, and with the conversation, the
//! daemon, the idle limit, or when memory runs short. Start at [`KeptAgent::wait_for_turn`].

use std::collections::BTreeSet;
use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::time::Duration;

use heeler_model::NativeSessionPosition;
use heeler_model::redact::SecretRedactor;
use heeler_model::run::{
    AGENT_KEPT_REPLY, AgentLaunchSpec, CAPABILITY_VARIABLE, KeptAgentLimits, RUN_TAKEN_REPLY,
    RunSpec, RunnerInput, RuntimeLaunchSpec, SessionStart,
};
use heeler_transcript::SuspendedLock;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use super::sandbox::RunSocketFolder;
use crate::event_loop::AgentConnection;
use crate::line_reader::{AgentLineReader, AgentOutputLine};
use crate::process::{ProcessEnd, ProcessTree};
use crate::runtime::{AgentRuntime, NextTurn};
use crate::signals::RunnerSignals;

/// Memory that must be available on the machine for an agent to be kept.
pub(crate) const KEPT_AGENT_MEMORY_MIN: u64 = 512 << 20;

/// Interval of the checks of the machine's memory, and of the processes of the agent.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Number of characters that are logged of output between two turns, which is no row.
const IDLE_OUTPUT_CHARS_LOGGED: usize = 2000;

/// Limit on the input of a run.
const INPUT_BYTES_MAX: usize = 256 << 20;

/// Permission mode that Claude enters only at its start.
const BYPASS_MODE: &str = "bypassPermissions";

/// Connection to the daemon that started this runner, for the runs that follow.
#[derive(Debug)]
pub(crate) struct DaemonLink {
    stream: UnixStream,
    received: Vec<u8>,
}

impl DaemonLink {
    /// Takes over the connection by which the first run was received. Must be called in the event
    /// loop.
    pub(crate) fn new(stream: StdUnixStream) -> io::Result<DaemonLink> {
        stream.set_nonblocking(true)?;
        Ok(DaemonLink { stream: UnixStream::from_std(stream)?, received: Vec::new() })
    }

    /// Returns true if the daemon has closed its end, or does what it should not do now.
    pub(crate) fn is_closed(&self) -> bool {
        let mut byte = [0];
        // During a run the daemon sends nothing, so there is nothing to read but the end.
        !matches!(self.stream.try_read(&mut byte), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    async fn send(&mut self, text: &str) -> io::Result<()> {
        self.stream.write_all(text.as_bytes()).await
    }

    /// Tells the daemon that this process executes the run that it received.
    pub(crate) async fn confirm(&mut self) -> io::Result<()> {
        self.send(RUN_TAKEN_REPLY).await
    }

    /// Returns the next run; `None` if there will be none. Cancel-safe.
    async fn receive(&mut self) -> Option<RunnerInput> {
        loop {
            if let Some(line) = self.received.strip_suffix(b"\n") {
                // The document holds secrets, so the error is not logged.
                return serde_json::from_slice(line).ok();
            }
            match self.stream.read_buf(&mut self.received).await {
                Ok(1..) if self.received.len() <= INPUT_BYTES_MAX => {}
                _ => return None,
            }
        }
    }

    /// Forgets the last document, which holds secrets.
    fn clear(&mut self) {
        self.received = Vec::new();
    }
}

/// Agent's process that has ended its turn, with what the next turn needs of it.
pub(crate) struct KeptAgent {
    pub(super) connection: AgentConnection,
    pub(super) runtime: Box<dyn AgentRuntime>,
    pub(super) signals: RunnerSignals,
    pub(super) tree: ProcessTree,
    pub(super) sockets: Option<RunSocketFolder>,
    /// Lock of the session, which the agent inherited.
    pub(super) lock: SuspendedLock,
    pub(super) lines: AgentLineReader,
    /// Last run.
    pub(super) spec: RunSpec,
    /// Launch data of the last run.
    pub(super) brief: AgentLaunchSpec,
    /// Position at which the last turn left the native session.
    pub(super) position: NativeSessionPosition,
    pub(super) conversation: ProcessEnd,
    pub(super) redactor: SecretRedactor,
    pub(super) available_memory: fn() -> Option<u64>,
}

/// Agent's process in which a run executes its turn.
pub(super) struct ResumedAgent {
    pub(super) connection: AgentConnection,
    pub(super) runtime: Box<dyn AgentRuntime>,
    pub(super) turn: NextTurn,
}

/// Processes and sockets around an agent's process.
pub(super) struct AgentSurroundings {
    pub(super) tree: ProcessTree,
    pub(super) sockets: Option<RunSocketFolder>,
}

impl KeptAgent {
    /// Adds the secrets that the agent knows from earlier runs, and may repeat in a later one.
    pub(crate) fn add_known_secrets(&self, secrets: &mut Vec<String>) {
        for secret in &self.brief.secrets {
            if !secrets.contains(secret) {
                secrets.push(secret.clone());
            }
        }
    }

    /// Returns the turn of a run if this agent can execute it: it is the next one of the same
    /// conversation, under the same conditions. Model, permission mode and rules may have changed
    /// as the agent's process knows it or can be told.
    pub(crate) fn plan_turn(&self, spec: &RunSpec, brief: &AgentLaunchSpec) -> Option<NextTurn> {
        let SessionStart::Resume { id } = &spec.session.start else { return None };
        let old_spec = &self.spec;
        let is_same_conversation = id == old_spec.session.start.id()
            // Another run, or another program, may have continued the session.
            && spec.session.own.as_ref() == Some(&self.position)
            && !spec.session.take_in;
        let is_same_place = spec.agent == old_spec.agent
            && spec.runtime == old_spec.runtime
            && spec.working_directory == old_spec.working_directory
            && (&spec.home, &spec.sockets) == (&old_spec.home, &old_spec.sockets)
            && (&spec.projects, &spec.workspaces) == (&old_spec.projects, &old_spec.workspaces)
            && spec.attendance == old_spec.attendance;
        // The agent counts these for its process.
        let is_unlimited = spec.limits.max_turns.is_none() && spec.limits.budget_usd.is_none();
        if !(is_same_conversation && is_same_place && is_unlimited)
            || comparable_brief(&self.brief) != comparable_brief(brief)
        {
            return None;
        }
        let prompt = brief.prompt.clone();
        let (RuntimeLaunchSpec::Claude(before), RuntimeLaunchSpec::Claude(now)) =
            (&self.brief.work, &brief.work)
        else {
            return Some(NextTurn { prompt, ..NextTurn::default() });
        };
        let given = before.granted.iter().chain(self.runtime.session_rules());
        if given.collect::<BTreeSet<_>>() != now.granted.iter().collect::<BTreeSet<_>>() {
            return None;
        }
        let is_bypass = |mode: &str| mode == BYPASS_MODE;
        let (old_mode, mode) = (&before.permission_mode, &now.permission_mode);
        if (is_bypass(old_mode) || is_bypass(mode)) && old_mode != mode {
            return None;
        }
        let model = match now.model == before.model {
            true => None,
            // The agent cannot be told to use its own default again.
            false => Some(now.model.clone()?),
        };
        // A person may have changed the mode of the process in the last turn.
        let permission_mode = (!is_bypass(mode)).then(|| mode.clone());
        Some(NextTurn { prompt, permission_mode, model })
    }

    /// Waits for the next turn. Returns `None` once the agent is to end.
    pub(crate) async fn wait_for_turn(
        &mut self,
        link: &mut DaemonLink,
        limits: &KeptAgentLimits,
    ) -> Option<RunnerInput> {
        if link.send(AGENT_KEPT_REPLY).await.is_err() {
            return None;
        }
        let reason = tokio::select! {
            input = link.receive() => match input {
                Some(input) => {
                    link.clear();
                    return self.is_quiet().then_some(input);
                }
                None => "the daemon has ended it",
            },
            reason = self.wait_for_end(limits) => reason,
        };
        tracing::info!(reason, "the agent's process is not kept any longer");
        None
    }

    /// Returns true if the agent has been silent, and no other process has come.
    fn is_quiet(&self) -> bool {
        self.lines.is_empty()
            && self.tree.is_agent_alone(self.connection.agent.pid, &self.connection.program)
    }

    /// Waits until there is a reason to end the agent. Cancel-safe.
    async fn wait_for_end(&mut self, limits: &KeptAgentLimits) -> &'static str {
        let KeptAgent {
            connection,
            runtime,
            signals,
            lines,
            conversation,
            tree,
            redactor,
            available_memory,
            ..
        } = self;
        let AgentConnection { agent, program, stdout, stderr, .. } = connection;
        let idle = tokio::time::sleep(Duration::from_millis(limits.idle_ms));
        let mut idle = std::pin::pin!(idle);
        let mut idle_check = tokio::time::interval(IDLE_CHECK_INTERVAL);
        let mut complaint = [0; 4096];
        loop {
            let Some(output) = stdout.as_mut() else { return "its output is closed" };
            tokio::select! {
                () = &mut idle => return "the conversation was idle for too long",
                () = conversation.wait() => return "the conversation has ended",
                _ = agent.wait() => return "it has ended by itself",
                _ = signals.next_signal() => return "the runner received a signal",
                read = lines.fill(output) => {
                    if !matches!(read, Ok(1..)) {
                        return "its output is closed";
                    }
                    if !accept_lines(lines, runtime.as_mut(), redactor) {
                        return "it became active without a turn";
                    }
                }
                read = read_complaint(stderr, &mut complaint) => {
                    if !matches!(read, Ok(1..)) {
                        *stderr = None;
                    }
                }
                _ = idle_check.tick() => {
                    if is_memory_short(*available_memory) {
                        return "the machine is short of memory";
                    }
                    if !tree.is_agent_alone(agent.pid, program) {
                        return "it started a process without a turn";
                    }
                }
            }
        }
    }

    /// Ends the agent and every process that it left.
    pub(crate) async fn end(self) {
        let ended = self.tree.terminate().await;
        if !ended.survivors.is_empty() {
            tracing::warn!(left = ?ended.survivors, "processes of a kept agent could not be ended");
        }
    }
}

/// Returns true if the machine has too little memory for an agent that does nothing.
pub(super) fn is_memory_short(available_memory: fn() -> Option<u64>) -> bool {
    available_memory().is_some_and(|bytes| bytes < KEPT_AGENT_MEMORY_MIN)
}

/// Returns true if the lines are those of an idle agent.
fn accept_lines(
    lines: &mut AgentLineReader,
    runtime: &mut dyn AgentRuntime,
    redactor: &SecretRedactor,
) -> bool {
    while let Some(line) = lines.next_line() {
        let is_quiet = match &line {
            AgentOutputLine::Whole(line) => runtime.handle_idle_line(line),
            AgentOutputLine::Spilled(_) => false,
        };
        if !is_quiet {
            tracing::warn!(
                output = shown_line(&line, redactor),
                "a kept agent is ended: it became active without a turn"
            );
            return false;
        }
    }
    true
}

/// Returns the beginning of a line for the runner's log.
fn shown_line(line: &AgentOutputLine<'_>, redactor: &SecretRedactor) -> String {
    match line {
        AgentOutputLine::Whole(line) => {
            // Redacted before it is cut: half a secret would not be recognized.
            let line = redactor.redact_bytes(line);
            let text = String::from_utf8_lossy(&line);
            text.chars().take(IDLE_OUTPUT_CHARS_LOGGED).collect()
        }
        AgentOutputLine::Spilled(_) => "a line that is too long".to_owned(),
    }
}

async fn read_complaint(
    stderr: &mut Option<tokio::process::ChildStderr>,
    buffer: &mut [u8],
) -> io::Result<usize> {
    match stderr {
        Some(stderr) => stderr.read(buffer).await,
        None => std::future::pending().await,
    }
}

/// Returns the part of the launch data that must be the same for an agent's process to be used again.
fn comparable_brief(brief: &AgentLaunchSpec) -> AgentLaunchSpec {
    let mut brief = brief.clone();
    brief.prompt.clear();
    // Each run has a capability of its own. The runner removes secrets from its records, so those
    // that are not in the environment do not concern the agent.
    brief.env.shift_remove(CAPABILITY_VARIABLE);
    brief.secrets.clear();
    // The runner itself stores the files of a run.
    brief.send_files_to = brief.send_files_to.map(|_| "sent".into());
    if let RuntimeLaunchSpec::Claude(claude) = &mut brief.work {
        claude.granted.clear();
        claude.permission_mode.clear();
        claude.model = None;
    }
    brief
}
