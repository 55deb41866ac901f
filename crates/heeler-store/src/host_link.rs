//! The link of a host to its fleet: its sign of life, the lead, and commands and reports for the
//! leader.
//!
//! Hosts share the database and nothing else. A command to any host becomes a row, which the leader
//! executes and answers. A report is the end of a run that another host executed. These tables are not
//! part of the records: they are neither copied nor restored. Start at [`HostLink::connect`].

use std::time::Duration;

use heeler_model::RunId;
use jiff::Timestamp;

use crate::db::database_error::failed;
use crate::db::postgres::{
    ClaimPurpose, ClaimRefusal, HOST_CHANNEL, HOST_LEASE, LEAD_CHANNEL, PostgresAccess,
    PostgresConnection, WriterIdentity, quote,
};
use crate::db::postgres_error::PostgresError;
use crate::db::{DatabaseError, DatabaseOpenError, StateDatabase};
use crate::file_archive_table::CREATE_ARCHIVE;
use crate::host_files::{ADD_OPEN_RUNS, CREATE_FILES};
use crate::host_records::{HOST_SILENCE_MAX, HostFacts, HostState, write_labels};
use crate::host_release::{HOST_PROTOCOL, check_release};
use crate::host_row::{flag, number, text};
use crate::host_runs::CREATE_REFUSALS;
use crate::layout::StateDir;
use crate::lead_lease::{LeadLease, boot_time};
use crate::run_message_table::{CREATE_MESSAGES, open_messages_of};
use crate::server_store;
use crate::session_move_table::{CREATE_MOVES, DUE_MOVE, moves_of};
use crate::store_location::HostIdentity;

/// Most bytes of a command or report.
pub const HOST_MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Most commands that the leader takes at once.
pub const HOST_COMMANDS_AT_ONCE: usize = 64;

/// Most reports that the leader reads at once.
const REPORTS_AT_ONCE: usize = 16;

/// Time after which a command is not executed any more if no leader took it.
const COMMAND_AGE_MAX_SECONDS: u32 = 120;

/// Time for which an answer is kept for a host that does not fetch it.
const ANSWER_AGE_MAX_SECONDS: u32 = 24 * 3600;

/// Reason for which a result is refused.
const STALE_RESULT: &str = "the fleet had given the run up before its result arrived";

/// Number of the server's lock under which the tables are created.
const CREATE_LOCK: i64 = 0x6865_656c_6873;

const CREATE: &str = "CREATE TABLE IF NOT EXISTS hosts (\
    name TEXT NOT NULL PRIMARY KEY, id TEXT NOT NULL, holder TEXT NOT NULL, machine TEXT NOT NULL, \
    version TEXT NOT NULL, pid BIGINT NOT NULL, url TEXT, \
    state TEXT NOT NULL, started_at TIMESTAMPTZ NOT NULL, seen_at TIMESTAMPTZ NOT NULL); \
    CREATE TABLE IF NOT EXISTS host_commands (\
    id TEXT NOT NULL PRIMARY KEY, host TEXT NOT NULL, body TEXT NOT NULL, \
    created_at TIMESTAMPTZ NOT NULL, taken_by TEXT, reply TEXT, answered_at TIMESTAMPTZ); \
    CREATE INDEX IF NOT EXISTS idx_host_commands_open ON host_commands (created_at, id) \
    WHERE reply IS NULL; \
    CREATE TABLE IF NOT EXISTS host_reports (\
    run TEXT NOT NULL, kind TEXT NOT NULL, host TEXT NOT NULL, body TEXT NOT NULL, \
    number BIGINT NOT NULL, created_at TIMESTAMPTZ NOT NULL, PRIMARY KEY (run, kind)); \
    ALTER TABLE host_reports ADD COLUMN IF NOT EXISTS term BIGINT NOT NULL DEFAULT 0; \
    ALTER TABLE hosts ADD COLUMN IF NOT EXISTS parts_read BIGINT NOT NULL DEFAULT 0; \
    ALTER TABLE hosts ADD COLUMN IF NOT EXISTS labels TEXT; \
    ALTER TABLE hosts ADD COLUMN IF NOT EXISTS max_concurrent BIGINT; \
    ALTER TABLE hosts ADD COLUMN IF NOT EXISTS clock_ahead_ms BIGINT; \
    ALTER TABLE hosts ADD COLUMN IF NOT EXISTS drained_by TEXT; \
    ALTER TABLE hosts ADD COLUMN IF NOT EXISTS protocol BIGINT; \
    ALTER TABLE hosts ADD COLUMN IF NOT EXISTS lease_key TEXT";

