//! The store on PostgreSQL: the other tests on a real server, and what only a server can do.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use camino::Utf8Path;
use heeler_model::RunId;
use heeler_testkit::{PostgresCluster, WAIT_MAX};

use super::database::all_sql;
use super::*;
use crate::db::StateDatabase;
use crate::db::dialect::translate;
use crate::{
    ASSIGNED_RUN, HostFacts, HostLink, HostState, JobFilter, LeadLease, PartReceipt, RunRecord,
    SharedPart, StoreWriteError, UnshippedRun,
};

/// Tests of SQLite's own files, locks, plans and failures, by the beginning of their names.
const SQLITE_ONLY: &[(&str, &str)] = &[
    ("tests::postgres::", "they start their own server"),
    ("tests::postgres_network::", "they start their own server"),
    ("tests::moves::", "they start their own server"),
    ("tests::fail_overs::", "they start their own server"),
    ("tests::lost_files::", "files of a database that are deleted"),
    ("tests::locks::", "locks of files"),
    ("tests::database::every_statement_fits_the_schema", "the other engine has its own test"),
    ("tests::database::no_question_is_planned_again", "statistics of SQLite"),
    ("tests::database::every_column_of_last_light", "reads the schema of SQLite"),
    ("tests::database::the_database_is_for_its_owner_only", "permissions of files"),
    ("tests::database::the_pragmas_are", "pragmas"),
    ("tests::database::a_database_of_the_first_schema", "a release without PostgreSQL"),
    ("tests::database::a_failed_migration", "opens a file"),
    ("tests::database::an_existing_database_is_backed_up", "opens a file"),
    ("tests::database::a_database_on_a_read_only_medium", "a medium of files"),
    ("tests::daemon::after_a_full_disk_in_an_attempt", "SQLite undoes a transaction by itself"),
    ("tests::daemon::a_database_of_the_second_schema", "a release without PostgreSQL"),
    ("tests::lists::no_list_scans_or_sorts", "plans of SQLite"),
    ("tests::lists::the_daemon_sorts_nothing", "plans of SQLite"),
    ("tests::hostile::temp_files_and_databases_behind_a_link", "a link in place of a file"),
    ("tests::archive::a_new_directory_can_be_made", "a server always has a state to back up"),
    ("tests::archive::a_damaged_database_is_set_aside", "a damaged file"),
    ("tests::archive::a_database_whose_epoch_cannot_be_raised", "a damaged file"),
    ("tests::races::what_a_restore_replaced_is_kept", "a rebuild makes a file"),
    ("tests::workflows::no_list_reads_what_may_be_large", "columns of SQLite"),
    ("tests::writer::a_full_disk_fails", "a limit of SQLite's pages"),
    ("tests::writer::a_command_that_hides_a_full_disk", "SQLite undoes a transaction by itself"),
    ("tests::writer::a_failed_commit_fails", "deferred checks of SQLite"),
    ("tests::writer::a_durable_change_is_never", "pragmas"),
];

/// Runs this program again for one test, on a server.
#[expect(clippy::disallowed_methods, reason = "a process of the test itself")]
fn run_test(name: &str, server: &Utf8Path) -> Result<(), String> {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(SERVER_VARIABLE, server)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{name}:\n{}{}", text(&output.stdout), text(&output.stderr))),
    }
}

