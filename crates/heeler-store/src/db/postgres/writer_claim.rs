//! The right to write to a store on PostgreSQL: one row, which every commit of the writer changes.
//!
//! The row has a term. A process that becomes the writer raises it, and so does every new connection of
//! the same process. A commit succeeds only under the present term, and counts itself in the row. So
//! three questions have exact answers: a writer that was replaced cannot commit; a commit whose reply
//! was lost has happened if, and only if, the number of commits shows it; and a second process cannot
//! take over while the lease of the first one is renewed. Start at [`WriterClaim`].

use std::time::Duration;

use tokio_postgres::error::{DbError, Severity, SqlState};

use super::{HOST_CHANNEL, PostgresConnection};
use crate::db::database_error::{DatabaseError, failed};
use crate::db::postgres_error::PostgresError;

/// Time for which a writer keeps its right without a sign of life.
pub(crate) const LEASE: Duration = Duration::from_secs(10);

/// Interval at which an idle writer renews its lease.
pub(crate) const LEASE_RENEWAL: Duration = Duration::from_secs(3);

/// The same of the leader of several hosts: a standby takes over soon after its end.
pub(crate) const HOST_LEASE: Duration = Duration::from_secs(3);

/// Interval at which the leader of several hosts renews its lease.
pub(crate) const HOST_LEASE_RENEWAL: Duration = Duration::from_secs(1);

/// Not part of the schema of records: it is neither copied nor restored.
const CREATE: &str = "CREATE TABLE IF NOT EXISTS store_writer (\
    one BIGINT NOT NULL PRIMARY KEY CHECK (one = 1), fleet TEXT NOT NULL, \
    term BIGINT NOT NULL, commits BIGINT NOT NULL, instance TEXT, holder TEXT, \
    lease_until TIMESTAMPTZ, moved_to TEXT)";

/// A process that wants to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WriterIdentity {
    /// Identifies the fleet; the state directory has it too.
    pub(crate) fleet: String,
    /// Identifies the process.
    pub(crate) instance: String,
    /// Machine and state directory. The lock of that directory excludes a second process.
    pub(crate) holder: String,
    /// Database file of that directory, as [`PostgresConnection::mark_moved`] notes it.
    pub(crate) file: String,
    /// Time for which it keeps its right without a sign of life.
    pub(crate) lease: Duration,
}

impl WriterIdentity {
    /// Returns the interval at which an idle writer renews its lease.
    pub(crate) fn renewal(&self) -> Duration {
        if self.lease == HOST_LEASE { HOST_LEASE_RENEWAL } else { LEASE_RENEWAL }
    }
}

/// Purpose of a process that wants to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClaimPurpose {
    /// The records are in the database.
    Write,
    /// The database is filled with the records of a file. It is marked as moved meanwhile, so no other
    /// process becomes its writer before [`PostgresConnection::end_move`].
    Fill,
}

/// The right to write, as one connection has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WriterClaim {
    pub(crate) term: i64,
    /// Number of commits before the present transaction.
    pub(crate) commits: i64,
    /// Length of the lease.
    pub(crate) lease: Duration,
}

/// Reason that a process cannot become the writer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ClaimRefusal {
    /// The database belongs to another fleet.
    OtherFleet { fleet: String, holder: String },
    /// Another process is the writer.
    Held { holder: String },
    /// The records were moved away.
    Moved { to: String },
}

impl std::fmt::Display for ClaimRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ClaimRefusal::OtherFleet { fleet, holder } => write!(
                f,
                "it holds the records of another fleet ({fleet}, last written by {holder}); name another \
                 database"
            ),
            ClaimRefusal::Held { holder } => {
                write!(f, "{holder} is its writer; stop that daemon first")
            }
            ClaimRefusal::Moved { to } => {
                write!(f, "its records were moved to {to}; use those, or another database")
            }
        }
    }
}

/// Quotes text for a statement without parameters.
pub(crate) fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\0', "").replace('\'', "''"))
}

impl PostgresConnection {
    /// Creates the row of the writer. The caller is in a transaction.
    pub(crate) fn create_writer_row(&self, fleet: &str) -> Result<(), PostgresError> {
        let fleet = quote(fleet);
        self.simple_query(&format!(
            "{CREATE}; INSERT INTO store_writer (one, fleet, term, commits) VALUES (1, {fleet}, 0, 0) \
             ON CONFLICT (one) DO NOTHING"
        ))
        .map(drop)
    }

