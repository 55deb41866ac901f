//! Tests of callers that wait for views.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::{PublishedView, ViewPublisher};

#[test]
fn whoever_waits_for_a_view_finds_it_in_place_however_busy_the_fleet_is() {
    let place = place();
    let store = Arc::new(place.store());
    let publisher = ViewPublisher::start(Arc::clone(&store), now).unwrap();
    for number in 0..50 {
        let new = job(number, "coder", JobStatus::Pending);
        let marked = store.write::<_, DatabaseError, _>(move |tx| {
            tx.insert_job(&new)?;
            Ok(tx.marked_views())
        });
        let marked = marked.unwrap();
        let path = format!("jobs/{}.yaml", job_id(number));
        assert!(marked.contains(&path), "{marked:?}");
        let (sender, receiver) = std::sync::mpsc::channel();
        store.publish_then(marked, Box::new(move || sender.send(()).unwrap()));
        receiver.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(place.has(&path), "{number}");
    }
    drop(publisher);
    // If no publisher runs, the caller is answered at once.
    let (sender, receiver) = std::sync::mpsc::channel();
    store.publish_then(vec!["state.yaml".to_owned()], Box::new(move || sender.send(()).unwrap()));
    receiver.recv().unwrap();
    // A part that was undone marks nothing.
    let marked = store.write::<_, DatabaseError, _>(|tx| {
        let undone: Result<(), DatabaseError> = tx.with_savepoint(|tx| {
            tx.mark_view_due(&PublishedView::Job(job_id(7)))?;
            Err(DatabaseError::Missing { what: "job", id: String::new() })
        });
        assert!(undone.is_err());
        Ok(tx.marked_views())
    });
    assert_eq!(marked.unwrap(), [""; 0]);
}

#[test]
fn a_view_written_for_a_caller_stays_due_until_it_is_durable() {
    let place = place();
    let store = place.store();
    insert_jobs(&store, vec![job(1, "coder", JobStatus::Pending)]);
    let path = PublishedView::Job(job_id(1)).path();
    let wanted = [path.clone()];
    let report = store.publish_some_views(&wanted, now()).unwrap();
    assert_eq!((report.written, report.failed.len()), (1, 0));
    let before = place.read(&path);
    let is_due = || place.reader().due_view(&path).unwrap().is_some();
    assert!(is_due());
    // The file is no edit of a person: a second request and the next round keep it.
    let report = store.publish_some_views(&wanted, now()).unwrap();
    assert_eq!((report.written, report.unchanged), (0, 1));
    assert!(is_due());
    let report = store.publish_views(now()).unwrap();
    assert_eq!(report.failed, []);
    assert!(report.moved_aside.is_empty() && report.unchanged >= 1, "{report:?}");
    assert!(!is_due());
    assert_eq!(place.read(&path), before);
}

#[test]
fn other_processes_see_that_a_view_is_in_place_before_it_is_durable() {
    let place = place();
    let store = place.store();
    insert_jobs(&store, vec![job(1, "coder", JobStatus::Pending)]);
    let path = PublishedView::Job(job_id(1)).path();
    let generation = || place.reader().view(&path).unwrap().unwrap().generation;
    let is_in_place = |number| place.reader().is_view_in_place(&path, number).unwrap();
    let first = generation();
    let mut report = store.publish_some_views(std::slice::from_ref(&path), now()).unwrap();
    assert!(!is_in_place(first));
    store.record_placed_views(&mut report).unwrap();
    assert!(is_in_place(first) && place.reader().due_view(&path).unwrap().is_some());
    // The file does not show a later change, also if an earlier one is recorded after it.
    commit(&store, |tx| tx.mark_view_due(&PublishedView::Job(job_id(1))));
    assert!(!is_in_place(generation()));
    store.publish_views(now()).unwrap();
    assert!(is_in_place(generation()) && place.reader().due_view(&path).unwrap().is_none());
}

#[test]
fn a_view_written_for_a_caller_and_lost_with_the_power_is_written_again() {
    let place = place();
    let store = place.store();
    insert_jobs(&store, vec![job(1, "coder", JobStatus::Pending)]);
    let path = PublishedView::Job(job_id(1)).path();
    store.publish_some_views(std::slice::from_ref(&path), now()).unwrap();
    let before = place.read(&path);
    std::fs::write(place.dir.root().join(&path), "").unwrap();
    let report = store.publish_views(now()).unwrap();
    assert!(report.moved_aside.is_empty() && report.failed.is_empty(), "{report:?}");
    assert_eq!(place.read(&path), before);
}

#[test]
fn the_session_file_of_an_agent_is_recorded_before_the_caller_is_answered() {
    let place = place();
    let store = place.store();
    commit(&store, |tx| {
        let session = session(1, "coder");
        tx.put_session(&session)?;
        tx.set_agent_session("coder", Some(&session.id))
    });
    let path = PublishedView::AgentSession("coder".parse().unwrap()).path();
    store.publish_some_views(std::slice::from_ref(&path), now()).unwrap();
    assert!(place.has(&path));
    // A person may delete it at once, which ends the session.
    assert!(place.reader().due_view(&path).unwrap().is_none());
}
