//! Performs services of the client for the agent: files and terminals. Start at
//! [`RunEventLoop::call_client_tool`].

use serde_json::Value as Json;
use tokio::task::{JoinSet, spawn_blocking};

use super::RunEventLoop;
use super::effects::MCP_CALLS_MAX;
use crate::client_tools::{
    ClientToolReply, ClientToolRequest, TerminalOperation, perform_file_request,
};
use crate::json_rpc::RpcId;

/// Call with its result.
pub(super) enum FinishedCall {
    /// Call of an injected MCP server.
    Server { call: String, reply: Json },
    /// Service of the client.
    Client { call: RpcId, reply: ClientToolReply },
}

/// Calls without a result yet.
#[derive(Default)]
pub(super) struct OpenCalls {
    /// Services of the client that read or write a file.
    files: JoinSet<FinishedCall>,
    pub(super) others: JoinSet<FinishedCall>,
}

impl OpenCalls {
    pub(super) fn len(&self) -> usize {
        self.files.len() + self.others.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the next call that has its result. `None` at once if there is none. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<FinishedCall> {
        tokio::select! {
            Some(Ok(call)) = self.files.join_next() => Some(call),
            Some(Ok(call)) = self.others.join_next() => Some(call),
            else => None,
        }
    }

    /// Waits for the files that are being written. None may change after the run.
    pub(super) async fn finish_files(&mut self) {
        while self.files.join_next().await.is_some() {}
    }
}

impl RunEventLoop<'_> {
    pub(super) fn call_client_tool(&mut self, call: RpcId, request: ClientToolRequest) {
        let refused =
            |reason: String| ClientToolReply { terminal: None, output: None, result: Err(reason) };
        let reply = match request {
            // Nothing may begin that would outlive the run.
            _ if self.tree_ended || self.must_kill => refused("the run has ended".to_owned()),
            _ if self.calls.len() >= MCP_CALLS_MAX => {
                refused(format!("{MCP_CALLS_MAX} calls are in progress; wait for one to end"))
            }
            // It blocks on the disk.
            ClientToolRequest::File(file) => {
                self.calls.files.spawn(async move {
                    let result = spawn_blocking(move || perform_file_request(&file)).await;
                    let result = result.unwrap_or_else(|error| Err(error.to_string()));
                    let reply = ClientToolReply { terminal: None, output: None, result };
                    FinishedCall::Client { call, reply }
                });
                return;
            }
            ClientToolRequest::Terminal { terminal, operation: TerminalOperation::WaitForExit } => {
                let end = self.terminals.wait_for_exit(&terminal);
                self.calls
                    .others
                    .spawn(async move { FinishedCall::Client { call, reply: end.await } });
                return;
            }
            ClientToolRequest::Terminal { terminal, operation } => {
                self.operate_terminal(&terminal, operation)
            }
        };
        self.handle_finished_call(FinishedCall::Client { call, reply });
    }

    fn operate_terminal(&mut self, id: &str, operation: TerminalOperation) -> ClientToolReply {
        match operation {
            TerminalOperation::Create(command) => {
                let context = &self.run.terminal_context;
                self.terminals.create(id, &command, self.tree, context)
            }
            TerminalOperation::Kill => self.terminals.kill(id),
            TerminalOperation::Release => self.terminals.release(id),
            TerminalOperation::ReadOutput | TerminalOperation::WaitForExit => {
                self.terminals.read_output(id)
            }
        }
    }

    /// Tells the runtime the result of a call.
    pub(super) fn handle_finished_call(&mut self, call: FinishedCall) {
        let steps = match call {
            FinishedCall::Server { call, reply } => {
                self.run.runtime.deliver_mcp_reply(&call, reply)
            }
            FinishedCall::Client { call, reply } => {
                self.run.runtime.deliver_client_reply(&call, reply)
            }
        };
        self.pending_effects.extend(steps);
    }
}
