//! Tests of workflow runs, their journals and approvals.

use heeler_model::workflow::{
    OUTPUT_BYTES_MAX, PartDecision, PartOutcome, PhasePart, WorkflowRunStatus,
};
use heeler_model::{
    Approval, ApprovalId, ApprovalKind, ApprovalStatus, JobStatus, RunId, WorkflowRunId,
};
use serde_json::{Map, json};

use super::{TempStateDir, commit, insert_jobs, job, job_id, later, now, place};
use crate::{
    ApprovalCursor, ApprovalFilter, CronOverride, DatabaseError, IdLookupError, InstantPart,
    JobFilter, ScheduleOverrideRecord, WorkflowEventRecord, WorkflowOverride, WorkflowRunCursor,
    WorkflowRunFilter, WorkflowRunHead, WorkflowRunRow,
};

fn run_id(number: u64) -> WorkflowRunId {
    WorkflowRunId::mint(now(), number)
}

fn run(number: u64, workflow: &str, trigger: &str, status: WorkflowRunStatus) -> WorkflowRunRow {
    let at = later(i64::try_from(number).unwrap());
    WorkflowRunRow {
        head: WorkflowRunHead {
            id: run_id(number),
            workflow: workflow.to_owned(),
            trigger_id: trigger.to_owned(),
            trigger_type: Some("manual".to_owned()),
            current_phase: "build".to_owned(),
            status,
            restart_count: 0,
            started_at: at,
            updated_at: at,
            finished_at: None,
            spent: 5,
            origin: None,
            error: None,
            mode: None,
            owner: None,
            repo: None,
            issue_number: None,
        },
        version: 1,
        seq: 3,
        definition: Some("hash".to_owned()),
        triggered_by: Some("ada".to_owned()),
        trigger_actor_type: None,
        context: json!({"title": "Login"}),
        scratch: Map::from_iter([("plan".to_owned(), json!("p"))]),
    }
}

fn approval(number: u32, run: &str, kind: ApprovalKind) -> Approval {
    let at = later(i64::from(number));
    Approval {
        summary: format!("May it? {number}"),
        requested_by: Some("coder".to_owned()),
        ..Approval::new_pending(ApprovalId::mint(number), run, "post_build", kind, at)
    }
}

fn step<'a>(run: &'a WorkflowRunId, seq: u64, how: PartOutcome) -> InstantPart<'a> {
    InstantPart {
        run,
        skill: "build:context".to_owned(),
        trigger_type: "manual",
        phase: "context",
        part: PhasePart::Work,
        seq,
        outcome: how,
        decision: None,
        output: Some("said"),
        error: None,
    }
}

#[test]
fn a_run_comes_back_as_it_was_written_and_its_context_never_changes() {
    let place = place();
    let store = place.store();
    let mut row = run(1, "build", "issue-1", WorkflowRunStatus::Running);
    let first = row.clone();
    assert_eq!(commit(&store, move |tx| tx.insert_workflow_run(&first)), Ok(()));
    assert_eq!(place.reader().workflow_run(&run_id(1)).unwrap(), Some(row.clone()));
    row.head.status = WorkflowRunStatus::Failed;
    row.head.finished_at = Some(later(9));
    row.head.error = Some("é".repeat(2000));
    row.seq = 9;
    let mut changed = row.clone();
    changed.context = json!("another");
    changed.head.started_at = later(99);
    assert_eq!(commit(&store, move |tx| tx.update_workflow_run(&changed)), 2);
    row.version = 2;
    row.head.error = Some("é".repeat(1024));
    let found = place.reader().find_workflow_run("wf-2026").unwrap();
    assert_eq!(found, row);
    let stale = WorkflowRunRow { version: 1, ..row };
    let error = store.write(move |tx| tx.update_workflow_run(&stale)).unwrap_err();
    assert!(error.to_string().contains("has changed since version 1"), "{error}");
}

