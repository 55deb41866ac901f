//! State that all routes share.

use std::sync::Arc;

use futures_util::FutureExt as _;
use heeler_engine::{
    Caller, CommandReply, DaemonCommand, DaemonCommandError, DaemonCommandErrorKind, DaemonHandle,
    FleetMonitor, IdempotencyKey,
};
use heeler_query::{FleetReader, QueryError};
use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::oneshot;

use crate::access::AccessControl;
use crate::caller::{KeyedCaller, RequestCaller};
use crate::config_editor::ConfigEditor;
use crate::daemon_info::DaemonInfo;
use crate::encoded_json::{EncodedJson, EncodedJsonResult};
use crate::expensive_reads::{ExaminationResult, ExpensiveReadKind, ExpensiveReads};
use crate::job_list_reads::JobListReads;
use crate::live_streams::LiveStreams;
use crate::metrics::ServerMetrics;
use crate::problem::ProblemDetails;
use crate::read_coalescer;
use crate::reply_redaction::ReplyRedactor;

/// Shared state of the server; every handler receives it.
pub type SharedServerState = Arc<ServerState>;

/// State of the server: access to the daemon, the store, and limits.
#[derive(Debug, Clone)]
pub struct ServerState {
    /// Sends commands to the dispatcher.
    pub dispatcher: DaemonHandle,
    /// Reads the store.
    pub records: FleetReader,
    /// State of the daemon that is readable without a command.
    pub fleet_monitor: FleetMonitor,
    pub live_streams: Arc<LiveStreams>,
    pub access: Arc<AccessControl>,
    pub metrics: Arc<ServerMetrics>,
    /// Requests for job lists that wait for a reader.
    pub job_lists: Arc<JobListReads>,
    /// Permits for expensive reads.
    pub expensive_reads: Arc<ExpensiveReads>,
    /// Removes secrets from replies.
    pub reply_redactor: Arc<ReplyRedactor>,
    /// Editor of config files; `None` if they cannot be edited.
    pub config_editor: Option<Arc<dyn ConfigEditor>>,
    /// Version of the daemon.
    pub version: String,
    /// Answer to a client that asks which daemon this is.
    pub daemon_info: DaemonInfo,
    /// Clock; replaced in tests.
    pub clock: fn() -> Timestamp,
}

impl ServerState {
    /// Sends a command to the dispatcher and waits for the reply without a time limit.
    pub(crate) async fn send_command(
        &self,
        caller: &RequestCaller,
        command: DaemonCommand,
    ) -> Result<CommandReply, DaemonCommandError> {
        self.dispatch_command(caller.engine_caller, command, None).await
    }

    /// Like [`ServerState::send_command`], with the idempotency key of the request, if any.
    pub(crate) async fn send_keyed_command(
        &self,
        caller: &KeyedCaller,
        command: DaemonCommand,
    ) -> Result<CommandReply, DaemonCommandError> {
        self.dispatch_command(caller.caller.engine_caller, command, caller.key.clone()).await
    }

    /// Like [`ServerState::send_command`], for a caller without a [`RequestCaller`].
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
        // The caller may be gone.
        let reply: heeler_engine::ReplyCallback = Box::new(move |answer| drop(sender.send(answer)));
        let handle = self.dispatcher.with_caller(by);
        // `send_once` blocks while the dispatcher is busy; other requests must not wait for it.
        let sent = tokio::task::spawn_blocking(move || handle.send_once(command, key, reply)).await;
        let answer = match sent {
            // The command may have been executed, so the error must not suggest a retry.
            Ok(Ok(())) => match receiver.await {
                Ok(answer) => answer,
                Err(_) => trouble("the daemon stopped before it replied"),
            },
            Ok(Err(stopped)) => Err(stopped.into()),
            Err(_) => trouble("the daemon is ending"),
        };
        // Even a failed command may have been executed.
        if changes_access {
            self.access.invalidate_identities();
        }
        answer
    }

    /// Runs a query on a blocking thread, so that waiting for the disk does not delay other
    /// requests.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&FleetReader) -> Result<T, QueryError> + Send + 'static,
    ) -> Result<T, ProblemDetails> {
        let (records, permit) = (self.records.clone(), read_coalescer::current_read_permit());
        let answer = tokio::task::spawn_blocking(move || {
            // The thread may outlive all requests that wait for it, and counts until it ends.
            let _permit = permit;
            query(&records)
        });
        match answer.await {
            Ok(answer) => Ok(answer?),
            Err(error) => {
                tracing::error!(%error, "a query panicked");
                Err(ProblemDetails::internal_error("internal error of heeler; see its log"))
            }
        }
    }

    /// Runs an expensive read when a permit is available.
    pub(crate) async fn read_expensive<T: Send + 'static>(
        &self,
        kind: ExpensiveReadKind,
        query: impl FnOnce(&FleetReader) -> Result<T, QueryError> + Send + 'static,
    ) -> Result<T, ProblemDetails> {
        let permit = self.expensive_reads.acquire(kind).await?;
        self.read(move |records| {
            let _permit = permit;
            query(records)
        })
        .await
    }

    /// Examines the state directory. Concurrent requests share one examination.
    pub(crate) async fn examine_state_dir(self: &Arc<Self>) -> ExaminationResult {
        let app = Arc::clone(self);
        let examine = async move {
            let now = (app.clock)();
            // An abandoned examination may still be running, so this one needs a permit too.
            let query = move |records: &FleetReader| Ok(Arc::new(records.check_health(now)));
            app.read_expensive(ExpensiveReadKind::Examination, query).await
        };
        self.expensive_reads.share_examination(|| examine.boxed()).await
    }

    /// Runs a query and encodes the result as JSON on the same thread.
    pub(crate) async fn read_json<T: Serialize + 'static>(
        &self,
        query: impl FnOnce(&FleetReader) -> Result<T, QueryError> + Send + 'static,
    ) -> EncodedJsonResult<T> {
        let written = self.read(move |records| Ok(EncodedJson::encode(&query(records)?))).await?;
        written.map_err(|error| {
            ProblemDetails::internal_error(format!("cannot encode the reply: {error}"))
        })
    }
}
