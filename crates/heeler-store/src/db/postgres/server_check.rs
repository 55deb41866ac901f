//! Checks that a server and a database can hold a store. Start at [`check_server`].

use tokio_postgres::error::SqlState;

use super::{PostgresConnection, SESSION_SETTING};
use crate::db::postgres_error::PostgresError;

/// Oldest version of PostgreSQL that Heeler works with: the oldest one that it is tested with.
pub(crate) const SERVER_VERSION_MIN: i64 = 15;

/// Collations that order text by its bytes, as the lists need it.
const BYTE_ORDERS: [&str; 5] = ["C", "POSIX", "C.UTF-8", "C.utf8", "C.UTF8"];

const FACTS: &str = "SELECT current_setting('server_version_num'), \
    current_setting('heeler.session', true), pg_encoding_to_char(encoding), datcollate, \
    to_jsonb(pg_database) ->> 'datlocprovider', current_setting('server_version') \
    FROM pg_database WHERE datname = current_database()";

/// Refuses a server that is too old, a connection pool that shares sessions, and a database that does
/// not store or order text as SQLite does.
pub(crate) fn check_server(conn: &PostgresConnection, session: &str) -> Result<(), PostgresError> {
    let rows = conn.simple_query(FACTS)?;
    let facts = rows.into_iter().next().unwrap_or_default();
    let fact = |at: usize| facts.get(at).cloned().flatten().unwrap_or_default();
    check_facts(&ServerFacts {
        version: fact(0).parse().unwrap_or(0),
        version_text: fact(5),
        has_session: fact(1) == session,
        encoding: fact(2),
        collation: fact(3),
        provider: fact(4),
    })
    .map_err(PostgresError::Unusable)
}

fn pool_refusal(fault: &str) -> String {
    format!(
        "the connection {fault}: a connection pool such as PgBouncer is in between; name the server \
         itself"
    )
}

/// Explains the failure of a connection. A pool refuses one that has settings.
pub(crate) fn explain_failure(error: PostgresError) -> PostgresError {
    let PostgresError::Client(client) = &error else { return error };
    let refused = client.as_db_error().is_some_and(|it| {
        *it.code() == SqlState::PROTOCOL_VIOLATION && it.message().contains("startup parameter")
    });
    match refused {
        true => PostgresError::Unusable(pool_refusal("is refused because it has settings")),
        false => error,
    }
}

struct ServerFacts {
    /// Such as 150018 for 15.18.
    version: i64,
    version_text: String,
    /// True if the session has the setting that the connection made at its start.
    has_session: bool,
    encoding: String,
    collation: String,
    /// `c` for the C library, `i` for ICU, `b` for PostgreSQL itself.
    provider: String,
}

fn check_facts(facts: &ServerFacts) -> Result<(), String> {
    if facts.version / 10_000 < SERVER_VERSION_MIN {
        return Err(format!(
            "the server is PostgreSQL {}, and Heeler needs {SERVER_VERSION_MIN} or newer",
            facts.version_text
        ));
    }
    if !facts.has_session {
        return Err(pool_refusal(&format!("does not keep its settings ({SESSION_SETTING})")));
    }
    let cure =
        "create the database with `createdb --template=template0 --encoding=UTF8 --locale=C`";
    if facts.encoding != "UTF8" {
        return Err(format!("its encoding is {}, not UTF8; {cure}", facts.encoding));
    }
    // The C library's and PostgreSQL's own providers have these; ICU has a locale in their place.
    if facts.provider == "i" || !BYTE_ORDERS.contains(&facts.collation.as_str()) {
        return Err(format!(
            "its collation {} does not order text by its bytes, so lists would be in the wrong order; \
             {cure}",
            facts.collation
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> ServerFacts {
        ServerFacts {
            version: 150_018,
            version_text: "15.18".to_owned(),
            has_session: true,
            encoding: "UTF8".to_owned(),
            collation: "C".to_owned(),
            provider: "c".to_owned(),
        }
    }

    #[test]
    fn an_unusable_server_is_refused_with_the_cure() {
        assert_eq!(check_facts(&facts()), Ok(()));
        let refused = |facts: ServerFacts| check_facts(&facts).unwrap_err();
        let old = ServerFacts { version: 140_022, version_text: "14.22".to_owned(), ..facts() };
        assert!(refused(old).contains("14.22, and Heeler needs 15"));
        assert!(refused(ServerFacts { has_session: false, ..facts() }).contains("PgBouncer"));
        let latin = ServerFacts { encoding: "LATIN1".to_owned(), ..facts() };
        assert!(refused(latin).contains("createdb"));
        let english = ServerFacts { collation: "en_US.UTF-8".to_owned(), ..facts() };
        assert!(refused(english).contains("en_US.UTF-8"));
        let icu = ServerFacts { provider: "i".to_owned(), ..facts() };
        assert!(refused(icu).contains("createdb"));
    }
}
