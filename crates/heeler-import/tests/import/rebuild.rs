//! Rebuild of a damaged or missing database from a backup, views and transcripts.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_import::rebuild;
use heeler_model::{AgentState, Job, JobStatus, ScheduleState, TriggerType};
use heeler_store::doctor::{Finding, FindingArea, FindingSeverity, examine};
use heeler_store::staging::state_files::create_folder;
use heeler_store::{DatabaseError, JobFilter, StateDir, Store, StoreReader, idle_session};
use jiff::{SignedDuration, Timestamp};

use super::now;

/// The fleet's one session.
const SESSION: &str = "sess-0000beef";

struct RebuildTestFleet {
    dir: StateDir,
    _temp: tempfile::TempDir,
}

impl RebuildTestFleet {
    /// A fleet in good health: an agent, a finished job with its log, a session, a backup.
    fn new() -> RebuildTestFleet {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(temp.path().canonicalize().unwrap()).unwrap();
        let dir = StateDir::create(&root.join(".heeler")).unwrap();
        let fleet = RebuildTestFleet { dir, _temp: temp };
        let store = fleet.store();
        store
            .write(|tx| {
                let mut agent = AgentState::default();
                agent.schedules.insert("nightly".to_owned(), ScheduleState::default());
                tx.put_agent("coder", &agent)?;
                tx.insert_job(&job("job-2026-11-15-aaaaaa", JobStatus::Completed))?;
                let own = Some("5b7c2c0e".parse().expect("a plain id"));
                let mut session = idle_session("coder", own, now());
                session.id = SESSION.parse().expect("a session id");
                session.log_path = Some("agent-sessions/projects/-x/5b7c2c0e.jsonl".into());
                tx.put_session(&session)?;
                tx.set_agent_session("coder", Some(&session.id))
            })
            .unwrap();
        fleet.write("jobs/job-2026-11-15-aaaaaa.jsonl", "{\"type\":\"system\"}\n");
        fleet.write("agent-sessions/projects/-x/5b7c2c0e.jsonl", "{\"type\":\"user\"}\n");
        store.publish_views(now()).unwrap();
        store.backup_daily(now()).unwrap().unwrap();
        drop(store);
        let found = fleet.examine();
        assert!(found.is_empty(), "{found:#?}");
        fleet
    }

    fn store(&self) -> Store {
        Store::open(&self.dir, "test", now()).unwrap().store
    }

    fn path(&self, relative: &str) -> Utf8PathBuf {
        self.dir.root().join(relative)
    }