#[expect(clippy::disallowed_methods, reason = "a process of the test itself")]
fn list_tests() -> Vec<String> {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--list", "--format", "terse"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

#[test]
fn proof_every_other_test_of_the_store_passes_on_postgresql() {
    let cluster = PostgresCluster::start();
    let all = list_tests();
    for (skipped, _) in SQLITE_ONLY {
        assert!(all.iter().any(|name| name.starts_with(skipped)), "there is no test {skipped}");
    }
    let is_for_both = |name: &String| {
        name.starts_with("tests::")
            && !SQLITE_ONLY.iter().any(|(skipped, _)| name.starts_with(skipped))
    };
    let chosen: Vec<String> = all.into_iter().filter(is_for_both).collect();
    assert!(chosen.len() > 80, "only {} tests were found", chosen.len());
    let (rest, failures) = (Mutex::new(chosen), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(name) = next_of(&rest) {
                    if let Err(failure) = run_test(&name, cluster.socket_folder()) {
                        failures.lock().unwrap().push(failure);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
}

// A function, so that the lock is not held while the test runs.
fn next_of(rest: &Mutex<Vec<String>>) -> Option<String> {
    rest.lock().unwrap().pop()
}

/// A state directory on a server of its own.
pub(super) struct ServerPlace {
    pub(super) place: TempStateDir,
    pub(super) cluster: PostgresCluster,
}

pub(super) fn server_place() -> ServerPlace {
    let cluster = PostgresCluster::start();
    cluster.create_database("fleet");
    let place = file_place();
    let mut server = ServerPlace { place, cluster };
    server.move_to(&server.cluster.url("fleet"));
    server
}

/// A state directory with SQLite, whatever the other tests use.
pub(super) fn file_place() -> TempStateDir {
    let temp = tempfile::tempdir().unwrap();
    let root = Utf8PathBuf::from_path_buf(temp.path().to_owned()).unwrap().join(".heeler");
    let dir = StateDir::create(&root).unwrap();
    TempStateDir { _temp: temp, root, dir, database: None }
}

impl ServerPlace {
    /// Lets the state directory use another address of its database.
    fn move_to(&mut self, url: &str) {
        let url: heeler_config::StoreUrl = url.parse().unwrap();
        let location = match self.place.dir.postgres() {
            Some(known) => PostgresLocation { url, ..known.clone() },
            None => PostgresLocation::for_new_fleet(url),
        };
        self.place.dir = location.write(&self.place.dir).unwrap();
    }
}

fn count(place: &TempStateDir) -> i64 {
    place.reader().count_jobs(&JobFilter::default()).unwrap()
}

/// A parameter number that is left out, a type that cannot be inferred, a function that is missing: all
/// are errors of `PREPARE`. `EXPLAIN` plans the statement too.
#[test]
fn every_statement_is_planned_by_postgresql_and_returns_types_that_are_read() {
    let server = server_place();
    drop(server.place.store());
    let db = StateDatabase::writer_of(&server.place.dir).unwrap();
    let conn = db.conn.as_postgres().unwrap();
    let mut faults = Vec::new();
    for (name, sql) in all_sql() {
        let translated = translate(sql);
        let nulls = vec!["NULL"; translated.parameters.len()].join(", ");
        let nulls = if nulls.is_empty() { nulls } else { format!("({nulls})") };
        let planned = conn.simple_query(&format!(
            "PREPARE it AS {}; EXPLAIN EXECUTE it{nulls}; DEALLOCATE it",
            translated.sql
        ));
        if let Err(error) = planned {
            faults.push(format!("{name}: {error}\n{}", translated.sql));
            conn.simple_query("DEALLOCATE ALL").unwrap();
            continue;
        }
        for column in conn.column_types(sql).unwrap() {
            if !["int8", "int4", "bool", "float8", "text"].contains(&column.as_str()) {
                faults.push(format!("{name}: a column has type {column}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn text_with_nul_is_stored_without_it() {
    let server = server_place();
    let store = server.place.store();
    let mut odd = job(1, "coder", JobStatus::Pending);
    odd.prompt = Some("a\0b".to_owned());
    insert_jobs(&store, vec![odd]);
    let read = server.place.reader().job(&job_id(1)).unwrap().unwrap();
    assert_eq!(read.prompt.as_deref(), Some("ab"));
}

#[test]
fn a_database_of_another_fleet_or_an_unusable_one_is_refused_with_the_cure() {
    let server = server_place();
    drop(server.place.store());
    let other = file_place();
    let location = PostgresLocation::for_new_fleet(server.cluster.url("fleet").parse().unwrap());
    let dir = location.write(&other.dir).unwrap();
    let error = Store::open(&dir, "test", now()).unwrap_err().to_string();
    assert!(error.contains("another fleet"), "{error}");

    let locale =
        "CREATE DATABASE english TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'";
    server.cluster.query("postgres", locale);
    let location = PostgresLocation::for_new_fleet(server.cluster.url("english").parse().unwrap());
    let dir = location.write(&other.dir).unwrap();
    let error = Store::open(&dir, "test", now()).unwrap_err().to_string();
    assert!(error.contains("--locale=C"), "{error}");

    let location = PostgresLocation::for_new_fleet(server.cluster.url("none").parse().unwrap());
    let dir = location.write(&other.dir).unwrap();
    let error = Store::open(&dir, "test", now()).unwrap_err().to_string();
    assert!(error.contains("does not exist"), "{error}");
}

/// Fault of a relayed connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RelayFault {
    /// The commit does not reach the server.
    LoseCommit,
    /// The server commits, and its reply does not reach the client.
    LoseReply,
}

/// A relay between client and server that breaks one connection at a commit.
struct CommitRelay {
    _folder: tempfile::TempDir,
    url: String,
    fault: Arc<Mutex<Option<RelayFault>>>,
    is_down: Arc<AtomicBool>,
}

impl CommitRelay {
    fn start(server: &Utf8Path) -> CommitRelay {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join(".s.PGSQL.5432")).unwrap();
        let fault = Arc::<Mutex<Option<RelayFault>>>::default();
        let is_down = Arc::<AtomicBool>::default();
        let (shared, down) = (Arc::clone(&fault), Arc::clone(&is_down));
        let server = server.to_owned();
        // The threads end with the process of the test.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if down.load(Ordering::SeqCst) {
                    continue;
                }
                let server = UnixStream::connect(&server).unwrap();
                let (reader, writer) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                let (shared, down) = (Arc::clone(&shared), Arc::clone(&down));
                let is_cut = Arc::<AtomicBool>::default();
                let cut = Arc::clone(&is_cut);
                std::thread::spawn(move || relay_replies(reader, writer, &cut));
                std::thread::spawn(move || relay_requests(client, server, &shared, &is_cut, &down));
            }
        });
        let url = format!("postgres://heeler@/fleet?host={}", folder.path().display());
        CommitRelay { _folder: folder, url, fault, is_down }
    }
}

fn relay_replies(mut from: UnixStream, mut to: UnixStream, is_cut: &AtomicBool) {
    let mut buffer = [0; 8192];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if is_cut.load(Ordering::SeqCst) || to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    drop(to.shutdown(std::net::Shutdown::Both));
}

fn relay_requests(
    mut from: UnixStream,
    mut to: UnixStream,
    fault: &Mutex<Option<RelayFault>>,
    is_cut: &AtomicBool,
    is_down: &AtomicBool,
) {
    let mut buffer = [0; 8192];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let bytes = &buffer[..count];
        let is_commit = bytes.windows(7).any(|window| window == b"COMMIT\0");
        if let Some(fault) = is_commit.then(|| fault.lock().unwrap().take()).flatten() {
            is_cut.store(true, Ordering::SeqCst);
            is_down.store(true, Ordering::SeqCst);
            if fault == RelayFault::LoseReply {
                to.write_all(bytes).unwrap();
                // The server reads to the end of the connection, so it commits before it ends.
                to.shutdown(std::net::Shutdown::Write).unwrap();
            }
            break;
        }
        if to.write_all(bytes).is_err() {
            break;
        }
    }
    drop(from.shutdown(std::net::Shutdown::Both));
}

#[test]
fn the_outcome_of_a_commit_with_a_lost_reply_is_found_out() {
    let mut server = server_place();
    drop(server.place.store());
    let relay = CommitRelay::start(&server.cluster.socket());
    server.move_to(&relay.url);
    let store = server.place.store();
    for (number, fault) in [(1, RelayFault::LoseReply), (2, RelayFault::LoseCommit)] {
        *relay.fault.lock().unwrap() = Some(fault);
        let outcome = std::thread::scope(|scope| {
            let writing = scope.spawn(|| {
                store.write(move |tx| tx.insert_job(&job(number, "coder", JobStatus::Pending)))
            });
            // While the server is away, the caller gets no answer: any would be a guess.
            let deadline = Instant::now() + WAIT_MAX;
            while store.database_fault().is_none_or(|why| !why.contains("not known")) {
                assert!(Instant::now() < deadline, "{fault:?}");
                std::thread::sleep(Duration::from_millis(20));
            }
            assert!(!writing.is_finished());
            relay.is_down.store(false, Ordering::SeqCst);
            writing.join().unwrap()
        });
        let is_there = server.place.reader().job(&job_id(number)).unwrap().is_some();
        assert_eq!(is_there, fault == RelayFault::LoseReply);
        match fault {
            RelayFault::LoseReply => outcome.unwrap(),
            RelayFault::LoseCommit => {
                assert!(matches!(outcome, Err(StoreWriteError::NotSaved(_))), "{outcome:?}");
            }
        }
    }
    insert_jobs(&store, vec![job(3, "coder", JobStatus::Pending)]);
    assert_eq!((count(&server.place), store.database_fault()), (2, None));
}

#[test]
fn a_server_that_was_killed_is_used_again_when_it_is_back() {
    let mut server = server_place();
    let store = server.place.store();
    insert_jobs(&store, vec![job(1, "coder", JobStatus::Pending)]);
    server.cluster.kill();
    let refused = store.write(|tx| tx.insert_job(&job(2, "coder", JobStatus::Pending)));
    let Err(StoreWriteError::NotSaved(error)) = &refused else { panic!("{refused:?}") };
    assert!(error.is_storage_failure(), "{error}");
    assert!(store.database_fault().is_some());
    assert!(StoreReader::open(&server.place.dir).is_err());
    server.cluster.start_server();
    insert_jobs(&store, vec![job(3, "coder", JobStatus::Pending)]);
    assert_eq!((count(&server.place), store.database_fault()), (2, None));
}

#[test]
fn a_second_writer_is_refused_while_the_first_renews_its_lease_and_fences_it_afterwards() {
    let server = server_place();
    let store = server.place.store();
    insert_jobs(&store, vec![job(1, "coder", JobStatus::Pending)]);
    // A copy of the state directory on another machine.
    let copy = file_place();
    let dir = server.place.dir.postgres().unwrap().write(&copy.dir).unwrap();
    let error = Store::open(&dir, "test", now()).unwrap_err().to_string();
    assert!(error.contains("is its writer"), "{error}");
    // As if the first one had been paused for longer than its lease.
    server
        .cluster
        .query("fleet", "UPDATE store_writer SET lease_until = now() - interval '1 hour'");
    let second = Store::open(&dir, "test", now()).unwrap().store;
    let refused = store.write(|tx| tx.insert_job(&job(2, "coder", JobStatus::Pending)));
    let Err(StoreWriteError::NotSaved(error)) = &refused else { panic!("{refused:?}") };
    assert!(error.to_string().contains("another process has become the writer"), "{error}");
    insert_jobs(&second, vec![job(3, "coder", JobStatus::Pending)]);
    assert_eq!(count(&server.place), 2, "the stale writer has saved nothing");
}

/// A writer that is stopped between the beginning and the end of its transaction commits nothing after
/// another one has taken over.
#[test]
fn a_transaction_that_began_before_another_writer_took_over_is_not_committed() {
    let server = server_place();
    let store = server.place.store();
    insert_jobs(&store, vec![job(1, "coder", JobStatus::Pending)]);
    let copy = file_place();
    let dir = server.place.dir.postgres().unwrap().write(&copy.dir).unwrap();
    let (begun, is_begun) = std::sync::mpsc::channel();
    let (taken, is_taken) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            store.write(move |tx| {
                tx.insert_job(&job(2, "coder", JobStatus::Pending))?;
                begun.send(()).unwrap();
                is_taken.recv().unwrap();
                Ok::<(), DatabaseError>(())
            })
        });
        is_begun.recv().unwrap();
        let expire = "UPDATE store_writer SET lease_until = now() - interval '1 hour'";
        server.cluster.query("fleet", expire);
        let second = Store::open(&dir, "test", now()).unwrap().store;
        insert_jobs(&second, vec![job(3, "coder", JobStatus::Pending)]);
        taken.send(()).unwrap();
        let refused = writing.join().unwrap();
        assert!(matches!(refused, Err(StoreWriteError::NotSaved(_))), "{refused:?}");
    });
    assert!(server.place.reader().job(&job_id(2)).unwrap().is_none());
    assert!(server.place.reader().job(&job_id(3)).unwrap().is_some());
}

