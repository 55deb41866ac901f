//! The agent's process with its pipes, and its outcome. Start at [`AgentConnection`].

use std::process::ExitStatus;

use camino::{Utf8Path, Utf8PathBuf};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};

use crate::input_writer::AgentInputWriter;
use crate::process::AgentProcess;

/// Outcome of an agent's process.
#[derive(Debug)]
pub(crate) struct AgentExit {
    /// `None` if it had to be killed, or if it stays.
    pub(crate) exit: Option<ExitStatus>,
    /// Tail of its standard error.
    pub(crate) stderr: String,
    /// The process, if it has ended its turn and stays.
    pub(crate) kept: Option<AgentConnection>,
}

/// Agent's process and the runner's ends of its pipes.
#[derive(Debug)]
pub(crate) struct AgentConnection {
    pub(crate) agent: AgentProcess,
    /// Program that it executes.
    pub(crate) program: Utf8PathBuf,
    pub(crate) input: AgentInputWriter<ChildStdin>,
    /// `None` once it is closed.
    pub(crate) stdout: Option<ChildStdout>,
    /// `None` once it is closed.
    pub(crate) stderr: Option<ChildStderr>,
}

impl AgentConnection {
    pub(crate) fn new(mut agent: AgentProcess, program: &Utf8Path) -> AgentConnection {
        let input = AgentInputWriter::new(agent.stdin.take());
        let (stdout, stderr) = (agent.stdout.take(), agent.stderr.take());
        AgentConnection { agent, program: program.to_owned(), input, stdout, stderr }
    }
}
