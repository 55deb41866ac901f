//! `import lastlight`.

use camino::{Utf8Path, Utf8PathBuf};
use expect_test::expect;
use heeler_import::{ImportError, ImportItemKind, import_lastlight};
use heeler_model::{JobStatus, SessionMode};
use heeler_store::{ApprovalFilter, SessionFilter, StoreReader, WorkflowRunFilter};
use rusqlite::Connection;

use super::{Place, fingerprint, now, reasons, tally};

const SEED: &str = include_str!("lastlight_seed.sql");
const VERSION_026: &str = include_str!("lastlight_026.sql");

#[expect(clippy::disallowed_methods, reason = "makes another system's database")]
fn connect(path: &Utf8Path) -> Connection {
    Connection::open(path).unwrap()
}

/// Makes a STATE_DIR; its newest changes are in the write-ahead log only.
fn state(place: &Place, scripts: &[&str]) -> (Utf8PathBuf, Connection) {
    let dir = place.path("lastlight");
    std::fs::create_dir_all(&dir).unwrap();
    let db = connect(&dir.join("lastlight.db"));
    db.execute_batch("PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0;").unwrap();
    for script in scripts {
        db.execute_batch(script).unwrap();
    }
    for (slug, id) in [
        ("-home-agent-workspace", "aaaa0001-0000-4000-8000-000000000001"),
        ("-home-agent-workspace", "agent-77"),
        ("-app", "aaaa0003-0000-4000-8000-000000000003"),
        ("-app", "bbbb0009-0000-4000-8000-000000000009"),
    ] {
        let folder = dir.join("agent-sessions/projects").join(slug);
        std::fs::create_dir_all(&folder).unwrap();
        let lines = "{\"type\":\"user\",\"message\":{\"role\":\"user\",\"content\":\"go\"}}\n\
            {\"type\":\"assistant\",\"message\":{\"role\":\"assistant\",\"content\":[]}}\n{\"type\":\"torn";
        std::fs::write(folder.join(format!("{id}.jsonl")), lines).unwrap();
    }
    (dir, db)
}

#[test]
fn runs_are_listed_however_their_times_are_written() {
    let place = Place::new();
    let times = "
        UPDATE workflow_runs SET started_at = '2026-05-01 10:00:00', updated_at = '1777629600000'
            WHERE id = 'run-1';
        UPDATE workflow_runs SET started_at = 'long ago', updated_at = '2026-05-02T10:00:00Z'
            WHERE id = 'run-2';";
    let (dir, _db) = state(&place, &[SEED, times]);
    let store = place.store();
    let report = import_lastlight(&store, &dir, now()).unwrap();
    assert_eq!(report.counts_for(ImportItemKind::WorkflowRun), tally(3, 3, 0, 0));
    let list = |dir: &heeler_store::StateDir| {
        let reader = StoreReader::open(dir).unwrap();
        let runs = reader.workflow_runs(&WorkflowRunFilter::default(), None, 10).unwrap();
        let told = |id: &str| {
            let run = runs.iter().find(|run| run.id.as_str() == id).unwrap();
            (run.started_at.to_string(), run.updated_at.to_string())
        };
        (told("run-1"), told("run-2"))
    };
    let text = |text: &str| text.to_owned();
    let first = (text("2026-05-01T10:00:00Z"), text("2026-05-01T10:00:00Z"));
    let second = (text("2026-05-02T10:00:00Z"), text("2026-05-02T10:00:00Z"));
    assert_eq!(list(store.dir()), (first.clone(), second));
    // An earlier release kept them as they were.
    let written = store.dir().root().join("heeler.db");
    connect(&written)
        .execute_batch("UPDATE workflow_runs SET started_at = 'x', updated_at = 'y', finished_at = 'z' WHERE id = 'run-2';")
        .unwrap();
    let epoch = (text("1970-01-01T00:00:00Z"), text("1970-01-01T00:00:00Z"));
    assert_eq!(list(store.dir()), (first, epoch));
}

