//! The table of messages in `docs/workflow-reference.md`, row by row: each event happens once, and the
//! messages must be those of the row, with the values of its variables.

use std::collections::BTreeSet;

use serde_json::json;

use super::message_tests::{APPROVED, CHANGES, load};
use super::tests::WorkflowRunFixture;
use super::*;

const REFERENCE: &str = include_str!("../../../../docs/workflow-reference.md");

/// Hooks of a phase. Each says its name and the variables of the table.
const HOOKS: &str = "on_start: on_start, on_success: 'on_success [{{a}}]', \
    on_failure: 'on_failure ({{error}})', on_skipped_done: on_skipped_done, on_blocked: on_blocked, \
    on_blocked_bypassed: on_blocked_bypassed";

/// The same of a loop that repeats until a condition holds.
const UNTIL_HOOKS: &str = "on_start: 'on_start {{iteration}}', \
    on_success: 'on_success {{iteration}}/{{maxIterations}}', \
    on_failure: 'on_failure {{iteration}}/{{maxIterations}} ({{error}})'";

/// Hooks of a review loop.
const REVIEW_HOOKS: &str = "on_cycle_start: 'on_cycle_start {{cycle}}', \
    on_approved: 'on_approved {{cycle}}', \
    on_request_changes: 'on_request_changes {{cycle}}/{{maxCycles}}', \
    on_max_cycles: 'on_max_cycles {{cycle}}/{{maxCycles}}', \
    on_fix_start: 'on_fix_start {{cycle}}/{{maxCycles}}', \
    on_fix_failed: 'on_fix_failed {{cycle}} ({{error}})', \
    on_pause_for_approval: 'on_pause_for_approval {{cycle}} {{approvalId}} {{approvalUrl}}'";

/// Rule about BLOCKED with messages of its own.
const OWN_RULE: &str = "on_output: {contains_BLOCKED: {message: message, \
    bypass_message: bypass_message, unless_label: fine}}";

fn phase(keys: &str) -> WorkflowRunFixture {
    phase_with(keys, json!({}))
}

fn phase_with(keys: &str, context: serde_json::Value) -> WorkflowRunFixture {
    let text = format!("  - {{name: a, prompt: go, messages: {{{HOOKS}}}, {keys}}}\n");
    WorkflowRunFixture::with(load(&text), context, &[])
}

/// A phase that waits for another one.
fn second_phase(keys: &str) -> WorkflowRunFixture {
    WorkflowRunFixture::new(load(&format!(
        "  - {{name: first, prompt: go}}\n  - {{name: a, prompt: go, messages: {{{HOOKS}}}{keys}}}\n"
    )))
}

fn review(keys: &str) -> WorkflowRunFixture {
    phase(&format!(
        "loop: {{max_cycles: 1, on_request_changes: {{fix_prompt: fix, re_review_prompt: again}}, \
         messages: {{{REVIEW_HOOKS}}}{keys}}}"
    ))
}

fn until(keys: &str) -> WorkflowRunFixture {
    WorkflowRunFixture::new(load(&format!(
        "  - {{name: a, prompt: go, messages: {{{UNTIL_HOOKS}}}, generic_loop: {{max_iterations: 2, \
         until: \"output.contains('READY')\"{keys}}}}}\n"
    )))
}

fn each() -> WorkflowRunFixture {
    phase("foreach: [x, y]")
}

/// Something that happens, and the messages from then on.
struct TableCase {
    /// First cell of the row.
    event: &'static str,
    happens: fn() -> WorkflowRunFixture,
    /// Number of messages of earlier events.
    before: usize,
    said: &'static [&'static str],
}

/// Returns a case in which a run begins with messages that belong to other rows.
const fn case(
    event: &'static str,
    happens: fn() -> WorkflowRunFixture,
    before: usize,
    said: &'static [&'static str],
) -> TableCase {
    TableCase { event, happens, before, said }
}

/// Plays a run to the end of a closure.
fn play(
    mut run: WorkflowRunFixture,
    steps: impl FnOnce(&mut WorkflowRunFixture),
) -> WorkflowRunFixture {
    steps(&mut run);
    run
}

