//! The PostgreSQL arm of a connection.
//!
//! The store's interface blocks, and the client library is asynchronous. One thread of the process
//! drives the sockets of all connections; the threads that call wait for the replies. So a caller may
//! be any thread, also one of an async runtime, and an idle connection notices that its server is
//! gone. Start at [`PostgresConnection`].

mod runtime;
mod server_check;
mod tls;
mod values;
mod writer_claim;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use heeler_config::{StoreHost, StoreUrl};
use rusqlite::types::Value;
use tokio_postgres::{AsyncMessage, Client, CopyInSink, NoTls, SimpleQueryMessage, Statement};

use super::database_error::{DatabaseError, failed};
use super::dialect::{NamedValue, StatementParameter, translate};
use super::postgres_error::{PostgresError, REPLY_TIMEOUT};
use runtime::{spawn, wait_for};
use server_check::{check_server, explain_failure};
use values::BoundValue;
pub(crate) use values::{ColumnValue, without_nul};
pub(crate) use writer_claim::{
    ClaimPurpose, ClaimRefusal, HOST_LEASE, LEASE, WriterClaim, WriterIdentity, quote,
};

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Time after which unacknowledged data closes a TCP connection.
const TCP_SILENCE_MAX: Duration = Duration::from_secs(15);

/// Time after which the server ends a transaction that its client has left open. A paused process
/// must not block its successor.
const IDLE_TRANSACTION_MAX: Duration = Duration::from_secs(10);

/// Setting that each connection makes at its start and reads back. A connection pool that gives
/// the statements of one client to several sessions drops it.
const SESSION_SETTING: &str = "heeler.session";

/// Channel of the server on which the leader learns of commands and reports of other hosts.
pub(crate) const LEAD_CHANNEL: &str = "heeler_lead";

/// Channel on which other hosts learn of new runs for them, and of a lead that was given away.
pub(crate) const HOST_CHANNEL: &str = "heeler_hosts";

/// Purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PostgresAccess {
    Read,
    Write,
}

/// A connection to a PostgreSQL server.
pub(crate) struct PostgresConnection {
    client: Client,
    statements: RefCell<HashMap<&'static str, Arc<PreparedStatement>>>,
    /// The right to write; only the writer of a store has it.
    claim: RefCell<Option<WriterClaim>>,
    /// Name of this host, if the fleet has several.
    pub(crate) host: Option<String>,
    /// True if a reply did not come: later replies would belong to the statement before.
    is_broken: Cell<bool>,
    /// Called at each notification of the server, and at the end of the connection.
    hint: Arc<HintCallback>,
}

/// A function that the thread of the sockets calls, so it must not wait.
type HintCallback = OnceLock<Box<dyn Fn() + Send + Sync>>;

impl std::fmt::Debug for PostgresConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresConnection").field("claim", &self.claim).finish_non_exhaustive()
    }
}

struct PreparedStatement {
    statement: Statement,
    parameters: Vec<StatementParameter>,
}

impl PostgresConnection {
    /// Connects, and checks that the server can hold a store.
    pub(crate) fn connect(
        url: &StoreUrl,
        password: Option<&str>,
        access: PostgresAccess,
    ) -> Result<PostgresConnection, PostgresError> {
        let session = format!("{:016x}", fastrand::u64(..));
        let config = client_config(url, password, access, &session);
        let hint = Arc::<HintCallback>::default();
        let client = match url.host.needs_tls() {
            false => open(&config, NoTls, Arc::clone(&hint)),
            true => open(&config, tls::connector(url)?, Arc::clone(&hint)),
        }
        .map_err(explain_failure)?;
        let conn = PostgresConnection {
            client,
            statements: RefCell::default(),
            claim: RefCell::default(),
            host: None,
            is_broken: Cell::new(false),
            hint,
        };
        check_server(&conn, &session)?;
        Ok(conn)
    }