#[test]
fn rows_of_the_first_version_come_in_with_their_outcome() {
    let place = Place::new();
    let (dir, _db) = state(&place, &[SEED]);
    let store = place.store();
    let report = import_lastlight(&store, &dir, now()).unwrap();

    assert_eq!(report.counts_for(ImportItemKind::Job), tally(6, 5, 0, 1));
    assert_eq!(report.counts_for(ImportItemKind::WorkflowRun), tally(3, 3, 0, 0));
    assert_eq!(report.counts_for(ImportItemKind::Approval), tally(1, 1, 0, 0));
    assert_eq!(report.counts_for(ImportItemKind::Override), tally(2, 2, 0, 0));
    assert_eq!(report.counts_for(ImportItemKind::ChatThread), tally(3, 3, 0, 0));
    assert_eq!(report.counts_for(ImportItemKind::ChatMessage), tally(4, 4, 0, 0));
    assert_eq!(report.counts_for(ImportItemKind::Transcript), tally(4, 4, 0, 0));
    assert_eq!(report.counts_for(ImportItemKind::Session), tally(3, 3, 0, 0));
    expect![[r#"
        [
            "executions: ../../etc/passwd: `../../etc/passwd` is not a job id: it must start with a letter or digit",
        ]
    "#]]
    .assert_debug_eq(&reasons(&report));
    expect![[r#"
        [
            "1 unfinished executions were marked as interrupted",
            "1 unfinished workflow runs were marked as failed",
            "1 chat threads were deactivated in favour of a newer one in the same place",
        ]
    "#]]
    .assert_debug_eq(&report.notes);

    let reader = StoreReader::open(store.dir()).unwrap();
    let status = |last: u8| {
        let job = reader.find_job(&format!("11111111-0000-4000-8000-00000000000{last}")).unwrap();
        (job.head.status, job.interrupted, job.stop_reason)
    };
    assert_eq!(status(1), (JobStatus::Completed, false, Some("end_turn".to_owned())));
    assert_eq!(status(2), (JobStatus::Cancelled, false, Some("skipped".to_owned())));
    assert_eq!(status(3), (JobStatus::Cancelled, false, Some("error_quota".to_owned())));
    assert_eq!(status(4), (JobStatus::Failed, true, None));
    assert_eq!(reader.chat_messages("chat-3").unwrap().len(), 2, "equal messages are two");
}

#[test]
fn runs_approvals_and_overrides_of_workflows_are_listed_and_counted() {
    let place = Place::new();
    let (dir, _db) = state(&place, &[SEED]);
    let store = place.store();
    import_lastlight(&store, &dir, now()).unwrap();
    let reader = StoreReader::open(store.dir()).unwrap();
    let runs = reader.workflow_runs(&WorkflowRunFilter::default(), None, 10).unwrap();
    assert_eq!(runs.len(), 3);
    assert_eq!(reader.count_workflow_runs(&WorkflowRunFilter::default()).unwrap(), 3);
    for head in &runs {
        assert!(head.origin.as_ref().is_some_and(|origin| origin.starts_with("lastlight:")));
        let whole = reader.workflow_run(&head.id).unwrap().unwrap();
        assert_eq!(whole.head, *head);
    }
    assert_eq!(reader.active_workflow_runs().unwrap(), [], "they are not ours to go on with");
    let approvals = reader.approvals(&ApprovalFilter::default(), None, 10).unwrap();
    assert_eq!(approvals.len(), 1);
    assert_eq!(reader.count_approvals(&ApprovalFilter::default()).unwrap(), 1);
    let gate = reader.approval(&approvals[0].id).unwrap().unwrap();
    assert_eq!((gate.phase.as_deref(), gate.seq), (Some("scan"), Some(1)), "it has a place");
    let crons = reader.cron_overrides().unwrap();
    assert_eq!(crons[0].schedule.as_deref(), Some("0 3 * * *"));
    let recounted = store.write(|tx| tx.recount()).unwrap();
    assert!(!recounted, "the counters were right");
}

#[test]
fn rows_keep_their_json_and_only_the_newest_thread_of_a_place_is_active() {
    let place = Place::new();
    let (dir, _db) = state(&place, &[SEED]);
    let store = place.store();
    import_lastlight(&store, &dir, now()).unwrap();
    let path = store.dir().database();
    drop(store);
    let db = connect(&path);
    let text = |sql: &str| db.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
    assert_eq!(
        text("SELECT node_statuses FROM workflow_runs WHERE id='run-1'"),
        "{\"architect\":\"succeeded\"}"
    );
    assert_eq!(text("SELECT context FROM workflow_runs WHERE id='run-1'"), "{\"title\":\"Login\"}");
    assert_eq!(
        text("SELECT group_concat(status) FROM (SELECT status FROM workflow_runs ORDER BY id)"),
        "succeeded,paused,failed"
    );
    assert_eq!(text("SELECT status FROM workflow_approvals"), "pending");
    assert_eq!(text("SELECT schedule FROM cron_overrides"), "0 3 * * *");
    assert_eq!(
        text(
            "SELECT group_concat(id) FROM (SELECT id FROM messaging_sessions WHERE active = 1 ORDER BY id)"
        ),
        "chat-1,chat-3"
    );
}

#[test]
fn the_newest_version_is_read_and_tables_without_a_place_are_named() {
    let place = Place::new();
    let (dir, _db) = state(&place, &[SEED, VERSION_026]);
    let store = place.store();
    let report = import_lastlight(&store, &dir.join("lastlight.db"), now()).unwrap();
    assert_eq!(report.counts_for(ImportItemKind::Job).imported, 5);
    assert!(
        report
            .notes
            .contains(&"table cron_runs is not supported and was left out (2 rows)".to_owned())
    );
    assert!(
        report.notes.contains(&"table users is not supported and was left out (0 rows)".to_owned())
    );
    let job = StoreReader::open(store.dir()).unwrap();
    let job = job.find_job("11111111-0000-4000-8000-000000000001").unwrap();
    assert_eq!(job.repo.as_deref(), Some("ann/site"));
}

#[test]
fn each_log_makes_a_session_and_is_copied_with_its_folder() {
    let place = Place::new();
    let (dir, _db) = state(&place, &[SEED]);
    let store = place.store();
    import_lastlight(&store, &dir, now()).unwrap();
    let reader = StoreReader::open(store.dir()).unwrap();
    let sessions = reader.sessions(&SessionFilter::default(), None, 10).unwrap();
    assert_eq!(sessions.len(), 3);
    for session in &sessions {
        let log = session.log_path.as_ref().unwrap();
        assert_eq!(
            std::fs::read(store.dir().root().join(log)).unwrap(),
            std::fs::read(dir.join(log)).unwrap()
        );
        assert_eq!(session.message_count, 2);
    }
    let of = |agent: &str| sessions.iter().find(|session| session.agent == agent).unwrap();
    assert_eq!(of("build:architect").mode, SessionMode::FreshPerJob);
    assert_eq!(of("chat").mode, SessionMode::PerChannel);
    assert_eq!(of("chat").channel_id.as_deref(), Some("slack/C1/169.22"));
    assert!(
        store
            .dir()
            .root()
            .join("agent-sessions/projects/-home-agent-workspace/agent-77.jsonl")
            .exists()
    );
}

#[test]
fn a_second_import_finds_everything_there_and_the_source_is_untouched() {
    let place = Place::new();
    let (dir, db) = state(&place, &[SEED]);
    let before = fingerprint(&dir);
    let store = place.store();
    let first = import_lastlight(&store, &dir, now()).unwrap();
    let second = import_lastlight(&store, &dir, now()).unwrap();
    assert_eq!(fingerprint(&dir), before);
    assert_eq!(second.total().imported, 0);
    assert_eq!(second.total().read, first.total().read);
    assert_eq!(second.counts_for(ImportItemKind::ChatMessage), tally(4, 0, 4, 0));

    db.execute_batch(
        "INSERT INTO messaging_messages (session_id, role, content, timestamp) \
        VALUES ('chat-1', 'user', 'more', '2025-02-03T07:30:00.000Z')",
    )
    .unwrap();
    let third = import_lastlight(&store, &dir, now()).unwrap();
    assert_eq!(third.counts_for(ImportItemKind::ChatMessage), tally(5, 1, 4, 0));
    let left = store.dir().root().read_dir_utf8().unwrap();
    let left = left.map(|entry| entry.unwrap().file_name().to_owned());
    assert!(left.into_iter().all(|name| !name.contains(".tmp.")), "the copy is gone");
}

#[test]
fn an_active_thread_of_this_fleet_keeps_its_place() {
    let place = Place::new();
    let (dir, _db) = state(&place, &[SEED]);
    let store = place.store();
    let path = store.dir().database();
    drop(store);
    let ours = connect(&path);
    ours.execute_batch(
        "INSERT INTO messaging_sessions (id, platform, channel_id, user_id, created_at, \
        last_activity_at, active) VALUES ('ours', 'slack', 'C1', 'U1', 'x', 'x', 1)",
    )
    .unwrap();
    drop(ours);
    let store = place.store();
    let report = import_lastlight(&store, &dir, now()).unwrap();
    assert_eq!(report.counts_for(ImportItemKind::ChatThread), tally(3, 3, 0, 0));
    drop(store);
    let active: String = connect(&path)
        .query_row(
            "SELECT group_concat(id) FROM (SELECT id FROM messaging_sessions WHERE active = 1 \
            ORDER BY id)",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(active, "chat-1,ours");
}

#[test]
fn what_is_no_lastlight_database_is_refused() {
    let place = Place::new();
    let store = place.store();
    let path = place.path("other.db");
    connect(&path).execute_batch("CREATE TABLE t (x)").unwrap();
    assert!(matches!(import_lastlight(&store, &path, now()), Err(ImportError::NotFound { .. })));
    std::fs::write(place.path("text.db"), "this is no database, only text of some length").unwrap();
    let error = import_lastlight(&store, &place.path("text.db"), now()).unwrap_err();
    assert!(matches!(error, ImportError::Database { .. }), "{error:?}");
    assert!(matches!(
        import_lastlight(&store, &place.path("gone"), now()),
        Err(ImportError::Open { .. })
    ));
    assert!(matches!(
        import_lastlight(&store, &place.root, now()),
        Err(ImportError::NotFound { .. })
    ));
}

#[test]
fn a_damaged_table_gives_what_can_be_read_and_says_so() {
    let place = Place::new();
    let dir = place.path("lastlight");
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("lastlight.db");
    let db = connect(&path);
    db.execute_batch(SEED).unwrap();
    db.execute_batch("BEGIN").unwrap();
    for number in 0..2000 {
        db.execute(
            "INSERT INTO executions (id, trigger_type, trigger_id, skill, started_at, success) \
             VALUES (?1, 'api', '', 'chat', '2025-01-01T00:00:00Z', 1)",
            [format!("more-{number}")],
        )
        .unwrap();
    }
    db.execute_batch("COMMIT").unwrap();
    drop(db);
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2 / 4096 * 4096;
    bytes[middle..middle + 8192].fill(0xAA);
    std::fs::write(&path, bytes).unwrap();
    let store = place.store();
    let report = import_lastlight(&store, &dir, now()).unwrap();
    assert!(report.counts_for(ImportItemKind::Job).imported > 0);
    assert!(
        reasons(&report).iter().any(|reason| reason.contains("the rest of the table")),
        "{report:?}"
    );
    assert!(report.notes[0].starts_with("the database is damaged"), "{:?}", report.notes);
}

#[test]
fn a_log_that_is_here_is_never_replaced() {
    let place = Place::new();
    let (dir, _db) = state(&place, &[SEED]);
    let store = place.store();
    let logs = ["-app/aaaa0003-0000-4000-8000-000000000003", "-home-agent-workspace/agent-77"];
    for log in logs {
        let path = store.dir().projects().join(format!("{log}.jsonl"));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "mine\n").unwrap();
    }
    let report = import_lastlight(&store, &dir, now()).unwrap();
    for log in logs {
        let path = store.dir().projects().join(format!("{log}.jsonl"));
        assert_eq!(std::fs::read_to_string(path).unwrap(), "mine\n");
    }
    assert_eq!(report.counts_for(ImportItemKind::Transcript), tally(4, 2, 0, 2));
    assert_eq!(report.counts_for(ImportItemKind::Session), tally(2, 2, 0, 0));
}

#[test]
fn a_session_with_logs_in_two_projects_comes_in_once_and_both_logs_are_kept() {
    let place = Place::new();
    let (dir, _db) = state(&place, &[SEED]);
    let log = "aaaa0003-0000-4000-8000-000000000003.jsonl";
    std::fs::create_dir_all(dir.join("agent-sessions/projects/-zzz")).unwrap();
    std::fs::write(dir.join("agent-sessions/projects/-zzz").join(log), "{}\n").unwrap();
    let store = place.store();
    let sessions =
        import_lastlight(&store, &dir, now()).unwrap().counts_for(ImportItemKind::Session);
    assert_eq!((sessions.existing, sessions.refused), (1, 0));
    assert_eq!(import_lastlight(&store, &dir, now()).unwrap().total().imported, 0);
    let reader = StoreReader::open(store.dir()).unwrap();
    let id = log.trim_end_matches(".jsonl").parse().unwrap();
    let session = reader.session_by_agent_id(&id).unwrap().unwrap();
    assert_eq!(session.log_path.unwrap(), format!("agent-sessions/projects/-app/{log}"));
    let second = store.dir().projects().join("-zzz").join(log);
    assert_eq!(std::fs::read_to_string(second).unwrap(), "{}\n");
}

#[test]
fn our_own_database_is_not_opened_to_import_from_it() {
    let place = Place::new();
    let store = place.store();
    for name in ["heeler.db", "heeler.db-wal", "heeler.db-shm"] {
        let link = place.path(&format!("link-to-{name}"));
        std::fs::hard_link(store.dir().root().join(name), &link).unwrap();
        for path in [store.dir().root().join(name), link] {
            let error = import_lastlight(&store, &path, now()).unwrap_err();
            assert!(matches!(error, ImportError::SourceIsTarget { .. }), "{path}: {error}");
        }
    }
}

#[test]
fn a_pipe_in_place_of_the_write_ahead_log_is_refused() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let place = Place::new();
    let dir = place.path("hostile");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("lastlight.db"), "").unwrap();
    let wal = dir.join("lastlight.db-wal");
    mknodat(CWD, wal.as_std_path(), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let error = import_lastlight(&place.store(), &dir, now()).unwrap_err();
    assert!(matches!(&error, ImportError::Open { path, .. } if *path == wal), "{error}");
}

#[test]
fn a_log_of_a_sub_agent_that_a_power_loss_left_empty_is_copied_again() {
    let place = Place::new();
    let (dir, _db) = state(&place, &[SEED]);
    let store = place.store();
    let log = "agent-sessions/projects/-home-agent-workspace/agent-77.jsonl";
    let here = store.dir().root().join(log);
    std::fs::create_dir_all(here.parent().unwrap()).unwrap();
    std::fs::write(&here, "").unwrap();
    import_lastlight(&store, &dir, now()).unwrap();
    assert_eq!(std::fs::read(here).unwrap(), std::fs::read(dir.join(log)).unwrap());
}

#[test]
fn a_small_database_with_huge_values_is_imported_without_them() {
    let place = Place::new();
    // A computed column takes no room in the file. A stored value of zeros does, here in the log.
    let huge = "ALTER TABLE executions DROP COLUMN error;
        ALTER TABLE executions ADD COLUMN error TEXT AS (CAST(zeroblob(900000000) AS TEXT));
        UPDATE workflow_runs SET scratch = zeroblob(20000000) WHERE id = 'run-2';";
    let (dir, db) = state(&place, &[SEED, huge]);
    let rows = |table: &str| {
        let sql = format!("SELECT COUNT(*) FROM {table}");
        db.query_row(&sql, [], |row| row.get::<_, i64>(0)).unwrap()
    };
    assert!(rows("executions") > 0 && rows("workflow_runs") > 0);
    let store = place.store();
    let report = import_lastlight(&store, &dir, now()).unwrap();
    let all = reasons(&report).join("\n");
    assert!(all.contains("too big"), "{all}");
    // The jobs came in, without the computed column.
    let jobs = report.counts_for(ImportItemKind::Job);
    assert_eq!(i64::try_from(jobs.read).unwrap(), rows("executions"), "{all}");
    let peak = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = peak.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 400_000, "{peak} KiB");
}
