//! Journals of imported workflow runs, derived from the names and times of their rows.
//!
//! Last Light names an execution after its phase and the kind of its part (`review_fix_2`), and
//! repeats the phases of a run that is resumed. Start at [`LastLightImport::complete_runs`].

use heeler_model::workflow::{PartDecision, PartOutcome, PhasePart};
use heeler_model::{ApprovalId, JobId, JobStatus, WorkflowRunId, parse_foreign_time};
use heeler_store::{
    DatabaseError, InstantPart, JournalPlace, StoreTransaction, UnplacedApproval, UnplacedExecution,
};
use jiff::Timestamp;
use serde_json::Value as Json;

use super::LastLightImport;
use super::snapshot::DatabaseSnapshot;
use crate::import_error::ImportError;

/// Runs per transaction.
const BATCH: usize = 200;

/// Entry of `phase_history` that stands for a gate.
const WAITING: &str = "waiting_approval";

/// Most entries of `phase_history` that become events of a run.
const HISTORY_MAX: usize = 1000;

/// Entry of a run's `phase_history`.
#[derive(Debug, Clone, PartialEq)]
struct HistoryEntry {
    phase: String,
    at: Option<Timestamp>,
    text: String,
}

/// Row that gets a place in the journal.
#[derive(Debug, Clone, PartialEq)]
enum PlacedRow {
    Execution(JobId),
    Approval(ApprovalId),
    /// A phase that has no execution, because nothing was executed.
    Instant(Timestamp),
}

impl LastLightImport<'_> {
    /// Gives the executions and approvals of imported runs their places in the journal, once.
    pub(super) fn complete_runs(&mut self, snapshot: &DatabaseSnapshot) -> Result<(), ImportError> {
        let mut batch: Vec<(WorkflowRunId, Vec<HistoryEntry>)> = Vec::new();
        // Damage was reported when the rows were imported.
        let _damage = snapshot.each("workflow_runs", &["id", "phase_history"], |row| {
            let history = row.text("phase_history").unwrap_or_default();
            // A row with an invalid id was refused before.
            if let Ok(id) = row.key().parse() {
                batch.push((id, parse_history(&history)));
            }
            match batch.len() >= BATCH {
                true => self.complete_batch(std::mem::take(&mut batch)),
                false => Ok(()),
            }
        })?;
        self.complete_batch(batch)
    }

    fn complete_batch(
        &mut self,
        batch: Vec<(WorkflowRunId, Vec<HistoryEntry>)>,
    ) -> Result<(), ImportError> {
        if batch.is_empty() {
            return Ok(());
        }
        self.target.commit(move |tx| {
            batch.iter().try_for_each(|(run, history)| complete_run(tx, run, history))
        })?;
        Ok(())
    }
}

fn complete_run(
    tx: &mut StoreTransaction<'_>,
    run: &WorkflowRunId,
    history: &[HistoryEntry],
) -> Result<(), DatabaseError> {
    let Some(row) = tx.workflow_run(run)? else { return Ok(()) };
    // A run of this fleet, or one whose journal an earlier import has made.
    if row.head.origin.is_none() || row.seq > 0 {
        return Ok(());
    }
    let executions = tx.unplaced_executions(run)?;
    let approvals = tx.unplaced_approvals(run)?;
    let spent: f64 = executions.iter().filter_map(|it| it.cost_usd).sum();
    let placed = place_rows(executions, approvals, history);
    for (row_id, place) in &placed {
        match row_id {
            PlacedRow::Execution(id) => tx.place_execution(id, place)?,
            PlacedRow::Approval(id) => tx.place_approval(id, place)?,
            PlacedRow::Instant(at) => {
                let trigger_type = row.head.trigger_type.as_deref().unwrap_or("webhook");
                let part = InstantPart {
                    run,
                    skill: format!("{}:{}", row.head.workflow, place.phase),
                    trigger_type,
                    phase: &place.phase,
                    part: place.part,
                    seq: place.seq,
                    outcome: PartOutcome::Succeeded,
                    decision: None,
                    output: None,
                    error: None,
                };
                tx.insert_instant_part(&part, *at)?;
            }
        }
    }
    for entry in history.iter().take(HISTORY_MAX) {
        let at = entry.at.unwrap_or(row.head.started_at);
        tx.add_workflow_event(run, "phase", Some(&entry.phase), &entry.text, at)?;
    }
    // At least one, so that the journal is not made again.
    let seq = placed.last().map_or(1, |(_, place)| place.seq + 1);
    tx.set_imported_totals(run, seq, (spent * 1e6).round() as i64)
}

