//! The scripted agent: a child process that follows a script and speaks Claude's stream protocol.
//!
//! It needs no network, key or other program, keeps sessions that can be resumed and forked, and
//! really runs the tools that its script uses. The runner starts it like any other agent, with
//! `launch`; the binary's hidden command `play` calls [`run_scripted_agent`]. `docs/scripted.md`
//! describes the script format.

mod agent;
mod assistant_message;
mod commands;
mod event;
mod host_requests;
mod input;
mod launch;
mod output;
mod session;
mod template;
#[cfg(test)]
mod tests;
mod tools;
mod turn;
mod turn_state;

use std::fs;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;

use camino::Utf8PathBuf;
use heeler_config::script::{AgentScript, ScriptExit};
use heeler_model::redact::SecretRedactor;
use heeler_model::run::SessionStart;
use jiff::Timestamp;
use rustix::io::FdFlags;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use tokio::signal::unix::{SignalKind, signal};
use uuid::Uuid;

use agent::{ScriptedAgent, ScriptedAgentSettings, exit_with_error};
use commands::ScriptedCommandRegistry;
pub use commands::exec_in_new_session;
pub(crate) use launch::launch;
use session::{ScriptedSession, ScriptedSessionError};

/// Launch options of the scripted agent.
#[derive(Debug, Clone)]
pub struct ScriptedAgentOptions {
    /// File with the steps, as passed by `launch`.
    pub script: Utf8PathBuf,
    /// Home directory of the user; sessions are in its `scripted/projects`.
    pub home: Utf8PathBuf,
    /// Working directory, as a resolved path.
    pub cwd: Utf8PathBuf,
    /// Path of the Heeler binary.
    pub program: Utf8PathBuf,
    pub session: SessionStart,
    pub max_turns: Option<u32>,
    /// Limit on cost, in US dollars.
    pub max_budget_usd: Option<f64>,
    /// Send pieces of text while they are generated.
    pub partial: bool,
    /// Permission requests and questions can be answered.
    pub can_ask: bool,
    /// Save the session to its file.
    pub persists_session: bool,
    /// Tools are available; without them, steps that need tools are skipped.
    pub tools: bool,
    pub now: fn() -> Timestamp,
}

/// Content of [`ScriptedAgentOptions::script`].
#[derive(Serialize, Deserialize)]
struct ScriptedFileContent {
    /// Steps in the format of the config.
    steps: Vec<Json>,
    /// Secrets that the session file must not hold.
    secrets: Vec<String>,
}

/// Follows the script on standard input and output until the input ends. Returns the exit code for
/// the process.
pub fn run_scripted_agent(play: &ScriptedAgentOptions) -> u8 {
    set_close_on_exec();
    let mut player = match prepare_agent(play, Box::new(io::stdout())) {
        Ok(player) => player,
        Err(exit) => return exit_process(exit),
    };
    handle_signals(player.children.clone(), Arc::clone(&player.ignores_signals));
    exit_process(player.run_to_end(Box::new(io::stdin())))
}

/// Opens script and session. Errors are reported in Claude's format.
fn prepare_agent(
    play: &ScriptedAgentOptions,
    mut out: Box<dyn Write>,
) -> Result<ScriptedAgent, ScriptExit> {
    let part = fs::read(&play.script).map_err(|error| error.to_string());
    let part = part.and_then(|text| {
        serde_json::from_slice::<ScriptedFileContent>(&text).map_err(|error| error.to_string())
    });
    let part =
        part.map_err(|error| exit_with_error(&format!("cannot read the script: {error}")))?;
    let script = AgentScript::check(&part.steps).map_err(|faults| {
        let faults: Vec<_> = faults.iter().map(ToString::to_string).collect();
        exit_with_error(&format!("the script has faults: {}", faults.join("; ")))
    })?;
    let mut session = match ScriptedSession::open(&play.home, &play.cwd, &play.session) {
        Ok(session) => session,
        Err(error) => {
            // For this error Claude writes no result.
            if !matches!(error, ScriptedSessionError::InUse { .. }) {
                let mut line = error_result(play, &error.to_string()).to_string();
                line.push('\n');
                // The exit code reports the failure too.
                drop(out.write_all(line.as_bytes()).and_then(|()| out.flush()));
            }
            return Err(exit_with_error(&error.to_string()));
        }
    };
    session.is_persistent = play.persists_session;
    let settings = ScriptedAgentSettings {
        program: play.program.clone(),
        cwd: play.cwd.clone(),
        max_turns: play.max_turns,
        max_budget_usd: play.max_budget_usd,
        partial: play.partial,
        can_ask: play.can_ask,
        tools: play.tools,
        now: play.now,
    };
    let redactor = SecretRedactor::new(&part.secrets);
    Ok(ScriptedAgent::new(settings, script, session, redactor, out))
}

