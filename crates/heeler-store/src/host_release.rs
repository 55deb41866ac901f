//! Hosts with different releases of Heeler: which of them may work together.
//!
//! Two releases may if they have the same schema of records and the same protocol of hosts. So hosts are
//! upgraded one after the other unless one of both changes; then all are stopped before. Start at
//! [`check_release`].

use crate::db::StateDatabase;
use crate::db::migrate::SCHEMA_VERSION;
use crate::db::postgres::{PostgresConnection, quote};
use crate::db::postgres_error::PostgresError;
use crate::host_records::HOST_SILENCE_MAX;
use crate::host_row::{flag, number, text};

/// Version of the rows by which hosts talk to each other: commands, reports, assignments and parts of
/// files. It changes with each form that an earlier release does not understand.
pub(crate) const HOST_PROTOCOL: i64 = 2;

/// Another host that is alive.
struct LivingHost {
    name: String,
    version: String,
    protocol: i64,
}

/// Refuses a fleet whose records or hosts are those of a release with which this one cannot work. `own` is
/// the name of this host.
pub(crate) fn check_release(db: &StateDatabase, own: &str) -> Result<(), PostgresError> {
    let Some(conn) = db.conn.as_postgres() else { return Ok(()) };
    let schema = db.schema_version();
    let schema = schema.map_err(|error| PostgresError::Unusable(error.to_string()))?;
    let others = living_hosts(conn, own)?;
    match refusal_reason(schema, &others) {
        None => Ok(()),
        Some(reason) => Err(PostgresError::Unusable(reason)),
    }
}

fn living_hosts(conn: &PostgresConnection, own: &str) -> Result<Vec<LivingHost>, PostgresError> {
    let is_there = conn.simple_query("SELECT to_regclass('hosts') IS NOT NULL")?;
    if !is_there.first().is_some_and(|row| flag(row, 0)) {
        return Ok(Vec::new());
    }
    // A release without the column had the first protocol.
    let rows = conn.simple_query(&format!(
        "SELECT name, version, COALESCE(to_jsonb(hosts) ->> 'protocol', '1') FROM hosts \
         WHERE name <> {} AND state <> 'stopped' \
         AND seen_at > clock_timestamp() - interval '{} seconds' ORDER BY name",
        quote(own),
        HOST_SILENCE_MAX.as_secs()
    ))?;
    let one = |row: &Vec<Option<String>>| LivingHost {
        name: text(row, 0).unwrap_or_default(),
        version: text(row, 1).unwrap_or_default(),
        protocol: number(row, 2),
    };
    Ok(rows.iter().map(one).collect())
}

fn refusal_reason(schema: i64, others: &[LivingHost]) -> Option<String> {
    if schema > SCHEMA_VERSION {
        return Some(format!(
            "its records were written by a newer heeler (schema {schema}, this one knows \
             {SCHEMA_VERSION}); install the release of the other hosts"
        ));
    }
    // An empty database has no records to change.
    if (1..SCHEMA_VERSION).contains(&schema)
        && let Some(other) = others.first()
    {
        return Some(format!(
            "its records have schema {schema}, this release needs {SCHEMA_VERSION}, and host `{}` \
             (heeler {}) is at work with them; stop the daemons of all hosts, then start this release: \
             it changes the records",
            other.name, other.version
        ));
    }
    let other = others.iter().find(|other| other.protocol != HOST_PROTOCOL)?;
    let cure = match other.protocol > HOST_PROTOCOL {
        true => "install its release here",
        false => "stop the daemons of all hosts, then start this release on each",
    };
    Some(format!(
        "host `{}` (heeler {}) has version {} of the protocol of hosts, this release has \
         {HOST_PROTOCOL}; {cure}",
        other.name, other.version, other.protocol
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(protocol: i64) -> LivingHost {
        LivingHost { name: "beta".to_owned(), version: "0.0.9".to_owned(), protocol }
    }

    #[test]
    fn releases_with_the_same_schema_and_protocol_work_together() {
        for (schema, others) in [
            (0, vec![]),
            (0, vec![host(HOST_PROTOCOL)]),
            (SCHEMA_VERSION, vec![host(HOST_PROTOCOL), host(HOST_PROTOCOL)]),
            // No other host is at work, so this release may change the records.
            (SCHEMA_VERSION - 1, vec![]),
        ] {
            assert_eq!(refusal_reason(schema, &others), None);
        }
    }

    #[test]
    fn other_schemas_and_protocols_are_refused_with_the_cure() {
        let refused = |schema, others: &[LivingHost], cure: &str| {
            let reason = refusal_reason(schema, others).unwrap();
            assert!(reason.contains(cure), "{reason}");
        };
        refused(SCHEMA_VERSION + 1, &[], "install the release of the other hosts");
        let all = "`beta` (heeler 0.0.9) is at work with them; stop the daemons of all hosts";
        refused(SCHEMA_VERSION - 1, &[host(HOST_PROTOCOL)], all);
        refused(SCHEMA_VERSION, &[host(HOST_PROTOCOL + 1)], "install its release here");
        let earlier = [host(HOST_PROTOCOL), host(HOST_PROTOCOL - 1)];
        refused(SCHEMA_VERSION, &earlier, "then start this release on each");
    }
}