    /// Returns the fleet that the database belongs to; `None` for an empty database.
    pub(crate) fn owner(&self) -> Result<Option<String>, PostgresError> {
        let is_there = self.simple_query("SELECT to_regclass('store_writer')")?;
        if is_there.first().and_then(|row| row.first()).cloned().flatten().is_none() {
            return Ok(None);
        }
        let rows = self.simple_query("SELECT fleet FROM store_writer")?;
        Ok(rows.into_iter().next().and_then(|row| row.into_iter().next()).flatten())
    }

    /// Makes a process the writer, if it may be.
    pub(crate) fn claim(
        &self,
        identity: &WriterIdentity,
        purpose: ClaimPurpose,
    ) -> Result<Result<(), ClaimRefusal>, PostgresError> {
        let file = quote(&identity.file);
        let (mark, permission) = match purpose {
            // The state directory says that the records are here. A mark that names its own file is
            // left by a move that was interrupted.
            ClaimPurpose::Write => {
                ("NULL".to_owned(), format!("(moved_to IS NULL OR moved_to = {file})"))
            }
            ClaimPurpose::Fill => (file, "TRUE".to_owned()),
        };
        let WriterIdentity { fleet, instance, holder, lease, .. } = identity;
        let (fleet_text, holder_text) = (quote(fleet), quote(holder));
        // The process that had the lock of this directory before has ended: the caller has it now.
        let condition = format!(
            "fleet = {fleet_text} AND {permission} AND (instance IS NULL \
             OR holder = {holder_text} OR lease_until < clock_timestamp())"
        );
        let set =
            format!("moved_to = {mark}, instance = {}, holder = {holder_text}", quote(instance));
        if self.take(&set, &condition, *lease)? {
            return Ok(Ok(()));
        }
        let rows = self.simple_query("SELECT fleet, holder, moved_to FROM store_writer")?;
        let row = rows.into_iter().next().unwrap_or_default();
        let fact = |at: usize| row.get(at).cloned().flatten();
        let holder = fact(1).unwrap_or_else(|| "no process".to_owned());
        Ok(Err(match (fact(0), fact(2)) {
            (Some(found), _) if found != *fleet => {
                ClaimRefusal::OtherFleet { fleet: found, holder }
            }
            (_, Some(to)) if purpose == ClaimPurpose::Write && to != identity.file => {
                ClaimRefusal::Moved { to }
            }
            _ => ClaimRefusal::Held { holder },
        }))
    }

    /// Continues as the writer on a new connection. Fails if another process has taken over, and if the
    /// database has fewer commits than `known_commits`: then the memory of this process is ahead of its
    /// records.
    pub(crate) fn reclaim(
        &self,
        identity: &WriterIdentity,
        known_commits: i64,
    ) -> Result<(), PostgresError> {
        let instance = quote(&identity.instance);
        let condition = format!("instance = {instance} AND commits >= {known_commits}");
        if self.take("holder = holder", &condition, identity.lease)? {
            return Ok(());
        }
        let has_lost_commits = format!(
            "SELECT 1 FROM store_writer WHERE instance = {instance} AND commits < {known_commits}"
        );
        match self.simple_query(&has_lost_commits)?.is_empty() {
            true => Err(PostgresError::Fenced("restart this daemon to continue".to_owned())),
            false => Err(PostgresError::CommitsLost),
        }
    }

    /// Raises the term. The change waits for a commit of the term before, which either precedes it or
    /// fails.
    fn take(&self, set: &str, condition: &str, lease: Duration) -> Result<bool, PostgresError> {
        let seconds = lease.as_secs();
        let rows = self.simple_query(&format!(
            "UPDATE store_writer SET term = term + 1, {set}, \
             lease_until = clock_timestamp() + interval '{seconds} seconds' \
             WHERE one = 1 AND {condition} RETURNING term, commits"
        ))?;
        let Some(row) = rows.into_iter().next() else { return Ok(false) };
        let number = |at: usize| row.get(at).cloned().flatten().and_then(|it| it.parse().ok());
        let (Some(term), Some(commits)) = (number(0), number(1)) else {
            return Err(PostgresError::Unusable("the row of the writer is damaged".to_owned()));
        };
        *self.claim.borrow_mut() = Some(WriterClaim { term, commits, lease });
        Ok(true)
    }

