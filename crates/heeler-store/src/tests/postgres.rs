//! The store on PostgreSQL: the other tests on a real server, and what only a server can do.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use camino::Utf8Path;
use heeler_testkit::{PostgresCluster, WAIT_MAX};

use super::database::all_sql;
use super::*;
use crate::db::StateDatabase;
use crate::db::dialect::translate;
use crate::{JobFilter, StoreWriteError};

/// Tests of SQLite's own files, locks, plans and failures, by the beginning of their names.
const SQLITE_ONLY: &[(&str, &str)] = &[
    ("tests::postgres::", "they start their own server"),
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
struct ServerPlace {
    place: TempStateDir,
    cluster: PostgresCluster,
}

fn server_place() -> ServerPlace {
    let cluster = PostgresCluster::start();
    cluster.create_database("fleet");
    let place = file_place();
    let mut server = ServerPlace { place, cluster };
    server.move_to(&server.cluster.url("fleet"));
    server
}

/// A state directory with SQLite, whatever the other tests use.
fn file_place() -> TempStateDir {
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
            Some(known) => PostgresLocation { url, fleet: known.fleet.clone() },
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
