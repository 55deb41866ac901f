//! Runs of small workflows, step by step: parts that begin, decisions, and outcomes.

use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::sync::Arc;

use expect_test::{Expect, expect};
use heeler_config::RetryPolicy;
use heeler_config::workflow::{
    ContextNumber, ForeachLoop, Gate, GateKind, MarkerRule, OutputRules, Phase, PhaseMessages,
    PhaseRepeat, PhaseSkills, PhaseWork, ReviewLoop, SoftFailurePolicy, TriggerRule, UntilLoop,
    Workflow, WorkflowExpression, WorkflowTemplate,
};
use indexmap::IndexMap;
use jiff::Timestamp;
use serde_json::{Value as Json, json};

use super::*;

/// Builds a workflow of phases that have no dependencies unless given.
pub(super) fn workflow(phases: Vec<Phase>) -> Workflow {
    Workflow {
        name: "flow".parse().unwrap(),
        description: None,
        agent: Some("coder".parse().unwrap()),
        inputs: IndexMap::new(),
        max_parallel: NonZeroU32::new(4).unwrap(),
        budget: None,
        phases,
        final_message: None,
        github: heeler_config::workflow::WorkflowGithubRules::default(),
        run_clone: None,
        intent: None,
    }
}

/// Builds a phase that prompts an agent with the phase's name.
pub(super) fn phase(name: &str, depends_on: &[usize]) -> Phase {
    let prompt = WorkflowTemplate::parse(&format!("do {name}")).unwrap();
    Phase {
        name: name.parse().unwrap(),
        label: None,
        agent: None,
        work: PhaseWork::Agent { prompt, model: None, effort: None },
        depends_on: depends_on.to_vec(),
        trigger_rule: TriggerRule::AllSuccess,
        skip_if: Vec::new(),
        repeat: PhaseRepeat::Once,
        gate: None,
        on_output: OutputRules::default(),
        output_var: None,
        timeout_seconds: None,
        retry: RetryPolicy {
            max: 0,
            backoff: "1s".parse().unwrap(),
            max_backoff: "1m".parse().unwrap(),
        },
        working_directory: None,
        messages: PhaseMessages::default(),
        set_phase: None,
        skills: PhaseSkills::default(),
    }
}

pub(super) fn gate(name: &str, kind: GateKind) -> Gate {
    Gate { name: name.to_owned(), kind, message: None, artifact: None, timeout: None }
}

fn asks(prompt: &str) -> PhaseWork {
    PhaseWork::Agent { prompt: WorkflowTemplate::parse(prompt).unwrap(), model: None, effort: None }
}

fn until(until: &str) -> UntilLoop {
    UntilLoop {
        max_iterations: ContextNumber::Fixed(3),
        until: Some(WorkflowExpression::parse(until).unwrap()),
        until_bash: None,
        gate: None,
        scratch_key: Some("loop".to_owned()),
        fresh_context: false,
        on_soft_failure: SoftFailurePolicy::default(),
    }
}

/// Run with a log of its effects as text.
pub(super) struct WorkflowRunFixture {
    pub(super) course: WorkflowRun,
    open: Vec<JournalEntry>,
    pub(super) log: String,
    off: Vec<String>,
}

impl WorkflowRunFixture {
    pub(super) fn new(workflow: Workflow) -> WorkflowRunFixture {
        WorkflowRunFixture::with(workflow, json!({}), &[])
    }

    pub(super) fn with(workflow: Workflow, context: Json, off: &[&str]) -> WorkflowRunFixture {
        let course = WorkflowRun::new(Arc::new(workflow), context);
        let off = off.iter().map(|it| (*it).to_owned()).collect();
        let mut play = WorkflowRunFixture { course, open: Vec::new(), log: String::new(), off };
        play.happens(WorkflowStepEvent::Continue);
        play
    }

    pub(super) fn happens(&mut self, happening: WorkflowStepEvent) {
        let off = self.off.clone();
        let is_off = |gate: &str| off.iter().any(|it| it == gate);
        let step = self
            .course
            .step(happening, &WorkflowStepContext { run: "wf-1", is_gate_disabled: &is_off });
        for effect in step.effects {
            self.note(effect);
        }
        writeln!(self.log, "  {}", self.course.status).unwrap();
    }