/// Tells whether the newest column and tables exist, and whether there are records.
const IS_CREATED: &str = "SELECT EXISTS (SELECT 1 FROM pg_attribute WHERE \
    attrelid = to_regclass('hosts') AND attname = 'lease_key' AND NOT attisdropped) \
    AND to_regclass('unshipped_runs') IS NOT NULL \
    AND to_regclass('run_messages') IS NOT NULL \
    AND to_regclass('session_move_parts') IS NOT NULL \
    AND to_regclass('archive_policy') IS NOT NULL, to_regclass('runs') IS NOT NULL";

/// State of the fleet at a sign of life.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FleetPulse {
    /// Grows with each change of the writer's connection.
    pub term: i64,
    /// Grows with each commit.
    pub commits: i64,
    /// True if this process has the lead.
    pub is_own: bool,
    /// True if no process has the lead.
    pub is_free: bool,
    /// Time until the lead ends unless it is renewed.
    pub lease_left: Duration,
    /// The host that has the lead.
    pub leader: Option<String>,
    /// Commands that wait for the leader.
    pub open_commands: i64,
    /// Reports that wait for the leader.
    pub reports: i64,
    /// Messages that wait for this host.
    pub messages: i64,
    /// Moves of sessions in which this host has something to do.
    pub moves: i64,
    /// Moves of sessions that the leader is to look at.
    pub due_moves: i64,
    /// Target of the records, if they were moved away.
    pub moved_to: Option<String>,
    /// Time since the start of the machine before the sign of life was sent; `None` if the fleet does not have this
    /// host.
    pub contact: Option<Duration>,
}

/// A command that waits for the leader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostCommandRow {
    pub id: String,
    pub host: String,
    pub body: String,
}

/// Progress of a command that this host sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostReplyRow {
    pub id: String,
    /// True if a leader has begun to execute it.
    pub is_taken: bool,
    pub reply: Option<String>,
}

/// A report that waits for the leader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostReportRow {
    pub run: RunId,
    pub kind: String,
    pub host: String,
    pub body: String,
    /// Grows if the host replaces it.
    pub number: i64,
}

/// A connection of a host to the tables that hosts share.
#[derive(Debug)]
pub struct HostLink {
    db: StateDatabase,
    host: HostIdentity,
    holder: String,
    dir: StateDir,
}

impl HostLink {
    /// Connects. The state directory must be that of a host.
    pub fn connect(dir: &StateDir) -> Result<HostLink, DatabaseOpenError> {
        let (Some(location), Some(host)) = (dir.postgres(), dir.host()) else {
            let store = dir.root().to_string();
            let reason = "this state directory is no host".to_owned();
            return Err(DatabaseOpenError::Postgres { store, reason });
        };
        let refused = |error: PostgresError| DatabaseOpenError::Postgres {
            store: location.url.to_string(),
            reason: error.to_string(),
        };
        let db = StateDatabase::connect(location, PostgresAccess::Write)?;
        let link = HostLink {
            db,
            host: host.clone(),
            holder: server_store::holder(dir, location),
            dir: dir.clone(),
        };
        // The first host may be this one.
        server_store::use_first(&link.db, location).map_err(|error| {
            DatabaseOpenError::Postgres {
                store: location.url.to_string(),
                reason: error.to_string(),
            }
        })?;
        let found = link.conn().simple_query(IS_CREATED).map_err(refused)?;
        let found = found.first().map(Vec::as_slice).unwrap_or_default();
        if !flag(found, 0) {
            let runs = if flag(found, 1) { ADD_OPEN_RUNS } else { "" };
            let create = format!(
                "SELECT pg_advisory_xact_lock({CREATE_LOCK}); {CREATE}; {CREATE_FILES}; \
                 {CREATE_REFUSALS}; {CREATE_MESSAGES}; {CREATE_MOVES}; {CREATE_ARCHIVE}; {runs}"
            );
            link.conn().simple_query(&create).map_err(refused)?;
        }
        Ok(link)
    }