fn parse_history(text: &str) -> Vec<HistoryEntry> {
    let entries: Vec<Json> = serde_json::from_str(text).unwrap_or_default();
    let entry = |json: &Json| {
        let summary = json["summary"].as_str().unwrap_or_default();
        let outcome = if json["success"] == Json::Bool(false) { "failed" } else { "succeeded" };
        Some(HistoryEntry {
            phase: json["phase"].as_str()?.to_owned(),
            at: json["timestamp"].as_str().and_then(parse_foreign_time),
            text: match summary {
                "" => outcome.to_owned(),
                summary => format!("{outcome}: {summary}"),
            },
        })
    };
    entries.iter().filter_map(entry).collect()
}

/// Returns the rows of a run in the order of their time, with their places.
fn place_rows(
    mut executions: Vec<UnplacedExecution>,
    mut approvals: Vec<UnplacedApproval>,
    history: &[HistoryEntry],
) -> Vec<(PlacedRow, JournalPlace)> {
    executions.sort_by(|a, b| (a.started_at, &a.id).cmp(&(b.started_at, &b.id)));
    approvals.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
    let first = executions.first().map(|it| it.started_at);
    let mut rows: Vec<(Timestamp, PlacedRow, JournalPlace)> = Vec::new();
    // Phases before the first execution are points in the file without work.
    let is_before = |at: Timestamp| first.is_none_or(|first| at <= first);
    for entry in history.iter().take_while(|entry| entry.at.is_some_and(is_before)) {
        let at = entry.at.unwrap_or_default();
        let has_rows = executions.iter().any(|it| label_of(it) == entry.phase);
        if entry.phase != WAITING && !has_rows {
            let place = JournalPlace {
                phase: entry.phase.clone(),
                part: PhasePart::Work,
                seq: 0,
                decision: None,
            };
            rows.push((at, PlacedRow::Instant(at), place));
        }
    }
    for (at, execution) in executions.iter().enumerate() {
        if let Some((phase, part, decision)) = placed_part(&executions, at, &approvals) {
            let place = JournalPlace { phase, part, seq: 0, decision };
            rows.push((execution.started_at, PlacedRow::Execution(execution.id.clone()), place));
        }
    }
    for approval in &approvals {
        let last = rows.iter().rfind(|(at, row, _)| {
            matches!(row, PlacedRow::Execution(_)) && *at <= approval.created_at
        });
        if let Some((phase, part)) = placed_gate(&approval.gate, last.map(|(_, _, place)| place)) {
            let place = JournalPlace { phase, part, seq: 0, decision: None };
            rows.push((approval.created_at, PlacedRow::Approval(approval.id.clone()), place));
        }
    }
    // Stable: an approval follows an execution of the same moment.
    rows.sort_by_key(|(at, _, _)| *at);
    let numbered = rows.into_iter().zip(0..);
    numbered.map(|((_, row, place), seq)| (row, JournalPlace { seq, ..place })).collect()
}

/// Returns the label of an execution, without the name of its workflow.
fn label_of(execution: &UnplacedExecution) -> &str {
    execution.skill.split_once(':').map_or(execution.skill.as_str(), |(_, label)| label)
}