/// Makes a state directory a host of the fleet of another one.
pub(super) fn host_place(server: &ServerPlace, name: &str) -> TempStateDir {
    let mut place = file_place();
    let host = Some(crate::HostIdentity::new(name.parse().unwrap()));
    let location = server.place.dir.postgres().unwrap().clone();
    place.dir = PostgresLocation { host, ..location }.write(&place.dir).unwrap();
    // As each daemon does, before it writes anything: it creates the tables of hosts.
    HostLink::connect(&place.dir).unwrap();
    place
}

/// Most attempts to take over from a leader that renews its lease.
const ATTEMPTS_MAX: usize = 100;

/// Ends the lease of the leader.
pub(super) const EXPIRE: &str = "UPDATE store_writer SET lease_until = now() - interval '1 hour'";

#[test]
fn one_host_leads_and_another_takes_over_when_its_lease_has_ended() {
    let server = server_place();
    let (first, second) = (host_place(&server, "alpha"), host_place(&server, "beta"));
    let facts = HostFacts { version: "1".to_owned(), pid: 1, ..HostFacts::default() };
    let link = HostLink::connect(&second.dir).unwrap();
    let pulse = link.beat(HostState::Standby, None, now()).unwrap();
    assert!(pulse.is_free && pulse.leader.is_none(), "{pulse:?}");
    let store = first.store();
    let instance = store.writer_instance().unwrap().to_owned();
    let leader = HostLink::connect(&first.dir).unwrap();
    leader.register(&facts, HostState::Leader).unwrap();
    link.register(&facts, HostState::Standby).unwrap();
    let lease = LeadLease::default();
    let pulse = leader.beat(HostState::Leader, Some((&instance, &lease)), now()).unwrap();
    assert!(pulse.is_own && lease.is_held() && !lease.is_lost(), "{pulse:?}");
    let pulse = link.beat(HostState::Standby, None, now()).unwrap();
    assert_eq!((pulse.is_free, pulse.leader.as_deref()), (false, Some("alpha")));
    assert!(!link.take_lead().unwrap());
    let refused = Store::open(&second.dir, "test", now()).unwrap_err().to_string();
    assert!(refused.contains("host alpha") && refused.contains("leads this fleet"), "{refused}");
    // A directory that is no host may not write at all.
    let refused = Store::open(&server.place.dir, "test", now()).unwrap_err().to_string();
    assert!(refused.contains("several hosts"), "{refused}");
    let hosts = second.reader().hosts().unwrap();
    let roles: Vec<_> = hosts.iter().map(|it| (it.name.as_str(), it.is_leader)).collect();
    assert_eq!(roles, [("alpha", true), ("beta", false)]);

    // The leader renews its lease, also just after its end.
    let is_taken = (0..ATTEMPTS_MAX).any(|_| {
        server.cluster.query("fleet", EXPIRE);
        link.take_lead().unwrap()
    });
    assert!(is_taken);
    let taken = second.store();
    assert!(!leader.beat(HostState::Leader, Some((&instance, &lease)), now()).unwrap().is_own);
    assert!(lease.is_lost());
    let refused = store.write(|tx| tx.insert_job(&job(2, "coder", JobStatus::Pending)));
    assert!(matches!(refused, Err(StoreWriteError::NotSaved(_))), "{refused:?}");
    insert_jobs(&taken, vec![job(3, "coder", JobStatus::Pending)]);
    assert_eq!(count(&second), 1);

    // An orderly end gives the lead away.
    drop(taken);
    assert!(leader.beat(HostState::Standby, None, now()).unwrap().is_free);
}