#[test]
fn a_trigger_has_one_active_run_of_a_workflow() {
    let place = place();
    let store = place.store();
    let insert = |row: WorkflowRunRow| commit(&store, move |tx| tx.insert_workflow_run(&row));
    assert_eq!(insert(run(1, "build", "issue-1", WorkflowRunStatus::Queued)), Ok(()));
    for status in [WorkflowRunStatus::Running, WorkflowRunStatus::Queued, WorkflowRunStatus::Paused]
    {
        assert_eq!(insert(run(2, "build", "issue-1", status)), Err(run_id(1)), "{status}");
    }
    assert_eq!(insert(run(3, "build", "issue-2", WorkflowRunStatus::Running)), Ok(()));
    assert_eq!(insert(run(4, "triage", "issue-1", WorkflowRunStatus::Paused)), Ok(()));
    assert_eq!(insert(run(5, "build", "issue-1", WorkflowRunStatus::Failed)), Ok(()));
    let mut over = run(1, "build", "issue-1", WorkflowRunStatus::Cancelled);
    over.head.finished_at = Some(later(5));
    commit(&store, move |tx| tx.update_workflow_run(&over));
    assert_eq!(insert(run(2, "build", "issue-1", WorkflowRunStatus::Running)), Ok(()));
    let active = place.reader().active_workflow_runs().unwrap();
    let active: Vec<_> = active.into_iter().map(|row| row.head.id).collect();
    assert_eq!(active, [run_id(2), run_id(3), run_id(4)]);
    let again = run(2, "build", "issue-9", WorkflowRunStatus::Failed);
    let error = store.write(move |tx| tx.insert_workflow_run(&again)).unwrap_err();
    assert!(error.to_string().contains("there already is a workflow run"), "{error}");
}

#[test]
fn runs_page_and_are_counted_by_every_filter() {
    let place = place();
    let store = place.store();
    commit(&store, |tx| {
        for number in 0..40 {
            let workflow = if number % 2 == 0 { "build" } else { "triage" };
            let over = [
                WorkflowRunStatus::Succeeded,
                WorkflowRunStatus::Failed,
                WorkflowRunStatus::Cancelled,
            ];
            let status = over[(number % 3) as usize];
            tx.insert_workflow_run(&run(number, workflow, "t", status))?.unwrap();
        }
        assert!(!tx.recount()?, "the counters were right");
        Ok(())
    });
    let reader = place.reader();
    let all = reader.workflow_runs(&WorkflowRunFilter::default(), None, 100).unwrap();
    assert_eq!(all.len(), 40);
    for workflow in [None, Some("build"), Some("nothing")] {
        for status in [None, Some(WorkflowRunStatus::Failed)] {
            for since in [None, Some(later(11))] {
                let workflow = workflow.map(str::to_owned);
                let filter =
                    WorkflowRunFilter { workflow, status, since, ..WorkflowRunFilter::default() };
                let expected: Vec<_> = all
                    .iter()
                    .filter(|it| filter.workflow.as_ref().is_none_or(|name| it.workflow == *name))
                    .filter(|it| status.is_none_or(|status| it.status == status))
                    .filter(|it| since.is_none_or(|since| it.started_at >= since))
                    .cloned()
                    .collect();
                let mut found = Vec::new();
                let mut before = None;
                loop {
                    let page = reader.workflow_runs(&filter, before.as_ref(), 7).unwrap();
                    let Some(last) = page.last() else { break };
                    before = Some(WorkflowRunCursor::after(last));
                    found.extend(page);
                }
                assert_eq!(found, expected, "{filter:?}");
                let total = reader.count_workflow_runs(&filter).unwrap();
                assert_eq!(total, expected.len() as i64, "{filter:?}");
            }
        }
    }
}

