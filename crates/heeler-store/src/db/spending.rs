//! Money in micro-dollars: reservations for runs, and spending by day, agent and model.
//!
//! Totals are computed from these rows, never from jobs: the number of rows grows only with the
//! days.

use heeler_model::RunId;
use heeler_model::fleet::ReservationRecord;
use jiff::civil::Date;
use rusqlite::{Connection, Row, params};

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
    SPENT_BY_AGENT = "SELECT agent, SUM(micros) FROM spending WHERE day = ?1 \
        GROUP BY agent ORDER BY agent";
    SPENT_IN_ALL = "SELECT agent, SUM(micros) FROM spending GROUP BY agent ORDER BY agent";
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

impl StateDatabase {
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

fn read_reservation(row: &Row<'_>) -> Result<ReservationRecord, DatabaseError> {
    let mut columns = ColumnReader::new("reservations", row);
    Ok(ReservationRecord {
        run: columns.parsed()?,
        agent: columns.get()?,
        day: columns.parsed()?,
        micros: columns.get()?,
    })
}

fn read_sum(row: &Row<'_>) -> Result<(String, i64), DatabaseError> {
    let mut columns = ColumnReader::new("spending", row);
    Ok((columns.get()?, columns.get()?))
}

pub(crate) fn reserve(
    conn: &Connection,
    reservation: &ReservationRecord,
) -> Result<(), DatabaseError> {
    let ReservationRecord { run, agent, day, micros } = reservation;
    let params = params![run.to_string(), agent, day.to_string(), micros];
    execute(conn, RESERVE, params, "reserve money").map(|_| ())
}

/// Removes a reservation and returns it.
pub(crate) fn release(
    conn: &Connection,
    run: RunId,
) -> Result<Option<ReservationRecord>, DatabaseError> {
    let id = run.to_string();
    let found = query_first(conn, RESERVATION, [&id], "read a reservation", read_reservation)?;
    execute(conn, RELEASE, [&id], "release a reservation")?;
    Ok(found)
}

/// Lists the runs that have ended or do not exist, and still have a reservation.
pub(crate) fn stale_reservations(conn: &Connection) -> Result<Vec<RunId>, DatabaseError> {
    query_all(conn, UNUSED, [], "compare reservations with runs", |row| {
        ColumnReader::new("reservations", row).parsed()
    })
}

pub(crate) fn spend(
    conn: &Connection,
    day: Date,
    agent: &str,
    model: &str,
    micros: i64,
) -> Result<(), DatabaseError> {
    let params = params![day.to_string(), agent, model, micros];
    execute(conn, SPEND, params, "record spending").map(|_| ())
}