    fn note(&mut self, effect: WorkflowEffect) {
        let course = &self.course;
        let name = |entry: &JournalEntry| {
            let phase = &course.workflow.phases[entry.phase].name;
            format!("{phase} {}", entry.part)
        };
        match effect {
            WorkflowEffect::StartPart { entry, job: piece, after } => {
                let what = match &piece.work {
                    PartJobWork::Ask { prompt, .. } => prompt.clone(),
                    PartJobWork::Bash { command, .. } => format!("$ {command}"),
                    PartJobWork::Script { source, .. } => format!("# {source}"),
                };
                let after = if after.is_zero() { String::new() } else { format!(" in {after:?}") };
                writeln!(self.log, "  start {}: {what}{after}", name(&entry)).unwrap();
                self.open.push(entry);
            }
            WorkflowEffect::RecordPart { entry } => {
                let why = entry.error.as_deref().or(entry.output.as_deref()).unwrap_or_default();
                writeln!(self.log, "  note {}: {why}", name(&entry)).unwrap();
            }
            WorkflowEffect::ClosePart { entry } => {
                let decision = entry.decision.map_or(String::new(), |it| format!(" ({it})"));
                let (name, how) = (name(&entry), entry.outcome.unwrap());
                writeln!(self.log, "  close {name}: {how:?}{decision}").unwrap();
            }
            WorkflowEffect::AskQuestion { entry, question } => {
                let (name, text) = (name(&entry), &question.text);
                writeln!(self.log, "  ask {name} {}: {text}", question.kind).unwrap();
                self.open.push(entry);
            }
            WorkflowEffect::PostReview { entry, findings } => {
                writeln!(self.log, "  post {} {:?}", entry.part, findings.event).unwrap();
            }
            WorkflowEffect::SendMessage { text, .. } => writeln!(self.log, "  say {text}").unwrap(),
            WorkflowEffect::StopJobs { .. } => writeln!(self.log, "  stop").unwrap(),
        }
    }

    fn take(&mut self, phase: &str, part: &str) -> JournalEntry {
        let place = self.course.workflow.phase_index(phase).unwrap();
        let part: PhasePart = part.parse().unwrap();
        let at = self.open.iter().position(|it| it.phase == place && it.part == part);
        self.open.remove(at.unwrap_or_else(|| panic!("{phase} {part} is not open:\n{}", self.log)))
    }

    pub(super) fn ends(
        &mut self,
        phase: &str,
        part: &str,
        how: PartOutcome,
        output: &str,
    ) -> &mut WorkflowRunFixture {
        let entry = self.take(phase, part);
        writeln!(self.log, "{phase} {part} ends {how:?}: {output}").unwrap();
        let error = (how == PartOutcome::Failed && !output.is_empty()).then(|| output.to_owned());
        self.happens(WorkflowStepEvent::PartEnded(EndedPart {
            phase: entry.phase,
            part: entry.part,
            seq: entry.seq,
            job: "job-1".parse().unwrap(),
            outcome: how,
            output: Some(output.to_owned()),
            error,
            micros: 10,
            is_stopped: false,
        }));
        self
    }

    pub(super) fn says(
        &mut self,
        phase: &str,
        part: &str,
        output: &str,
    ) -> &mut WorkflowRunFixture {
        self.ends(phase, part, PartOutcome::Succeeded, output)
    }

    pub(super) fn answers(
        &mut self,
        phase: &str,
        part: &str,
        consents: bool,
        text: &str,
    ) -> &mut WorkflowRunFixture {
        let entry = self.take(phase, part);
        writeln!(self.log, "{phase} {part} answered {consents}: {text}").unwrap();
        let answer = GateAnswer {
            is_approved: consents,
            text: Some(text.to_owned()),
            by: "ada".to_owned(),
            at: Timestamp::UNIX_EPOCH,
            seq: entry.seq,
        };
        self.happens(WorkflowStepEvent::GateAnswered {
            phase: entry.phase,
            part: entry.part,
            answer,
        });
        self
    }

    #[track_caller]
    fn check(&self, expected: Expect) {
        expected.assert_eq(&self.log);
    }
}

