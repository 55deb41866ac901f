//! Tests of activity pages: untrusted text is inert, and actions appear only when they apply.

use heeler_model::workflow::WorkflowRunStatus;
use heeler_model::{
    ApprovalKind, ApprovalMode, ApprovalStatus, JobStatus, SessionMode, SessionStatus,
};
use heeler_query::approvals::{ApprovalDetails, ApprovalPage, ApprovalSummary};
use heeler_query::calendar::{FleetCalendar, ScheduleTimeline, TimelineEntry, TimelineOutcome};
use heeler_query::messages::MessagePage;
use heeler_query::rows::{NumberedRow, RowPage};
use heeler_query::sessions::{SessionDetails, SessionSummary};
use heeler_query::workflow_runs::{
    PartSummary, PhaseSummary, WorkflowEventSummary, WorkflowRunDetails, WorkflowRunSummary,
};
use heeler_query::workflows::{ConfigFaultSummary, FaultyWorkflow, WorkflowPage};
use serde_json::{Value, json};

use super::{EVIL, at, frame, is_inert};
use crate::approvals::{self, ApprovalsView};
use crate::sessions::SessionView;
use crate::{PageFrame, ViewerScope, job, schedules, sessions, workflow_runs, workflows};

fn asked(kind: ApprovalKind, text: &str, detail: Value) -> ApprovalDetails {
    ApprovalDetails {
        item: ApprovalSummary {
            id: "ask-1".to_owned(),
            workflow_run_id: text.to_owned(),
            gate: text.to_owned(),
            kind,
            status: ApprovalStatus::Pending,
            summary: text.to_owned(),
            requested_by: Some(text.to_owned()),
            created_at: at(-5),
            expires_at: Some(at(60)),
            responded_by: Some(text.to_owned()),
            responded_at: Some(at(-1)),
            job_id: Some("job-2026-11-15-abc123".to_owned()),
            phase: Some(text.to_owned()),
        },
        response: Some(text.to_owned()),
        detail: Some(detail),
        input_hash: Some(text.to_owned()),
        input_bytes: Some(7),
        artifact: Some(text.to_owned()),
        default_answer: Some(text.to_owned()),
        delivered_at: None,
    }
}

fn inbox(frame: &PageFrame, waiting: &[ApprovalDetails]) -> String {
    let past = waiting.iter().map(|it| {
        let status = ApprovalStatus::Rejected;
        ApprovalSummary { status, ..it.item.clone() }
    });
    let past = ApprovalPage { approvals: past.collect(), total: 1, limit: 9, next: None };
    approvals::page(frame, &ApprovalsView::default(), waiting, 1, &past).into_string()
}

fn permission(text: &str) -> ApprovalDetails {
    asked(ApprovalKind::Permission, text, json!({ "input": { "command": text, text: [text] } }))
}

fn question(text: &str) -> ApprovalDetails {
    let question = json!({ "question": text, "options": [{ "label": text, "description": text }] });
    asked(ApprovalKind::Question, text, json!({ "input": { "questions": [question] } }))
}

#[test]
fn what_people_are_asked_cannot_act_whatever_is_in_it() {
    for text in EVIL {
        let gate = asked(ApprovalKind::Approve, text, json!(text));
        let cut = asked(ApprovalKind::Permission, text, json!({ "inputText": text }));
        let all = [permission(text), question(text), gate, cut];
        is_inert(&inbox(&frame(), &all));
        for one in &all {
            is_inert(&approvals::approval_page(&frame(), one).into_string());
        }
    }
}

#[test]
fn each_kind_of_question_is_answered_as_it_can_be() {
    let html = inbox(&frame(), &[permission("rm -r build")]);
    for part in ["value=\"approve\"", "value=\"reject\"", "name=\"input\"", "rm -r build"] {
        assert!(html.contains(part), "{part} in {html}");
    }
    let html = inbox(&frame(), &[question("Which?")]);
    assert!(html.contains("value=\"reply\"") && html.contains("type=\"radio\""), "{html}");
    assert!(!html.contains("value=\"approve\""), "{html}");
}

#[test]
fn who_may_only_look_is_offered_no_answer() {
    let looker = PageFrame { viewer_scope: ViewerScope::Read, ..frame() };
    let html = inbox(&looker, &[permission("ls"), question("Which?")]);
    assert!(!html.contains("data-answer=") && !html.contains("<textarea"), "{html}");
}

#[test]
fn an_input_that_is_too_long_to_be_shown_whole_cannot_be_changed() {
    let long = "x".repeat(70_000);
    let html = inbox(&frame(), &[permission(&long)]);
    assert!(html.contains("more bytes]") && !html.contains("name=\"input\""));
    let all = "href=\"/api/v1/approvals/";
    assert!(html.contains(all), "nobody has to say yes to what they cannot read");
    assert!(!inbox(&frame(), &[permission("short")]).contains(all));
}

