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
