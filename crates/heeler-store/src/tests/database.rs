//! The schema, its SQL and how the database is opened.

use std::os::unix::fs::PermissionsExt as _;

use rusqlite::StatementStatus;
use rusqlite::types::Value;

use super::*;
use crate::db::{self, StateDatabase, migrate};
use crate::views::sha256_hex;
use crate::{ChatGapKey, ChatGapMark, DatabaseOpenError, LastLightTable, StoreOpenError};

#[test]
fn released_migrations_are_never_edited() {
    let hashes: Vec<_> = migrate::MIGRATIONS
        .iter()
        .map(|(name, sql)| format!("{name} {}", &sha256_hex(sql.as_bytes())[..16]))
        .collect();
    expect_test::expect![[r#"
        base 989e2b2b285c5d29
        results 2f0f3676aca10225
        daemon e0fc4af70a4f6b90
        sessions 423a4084bac48eb5
        workflows f8dd475352e4d163
        access 1cae617738503274
        requests 6cf967832869dfca
        run_keys 65fcac0ba6ab7b66
        run_subjects 2707cafc75a97d36
        job_marks 650b17996d4adfab
        chat 03790ca89cafcce7
        network_grants 6cfa0523acd72817
        notices e3622c9a09f0a626
        permission_rules fec70fefa939cd6c
        run_terms 990b866c4cc5a662
        chat_gaps a3109fcd6fd51fa8
        job_hosts 64dafdc9905cd61b
        push_browsers 8ea890f1ec48ddce
        placed_views 23e2ab255349edf4"#]]
    .assert_eq(&hashes.join("\n"));
}

pub(super) fn all_sql() -> Vec<(&'static str, &'static str)> {
    [
        db::access::ALL_SQL,
        db::agents::ALL_SQL,
        db::approvals::ALL_SQL,
        db::counters::ALL_SQL,
        db::deleted_sessions::ALL_SQL,
        db::effects::ALL_SQL,
        db::job_marks::ALL_SQL,
        db::lastlight_tables::ALL_SQL,
        db::chat::ALL_SQL,
        db::chat_gaps::ALL_SQL,
        db::jobs::ALL_SQL,
        db::meta::ALL_SQL,
        db::spending::ALL_SQL,
        db::open_steps::ALL_SQL,
        db::imported_journal::ALL_SQL,
        db::network_grants::ALL_SQL,
        db::permission_rules::ALL_SQL,
        db::notices::ALL_SQL,
        db::push_browsers::ALL_SQL,
        db::phase_history::ALL_SQL,
        db::workflow_parts::ALL_SQL,
        db::overrides::ALL_SQL,
        db::queue::ALL_SQL,
        db::answered_requests::ALL_SQL,
        db::runs::ALL_SQL,
        db::schedules::ALL_SQL,
        db::sessions::ALL_SQL,
        db::views::ALL_SQL,
        db::workflow_run_list::ALL_SQL,
        db::workflows::ALL_SQL,
    ]
    .concat()
}

#[test]
fn every_statement_fits_the_schema() {
    let place = place();
    drop(place.store());
    let reader = place.reader();
    let all = all_sql();
    for (name, sql) in &all {
        reader.conn.sqlite().prepare(sql).unwrap_or_else(|error| panic!("{name}: {error}\n{sql}"));
    }
    let count = all.len();
    assert!(count > 60, "only {count} statements were found");
    assert!(count <= db::STATEMENTS_MAX, "{count} statements do not stay prepared");
}

/// A `LIMIT` that is a parameter would otherwise be planned for again with each value.
#[test]
fn no_question_is_planned_again_for_what_it_is_asked_with() {
    let place = place();
    drop(place.store());
    let reader = place.reader();
    for (name, sql) in all_sql() {
        let mut statement = reader.conn.sqlite().prepare(sql).unwrap();
        if !statement.readonly() {
            continue;
        }
        for value in 1..4 {
            for at in 1..=statement.parameter_count() {
                statement.raw_bind_parameter(at, value).unwrap();
            }
            // The content of the answer does not matter here.
            let _row = statement.raw_query().next();
        }
        assert_eq!(statement.get_status(StatementStatus::RePrepare), 0, "{name}: {sql}");
    }
}

fn tables_and_columns(db: &StateDatabase) -> Vec<String> {
    let mut statement = db
        .conn
        .sqlite()
        .prepare("SELECT m.name || '.' || c.name FROM sqlite_schema m, pragma_table_info(m.name) c WHERE m.type = 'table'")
        .unwrap();
    let rows = statement.query_map([], |row| row.get(0)).unwrap();
    rows.collect::<Result<_, _>>().unwrap()
}

#[test]
fn every_column_of_last_light_has_its_name_here() {
    let place = place();
    drop(place.store());
    let found = tables_and_columns(&place.reader());
    let expected = [
        (
            "executions",
            "id trigger_type trigger_id skill repo issue_number started_at finished_at success error turns duration_ms session_id cost_usd input_tokens cache_creation_input_tokens cache_read_input_tokens output_tokens api_duration_ms stop_reason workflow_run_id output_text owner triggered_by trigger_actor_type extension_status skills_status",
        ),
        (
            "workflow_runs",
            "id workflow_name trigger_id repo issue_number current_phase phase_history status context scratch node_statuses restart_count started_at updated_at finished_at owner triggered_by trigger_actor_type trace_id span_id",
        ),
        (
            "workflow_approvals",
            "id workflow_run_id gate summary status kind requested_by responded_by response responded_at created_at artifact",
        ),
        ("cron_overrides", "name enabled schedule updated_at updated_by"),
        ("workflow_overrides", "name enabled updated_at updated_by"),
        (
            "messaging_sessions",
            "id platform channel_id thread_id user_id agent_session_id created_at last_activity_at message_count active",
        ),
        ("messaging_messages", "id session_id role content timestamp platform_message_id"),
    ];
    for (table, columns) in expected {
        for column in columns.split(' ') {
            let name = format!("{table}.{column}");
            assert!(found.contains(&name), "{name}");
        }
    }
}

#[test]
fn the_database_is_for_its_owner_only() {
    let place = place();
    let _store = place.store();
    for name in ["heeler.db", "heeler.db-wal", "heeler.db-shm", "heeler.lock"] {
        let mode = std::fs::metadata(place.root.join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn the_pragmas_are_what_the_promises_need() {
    let place = place();
    drop(place.store());
    let db = StateDatabase::open_read_write(&place.dir.database()).unwrap();
    let pragma = |name: &str| -> String {
        let value: Value =
            db.conn.sqlite().query_row(&format!("PRAGMA {name}"), [], |row| row.get(0)).unwrap();
        format!("{value:?}")
    };
    assert_eq!(pragma("journal_mode"), r#"Text("wal")"#);
    assert_eq!(pragma("synchronous"), "Integer(2)");
    assert_eq!(pragma("foreign_keys"), "Integer(1)");
    assert_eq!(pragma("busy_timeout"), "Integer(5000)");
}

fn chat(id: &str, thread: Option<&str>, active: i64) -> Vec<Value> {
    let text = |text: &str| Value::Text(text.to_owned());
    vec![
        text(id),
        text("slack"),
        text("C1"),
        thread.map_or(Value::Null, text),
        text("U1"),
        Value::Null,
        text("2026-11-15T00:00:00.000Z"),
        text("2026-11-15T00:00:00.000Z"),
        Value::Integer(0),
        Value::Integer(active),
    ]
}

#[test]
fn a_chat_without_a_thread_has_one_active_session_too() {
    let place = place();
    let store = place.store();
    let table = LastLightTable::MessagingSessions;
    commit(&store, move |tx| {
        assert!(tx.import_row(table, &chat("a", None, 1))?);
        assert!(tx.import_row(table, &chat("b", None, 0))?);
        assert!(tx.import_row(table, &chat("c", Some("T1"), 1))?);
        assert!(!tx.import_row(table, &chat("a", None, 1))?, "the same row again is not new");
        Ok(())
    });
    for thread in [None, Some("T1")] {
        let refused = store.write(move |tx| tx.import_row(table, &chat("d", thread, 1)));
        let refused = refused.unwrap_err().to_string();
        assert!(
            is_refused_by(&refused, "UNIQUE constraint", "unique constraint"),
            "{thread:?}: {refused}"
        );
    }
}

#[test]
fn a_message_without_its_session_is_refused_and_one_with_it_is_imported_once() {
    let place = place();
    let store = place.store();
    let message = |session: &str| -> Vec<Value> {
        ["user", "hello", "2026-11-15T00:00:00.000Z", "m1", "import:1"]
            .iter()
            .map(|text| Value::Text((*text).to_owned()))
            .fold(vec![Value::Text(session.to_owned())], |mut row, value| {
                row.push(value);
                row
            })
    };
    let (orphan, known) = (message("nobody"), message("a"));
    let error = store.write(move |tx| tx.import_row(LastLightTable::MessagingMessages, &orphan));
    let error = error.unwrap_err().to_string();
    assert!(is_refused_by(&error, "FOREIGN KEY", "foreign key"), "{error}");
    commit(&store, move |tx| {
        tx.import_row(LastLightTable::MessagingSessions, &chat("a", None, 1))?;
        assert!(tx.import_row(LastLightTable::MessagingMessages, &known)?);
        assert!(!tx.import_row(LastLightTable::MessagingMessages, &known)?);
        Ok(())
    });
    let messages = place.reader().chat_messages("a").unwrap();
    assert_eq!(messages, [("user".to_owned(), "hello".to_owned())]);
}

#[test]
fn the_columns_of_an_import_are_those_of_its_insert() {
    let columns: Vec<_> = LastLightTable::CronOverrides.columns().collect();
    assert_eq!(columns, ["name", "enabled", "schedule", "updated_at", "updated_by"]);
    assert_eq!(LastLightTable::WorkflowRuns.columns().count(), 21);
}

fn set_version(place: &TempStateDir, version: i64) {
    let db = StateDatabase::writer_of(&place.dir).unwrap();
    db.conn.run_batch("DELETE FROM schema_migration WHERE version <> (SELECT MIN(version) FROM schema_migration)", "test").unwrap();
    db.conn.execute("UPDATE schema_migration SET version = ?1", [version], "test").unwrap();
}

#[test]
fn a_schema_that_is_not_ours_is_refused_with_the_cure() {
    let place = place();
    assert!(matches!(StoreReader::open(&place.dir), Err(DatabaseOpenError::Missing { .. })));
    drop(place.store());
    set_version(&place, 99);
    let error = StoreReader::open(&place.dir).unwrap_err();
    assert!(matches!(error, DatabaseOpenError::Newer { found: 99, .. }), "{error}");
    let error = Store::open(&place.dir, "test", now()).unwrap_err();
    assert!(matches!(error, StoreOpenError::Open(DatabaseOpenError::Newer { .. })), "{error}");
    set_version(&place, 1);
    let error = StoreReader::open(&place.dir).unwrap_err();
    assert!(error.to_string().contains("`heeler doctor --fix` brings it up to date"), "{error}");
}

#[test]
fn a_database_of_the_first_schema_is_brought_up_to_date_with_what_is_in_it() {
    let place = place();
    let db = StateDatabase::open_read_write(&place.dir.database()).unwrap();
    migrate::apply_next(&db.conn, migrate::MIGRATIONS, 0, now()).unwrap();
    db.conn
        .sqlite()
        .execute_batch(
            "INSERT INTO agents (name) VALUES ('coder');
             INSERT INTO executions (id, agent, trigger_type, status, started_at, skill)
             VALUES ('job-2026-11-15-aaaaaa', 'coder', 'manual', 'completed', '2026-11-15T09:00:00.000Z', 'coder');",
        )
        .unwrap();
    drop(db);
    let opened = Store::open(&place.dir, "test", now()).unwrap();
    assert_eq!(opened.migrated_from, Some(1));
    let id = "job-2026-11-15-aaaaaa".parse().unwrap();
    assert_eq!(place.reader().job(&id).unwrap().unwrap().head.agent, "coder");
    let steps = usize::try_from(crate::SCHEMA_VERSION - 1).unwrap();
    assert_eq!(crate::backups(&place.dir).unwrap().len(), steps, "one before each step");
}

#[test]
fn a_failed_migration_leaves_the_old_schema() {
    let place = place();
    let db = StateDatabase::open_read_write(&place.dir.database()).unwrap();
    db.conn.run_batch("CREATE TABLE views (in_the_way TEXT)", "test").unwrap();
    migrate::apply_next(&db.conn, migrate::MIGRATIONS, 0, now()).unwrap_err();
    assert_eq!(migrate::version(&db.conn).unwrap(), 0);
    assert_eq!(tables_and_columns(&db), ["views.in_the_way"]);
}

#[test]
fn an_existing_database_is_backed_up_before_each_migration() {
    let place = place();
    insert_jobs(&place.store(), vec![job(1, "coder", JobStatus::Pending)]);
    let db = StateDatabase::open_read_write(&place.dir.database()).unwrap();
    let steps = [migrate::MIGRATIONS, &[("probe", "CREATE TABLE probe (x TEXT)")]].concat();
    let known = migrate::SCHEMA_VERSION;
    let before = crate::store::apply_migrations(&place.dir, &db, &steps, now()).unwrap();
    assert_eq!((before, migrate::version(&db.conn).unwrap()), (Some(known), known + 1));
    let [backup] = &crate::backups(&place.dir).unwrap()[..] else { panic!("one backup") };
    let label = format!("-before-schema-{}.db", known + 1);
    assert!(backup.as_str().ends_with(&label), "{backup}");
    let backup = StateDatabase::open_read_only(backup).unwrap();
    assert!(backup.job(&job_id(1)).unwrap().is_some());
    assert_eq!(backup.schema_version().unwrap(), known);
    assert_eq!(crate::store::apply_migrations(&place.dir, &db, &steps, now()).unwrap(), None);
}

#[test]
fn a_reader_works_without_a_writer_and_changes_nothing() {
    let place = place();
    insert_jobs(&place.store(), vec![job(1, "coder", JobStatus::Pending)]);
    let reader = place.reader();
    assert_eq!(reader.job(&job_id(1)).unwrap().unwrap().head.agent, "coder");
    reader.conn.execute("DELETE FROM executions", [], "test").unwrap_err();
}

/// Copies the database to where SQLite cannot make its shared memory, as on a read-only medium.
fn copy_to_read_only(place: &TempStateDir, files: &[&str]) -> TempStateDir {
    let medium = super::place();
    for file in files {
        std::fs::copy(place.root.join(file), medium.root.join(file)).unwrap();
    }
    // A link to nowhere cannot be opened by root either.
    let nowhere = medium.root.join("none/none");
    std::os::unix::fs::symlink(nowhere, medium.root.join("heeler.db-shm")).unwrap();
    medium
}

#[test]
fn a_database_on_a_read_only_medium_is_read_unless_its_log_holds_changes() {
    let place = place();
    let store = place.store();
    insert_jobs(&store, vec![job(1, "coder", JobStatus::Pending)]);
    let living = copy_to_read_only(&place, &["heeler.db", "heeler.db-wal"]);
    let error = StoreReader::open(&living.dir).unwrap_err();
    assert!(matches!(error, DatabaseOpenError::ReadOnlyWithLog { .. }), "{error}");
    drop(store);
    let closed = copy_to_read_only(&place, &["heeler.db"]);
    assert!(closed.reader().job(&job_id(1)).unwrap().is_some());
}

#[test]
fn a_damaged_row_is_named() {
    let place = place();
    insert_jobs(&place.store(), vec![job(1, "coder", JobStatus::Pending)]);
    let db = StateDatabase::writer_of(&place.dir).unwrap();
    db.conn.execute("UPDATE executions SET status = 'odd'", [], "test").unwrap();
    let error = place.reader().job(&job_id(1)).unwrap_err().to_string();
    assert!(error.contains(job_id(1).as_str()) && error.contains("`odd`"), "{error}");
}

fn gap_key(gap: &str) -> ChatGapKey {
    let (platform, account) = ("slack".to_owned(), "A1".to_owned());
    ChatGapKey { platform, account, gap: gap.to_owned() }
}

fn gap_mark(chat: &str, thread: Option<&str>, since_ms: i64) -> ChatGapMark {
    let (chat, thread) = (chat.to_owned(), thread.map(str::to_owned));
    ChatGapMark { chat, thread, since_ms, is_unlisted: false }
}

#[test]
fn only_the_newest_gap_of_a_bot_ends_its_marks() {
    let place = place();
    let store = place.store();
    let both = [gap_mark("C1", None, 5), gap_mark("C1", Some("T1"), 6)];
    let marks = both.clone();
    commit(&store, move |tx| tx.begin_chat_gap(&gap_key("first"), &marks));
    let other = ChatGapKey { account: "A2".to_owned(), ..gap_key("other") };
    commit(&store, move |tx| tx.begin_chat_gap(&other, &[gap_mark("C9", None, 1)]));
    assert_eq!(place.reader().chat_gap_marks("slack", "A1").unwrap(), both);
    let marks = both.clone();
    commit(&store, move |tx| tx.begin_chat_gap(&gap_key("second"), &marks));
    commit(&store, |tx| tx.end_chat_gap(&gap_key("first"), &[]));
    assert_eq!(place.reader().chat_gap_marks("slack", "A1").unwrap(), both);
    commit(&store, |tx| tx.end_chat_gap(&gap_key("second"), &[gap_mark("C1", None, 7)]));
    assert_eq!(place.reader().chat_gap_marks("slack", "A1").unwrap(), [gap_mark("C1", None, 7)]);
    commit(&store, |tx| tx.end_chat_gap(&gap_key("second"), &[]));
    assert_eq!(place.reader().chat_gap_marks("slack", "A1").unwrap(), []);
    assert_eq!(place.reader().chat_gap_marks("slack", "A2").unwrap().len(), 1);
}
