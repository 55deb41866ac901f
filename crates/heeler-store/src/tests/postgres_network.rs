//! PostgreSQL on the network: TLS, passwords, and a connection pool in between.

use heeler_config::StoreUrl;
use heeler_testkit::{PostgresCluster, PostgresPool};

use crate::db::postgres::{PostgresAccess, PostgresConnection};

/// A user with a password, and its database.
fn network_cluster(has_tls: bool) -> (PostgresCluster, String) {
    let cluster = PostgresCluster::start_on_network(has_tls);
    cluster.query("postgres", "CREATE ROLE remote LOGIN PASSWORD 'correct horse'");
    cluster.query("postgres", "CREATE DATABASE fleet OWNER remote TEMPLATE template0");
    let port = cluster.network().unwrap().port;
    (cluster, format!("postgres://remote@0.0.0.0:{port}/fleet"))
}

fn connect(url: &str, password: Option<&str>) -> Result<PostgresConnection, String> {
    let url: StoreUrl = url.parse().unwrap();
    PostgresConnection::connect(&url, password, PostgresAccess::Write).map_err(|it| it.to_string())
}

#[test]
fn a_server_on_the_network_is_used_with_tls_and_a_password() {
    let (cluster, url) = network_cluster(true);
    let verified = format!("{url}?sslrootcert={}", cluster.ca_file());
    let conn = connect(&verified, Some("correct horse")).unwrap();
    let facts = "SELECT ssl, version FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let facts = conn.simple_query(facts).unwrap();
    assert_eq!(facts[0][0].as_deref(), Some("t"));
    assert_eq!(facts[0][1].as_deref(), Some("TLSv1.3"));
    let refusal = |url: &str, password: Option<&str>| connect(url, password).unwrap_err();
    let wrong = refusal(&verified, Some("battery staple"));
    assert!(wrong.contains("password authentication failed"), "{wrong}");
    let none = refusal(&verified, None);
    assert!(none.contains("password"), "{none}");
    let unknown = refusal(&url, Some("correct horse"));
    assert!(unknown.contains("certificate"), "{unknown}");
}

#[test]
fn a_server_on_the_network_without_tls_is_refused_before_a_password_is_sent() {
    let (_cluster, url) = network_cluster(false);
    let refused = connect(&url, Some("correct horse")).unwrap_err();
    assert!(refused.contains("does not support TLS"), "{refused}");
}

/// A pool gives each transaction to another session. It drops the settings of a connection, or refuses
/// a connection that has some.
#[test]
fn a_connection_pool_in_between_is_refused_with_the_reason() {
    let cluster = PostgresCluster::start();
    cluster.create_database("fleet");
    for more in ["", "ignore_startup_parameters = options"] {
        let pool = PostgresPool::start(&cluster, more);
        let refused = connect(&pool.url("fleet"), None).unwrap_err();
        assert!(refused.contains("PgBouncer"), "{more}: {refused}");
        assert!(refused.contains("name the server itself"), "{more}: {refused}");
    }
}
