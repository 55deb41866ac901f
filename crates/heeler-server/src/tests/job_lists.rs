//! Job lists of the API: redacted where they are read, with the tag of what is sent.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::header::{ETAG, IF_NONE_MATCH};
use axum::http::{Request, StatusCode};
use axum::middleware::from_fn_with_state;
use camino::Utf8Path;
use futures_util::future::join_all;
use heeler_engine::{Caller, DaemonHandle};
use heeler_model::{AccessScope, Job, JobId, TriggerType};
use heeler_store::{DatabaseError, StateDir, Store, StoreWriteError};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value as Json;
use tower::ServiceExt as _;

use super::app;
use crate::api;
use crate::caller::RequestCaller;
use crate::reply_redaction::redact_reply;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;
const JOBS: u64 = 40;

/// API of a fleet with jobs; each summary holds the secret of the config's environment.
struct JobListFixture {
    _temp: tempfile::TempDir,
    router: Router,
    ids: Vec<String>,
    secret: String,
}

struct ListReply {
    code: StatusCode,
    tag: Option<String>,
    text: String,
}

impl JobListFixture {
    fn new() -> JobListFixture {
        let temp = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(temp.path()).unwrap();
        let dir = StateDir::create(&folder.join(".heeler")).unwrap();
        let store = Store::open(&dir, "test", NOW).unwrap().store;
        let secret = format!("heeler_{}", "0a".repeat(32));
        let jobs: Vec<Job> = (0..JOBS)
            .map(|number| {
                let at = NOW + SignedDuration::from_secs(i64::try_from(number).unwrap());
                let id = JobId::mint(at, number);
                let mut job = Job::new_pending(id, "coder", TriggerType::Manual, at);
                job.head.summary = Some(format!("Job {number} printed {secret}."));
                job
            })
            .collect();
        let ids = jobs.iter().rev().map(|job| job.head.id.to_string()).collect();
        let written: Result<(), StoreWriteError<DatabaseError>> =
            store.write(move |tx| jobs.iter().try_for_each(|job| tx.insert_job(job)));
        written.unwrap();
        let handle = DaemonHandle::scripted(|_, _| panic!("a list changes nothing"));
        let app = app(folder, handle, "version: 1\nagents: []\n", BTreeMap::new());
        let redacted = api::router().layer(from_fn_with_state(Arc::clone(&app), redact_reply));
        JobListFixture { _temp: temp, router: redacted.with_state(app), ids, secret }
    }

    async fn get(&self, query: &str, known: Option<&str>) -> ListReply {
        let mut request = Request::get(format!("/api/v1/jobs{query}"));
        if let Some(known) = known {
            request = request.header(IF_NONE_MATCH, known);
        }
        let mut request = request.body(Body::empty()).unwrap();
        request.extensions_mut().insert(RequestCaller {
            name: "ann".to_owned(),
            scope: AccessScope::Read,
            engine_caller: Caller::Unknown,
            csrf_token: None,
        });
        let reply = self.router.clone().oneshot(request).await.unwrap();
        let tag = reply.headers().get(ETAG).map(|tag| tag.to_str().unwrap().to_owned());
        let code = reply.status();
        let bytes = to_bytes(reply.into_body(), usize::MAX).await.unwrap();
        ListReply { code, tag, text: String::from_utf8(bytes.to_vec()).unwrap() }
    }
}

fn ids(reply: &ListReply) -> Vec<String> {
    let page: Json = serde_json::from_str(&reply.text).unwrap();
    let jobs = page["jobs"].as_array().unwrap().iter();
    jobs.map(|job| job["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_list_is_redacted_and_not_sent_again_to_a_client_that_has_it() {
    let fleet = JobListFixture::new();
    let first = fleet.get("?limit=3", None).await;
    assert_eq!((first.code, ids(&first)), (StatusCode::OK, fleet.ids[..3].to_vec()));
    assert!(!first.text.contains(&fleet.secret), "{}", first.text);
    assert!(first.text.contains("printed [secret]."), "{}", first.text);
    let same = fleet.get("?limit=3", first.tag.as_deref()).await;
    assert_eq!((same.code, same.text.as_str()), (StatusCode::NOT_MODIFIED, ""));
    let other = fleet.get("?limit=4", first.tag.as_deref()).await;
    assert_eq!((other.code, ids(&other).len()), (StatusCode::OK, 4));
}

#[tokio::test]
async fn each_of_many_concurrent_requests_gets_its_own_page() {
    let fleet = JobListFixture::new();
    let last = fleet.ids.len() - 1;
    let queries: Vec<(String, usize)> = fleet
        .ids
        .iter()
        .enumerate()
        .map(|(at, id)| (format!("?limit=2&before={id}"), at))
        .collect();
    let replies = join_all(queries.iter().map(|(query, _)| fleet.get(query, None))).await;
    for ((query, at), reply) in queries.iter().zip(&replies) {
        let expected = fleet.ids[(at + 1).min(last + 1)..(at + 3).min(last + 1)].to_vec();
        assert_eq!((reply.code, ids(reply)), (StatusCode::OK, expected), "{query}");
    }
    // One request that cannot be answered does not change the others of its batch.
    let mixed = ["?before=job-none", "?limit=1", "?limit=0", "?since=1970-01-01T00:00:39Z"];
    let mixed = join_all(mixed.map(|query| fleet.get(query, None))).await;
    let codes: Vec<u16> = mixed.iter().map(|reply| reply.code.as_u16()).collect();
    assert_eq!(codes, [404, 200, 400, 200]);
    assert_eq!(ids(&mixed[3]), fleet.ids[..1].to_vec());
}