/// Splits a label into the name of its phase and the part.
fn parse_label(label: &str) -> (&str, PhasePart) {
    let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number > 0);
    let split = |text: &str, word: &str| {
        let (phase, rest) = text.rsplit_once(word)?;
        Some((phase.len(), number(rest)?)).filter(|_| !phase.is_empty())
    };
    let (base, is_check) = match label.strip_suffix("_check") {
        Some(base) => (base, true),
        None => (label.strip_suffix("_retry").unwrap_or(label), false),
    };
    if let Some((end, number)) = split(base, "_iter_") {
        let part = if is_check { PhasePart::Check(number) } else { PhasePart::Iteration(number) };
        return (&label[..end], part);
    }
    if let Some((end, number)) = split(label, "_fix_") {
        return (&label[..end], PhasePart::Fix(number));
    }
    match split(label, "_recheck_") {
        Some((end, number)) => (&label[..end], PhasePart::Recheck(number)),
        None => (label, PhasePart::Work),
    }
}

/// Returns the place of an execution; `None` if a later one replaces it.
fn placed_part(
    executions: &[UnplacedExecution],
    at: usize,
    approvals: &[UnplacedApproval],
) -> Option<(String, PhasePart, Option<PartDecision>)> {
    let execution = &executions[at];
    let (phase, part) = parse_label(label_of(execution));
    let later = &executions[at + 1..];
    let is_repeated = later.iter().any(|it| label_of(it) == label_of(execution));
    if execution.stop_reason.as_deref() == Some("skipped") {
        // A run that was tried again has executed the phase after all.
        return (!is_repeated).then(|| (phase.to_owned(), PhasePart::Skip, None));
    }
    let has_succeeded = execution.status == JobStatus::Completed;
    let decision = match part {
        // Otherwise the first attempt would end the phase.
        _ if is_repeated => Some(PartDecision::Stopped),
        // Deferred for quota: the phase has neither succeeded nor failed.
        _ if execution.stop_reason.as_deref() == Some("error_quota") => Some(PartDecision::Stopped),
        _ if !has_succeeded => None,
        PhasePart::Check(_) => match execution.stop_reason.as_deref() {
            Some("condition_met") => Some(PartDecision::ConditionMet),
            _ => Some(PartDecision::ConditionNotMet),
        },
        PhasePart::Iteration(number) => {
            let follows = |wanted: PhasePart| {
                later.iter().any(|it| parse_label(label_of(it)) == (phase, wanted))
            };
            let label = format!("{phase}_iter_{number}");
            let asks = approvals.iter().any(|approval| approval.gate == label);
            Some(match () {
                () if follows(PhasePart::Check(number)) => PartDecision::ConditionOpen,
                () if follows(PhasePart::Iteration(number + 1)) || asks => {
                    PartDecision::ConditionNotMet
                }
                () => PartDecision::ConditionMet,
            })
        }
        PhasePart::Work | PhasePart::Recheck(_) => {
            execution.output.as_deref().and_then(PartDecision::of_review)
        }
        _ => None,
    };
    Some((phase.to_owned(), part, decision))
}