    fn conn(&self) -> &PostgresConnection {
        self.db.conn.as_postgres().expect("a host is on a server")
    }

    /// Returns true if the connection is lost.
    pub fn is_closed(&self) -> bool {
        self.db.is_closed()
    }

    pub(crate) fn host_name(&self) -> &str {
        self.host.name.as_str()
    }

    pub(crate) fn host_id(&self) -> &str {
        &self.host.id
    }

    pub(crate) fn listen(
        &self,
        channel: &'static str,
        hint: Box<dyn Fn() + Send + Sync>,
    ) -> Result<(), DatabaseError> {
        self.conn().listen(channel, hint).map_err(|source| failed("listen to the server", source))
    }

    pub(crate) fn query(
        &self,
        attempt: &'static str,
        sql: &str,
    ) -> Result<Vec<Vec<Option<String>>>, DatabaseError> {
        self.conn().simple_query(sql).map_err(|source| failed(attempt, source))
    }

    /// Records this host. Fails if another state directory has its name, and if other hosts have a release
    /// with which this one cannot work.
    pub fn register(&self, facts: &HostFacts, state: HostState) -> Result<(), DatabaseError> {
        check_release(&self.db, self.host_name())
            .map_err(|source| failed("record this host", source))?;
        let or_null = |text: Option<String>| text.unwrap_or_else(|| "NULL".to_owned());
        let url = or_null(facts.url.as_deref().map(quote));
        // Without new ones, those of the start before apply.
        let labels = or_null(facts.labels.as_deref().map(|labels| quote(&write_labels(labels))));
        let limit = or_null(facts.max_concurrent.map(|limit| limit.to_string()));
        let (name, id) = (quote(self.host.name.as_str()), quote(&self.host.id));
        let sql = format!(
            "INSERT INTO hosts (name, id, holder, machine, version, pid, url, state, \
             started_at, seen_at, labels, max_concurrent, protocol) VALUES ({name}, {id}, {}, {}, \
             {}, {}, {url}, '{}', clock_timestamp(), clock_timestamp(), {labels}, {limit}, \
             {HOST_PROTOCOL}) \
             ON CONFLICT (name) DO UPDATE SET \
             labels = COALESCE(excluded.labels, hosts.labels), \
             max_concurrent = COALESCE(excluded.max_concurrent, hosts.max_concurrent), \
             holder = excluded.holder, machine = excluded.machine, version = excluded.version, \
             pid = excluded.pid, url = excluded.url, protocol = excluded.protocol, \
             state = excluded.state, started_at = excluded.started_at, seen_at = excluded.seen_at \
             WHERE hosts.id = excluded.id RETURNING 1",
            quote(&self.holder),
            quote(&server_store::machine()),
            quote(&facts.version),
            facts.pid,
            state.as_str(),
        );
        match self.query("record this host", &sql)?.is_empty() {
            false => Ok(()),
            true => {
                let name = &self.host.name;
                let why = format!(
                    "another state directory is host `{name}` of this fleet; choose another name, \
                     or remove that host: heeler host remove {name}"
                );
                Err(failed("record this host", PostgresError::Unusable(why)))
            }
        }
    }

