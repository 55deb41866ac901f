//! Money in micro-dollars: reservations for runs, and spending by day, agent and model.
//!
//! Totals are computed from these rows, never from jobs: the number of rows grows only with the
//! days. Each run also has its own amount, so that removed rows are noticed
//! ([`StateDatabase::spend_accounts`]).

use std::collections::BTreeMap;

use heeler_model::RunId;
use heeler_model::fleet::ReservationRecord;
use jiff::civil::Date;
use rusqlite::params;

use super::connection::{DatabaseConnection, SqlRow};
use super::runs;
use super::{ColumnReader, DatabaseError, StateDatabase, execute, query_all, query_first, sql};

sql! {
    RESERVATIONS = "SELECT run_id, agent, day, micros FROM reservations ORDER BY run_id";
    RESERVATION = "SELECT run_id, agent, day, micros FROM reservations WHERE run_id = ?1";
    RESERVE = "INSERT INTO reservations (run_id, agent, day, micros) VALUES (?1, ?2, ?3, ?4) \
        ON CONFLICT(run_id) DO UPDATE SET agent = excluded.agent, day = excluded.day, \
        micros = excluded.micros";
    RELEASE = "DELETE FROM reservations WHERE run_id = ?1";
    // For `heeler doctor`.
    // A run that is committed has reported its cost, so its reservation is void.
    UNUSED = "SELECT run_id FROM reservations LEFT JOIN runs ON runs.id = reservations.run_id \
        WHERE runs.id IS NULL OR runs.committed = 1 ORDER BY run_id";
    SPENT_BY_AGENT = "SELECT agent, CAST(SUM(micros) AS BIGINT) FROM spending WHERE day = ?1 \
        GROUP BY agent ORDER BY agent";
    SPENT_IN_ALL = "SELECT agent, CAST(SUM(micros) AS BIGINT) FROM spending GROUP BY agent ORDER BY agent";
    SPENDING = "SELECT agent, day, model, micros FROM spending WHERE day >= ?1 \
        ORDER BY day, agent, model";
    // Added in the database, because several runs may report for the same day.
    SPEND = "INSERT INTO spending (day, agent, model, micros) VALUES (?1, ?2, ?3, ?4) \
        ON CONFLICT(day, agent, model) DO UPDATE SET micros = spending.micros + excluded.micros";
}

/// Amount that an agent spent on a model in a day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DailySpendRecord {
    pub day: Date,
    pub agent: String,
    pub model: String,
    pub micros: i64,
}

/// Spending of an agent by both records: the daily totals, and the amounts of its runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AgentSpendAccount {
    pub agent: String,
    /// Spent on the day of the query, by the larger record.
    pub today: i64,
    /// Spent since the beginning, by the larger record.
    pub total: i64,
    /// Part of `total` that the daily totals lack. Only a change from outside removes it.
    pub missing: i64,
}

impl StateDatabase {
    /// Returns the spending of each agent, of which `today` is part. Reads an index entry of every
    /// run that cost money, so it is for the start of a daemon and for `heeler doctor`.
    pub fn spend_accounts(&self, today: Date) -> Result<Vec<AgentSpendAccount>, DatabaseError> {
        let mut by_day: BTreeMap<(String, Option<Date>), (i64, i64)> = BTreeMap::new();
        for row in self.daily_spend_since(None)? {
            by_day.entry((row.agent, Some(row.day))).or_default().0 += row.micros;
        }
        for row in runs::spent_by_day(&self.conn)? {
            by_day.entry((row.agent, row.day)).or_default().1 += row.micros;
        }
        let mut accounts: BTreeMap<String, (AgentSpendAccount, i64, i64)> = BTreeMap::new();
        for ((agent, day), (recorded, of_runs)) in by_day {
            let (account, recorded_total, runs_total) = accounts.entry(agent).or_default();
            if day == Some(today) {
                account.today = recorded.max(of_runs);
            }
            *recorded_total += recorded;
            *runs_total += of_runs;
            // The day of an earlier release's run is unknown, so it only counts below.
            account.total += if day.is_some() { recorded.max(of_runs) } else { 0 };
        }
        let accounts = accounts.into_iter().map(|(agent, (account, recorded, of_runs))| {
            let total = account.total.max(of_runs);
            AgentSpendAccount { agent, total, missing: total - recorded, ..account }
        });
        Ok(accounts.collect())
    }