#[test]
fn the_journal_of_a_run_is_its_jobs_its_steps_and_its_gates_in_order() {
    let place = place();
    let store = place.store();
    let mut work = job(1, "coder", JobStatus::Completed);
    work.workflow_run_id = Some(run_id(1).to_string());
    (work.phase, work.part, work.seq) =
        (Some("build".to_owned()), Some(PhasePart::Fix(1)), Some(2));
    work.decision = Some(PartDecision::RequestChanges);
    work.output_text = Some("x".repeat(OUTPUT_BYTES_MAX + 1));
    let mut running = job(2, "coder", JobStatus::Running);
    running.workflow_run_id = Some(run_id(1).to_string());
    (running.phase, running.part, running.seq) =
        (Some("build".to_owned()), Some(PhasePart::Work), Some(4));
    insert_jobs(&store, vec![work, running]);
    commit(&store, |tx| {
        let id = run_id(1);
        tx.insert_instant_part(&step(&id, 1, PartOutcome::Soft), now())?;
        tx.insert_instant_part(
            &InstantPart { phase: "late", ..step(&id, 5, PartOutcome::Interrupted) },
            now(),
        )?;
        let mut gate = approval(7, id.as_str(), ApprovalKind::Reply);
        (gate.phase, gate.part, gate.seq) =
            (Some("build".into()), Some(PhasePart::Gate(0)), Some(3));
        assert!(tx.insert_approval(&gate)?);
        let twice = Approval { id: ApprovalId::mint(8), ..gate.clone() };
        assert!(!tx.insert_approval(&twice)?, "the place in the journal is taken");
        tx.answer_approval(&gate.id, ApprovalStatus::Approved, Some("do"), "ada", now())
    });
    let journal = place.reader().journal(&run_id(1)).unwrap();
    let told = journal.iter().map(|row| (row.seq, row.phase.as_str(), row.part, row.outcome));
    let told: Vec<_> = told.collect();
    assert_eq!(
        told,
        [
            (1, "context", PhasePart::Work, Some(PartOutcome::Soft)),
            (2, "build", PhasePart::Fix(1), Some(PartOutcome::Succeeded)),
            (3, "build", PhasePart::Gate(0), Some(PartOutcome::Succeeded)),
            (4, "build", PhasePart::Work, None),
            (5, "late", PhasePart::Work, Some(PartOutcome::Interrupted)),
        ]
    );
    assert_eq!(journal[0].job, None);
    assert_eq!(journal[1].job, Some(job_id(1)));
    assert_eq!(journal[1].decision, Some(PartDecision::RequestChanges));
    let kept = journal[1].output.as_ref().unwrap();
    assert!(kept.len() <= OUTPUT_BYTES_MAX && kept.contains("…[truncated "));
    assert_eq!(journal[2].approval, Some(ApprovalId::mint(7)));
    assert_eq!(journal[2].output.as_deref(), Some("do"));
}

#[test]
fn what_no_process_did_is_no_job() {
    let place = place();
    let store = place.store();
    insert_jobs(&store, vec![job(1, "coder", JobStatus::Failed)]);
    commit(&store, |tx| {
        for how in [
            PartOutcome::Succeeded,
            PartOutcome::Failed,
            PartOutcome::Soft,
            PartOutcome::Interrupted,
            PartOutcome::Cancelled,
        ] {
            tx.insert_instant_part(&step(&run_id(1), how as u64, how), later(5))?;
        }
        assert!(!tx.recount()?, "steps are not counted as jobs");
        Ok(())
    });
    let reader = place.reader();
    let jobs = reader.jobs(&JobFilter::default(), None, 10).unwrap();
    assert_eq!(jobs.len(), 1);
    for since in [None, Some(now())] {
        let filter = JobFilter { since, ..JobFilter::default() };
        assert_eq!(reader.count_jobs(&filter).unwrap(), 1);
        let filter = JobFilter { status: Some(JobStatus::Failed), ..filter };
        assert_eq!(reader.count_jobs(&filter).unwrap(), 1);
    }
    assert_eq!(reader.agent_names().unwrap(), ["coder"]);
    assert_eq!(reader.job_ids_with_prefix("wf-", 10).unwrap(), []);
    let error = reader.find_job(&format!("{}-0", run_id(1))).unwrap_err();
    assert!(matches!(error, IdLookupError::Unknown { .. }), "{error}");
    let twice =
        store.write(|tx| tx.insert_instant_part(&step(&run_id(1), 0, PartOutcome::Soft), now()));
    assert!(twice.is_err(), "an entry is written once");
}