/// Returns the result message of a session that cannot be opened.
fn error_result(play: &ScriptedAgentOptions, error: &str) -> Json {
    json!({
        "type": "result", "subtype": "error_during_execution", "duration_ms": 0,
        "duration_api_ms": 0, "is_error": true, "num_turns": 0, "stop_reason": null,
        "session_id": play.session.id(), "total_cost_usd": 0, "usage": output::ScriptedTokenUsage::default(),
        "modelUsage": {}, "permission_denials": [], "uuid": Uuid::new_v4(), "errors": [error],
        "result_index": 0,
    })
}

/// Ends the process as the script demands, or returns the exit code.
fn exit_process(exit: ScriptExit) -> u8 {
    match exit {
        ScriptExit::Code(code) => code,
        ScriptExit::Signal(number) => {
            let own_pid = rustix::process::getpid();
            if let Some(signal) = Signal::from_named_raw(number) {
                // Sent twice, because Rust's handler takes the first SIGSEGV for a stack overflow.
                // Signals that are handled here do not end the process; then the exit code below
                // reports them.
                let _first = rustix::process::kill_process(own_pid, signal);
                let _second = rustix::process::kill_process(own_pid, signal);
            }
            u8::try_from(128 + number).unwrap_or(1)
        }
    }
}

/// Ends the process on a signal as Claude does: its commands are killed, and the exit code
/// identifies the signal.
fn handle_signals(children: ScriptedCommandRegistry, stubborn: Arc<AtomicBool>) {
    let (heeds, is_heeding) = sync_channel::<()>(0);
    let heed = async move {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        drop(heeds);
        loop {
            let code = tokio::select! {
                _ = terminate.recv() => 143,
                _ = interrupt.recv() => 0,
                _ = hangup.recv() => 129,
            };
            if !stubborn.load(Ordering::SeqCst) {
                // The guard is held until the exit, so that no command starts in between.
                let _none_is_started = children.kill_all();
                std::process::exit(code);
            }
        }
        #[expect(unreachable_code, reason = "names the error of the block")]
        Ok::<(), io::Error>(())
    };
    // The agent thread may block on a reader that does not read, so only another thread can end it.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        if let Err(error) = runtime.and_then(|runtime| runtime.block_on(heed)) {
            tracing::warn!(%error, "signals cannot be handled");
        }
    });
    // The first step may be a signal: its handler must be installed by then. Nothing is ever sent.
    let _heeded = is_heeding.recv();
}

/// Keeps inherited file descriptors (script, session lock) from child processes, as Claude does.
#[expect(unsafe_code, reason = "inherited files have numbers only")]
fn set_close_on_exec() {
    let Ok(files) = fs::read_dir("/dev/fd") else { return };
    let numbers = files.filter_map(|file| file.ok()?.file_name().to_str()?.parse().ok());
    for number in numbers.collect::<Vec<i32>>().into_iter().filter(|number| *number > 2) {
        // SAFETY: the number was just read, no other thread runs yet, and nothing is closed in
        // between except the directory that was read. Its number is then unused, and the resulting
        // error is ignored.
        let file = unsafe { BorrowedFd::borrow_raw(number) };
        let _closed = rustix::io::fcntl_setfd(file, FdFlags::CLOEXEC);
    }
}

/// Follows the script on the given streams; returns the way the process would end.
#[cfg(test)]
fn run_agent_on(
    play: &ScriptedAgentOptions,
    input: Box<dyn io::Read + Send>,
    out: Box<dyn Write>,
) -> ScriptExit {
    match prepare_agent(play, out) {
        Ok(mut player) => player.run_to_end(input),
        Err(exit) => exit,
    }
}