    pub fn reservations(&self) -> Result<Vec<ReservationRecord>, DatabaseError> {
        query_all(&self.conn, RESERVATIONS, [], "list reservations", read_reservation)
    }

    /// Returns the amount that each agent spent in a day.
    pub fn daily_spend_by_agent(&self, day: Date) -> Result<Vec<(String, i64)>, DatabaseError> {
        query_all(&self.conn, SPENT_BY_AGENT, [day.to_string()], "sum up a day", read_sum)
    }

    /// Returns the total amount that each agent has spent.
    pub fn total_spend_by_agent(&self) -> Result<Vec<(String, i64)>, DatabaseError> {
        query_all(&self.conn, SPENT_IN_ALL, [], "sum up all spending", read_sum)
    }

    /// Lists the spending from a day on, by day, agent and model.
    pub fn daily_spend_since(
        &self,
        since: Option<Date>,
    ) -> Result<Vec<DailySpendRecord>, DatabaseError> {
        // The empty text sorts before every day.
        let since = since.map_or_else(String::new, |day| day.to_string());
        query_all(&self.conn, SPENDING, [since], "list spending", |row| {
            let mut columns = ColumnReader::new("spending", row);
            Ok(DailySpendRecord {
                agent: columns.get()?,
                day: columns.parsed()?,
                model: columns.get()?,
                micros: columns.get()?,
            })
        })
    }
}

fn read_reservation(row: &SqlRow<'_>) -> Result<ReservationRecord, DatabaseError> {
    let mut columns = ColumnReader::new("reservations", row);
    Ok(ReservationRecord {
        run: columns.parsed()?,
        agent: columns.get()?,
        day: columns.parsed()?,
        micros: columns.get()?,
    })
}

fn read_sum(row: &SqlRow<'_>) -> Result<(String, i64), DatabaseError> {
    let mut columns = ColumnReader::new("spending", row);
    Ok((columns.get()?, columns.get()?))
}

pub(crate) fn reserve(
    conn: &DatabaseConnection,
    reservation: &ReservationRecord,
) -> Result<(), DatabaseError> {
    let ReservationRecord { run, agent, day, micros } = reservation;
    let params = params![run.to_string(), agent, day.to_string(), micros];
    execute(conn, RESERVE, params, "reserve money").map(|_| ())
}

/// Removes a reservation and returns it.
pub(crate) fn release(
    conn: &DatabaseConnection,
    run: RunId,
) -> Result<Option<ReservationRecord>, DatabaseError> {
    let id = run.to_string();
    let found = query_first(conn, RESERVATION, [&id], "read a reservation", read_reservation)?;
    execute(conn, RELEASE, [&id], "release a reservation")?;
    Ok(found)
}

/// Lists the runs that have ended or do not exist, and still have a reservation.
pub(crate) fn stale_reservations(conn: &DatabaseConnection) -> Result<Vec<RunId>, DatabaseError> {
    query_all(conn, UNUSED, [], "compare reservations with runs", |row| {
        ColumnReader::new("reservations", row).parsed()
    })
}

pub(crate) fn spend(
    conn: &DatabaseConnection,
    day: Date,
    agent: &str,
    model: &str,
    micros: i64,
) -> Result<(), DatabaseError> {
    let params = params![day.to_string(), agent, model, micros];
    execute(conn, SPEND, params, "record spending").map(|_| ())
}
