//! Tests of the displayed parts of a workflow run: with their times, without their outputs.

use heeler_model::workflow::{PartOutcome, PhasePart};
use heeler_model::{JobStatus, WorkflowRunId};

use super::{commit, insert_jobs, job, job_id, now, place};
use crate::InstantPart;

#[test]
fn parts_have_times_and_items_but_no_outputs_and_are_read_from_where_they_may_have_changed() {
    let place = place();
    let store = place.store();
    let id = WorkflowRunId::mint(now(), 1);
    let part = |number: u64, status: JobStatus| {
        let mut job = job(number, "coder", status);
        job.workflow_run_id = Some(id.to_string());
        (job.phase, job.part) = (Some("care".to_owned()), Some(PhasePart::Item(1)));
        job.seq = Some(number);
        job.output_text = Some("long".repeat(1000));
        job
    };
    insert_jobs(&store, vec![part(2, JobStatus::Completed), part(3, JobStatus::Running)]);
    let run = id.clone();
    commit(&store, move |tx| {
        let step = InstantPart {
            run: &run,
            skill: "nightly:care_items".to_owned(),
            trigger_type: "manual",
            phase: "care",
            part: PhasePart::Items,
            seq: 1,
            outcome: PartOutcome::Succeeded,
            decision: None,
            output: Some(r#"["a"]"#),
            error: None,
        };
        tx.insert_instant_part(&step, now())
    });
    let parts = place.reader().workflow_parts(&id, 0).unwrap();
    let told: Vec<_> =
        parts.iter().map(|it| (it.seq, it.part, it.job.clone(), it.outcome)).collect();
    assert_eq!(
        told,
        [
            (1, PhasePart::Items, None, Some(PartOutcome::Succeeded)),
            (2, PhasePart::Item(1), Some(job_id(2)), Some(PartOutcome::Succeeded)),
            (3, PhasePart::Item(1), Some(job_id(3)), None),
        ]
    );
    assert_eq!(parts[0].items.as_deref(), Some(r#"["a"]"#));
    assert_eq!((parts[1].items.as_deref(), parts[1].agent.as_str()), (None, "coder"));
    let later = place.reader().workflow_parts(&id, 3).unwrap();
    assert_eq!(later, parts[2..]);
}
