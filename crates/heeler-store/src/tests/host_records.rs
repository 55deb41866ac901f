//! Hosts on record: labels, limits, drained hosts, hints between them, and their jobs.

use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use heeler_model::run::ResultSigningKey;
use heeler_model::{JobStatus, RunId};
use heeler_testkit::WAIT_MAX;
use jiff::SignedDuration;

use super::postgres::{EXPIRE, host_place, run_of_host, server_place};
use super::{insert_jobs, job, job_id, later, now};
use crate::db::postgres::HOST_LEASE;
use crate::{
    DatabaseError, HostFacts, HostLink, HostRecord, HostState, JobFilter, LeadLease, RunMessage,
    RunMessageState, RunRecord, StoreWriteError,
};

/// Waits until a condition holds.
#[track_caller]
fn wait_for(what: &str, mut is_met: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT_MAX;
    while !is_met() {
        assert!(Instant::now() < deadline, "no {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

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
        DROP COLUMN clock_ahead_ms, DROP COLUMN drained_by, DROP COLUMN protocol, \
        DROP COLUMN lease_key";
    server.cluster.query("fleet", drop_columns);
    let hosts = place.reader().hosts().unwrap();
    assert_eq!((hosts.len(), hosts[0].drained_by.as_deref()), (1, None));
    // The next host of this release adds them.
    let link = HostLink::connect(&place.dir).unwrap();
    link.register(&HostFacts::default(), HostState::Standby).unwrap();
    link.beat(HostState::Standby, None, now()).unwrap();
}

#[test]
fn a_host_keeps_its_key_and_the_leader_sees_runs_with_a_lease_and_signs_of_life() {
    let server = server_place();
    let (first, second) = (host_place(&server, "alpha"), host_place(&server, "beta"));
    let store = first.store();
    insert_jobs(&store, vec![job(1, "coder", JobStatus::Running)]);
    let (leader, host) =
        (HostLink::connect(&first.dir).unwrap(), HostLink::connect(&second.dir).unwrap());
    let beat = || host.beat(HostState::Standby, None, now()).unwrap();
    assert_eq!(beat().contact, None, "the fleet does not know this host");
    for (link, state) in [(&leader, HostState::Leader), (&host, HostState::Standby)] {
        link.register(&HostFacts::default(), state).unwrap();
    }
    let before = heeler_process::boot_time();
    let contact = beat().contact.unwrap();
    assert!((before..=heeler_process::boot_time()).contains(&contact), "{contact:?}");
    let key = |byte: u8| ResultSigningKey::from_seed([byte; 32]);
    assert!(host.lease_key(&key(1)).unwrap() == key(1));
    assert!(host.lease_key(&key(2)).unwrap() == key(1), "runners know the first one");
    assert!(leader.lease_key(&key(3)).unwrap() == key(3), "each host has its own");

    let id = |number: u8| RunId::mint(now(), [number; 10]);
    let written: Result<_, StoreWriteError<DatabaseError>> = store.write(move |tx| {
        let runs = [
            (1, r#"{"limits": {"lease_ms": 8000}}"#),
            (2, r#"{"limits": {"timeout_ms": 1}, "placement": "no \"lease_ms\""}"#),
            (3, r#"{"lease_ms" torn"#),
        ];
        for (attempt, assignment) in runs {
            let run = run_of_host(id(attempt), crate::ASSIGNED_RUN);
            tx.insert_run(&RunRecord { attempt: attempt.into(), ..run })?;
            tx.set_run_assignment(id(attempt), assignment)?;
        }
        Ok(())
    });
    written.unwrap();
    let found = leader.leased_runs().unwrap();
    let [run] = &found[..] else { panic!("{found:?}") };
    assert_eq!((run.run, run.host.as_str()), (id(1), "beta"));
    assert_eq!(run.lease, Duration::from_secs(8));
    assert!(host.leased_runs().unwrap().is_empty(), "a host does not give up its own runs");
    beat();
    assert_ne!(leader.leased_runs().unwrap()[0].mark, run.mark);
}

#[test]
fn hosts_give_each_other_hints() {
    let server = server_place();
    let (first, second) = (host_place(&server, "alpha"), host_place(&server, "beta"));
    let store = first.store();
    insert_jobs(&store, vec![job(1, "coder", JobStatus::Running)]);
    let (leader, standby) =
        (HostLink::connect(&first.dir).unwrap(), HostLink::connect(&second.dir).unwrap());
    let (to_leader, leader_hints) = channel();
    leader.listen_as_leader(move || to_leader.send(()).unwrap_or_default()).unwrap();
    let (to_standby, standby_hints) = channel();
    standby.listen_as_standby(move || to_standby.send(()).unwrap_or_default()).unwrap();
    let next = |hints: &Receiver<()>| hints.recv_timeout(WAIT_MAX).unwrap();

    standby.send_command("1", "{}").unwrap();
    next(&leader_hints);
    let id = RunId::mint(now(), [1; 10]);
    standby.send_report((id, 0), "exit", "{}").unwrap();
    next(&leader_hints);
    let written: Result<_, StoreWriteError<DatabaseError>> = store.write(move |tx| {
        tx.insert_run(&run_of_host(id, crate::ASSIGNED_RUN))?;
        tx.set_run_assignment(id, "{}")
    });
    written.unwrap();
    next(&standby_hints);
    assert!(leader_hints.try_recv().is_err(), "those are for the other hosts");
    // The lead is given away.
    drop(store);
    next(&standby_hints);
    assert!(standby.beat(HostState::Standby, None, now()).unwrap().is_free);
}

#[test]
fn a_standby_knows_when_the_lease_of_the_leader_ends() {
    let server = server_place();
    let (first, second) = (host_place(&server, "alpha"), host_place(&server, "beta"));
    let standby = HostLink::connect(&second.dir).unwrap();
    assert!(standby.beat(HostState::Standby, None, now()).unwrap().lease_left.is_zero());
    let store = first.store();
    wait_for("a lease", || {
        let pulse = standby.beat(HostState::Standby, None, now()).unwrap();
        assert!(pulse.lease_left <= HOST_LEASE, "{pulse:?}");
        !pulse.lease_left.is_zero()
    });
    drop(store);
    let pulse = standby.beat(HostState::Standby, None, now()).unwrap();
    assert!(pulse.is_free && pulse.lease_left.is_zero(), "{pulse:?}");
}

#[test]
fn a_writer_renews_its_lease_if_the_thread_that_it_relies_on_does_not() {
    let server = server_place();
    let place = host_place(&server, "alpha");
    let store = place.store();
    let lead = LeadLease::default();
    store.leave_renewal_to(lead.clone());
    lead.lose();
    server.cluster.query("fleet", EXPIRE);
    let is_renewed = "SELECT lease_until > now() FROM store_writer";
    wait_for("a renewed lease", || server.cluster.query("fleet", is_renewed).trim() == "t");
    insert_jobs(&store, vec![job(1, "coder", JobStatus::Pending)]);
}

#[test]
fn jobs_are_listed_by_the_host_of_their_last_run() {
    let server = server_place();
    let place = host_place(&server, "alpha");
    let store = place.store();
    let statuses = [JobStatus::Completed, JobStatus::Failed];
    let one = |number: u64| {
        job(number, ["coder", "writer"][number as usize % 2], statuses[number as usize / 2 % 2])
    };
    let jobs: Vec<_> = (0..12).map(one).collect();
    insert_jobs(&store, jobs.clone());
    // The last jobs have not run yet. Every third one ran on two hosts.
    let host_of = |number: u64| (number < 10).then(|| ["alpha", "beta"][number as usize % 2]);
    let run = |number: u64, attempt: i64, host: &str| RunRecord {
        id: RunId::mint(now(), [number as u8, attempt as u8, 0, 0, 0, 0, 0, 0, 0, 0]),
        job_id: job_id(number),
        attempt,
        host: host.to_owned(),
        ..run_of_host(RunId::mint(now(), [1; 10]), "finished")
    };
    let written: Result<_, StoreWriteError<DatabaseError>> = store.write(move |tx| {
        for number in 0..10 {
            if number % 3 == 0 {
                tx.insert_run(&run(number, 1, "gamma"))?;
            }
            tx.insert_run(&run(number, 2, host_of(number).unwrap()))?;
        }
        Ok(())
    });
    written.unwrap();
    let reader = place.reader();
    for host in ["alpha", "beta", "gamma"] {
        for agent in [None, Some("coder")] {
            for status in [None, Some(JobStatus::Failed)] {
                for since in [None, Some(later(5))] {
                    let expected: Vec<_> = (0..12)
                        .rev()
                        .filter(|number| host_of(*number) == Some(host))
                        .map(|number| jobs[number as usize].head.clone())
                        .filter(|job| agent.is_none_or(|agent| job.agent == agent))
                        .filter(|job| status.is_none_or(|status| job.status == status))
                        .filter(|job| since.is_none_or(|since| job.started_at >= since))
                        .map(|job| job.id)
                        .collect();
                    let (agent, host) = (agent.map(str::to_owned), Some(host.to_owned()));
                    let filter = JobFilter { agent, status, since, host };
                    let found = reader.job_list_rows(&filter, None, 100).unwrap();
                    assert!(found.iter().all(|line| line.host == filter.host), "{found:?}");
                    let found: Vec<_> = found.into_iter().map(|line| line.head.id).collect();
                    assert_eq!(found, expected, "{filter:?}");
                    let total = reader.count_jobs(&filter).unwrap();
                    assert_eq!(total, expected.len() as i64, "{filter:?}");
                }
            }
        }
    }
    let waiting = reader.job_list_row(&job_id(11)).unwrap().unwrap();
    assert_eq!(waiting.host, None);
}

#[test]
fn jobs_of_an_earlier_release_get_their_host() {
    let server = server_place();
    let place = host_place(&server, "alpha");
    let store = place.store();
    insert_jobs(&store, (1..4).map(|number| job(number, "coder", JobStatus::Completed)).collect());
    let run = |number: u8, attempt: i64, host: &str| RunRecord {
        id: RunId::mint(now(), [number, attempt as u8, 0, 0, 0, 0, 0, 0, 0, 0]),
        job_id: job_id(number.into()),
        attempt,
        host: host.to_owned(),
        ..run_of_host(RunId::mint(now(), [1; 10]), "finished")
    };
    // The second job ran before the fleet had hosts.
    let runs = [run(1, 1, "gamma"), run(1, 2, "alpha"), run(2, 1, "some-machine")];
    let written: Result<_, StoreWriteError<DatabaseError>> =
        store.write(move |tx| runs.iter().try_for_each(|run| tx.insert_run(run)));
    written.unwrap();
    drop(store);
    let link = HostLink::connect(&place.dir).unwrap();
    link.register(&HostFacts::default(), HostState::Standby).unwrap();
    let forms = crate::db::migrate::POSTGRES_FORMS;
    let (_, migration) = forms.iter().find(|(name, _)| *name == "job_hosts").unwrap();
    server.cluster.query("fleet", "ALTER TABLE executions DROP COLUMN host");
    server.cluster.query("fleet", "ALTER TABLE job_marks DROP COLUMN host");
    server.cluster.query("fleet", migration);
    let found = place.reader().job_list_rows(&JobFilter::default(), None, 9).unwrap();
    let hosts: Vec<_> = found.iter().map(|line| line.host.as_deref()).collect();
    assert_eq!(hosts, [None, None, Some("alpha")]);
    let filter = JobFilter { host: Some("alpha".to_owned()), ..JobFilter::default() };
    assert_eq!(place.reader().count_jobs(&filter).unwrap(), 1);
}

#[test]
fn a_message_is_read_by_the_host_of_its_run_and_answered_once() {
    let server = server_place();
    let (first, second) = (host_place(&server, "alpha"), host_place(&server, "beta"));
    let store = first.store();
    let id = RunId::mint(now(), [1; 10]);
    insert_jobs(&store, vec![job(1, "coder", JobStatus::Running)]);
    let written: Result<_, StoreWriteError<DatabaseError>> =
        store.write(move |tx| tx.insert_run(&run_of_host(id, "created")));
    written.unwrap();
    let (leader, host) =
        (HostLink::connect(&first.dir).unwrap(), HostLink::connect(&second.dir).unwrap());
    for (link, state) in [(&leader, HostState::Leader), (&host, HostState::Standby)] {
        link.register(&HostFacts::default(), state).unwrap();
    }
    let message = |number: u128, text: &str| RunMessage {
        id: uuid::Uuid::from_u128(number),
        run: id,
        job: job_id(1),
        text: text.to_owned(),
    };
    let state = |number| first.reader().run_message_state(uuid::Uuid::from_u128(number)).unwrap();
    let text = "it's \\ \"quoted\"";
    leader.send_run_message(&message(1, text)).unwrap();
    leader.send_run_message(&message(1, "another text under the same ID")).unwrap();
    assert!(leader.run_messages().unwrap().is_empty(), "it is another host's");
    assert_eq!(host.run_messages().unwrap(), [message(1, text)]);
    assert_eq!(host.beat(HostState::Standby, None, now()).unwrap().messages, 1);
    assert_eq!(state(1), RunMessageState::Open);
    leader.answer_run_message(message(1, "").id, false).unwrap();
    assert_eq!(state(1), RunMessageState::Open, "only its host answers");
    host.answer_run_message(message(1, "").id, true).unwrap();
    host.answer_run_message(message(1, "").id, false).unwrap();
    assert_eq!(state(1), RunMessageState::Taken);
    assert!(host.run_messages().unwrap().is_empty());
    assert_eq!(host.beat(HostState::Standby, None, now()).unwrap().messages, 0);
    assert_eq!(leader.forget_run_message(message(1, "").id).unwrap(), RunMessageState::Taken);
    assert_eq!(state(1), RunMessageState::Missing);

    // One that is too old is not delivered, and is removed with the next one.
    leader.send_run_message(&message(2, text)).unwrap();
    server.cluster.query("fleet", "UPDATE run_messages SET created_at = now() - interval '1 hour'");
    assert!(host.run_messages().unwrap().is_empty());
    leader.send_run_message(&message(3, text)).unwrap();
    assert_eq!((state(2), state(3)), (RunMessageState::Missing, RunMessageState::Open));
    host.answer_run_message(message(3, "").id, false).unwrap();
    assert_eq!(state(3), RunMessageState::Refused);

    // A run that has ended has no host that delivers.
    server.cluster.query("fleet", "UPDATE runs SET committed = 1");
    leader.send_run_message(&message(4, text)).unwrap();
    assert_eq!(state(4), RunMessageState::Missing);
}
