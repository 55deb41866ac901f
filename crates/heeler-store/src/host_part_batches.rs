//! Ships and reads the parts of many files in one statement.
//!
//! A statement for each part costs more than the part. A batch stores the parts that need no waiting; every
//! other part is sent alone. Start at [`HostLink::send_parts`] and
//! [`HostLink::parts_after`].

use std::collections::BTreeSet;

use crate::db::DatabaseError;
use crate::db::postgres::quote;
use crate::hex::{from_hex, hex};
use crate::host_files::{PART_CHANNEL, PartReceipt, ReceivedPart, SharedPart};
use crate::host_link::HostLink;
use crate::host_row::{flag, number, text};

/// Most parts that a host reads at once.
const PARTS_AT_ONCE: usize = 2048;

/// Most bytes of the parts that a host reads at once. One longer part is read alone.
const BYTES_AT_ONCE: usize = 4 << 20;

impl HostLink {
    /// Ships parts of many files and runs, at most one of each file, in one statement. Returns one receipt
    /// for each, as [`HostLink::send_part`] does. A repeated part has no effect.
    pub fn send_parts(&self, parts: &[SharedPart<'_>]) -> Result<Vec<PartReceipt>, DatabaseError> {
        let stored = match parts {
            // A statement for one part is simpler.
            [] | [_] => BTreeSet::new(),
            parts => self.store_parts(parts)?,
        };
        let mut receipts = vec![PartReceipt::Stored; parts.len()];
        let left: Vec<usize> =
            (0..parts.len()).filter(|at| !stored.contains(parts[*at].path)).collect();
        if let [one] = left.as_slice() {
            receipts[*one] = self.send_part(&parts[*one])?;
            return Ok(receipts);
        }
        let refused: Vec<SharedPart<'_>> = left.iter().map(|at| parts[*at]).collect();
        for (at, state) in left.into_iter().zip(self.part_states(&refused)?) {
            // The run's row was locked, or the file has changed meanwhile. Otherwise its bytes need not travel again.
            receipts[at] = match state.may_take(&parts[at], self.host_name()) {
                true => self.send_part(&parts[at])?,
                false => state.receipt(self.host_name()),
            };
        }
        Ok(receipts)
    }

    /// Stores the parts that need no waiting, and returns the paths of their files.
    ///
    /// A commit that gives runs up locks several of their rows. If this statement waited for one of them while it has
    /// others, both could wait for each other; so it leaves out runs whose rows are locked. Files are locked
    /// before the counter.
    fn store_parts(&self, parts: &[SharedPart<'_>]) -> Result<BTreeSet<String>, DatabaseError> {
        let host = quote(self.host_name());
        let runs: BTreeSet<String> =
            parts.iter().map(|part| quote(&part.run.to_string())).collect();
        let runs = runs.into_iter().collect::<Vec<_>>().join(", ");
        // The server does not know how few rows a set has that the statement itself makes, and compares each with
        // each if it joins two of them. `IS TRUE` keeps it from that: it looks the path up instead.
        let sql = format!(
            "WITH allowed AS (SELECT id, term FROM runs WHERE id IN ({runs}) AND host = {host} \
             FOR SHARE SKIP LOCKED), \
             sent AS (SELECT parts.* FROM {} JOIN allowed \
             ON allowed.id = parts.run AND allowed.term = parts.term), \
             begun AS (INSERT INTO shared_files (path, host, length, changed_at) \
             SELECT path, {host}, finish, clock_timestamp() FROM sent WHERE start = 0 \
             ORDER BY path ON CONFLICT (path) DO NOTHING RETURNING path), \
             continued AS (UPDATE shared_files AS known SET length = finish, \
             changed_at = clock_timestamp() FROM sent WHERE known.path = sent.path \
             AND known.host = {host} AND known.length = sent.start \
             RETURNING known.path, known.taken_at = sent.start AS takes_over), \
             files AS (SELECT path FROM begun UNION ALL SELECT path FROM continued), \
             counted AS (UPDATE file_counter SET last = last + (SELECT COUNT(*) FROM files) \
             WHERE one = 1 AND (SELECT COUNT(*) FROM files) > 0 RETURNING last), \
             stored AS (INSERT INTO file_parts (number, run, term, host, path, start, bytes, is_last, \
             created_at, takes_over) SELECT last - (SELECT COUNT(*) FROM files) + \
             ROW_NUMBER() OVER (ORDER BY at), run, term, {host}, path, start, bytes, is_last, \
             clock_timestamp(), (path IN (SELECT path FROM continued WHERE takes_over)) IS TRUE \
             FROM sent, counted WHERE (path IN (SELECT path FROM files)) IS TRUE \
             ON CONFLICT (path, start) DO NOTHING RETURNING path) \
             SELECT path, pg_notify('{PART_CHANNEL}', '') FROM stored",
            rows_of(parts)
        );
        let rows = self.query("ship files", &sql)?;
        Ok(rows.iter().filter_map(|row| text(row, 0)).collect())
    }

    /// Reads the parts of all hosts after a number, in the order of their commits. Those of this host come
    /// without their bytes.
    pub fn parts_after(&self, last: i64) -> Result<Vec<ReceivedPart>, DatabaseError> {
        let host = quote(self.host_name());
        // The first part is read however long it is.
        let sql = format!(
            "WITH next AS (SELECT number, host, path, start, is_last, takes_over, bytes, \
             CASE WHEN host = {host} THEN 0 ELSE octet_length(bytes) END AS size FROM file_parts \
             WHERE number > {last} ORDER BY number LIMIT {PARTS_AT_ONCE}), \
             summed AS (SELECT next.*, SUM(size) OVER (ORDER BY number) - size AS before FROM next) \
             SELECT number, host, path, start, CASE WHEN host = {host} THEN '' \
             ELSE encode(bytes, 'hex') END, is_last, takes_over FROM summed \
             WHERE before = 0 OR before + size <= {BYTES_AT_ONCE} ORDER BY number"
        );
        let one = |row: &Vec<Option<String>>| {
            Some(ReceivedPart {
                number: number(row, 0),
                host: text(row, 1)?,
                path: text(row, 2)?,
                start: number(row, 3).unsigned_abs(),
                bytes: from_hex(&text(row, 4)?),
                is_last: flag(row, 5),
                takes_over: flag(row, 6),
            })
        };
        Ok(self.query("read shipped files", &sql)?.iter().filter_map(one).collect())
    }
}

/// Returns parts as rows. One array for each column, and one text with the bytes of all, are read faster than a list
/// of rows.
fn rows_of(parts: &[SharedPart<'_>]) -> String {
    let end = |part: &SharedPart<'_>| part.start + part.bytes.len() as u64;
    let bytes: Vec<u8> = parts.iter().flat_map(|part| part.bytes).copied().collect();
    let mut place = 1;
    let mut places = Vec::with_capacity(parts.len());
    for part in parts {
        places.push(place);
        place += part.bytes.len();
    }
    format!(
        "(SELECT run, term, path, start, finish, substring(decode('{}', 'hex') \
         FROM place FOR CAST(finish - start AS INTEGER)) AS bytes, is_last, at \
         FROM unnest({}, {}, {}, {}, {}, {}, {}) WITH ORDINALITY \
         AS columns (run, term, path, start, finish, place, is_last, at)) AS parts",
        hex(&bytes),
        array("TEXT", parts.iter().map(|part| part.run.to_string())),
        array("BIGINT", parts.iter().map(|part| part.term.to_string())),
        array("TEXT", parts.iter().map(|part| escape(part.path))),
        array("BIGINT", parts.iter().map(|part| part.start.to_string())),
        array("BIGINT", parts.iter().map(|part| end(part).to_string())),
        array("INTEGER", places.iter().map(ToString::to_string)),
        array("BOOLEAN", parts.iter().map(|part| part.is_last.to_string())),
    )
}

/// Escapes a text as a value of an array.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

/// Returns an array of values that are escaped.
fn array(kind: &str, values: impl Iterator<Item = String>) -> String {
    let values = values.map(|value| format!("\"{value}\"")).collect::<Vec<_>>().join(",");
    format!("CAST({} AS {kind}[])", quote(&format!("{{{values}}}")))
}