#[test]
fn runs_are_found_by_their_repository_and_trigger() {
    let place = place();
    let store = place.store();
    let about = |number: u64, owner: &str, repo: &str, status| {
        let mut row = run(number, ["build", "triage"][number as usize % 2], "", status);
        row.head.trigger_id = format!("{owner}/{repo}#{number}");
        row.head.owner = Some(owner.to_owned());
        row.head.repo = Some(repo.to_owned());
        row.head.issue_number = Some(i64::try_from(number).unwrap());
        row.trigger_actor_type = Some("github".to_owned());
        row
    };
    let rows: Vec<WorkflowRunRow> = (0..20)
        .map(|number| {
            let repo = ["app", "web", "api"][number as usize % 3];
            let owner = if number % 5 == 0 { "other" } else { "acme" };
            let statuses = [WorkflowRunStatus::Failed, WorkflowRunStatus::Succeeded];
            about(number, owner, repo, statuses[number as usize % 4 / 2])
        })
        .collect();
    let stored = rows.clone();
    store
        .write(move |tx| stored.iter().try_for_each(|row| tx.insert_workflow_run(row).map(drop)))
        .unwrap();
    let reader = place.reader();
    assert_eq!(reader.workflow_run(&rows[7].head.id).unwrap().as_ref(), Some(&rows[7]));
    let repo = |owner: &str, repo: &str| Some((owner.to_owned(), repo.to_owned()));
    for repo in [None, repo("acme", "app"), repo("other", "app"), repo("acme", "none")] {
        for trigger_id in [None, Some("acme/app#3".to_owned()), Some("acme/app#4".to_owned())] {
            for workflow in [None, Some("build".to_owned())] {
                for (status, since) in
                    [(None, None), (Some(WorkflowRunStatus::Failed), None), (None, Some(later(9)))]
                {
                    let (repo, trigger_id) = (repo.clone(), trigger_id.clone());
                    let workflow = workflow.clone();
                    let filter = WorkflowRunFilter { workflow, status, since, repo, trigger_id };
                    let fits = |head: &&WorkflowRunHead| {
                        let of = (head.owner.clone().unwrap(), head.repo.clone().unwrap());
                        filter.repo.as_ref().is_none_or(|it| *it == of)
                            && filter.trigger_id.as_ref().is_none_or(|it| *it == head.trigger_id)
                            && filter.workflow.as_ref().is_none_or(|it| *it == head.workflow)
                            && filter.status.is_none_or(|it| it == head.status)
                            && filter.since.is_none_or(|it| head.started_at >= it)
                    };
                    let newest_first = rows.iter().rev().map(|row| &row.head);
                    let expected: Vec<_> = newest_first.filter(fits).cloned().collect();
                    let (mut found, mut before) = (Vec::new(), None);
                    loop {
                        let page = reader.workflow_runs(&filter, before.as_ref(), 3).unwrap();
                        let Some(last) = page.last() else { break };
                        before = Some(WorkflowRunCursor::after(last));
                        found.extend(page);
                    }
                    assert_eq!(found, expected, "{filter:?}");
                    let total = reader.count_workflow_runs(&filter).unwrap();
                    assert_eq!(usize::try_from(total).unwrap(), expected.len(), "{filter:?}");
                }
            }
        }
    }
}

/// Large columns must come after those that a list reads, because SQLite reads a row from its
/// front.
#[test]
fn no_list_reads_what_may_be_large() {
    let place = place();
    drop(place.store());
    let reader = place.reader();
    let large = [
        ("executions", "prompt"),
        ("workflow_runs", "phase_history"),
        ("workflow_approvals", "response"),
    ];
    let lists = [
        (crate::db::jobs::ALL_SQL, "executions"),
        (crate::db::workflow_run_list::ALL_SQL, "workflow_runs"),
        (crate::db::approvals::ALL_SQL, "workflow_approvals"),
    ];
    let unbounded =
        ["context", "scratch", "definition", "output_text", "detail", "response", "prompt"];
    for (statements, table) in lists {
        let columns: Vec<String> = {
            let sql = format!("SELECT name FROM pragma_table_info('{table}') ORDER BY cid");
            let mut statement = reader.conn.sqlite().prepare(&sql).unwrap();
            let rows = statement.query_map([], |row| row.get(0)).unwrap();
            rows.map(Result::unwrap).collect()
        };
        let first_large = large.iter().find(|(of, _)| *of == table).unwrap().1;
        let bound = columns.iter().position(|name| name == first_large).unwrap();
        let pages = statements.iter().filter(|(name, _)| name.starts_with("PAGE"));
        for (name, sql) in pages {
            let statement = reader.conn.sqlite().prepare(sql).unwrap();
            // Columns of `job_marks`, which has only short ones.
            let is_mark = |column: &&str| ["title", "denied", "host"].contains(column);
            for column in statement.column_names().filter(|it| !is_mark(it)) {
                assert!(!unbounded.contains(&column), "{table} {name}: {column}");
                let at = columns.iter().position(|name| name == column).unwrap();
                assert!(at < bound, "{table} {name}: {column} stands behind {first_large}");
            }
        }
    }
}