/// Returns the phase and part of a gate, by its name or by the execution before it.
fn placed_gate(gate: &str, last: Option<&JournalPlace>) -> Option<(String, PhasePart)> {
    if let (phase, PhasePart::Iteration(number)) = parse_label(gate) {
        return Some((phase.to_owned(), PhasePart::Gate(number)));
    }
    let last = last?;
    let number = match (last.decision, last.part) {
        (Some(PartDecision::RequestChanges), PhasePart::Work) => 1,
        (Some(PartDecision::RequestChanges), PhasePart::Recheck(cycle)) => cycle + 1,
        _ => 0,
    };
    Some((last.phase.clone(), PhasePart::Gate(number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_738_555_200 + second).unwrap()
    }

    fn ran(label: &str, second: i64, stop: &str, output: &str) -> UnplacedExecution {
        let failed = ["skipped", "error_fatal", "error_quota"].contains(&stop);
        UnplacedExecution {
            id: format!("e-{second}").parse().unwrap(),
            skill: format!("build:{label}"),
            status: if failed { JobStatus::Failed } else { JobStatus::Completed },
            stop_reason: Some(stop.to_owned()),
            started_at: at(second),
            output: Some(output.to_owned()),
            cost_usd: None,
        }
    }

    fn asked(gate: &str, second: i64) -> UnplacedApproval {
        let id = format!("ask-{second}").parse().unwrap();
        UnplacedApproval { id, gate: gate.to_owned(), created_at: at(second) }
    }

    fn told(
        executions: Vec<UnplacedExecution>,
        approvals: Vec<UnplacedApproval>,
        history: &str,
    ) -> Vec<String> {
        let placed = place_rows(executions, approvals, &parse_history(history));
        let line = |(_, place): &(PlacedRow, JournalPlace)| {
            let decision = place.decision.map_or(String::new(), |it| format!(" {it}"));
            format!("{} {} {}{decision}", place.seq, place.phase, place.part)
        };
        placed.iter().map(line).collect()
    }

    #[test]
    fn labels_name_the_phase_and_the_part() {
        let check = |label, phase, part| assert_eq!(parse_label(label), (phase, part), "{label}");
        check("architect", "architect", PhasePart::Work);
        check("review_fix_2", "review", PhasePart::Fix(2));
        check("review_recheck_1", "review", PhasePart::Recheck(1));
        check("fix_iter_3", "fix", PhasePart::Iteration(3));
        check("fix_iter_3_retry", "fix", PhasePart::Iteration(3));
        check("fix_iter_3_check", "fix", PhasePart::Check(3));
        check("pre_check", "pre_check", PhasePart::Work);
        check("_fix_1", "_fix_1", PhasePart::Work);
        check("post_fix_x", "post_fix_x", PhasePart::Work);
    }

    #[test]
    fn a_review_that_waits_for_consent_is_placed_at_its_gate() {
        let history = r#"[{"phase":"phase_0","timestamp":"2025-02-03T04:00:00.000Z","success":true,
            "summary":"Context assembled"}]"#;
        let rows = vec![
            ran("reviewer", 20, "end_turn", "bad\nVERDICT: REQUEST_CHANGES"),
            ran("executor", 10, "end_turn", ""),
        ];
        assert_eq!(
            told(rows, vec![asked("post_reviewer", 21)], history),
            [
                "0 phase_0 work",
                "1 executor work",
                "2 reviewer work request_changes",
                "3 reviewer gate:1"
            ]
        );
    }

    #[test]
    fn a_loop_that_waits_for_a_reply_is_placed_at_its_iteration() {
        let rows = vec![
            ran("read", 1, "end_turn", ""),
            ran("ask_iter_1", 2, "end_turn", "Which?"),
            ran("ask_iter_2", 4, "end_turn", "And now?"),
        ];
        assert_eq!(
            told(rows, vec![asked("ask_iter_1", 3), asked("ask_iter_2", 5)], "[]"),
            [
                "0 read work",
                "1 ask iteration:1 condition_not_met",
                "2 ask gate:1",
                "3 ask iteration:2 condition_not_met",
                "4 ask gate:2",
            ]
        );
    }

    #[test]
    fn attempts_that_were_repeated_do_not_end_their_phase() {
        let rows = vec![
            ran("a", 1, "error_fatal", ""),
            ran("b", 2, "skipped", ""),
            ran("a", 3, "end_turn", ""),
            ran("b", 4, "end_turn", ""),
            ran("fix_iter_1", 5, "end_turn", ""),
            ran("fix_iter_1_check", 6, "condition_met", ""),
            ran("c", 7, "skipped", ""),
        ];
        assert_eq!(
            told(rows, Vec::new(), "not JSON"),
            [
                "0 a work stopped",
                "1 a work",
                "2 b work",
                "3 fix iteration:1 condition_open",
                "4 fix check:1 condition_met",
                "5 c skip",
            ]
        );
    }

    #[test]
    fn a_gate_without_an_execution_has_no_place() {
        assert_eq!(told(Vec::new(), vec![asked("post_scan", 1)], "[]"), [""; 0]);
    }
}