fn run(text: &str) -> WorkflowRunDetails {
    let some = || Some(text.to_owned());
    let part = PartSummary {
        part: text.to_owned(),
        seq: 1,
        job: Some("job-2026-11-15-abc123".to_owned()),
        agent: some(),
        status: JobStatus::Failed,
        decision: None,
        asked_at: at(-9),
        started_at: Some(at(-8)),
        finished_at: None,
        duration_seconds: None,
        cost_usd: 0.5,
        session_id: some(),
        error: some(),
    };
    let phase = PhaseSummary {
        name: text.to_owned(),
        label: some(),
        status: "failed".to_owned(),
        started_at: Some(at(-8)),
        finished_at: Some(at(-1)),
        cost_usd: 0.5,
        items: Some(2),
        error: some(),
        output: some(),
        parts: vec![part],
    };
    WorkflowRunDetails {
        item: WorkflowRunSummary {
            id: "wf-1".to_owned(),
            workflow: text.to_owned(),
            status: WorkflowRunStatus::Failed,
            current_phase: text.to_owned(),
            trigger_id: text.to_owned(),
            trigger_type: some(),
            started_at: at(-9),
            updated_at: at(-1),
            finished_at: None,
            duration_seconds: None,
            cost_usd: 1.0,
            restart_count: 1,
            error: some(),
            origin: None,
            mode: None,
            repo: some(),
            issue_number: Some(7),
        },
        triggered_by: some(),
        inputs: json!({ text: text }),
        scratch: Value::Null,
        phases: vec![phase],
        approvals: vec![permission(text)],
        events: vec![WorkflowEventSummary {
            number: 1,
            at: at(-3),
            kind: text.to_owned(),
            phase: some(),
            text: text.to_owned(),
        }],
    }
}

#[test]
fn a_run_cannot_act_whatever_its_phases_are_called_and_say() {
    for text in EVIL {
        is_inert(&workflow_runs::workflow_run_page(&frame(), &run(text), &[]).into_string());
    }
    let html = workflow_runs::workflow_run_page(&frame(), &run("build"), &[]).into_string();
    assert!(html.contains("/retry") && !html.contains("/cancel"), "it is over");
}