#[test]
fn a_name_belongs_to_one_host_until_it_is_removed() {
    let server = server_place();
    let (first, second) = (host_place(&server, "alpha"), host_place(&server, "alpha"));
    let facts = HostFacts { pid: 1, url: Some("http://x".to_owned()), ..HostFacts::default() };
    let (link, other) =
        (HostLink::connect(&first.dir).unwrap(), HostLink::connect(&second.dir).unwrap());
    drop(first.store());
    link.register(&facts, HostState::Standby).unwrap();
    link.register(&facts, HostState::Standby).unwrap();
    let refused = other.register(&facts, HostState::Standby).unwrap_err().to_string();
    assert!(refused.contains("heeler host remove alpha"), "{refused}");
    let refused = other.remove_host("alpha").unwrap().unwrap_err();
    assert!(refused.contains("is alive"), "{refused}");
    assert!(other.remove_host("gamma").unwrap().unwrap_err().contains("there is no host"));
    link.beat(HostState::Stopped, None, now()).unwrap();
    other.remove_host("alpha").unwrap().unwrap();
    other.register(&facts, HostState::Standby).unwrap();
    let hosts = first.reader().hosts().unwrap();
    assert_eq!((hosts.len(), hosts[0].url.as_deref()), (1, Some("http://x")));
}

