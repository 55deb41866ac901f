//! Tests of lists: their content, their paging, and that they never scan or sort.

use expect_test::expect;
use heeler_model::JobHead;

use super::*;
use crate::db;
use crate::{IdLookupError, JobCursor, JobFilter, JobListRow, SessionCursor, SessionFilter};

fn many(store: &Store) {
    let jobs = (0..60)
        .map(|number| {
            let agent = if number % 3 == 0 { "coder" } else { "marketer" };
            let status = JobStatus::ALL[usize::try_from(number).unwrap() % 5];
            let mut job = job(number, agent, status);
            // Three jobs share each moment, so that ties are met.
            job.head.started_at = later(i64::try_from(number / 3).unwrap());
            job
        })
        .collect();
    insert_jobs(store, jobs);
}

fn all_pages(place: &TempStateDir, filter: &JobFilter, limit: usize) -> Vec<JobHead> {
    let reader = place.reader();
    let mut all = Vec::new();
    let mut before = None;
    loop {
        let page = reader.jobs(filter, before.as_ref(), limit).unwrap();
        assert!(page.len() <= limit);
        let Some(last) = page.last() else { return all };
        before = Some(JobCursor::after(last));
        all.extend(page);
    }
}

#[test]
fn pages_of_any_size_show_every_job_once_newest_first() {
    let place = place();
    many(&place.store());
    let whole = all_pages(&place, &JobFilter::default(), 1000);
    assert_eq!(whole.len(), 60);
    assert!(whole.is_sorted_by(|a, b| (a.started_at, &a.id) > (b.started_at, &b.id)));
    for limit in [1, 2, 7, 59] {
        assert_eq!(all_pages(&place, &JobFilter::default(), limit), whole, "{limit}");
    }
}

#[test]
fn a_snapshot_shows_one_state_and_ends_also_when_a_query_panics() {
    let place = place();
    let store = place.store();
    many(&store);
    let reader = place.reader();
    let count = || reader.count_jobs(&JobFilter::default()).unwrap();
    let counts = reader.in_snapshot(|| {
        let before = count();
        insert_jobs(&store, vec![job(100, "coder", JobStatus::Completed)]);
        (before, count())
    });
    assert_eq!(counts.unwrap(), (60, 60), "a commit during the snapshot is not visible in it");
    assert_eq!(count(), 61);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        reader.in_snapshot(|| {
            count();
            panic!("for the test");
        })
    }));
    assert!(panicked.is_err());
    insert_jobs(&store, vec![job(101, "coder", JobStatus::Completed)]);
    assert_eq!(count(), 62, "the snapshot has ended");
    assert_eq!(reader.in_snapshot(count).unwrap(), 62);
}

#[test]
fn filters_and_totals_agree() {
    let place = place();
    many(&place.store());
    let reader = place.reader();
    let whole = all_pages(&place, &JobFilter::default(), 1000);
    for agent in [None, Some("coder"), Some("nobody")] {
        for status in [None, Some(JobStatus::Failed)] {
            for since in [None, Some(later(7)), Some(later(1000))] {
                let agent_name = agent.map(str::to_owned);
                let filter = JobFilter { agent: agent_name, status, since, host: None };
                let expected: Vec<_> = whole
                    .iter()
                    .filter(|job| agent.is_none_or(|agent| job.agent == agent))
                    .filter(|job| status.is_none_or(|status| job.status == status))
                    .filter(|job| since.is_none_or(|since| job.started_at >= since))
                    .cloned()
                    .collect();
                assert_eq!(all_pages(&place, &filter, 5), expected, "{filter:?}");
                let total = reader.count_jobs(&filter).unwrap();
                assert_eq!(usize::try_from(total).unwrap(), expected.len(), "{filter:?}");
            }
        }
    }
}