#[test]
fn phases_run_side_by_side_as_far_as_they_may() {
    let phases = vec![phase("a", &[]), phase("b", &[]), phase("c", &[]), phase("d", &[0, 1, 2])];
    let two = NonZeroU32::new(2).unwrap();
    let mut play = WorkflowRunFixture::new(Workflow { max_parallel: two, ..workflow(phases) });
    play.says("b", "work", "B").says("a", "work", "A").says("c", "work", "C");
    play.says("d", "work", "D");
    play.check(expect![[r#"
          start a work: do a
          start b work: do b
          running
        b work ends Succeeded: B
          close b work: Succeeded
          start c work: do c
          running
        a work ends Succeeded: A
          close a work: Succeeded
          running
        c work ends Succeeded: C
          close c work: Succeeded
          start d work: do d
          running
        d work ends Succeeded: D
          close d work: Succeeded
          succeeded
    "#]]);
    assert_eq!(play.course.spent_micros, 40);
}

#[test]
fn what_waits_for_a_failure_is_left_out_unless_its_rule_says_otherwise() {
    let mut always = phase("always", &[0]);
    always.trigger_rule = TriggerRule::AllDone;
    let mut play =
        WorkflowRunFixture::new(workflow(vec![phase("a", &[]), phase("b", &[0]), always]));
    play.ends("a", "work", PartOutcome::Failed, "no disk").says("always", "work", "");
    play.check(expect![[r#"
          start a work: do a
          running
        a work ends Failed: no disk
          close a work: Failed
          note b skip: its dependencies do not satisfy `trigger_rule: all_success`
          start always work: do always
          running
        always work ends Succeeded: 
          close always work: Succeeded
          failed
    "#]]);
    assert_eq!(play.course.error.as_deref(), Some("a: no disk"));
}

#[test]
fn a_part_that_failed_is_tried_again_later_and_later() {
    let mut a = phase("a", &[]);
    a.retry.max = 2;
    let mut play = WorkflowRunFixture::new(workflow(vec![a]));
    play.ends("a", "work", PartOutcome::Failed, "1").ends("a", "work", PartOutcome::Failed, "2");
    play.ends("a", "work", PartOutcome::Failed, "3");
    play.check(expect![[r#"
          start a work: do a
          running
        a work ends Failed: 1
          close a work: Failed
          start a work: do a in 1s
          running
        a work ends Failed: 2
          close a work: Failed
          start a work: do a in 2s
          running
        a work ends Failed: 3
          close a work: Failed
          failed
    "#]]);
}

#[test]
fn a_part_that_was_cut_off_is_done_again_but_not_for_ever() {
    let mut play = WorkflowRunFixture::new(workflow(vec![phase("a", &[])]));
    for _ in 0..=RESTARTS_MAX {
        play.ends("a", "work", PartOutcome::Interrupted, "");
    }
    assert_eq!(play.course.status, WorkflowRunStatus::Failed, "{}", play.log);
    assert!(play.log.ends_with("close a work: Interrupted (gave_up)\n  failed\n"), "{}", play.log);
}

#[test]
fn a_gate_waits_for_consent_and_a_refusal_fails_the_run() {
    let mut a = phase("a", &[]);
    a.gate = Some(gate("post_a", GateKind::Approve));
    let flow = workflow(vec![a, phase("b", &[0])]);
    let mut play = WorkflowRunFixture::new(flow.clone());
    play.says("a", "work", "plan").answers("a", "gate:0", true, "fine");
    play.check(expect![[r#"
          start a work: do a
          running
        a work ends Succeeded: plan
          close a work: Succeeded
          ask a gate:0 approve: Continue flow after `a`?
          paused
        a gate:0 answered true: fine
          close a gate:0: Succeeded
          start b work: do b
          running
    "#]]);
    assert_eq!(play.course.phase_output("a"), Some("plan"), "not what was answered");
    let mut play = WorkflowRunFixture::new(flow.clone());
    play.says("a", "work", "plan").answers("a", "gate:0", false, "too big");
    assert_eq!(play.course.status, WorkflowRunStatus::Failed);
    assert_eq!(play.course.error.as_deref(), Some("a: rejected by ada: too big"));
    assert_eq!(GateAnswer::describe_author(TIMEOUT_ANSWERER), ": nobody answered in time");
    let mut play = WorkflowRunFixture::with(flow, json!({}), &["post_a"]);
    play.says("a", "work", "plan");
    assert!(play.log.contains("note a gate:0") && play.log.contains("start b"), "{}", play.log);
}

#[test]
fn a_gates_message_names_the_approval_that_it_asks_for() {
    let template = |text: &str| WorkflowTemplate::parse(text).unwrap();
    let message = Some(template("Answer {{approvalId}}: {{ approvalUrl }}"));
    let mut a = phase("a", &[]);
    a.repeat = PhaseRepeat::Review(Box::new(ReviewLoop {
        max_cycles: 1,
        fix_prompt: template("fix"),
        fix_model: None,
        fix_effort: None,
        re_review_prompt: template("again"),
        gate: Some(Gate { message: message.clone(), ..gate("post_a", GateKind::Approve) }),
    }));
    a.gate = Some(Gate { message, ..gate("at_end", GateKind::Approve) });
    a.messages.on_pause_for_approval = Some(template("wait for {{approvalId}}"));
    let mut play = WorkflowRunFixture::new(workflow(vec![a]));
    play.says("a", "work", "VERDICT: REQUEST_CHANGES");
    let id = crate::ApprovalId::for_gate("wf-1", play.open[0].seq);
    let asked = format!("ask a gate:1 approve: Answer {id}: heeler approvals show {id}\n");
    assert!(play.log.contains(&asked), "{}", play.log);
    assert!(play.log.contains(&format!("say wait for {id}\n")), "{}", play.log);
    // The message is that of the loop's gate, not of the one at the end of the phase.
    play.answers("a", "gate:1", true, "").says("a", "fix:1", "done");
    play.says("a", "recheck:1", "VERDICT: APPROVED");
    let id = crate::ApprovalId::for_gate("wf-1", play.open[0].seq);
    assert!(play.log.contains(&format!("ask a gate:0 approve: Answer {id}: ")), "{}", play.log);
    assert!(!play.log.contains(&format!("say wait for {id}\n")), "{}", play.log);
    assert_eq!(
        crate::ApprovalId::for_gate("wf-2026-11-15-k3v9q1", 7).as_str(),
        "ask-2026-11-15-k3v9q1-7"
    );
}

#[test]
fn a_pass_that_says_nothing_is_a_pass_as_any_other() {
    let mut a = phase("a", &[]);
    let completes = SoftFailurePolicy { retries: 5, completes: true };
    a.repeat = PhaseRepeat::Until(Box::new(UntilLoop {
        on_soft_failure: completes,
        ..until("output == 'x'")
    }));
    let mut play = WorkflowRunFixture::new(workflow(vec![a]));
    play.says("a", "iteration:1", "").says("a", "iteration:2", "x");
    assert_eq!(play.course.status, WorkflowRunStatus::Succeeded);
    assert_eq!(play.course.scratch["loop"]["iteration"], json!(2), "{}", play.log);
}

#[test]
fn a_review_loop_fixes_until_it_is_approved() {
    let mut review = phase("review", &[]);
    review.repeat = PhaseRepeat::Review(Box::new(ReviewLoop {
        max_cycles: 2,
        fix_prompt: WorkflowTemplate::parse("fix {{ review }}").unwrap(),
        fix_model: None,
        fix_effort: None,
        re_review_prompt: WorkflowTemplate::parse("look again, {{ cycle }}").unwrap(),
        gate: None,
    }));
    let mut play = WorkflowRunFixture::new(workflow(vec![review.clone()]));
    play.says("review", "work", "bad\nVERDICT: REQUEST_CHANGES").says("review", "fix:1", "did it");
    play.says("review", "recheck:1", "VERDICT: APPROVED");
    play.check(expect![[r#"
          start review work: do review
          running
        review work ends Succeeded: bad
        VERDICT: REQUEST_CHANGES
          close review work: Succeeded (request_changes)
          start review fix:1: fix bad
        VERDICT: REQUEST_CHANGES
          running
        review fix:1 ends Succeeded: did it
          close review fix:1: Succeeded
          start review recheck:1: look again, 1
          running
        review recheck:1 ends Succeeded: VERDICT: APPROVED
          close review recheck:1: Succeeded (approved)
          succeeded
    "#]]);
    let mut play = WorkflowRunFixture::new(workflow(vec![review]));
    play.says("review", "work", "hm");
    for part in ["fix:1", "recheck:1", "fix:2", "recheck:2"] {
        play.says("review", part, "still bad");
    }
    assert_eq!(play.course.status, WorkflowRunStatus::Succeeded, "after the last cycle it goes on");
}

#[test]
fn a_loop_goes_on_until_its_condition_holds_and_asks_on_the_way() {
    let mut ask = phase("ask", &[]);
    ask.work = asks("ask on: {{ previousOutput }}{{ scratch.loop.qa[0].answer }}");
    let reply = Some(gate("answers", GateKind::Reply));
    ask.repeat =
        PhaseRepeat::Until(Box::new(UntilLoop { gate: reply, ..until("'READY' in output") }));
    let mut play = WorkflowRunFixture::new(workflow(vec![ask]));
    play.says("ask", "iteration:1", "Which colour?").answers("ask", "gate:1", true, "blue");
    play.says("ask", "iteration:2", "READY");
    play.check(expect![[r#"
          start ask iteration:1: ask on: 
          running
        ask iteration:1 ends Succeeded: Which colour?
          close ask iteration:1: Succeeded (condition_not_met)
          ask ask gate:1 reply: Which colour?
          paused
        ask gate:1 answered true: blue
          close ask gate:1: Succeeded
          start ask iteration:2: ask on: Which colour?

        blue
          running
        ask iteration:2 ends Succeeded: READY
          close ask iteration:2: Succeeded (condition_met)
          succeeded
    "#]]);
    let scratch = Json::Object(play.course.scratch.clone());
    assert_eq!(scratch["loop"]["qa"][0]["question"], "Which colour?");
    assert_eq!(scratch["loop"]["ready"], true);
}

#[test]
fn a_command_may_say_whether_a_pass_was_the_last() {
    let mut fix = phase("fix", &[]);
    let check = WorkflowTemplate::parse("make test").unwrap();
    fix.repeat = PhaseRepeat::Until(Box::new(UntilLoop {
        until: None,
        until_bash: Some(check),
        ..until("true")
    }));
    let mut play = WorkflowRunFixture::new(workflow(vec![fix]));
    play.says("fix", "iteration:1", "tried").ends("fix", "check:1", PartOutcome::Failed, "");
    play.says("fix", "iteration:2", "again").says("fix", "check:2", "");
    play.check(expect![[r#"
          start fix iteration:1: do fix
          running
        fix iteration:1 ends Succeeded: tried
          close fix iteration:1: Succeeded (condition_open)
          start fix check:1: $ make test
          running
        fix check:1 ends Failed: 
          close fix check:1: Failed (condition_not_met)
          start fix iteration:2: do fix
          running
        fix iteration:2 ends Succeeded: again
          close fix iteration:2: Succeeded (condition_open)
          start fix check:2: $ make test
          running
        fix check:2 ends Succeeded: 
          close fix check:2: Succeeded (condition_met)
          succeeded
    "#]]);
}

#[test]
fn a_phase_is_done_for_each_item() {
    let mut each = phase("each", &[]);
    each.work = asks("look at {{ repo }}");
    each.repeat = PhaseRepeat::Foreach(Box::new(ForeachLoop {
        items: WorkflowExpression::parse("inputs.repos").unwrap(),
        name: "repo".to_owned(),
        max_parallel: NonZeroU32::new(2),
    }));
    let mut last = phase("last", &[0]);
    last.work = asks("all: {{ outputs.each }}");
    let flow = workflow(vec![each, last]);
    let mut play = WorkflowRunFixture::with(flow.clone(), json!({"repos": ["x", "y", "z"]}), &[]);
    play.says("each", "item:2", "Y").says("each", "item:1", "X").says("each", "item:3", "Z");
    play.check(expect![[r#"
          note each items: ["x","y","z"]
          start each item:1: look at x
          start each item:2: look at y
          running
        each item:2 ends Succeeded: Y
          close each item:2: Succeeded
          start each item:3: look at z
          running
        each item:1 ends Succeeded: X
          close each item:1: Succeeded
          running
        each item:3 ends Succeeded: Z
          close each item:3: Succeeded
          start last work: all: ["X","Y","Z"]
          running
    "#]]);
    let mut play = WorkflowRunFixture::with(flow.clone(), json!({"repos": []}), &[]);
    play.says("last", "work", "");
    assert_eq!(play.course.status, WorkflowRunStatus::Succeeded);
    let play = WorkflowRunFixture::with(flow, json!({"repos": 3}), &[]);
    assert_eq!(play.course.status, WorkflowRunStatus::Failed);
    assert_eq!(play.course.error.as_deref(), Some("each: `foreach` needs a list, not 3"));
}

#[test]
fn context_phases_need_no_job() {
    let mut phases: Vec<Phase> =
        (0..600).map(|number| phase(&format!("p{number}"), &number_before(number))).collect();
    phases.iter_mut().for_each(|phase| phase.work = PhaseWork::Context);
    let mut play = WorkflowRunFixture::new(workflow(phases));
    let mut steps = 1;
    while !play.course.status.is_final() {
        play.happens(WorkflowStepEvent::Continue);
        steps += 1;
    }
    assert_eq!((play.course.status, steps), (WorkflowRunStatus::Succeeded, 3));
    assert_eq!(play.course.seq, 600);
}

fn number_before(number: usize) -> Vec<usize> {
    number.checked_sub(1).into_iter().collect()
}

#[test]
fn what_an_agent_says_is_never_read_as_a_template() {
    let mut second = phase("second", &[0]);
    second.work = asks("it said: {{ outputs.first }}");
    let mut play = WorkflowRunFixture::with(
        workflow(vec![phase("first", &[]), second]),
        json!({"k": "x"}),
        &[],
    );
    play.says("first", "work", "{{ k }} ${first.output} {% raw %}");
    assert!(
        play.log.contains("start second work: it said: {{ k }} ${first.output} {% raw %}\n"),
        "{}",
        play.log
    );
}

#[test]
fn a_budget_that_is_spent_stops_the_next_part() {
    let mut flow = workflow(vec![phase("a", &[]), phase("b", &[0])]);
    flow.budget = Some("0.00001".parse().unwrap());
    let mut play = WorkflowRunFixture::new(flow);
    play.says("a", "work", "");
    assert_eq!(play.course.status, WorkflowRunStatus::Failed);
    assert!(play.course.error.as_deref().unwrap().contains("has spent its budget"));
}

#[test]
fn parts_side_by_side_share_what_is_left_of_a_budget() {
    let mut flow = workflow(vec![phase("a", &[]), phase("b", &[]), phase("c", &[])]);
    flow.budget = Some("0.001".parse().unwrap());
    flow.max_parallel = NonZeroU32::new(2).unwrap();
    let play = WorkflowRunFixture::new(flow);
    let grants: Vec<i64> = play.course.grants.values().copied().collect();
    assert_eq!(grants, [500, 500], "of a thousand");
}

#[test]
fn one_crash_of_many_parts_uses_up_no_others_restarts() {
    let mut flow = workflow((0..6).map(|it| phase(&format!("p{it}"), &[])).collect());
    flow.max_parallel = NonZeroU32::new(6).unwrap();
    let mut play = WorkflowRunFixture::new(flow);
    for _ in 0..RESTARTS_MAX {
        for place in 0..6 {
            play.ends(&format!("p{place}"), "work", PartOutcome::Interrupted, "");
        }
    }
    assert_eq!((play.course.status, play.open.len()), (WorkflowRunStatus::Running, 6));
    assert_eq!(play.course.restarts, 6 * RESTARTS_MAX);
}

#[test]
fn a_check_that_could_not_be_made_says_nothing() {
    let mut fix = phase("fix", &[]);
    let check = WorkflowTemplate::parse("make test").unwrap();
    let until = UntilLoop { until: None, until_bash: Some(check), ..until("true") };
    fix.repeat = PhaseRepeat::Until(Box::new(until));
    let mut play = WorkflowRunFixture::new(workflow(vec![fix]));
    play.says("fix", "iteration:1", "tried").ends(
        "fix",
        "check:1",
        PartOutcome::Failed,
        "timed out",
    );
    assert_eq!(play.course.status, WorkflowRunStatus::Failed, "{}", play.log);
}

#[test]
fn a_part_that_ended_with_the_fleet_is_done_again_and_says_nothing() {
    let mut fix = phase("fix", &[]);
    let check = WorkflowTemplate::parse("make test").unwrap();
    let until = UntilLoop { until: None, until_bash: Some(check), ..until("true") };
    fix.repeat = PhaseRepeat::Until(Box::new(until));
    let mut play = WorkflowRunFixture::new(workflow(vec![fix]));
    play.says("fix", "iteration:1", "tried");
    for _ in 0..=RESTARTS_MAX {
        let JournalEntry { phase, part, seq, .. } = play.take("fix", "check:1");
        play.happens(WorkflowStepEvent::PartEnded(EndedPart {
            phase,
            part,
            seq,
            job: "job-1".parse().unwrap(),
            outcome: PartOutcome::Cancelled,
            output: None,
            error: None,
            micros: 0,
            is_stopped: true,
        }));
    }
    assert_eq!(
        (play.course.status, play.open.len()),
        (WorkflowRunStatus::Running, 1),
        "{}",
        play.log
    );
    play.says("fix", "check:1", "");
    assert_eq!(play.course.status, WorkflowRunStatus::Succeeded, "{}", play.log);
}

#[test]
fn a_cancelled_run_stops_and_can_go_on() {
    let flow = workflow(vec![phase("a", &[]), phase("b", &[0]), phase("c", &[1])]);
    let mut play = WorkflowRunFixture::new(flow);
    play.says("a", "work", "A");
    play.happens(WorkflowStepEvent::Cancel { by: "ada".to_owned(), now: false });
    play.ends("b", "work", PartOutcome::Cancelled, "");
    play.happens(WorkflowStepEvent::Retry { from: None, queued: false });
    play.says("b", "work", "B").says("c", "work", "C");
    play.check(expect![[r#"
          start a work: do a
          running
        a work ends Succeeded: A
          close a work: Succeeded
          start b work: do b
          running
          stop
          cancelled
        b work ends Cancelled: 
          close b work: Cancelled
          cancelled
          note b reset: 
          start b work: do b
          running
        b work ends Succeeded: B
          close b work: Succeeded
          start c work: do c
          running
        c work ends Succeeded: C
          close c work: Succeeded
          succeeded
    "#]]);
    let from = play.course.workflow.phase_index("b");
    play.happens(WorkflowStepEvent::Retry { from, queued: false });
    assert!(
        play.log.ends_with("note b reset: \n  note c reset: \n  start b work: do b\n  running\n")
    );
    assert_eq!(play.course.phase_output("b"), None);
}

#[test]
fn a_run_that_is_tried_again_begins_nothing_before_its_turn() {
    let mut play = WorkflowRunFixture::new(workflow(vec![phase("a", &[])]));
    play.ends("a", "work", PartOutcome::Failed, "no");
    play.happens(WorkflowStepEvent::Retry { from: None, queued: true });
    assert_eq!(
        (play.course.status, play.open.len()),
        (WorkflowRunStatus::Queued, 0),
        "{}",
        play.log
    );
    assert!(play.log.ends_with("note a reset: \n  queued\n"), "{}", play.log);
    play.course.status = WorkflowRunStatus::Running;
    play.happens(WorkflowStepEvent::Continue);
    play.says("a", "work", "yes");
    assert_eq!(play.course.status, WorkflowRunStatus::Succeeded);
}

#[test]
fn a_blocked_output_fails_and_says_so() {
    let mut a = phase("a", &[]);
    a.on_output.blocked = Some(MarkerRule::default());
    a.messages.on_blocked = Some(WorkflowTemplate::parse("it is stuck").unwrap());
    a.messages.on_failure = Some(WorkflowTemplate::parse("it failed").unwrap());
    let mut play = WorkflowRunFixture::new(workflow(vec![a]));
    play.says("a", "work", "I am Blocked by CI");
    play.check(expect![[r#"
          start a work: do a
          running
        a work ends Succeeded: I am Blocked by CI
          close a work: Succeeded (blocked)
          say it is stuck
          failed
    "#]]);
}