    /// Removes a host that does not live and has no runs without a result. Returns the reason if it
    /// stays.
    pub fn remove_host(&self, name: &str) -> Result<Result<(), String>, DatabaseError> {
        let found = self.db.hosts()?.into_iter().find(|host| host.name == name);
        let Some(host) = found else { return Ok(Err(format!("there is no host `{name}`"))) };
        if host.is_alive {
            return Ok(Err(format!("host `{name}` is alive; stop it first")));
        }
        if host.runs > 0 {
            let text = format!(
                "{} runs of host `{name}` have no result yet; if it does not return: heeler host lost \
                 {name}",
                host.runs
            );
            return Ok(Err(text));
        }
        let seconds = HOST_SILENCE_MAX.as_secs();
        let sql = format!(
            "WITH removed AS (DELETE FROM hosts WHERE name = {name} AND (state = 'stopped' OR \
             seen_at < clock_timestamp() - interval '{seconds} seconds') RETURNING 1), \
             files AS (DELETE FROM unshipped_runs WHERE host = {name} \
             AND EXISTS (SELECT 1 FROM removed)), \
             faults AS (DELETE FROM archive_faults WHERE host = {name} \
             AND EXISTS (SELECT 1 FROM removed)) SELECT 1 FROM removed",
            name = quote(name)
        );
        match self.query("remove a host", &sql)?.is_empty() {
            true => Ok(Err(format!("host `{name}` is alive; stop it first"))),
            false => Ok(Ok(())),
        }
    }

    /// Calls a function when a host may have sent something to the leader, and at the end of the
    /// connection. The function must not wait.
    pub fn listen_as_leader(
        &self,
        hint: impl Fn() + Send + Sync + 'static,
    ) -> Result<(), DatabaseError> {
        self.listen(LEAD_CHANNEL, Box::new(hint))
    }

    /// Calls a function when the leader may have given a run to a host or the lead away, and at the end of
    /// the connection. The function must not wait.
    pub fn listen_as_standby(
        &self,
        hint: impl Fn() + Send + Sync + 'static,
    ) -> Result<(), DatabaseError> {
        self.listen(HOST_CHANNEL, Box::new(hint))
    }

    /// Gives a sign of life, with the time of this machine. The process with this `instance` also renews
    /// its lead. All is one statement, because idle hosts repeat it without end.
    pub fn beat(
        &self,
        state: HostState,
        lead: Option<(&str, &LeadLease)>,
        now: Timestamp,
    ) -> Result<FleetPulse, DatabaseError> {
        let sent_at = boot_time();
        let (name, id) = (quote(self.host.name.as_str()), quote(&self.host.id));
        let (seconds, messages) = (HOST_LEASE.as_secs(), open_messages_of(self.host_name()));
        let moves = moves_of(self.host_name());
        // The count changes nothing. It makes the server lock the host's row before the writer's row, as
        // a commit that changes a host does.
        let renewal = match lead {
            Some((instance, _)) => format!(
                "UPDATE store_writer SET lease_until = clock_timestamp() + \
                 interval '{seconds} seconds' WHERE one = 1 AND instance = {} \
                 AND (SELECT COUNT(*) FROM seen) >= 0 RETURNING 1 AS one",
                quote(instance)
            ),
            None => "SELECT 1 AS one WHERE false".to_owned(),
        };
        let sql = format!(
            "WITH seen AS (UPDATE hosts SET seen_at = clock_timestamp(), state = '{}', \
             clock_ahead_ms = CAST(EXTRACT(EPOCH FROM \
             TIMESTAMPTZ '{now}' - clock_timestamp()) * 1000 AS BIGINT) \
             WHERE name = {name} AND id = {id} RETURNING 1 AS one), renewed AS ({renewal}) \
             SELECT term, commits, EXISTS (SELECT 1 FROM renewed), \
             COALESCE(instance IS NULL OR lease_until < clock_timestamp(), true) \
             AND NOT EXISTS (SELECT 1 FROM renewed), \
             (SELECT name FROM hosts WHERE hosts.holder = store_writer.holder), \
             (SELECT COUNT(*) FROM host_commands WHERE reply IS NULL), \
             (SELECT COUNT(*) FROM host_reports), moved_to, \
             GREATEST(CAST(EXTRACT(EPOCH FROM lease_until - clock_timestamp()) * 1000 AS BIGINT), 0), \
             (SELECT COUNT(*) FROM run_messages WHERE {messages}), \
             EXISTS (SELECT 1 FROM seen), \
             (SELECT COUNT(*) FROM session_moves WHERE {moves}), \
             (SELECT COUNT(*) FROM session_moves WHERE {DUE_MOVE}) FROM store_writer",
            state.as_str()
        );
        let rows = self.query("give a sign of life", &sql)?;
        // A database without the row belongs to no fleet any more.
        let Some(row) = rows.first() else { return Ok(FleetPulse::default()) };
        let pulse = FleetPulse {
            term: number(row, 0),
            commits: number(row, 1),
            is_own: flag(row, 2),
            is_free: flag(row, 3),
            lease_left: Duration::from_millis(number(row, 8).unsigned_abs()),
            leader: text(row, 4).filter(|_| !flag(row, 3)),
            open_commands: number(row, 5),
            reports: number(row, 6),
            messages: number(row, 9),
            moves: number(row, 11),
            due_moves: number(row, 12),
            moved_to: text(row, 7),
            contact: flag(row, 10).then_some(Duration::from_nanos(sent_at)),
        };
        if let Some((_, lease)) = lead {
            match pulse.is_own {
                true => lease.extend(sent_at, HOST_LEASE),
                false => lease.lose(),
            }
        }
        Ok(pulse)
    }