#[test]
fn a_command_is_taken_by_one_leader_at_a_time_and_answered_once() {
    let server = server_place();
    let (first, second) = (host_place(&server, "alpha"), host_place(&server, "beta"));
    let store = first.store();
    let old = store.writer_instance().unwrap().to_owned();
    let (leader, standby) =
        (HostLink::connect(&first.dir).unwrap(), HostLink::connect(&second.dir).unwrap());
    // Quotes and backslashes arrive as they were sent.
    let body = "{\"say\": \"it's \\\\ 'x'\"}";
    for id in ["1", "2", "3"] {
        standby.send_command(id, body).unwrap();
        standby.send_command(id, "again").unwrap();
    }
    assert!(standby.withdraw_command("3").unwrap());
    assert!(leader.take_commands("another instance").unwrap().is_empty());
    let taken = leader.take_commands(&old).unwrap();
    assert_eq!(taken.len(), 2, "{taken:?}");
    assert!(taken.iter().all(|row| row.body == body && row.host == "beta"), "{taken:?}");
    assert!(leader.take_commands(&old).unwrap().is_empty(), "it has them");
    assert!(!standby.withdraw_command("1").unwrap(), "a leader has begun");
    leader.answer_command(&old, "1", "first").unwrap();

    // The next leader takes what is not answered; the old one answers no more.
    let next = (0..ATTEMPTS_MAX).find_map(|_| {
        // The leader renews its lease, also just after its end.
        server.cluster.query("fleet", EXPIRE);
        Store::open(&second.dir, "test", now()).ok()
    });
    let next = next.expect("the lead is taken over").store;
    let new = next.writer_instance().unwrap().to_owned();
    leader.answer_command(&old, "2", "stale").unwrap();
    let taken = standby.take_commands(&new).unwrap();
    assert_eq!(taken.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), ["2"]);
    standby.answer_command(&new, "2", "second").unwrap();
    standby.answer_command(&new, "2", "third").unwrap();
    let ids = ["1", "2", "3"].map(str::to_owned);
    let mut replies = standby.replies(&ids).unwrap();
    replies.sort_by(|a, b| a.id.cmp(&b.id));
    let texts: Vec<_> = replies.iter().map(|row| row.reply.as_deref()).collect();
    assert_eq!(texts, [Some("first"), Some("second")]);
    standby.forget_command("1").unwrap();
    assert_eq!(standby.replies(&ids).unwrap().len(), 1);
    // A command that no leader took is not executed later.
    standby.send_command("4", body).unwrap();
    server.cluster.query(
        "fleet",
        "UPDATE host_commands SET created_at = now() - interval '1 hour' WHERE id = '4'",
    );
    assert!(standby.take_commands(&new).unwrap().is_empty());
    assert!(standby.replies(&["4".to_owned()]).unwrap().is_empty());
}

