//! Calls of the agent that the runner performs beside the event loop. Start at [`OpenCalls`].

use serde_json::Value as Json;
use tokio::task::JoinSet;

use crate::client_tools::ClientToolReply;
use crate::json_rpc::RpcId;

/// Limit on concurrent calls of injected tools and services; further calls are refused.
pub(crate) const OPEN_CALLS_MAX: usize = 64;

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
    pub(super) files: JoinSet<FinishedCall>,
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