    /// Takes the lead for this host if no process has it. The host's store continues with it.
    pub fn take_lead(&self) -> Result<bool, DatabaseError> {
        let fail = |source| failed("take the lead", source);
        // The records may be those of a later release, which this one cannot read.
        check_release(&self.db, self.host_name()).map_err(fail)?;
        let location = self.dir.postgres().expect("a host is on a server");
        let identity: WriterIdentity = server_store::identity(&self.dir, location);
        match self.conn().claim(&identity, ClaimPurpose::Write).map_err(fail)? {
            Ok(()) => Ok(true),
            Err(ClaimRefusal::Held { .. }) => Ok(false),
            Err(refused) => Err(fail(PostgresError::Unusable(refused.to_string()))),
        }
    }

    /// Sends a command to the leader.
    pub fn send_command(&self, id: &str, body: &str) -> Result<(), DatabaseError> {
        let sql = format!(
            "INSERT INTO host_commands (id, host, body, created_at) \
             VALUES ({}, {}, {}, clock_timestamp()) ON CONFLICT (id) DO NOTHING; \
             NOTIFY {LEAD_CHANNEL}",
            quote(id),
            quote(self.host.name.as_str()),
            quote(body),
        );
        self.query("send a command to the leader", &sql).map(drop)
    }

    /// Returns the progress of commands that this host sent.
    pub fn replies(&self, ids: &[String]) -> Result<Vec<HostReplyRow>, DatabaseError> {
        let ids: Vec<String> = ids.iter().map(|id| quote(id)).collect();
        let sql = format!(
            "SELECT id, taken_by IS NOT NULL, reply FROM host_commands WHERE id IN ({})",
            ids.join(", ")
        );
        let rows = self.query("read the leader's answers", &sql)?;
        let one = |row: &Vec<Option<String>>| HostReplyRow {
            id: text(row, 0).unwrap_or_default(),
            is_taken: flag(row, 1),
            reply: text(row, 2),
        };
        Ok(rows.iter().map(one).collect())
    }

    /// Withdraws a command. Returns false if a leader has begun to execute it.
    pub fn withdraw_command(&self, id: &str) -> Result<bool, DatabaseError> {
        let sql = format!(
            "DELETE FROM host_commands WHERE id = {} AND taken_by IS NULL RETURNING 1",
            quote(id)
        );
        Ok(!self.query("withdraw a command", &sql)?.is_empty())
    }

    /// Removes a command whose answer was received.
    pub fn forget_command(&self, id: &str) -> Result<(), DatabaseError> {
        let sql = format!("DELETE FROM host_commands WHERE id = {}", quote(id));
        self.query("forget a command", &sql).map(drop)
    }

