//! Hosts on record: labels, limits and drained hosts.

use jiff::SignedDuration;

use super::now;
use super::postgres::{host_place, server_place};
use crate::{HostFacts, HostLink, HostRecord, HostState};

#[test]
fn labels_and_limits_of_a_host_stay_until_a_start_gives_others() {
    let server = server_place();
    let place = host_place(&server, "alpha");
    drop(place.store());
    let link = HostLink::connect(&place.dir).unwrap();
    let start = |labels: Option<&[&str]>, max_concurrent: Option<u32>| {
        let labels = labels.map(|labels| labels.iter().map(|it| it.parse().unwrap()).collect());
        let facts = HostFacts { labels, max_concurrent, ..HostFacts::default() };
        link.register(&facts, HostState::Standby).unwrap();
        place.reader().hosts().unwrap().pop().unwrap()
    };
    let facts = |host: &HostRecord| {
        let labels: Vec<String> = host.labels.iter().map(ToString::to_string).collect();
        (labels.join(" "), host.max_concurrent.map(|limit| limit.get()))
    };
    assert_eq!(facts(&start(None, None)), (String::new(), None));
    assert_eq!(
        facts(&start(Some(&["gpu", "os=linux"]), Some(3))),
        ("gpu os=linux".into(), Some(3))
    );
    assert_eq!(facts(&start(None, None)), ("gpu os=linux".into(), Some(3)));
    assert_eq!(facts(&start(Some(&["cpu"]), None)), ("cpu".into(), Some(3)));
    assert_eq!(facts(&start(Some(&[]), Some(0))), (String::new(), None));
}

#[test]
fn a_drained_host_stays_drained_when_it_starts_again() {
    let server = server_place();
    let place = host_place(&server, "alpha");
    let store = place.store();
    let link = HostLink::connect(&place.dir).unwrap();
    link.register(&HostFacts::default(), HostState::Standby).unwrap();
    let drain = |host: &'static str, by: Option<&'static str>| {
        let written: Result<bool, crate::StoreWriteError<crate::DatabaseError>> =
            store.write(move |tx| tx.set_host_drained(host, by));
        written.unwrap()
    };
    assert!(!drain("beta", Some("me")));
    assert!(drain("alpha", Some("it's me")));
    link.register(&HostFacts::default(), HostState::Standby).unwrap();
    let host = || place.reader().hosts().unwrap().pop().unwrap();
    assert_eq!(host().drained_by.as_deref(), Some("it's me"));
    assert!(drain("alpha", None));
    assert_eq!(host().drained_by, None);
}

#[test]
fn the_clock_of_a_host_is_compared_with_that_of_the_database() {
    let server = server_place();
    let place = host_place(&server, "alpha");
    drop(place.store());
    let link = HostLink::connect(&place.dir).unwrap();
    link.register(&HostFacts::default(), HostState::Standby).unwrap();
    let ahead = || place.reader().hosts().unwrap().pop().unwrap().clock_ahead_ms;
    assert_eq!(ahead(), None);
    let shift = SignedDuration::from_hours(2);
    link.beat(HostState::Standby, None, now()).unwrap();
    let one = ahead().unwrap();
    link.beat(HostState::Standby, None, now() + shift).unwrap();
    let other = ahead().unwrap();
    // The time of the tests stands still, and the database's does not.
    let hours = (other - one) as f64 / 3_600_000.0;
    assert!((1.5..2.5).contains(&hours), "{one} {other}");
}

#[test]
fn hosts_of_an_earlier_release_are_listed() {
    let server = server_place();
    let place = host_place(&server, "alpha");
    drop(place.store());
    let link = HostLink::connect(&place.dir).unwrap();
    link.register(&HostFacts::default(), HostState::Standby).unwrap();
    let drop_columns = "ALTER TABLE hosts DROP COLUMN labels, DROP COLUMN max_concurrent, \
        DROP COLUMN clock_ahead_ms, DROP COLUMN drained_by";
    server.cluster.query("fleet", drop_columns);
    let hosts = place.reader().hosts().unwrap();
    assert_eq!((hosts.len(), hosts[0].drained_by.as_deref()), (1, None));
    // The next host of this release adds them.
    let link = HostLink::connect(&place.dir).unwrap();
    link.register(&HostFacts::default(), HostState::Standby).unwrap();
    link.beat(HostState::Standby, None, now()).unwrap();
}
