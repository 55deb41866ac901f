//! Performs services of the client for the agent: files and terminals. Start at
//! [`RunEventLoop::call_client_tool`].

use tokio::task::spawn_blocking;

use super::RunEventLoop;
use super::open_calls::{FinishedCall, OPEN_CALLS_MAX};
use crate::client_tools::{
    ClientToolReply, ClientToolRequest, TerminalOperation, perform_file_request,
};
use crate::json_rpc::RpcId;

impl RunEventLoop<'_> {
    pub(super) fn call_client_tool(&mut self, call: RpcId, request: ClientToolRequest) {
        let refused =
            |reason: String| ClientToolReply { terminal: None, output: None, result: Err(reason) };
        let reply = match request {
            // Nothing may begin that would outlive the run.
            _ if self.tree_ended || self.must_kill => refused("the run has ended".to_owned()),
            _ if self.calls.len() >= OPEN_CALLS_MAX => {
                refused(format!("{OPEN_CALLS_MAX} calls are in progress; wait for one to end"))
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
            FinishedCall::Client { call, mut reply } => {
                // An agent that asks faster than it reads would fill the queue, which ends the run.
                let size = reply.result.as_ref().map_or(0, |result| result.to_string().len());
                if !self.input.has_room(size) {
                    let reason = "the agent has not read the earlier replies yet; ask again";
                    reply.result = Err(reason.to_owned());
                }
                self.run.runtime.deliver_client_reply(&call, reply)
            }
        };
        self.pending_effects.extend(steps);
    }
}
