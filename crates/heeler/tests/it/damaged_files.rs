//! Files of a state directory that are deleted, replaced or garbled while a daemon uses them.

use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::Stdio;
use std::time::{Duration, Instant};

use heeler_engine::fault::FaultPoint;
use heeler_model::JobStatus;
use heeler_store::{StateDir, Store};
use heeler_testkit::WAIT_MAX;
use heeler_transcript::{LockFile, LockHolder};
use jiff::Timestamp;

use crate::daemon_ends::{dies, dying_at};
use crate::daemon_kills::Herd;
use crate::daemon_lives::{ask, wanted};
use crate::fleet::Ran;
use crate::trigger::wait_for;

/// Agents that wait at the gate, and one that ends at once.
const AGENTS: &str = "agents:
  - {name: worker, runtime: scripted, script: [{say: Working.}, {run: 'read line < gate'}, {say: Done.}]}
  - {name: quick, runtime: scripted, script: [{say: Quick.}]}
";

/// Damage to the database of a running daemon.
const DAMAGES: [(&str, &str); 5] = [
    ("the database is deleted", "rm heeler.db"),
    ("the database and its side files are deleted", "rm heeler.db*"),
    ("the write-ahead log is deleted", "rm heeler.db-wal"),
    ("the shared memory is deleted", "rm heeler.db-shm"),
    ("another file replaces the database", "echo foreign > f && mv f heeler.db"),
];

impl Herd {
    /// Runs a shell command in the state directory.
    #[track_caller]
    fn shell(&self, command: &str) {
        let mut shell = std::process::Command::new("sh");
        let status = shell.args(["-c", command]).current_dir(self.fleet.state_dir()).status();
        assert!(status.unwrap().success(), "{command}");
    }
}

#[test]
fn a_database_that_is_lost_under_a_daemon_is_written_back_and_nothing_is_lost() {
    let mut herd = Herd::of(AGENTS);
    let (mut life, mut client) = herd.begin(&[]);
    let worker = ask(&mut client, wanted("worker"));
    wait_for("the worker", || {
        Some(herd.job(&worker)).filter(|job| job.head.status == JobStatus::Running)
    });
    let mut quick = Vec::new();
    for (what, damage) in DAMAGES {
        let inode = || herd.fleet.file(".heeler/heeler.db").metadata().ok().map(|it| it.ino());
        let before = inode().unwrap();
        herd.shell(damage);
        // A log that vanishes while it is read is no more than an error of that reader.
        if damage.contains('-') {
            wait_for("the database", || inode().filter(|&now| now != before));
        }
        // A reader neither adopts the directory nor creates a database of its own. One that reads while
        // the files are exchanged may fail.
        let listed = wait_for("the list", || {
            let listed = herd.fleet.run(&["jobs", "--json"]);
            assert!(!listed.stderr.contains("adopted"), "{what}: {}", listed.stderr);
            (listed.code == Some(0)).then_some(listed)
        });
        assert!(listed.stdout.contains(worker.as_str()), "{what}: {}", listed.stdout);
        // An acknowledged job is in the file that has the name.
        let job = ask(&mut client, wanted("quick"));
        assert_ne!(inode(), Some(before), "{what}: it is another file with the same content");
        assert_eq!(herd.job(&job).head.agent, "quick", "{what}");
        assert_eq!(herd.ends(&job).head.status, JobStatus::Completed, "{what}");
        quick.push(job);
        assert_eq!(herd.job(&worker).head.status, JobStatus::Running, "{what}");
    }
    herd.open_gate();
    assert_eq!(herd.ends(&worker).head.status, JobStatus::Completed);
    let foreign = herd.fleet.state_dir().join("trash").read_dir_utf8().unwrap();
    let foreign = foreign.filter_map(|folder| {
        std::fs::read_to_string(folder.unwrap().path().join("heeler.db")).ok()
    });
    assert!(foreign.into_iter().any(|text| text == "foreign\n"), "the other file is kept");
    life.kill();
    // The next daemon has all of it.
    let (_life, _client) = herd.begin(&[]);
    for job in quick.iter().chain([&worker]) {
        assert_eq!(herd.job(job).head.status, JobStatus::Completed);
    }
    let sound = herd.fleet.run(&["doctor"]);
    assert_eq!(sound.code, Some(0), "{}", sound.stdout);
}

#[test]
fn an_idle_daemon_notices_at_once_that_its_database_is_lost() {
    let herd = Herd::of(AGENTS);
    let (mut life, mut client) = herd.begin(&[]);
    let job = ask(&mut client, wanted("quick"));
    herd.ends(&job);
    herd.shell("rm heeler.db*");
    // It is complete once its log has an entry.
    wait_for("the database", || {
        let log = herd.fleet.file(".heeler/heeler.db-wal").metadata();
        log.is_ok_and(|log| log.len() > 0).then_some(())
    });
    life.kill();
    assert_eq!(herd.job(&job).head.status, JobStatus::Completed);
    // The daemon may have been killed before it had published all views.
    let found = herd.fleet.run(&["doctor"]).stdout;
    assert!(!found.contains("error") && !found.contains("heeler.db"), "{found}");
}

