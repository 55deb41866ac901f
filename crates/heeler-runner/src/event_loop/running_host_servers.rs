//! Processes of MCP servers that run outside of the agent's sandbox. Start at
//! [`RunningHostServers`].

use std::time::Duration;

use rustix::process::Signal;

use crate::mcp::InjectedMcpServers;
use crate::process::AgentProcess;

/// Time that servers have to end by themselves. Some end other programs, such as a browser.
const END_TIME_MAX: Duration = Duration::from_secs(1);

/// Processes of the servers of one agent. The end of the process tree ends them, too.
#[derive(Debug, Default)]
pub(crate) struct RunningHostServers(Vec<AgentProcess>);

impl RunningHostServers {
    pub(crate) fn add(&mut self, process: AgentProcess) {
        self.0.push(process);
    }

    /// Asks the servers to end, and kills those that do not.
    pub(super) async fn end(&mut self, injected: &InjectedMcpServers) {
        let mut processes = std::mem::take(&mut self.0);
        injected.host_servers().iter().for_each(|server| server.close());
        signal_all(&mut processes, Signal::TERM);
        let wait = async {
            for process in &mut processes {
                process.wait().await;
            }
        };
        if tokio::time::timeout(END_TIME_MAX, wait).await.is_err() {
            signal_all(&mut processes, Signal::KILL);
        }
    }
}

/// Signals the process groups of the servers that have not ended. A package runner is the parent of
/// the server itself.
fn signal_all(processes: &mut [AgentProcess], signal: Signal) {
    for process in processes {
        if process.exit_status().is_none() {
            // It may have ended just now.
            let _sent = rustix::process::kill_process_group(process.pid, signal);
        }
    }
}