#[test]
fn an_approval_is_answered_once() {
    let place = place();
    let store = place.store();
    let asked = Approval {
        detail: Some(json!({"tool": "Bash", "input": {"command": "ls"}})),
        expires_at: Some(later(60)),
        job_id: Some(job_id(1)),
        run_id: Some(RunId::mint(now(), [1; 10])),
        ask_id: Some("toolu_1".to_owned()),
        ..approval(1, job_id(1).as_str(), ApprovalKind::Permission)
    };
    let first = asked.clone();
    assert!(commit(&store, move |tx| tx.insert_approval(&first)));
    let reader = place.reader();
    assert_eq!(reader.find_approval("ask-0000").unwrap(), asked);
    // Questions of a running agent are expired by its runner.
    assert_eq!(reader.next_gate_expiry().unwrap(), None);
    let run = "wf-2026-11-15-aaaaaa";
    let gate = Approval { expires_at: Some(later(60)), ..approval(2, run, ApprovalKind::Approve) };
    let (first, id) = (gate.clone(), gate.id.clone());
    assert!(commit(&store, move |tx| tx.insert_approval(&first)));
    assert_eq!(reader.next_gate_expiry().unwrap(), Some(later(60)));
    assert_eq!(reader.expired_gates(later(59), 9).unwrap(), []);
    assert_eq!(reader.expired_gates(later(60), 9).unwrap(), [gate]);
    let expired = ApprovalStatus::Approved;
    assert!(commit(&store, move |tx| tx.answer_approval(&id, expired, None, "x", later(60))));
    let answer = |by: &'static str| {
        let id = asked.id.clone();
        commit(&store, move |tx| {
            tx.answer_approval(&id, ApprovalStatus::Rejected, Some("no"), by, later(3))
        })
    };
    assert!(answer("ada"));
    for _ in 0..49 {
        assert!(!answer("bob"));
    }
    let answered = reader.approval(&asked.id).unwrap().unwrap();
    assert_eq!(answered.responded_by.as_deref(), Some("ada"));
    assert_eq!((answered.status, answered.version), (ApprovalStatus::Rejected, 2));
    assert_eq!(reader.next_gate_expiry().unwrap(), None);
    let run = asked.run_id.unwrap();
    assert_eq!(reader.undelivered_approvals(run).unwrap(), [answered]);
    let id = asked.id.clone();
    assert!(commit(&store, move |tx| tx.set_approval_delivered(&id, later(4))));
    assert_eq!(reader.undelivered_approvals(run).unwrap(), []);
    assert_eq!(reader.approval_for_question(run, "toolu_1").unwrap().unwrap().id, asked.id);
    let missing = ApprovalId::mint(99);
    let error = store.write(move |tx| {
        tx.answer_approval(&missing, ApprovalStatus::Approved, None, "ada", now())
    });
    assert!(error.unwrap_err().to_string().contains("there is no approval"));
}

#[test]
fn a_long_question_is_cut_in_short_and_in_full() {
    let place = place();
    let mut asked = approval(1, "run", ApprovalKind::Approve);
    asked.summary = "é".repeat(2000);
    asked.detail = Some(json!("x".repeat(OUTPUT_BYTES_MAX + 1)));
    let id = asked.id.clone();
    commit(&place.store(), move |tx| tx.insert_approval(&asked));
    let kept = place.reader().approval(&id).unwrap().unwrap();
    assert_eq!(kept.summary, "é".repeat(1024));
    let detail = kept.detail.unwrap();
    let detail = detail.as_str().unwrap();
    assert!(detail.len() <= OUTPUT_BYTES_MAX && detail.contains("…[truncated "));
}

fn ask_many(place: &TempStateDir) {
    commit(&place.store(), |tx| {
        for number in 0..30 {
            let run = if number % 3 == 0 { "a" } else { "b" };
            let asked = approval(number, run, ApprovalKind::ALL[(number % 4) as usize]);
            tx.insert_approval(&asked)?;
            if number % 2 == 0 {
                let status = ApprovalStatus::Withdrawn;
                tx.answer_approval(&asked.id, status, None, "heeler", now())?;
            }
        }
        assert!(!tx.recount()?, "the counters were right");
        Ok::<_, DatabaseError>(())
    });
}