    fn write(&self, relative: &str, text: &str) {
        let path = self.path(relative);
        create_folder(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn examine(&self) -> Vec<Finding> {
        // Old enough for temp files, young enough for backups.
        let touched = self.dir.root().metadata().unwrap().modified().unwrap();
        let later = Timestamp::try_from(touched).unwrap() + SignedDuration::from_hours(2);
        examine(self.dir.root(), None, later)
    }
}

fn job(id: &str, status: JobStatus) -> Job {
    let mut job = Job::new_pending(id.parse().unwrap(), "coder", TriggerType::Manual, now());
    job.head.status = status;
    job
}

/// Overwrites the middle of the database, as a bad disk does.
fn damage(fleet: &RebuildTestFleet) {
    let path = fleet.dir.database();
    let mut bytes = fs::read(&path).unwrap();
    let len = bytes.len();
    bytes[4096..len].fill(0x5A);
    fs::write(&path, bytes).unwrap();
}

#[test]
fn records_that_the_database_does_not_have_are_found_and_imported() {
    let fleet = RebuildTestFleet::new();
    let yaml = "agent: coder\nstatus: completed\nstarted_at: 2026-11-12T00:00:00Z\n";
    fleet.write("jobs/job-2026-11-12-broken.yaml", yaml);
    let found = fleet.examine();
    assert!(found.iter().any(|it| it.problem.contains("the database does not have")), "{found:#?}");
    rebuild(fleet.dir.root(), now()).unwrap();
    drop(fleet.store());
    let findings = fleet.examine();
    assert!(
        findings.iter().all(|finding| finding.problem.contains("no transcript")),
        "{findings:#?}"
    );
    let reader = StoreReader::open(&fleet.dir).unwrap();
    assert_eq!(reader.find_job("job-2026-11-12-broken").unwrap().head.agent, "coder");
}

#[test]
fn a_damaged_database_is_rebuilt_from_backup_views_and_logs() {
    let fleet = RebuildTestFleet::new();
    let store = fleet.store();
    store
        .write::<(), DatabaseError, _>(|tx| {
            let mut job = job("job-2026-11-15-cccccc", JobStatus::Completed);
            job.head.summary = Some("after the backup".to_owned());
            tx.insert_job(&job)?;
            let mut first =
                tx.job(&"job-2026-11-15-aaaaaa".parse().expect("an id"))?.expect("it is there");
            first.head.status = JobStatus::Failed;
            tx.update_job(&first).map(drop)
        })
        .unwrap();
    store.publish_views(now()).unwrap();
    drop(store);
    fleet.write(
        "agent-sessions/projects/-y/77aa.jsonl",
        "{\"type\":\"user\",\"message\":{\"content\":\"x\"}}\n",
    );
    damage(&fleet);
    let found = fleet.examine();
    assert!(
        found.iter().any(|finding| finding.area == FindingArea::Database
            && finding.severity == FindingSeverity::Error
            && finding.remedy.contains("--rebuild")),
        "{found:#?}"
    );

    let rebuilt = rebuild(fleet.dir.root(), now()).unwrap();
    assert!(rebuilt.base.is_some());
    assert!(
        rebuilt.losses.iter().any(|lost| lost.starts_with("effects since the backup")),
        "{rebuilt:#?}"
    );
    assert!(rebuilt.trash.join("heeler.db").exists());
    drop(fleet.store());
    let findings = fleet.examine();
    assert!(
        findings.iter().all(|finding| finding.problem.contains("no transcript")),
        "{findings:#?}"
    );
    let reader = StoreReader::open(&fleet.dir).unwrap();
    let job = reader.find_job("job-2026-11-15-cccccc").unwrap();
    assert_eq!(job.head.summary.as_deref(), Some("after the backup"));
    assert_eq!(reader.find_job("job-2026-11-15-aaaaaa").unwrap().head.status, JobStatus::Failed);
    assert_eq!(reader.find_session("77aa").unwrap().message_count, 1);
    assert_eq!(reader.find_session("5b7c2c0e").unwrap().agent, "coder");
    assert!(reader.agents().unwrap()["coder"].schedules.contains_key("nightly"));
    assert_eq!(reader.epoch().unwrap(), 2);
}

#[test]
fn without_a_backup_views_and_logs_alone_make_a_database() {
    let fleet = RebuildTestFleet::new();
    fs::remove_dir_all(fleet.path("backups")).unwrap();
    fs::write(fleet.dir.database(), "no database at all, just some text").unwrap();
    fs::write(format!("{}-wal", fleet.dir.database()), "stale").unwrap();
    let rebuilt = rebuild(fleet.dir.root(), now()).unwrap();
    assert_eq!(rebuilt.base, None);
    assert_eq!(fs::read(rebuilt.trash.join("heeler.db-wal")).unwrap(), b"stale");
    assert!(!Utf8Path::new(&format!("{}-wal", fleet.dir.database())).exists());
    let reader = StoreReader::open(&fleet.dir).unwrap();
    assert_eq!(reader.count_jobs(&JobFilter::default()).unwrap(), 1);
    let session = reader.agent_session("coder").unwrap().unwrap();
    assert_eq!(session.id.as_str(), SESSION);
    let log = session.log_path.unwrap();
    assert_eq!(log, "agent-sessions/projects/-x/5b7c2c0e.jsonl");
    drop(reader);
    drop(fleet.store());
    let left = fleet.examine();
    assert!(left.iter().all(|finding| finding.area == FindingArea::Backups), "{left:#?}");
}