    /// Takes commands for the leader with this instance: new ones, and those that an earlier leader took
    /// and did not answer. Removes what is too old.
    pub fn take_commands(&self, instance: &str) -> Result<Vec<HostCommandRow>, DatabaseError> {
        let own = quote(instance);
        let sql = format!(
            "DELETE FROM host_commands WHERE (reply IS NULL AND taken_by IS NULL AND \
             created_at < clock_timestamp() - interval '{COMMAND_AGE_MAX_SECONDS} seconds') OR \
             (reply IS NOT NULL AND \
             answered_at < clock_timestamp() - interval '{ANSWER_AGE_MAX_SECONDS} seconds'); \
             UPDATE host_commands SET taken_by = {own} WHERE id IN (SELECT id FROM host_commands \
             WHERE reply IS NULL AND taken_by IS DISTINCT FROM {own} \
             ORDER BY created_at, id LIMIT {HOST_COMMANDS_AT_ONCE}) \
             AND EXISTS (SELECT 1 FROM store_writer WHERE instance = {own}) \
             RETURNING id, host, body"
        );
        let rows = self.query("take commands", &sql)?;
        let one = |row: &Vec<Option<String>>| {
            Some(HostCommandRow { id: text(row, 0)?, host: text(row, 1)?, body: text(row, 2)? })
        };
        Ok(rows.iter().filter_map(one).collect())
    }

    /// Answers a command, if this instance still has the lead: otherwise the next leader answers.
    pub fn answer_command(
        &self,
        instance: &str,
        id: &str,
        reply: &str,
    ) -> Result<(), DatabaseError> {
        // The lock lets no other process take over in between.
        let sql = format!(
            "WITH lead AS (SELECT 1 FROM store_writer WHERE instance = {} FOR SHARE) \
             UPDATE host_commands SET reply = {}, answered_at = clock_timestamp() \
             WHERE id = {} AND reply IS NULL AND EXISTS (SELECT 1 FROM lead)",
            quote(instance),
            quote(reply),
            quote(id)
        );
        self.query("answer a command", &sql).map(drop)
    }

    /// Sends a report of a run of this host under its term, or replaces the one before.
    pub fn send_report(
        &self,
        (run, term): (RunId, i64),
        kind: &str,
        body: &str,
    ) -> Result<(), DatabaseError> {
        let sql = format!(
            "INSERT INTO host_reports (run, kind, host, body, number, term, created_at) VALUES \
             ({}, {}, {}, {}, 1, {term}, clock_timestamp()) ON CONFLICT (run, kind) DO UPDATE SET \
             body = excluded.body, number = host_reports.number + 1; NOTIFY {LEAD_CHANNEL}",
            quote(&run.to_string()),
            quote(kind),
            quote(self.host.name.as_str()),
            quote(body),
        );
        self.query("report a run", &sql).map(drop)
    }

    /// Reads reports, oldest first. Those of runs whose result is on record are removed. A result under
    /// an earlier term of its run is refused, and recorded as such.
    pub fn reports(&self) -> Result<Vec<HostReportRow>, DatabaseError> {
        let sql = format!(
            "INSERT INTO refused_results (run, host, reason, refused_at) \
             SELECT host_reports.run, host_reports.host, '{STALE_RESULT}', clock_timestamp() \
             FROM host_reports JOIN runs ON runs.id = host_reports.run \
             WHERE host_reports.kind = 'exit' AND host_reports.term < runs.term \
             ON CONFLICT (run) DO NOTHING; \
             DELETE FROM host_reports WHERE run IN (SELECT id FROM runs WHERE committed = 1) OR \
             run NOT IN (SELECT id FROM runs); \
             SELECT run, kind, host, body, number FROM host_reports ORDER BY created_at, run \
             LIMIT {REPORTS_AT_ONCE}"
        );
        let rows = self.query("read reports", &sql)?;
        let one = |row: &Vec<Option<String>>| {
            Some(HostReportRow {
                run: text(row, 0)?.parse().ok()?,
                kind: text(row, 1)?,
                host: text(row, 2)?,
                body: text(row, 3)?,
                number: number(row, 4),
            })
        };
        Ok(rows.iter().filter_map(one).collect())
    }

    /// Removes a report that was dealt with, unless the host has replaced it.
    pub fn forget_report(&self, report: &HostReportRow) -> Result<(), DatabaseError> {
        let sql = format!(
            "DELETE FROM host_reports WHERE run = {} AND kind = {} AND number = {}",
            quote(&report.run.to_string()),
            quote(&report.kind),
            report.number
        );
        self.query("forget a report", &sql).map(drop)
    }
}
