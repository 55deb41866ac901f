//! Hosts with different releases of Heeler. An earlier or later release is one that left another version in
//! the database: of itself, of the protocol of hosts, or of the schema.

use heeler_model::JobStatus;
use heeler_testkit::PostgresCluster;

use crate::daemon_kills::Herd;
use crate::host_runs::{stop, trigger};
use crate::hosts::{cluster, failure_of, wait_for_leader};
use crate::trigger::wait_for;

const AGENTS: &str = "agents:
  - {name: there, host: beta, runtime: scripted, script: [{say: Done there.}]}
";

fn herd(cluster: &PostgresCluster) -> Herd {
    Herd::of(&format!("store: {}\nweb: {{enabled: false}}\n{AGENTS}", cluster.url("fleet")))
}

/// Changes the version in the database that a host left.
fn leave(cluster: &PostgresCluster, sql: &str) {
    cluster.query("fleet", sql);
}

#[test]
fn a_release_with_the_same_schema_and_protocol_joins_and_others_are_refused_with_the_cure() {
    let cluster = cluster();
    let (first, second) = (herd(&cluster), herd(&cluster));
    let (mut alpha, _) = first.begin(&["--host", "alpha"]);
    wait_for_leader(&first, "alpha");
    let is_refused = |change: &str, cure: &str| {
        leave(&cluster, change);
        let (code, text) = failure_of(&second, &["start", "--host", "beta"]);
        assert!(code == 5 && text.contains(cure), "{code}: {text}");
    };
    let host = "(heeler 0.0.1) has version";
    leave(&cluster, "UPDATE hosts SET version = '0.0.1'");
    is_refused("UPDATE hosts SET protocol = 0", "stop the daemons of all hosts");
    is_refused("UPDATE hosts SET protocol = 99", "install its release here");
    is_refused("UPDATE hosts SET protocol = 99", host);
    leave(&cluster, "UPDATE hosts SET protocol = 2 WHERE name = 'alpha'");

    // A run of the leader works across the releases, and a person learns of the difference.
    let (beta, _) = second.begin(&["--host", "beta"]);
    let job = trigger(&first, &mut alpha, "there");
    assert_eq!(first.ends(&job).head.status, JobStatus::Completed);
    let found = second.fleet.run(&["doctor", "--json"]).stdout;
    assert!(found.contains("install the same release on all hosts"), "{found}");
    stop(&second, beta);
    stop(&first, alpha);
}

#[test]
fn records_are_changed_when_no_host_of_the_earlier_release_is_at_work() {
    let cluster = cluster();
    let (first, second) = (herd(&cluster), herd(&cluster));
    let (mut alpha, _) = first.begin(&["--host", "alpha"]);
    wait_for_leader(&first, "alpha");
    let schema = || cluster.query("fleet", "SELECT MAX(version) FROM schema_migration");
    let newest = schema();
    // The schema before the last migration, which adds one column.
    leave(&cluster, "ALTER TABLE views DROP COLUMN placed_generation");
    leave(&cluster, "DELETE FROM schema_migration WHERE name = 'placed_views'");
    let earlier = schema();
    assert_ne!(earlier, newest, "this test undoes the last migration");
    let (code, text) = failure_of(&second, &["start", "--host", "beta"]);
    assert!(code == 5 && text.contains("stop the daemons of all hosts"), "{code}: {text}");
    assert_eq!(schema(), earlier, "nothing was changed under the other host");
    alpha.kill();
    // A host that died counts as at work for some seconds.
    let beta = wait_for("the new release", || {
        let mut life = second.start(&["--host", "beta"]);
        second.connect(&mut life).map(|_| life)
    });
    wait_for_leader(&second, "beta");
    assert_eq!(schema(), newest);
    stop(&second, beta);
}

#[test]
fn a_host_does_not_lead_with_records_of_a_later_release() {
    let cluster = cluster();
    let (first, second) = (herd(&cluster), herd(&cluster));
    let (mut alpha, _) = first.begin(&["--host", "alpha"]);
    let (beta, _) = second.begin(&["--host", "beta"]);
    wait_for_leader(&second, "alpha");
    let newer = "INSERT INTO schema_migration (version, name, applied_at) VALUES (99, 'x', 'y')";
    leave(&cluster, newer);
    alpha.kill();
    wait_for("the reason in the log", || {
        let log = std::fs::read_to_string(second.dir().logs().join("heeler.log")).ok()?;
        log.contains("were written by a newer heeler").then_some(())
    });
    // It works on, so that its agents are looked after, and leads as soon as it can.
    leave(&cluster, "DELETE FROM schema_migration WHERE version = 99");
    wait_for_leader(&second, "beta");
    stop(&second, beta);
}