#[test]
fn a_command_finds_its_daemon_whatever_is_in_daemon_json() {
    let mut herd = Herd::of(AGENTS);
    let (mut life, mut client) = herd.begin(&[]);
    let worker = ask(&mut client, wanted("worker"));
    drop(client);
    let file = herd.fleet.file(".heeler/daemon.json");
    let own = std::fs::read_to_string(&file).unwrap();
    let newer = own.replace("\"protocol\": 1", "\"protocol\": 9");
    assert_ne!(newer, own);
    let foreign = own.replace(&format!("\"pid\": {}", life.child.id()), "\"pid\": 1");
    assert_ne!(foreign, own);
    for (what, content) in [
        ("missing", None),
        ("empty", Some("")),
        ("garbled", Some("\u{0}\u{1}{{{")),
        ("truncated", Some(&own[..own.len() / 2])),
        ("of another release", Some(&newer)),
        ("of another process", Some(&foreign)),
        ("a folder", Some("FOLDER")),
    ] {
        let _removed = std::fs::remove_file(&file);
        match content {
            // The daemon may write the file again in between.
            Some("FOLDER") => wait_for("the folder", || {
                let _removed = std::fs::remove_file(&file);
                std::fs::create_dir(&file).ok()
            }),
            Some(text) => std::fs::write(&file, text).unwrap(),
            None => {}
        }
        for args in [
            &["trigger", "quick"] as &[&str],
            &["status"],
            &["logs", "-n", "1"],
            &["reload"],
            &["schedule", "list"],
        ] {
            let ran = herd.fleet.run(args);
            assert_eq!(ran.code, Some(0), "{what}: {args:?}: {}{}", ran.stdout, ran.stderr);
        }
        let status = herd.fleet.json(&["status", "--json"]);
        let pid = &status["daemon"]["pid"];
        assert_eq!(pid.as_u64(), Some(life.child.id().into()), "{what}: {status:#}");
    }
    // A restart and a stop find it too, and the new daemon replaces what it finds there.
    let restarted = herd.fleet.run(&["restart"]);
    assert_eq!(restarted.code, Some(0), "{}", restarted.stderr);
    assert!(life.has_ended());
    herd.open_gate();
    herd.ends(&worker);
    let _removed = std::fs::remove_dir(&file);
    std::fs::write(&file, "garbled").unwrap();
    let stopped = herd.fleet.run(&["stop"]);
    assert_eq!(stopped.code, Some(0), "{}", stopped.stderr);
}

