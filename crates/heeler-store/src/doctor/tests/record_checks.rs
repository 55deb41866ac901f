//! Records and transcripts that somebody changed.

use heeler_model::ExitReason;
use heeler_model::run::{RunCost, RunEnd, RunResult, TranscriptHashRecord};
use jiff::civil::Date;

use super::*;
use crate::sha256_hex;

const JOB: &str = "job-2026-11-15-aaaaaa";
const ROWS: &str = "{\"type\":\"system\"}\n";
const DAY: Date = jiff::civil::date(2026, 11, 15);

fn run_id(number: u8) -> RunId {
    RunId::mint(now(), [number; 10])
}

impl DoctorTestFleet {
    /// Records a run of the job that ended well, wrote these rows from this offset, and cost 0.25.
    fn add_run(&self, number: u8, from: u64, rows: &str) {
        let id = run_id(number);
        let record = RunRecord {
            attempt: number.into(),
            status: RunEnd::Finished.to_string(),
            committed: true,
            ..run_of(JOB, id)
        };
        let (bytes, sha256) = (rows.len() as u64, sha256_hex(rows.as_bytes()));
        let result = RunResult {
            end: RunEnd::Finished,
            exit_reason: ExitReason::Success,
            error: None,
            cost: RunCost { usd: Some(0.25), ..RunCost::default() },
            transcript: Some(TranscriptHashRecord { from, bytes, sha256 }),
            ..RunResult::never_started(id, JOB.parse().unwrap(), "", now())
        };
        let written = self.store().write::<(), crate::DatabaseError, _>(move |tx| {
            tx.insert_run(&record)?;
            tx.set_run_result(id, &result)?;
            tx.set_run_spent(id, 250_000, "coder", DAY)?;
            tx.spend(DAY, "coder", "m", 250_000)
        });
        written.unwrap();
        // The folder of a run that is recorded.
        self.write(&format!("runs/{id}/result.json"), "{}");
    }

    fn log(&self, text: &str) {
        self.write(&format!("jobs/{JOB}.jsonl"), text);
    }

    #[track_caller]
    fn is_sound(&self) {
        let found = self.examine();
        assert!(found.is_empty(), "{found:#?}");
    }
}

#[test]
fn a_transcript_that_was_changed_after_its_end_is_found() {
    let fleet = DoctorTestFleet::new();
    let more = "{\"type\":\"user\"}\n";
    fleet.add_run(1, 0, ROWS);
    fleet.log(ROWS);
    fleet.is_sound();
    fleet.add_run(2, ROWS.len() as u64, more);
    fleet.log(&format!("{ROWS}{more}"));
    fleet.is_sound();
    let (error, area) = (FindingSeverity::Error, FindingArea::Transcripts);
    for (text, problem) in [
        (format!("{ROWS}{}", more.replace("user", "uses")), "was changed"),
        (format!("{}{more}", ROWS.replace("system", "sustem")), "was changed"),
        (ROWS.to_owned(), "was changed"),
        (format!("{ROWS}{more}{ROWS}"), "rows that none of its runs wrote"),
        (format!("{more}{ROWS}"), "was changed"),
    ] {
        fleet.log(&text);
        let finding = fleet.finds(area, error, problem);
        assert!(finding.subject.contains(JOB), "{finding:?}");
    }
}

#[test]
fn rows_between_two_runs_are_found() {
    let fleet = DoctorTestFleet::new();
    fleet.add_run(1, 0, ROWS);
    fleet.add_run(2, 2 * ROWS.len() as u64, ROWS);
    fleet.log(&ROWS.repeat(3));
    fleet.finds(FindingArea::Transcripts, FindingSeverity::Error, "none of its runs wrote");
}

#[test]
fn rows_of_a_run_that_goes_on_are_no_fault() {
    let fleet = DoctorTestFleet::new();
    fleet.add_run(1, 0, ROWS);
    let next = RunRecord { attempt: 2, ..run_of(JOB, run_id(2)) };
    fleet.store().write(move |tx| tx.insert_run(&next)).unwrap();
    fleet.write(&format!("runs/{}/spec.json", run_id(2)), "{}");
    fleet.log(&ROWS.repeat(2));
    fleet.is_sound();
}

#[test]
fn spending_that_was_removed_is_found_and_counts() {
    let fleet = DoctorTestFleet::new();
    fleet.add_run(1, 0, ROWS);
    fleet.add_run(2, ROWS.len() as u64, "");
    fleet.is_sound();
    let accounts = || StoreReader::open(&fleet.dir).unwrap().spend_accounts(DAY).unwrap();
    let sums = |missing: i64| {
        let account = accounts().remove(0);
        assert_eq!((account.today, account.total), (500_000, 500_000));
        assert_eq!(account.missing, missing);
    };
    sums(0);
    fleet.sql("UPDATE spending SET micros = 100000");
    sums(400_000);
    let warning = FindingSeverity::Warning;
    fleet.finds(FindingArea::Database, warning, "lacks $0.40 that its runs have spent");
    fleet.sql("DELETE FROM spending");
    sums(500_000);
    // A run of an earlier release has no day, and counts nevertheless.
    fleet.sql("UPDATE runs SET spent_day = NULL");
    assert_eq!((accounts()[0].total, accounts()[0].missing), (500_000, 500_000));
}

#[test]
fn impossible_records_are_found() {
    for (sql, problem) in [
        ("UPDATE executions SET cost_usd = -1", "cannot be true"),
        ("UPDATE executions SET finished_at = '2026-11-14T00:00:00.000Z'", "cannot be true"),
        (
            "UPDATE runs SET started_at = '2026-11-15T00:00:00.000Z', \
             finished_at = '2026-11-14T00:00:00.000Z'",
            "is a run with times or costs that cannot be true",
        ),
        (
            "UPDATE runs SET result = json_set(result, '$.exit_reason', 'error')",
            "is completed, but its last run did not succeed",
        ),
    ] {
        let fleet = DoctorTestFleet::new();
        fleet.add_run(1, 0, ROWS);
        fleet.sql(sql);
        let found = fleet.examine();
        assert!(found.iter().any(|it| it.problem.contains(problem)), "{sql}: {found:#?}");
    }
}

#[test]
fn a_refused_result_is_found() {
    let fleet = DoctorTestFleet::new();
    fleet.add_run(1, 0, ROWS);
    fleet.write(&format!("runs/{}/result.json.refused", run_id(1)), "forged");
    fleet.finds(FindingArea::Runs, FindingSeverity::Warning, "has a result that was refused");
}