#[test]
fn rows_of_a_page_have_the_numbers_by_which_older_ones_are_asked_for() {
    let row = |line, text: &str| NumberedRow {
        line,
        row: serde_json::value::RawValue::from_string(text.to_owned()).unwrap(),
    };
    let rows = vec![row(7, r#"{"type":"assistant","content":"hi"}"#), row(8, "1")];
    let page = RowPage { job: "job".to_owned(), rows, lines: 9, previous: Some(7), next: None };
    let html = job::rows_fragment(&page).into_string();
    assert!(html.starts_with(r#"<div data-page data-previous="7" data-lines="9">"#), "{html}");
    assert!(html.contains(r#"id="row-7""#) && html.contains(r#"id="row-8""#), "{html}");
}

#[test]
fn a_page_of_messages_says_whether_more_come_behind_it() {
    let page = |total| MessagePage {
        session: "sess-1".to_owned(),
        messages: Vec::new(),
        total,
        next: Some(4),
    };
    let html = sessions::messages_fragment(&frame(), &page(9)).into_string();
    assert_eq!(html, r#"<div data-page data-previous="4" data-total="9"></div>"#);
}

fn session(runtime: &str) -> SessionView {
    let id = "sess-1".to_owned();
    let messages =
        Some(MessagePage { session: id.clone(), messages: Vec::new(), total: 2, next: None });
    let item = SessionSummary {
        id,
        agent_session_id: None,
        agent_id: "coder".to_owned(),
        mode: SessionMode::FreshPerJob,
        approvals: ApprovalMode::Autonomous,
        status: SessionStatus::Completed,
        channel_id: None,
        created_at: at(-9),
        last_active_at: at(-5),
        message_count: 2,
        token_estimate: 0,
        job_count: 1,
        jobs: Vec::new(),
        working_directory: None,
        runtime: runtime.to_owned(),
        parent: None,
        forked_at_message: None,
        continues: None,
        workspace: None,
        origin: None,
        title: None,
        depth: None,
    };
    let session = SessionDetails {
        item,
        log: None,
        forks: Vec::new(),
        continued_by: Vec::new(),
        resume_command: None,
        host: None,
        last_move: None,
        is_unbegun: false,
    };
    SessionView { session, messages, holder: None }
}

/// Earlier releases recorded one for each command of a workflow.
#[test]
fn a_session_of_a_command_can_be_read_and_neither_forked_nor_continued() {
    let html = |runtime: &str| sessions::session_page(&frame(), &session(runtime)).into_string();
    let (agents, commands) = (html("sdk"), html("command"));
    for action in ["/api/v1/sessions/sess-1/fork", "Message to "] {
        assert!(agents.contains(action) && !commands.contains(action), "{action}: {commands}");
    }
    assert!(commands.contains("/api/v1/sessions/sess-1/export"), "{commands}");
}

fn calendar() -> FleetCalendar {
    let due = |minutes: i64| TimelineEntry { at: at(minutes * 60), what: TimelineOutcome::Due };
    let lane = |schedule: &str, marks: Vec<TimelineEntry>, more_due| ScheduleTimeline {
        agent: "writer".to_owned(),
        schedule: schedule.to_owned(),
        when: "every 1m".to_owned(),
        enabled: true,
        marks,
        more_past: false,
        more_due,
    };
    FleetCalendar {
        from: at(-86_400),
        now: at(0),
        until: at(86_400),
        lanes: vec![
            lane("minutely", (1..=100).map(due).collect(), true),
            lane("nightly", vec![due(600)], false),
        ],
    }
}

#[test]
fn a_schedule_that_is_often_due_does_not_hide_the_others() {
    let html = schedules::page(&frame(), &calendar()).into_string();
    let coming = html.split("id=\"coming\"").nth(1).unwrap().split("</section>").next().unwrap();
    assert_eq!(coming.matches("minutely").count(), 3, "{coming}");
    assert!(coming.contains("then more than 97 more within a day"), "{coming}");
    assert!(coming.contains("nightly"), "{coming}");
}

#[test]
fn files_of_workflows_that_cannot_run_are_shown_with_their_faults() {
    let fault = |message: &str| ConfigFaultSummary {
        file: "workflows/bad.yaml".to_owned(),
        line: 3,
        column: 1,
        message: message.to_owned(),
        expected: None,
        help: Some("say `type`".to_owned()),
    };
    for text in EVIL {
        let faulty = vec![FaultyWorkflow {
            name: text.to_owned(),
            kind: "workflow".to_owned(),
            file: text.to_owned(),
            errors: (0..7).map(|_| fault(text)).collect(),
        }];
        let found = WorkflowPage { workflows: Vec::new(), total: 0, faulty };
        let html = workflows::page(&frame(), &found).into_string();
        is_inert(&html);
        assert!(html.contains("and 2 more"), "{html}");
        assert!(html.contains("<code>type</code>"), "{html}");
    }
}

#[test]
fn what_is_older_is_a_link_that_needs_no_script() {
    let html = job::older_link("/jobs/job-1", Some(7)).into_string();
    assert!(html.contains(r##"href="/jobs/job-1?before=7#h-log""##), "{html}");
    assert!(!html.contains("hidden"), "{html}");
    assert!(job::older_link("/jobs/job-1", None).into_string().contains("hidden"));
    assert!(job::newest_link("/jobs/job-1", Some(9)).into_string().contains("Newest"));
    assert_eq!(job::newest_link("/jobs/job-1", None).into_string(), "");
}

#[test]
fn the_end_of_a_question_has_weight_only_when_it_is_near() {
    let mut ask = permission("ls");
    assert!(inbox(&frame(), std::slice::from_ref(&ask)).contains("class=\"soon\""));
    ask.item.expires_at = Some(at(3_600));
    assert!(!inbox(&frame(), &[ask]).contains("class=\"soon\""));
}

#[test]
fn costs_show_limits_and_names_cannot_act() {
    use heeler_query::charts::DailyCost;
    use heeler_query::costs::{CostGrouping, CostReport, CostSummary};
    use heeler_query::fleet::BudgetSummary;

    use crate::costs::{self, CostsView};
    for text in EVIL {
        let cost = |agent: Option<&str>, model: Option<&str>| CostSummary {
            agent: agent.map(str::to_owned),
            model: model.map(str::to_owned),
            cost_usd: 1.5,
            ..CostSummary::default()
        };
        let report = |by, cost| CostReport { by, costs: vec![cost], total_usd: 1.5 };
        let budget = |whose: &str, limit| BudgetSummary {
            whose: whose.to_owned(),
            day_limit_usd: limit,
            day_spent_usd: 6.0,
            total_limit_usd: None,
            total_spent_usd: 6.0,
            reserved_usd: 0.5,
        };
        let view = CostsView {
            days: vec![DailyCost { day: "2026-11-15".parse().unwrap(), cost_usd: 1.5 }],
            agents: report(CostGrouping::Agent, cost(Some(text), None)),
            models: report(CostGrouping::Model, cost(None, Some(text))),
            budgets: Ok(vec![budget(text, Some(5.0)), budget("without-limits", None)]),
        };
        let page = costs::page(&frame(), &view).into_string();
        is_inert(&page);
        assert!(page.contains("$6.00 of $5.00") && page.contains("meter over"), "{page}");
        assert!(!page.contains("without-limits"), "{page}");
        let view = CostsView { budgets: Err(text.to_owned()), ..view };
        is_inert(&costs::page(&frame(), &view).into_string());
    }
}
