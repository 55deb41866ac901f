//! Tests of pages as HTTP replies: content, buttons by scope, and missing resources.

use std::collections::{BTreeMap, BTreeSet};

use axum::body::{Body, to_bytes};
use axum::http::Request;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE};
use camino::Utf8Path;
use heeler_engine::{Caller, DaemonHandle};
use heeler_model::{AccessScope, Job, JobId, JobStatus, Session, TriggerType};
use heeler_store::{DatabaseError, StateDir, Store, StoreWriteError};
use jiff::Timestamp;
use tower::ServiceExt as _;

use super::app;
use crate::SharedServerState;
use crate::caller::RequestCaller;
use crate::{api, dashboard};

const CONFIG: &str = "
agents:
  - {name: coder, runtime: scripted, default_prompt: Go., script: [{say: Done.}],
     schedules: {nightly: {cron: '0 3 * * *', prompt: Tidy up.}}}
";
const SESSION: &str = "sess-00000001";
const HTML: &str = "text/html; charset=utf-8";

/// Fleet with a recorded job and session.
struct PagesFixture {
    _temp: tempfile::TempDir,
    app: SharedServerState,
    job: String,
}

/// Received page.
struct FetchedPage {
    code: u16,
    kind: String,
    cached: String,
    text: String,
}

impl PagesFixture {
    fn new() -> PagesFixture {
        PagesFixture::with(Vec::new())
    }

    /// Creates the fleet with more jobs.
    fn with(jobs: Vec<Job>) -> PagesFixture {
        let temp = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(temp.path()).unwrap();
        let dir = StateDir::create(&folder.join(".heeler")).unwrap();
        let store = Store::open(&dir, "test", Timestamp::UNIX_EPOCH).unwrap().store;
        let now = Timestamp::UNIX_EPOCH;
        let job = Job::new_pending(JobId::mint(now, 1), "coder", TriggerType::Manual, now);
        let id = job.head.id.to_string();
        let written: Result<(), StoreWriteError<DatabaseError>> = store.write(move |tx| {
            tx.put_session(&Session::new(SESSION.parse().unwrap(), "coder", now))?;
            jobs.iter().try_for_each(|job| tx.insert_job(job))?;
            tx.insert_job(&job)
        });
        written.unwrap();
        let handle = DaemonHandle::scripted(|_, _| panic!("a page changes nothing"));
        let app = app(folder, handle, CONFIG, BTreeMap::new());
        PagesFixture { _temp: temp, app, job: id }
    }

    async fn ask(&self, scope: AccessScope, method: &str, path: &str) -> FetchedPage {
        let caller = RequestCaller {
            name: "ann".to_owned(),
            scope,
            engine_caller: Caller::Person,
            csrf_token: None,
        };
        let mut request = Request::builder().method(method).uri(path);
        request = request.header(ACCEPT, "text/html");
        let mut request = request.body(Body::empty()).unwrap();
        request.extensions_mut().insert(caller);
        let router = api::router().merge(dashboard::router()).fallback(dashboard::not_found);
        let reply = router.with_state(self.app.clone()).oneshot(request).await.unwrap();
        let header = |name| reply.headers().get(name).map_or("", |it| it.to_str().unwrap());
        let (kind, cached) = (header(CONTENT_TYPE).to_owned(), header(CACHE_CONTROL).to_owned());
        let code = reply.status().as_u16();
        let bytes = to_bytes(reply.into_body(), usize::MAX).await.unwrap();
        FetchedPage { code, kind, cached, text: String::from_utf8(bytes.to_vec()).unwrap() }
    }

    async fn get(&self, scope: AccessScope, path: &str) -> FetchedPage {
        self.ask(scope, "GET", path).await
    }
}

/// Most bytes that a browser loads for the first page.
const OVERVIEW_BYTES_MAX: usize = 110_000;

#[tokio::test]
async fn the_first_page_with_all_that_it_loads_is_small_however_much_goes_on() {
    let mut jobs = Vec::new();
    for status in JobStatus::ALL {
        for number in 0..100 {
            let at = Timestamp::from_second(number).unwrap();
            let id = JobId::mint(at, 1_000 + jobs.len() as u64);
            let mut job = Job::new_pending(id, "platform.coder-of-docs", TriggerType::Manual, at);
            job.head.status = *status;
            job.head.duration_ms = Some(123_456);
            job.head.summary = Some("What it did. ".repeat(80));
            job.error = Some("What went wrong. ".repeat(1_000));
            jobs.push(job);
        }
    }
    let house = PagesFixture::with(jobs);
    let page = house.get(AccessScope::Admin, "/").await.text;
    let mut bytes = page.len();
    let named = |text: &str, start: &str| -> Vec<String> {
        let ends = ['"', '\''];
        text.split(start)
            .skip(1)
            .filter_map(|it| it.split(ends).next())
            .map(str::to_owned)
            .collect()
    };
    let (mut known, mut found) = (BTreeSet::new(), named(&page, "\"/assets/"));
    while let Some(name) = found.pop() {
        if known.insert(name.clone()) {
            let file = house.get(AccessScope::Admin, &format!("/assets/{name}")).await;
            assert_eq!(file.code, 200, "{name}");
            bytes += file.text.len();
            let folder = name.split('/').next().unwrap();
            // Dynamic imports are not loaded here.
            for import in ["\nimport './", "} from './"] {
                let imported = named(&file.text, import);
                found.extend(imported.iter().map(|it| format!("{folder}/{it}")));
            }
        }
    }
    assert!(known.len() > 6, "{known:?}");
    assert!(bytes <= OVERVIEW_BYTES_MAX, "{bytes}: {} of the page, {known:?}", page.len());
}