fn plan_of(reader: &StoreReader, sql: &str) -> String {
    let mut statement = reader.conn.sqlite().prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
    let count = statement.parameter_count();
    let none = rusqlite::params_from_iter(vec![rusqlite::types::Null; count]);
    let lines = statement.query_map(none, |row| row.get::<_, String>(3)).unwrap();
    let plan: Vec<_> = lines.map(Result::unwrap).collect();
    plan.join("; ")
}

/// The statements that lists use.
const LISTS: [&[(&str, &str)]; 11] = [
    db::jobs::ALL_SQL,
    db::job_marks::ALL_SQL,
    db::sessions::ALL_SQL,
    db::effects::ALL_SQL,
    db::views::ALL_SQL,
    db::workflow_run_list::ALL_SQL,
    db::workflows::ALL_SQL,
    db::imported_journal::ALL_SQL,
    db::phase_history::ALL_SQL,
    db::workflow_parts::ALL_SQL,
    db::approvals::ALL_SQL,
];

fn is_list(name: &str) -> bool {
    ["PAGE", "COUNT_SINCE", "JOURNAL"].iter().any(|start| name.starts_with(start))
        || name.contains("IDS_")
        || ["OF_CHANNEL", "EVENTS", "ACTIVE", "ID_OF_ASK", "NEXT_EXPIRY", "TITLE_OF_SESSION"]
            .contains(&name)
}

/// Returns the plans of all lists, after a check that none scans or sorts.
fn list_plans() -> String {
    let place = place();
    drop(place.store());
    let reader = place.reader();
    let mut plans = String::new();
    for (name, sql) in LISTS.concat().into_iter().filter(|(name, _)| is_list(name)) {
        let plan = plan_of(&reader, sql);
        assert!(!plan.contains("SCAN") && !plan.contains("TEMP B-TREE"), "{name}: {plan}");
        plans += &format!("{name}: {plan}\n");
    }
    plans
}