#[test]
fn approvals_page_and_are_counted_by_every_filter() {
    let place = place();
    ask_many(&place);
    let reader = place.reader();
    let all = reader.approvals(&ApprovalFilter::default(), None, 100).unwrap();
    assert_eq!(all.len(), 30);
    for run in [None, Some("a"), Some("c")] {
        for status in [None, Some(ApprovalStatus::Pending)] {
            let filter = ApprovalFilter { run: run.map(str::to_owned), status };
            let expected: Vec<_> = all
                .iter()
                .filter(|it| run.is_none_or(|run| it.workflow_run_id == run))
                .filter(|it| status.is_none_or(|status| it.status == status))
                .cloned()
                .collect();
            let mut found = Vec::new();
            let mut before = None;
            loop {
                let page = reader.approvals(&filter, before.as_ref(), 4).unwrap();
                let Some(last) = page.last() else { break };
                before = Some(ApprovalCursor::after(last));
                found.extend(page);
            }
            assert_eq!(found, expected, "{filter:?}");
            assert_eq!(reader.count_approvals(&filter).unwrap(), expected.len() as i64);
        }
    }
    let pending = reader.pending_approvals_of("a").unwrap();
    assert!(pending.is_sorted_by(|a, b| a.created_at < b.created_at));
    assert_eq!(pending.len(), 5);
}

#[test]
fn definitions_are_kept_once_and_events_are_counted_by_run() {
    let place = place();
    let store = place.store();
    commit(&store, |tx| {
        tx.put_definition("h", "build", "{\"root\":1}", now())?;
        tx.put_definition("h", "build", "another", now())?;
        tx.add_workflow_event(&run_id(1), "said", Some("build"), "one", later(1))?;
        tx.add_workflow_event(&run_id(2), "said", None, "elsewhere", later(2))?;
        tx.add_workflow_event(&run_id(1), "said", None, &"é".repeat(20_000), later(3))
    });
    let reader = place.reader();
    assert_eq!(reader.definition("h").unwrap().as_deref(), Some("{\"root\":1}"));
    assert_eq!(reader.definition("other").unwrap(), None);
    let events = reader.workflow_events(&run_id(1), 0, 10).unwrap();
    let first = WorkflowEventRecord {
        number: 1,
        at: later(1),
        kind: "said".to_owned(),
        phase: Some("build".to_owned()),
        text: "one".to_owned(),
    };
    assert_eq!(events[0], first);
    assert_eq!((events[1].number, events[1].text.len()), (2, 16 << 10));
    assert_eq!(reader.workflow_events(&run_id(1), 1, 10).unwrap(), events[1..]);
}

#[test]
fn a_workflow_is_switched_off_and_on() {
    let place = place();
    let store = place.store();
    let set = |enabled: bool| {
        let name = "build".to_owned();
        let change = WorkflowOverride { name, enabled, at: later(1), by: "ada".to_owned() };
        let written = change.clone();
        commit(&store, move |tx| tx.put_workflow_override(&written));
        change
    };
    assert_eq!(place.reader().workflow_override("build").unwrap(), None);
    let off = set(false);
    assert_eq!(place.reader().workflow_override("build").unwrap(), Some(off));
    let on = set(true);
    assert_eq!(place.reader().workflow_overrides().unwrap(), [on]);
}

#[test]
fn a_cron_of_a_workflow_is_told_apart_from_an_agents_schedule() {
    let place = place();
    let store = place.store();
    let cron = CronOverride {
        name: "nightly".to_owned(),
        enabled: false,
        schedule: Some("0 3 * * *".to_owned()),
        at: later(1),
        by: "ada".to_owned(),
    };
    let written = cron.clone();
    commit(&store, move |tx| {
        tx.put_cron_override(&written)?;
        let (agent, schedule) = ("coder".to_owned(), "nightly".to_owned());
        let (text, by) = (None, "bob".to_owned());
        tx.put_schedule_override(&ScheduleOverrideRecord {
            agent,
            schedule,
            enabled: false,
            text,
            at: now(),
            by,
        })
    });
    let reader = place.reader();
    assert_eq!(reader.cron_overrides().unwrap(), [cron]);
    assert_eq!(reader.schedule_overrides().unwrap().len(), 1);
    assert!(!commit(&store, |tx| tx.remove_cron_override("coder/nightly")));
    assert!(commit(&store, |tx| tx.remove_cron_override("nightly")));
    assert_eq!(reader.cron_overrides().unwrap(), []);
    assert_eq!(reader.schedule_overrides().unwrap().len(), 1);
}
