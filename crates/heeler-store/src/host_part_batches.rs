//! Many parts in one statement: hosts with many runs ship and read so.
//!
//! A statement for each part costs more than the part. A batch stores the parts that need no waiting; each
//! other part goes the way of a single one. Start at [`HostLink::send_parts`] and
//! [`HostLink::parts_after`].

use std::collections::BTreeSet;
use std::fmt::Write as _;

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
    /// in the order of their paths, and the counter last.
    fn store_parts(&self, parts: &[SharedPart<'_>]) -> Result<BTreeSet<String>, DatabaseError> {
        let host = quote(self.host_name());
        let runs: BTreeSet<String> =
            parts.iter().map(|part| quote(&part.run.to_string())).collect();
        let runs = runs.into_iter().collect::<Vec<_>>().join(", ");
        let bytes: usize = parts.iter().map(|part| part.bytes.len()).sum();
        let mut values = String::with_capacity(bytes * 2 + parts.len() * 256);
        for (at, part) in parts.iter().enumerate() {
            let separator = if at == 0 { "" } else { ", " };
            write!(
                values,
                "{separator}({at}, {}, CAST({} AS BIGINT), {}, CAST({} AS BIGINT), \
                 CAST({} AS BIGINT), decode('{}', 'hex'), {})",
                quote(&part.run.to_string()),
                part.term,
                quote(part.path),
                part.start,
                part.start + part.bytes.len() as u64,
                hex(part.bytes),
                part.is_last
            )
            .expect("a string takes all text");
        }
        let sql = format!(
            "WITH parts (at, run, term, path, start, finish, bytes, is_last) AS (VALUES {values}), \
             allowed AS (SELECT id, term FROM runs WHERE id IN ({runs}) AND host = {host} \
             FOR SHARE SKIP LOCKED), \
             sent AS (SELECT parts.* FROM parts JOIN allowed \
             ON allowed.id = parts.run AND allowed.term = parts.term), \
             begun AS (INSERT INTO shared_files (path, host, length, changed_at) \
             SELECT path, {host}, finish, clock_timestamp() FROM sent WHERE start = 0 \
             ORDER BY path ON CONFLICT (path) DO NOTHING RETURNING path), \
             continued AS (UPDATE shared_files AS known SET length = finish, \
             changed_at = clock_timestamp() FROM sent WHERE known.path = sent.path \
             AND known.host = {host} AND known.length = sent.start RETURNING known.path), \
             files AS (SELECT path FROM begun UNION ALL SELECT path FROM continued), \
             counted AS (UPDATE file_counter SET last = last + (SELECT COUNT(*) FROM files) \
             WHERE one = 1 AND (SELECT COUNT(*) FROM files) > 0 RETURNING last), \
             stored AS (INSERT INTO file_parts (number, run, term, host, path, start, bytes, is_last, \
             created_at, takes_over) SELECT last - (SELECT COUNT(*) FROM files) + \
             ROW_NUMBER() OVER (ORDER BY at), run, term, {host}, path, start, bytes, is_last, \
             clock_timestamp(), EXISTS (SELECT 1 FROM shared_files AS known \
             WHERE known.path = sent.path AND known.taken_at = sent.start) \
             FROM sent JOIN files USING (path), counted \
             ON CONFLICT (path, start) DO NOTHING RETURNING path) \
             SELECT path, pg_notify('{PART_CHANNEL}', '') FROM stored"
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