    /// Returns true if the connection is lost.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_broken.get() || self.client.is_closed()
    }

    fn wait<T>(
        &self,
        reply: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, PostgresError> {
        match wait_for(reply, REPLY_TIMEOUT) {
            Some(reply) => Ok(reply?),
            None => {
                self.is_broken.set(true);
                Err(PostgresError::NoReply)
            }
        }
    }

    /// Calls a function at each notification on a channel, and at the end of the connection. Later calls
    /// have no effect. A notification is a hint: it may be lost with the connection.
    pub(crate) fn listen(
        &self,
        channel: &'static str,
        hint: Box<dyn Fn() + Send + Sync>,
    ) -> Result<(), PostgresError> {
        match self.hint.set(hint) {
            Ok(()) => self.simple_query(&format!("LISTEN {channel}")).map(drop),
            Err(_) => Ok(()),
        }
    }

    /// Gives the other hosts a hint when the present transaction is committed.
    pub(crate) fn notify_hosts(&self) -> Result<(), DatabaseError> {
        self.run_batch(&format!("NOTIFY {HOST_CHANNEL}"), "notify the hosts")
    }

    /// Runs statements without parameters; returns the rows of all of them as text.
    pub(crate) fn simple_query(
        &self,
        sql: &str,
    ) -> Result<Vec<Vec<Option<String>>>, PostgresError> {
        if self.is_broken.get() {
            return Err(PostgresError::NoReply);
        }
        let messages = self.wait(self.client.simple_query(sql))?;
        let rows = messages.into_iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => {
                Some((0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect())
            }
            _ => None,
        });
        Ok(rows.collect())
    }

    pub(crate) fn run_batch(&self, sql: &str, attempt: &'static str) -> Result<(), DatabaseError> {
        self.simple_query(sql).map(drop).map_err(|source| failed(attempt, source))
    }

    /// Returns a statement that the server has planned before.
    fn prepared(&self, sql: &'static str) -> Result<Arc<PreparedStatement>, PostgresError> {
        if let Some(known) = self.statements.borrow().get(sql) {
            return Ok(Arc::clone(known));
        }
        let translated = translate(sql);
        let statement = self.wait(self.client.prepare(&translated.sql))?;
        let prepared = Arc::new(PreparedStatement { statement, parameters: translated.parameters });
        self.statements.borrow_mut().insert(sql, Arc::clone(&prepared));
        Ok(prepared)
    }

    /// Calls `visit` with each row until it returns false or fails.
    pub(crate) fn visit<E: From<DatabaseError>>(
        &self,
        sql: &'static str,
        values: &[NamedValue<'_>],
        attempt: &'static str,
        mut visit: impl FnMut(&tokio_postgres::Row) -> Result<bool, E>,
    ) -> Result<(), E> {
        let fail = |source| failed(attempt, source);
        let prepared = self.prepared(sql).map_err(fail)?;
        let bound = bind(&prepared.parameters, values);
        self.visit_rows(&prepared.statement, &bound, attempt, &mut visit)
    }

    /// Calls `visit` with each row of a statement that is used once.
    pub(crate) fn visit_once<E: From<DatabaseError>>(
        &self,
        sql: &str,
        attempt: &'static str,
        mut visit: impl FnMut(&tokio_postgres::Row) -> Result<bool, E>,
    ) -> Result<(), E> {
        let statement = self.wait(self.client.prepare(sql)).map_err(|it| failed(attempt, it))?;
        self.visit_rows(&statement, &[], attempt, &mut visit)
    }

    fn visit_rows<E: From<DatabaseError>>(
        &self,
        statement: &Statement,
        bound: &[BoundValue],
        attempt: &'static str,
        visit: &mut dyn FnMut(&tokio_postgres::Row) -> Result<bool, E>,
    ) -> Result<(), E> {
        let fail = |source| failed(attempt, source);
        let rows = self.wait(self.client.query_raw(statement, bound)).map_err(fail)?;
        let mut rows = std::pin::pin!(rows);
        loop {
            let next = async { rows.next().await.transpose() };
            let Some(row) = self.wait(next).map_err(fail)? else { return Ok(()) };
            if !visit(&row)? {
                return Ok(());
            }
        }
    }

    pub(crate) fn execute(
        &self,
        sql: &'static str,
        values: &[NamedValue<'_>],
        attempt: &'static str,
    ) -> Result<usize, DatabaseError> {
        let run = || {
            let prepared = self.prepared(sql)?;
            let bound = bind(&prepared.parameters, values);
            self.wait(self.client.execute_raw(&prepared.statement, &bound))
        };
        let count = run().map_err(|source| failed(attempt, source))?;
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// Returns the types of a statement's columns.
    #[cfg(test)]
    pub(crate) fn column_types(&self, sql: &'static str) -> Result<Vec<String>, PostgresError> {
        let prepared = self.prepared(sql)?;
        let columns = prepared.statement.columns().iter();
        Ok(columns.map(|column| column.type_().name().to_owned()).collect())
    }

    /// Begins to copy rows into a table.
    pub(crate) fn begin_copy(&self, copy: &str) -> Result<RowCopy<'_>, DatabaseError> {
        let sink =
            self.wait(self.client.copy_in(copy)).map_err(|it| failed(RowCopy::ATTEMPT, it))?;
        Ok(RowCopy { conn: self, sink: Box::pin(sink) })
    }
}

/// A `COPY` that is under way. Dropping it unfinished undoes it.
pub(crate) struct RowCopy<'c> {
    conn: &'c PostgresConnection,
    sink: Pin<Box<CopyInSink<Bytes>>>,
}