/// Markers of actions in the HTML of a page.
const ACTS: [&str; 4] = ["data-action=", "data-talk=", "data-answer=", "type=\"submit\""];

#[tokio::test]
async fn every_page_is_one_and_is_not_kept() {
    let house = PagesFixture::new();
    for path in [
        "/",
        "/agents",
        "/agents/coder",
        "/jobs",
        &format!("/jobs/{}", house.job),
        "/sessions",
        &format!("/sessions/{SESSION}"),
        "/schedules",
        "/workflows",
        "/runs",
        "/approvals",
        "/search",
        "/search?q=x",
        "/settings",
        "/costs",
        "/config",
        "/api/v1/docs",
    ] {
        let seen = house.get(AccessScope::Admin, path).await;
        assert_eq!((seen.code, seen.kind.as_str()), (200, HTML), "{path}: {}", seen.text);
        assert_eq!(seen.cached, "no-store", "{path}");
        assert!(seen.text.starts_with("<!DOCTYPE html>"), "{path}");
    }
}

#[tokio::test]
async fn what_is_not_there_is_a_page_too() {
    let house = PagesFixture::new();
    for path in [
        "/nowhere",
        "/agents/nobody",
        "/jobs/job-none",
        "/sessions/sess-none",
        "/sessions/sess-none/diff",
        "/workflows/none",
        "/runs/run-none",
        "/approvals/ask-none",
    ] {
        let seen = house.get(AccessScope::Read, path).await;
        assert_eq!((seen.code, seen.kind.as_str()), (404, HTML), "{path}: {}", seen.text);
        assert!(seen.text.contains("404"), "{path}");
    }
    for path in ["/jobs?status=lost", "/jobs?since=soon", "/sessions?status=lost"] {
        assert_eq!(house.get(AccessScope::Read, path).await.code, 400, "{path}");
    }
}

#[tokio::test]
async fn of_an_agent_that_nobody_knows_a_list_is_empty_and_the_api_says_that_it_is_not_there() {
    let house = PagesFixture::new();
    for list in ["jobs", "sessions"] {
        let seen = house.get(AccessScope::Read, &format!("/{list}?agent=nobody")).await;
        assert_eq!(seen.code, 200, "{list}: {}", seen.text);
        assert!(seen.text.contains("No matching"), "{list}: {}", seen.text);
        assert!(!seen.text.contains(SESSION) && !seen.text.contains(&house.job), "{list}");
        let told = house.get(AccessScope::Read, &format!("/api/v1/{list}?agent=nobody")).await;
        assert_eq!((told.code, told.kind.as_str()), (404, "application/problem+json"), "{list}");
        assert!(told.text.contains("there is no agent `nobody`"), "{list}: {}", told.text);
    }
}

#[tokio::test]
async fn whoever_may_only_read_gets_no_buttons_and_is_refused_what_they_would_do() {
    let house = PagesFixture::new();
    let agent = house.get(AccessScope::Operate, "/agents/coder").await.text;
    assert!(ACTS.iter().any(|act| agent.contains(act)), "{agent}");
    let job = format!("/jobs/{}", house.job);
    let session = format!("/sessions/{SESSION}");
    for path in [
        "/",
        "/agents",
        "/agents/coder",
        "/jobs",
        &job,
        "/sessions",
        &session,
        "/schedules",
        "/workflows",
        "/runs",
        "/approvals",
        "/settings",
        "/costs",
    ] {
        let seen = house.get(AccessScope::Read, path).await;
        let found: Vec<_> = ACTS.iter().filter(|act| seen.text.contains(**act)).collect();
        assert!(found.is_empty(), "{path}: {found:?} {}", seen.text);
    }
    let docs = house.get(AccessScope::Read, "/api/v1/docs").await.text;
    assert!(docs.contains("Your scope does not allow this.") && docs.contains("Send"));
    for route in [
        "/api/v1/agents/coder/disable",
        "/api/v1/schedules/coder/nightly/trigger",
        "/api/v1/jobs",
        &format!("/api/v1/sessions/{SESSION}/fork"),
        "/api/v1/daemon/stop",
    ] {
        let seen = house.ask(AccessScope::Read, "POST", route).await;
        assert_eq!((seen.code, seen.kind.as_str()), (403, "application/problem+json"), "{route}");
    }
    // The config is changed by administrators only.
    for (method, path) in [
        ("GET", "/config"),
        ("GET", "/api/v1/config/files"),
        ("GET", "/api/v1/config/files/text?path=heeler.yaml"),
        ("POST", "/api/v1/config/check"),
        ("POST", "/api/v1/config/save"),
    ] {
        assert_eq!(house.ask(AccessScope::Operate, method, path).await.code, 403, "{path}");
    }
    // Pages accept only GET.
    assert_eq!(house.ask(AccessScope::Admin, "POST", "/jobs").await.code, 405);
}