fn fails(part: &'static str) -> impl Fn(&mut WorkflowRunFixture) {
    move |run| {
        run.ends("a", part, PartOutcome::Failed, "it broke");
    }
}

fn says(part: &'static str, output: &'static str) -> impl Fn(&mut WorkflowRunFixture) {
    move |run| {
        run.says("a", part, output);
    }
}

const FAILED: &[&str] = &["on_failure (it broke)"];

/// Cases of phases without a loop.
fn phase_cases() -> Vec<TableCase> {
    vec![
        case("a phase starts; not its repetitions", || phase(""), 0, &["on_start"]),
        case("a phase starts; not its repetitions", || until(""), 0, &["on_start 0"]),
        case(
            "a phase has succeeded",
            || play(phase(""), says("work", "done")),
            1,
            &["on_success [done]"],
        ),
        case(
            "a phase has failed, or its gate was rejected",
            || play(phase(""), fails("work")),
            1,
            FAILED,
        ),
        case(
            "a phase has failed, or its gate was rejected",
            || {
                play(phase("approval_gate: go"), |run| {
                    run.says("a", "work", "done").answers("a", "gate:0", false, "no");
                })
            },
            1,
            &["on_failure (rejected by ada: no)"],
        ),
    ]
}

/// Cases of phases that are skipped.
fn skip_cases() -> Vec<TableCase> {
    vec![
        case(
            "`skip_if` holds",
            || phase_with("skip_if: \"skip == 'yes'\"", json!({"skip": "yes"})),
            0,
            &["on_skipped_done"],
        ),
        case(
            "`skip_if` cannot be evaluated",
            || phase("skip_if: '1 / nothing > 2'"),
            0,
            &[
                "on_failure (cannot render `1 / nothing > 2`: invalid operation: tried to use / operator on unsupported types number and undefined)",
            ],
        ),
        case(
            "a phase is skipped because of other phases",
            || {
                play(second_phase(""), |run| {
                    run.ends("first", "work", PartOutcome::Failed, "it broke");
                })
            },
            0,
            &[],
        ),
        case(
            "a phase is skipped because of other phases",
            || {
                play(second_phase(", trigger_rule: one_success, depends_on: [first]"), |run| {
                    run.ends("first", "work", PartOutcome::Failed, "it broke");
                })
            },
            0,
            &[],
        ),
    ]
}

/// Cases of parts that are repeated or cancelled.
fn repetition_cases() -> Vec<TableCase> {
    vec![
        case(
            "a part is repeated, by `retry` or after a crash",
            || play(phase("retry: {max: 1, backoff: 1s}"), fails("work")),
            1,
            &[],
        ),
        case(
            "a part is repeated, by `retry` or after a crash",
            || {
                play(phase(""), |run| {
                    run.ends("a", "work", PartOutcome::Interrupted, "");
                })
            },
            1,
            &[],
        ),
        case(
            "the run is cancelled",
            || {
                play(phase(""), |run| {
                    run.happens(WorkflowStepEvent::Cancel { by: "ada".to_owned(), now: true });
                    run.ends("a", "work", PartOutcome::Cancelled, "");
                })
            },
            1,
            &[],
        ),
    ]
}

/// Cases of lists and of whole runs.
fn run_cases() -> Vec<TableCase> {
    vec![
        case(
            "`foreach`: all items have succeeded",
            || {
                play(each(), |run| {
                    run.says("a", "item:1", "x").says("a", "item:2", "y");
                })
            },
            1,
            &["on_success [[\"x\",\"y\"]]"],
        ),
        case(
            "`foreach`: an item has failed, and all have ended",
            || {
                play(each(), |run| {
                    run.says("a", "item:1", "x").ends(
                        "a",
                        "item:2",
                        PartOutcome::Failed,
                        "it broke",
                    );
                })
            },
            1,
            FAILED,
        ),
        case(
            "the run has succeeded",
            || {
                let text = "  - {name: a, prompt: go}\nfinal_message: 'final_message [{{a}}]'\n";
                play(WorkflowRunFixture::new(load(text)), says("work", "done"))
            },
            0,
            &["final_message [done]"],
        ),
        case(
            "the run has succeeded",
            || {
                let text = "  - {name: a, prompt: go}\nfinal_message: 'final_message'\n";
                play(WorkflowRunFixture::new(load(text)), fails("work"))
            },
            0,
            &[],
        ),
    ]
}