impl RowCopy<'_> {
    const ATTEMPT: &'static str = "copy rows";

    /// Sends rows in the text format of `COPY`.
    pub(crate) fn send(&mut self, rows: Vec<u8>) -> Result<(), DatabaseError> {
        let sent = self.conn.wait(self.sink.send(Bytes::from(rows)));
        sent.map_err(|it| failed(RowCopy::ATTEMPT, it))
    }

    pub(crate) fn finish(mut self) -> Result<(), DatabaseError> {
        let done = self.conn.wait(self.sink.as_mut().finish());
        done.map(drop).map_err(|it| failed(RowCopy::ATTEMPT, it))
    }
}

fn client_config(
    url: &StoreUrl,
    password: Option<&str>,
    access: PostgresAccess,
    session: &str,
) -> tokio_postgres::Config {
    let mut config = tokio_postgres::Config::new();
    config.user(&url.user).dbname(&url.database).port(url.port);
    match &url.host {
        StoreHost::Name(name) => config.host(name),
        StoreHost::SocketFolder(path) => config.host_path(path.as_std_path()),
    };
    if let Some(password) = password {
        config.password(password);
    }
    config.ssl_mode(match url.host.needs_tls() {
        true => tokio_postgres::config::SslMode::Require,
        false => tokio_postgres::config::SslMode::Disable,
    });
    config.connect_timeout(CONNECT_TIMEOUT).tcp_user_timeout(TCP_SILENCE_MAX);
    config.keepalives_idle(TCP_SILENCE_MAX).application_name("heeler");
    let read_only = if access == PostgresAccess::Read { "on" } else { "off" };
    let idle_ms = IDLE_TRANSACTION_MAX.as_millis();
    // A commit is acknowledged only when it is on disk, whatever the server's default is.
    config.options(format!(
        "-c {SESSION_SETTING}={session} -c default_transaction_read_only={read_only} \
         -c synchronous_commit=on -c client_min_messages=error -c standard_conforming_strings=on \
         -c idle_in_transaction_session_timeout={idle_ms}"
    ));
    config
}

fn open<T>(
    config: &tokio_postgres::Config,
    tls: T,
    hint: Arc<HintCallback>,
) -> Result<Client, PostgresError>
where
    T: tokio_postgres::tls::MakeTlsConnect<tokio_postgres::Socket> + Send + 'static,
    T::Stream: Send + 'static,
    T::TlsConnect: Send,
    <T::TlsConnect as tokio_postgres::tls::TlsConnect<tokio_postgres::Socket>>::Future: Send,
{
    let config = config.clone();
    let (reply, answer) = std::sync::mpsc::sync_channel(1);
    spawn(async move {
        let limit = tokio::time::timeout(2 * CONNECT_TIMEOUT, config.connect(tls));
        match limit.await {
            Ok(Ok((client, mut connection))) => {
                // The send fails only if the caller's thread has panicked.
                drop(reply.send(Ok(client)));
                let give_hint = || hint.get().into_iter().for_each(|hint| hint());
                // Ends with the connection. Its statements get the error.
                while let Some(Ok(message)) =
                    std::future::poll_fn(|context| connection.poll_message(context)).await
                {
                    if matches!(message, AsyncMessage::Notification(_)) {
                        give_hint();
                    }
                }
                give_hint();
            }
            Ok(Err(error)) => drop(reply.send(Err(PostgresError::Client(error)))),
            Err(_) => drop(reply.send(Err(PostgresError::NoReply))),
        }
    })?;
    answer.recv().unwrap_or(Err(PostgresError::NoReply))
}

/// Orders the values as the translated statement needs them.
fn bind(parameters: &[StatementParameter], values: &[NamedValue<'_>]) -> Vec<BoundValue> {
    let find = |parameter: &StatementParameter| match parameter {
        StatementParameter::Position(at) => values.get(*at).map(|(_, value)| value.clone()),
        StatementParameter::Name(name) => {
            let named = values.iter().find(|(known, _)| *known == Some(name.as_str()));
            named.map(|(_, value)| value.clone())
        }
    };
    // A missing value is NULL, as in SQLite.
    parameters.iter().map(|parameter| BoundValue(find(parameter).unwrap_or(Value::Null))).collect()
}
