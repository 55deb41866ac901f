//! What every route works with.

use std::sync::Arc;

use heeler_engine::{Answer, Command, Handle, Origin, Outlook, Refused, RefusedKind, RequestKey};
use heeler_query::{QueryError, Records};
use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::oneshot;

use crate::access::Access;
use crate::api::Shown;
use crate::caller::Caller;
use crate::costly::Costly;
use crate::flights;
use crate::live::Live;
use crate::metrics::Metrics;
use crate::problem::Problem;
use crate::request::Asker;
use crate::written::Written;

/// A daemon as its server sees it; every request is handed it.
pub type App = Arc<Served>;

/// What [`App`] is made of.
#[derive(Debug, Clone)]
pub struct Served {
    /// Brings commands to the dispatcher.
    pub handle: Handle,
    /// Reads the state.
    pub records: Records,
    /// What can be seen of the daemon without asking.
    pub outlook: Outlook,
    /// Who looks at what, live.
    pub live: Arc<Live>,
    /// Who may come in.
    pub access: Arc<Access>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Whose turn it is to ask what costs much.
    pub costly: Arc<Costly>,
    /// The daemon's version.
    pub version: String,
    /// Tells the time.
    pub now: fn() -> Timestamp,
}

impl Served {
    /// Brings a command to the dispatcher and waits for its answer, however long that takes.
    pub(crate) async fn ask(&self, caller: &Caller, command: Command) -> Result<Answer, Refused> {
        self.ask_once(caller.origin, command, None).await
    }

    /// The same, for whoever may have given the request a name.
    pub(crate) async fn order(&self, asker: &Asker, command: Command) -> Result<Answer, Refused> {
        self.ask_once(asker.caller.origin, command, asker.key.clone()).await
    }

    /// Does the same for somebody who is known by nothing else.
    pub(crate) async fn ask_of(&self, by: Origin, command: Command) -> Result<Answer, Refused> {
        self.ask_once(by, command, None).await
    }

    async fn ask_once(
        &self,
        by: Origin,
        command: Command,
        key: Option<RequestKey>,
    ) -> Result<Answer, Refused> {
        let trouble = |message: &str| Err(Refused::new(RefusedKind::Trouble, message));
        let changes_access = matches!(command, Command::Access { .. });
        let (sender, receiver) = oneshot::channel();
        // Whoever asked may have gone meanwhile.
        let reply: heeler_engine::Reply = Box::new(move |answer| drop(sender.send(answer)));
        let handle = self.handle.of(by);
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
            self.access.changed();
        }
        answer
    }

    /// Asks the records something, where waiting for a disk keeps nobody else waiting.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Records) -> Result<T, QueryError> + Send + 'static,
    ) -> Result<T, Problem> {
        let (records, turn) = (self.records.clone(), flights::turn());
        let answer = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            question(&records)
        });
        match answer.await {
            Ok(answer) => Ok(answer?),
            Err(error) => {
                tracing::error!(%error, "a question panicked");
                Err(Problem::trouble("this is a fault of heeler; its log tells more"))
            }
        }
    }

    /// Asks the records something that is told as it is.
    pub(crate) async fn tell<T: Serialize + 'static>(
        &self,
        question: impl FnOnce(&Records) -> Result<T, QueryError> + Send + 'static,
    ) -> Shown<T> {
        let written = self.read(move |records| Ok(Written::of(&question(records)?))).await?;
        written.map_err(|error| Problem::trouble(format!("the answer cannot be written: {error}")))
    }
}
