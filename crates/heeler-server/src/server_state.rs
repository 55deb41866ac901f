//! What every route works with.

use std::sync::Arc;

use heeler_engine::{
    Caller, CommandReply, DaemonCommand, DaemonCommandError, DaemonCommandErrorKind, DaemonHandle,
    FleetMonitor, IdempotencyKey,
};
use heeler_query::{FleetReader, QueryError};
use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::oneshot;

use crate::access::AccessControl;
use crate::api::EncodedJsonResult;
use crate::caller::RequestCaller;
use crate::encoded_json::EncodedJson;
use crate::expensive_reads::ExpensiveReads;
use crate::extractors::KeyedCaller;
use crate::live_streams::LiveStreams;
use crate::metrics::ServerMetrics;
use crate::problem::ProblemDetails;
use crate::read_coalescer;

/// A daemon as its server sees it; every request is handed it.
pub type SharedServerState = Arc<ServerState>;

/// What [`SharedServerState`] is made of.
#[derive(Debug, Clone)]
pub struct ServerState {
    /// Brings commands to the dispatcher.
    pub dispatcher: DaemonHandle,
    /// Reads the state.
    pub records: FleetReader,
    /// What can be seen of the daemon without asking.
    pub fleet_monitor: FleetMonitor,
    /// Who looks at what, live.
    pub live_streams: Arc<LiveStreams>,
    /// Who may come in.
    pub access: Arc<AccessControl>,
    /// What is counted.
    pub metrics: Arc<ServerMetrics>,
    /// Whose turn it is to ask what costs much.
    pub expensive_reads: Arc<ExpensiveReads>,
    /// The daemon's version.
    pub version: String,
    /// Tells the time.
    pub clock: fn() -> Timestamp,
}

impl ServerState {
    /// Brings a command to the dispatcher and waits for its answer, however long that takes.
    pub(crate) async fn send_command(
        &self,
        caller: &RequestCaller,
        command: DaemonCommand,
    ) -> Result<CommandReply, DaemonCommandError> {
        self.dispatch_command(caller.engine_caller, command, None).await
    }

    /// The same, for whoever may have given the request a name.
    pub(crate) async fn send_keyed_command(
        &self,
        asker: &KeyedCaller,
        command: DaemonCommand,
    ) -> Result<CommandReply, DaemonCommandError> {
        self.dispatch_command(asker.caller.engine_caller, command, asker.key.clone()).await
    }

    /// Does the same for somebody who is known by nothing else.
    pub(crate) async fn send_command_as(
        &self,
        by: Caller,
        command: DaemonCommand,
    ) -> Result<CommandReply, DaemonCommandError> {
        self.dispatch_command(by, command, None).await
    }

    async fn dispatch_command(
        &self,
        by: Caller,
        command: DaemonCommand,
        key: Option<IdempotencyKey>,
    ) -> Result<CommandReply, DaemonCommandError> {
        let trouble =
            |message: &str| Err(DaemonCommandError::new(DaemonCommandErrorKind::Trouble, message));
        let changes_access = matches!(command, DaemonCommand::Access { .. });
        let (sender, receiver) = oneshot::channel();
        // Whoever asked may have gone meanwhile.
        let reply: heeler_engine::ReplyCallback = Box::new(move |answer| drop(sender.send(answer)));
        let handle = self.dispatcher.with_caller(by);
        // It waits while the dispatcher is busy, which must not keep others waiting.
        let sent = tokio::task::spawn_blocking(move || handle.send_once(command, key, reply)).await;
        let answer = match sent {
            // Whether it was done cannot be told, so it may not look like something to try again.
            Ok(Ok(())) => match receiver.await {
                Ok(answer) => answer,
                Err(_) => trouble("the daemon ended before it answered"),
            },
            Ok(Err(stopped)) => Err(stopped.into()),
            Err(_) => trouble("the daemon is ending"),
        };
        // Whatever became of it, it may have been done.
        if changes_access {
            self.access.invalidate_identities();
        }
        answer
    }

    /// Asks the records something, where waiting for a disk keeps nobody else waiting.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        question: impl FnOnce(&FleetReader) -> Result<T, QueryError> + Send + 'static,
    ) -> Result<T, ProblemDetails> {
        let (records, turn) = (self.records.clone(), read_coalescer::current_read_permit());
        let answer = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            question(&records)
        });
        match answer.await {
            Ok(answer) => Ok(answer?),
            Err(error) => {
                tracing::error!(%error, "a question panicked");
                Err(ProblemDetails::internal_error("this is a fault of heeler; its log tells more"))
            }
        }
    }

    /// Asks the records something that is told as it is.
    pub(crate) async fn read_json<T: Serialize + 'static>(
        &self,
        question: impl FnOnce(&FleetReader) -> Result<T, QueryError> + Send + 'static,
    ) -> EncodedJsonResult<T> {
        let written =
            self.read(move |records| Ok(EncodedJson::encode(&question(records)?))).await?;
        written.map_err(|error| {
            ProblemDetails::internal_error(format!("the answer cannot be written: {error}"))
        })
    }
}