#[test]
fn a_report_stays_until_its_run_has_a_result_or_is_replaced() {
    let server = server_place();
    let place = host_place(&server, "alpha");
    let store = place.store();
    insert_jobs(&store, vec![job(1, "coder", JobStatus::Running)]);
    let id = RunId::mint(now(), [1; 10]);
    let record = run_of_host(id, "created");
    assert!(record.is_elsewhere(&place.dir) && !record.is_elsewhere(&server.place.dir));
    let inserted = record.clone();
    let written: Result<_, StoreWriteError<DatabaseError>> =
        store.write(move |tx| tx.insert_run(&inserted).map(drop));
    written.unwrap();
    let link = HostLink::connect(&place.dir).unwrap();
    assert!(place.reader().is_job_alive(&place.dir, &job_id(1)).unwrap());
    assert!(!place.reader().is_job_orphaned(&place.dir, &job_id(1)).unwrap());
    link.send_report((id, 0), "exit", "one").unwrap();
    let first = link.reports().unwrap();
    link.send_report((id, 0), "exit", "two").unwrap();
    link.forget_report(&first[0]).unwrap();
    let second = link.reports().unwrap();
    assert_eq!((first[0].body.as_str(), second[0].body.as_str()), ("one", "two"));
    // A run that is not on record is of another fleet, or was restored away.
    link.send_report((RunId::mint(now(), [2; 10]), 0), "exit", "none").unwrap();
    assert_eq!(link.reports().unwrap().len(), 1);
    server.cluster.query("fleet", "UPDATE runs SET committed = 1");
    assert!(link.reports().unwrap().is_empty());
}

pub(super) fn run_of_host(id: RunId, status: &str) -> RunRecord {
    RunRecord {
        id,
        job_id: job_id(1),
        attempt: 1,
        host: "beta".to_owned(),
        epoch: 1,
        status: status.to_owned(),
        created_at: now(),
        started_at: None,
        finished_at: None,
        committed: false,
        version: 1,
        result_key: None,
    }
}