/// Cases of markers in outputs.
fn output_cases() -> Vec<TableCase> {
    const BLOCKED: &str = "the output contains BLOCKED";
    const BYPASSED: &str = "the output contains BLOCKED, but the rule does not apply";
    fn says_blocked(run: &mut WorkflowRunFixture) {
        run.says("a", "work", "I am BLOCKED");
    }
    fn fine() -> serde_json::Value {
        json!({"issueLabels": ["fine"]})
    }
    vec![
        case(BLOCKED, || play(phase(OWN_RULE), says_blocked), 1, &["message"]),
        case(
            BLOCKED,
            || play(phase("on_output: {contains_BLOCKED: {}}"), says_blocked),
            1,
            &["on_blocked"],
        ),
        case(
            BLOCKED,
            || {
                let text = "  - {name: a, prompt: go, messages: {on_failure: on_failure}, \
                    on_output: {contains_BLOCKED: {}}}\n";
                play(WorkflowRunFixture::new(load(text)), says_blocked)
            },
            0,
            &["on_failure"],
        ),
        case(
            BYPASSED,
            || play(phase_with(OWN_RULE, fine()), says_blocked),
            1,
            &["bypass_message", "on_success [I am BLOCKED]"],
        ),
        case(
            BYPASSED,
            || {
                let rule = "on_output: {contains_BLOCKED: {unless_label: fine}}";
                play(phase_with(rule, fine()), says_blocked)
            },
            1,
            &["on_blocked_bypassed", "on_success [I am BLOCKED]"],
        ),
        case(
            "the output lacks `requires_marker`",
            || play(phase("on_output: {requires_marker: 'DONE:'}"), says_blocked),
            1,
            &["on_failure (its output lacks `DONE:`)"],
        ),
    ]
}

/// Cases of review loops.
fn review_cases() -> Vec<TableCase> {
    fn changes(run: &mut WorkflowRunFixture) {
        run.says("a", "work", CHANGES);
    }
    fn fixed(run: &mut WorkflowRunFixture) {
        run.says("a", "work", CHANGES).says("a", "fix:1", "did it");
    }
    vec![
        case("`loop`: a review starts", || review(""), 1, &["on_cycle_start 1"]),
        case("`loop`: a review starts", || play(review(""), fixed), 4, &["on_cycle_start 2"]),
        case(
            "`loop`: a review approves",
            || play(review(""), says("work", APPROVED)),
            2,
            &["on_approved 1", "on_success [VERDICT: APPROVED]"],
        ),
        case(
            "`loop`: a review requests changes",
            || play(review(", approval_gate: go"), changes),
            2,
            // The gate follows.
            &[
                "on_request_changes 1/1",
                "on_pause_for_approval 1 ask-1-1 heeler approvals show ask-1-1",
            ],
        ),
        case(
            "`loop`: a review requests changes after the last fix",
            || {
                play(review(""), |run| {
                    fixed(run);
                    run.says("a", "recheck:1", CHANGES);
                })
            },
            5,
            &["on_max_cycles 1/1"],
        ),
        case("`loop`: a fix starts", || play(review(""), changes), 3, &["on_fix_start 1/1"]),
        case(
            "`loop`: a fix has failed, after its retries",
            || {
                play(review(""), |run| {
                    changes(run);
                    run.ends("a", "fix:1", PartOutcome::Failed, "it broke");
                })
            },
            4,
            &["on_fix_failed 1 (it broke)"],
        ),
        case("`loop`: a review itself fails", || play(review(""), fails("work")), 2, FAILED),
        case(
            "`loop`: its gate asks",
            || play(review(", approval_gate: go"), changes),
            3,
            &["on_pause_for_approval 1 ask-1-1 heeler approvals show ask-1-1"],
        ),
    ]
}