    /// Returns the number of commits that this connection knows of.
    pub(crate) fn known_commits(&self) -> Option<i64> {
        self.claim.borrow().as_ref().map(|claim| claim.commits)
    }

    /// Commits. With a claim, the same message checks the term and counts the commit.
    pub(crate) fn commit(&self) -> Result<(), DatabaseError> {
        let fail = |source| failed("commit", source);
        let Some(claim) = self.claim.borrow().clone() else {
            return self.run_batch("COMMIT", "commit");
        };
        // The division fails if no row has this term. The server does not read on after an error, so
        // the transaction is not committed then.
        let (term, seconds) = (claim.term, claim.lease.as_secs());
        let done = self.simple_query(&format!(
            "WITH fence AS (UPDATE store_writer SET commits = commits + 1, \
             lease_until = clock_timestamp() + interval '{seconds} seconds' \
             WHERE one = 1 AND term = {term} RETURNING 1) SELECT 1 / COUNT(*) FROM fence; COMMIT"
        ));
        match done {
            Ok(_) => {
                *self.claim.borrow_mut() =
                    Some(WriterClaim { commits: claim.commits + 1, ..claim });
                Ok(())
            }
            Err(error) if is_fence(&error) => {
                let why = "the change was not saved".to_owned();
                Err(fail(PostgresError::Fenced(why)))
            }
            // The server has answered and continues, so it has not committed.
            Err(error) if is_plain_error(&error) => Err(fail(error)),
            // The server may have committed, and its reply was lost.
            Err(_) => Err(fail(PostgresError::OutcomeUnknown)),
        }
    }

    /// Renews the lease of an idle writer. Returns false if another process has taken over.
    pub(crate) fn renew_lease(&self) -> Result<bool, PostgresError> {
        let Some(claim) = self.claim.borrow().clone() else { return Ok(true) };
        let (term, seconds) = (claim.term, claim.lease.as_secs());
        let rows = self.simple_query(&format!(
            "UPDATE store_writer SET lease_until = clock_timestamp() + interval '{seconds} seconds' \
             WHERE one = 1 AND term = {term} RETURNING 1"
        ))?;
        Ok(!rows.is_empty())
    }

    /// Gives the right to write up, so that the next process need not wait.
    pub(crate) fn release_claim(&self) {
        let Some(claim) = self.claim.borrow_mut().take() else { return };
        let term = claim.term;
        // Without an answer the lease expires by itself.
        let released = self.simple_query(&format!(
            "UPDATE store_writer SET instance = NULL, lease_until = NULL WHERE term = {term}; \
             NOTIFY {HOST_CHANNEL}"
        ));
        if let Err(error) = released {
            tracing::warn!(%error, "cannot release the lease of the database");
        }
    }

    /// Ends a move to this database: its records count from now on.
    pub(crate) fn end_move(&self) {
        let Some(claim) = self.claim.borrow_mut().take() else { return };
        let term = claim.term;
        let ended = self.simple_query(&format!(
            "UPDATE store_writer SET moved_to = NULL, instance = NULL, lease_until = NULL \
             WHERE term = {term}"
        ));
        if let Err(error) = ended {
            // The next daemon of this state directory removes the mark.
            tracing::warn!(%error, "cannot mark the end of the move");
        }
    }

    /// Raises the term, so that no commit of the present writer succeeds any more. The caller is in a
    /// transaction.
    pub(crate) fn fence_writer(&self) -> Result<(), PostgresError> {
        self.simple_query("UPDATE store_writer SET term = term + 1").map(drop)
    }

    /// Records that the records were moved away, so that no daemon writes here by mistake.
    pub(crate) fn mark_moved(&self, to: &str) -> Result<(), PostgresError> {
        let to = quote(to);
        self.simple_query(&format!("UPDATE store_writer SET term = term + 1, moved_to = {to}"))
            .map(drop)
    }
}

/// Returns true if the server refused a statement and keeps the connection.
fn is_plain_error(error: &PostgresError) -> bool {
    let PostgresError::Client(error) = error else { return false };
    let severity = error.as_db_error().and_then(DbError::parsed_severity);
    severity == Some(Severity::Error)
}

fn is_fence(error: &PostgresError) -> bool {
    matches!(error, PostgresError::Client(error)
        if error.code() == Some(&SqlState::DIVISION_BY_ZERO))
}