#[test]
fn a_host_claims_its_run_once_and_ships_each_part_once_until_it_is_given_up() {
    let server = server_place();
    let (first, second) = (host_place(&server, "alpha"), host_place(&server, "beta"));
    let store = first.store();
    insert_jobs(&store, vec![job(1, "coder", JobStatus::Running)]);
    let id = RunId::mint(now(), [1; 10]);
    let written: Result<_, StoreWriteError<DatabaseError>> = store.write(move |tx| {
        tx.insert_run(&run_of_host(id, ASSIGNED_RUN))?;
        tx.set_run_assignment(id, "{}")
    });
    written.unwrap();
    let (leader, host) =
        (HostLink::connect(&first.dir).unwrap(), HostLink::connect(&second.dir).unwrap());
    for (link, state) in [(&leader, HostState::Leader), (&host, HostState::Standby)] {
        link.register(&HostFacts::default(), state).unwrap();
    }
    assert!(!leader.claim_run(id, 0, None, "hash").unwrap(), "it is another host's");
    assert!(!host.claim_run(id, 1, None, "hash").unwrap(), "that is another term");
    assert!(host.claim_run(id, 0, None, "hash").unwrap());
    assert!(!host.claim_run(id, 0, None, "hash").unwrap(), "it was claimed");
    assert_eq!(second.reader().run(id).unwrap().unwrap().status, "created");

    let path = "jobs/job-2024-01-19-abc123.jsonl";
    let part = |start: u64, bytes: &'static [u8]| SharedPart {
        run: id,
        term: 0,
        path,
        start,
        bytes,
        is_last: false,
    };
    assert_eq!(leader.send_part(&part(0, b"{}\n")).unwrap(), PartReceipt::Fenced);
    assert_eq!(host.send_part(&part(5, b"{}\n")).unwrap(), PartReceipt::OtherLength(0));
    assert_eq!(host.send_part(&part(0, b"{}\n")).unwrap(), PartReceipt::Stored);
    assert_eq!(host.send_part(&part(0, b"{}\n")).unwrap(), PartReceipt::OtherLength(3));
    assert_eq!(host.send_part(&part(3, b"{\"a\":\"\\\'\"}\n")).unwrap(), PartReceipt::Stored);
    assert_eq!(host.unshipped_runs().unwrap(), [UnshippedRun { run: id, is_ended: false }]);
    assert!(leader.unshipped_runs().unwrap().is_empty());
    let parts = leader.parts_after(0).unwrap();
    let bytes: Vec<&[u8]> = parts.iter().map(|part| part.bytes.as_slice()).collect();
    assert_eq!(bytes, [&b"{}\n"[..], b"{\"a\":\"\\\'\"}\n"]);
    assert_eq!(leader.parts_after(parts[0].number).unwrap(), &parts[1..]);

    // Parts stay until every host has them, and the run has a result.
    leader.note_parts_read(parts[1].number).unwrap();
    host.note_parts_read(parts[1].number).unwrap();
    leader.remove_read_parts().unwrap();
    assert_eq!(leader.parts_after(0).unwrap().len(), 2);
    let given_up: Result<_, StoreWriteError<DatabaseError>> =
        store.write(move |tx| tx.raise_run_term(id));
    given_up.unwrap();
    assert_eq!(host.send_part(&part(12, b"{}\n")).unwrap(), PartReceipt::Fenced);
    host.send_report((id, 0), "exit", "late").unwrap();
    server.cluster.query("fleet", "UPDATE runs SET committed = 1");
    assert!(leader.reports().unwrap().is_empty());
    let refused = first.reader().refused_results("beta").unwrap();
    assert_eq!(refused.len(), 1);
    assert_eq!(refused[0].run, id.to_string());
    leader.remove_read_parts().unwrap();
    assert!(leader.parts_after(0).unwrap().is_empty());
    assert_eq!(leader.parts_read().unwrap(), parts[1].number);
    assert_eq!(host.unshipped_runs().unwrap(), [UnshippedRun { run: id, is_ended: true }]);
    leader.finish_files(id).unwrap();
    assert_eq!(host.unshipped_runs().unwrap().len(), 1, "it is another host's");
    host.finish_files(id).unwrap();
    assert!(host.unshipped_runs().unwrap().is_empty());
}