/// Cases of loops that repeat until a condition holds.
fn until_cases() -> Vec<TableCase> {
    vec![
        case(
            "`generic_loop`: the condition holds",
            || play(until(""), says("iteration:1", "READY")),
            1,
            &["on_success 1/2"],
        ),
        case(
            "`generic_loop`: no iteration is left",
            || {
                play(until(""), |run| {
                    run.says("a", "iteration:1", "no").says("a", "iteration:2", "no");
                })
            },
            1,
            &["on_failure 2/2 (the condition does not hold after 2 iterations)"],
        ),
        case(
            "`generic_loop`: an iteration has failed",
            || play(until(""), fails("iteration:1")),
            1,
            &["on_failure 1/2 (it broke)"],
        ),
        case(
            "`generic_loop`: out of turns, with `on_soft_failure: {then: complete}`",
            || {
                play(until(", on_soft_failure: {retries: 0, then: complete}"), |run| {
                    run.ends("a", "iteration:1", PartOutcome::Soft, "");
                })
            },
            1,
            &[],
        ),
    ]
}

/// Returns the rows of the table: event, messages and variables.
fn rows() -> Vec<[&'static str; 3]> {
    let (_, section) = REFERENCE.split_once("\n## Messages\n").expect("the section exists");
    let section = section.split("\n## ").next().expect("it has a beginning");
    let lines = section.lines().filter(|line| line.starts_with("| "));
    let cells = lines.map(|line| {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        [(); 3].map(|()| cells.next().unwrap_or_default())
    });
    cells.skip(2).collect()
}

/// Returns the hooks that a cell names.
fn named_hooks(cell: &str) -> BTreeSet<&str> {
    let words = cell.split('`').skip(1).step_by(2);
    // `neither on_success nor on_failure` names those that are not sent.
    let sent = cell.split("neither").next().unwrap_or_default();
    words.filter(|word| sent.contains(&format!("`{word}`"))).collect()
}

/// Returns true if a template of a hook has a variable.
fn has_variable(hook: &str, variable: &str) -> bool {
    let sets = [HOOKS, UNTIL_HOOKS, REVIEW_HOOKS];
    let mut templates = sets.into_iter().flat_map(|hooks| hooks.split(", on_"));
    let begin = format!("{}:", hook.trim_start_matches("on_"));
    templates.any(|text| {
        text.trim_start_matches("on_").starts_with(&begin)
            && text.contains(&format!("{{{{{variable}}}}}"))
    })
}

#[test]
fn every_row_of_the_table_holds() {
    let all = [phase_cases(), skip_cases(), repetition_cases(), run_cases(), output_cases()];
    let loops = [review_cases(), until_cases()];
    let cases: Vec<TableCase> = all.into_iter().chain(loops).flatten().collect();
    let rows = rows();
    let documented: BTreeSet<&str> = rows.iter().map(|[event, ..]| *event).collect();
    let tested: BTreeSet<&str> = cases.iter().map(|case| case.event).collect();
    assert_eq!(documented, tested, "each row has a case, and each case a row");
    let mut wrong = Vec::new();
    for [event, messages, variables] in rows {
        let mut said = BTreeSet::new();
        for case in cases.iter().filter(|case| case.event == event) {
            let run = (case.happens)();
            if run.heard()[case.before..] != *case.said {
                wrong.push(format!("{event}: {:?}, not {:?}", run.heard(), case.said));
            }
            said.extend(case.said.iter().map(|text| text.split(' ').next().unwrap_or_default()));
        }
        // Other rows have the messages of events that follow at once.
        for also in case_followers(event) {
            said.remove(also);
        }
        if named_hooks(messages) != said {
            wrong.push(format!("{event}: the table names {messages}, and the cases say {said:?}"));
        }
        for variable in variables.split('`').skip(1).step_by(2) {
            let has_it = |hook: &&str| has_variable(hook, variable);
            // The word after the variable may be the name of a loop.
            if variable != "generic_loop" && !said.iter().any(has_it) {
                wrong.push(format!("{event}: no case shows {variable}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the messages that follow those of an event in its case.
fn case_followers(event: &str) -> &'static [&'static str] {
    match event {
        "the output contains BLOCKED, but the rule does not apply" => &["on_success"],
        "`loop`: a review requests changes" => &["on_pause_for_approval"],
        _ => &[],
    }
}