#[test]
fn no_list_scans_or_sorts() {
    expect![[r#"
        PAGE: SEARCH executions USING INDEX idx_executions_newest ((started_at,id)<(?,?)); SEARCH job_marks USING PRIMARY KEY (job=?) LEFT-JOIN
        PAGE_OF_AGENT: SEARCH executions USING INDEX idx_executions_agent (agent=? AND (started_at,id)<(?,?)); SEARCH job_marks USING PRIMARY KEY (job=?) LEFT-JOIN
        PAGE_OF_STATUS: SEARCH executions USING INDEX idx_executions_status (status=? AND (started_at,id)<(?,?)); SEARCH job_marks USING PRIMARY KEY (job=?) LEFT-JOIN
        PAGE_OF_AGENT_STATUS: SEARCH executions USING INDEX idx_executions_agent_status (agent=? AND status=? AND (started_at,id)<(?,?)); SEARCH job_marks USING PRIMARY KEY (job=?) LEFT-JOIN
        PAGE_OF_HOST: SEARCH executions USING INDEX idx_executions_host (host=? AND (started_at,id)<(?,?)); SEARCH job_marks USING PRIMARY KEY (job=?) LEFT-JOIN
        PAGE_OF_HOST_STATUS: SEARCH executions USING INDEX idx_executions_host_status (host=? AND status=? AND (started_at,id)<(?,?)); SEARCH job_marks USING PRIMARY KEY (job=?) LEFT-JOIN
        PAGE_OF_HOST_AGENT: SEARCH executions USING INDEX idx_executions_host (host=? AND (started_at,id)<(?,?)); SEARCH job_marks USING PRIMARY KEY (job=?) LEFT-JOIN
        PAGE_OF_HOST_AGENT_STATUS: SEARCH executions USING INDEX idx_executions_host_status (host=? AND status=? AND (started_at,id)<(?,?)); SEARCH job_marks USING PRIMARY KEY (job=?) LEFT-JOIN
        PAGE_OF_SESSION: SEARCH executions USING INDEX idx_executions_session (session_id=? AND (started_at,id)<(?,?)); SEARCH job_marks USING PRIMARY KEY (job=?) LEFT-JOIN
        COUNT_SINCE: SEARCH executions USING COVERING INDEX idx_executions_newest (started_at>?)
        COUNT_SINCE_OF_AGENT: SEARCH executions USING COVERING INDEX idx_executions_agent (agent=? AND started_at>?)
        COUNT_SINCE_OF_STATUS: SEARCH executions USING COVERING INDEX idx_executions_status (status=? AND started_at>?)
        COUNT_SINCE_OF_AGENT_STATUS: SEARCH executions USING COVERING INDEX idx_executions_agent_status (agent=? AND status=? AND started_at>?)
        COUNT_SINCE_OF_HOST: SEARCH executions USING COVERING INDEX idx_executions_host (host=? AND started_at>?)
        COUNT_SINCE_OF_HOST_AGENT: SEARCH executions USING INDEX idx_executions_host (host=? AND started_at>?)
        COUNT_SINCE_OF_HOST_STATUS: SEARCH executions USING COVERING INDEX idx_executions_host_status (host=? AND status=? AND started_at>?)
        COUNT_SINCE_OF_HOST_AGENT_STATUS: SEARCH executions USING INDEX idx_executions_host_status (host=? AND status=? AND started_at>?)
        COUNT_SINCE_UNTIL_OF_STATUS: SEARCH executions USING COVERING INDEX idx_executions_status (status=? AND started_at>? AND started_at<?)
        IDS_FROM: SEARCH executions USING INDEX sqlite_autoindex_executions_1 (id>? AND id<?)
        IDS_FROM_END: SEARCH executions USING INDEX idx_executions_end (<expr>>? AND <expr><?)
        IDS_OF_SESSION: SEARCH executions USING COVERING INDEX idx_executions_session (session_id=?)
        TITLE_OF_SESSION: SEARCH executions USING COVERING INDEX idx_executions_session (session_id=?); SEARCH job_marks USING PRIMARY KEY (job=?)
        PAGE: SEARCH sessions USING INDEX idx_sessions_newest ((last_active_at,id)<(?,?))
        PAGE_OF_AGENT: SEARCH sessions USING INDEX idx_sessions_agent (agent=? AND (last_active_at,id)<(?,?))
        PAGE_OF_STATUS: SEARCH sessions USING INDEX idx_sessions_status (status=? AND (last_active_at,id)<(?,?))
        PAGE_OF_AGENT_STATUS: SEARCH sessions USING INDEX idx_sessions_agent_status (agent=? AND status=? AND (last_active_at,id)<(?,?))
        PAGE_OF_CHANNEL: SEARCH sessions USING INDEX idx_sessions_channel (agent=? AND channel_id=? AND (last_active_at,id)<(?,?))
        PAGE_OF_CHANNEL_STATUS: SEARCH sessions USING INDEX idx_sessions_channel (agent=? AND channel_id=? AND (last_active_at,id)<(?,?))
        COUNT_SINCE: SEARCH sessions USING COVERING INDEX idx_sessions_newest (last_active_at>?)
        COUNT_SINCE_OF_AGENT: SEARCH sessions USING COVERING INDEX idx_sessions_agent (agent=? AND last_active_at>?)
        COUNT_SINCE_OF_STATUS: SEARCH sessions USING COVERING INDEX idx_sessions_status (status=? AND last_active_at>?)
        COUNT_SINCE_OF_AGENT_STATUS: SEARCH sessions USING COVERING INDEX idx_sessions_agent_status (agent=? AND status=? AND last_active_at>?)
        COUNT_SINCE_OF_CHANNEL: SEARCH sessions USING INDEX idx_sessions_channel (agent=? AND channel_id=? AND last_active_at>?)
        IDS_OF_THREADS: SEARCH sessions USING COVERING INDEX idx_sessions_channel (agent=? AND channel_id>? AND channel_id<?)
        IDS_OF_CONTINUATIONS: SEARCH sessions USING INDEX idx_sessions_continues (continues=?)
        OF_CHANNEL: SEARCH sessions USING INDEX idx_sessions_channel (agent=? AND channel_id=?)
        IDS_FROM: SEARCH sessions USING COVERING INDEX sqlite_autoindex_sessions_1 (id>? AND id<?)
        IDS_FROM_AGENT_SESSION: SEARCH sessions USING INDEX sqlite_autoindex_sessions_2 (agent_session_id>? AND agent_session_id<?)
        PAGE: SEARCH workflow_runs USING INDEX idx_workflow_runs_newest ((started_at,id)<(?,?))
        PAGE_OF_NAME: SEARCH workflow_runs USING INDEX idx_workflow_runs_name (workflow_name=? AND (started_at,id)<(?,?))
        PAGE_OF_STATUS: SEARCH workflow_runs USING INDEX idx_workflow_runs_status (status=? AND (started_at,id)<(?,?))
        PAGE_OF_NAME_STATUS: SEARCH workflow_runs USING INDEX idx_workflow_runs_name_status (workflow_name=? AND status=? AND (started_at,id)<(?,?))
        PAGE_OF_REPO: SEARCH workflow_runs USING INDEX idx_workflow_runs_repo (owner=? AND repo=? AND (started_at,id)<(?,?))
        PAGE_OF_TRIGGER: SEARCH workflow_runs USING INDEX idx_workflow_runs_trigger (trigger_id=? AND (started_at,id)<(?,?))
        COUNT_SINCE_OF_REPO: SEARCH workflow_runs USING INDEX idx_workflow_runs_repo (owner=? AND repo=? AND started_at>?)
        COUNT_SINCE_OF_TRIGGER: SEARCH workflow_runs USING INDEX idx_workflow_runs_trigger (trigger_id=? AND started_at>?)
        COUNT_SINCE: SEARCH workflow_runs USING COVERING INDEX idx_workflow_runs_newest (started_at>?)
        COUNT_SINCE_OF_NAME: SEARCH workflow_runs USING COVERING INDEX idx_workflow_runs_name (workflow_name=? AND started_at>?)
        COUNT_SINCE_OF_STATUS: SEARCH workflow_runs USING COVERING INDEX idx_workflow_runs_status (status=? AND started_at>?)
        COUNT_SINCE_OF_NAME_STATUS: SEARCH workflow_runs USING COVERING INDEX idx_workflow_runs_name_status (workflow_name=? AND status=? AND started_at>?)
        IDS_FROM: SEARCH workflow_runs USING COVERING INDEX sqlite_autoindex_workflow_runs_1 (id>? AND id<?)
        IDS_FROM_END: SEARCH workflow_runs USING INDEX idx_workflow_runs_end (<expr>>? AND <expr><?)
        IDS_ACTIVE: SEARCH workflow_runs USING INDEX idx_workflow_runs_status (status=?)
        ACTIVE: SEARCH workflow_runs USING INDEX idx_workflow_runs_active (workflow_name=? AND trigger_id=?)
        JOURNAL_OF_EXECUTIONS: SEARCH executions USING INDEX idx_executions_journal (workflow_run_id=? AND seq>?); CORRELATED SCALAR SUBQUERY 1; SEARCH runs USING INDEX idx_runs_job (job_id=?)
        JOURNAL_OF_GATES: SEARCH workflow_approvals USING INDEX idx_approvals_journal (workflow_run_id=? AND seq>?)
        EVENTS: SEARCH workflow_events USING INDEX sqlite_autoindex_workflow_events_1 (workflow_run_id=? AND number>?)
        JOURNAL_OF_PARTS: SEARCH executions USING INDEX idx_executions_journal (workflow_run_id=? AND seq>?); CORRELATED SCALAR SUBQUERY 1; SEARCH runs USING INDEX idx_runs_job (job_id=?)
        PAGE: SEARCH workflow_approvals USING INDEX idx_approvals_newest ((created_at,id)<(?,?))
        PAGE_OF_STATUS: SEARCH workflow_approvals USING INDEX idx_approvals_status (status=? AND (created_at,id)<(?,?))
        PAGE_OF_RUN: SEARCH workflow_approvals USING INDEX idx_approvals_workflow (workflow_run_id=? AND (created_at,id)<(?,?))
        IDS_FROM: SEARCH workflow_approvals USING COVERING INDEX sqlite_autoindex_workflow_approvals_1 (id>? AND id<?)
        IDS_UNDELIVERED: SEARCH workflow_approvals USING INDEX idx_approvals_ask (run_id=? AND ask_id>?)
        IDS_EXPIRED: SEARCH workflow_approvals USING INDEX idx_approvals_expiry (status=? AND expires_at>? AND expires_at<?)
        NEXT_EXPIRY: SEARCH workflow_approvals USING INDEX idx_approvals_expiry (status=? AND expires_at>?)
        ID_OF_ASK: SEARCH workflow_approvals USING INDEX idx_approvals_ask (run_id=? AND ask_id=?)
    "#]].assert_eq(&list_plans());
}

/// The queries of a running daemon, without those of `doctor` and without writes.
#[test]
fn the_daemon_sorts_nothing_and_reads_whole_only_what_stays_small() {
    let place = place();
    drop(place.store());
    let reader = place.reader();
    let asked =
        [db::schedules::ALL_SQL, db::queue::ALL_SQL, db::spending::ALL_SQL, db::effects::ALL_SQL];
    let checkups = ["NOT_PENDING", "NOT_QUEUED", "UNUSED"];
    // One row per schedule, per waiting job, per live run, per credential; by day, agent and model.
    let small = ["PROGRESS", "OVERRIDES", "QUEUE", "PARKED", "RESERVATIONS", "SPENT_IN_ALL"];
    // Reads an index that contains only pending effects.
    let fronts = ["UNDONE", "UNDONE_OF_KIND", "COUNT_OF_KIND", "NEXT"];
    let mut plans = String::new();
    for (name, sql) in asked.concat() {
        if !sql.starts_with("SELECT") || checkups.contains(&name) {
            continue;
        }
        let plan = plan_of(&reader, sql);
        assert!(!plan.contains("TEMP B-TREE"), "{name}: {plan}");
        let may_scan = small.contains(&name) || fronts.contains(&name);
        assert!(!plan.contains("SCAN") || may_scan, "{name}: {plan}");
        plans += &format!("{name}: {plan}\n");
    }
    expect![[r#"
        PROGRESS: SCAN schedules USING INDEX sqlite_autoindex_schedules_1
        PAGE_OF_OCCURRENCES: SEARCH occurrences USING INDEX sqlite_autoindex_occurrences_1 (agent=? AND schedule=? AND due_at<?)
        OCCURRENCE_OF_JOB: SEARCH occurrences USING INDEX idx_occurrences_job (job_id=?)
        HAS_OCCURRENCE: SEARCH occurrences USING COVERING INDEX sqlite_autoindex_occurrences_1 (agent=? AND schedule=? AND due_at=?)
        OCCURRENCE_BETWEEN: SEARCH occurrences USING COVERING INDEX sqlite_autoindex_occurrences_1 (agent=? AND schedule=? AND due_at>? AND due_at<?)
        PAGE_OF_SKIPS: SEARCH skips USING INDEX sqlite_autoindex_skips_1 (agent=? AND schedule=? AND first_due<?)
        LAST_SKIP_OF_REASON: SEARCH skips USING INDEX idx_skips_reason (agent=? AND schedule=? AND reason=? AND first_due<?)
        SKIP_BETWEEN: SEARCH skips USING COVERING INDEX sqlite_autoindex_skips_1 (agent=? AND schedule=? AND first_due>? AND first_due<?)
        NEXT_OCCURRED: SEARCH occurrences USING COVERING INDEX sqlite_autoindex_occurrences_1 ((agent,schedule)>(?,?))
        NEXT_SKIPPED: SEARCH skips USING COVERING INDEX idx_skips_reason ((agent,schedule)>(?,?))
        OVERRIDES: SCAN cron_overrides USING INDEX sqlite_autoindex_cron_overrides_1
        QUEUE: SCAN queue USING INDEX idx_queue_order
        QUEUED: SEARCH queue USING INDEX sqlite_autoindex_queue_1 (job_id=?)
        PARKED: SCAN parked USING INDEX sqlite_autoindex_parked_1
        RESERVATIONS: SCAN reservations USING INDEX sqlite_autoindex_reservations_1
        RESERVATION: SEARCH reservations USING INDEX sqlite_autoindex_reservations_1 (run_id=?)
        SPENT_BY_AGENT: SEARCH spending USING INDEX sqlite_autoindex_spending_1 (day=?)
        SPENT_IN_ALL: SCAN spending USING COVERING INDEX idx_spending_agent
        SPENDING: SEARCH spending USING INDEX sqlite_autoindex_spending_1 (day>?)
        UNDONE: SCAN effects USING INDEX idx_effects_undone
        UNDONE_OF_KIND: SCAN effects USING INDEX idx_effects_undone
        COUNT_OF_KIND: CO-ROUTINE pending; SCAN effects USING INDEX idx_effects_due; SCAN pending
        DUE: SEARCH effects USING INDEX idx_effects_due (<expr><?)
        NEXT: SCAN effects USING INDEX idx_effects_due
        FAILED: SEARCH effects USING INDEX sqlite_autoindex_effects_1 (id>? AND id<?)
    "#]].assert_eq(&plans);
}

#[test]
fn a_job_comes_back_as_it_was_written() {
    let place = place();
    let store = place.store();
    let mut job = job(1, "coder", JobStatus::Completed);
    job.head.schedule = Some("nightly".to_owned());
    job.head.exit_reason = Some(heeler_model::ExitReason::MaxTurns);
    job.head.finished_at = Some(later(99));
    job.head.duration_ms = Some(323_400);
    job.head.cost_usd = Some(0.13);
    job.head.session_id = Some("claude-session-xyz789".parse().unwrap());
    job.head.summary = Some("done".to_owned());
    job.run_started_at = Some(later(2));
    job.trigger_id = "https://example.org/issues/7".to_owned();
    job.skill = "build:review".to_owned();
    job.repo = Some("heeler".to_owned());
    job.issue_number = Some(7);
    job.workflow_run_id = Some("run-1".to_owned());
    job.forked_from = Some(job_id(9));
    job.stop_reason = Some("end_turn".to_owned());
    job.interrupted = true;
    job.restart_count = 2;
    job.usage.num_turns = Some(7);
    job.usage.input_tokens = Some(1500);
    job.usage.per_model.insert("m".to_owned(), serde_json::json!({"output_tokens": 3}));
    job.working_directory = Some("/home/me".into());
    job.origin = Some("herdctl".to_owned());
    job.error = Some("boom".to_owned());
    job.prompt = Some("x".repeat(100_000));
    job.output_text = Some("out".to_owned());
    job.phase = Some("build".to_owned());
    job.part = Some(heeler_model::workflow::PhasePart::Fix(2));
    job.seq = Some(7);
    job.decision = Some(heeler_model::workflow::PartDecision::Approved);
    insert_jobs(&store, vec![job.clone()]);
    assert_eq!(place.reader().job(&job.head.id).unwrap(), Some(job));
}

#[test]
fn a_list_tells_when_jobs_began_and_why_they_failed_and_nothing_that_others_wrote() {
    let place = place();
    let store = place.store();
    let mut failed = job(1, "coder", JobStatus::Failed);
    failed.error = Some("boom".to_owned());
    failed.run_started_at = Some(later(5));
    let mut completed = job(2, "coder", JobStatus::Completed);
    completed.error = Some("of a run before".to_owned());
    let mut foreign = job(3, "coder", JobStatus::Failed);
    foreign.origin = Some("herdctl".to_owned());
    insert_jobs(&store, vec![failed.clone(), completed.clone(), foreign.clone()]);
    let reader = place.reader();
    let line = |job: &Job, began_at, error: Option<&str>| JobListRow {
        head: job.head.clone(),
        began_at,
        error: error.map(str::to_owned),
        title: job.prompt.as_deref().and_then(heeler_model::job_title),
        denied: None,
        host: None,
    };
    let expected = [
        line(&foreign, Some(foreign.head.started_at), None),
        line(&completed, None, None),
        line(&failed, Some(later(5)), Some("boom")),
    ];
    assert_eq!(reader.job_list_rows(&JobFilter::default(), None, 9).unwrap(), expected);
    for line in expected {
        assert_eq!(reader.job_list_row(&line.head.id).unwrap(), Some(line));
    }
    assert_eq!(reader.job_list_row(&job_id(9)).unwrap(), None);
}

#[test]
fn a_long_summary_is_cut_at_a_character() {
    let place = place();
    let mut job = job(1, "coder", JobStatus::Completed);
    job.head.summary = Some("é".repeat(2000));
    insert_jobs(&place.store(), vec![job]);
    let summary = place.reader().job(&job_id(1)).unwrap().unwrap().head.summary.unwrap();
    assert_eq!(summary, "é".repeat(1024));
}

#[test]
fn ids_may_be_shortened_while_unique() {
    let place = place();
    let store = place.store();
    insert_jobs(
        &store,
        vec![job(1, "coder", JobStatus::Pending), job(2, "coder", JobStatus::Pending)],
    );
    let reader = place.reader();
    assert_eq!(reader.find_job(job_id(1).as_str()).unwrap().head.id, job_id(1));
    let error = reader.find_job("job-2026").unwrap_err();
    let IdLookupError::Ambiguous { candidates, .. } = error else { panic!("{error}") };
    assert_eq!(candidates, [job_id(1).to_string(), job_id(2).to_string()]);
    for text in ["job-2027", "", "../x", "~"] {
        let error = reader.find_job(text).unwrap_err();
        assert!(matches!(error, IdLookupError::Unknown { .. }), "{text}: {error}");
    }
}

#[test]
fn a_session_is_found_by_either_id_and_by_a_beginning() {
    let place = place();
    let store = place.store();
    commit(&store, |tx| {
        tx.put_session(&session(0xa1, "coder"))?;
        tx.put_session(&session(0xa2, "coder"))
    });
    let reader = place.reader();
    let found = |text: &str| reader.find_session(text).map(|session| session.id.to_string());
    assert_eq!(found("sess-000000a1").unwrap(), "sess-000000a1");
    assert_eq!(found("agent-session-161").unwrap(), "sess-000000a1");
    assert_eq!(found("agent-session-162").unwrap(), "sess-000000a2");
    assert!(matches!(found("agent-session-16"), Err(IdLookupError::Ambiguous { .. })));
    assert!(matches!(found("sess-000000a"), Err(IdLookupError::Ambiguous { .. })));
    assert!(matches!(found("nothing"), Err(IdLookupError::Unknown { .. })));
}

#[test]
fn sessions_page_by_last_use_and_are_counted() {
    let place = place();
    let store = place.store();
    commit(&store, |tx| {
        for number in 0..25 {
            tx.put_session(&session(number, if number % 2 == 0 { "even" } else { "odd" }))?;
        }
        Ok(())
    });
    let reader = place.reader();
    let filter = SessionFilter { agent: Some("odd".to_owned()), ..SessionFilter::default() };
    let mut found = Vec::new();
    let mut before = None;
    loop {
        let page = reader.sessions(&filter, before.as_ref(), 5).unwrap();
        let Some(last) = page.last() else { break };
        before = Some(SessionCursor::after(last));
        found.extend(page);
    }
    assert_eq!(found.len(), 12);
    assert!(found.is_sorted_by(|a, b| a.last_active_at > b.last_active_at));
    assert_eq!(reader.count_sessions(&filter).unwrap(), 12);
    let paused = SessionFilter { status: Some(SessionStatus::Paused), ..SessionFilter::default() };
    assert_eq!(reader.count_sessions(&paused).unwrap(), 25);
    let since = Some(found[3].last_active_at);
    let recent = SessionFilter { since, ..filter };
    assert_eq!(reader.sessions(&recent, None, 100).unwrap(), found[..4]);
    assert_eq!(reader.count_sessions(&recent).unwrap(), 4);
}

#[test]
fn the_sessions_of_a_channel_and_its_threads_are_listed_and_counted_whoever_has_them() {
    let place = place();
    let store = place.store();
    commit(&store, |tx| {
        for number in 0..36 {
            let agent = if number % 4 < 2 { "even" } else { "odd" };
            tx.put_agent(agent, &heeler_model::AgentState::default())?;
            let mut session = session(number, agent);
            let channels = ["discord/1", "discord/1/7", "discord/10", "discord/1-2", "discord/2/7"];
            session.channel_id = channels.get(number as usize % 6).map(|it| (*it).to_owned());
            tx.put_session(&session)?;
        }
        Ok(())
    });
    let reader = place.reader();
    let all = reader.sessions(&SessionFilter::default(), None, 100).unwrap();
    for agent in [None, Some("odd")] {
        for status in [None, Some(SessionStatus::Paused), Some(SessionStatus::Expired)] {
            for since in [None, Some(all[5].last_active_at)] {
                let channel = Some("discord/1".to_owned());
                let agent = agent.map(str::to_owned);
                let filter = SessionFilter { agent, status, channel, since };
                let expected: Vec<_> = all
                    .iter()
                    .filter(|session| {
                        matches!(session.channel_id.as_deref(), Some("discord/1" | "discord/1/7"))
                    })
                    .filter(|session| filter.agent.as_ref().is_none_or(|it| session.agent == *it))
                    .filter(|session| status.is_none_or(|status| session.status == status))
                    .filter(|session| since.is_none_or(|since| session.last_active_at >= since))
                    .cloned()
                    .collect();
                assert_eq!(reader.sessions(&filter, None, 100).unwrap(), expected, "{filter:?}");
                assert_eq!(reader.count_sessions(&filter).unwrap(), expected.len() as i64);
                let (Some(first), Some(second)) = (expected.first(), expected.get(1)) else {
                    continue;
                };
                let before = SessionCursor::after(first);
                let next = reader.sessions(&filter, Some(&before), 1).unwrap();
                assert_eq!(next, std::slice::from_ref(second));
            }
        }
    }
}

#[test]
fn what_goes_on_from_a_session_is_known() {
    let place = place();
    let store = place.store();
    let source = session(1, "coder").id;
    let from = source.clone();
    commit(&store, move |tx| {
        tx.put_session(&session(1, "coder"))?;
        let mut next = session(9, "coder");
        next.continues = Some(from.clone());
        tx.put_session(&next)
    });
    let reader = place.reader();
    let id = |number| session(number, "coder").id;
    assert_eq!(reader.continuations_of(&source, 9).unwrap(), [id(9)]);
    assert_eq!(reader.continuations_of(&id(9), 9).unwrap(), []);
}

#[test]
fn the_jobs_of_a_session_and_the_names_of_agents_are_known() {
    let place = place();
    let store = place.store();
    let mut in_session = job(1, "coder", JobStatus::Running);
    in_session.head.session_id = session(7, "coder").agent_session_id;
    insert_jobs(&store, vec![in_session.clone(), job(2, "odd:skill", JobStatus::Completed)]);
    commit(&store, |tx| tx.put_agent("idler", &heeler_model::AgentState::default()));
    let reader = place.reader();
    let id = in_session.head.session_id.clone().unwrap();
    assert_eq!(reader.jobs_of_session(&id, None, 10).unwrap(), [in_session.head.clone()]);
    assert_eq!(reader.newest_job("coder").unwrap(), Some(in_session.head.clone()));
    assert_eq!(reader.running_jobs().unwrap(), [in_session.head]);
    assert_eq!(reader.agent_names().unwrap(), ["coder", "idler", "odd:skill"]);
}