#[test]
fn a_command_waits_for_a_daemon_that_is_just_creating_the_database() {
    let herd = Herd::of(AGENTS);
    let dir = StateDir::create(&herd.fleet.state_dir()).unwrap();
    drop(Store::open(&dir, "start", Timestamp::now()).unwrap());
    let database = rusqlite::Connection::open(dir.database()).unwrap();
    // A new daemon has not made the last migration yet.
    let newest = "version = (SELECT MAX(version) FROM schema_migration)";
    let before = format!("UPDATE schema_migration SET version = -version WHERE {newest}");
    assert_eq!(database.execute(&before, []).unwrap(), 1);
    let holder = LockHolder::this_process("start", Timestamp::now());
    let lock = LockFile::acquire(&dir.lock(), &holder, WAIT_MAX).unwrap();
    let mut trigger = herd.command("trigger");
    let mut child = trigger.arg("quick").stderr(Stdio::piped()).spawn().unwrap();
    // Longer than an attempt to take the lock lasts. A command that waits says nothing meanwhile.
    let until = Instant::now() + Duration::from_secs(1);
    wait_for("an attempt", || {
        (child.try_wait().unwrap().is_some() || Instant::now() >= until).then_some(())
    });
    let after = "UPDATE schema_migration SET version = -version WHERE version < 0";
    assert_eq!(database.execute(after, []).unwrap(), 1);
    drop(database);
    drop(lock);
    let ran = child.wait_with_output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
fn a_fleet_works_in_any_folder_and_with_temporary_folders_that_do_not_exist() {
    let herd = Herd::of(AGENTS);
    let long = herd.fleet.file(&"r".repeat(150));
    std::fs::create_dir(&long).unwrap();
    std::fs::set_permissions(&long, Permissions::from_mode(0o700)).unwrap();
    let none = herd.fleet.file("none");
    for (what, variables) in [
        ("missing", [("TMPDIR", &none), ("XDG_RUNTIME_DIR", &none)]),
        ("long", [("TMPDIR", &long), ("XDG_RUNTIME_DIR", &long)]),
    ] {
        let ran = herd.command("trigger").arg("quick").envs(variables).output().unwrap();
        assert!(ran.status.success(), "{what}: {}", String::from_utf8_lossy(&ran.stderr));
        let job = herd.jobs().pop().unwrap().id;
        wait_for("the view", || {
            let view = herd.fleet.file(&format!(".heeler/jobs/{job}.yaml"));
            std::fs::read_to_string(view).ok()?.contains("status: completed").then_some(())
        });
    }
    // SQLite cannot open a longer path, so a fleet that is deeper needs a state directory elsewhere.
    let deep = format!("{0}/{0}/{0}", "p".repeat(230));
    std::fs::create_dir_all(herd.fleet.file(&deep)).unwrap();
    herd.fleet.write(&format!("{deep}/heeler.yaml"), AGENTS);
    let mut trigger = herd.fleet.command(&["trigger", "quick"]);
    let ran = Ran::from(trigger.current_dir(herd.fleet.file(&deep)).output().unwrap());
    let told = ran.fails(1);
    assert!(told.contains("SQLite opens at most 504"), "{told}");
}

#[test]
fn a_write_ahead_log_that_is_deleted_after_a_kill_is_reported() {
    let herd = Herd::of(AGENTS);
    let (mut life, mut client) = herd.begin(&[]);
    herd.ends(&ask(&mut client, wanted("quick")));
    life.kill();
    let findings = |fleet: &crate::fleet::Fleet| {
        let ran = fleet.run(&["doctor", "--json"]);
        let report: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        report["findings"].to_string()
    };
    assert!(!findings(&herd.fleet).contains("-wal"), "the log is there");
    herd.shell("rm heeler.db-wal heeler.db-shm");
    for _ in 0..2 {
        let found = findings(&herd.fleet);
        assert!(found.contains("-wal") && found.contains("last acknowledged changes"), "{found}");
    }
}

#[test]
fn a_rebuilt_database_has_no_finding_left() {
    let herd = Herd::of(AGENTS);
    let (mut life, mut client) = herd.begin(&[]);
    herd.ends(&ask(&mut client, wanted("quick")));
    life.kill();
    herd.shell("rm heeler.db-wal heeler.db-shm; head -c 8192 heeler.db > f; mv f heeler.db");
    herd.fleet.run(&["doctor", "--rebuild", "--yes"]).ok();
    // Nobody knows any more what the job may have changed, so a person looks at the config.
    let found = herd.fleet.run(&["doctor"]);
    assert!(found.stdout.contains("heeler reload --accept"), "{}", found.stdout);
    herd.fleet.run(&["reload", "--accept", "--yes"]).ok();
    let after = herd.fleet.run(&["doctor"]);
    assert_eq!(after.code, Some(0), "{}", after.stdout);
    assert_eq!(herd.jobs().len(), 1);
}

#[test]
fn a_trigger_whose_daemon_dies_before_its_reply_starts_one_job() {
    let herd = Herd::of(AGENTS);
    let (mut life, client) = dying_at(&herd, FaultPoint::RequestDone);
    drop(client);
    herd.fleet.run(&["trigger", "quick"]).ok();
    dies(&mut life, FaultPoint::RequestDone);
    assert_eq!(herd.jobs().len(), 1);
}

#[test]
fn a_daemon_upgrades_the_database_of_an_older_release() {
    let herd = Herd::of(AGENTS);
    let dir = StateDir::create(&herd.fleet.state_dir()).unwrap();
    let database = rusqlite::Connection::open(dir.database()).unwrap();
    let base = include_str!("../../../heeler-store/migrations/001_base.sql");
    let versions = "CREATE TABLE schema_migration (version BIGINT NOT NULL PRIMARY KEY, \
        name TEXT NOT NULL, applied_at TEXT NOT NULL); \
        INSERT INTO schema_migration VALUES (1, 'base', '2026-01-01T00:00:00.000Z');";
    database.execute_batch(&format!("{versions}{base}")).unwrap();
    drop(database);
    let (_life, mut client) = herd.begin(&[]);
    herd.ends(&ask(&mut client, wanted("quick")));
}

#[test]
fn a_password_with_control_characters_is_refused() {
    let fleet = crate::fleet::Fleet::new();
    let mut set = fleet.command(&["password", "set", "ann"]);
    let mut set =
        set.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The arrow key to the left.
    set.stdin.take().unwrap().write_all(b"correct horse\x1b[D battery\n").unwrap();
    let told = Ran::from(set.wait_with_output().unwrap()).fails(2);
    assert!(told.contains("control characters"), "{told}");
}
