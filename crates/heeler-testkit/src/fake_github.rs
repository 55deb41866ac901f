//! A fake GitHub: the paths, headers, pages and errors of its REST API, over a small model.
//!
//! Objects are the JSON that GitHub returns, so a test writes only the fields that it needs. Start
//! at [`FakeGithub`].

mod messages;

use std::borrow::Borrow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value as Json, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::WAIT_MAX;
use crate::messages_api::ApiRequest;

/// A running server; dropping it stops it.
#[derive(Debug)]
pub struct FakeGithub {
    url: String,
    shared: Arc<SharedGithub>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A failure of the next call to a path.
#[derive(Debug, Clone)]
pub struct GithubFailure {
    /// Method and beginning of the path: `POST /repos/acme/app/issues`.
    pub call: &'static str,
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Json,
    /// True if the call is executed before it fails, as when a response is lost.
    pub is_executed: bool,
}

#[derive(Debug, Default)]
struct SharedGithub {
    state: Mutex<GithubState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GithubState {
    requests: Vec<ApiRequest>,
    failures: VecDeque<GithubFailure>,
    /// Tokens that are accepted.
    tokens: Vec<String>,
    /// Issues and pull requests by repository and number.
    issues: BTreeMap<(String, u64), Json>,
    pulls: BTreeMap<(String, u64), Json>,
    comments: BTreeMap<(String, u64), Vec<Json>>,
    /// Comments on lines of pull requests.
    line_comments: BTreeMap<(String, u64), Vec<Json>>,
    reviews: BTreeMap<(String, u64), Vec<Json>>,
    /// Check runs by repository and commit.
    checks: BTreeMap<(String, String), Vec<Json>>,
    /// Changed files of pull requests.
    files: BTreeMap<(String, u64), Vec<Json>>,
    /// Changes of labels, by issue.
    label_events: BTreeMap<(String, u64), Vec<Json>>,
    reactions: Vec<(u64, String)>,
    /// Webhooks by owner: `app`, or a repository.
    hooks: BTreeMap<String, FakeHook>,
    last_id: u64,
}

/// A webhook with its deliveries, newest first.
#[derive(Debug, Default)]
struct FakeHook {
    url: String,
    deliveries: Vec<Json>,
}

impl FakeHook {
    /// Answers a call below the address of the webhook.
    fn answer(&self, request: &ApiRequest, rest: &[&str]) -> GithubAnswer {
        match rest {
            ["deliveries"] => {
                let listed = self.deliveries.iter().map(|delivery| {
                    let mut delivery = delivery.clone();
                    // Only a single delivery has these.
                    delivery.as_object_mut().map(|it| it.remove("request"));
                    delivery
                });
                page(request, listed.collect())
            }
            ["deliveries", id] => {
                let id = id.parse::<u64>().ok();
                one(self.deliveries.iter().find(|it| it["id"].as_u64() == id))
            }
            _ => GithubAnswer::not_found(),
        }
    }
}

impl FakeGithub {
    /// Starts a separate server on a free local port, which accepts the token.
    pub fn start(token: &str) -> Self {
        let shared = Arc::new(SharedGithub::default());
        shared.lock().tokens.push(token.to_owned());
        let (stop, stopped) = oneshot::channel();
        let (told, url) = std::sync::mpsc::channel();
        let served = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                told.send(format!("http://{}", listener.local_addr().unwrap())).unwrap();
                let router = Router::new().fallback(handle).with_state(served);
                tokio::select! {
                    served = axum::serve(listener, router) => served.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        let url = url.recv().unwrap();
        Self { url, shared, stop: Some(stop), thread: Some(thread) }
    }

    /// Returns the address of the API.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Adds an open issue. `fields` replace the defaults.
    pub fn add_issue(&self, repo: &str, number: u64, fields: Json) {
        let issue = object_with_defaults(repo, number, "issues", fields);
        self.shared.lock().issues.insert((repo.to_owned(), number), issue);
    }

    /// Adds an open pull request, which GitHub lists as an issue too. `fields` replace the defaults.
    pub fn add_pull_request(&self, repo: &str, number: u64, fields: Json) {
        let mut pull = object_with_defaults(repo, number, "pull", fields);
        for (key, value) in [
            ("draft", json!(false)),
            ("mergeable_state", json!("clean")),
            ("head", json!({"ref": format!("branch-{number}"), "sha": format!("sha-{number}")})),
            ("base", json!({"ref": "main", "sha": "base"})),
        ] {
            if pull.get(key).is_none() {
                pull[key] = value;
            }
        }
        let mut issue = pull.clone();
        issue["pull_request"] = json!({});
        let mut state = self.shared.lock();
        state.issues.insert((repo.to_owned(), number), issue);
        state.pulls.insert((repo.to_owned(), number), pull);
    }

    /// Sets the check runs of a commit.
    pub fn set_checks(&self, repo: &str, commit: &str, runs: &[Json]) {
        self.shared.lock().checks.insert((repo.to_owned(), commit.to_owned()), runs.to_vec());
    }

    /// Sets the changed files of a pull request.
    pub fn set_files(&self, repo: &str, number: u64, files: &[Json]) {
        self.shared.lock().files.insert((repo.to_owned(), number), files.to_vec());
    }

    /// Lets a person set a label.
    pub fn add_label(&self, repo: &str, number: u64, label: &str, actor: &str) {
        let key = (repo.to_owned(), number);
        self.shared.lock().set_label(&key, label, actor, true);
    }

    /// Returns an issue or pull request.
    pub fn issue(&self, repo: &str, number: u64) -> Json {
        let issues = &self.shared.lock().issues;
        issues.get(&(repo.to_owned(), number)).cloned().unwrap_or_default()
    }

    /// Makes the next call of this kind fail.
    pub fn fail_next(&self, failure: GithubFailure) {
        self.shared.lock().failures.push_back(failure);
    }

    /// Stops accepting all tokens that were issued to date.
    pub fn revoke_tokens(&self) {
        self.shared.lock().tokens.clear();
    }

    /// Returns all calls to date.
    pub fn requests(&self) -> Vec<ApiRequest> {
        self.shared.lock().requests.clone()
    }

    /// Returns the calls to date as `METHOD PATH`, without the query.
    pub fn calls(&self) -> Vec<String> {
        let path = |it: &ApiRequest| it.path.split('?').next().unwrap_or_default().to_owned();
        self.requests().iter().map(|it| format!("{} {}", it.method, path(it))).collect()
    }

    /// Waits until a condition on the calls to date holds.
    #[track_caller]
    pub fn wait_for_calls(&self, what: &str, holds: impl Fn(&[ApiRequest]) -> bool) {
        let until = Instant::now() + WAIT_MAX;
        let mut state = self.shared.lock();
        while !holds(&state.requests) {
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{what} was awaited, got {:#?}", state.requests);
            state = self.shared.changed.wait_timeout(state, left).unwrap().0;
        }
    }

    /// Sets the address of the webhook of `app` or of a repository.
    pub fn set_hook(&self, owner: &str, url: &str) {
        let hook = FakeHook { url: url.to_owned(), deliveries: Vec::new() };
        self.shared.lock().hooks.insert(owner.to_owned(), hook);
    }

    /// Adds a delivery to the webhook of `app` or of a repository. `fields` replace the defaults.
    pub fn add_delivery(&self, owner: &str, event: &str, payload: &Json, fields: &Json) {
        let mut state = self.shared.lock();
        state.last_id += 1;
        let id = state.last_id;
        let mut delivery = json!({
            "id": id,
            "guid": format!("guid-{id}"),
            "redelivery": false,
            "status": "failed to connect to host",
            "status_code": 502,
            "event": event,
            "action": payload["action"],
            "installation_id": 2,
            "request": {"headers": {"X-GitHub-Event": event}, "payload": payload},
        });
        for (key, value) in fields.as_object().into_iter().flatten() {
            delivery[key] = value.clone();
        }
        let hook = state.hooks.get_mut(owner).expect("the webhook was set");
        hook.deliveries.insert(0, delivery);
    }

    /// Returns the comments of an issue or pull request.
    pub fn comments(&self, repo: &str, number: u64) -> Vec<Json> {
        self.shared.lock().comments.get(&(repo.to_owned(), number)).cloned().unwrap_or_default()
    }

    /// Returns the reviews of a pull request.
    pub fn reviews(&self, repo: &str, number: u64) -> Vec<Json> {
        self.shared.lock().reviews.get(&(repo.to_owned(), number)).cloned().unwrap_or_default()
    }

    /// Returns the names of an issue's labels.
    pub fn labels(&self, repo: &str, number: u64) -> Vec<String> {
        let state = self.shared.lock();
        let issue = state.issues.get(&(repo.to_owned(), number)).cloned().unwrap_or_default();
        label_names(&issue)
    }

    /// Returns the reactions to comments, by ID of the comment.
    pub fn reactions(&self) -> Vec<(u64, String)> {
        self.shared.lock().reactions.clone()
    }
}

impl Drop for FakeGithub {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the fake GitHub panicked");
        }
    }
}

impl SharedGithub {
    fn lock(&self) -> MutexGuard<'_, GithubState> {
        self.state.lock().unwrap()
    }
}

fn object_with_defaults(repo: &str, number: u64, kind: &str, fields: Json) -> Json {
    let mut object = json!({
        "number": number,
        "title": format!("Number {number}"),
        "body": null,
        "user": {"login": "ann", "type": "User"},
        "labels": [],
        "state": "open",
        "html_url": format!("https://github.com/{repo}/{kind}/{number}"),
        "created_at": "2026-11-01T00:00:00Z",
        "updated_at": "2026-11-01T00:00:00Z",
        "author_association": "MEMBER",
    });
    for (key, value) in fields.as_object().into_iter().flatten() {
        object[key] = value.clone();
    }
    object
}

fn label_names(issue: &Json) -> Vec<String> {
    let labels = issue["labels"].as_array().into_iter().flatten();
    labels.filter_map(|label| label["name"].as_str()).map(str::to_owned).collect()
}

/// An answer before it is sent.
struct GithubAnswer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Json,
}

impl GithubAnswer {
    fn ok(status: u16, body: Json) -> GithubAnswer {
        GithubAnswer { status, headers: Vec::new(), body }
    }

    fn error(status: u16, message: &str) -> GithubAnswer {
        let body = json!({"message": message, "documentation_url": "https://docs.github.com/rest"});
        GithubAnswer::ok(status, body)
    }

    fn not_found() -> GithubAnswer {
        GithubAnswer::error(404, "Not Found")
    }
}

async fn handle(State(shared): State<Arc<SharedGithub>>, request: Request<Body>) -> Response {
    let (head, body) = request.into_parts();
    let raw = axum::body::to_bytes(body, usize::MAX).await.unwrap_or_default();
    let headers = head.headers.iter().map(|(name, value)| {
        (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
    });
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let request = ApiRequest {
        method: head.method.to_string(),
        path,
        headers: headers.collect(),
        body: serde_json::from_slice(&raw).unwrap_or(Json::Null),
    };
    let answer = {
        let mut state = shared.lock();
        state.requests.push(request.clone());
        let answer = state.answer(&request);
        shared.changed.notify_all();
        answer
    };
    let mut response = axum::Json(answer.body).into_response();
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap();
    for (name, value) in answer.headers {
        let name = axum::http::HeaderName::try_from(name).unwrap();
        response.headers_mut().insert(name, value.parse().unwrap());
    }
    response
}

impl GithubState {
    fn answer(&mut self, request: &ApiRequest) -> GithubAnswer {
        let call = format!("{} {}", request.method, request.path);
        let failure = self.failures.iter().position(|it| call.starts_with(it.call));
        if let Some(failure) = failure.and_then(|at| self.failures.remove(at)) {
            if failure.is_executed {
                drop(self.execute(request));
            }
            let headers = failure.headers.into_iter();
            let headers = headers.map(|(name, value)| (name.to_owned(), value)).collect();
            return GithubAnswer { status: failure.status, headers, body: failure.body };
        }
        self.execute(request)
    }

    fn execute(&mut self, request: &ApiRequest) -> GithubAnswer {
        let path = request.path.split('?').next().unwrap_or_default();
        let parts: Vec<String> = path.split('/').skip(1).map(decode).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let bearer = request.header("authorization").and_then(|it| it.strip_prefix("Bearer "));
        let bearer = bearer.unwrap_or_default();
        // An App identifies itself with a JSON Web Token, and has no other rights.
        if let ["app", rest @ ..] = &parts[..] {
            if bearer.split('.').count() != 3 {
                return GithubAnswer::error(401, "A JSON web token could not be decoded");
            }
            if let ["hook", rest @ ..] = rest {
                let Some(hook) = self.hooks.get("app") else { return GithubAnswer::not_found() };
                return match rest {
                    ["config"] => GithubAnswer::ok(200, json!({"url": hook.url})),
                    _ => hook.answer(request, rest),
                };
            }
            return self.app_answer(rest);
        }
        if !self.tokens.iter().any(|token| token == bearer) {
            return GithubAnswer::error(401, "Bad credentials");
        }
        match (request.method.as_str(), &parts[..]) {
            ("GET", ["user"]) => GithubAnswer::ok(200, json!({"login": "heeler-user"})),
            ("GET", ["rate_limit"]) => {
                let core = json!({"limit": 5_000, "remaining": 4_990, "reset": 1_795_000_000});
                GithubAnswer::ok(200, json!({"resources": {"core": core}}))
            }
            (_, ["repos", owner, name, rest @ ..]) => {
                self.repo_answer(&format!("{owner}/{name}"), request, rest)
            }
            _ => GithubAnswer::not_found(),
        }
    }

    fn app_answer(&mut self, rest: &[&str]) -> GithubAnswer {
        match rest {
            [] => GithubAnswer::ok(200, json!({"slug": "heeler-app", "id": 1})),
            ["installations", _, "access_tokens"] => {
                self.last_id += 1;
                let token = format!("ghs_{:036}", self.last_id);
                self.tokens.push(token.clone());
                let body = json!({"token": token, "expires_at": "2026-11-17T13:00:00Z"});
                GithubAnswer::ok(201, body)
            }
            _ => GithubAnswer::not_found(),
        }
    }

    fn hook_answer(&self, repo: &str, request: &ApiRequest, rest: &[&str]) -> GithubAnswer {
        match (self.hooks.get(repo), rest) {
            (hook, []) => {
                let listed =
                    hook.map(|it| json!({"id": 5, "active": true, "config": {"url": it.url}}));
                page(request, listed.into_iter().collect())
            }
            (Some(hook), ["5", rest @ ..]) => hook.answer(request, rest),
            _ => GithubAnswer::not_found(),
        }
    }

    fn repo_answer(&mut self, repo: &str, request: &ApiRequest, rest: &[&str]) -> GithubAnswer {
        let numbered = |text: &str| (repo.to_owned(), text.parse::<u64>().unwrap_or(0));
        if let Some(answer) = self.message_answer(repo, request, rest) {
            return answer;
        }
        match (request.method.as_str(), rest) {
            ("GET", ["hooks", rest @ ..]) => self.hook_answer(repo, request, rest),
            ("GET", ["issues"]) => {
                let wanted = query(request, "labels").unwrap_or_default();
                let wanted: Vec<&str> = wanted.split(',').filter(|it| !it.is_empty()).collect();
                let has_labels = |issue: &Json| {
                    let names = label_names(issue);
                    wanted.iter().all(|label| names.iter().any(|name| name == label))
                };
                let mut found = of_repo(&self.issues, repo);
                found.retain(|issue| issue["state"] == "open" && has_labels(issue));
                found.sort_by_key(|issue| issue["updated_at"].to_string());
                page(request, found)
            }
            ("GET", ["pulls"]) => page(request, of_repo(&self.pulls, repo)),
            ("GET", ["issues", number]) => one(self.issues.get(&numbered(number))),
            ("GET", ["pulls", number]) => one(self.pulls.get(&numbered(number))),
            ("GET", ["pulls", number, "reviews"]) => {
                page(request, self.reviews.get(&numbered(number)).cloned().unwrap_or_default())
            }
            ("GET", ["issues", number, "events"]) => {
                page(request, self.label_events.get(&numbered(number)).cloned().unwrap_or_default())
            }
            ("PATCH", ["issues", number]) => self.change_state(&numbered(number), request),
            ("GET", ["pulls", number, "files"]) => {
                page(request, self.files.get(&numbered(number)).cloned().unwrap_or_default())
            }
            ("GET", ["commits", commit, "check-runs"]) => {
                let key = (repo.to_owned(), (*commit).to_owned());
                let runs = self.checks.get(&key).cloned().unwrap_or_default();
                let total = runs.len();
                let mut answer = page(request, runs);
                answer.body = json!({"total_count": total, "check_runs": answer.body});
                answer
            }
            ("GET", ["commits", _, "status"]) => {
                GithubAnswer::ok(200, json!({"state": "pending", "statuses": []}))
            }
            ("POST", ["issues", "comments", id, "reactions"]) => {
                let content = request.body["content"].as_str().unwrap_or_default().to_owned();
                self.reactions.push((id.parse().unwrap_or(0), content));
                GithubAnswer::ok(201, json!({"id": 1}))
            }
            ("PATCH", ["issues", "comments", id]) => self.edit_comment(id, request),
            ("POST", ["issues", number, "comments"]) => {
                let key = numbered(number);
                let body = json!({"body": request.body["body"]});
                self.create(key, body, |state| &mut state.comments)
            }
            ("POST", ["pulls", number, "reviews"]) => {
                let body = json!({
                    "body": request.body["body"],
                    "state": review_state(&request.body["event"]),
                    "commit_id": request.body["commit_id"],
                    "comments": request.body["comments"],
                });
                self.create(numbered(number), body, |state| &mut state.reviews)
            }
            (method @ ("POST" | "DELETE"), ["issues", number, "labels", rest @ ..]) => {
                self.change_labels(&numbered(number), method, request, rest)
            }
            _ => GithubAnswer::not_found(),
        }
    }

    /// Adds an object with an ID to an issue or pull request that exists.
    fn create(
        &mut self,
        key: (String, u64),
        mut object: Json,
        place: impl Fn(&mut GithubState) -> &mut BTreeMap<(String, u64), Vec<Json>>,
    ) -> GithubAnswer {
        if !self.issues.contains_key(&key) {
            return GithubAnswer::not_found();
        }
        self.last_id += 1;
        object["id"] = json!(self.last_id);
        messages::set_origin(&mut object, &key, (9_000, "heeler-user", "MEMBER"));
        place(self).entry(key).or_default().push(object.clone());
        GithubAnswer::ok(201, object)
    }

    fn edit_comment(&mut self, id: &str, request: &ApiRequest) -> GithubAnswer {
        let id: Option<u64> = id.parse().ok();
        let is_it = |comment: &&mut Json| comment["id"].as_u64() == id;
        let Some(comment) = self.comments.values_mut().flatten().find(is_it) else {
            return GithubAnswer::not_found();
        };
        comment["body"] = request.body["body"].clone();
        GithubAnswer::ok(200, comment.clone())
    }

    fn change_state(&mut self, key: &(String, u64), request: &ApiRequest) -> GithubAnswer {
        let Some(issue) = self.issues.get_mut(key) else { return GithubAnswer::not_found() };
        issue["state"] = request.body["state"].clone();
        GithubAnswer::ok(200, issue.clone())
    }

    fn change_labels(
        &mut self,
        key: &(String, u64),
        method: &str,
        request: &ApiRequest,
        rest: &[&str],
    ) -> GithubAnswer {
        let Some(issue) = self.issues.get(key) else { return GithubAnswer::not_found() };
        let names = label_names(issue);
        match (method, rest) {
            ("POST", []) => {
                let added = request.body["labels"].as_array().into_iter().flatten();
                for label in added.filter_map(Json::as_str) {
                    self.set_label(key, label, "heeler-user", true);
                }
            }
            ("DELETE", [label]) if names.iter().any(|name| name == label) => {
                self.set_label(key, label, "heeler-user", false);
            }
            _ => return GithubAnswer::error(404, "Label does not exist"),
        }
        GithubAnswer::ok(200, self.issues[key]["labels"].clone())
    }

    /// Sets or removes a label, and records the event.
    fn set_label(&mut self, key: &(String, u64), label: &str, actor: &str, is_added: bool) {
        let Some(issue) = self.issues.get_mut(key) else { return };
        let mut names = label_names(issue);
        if names.iter().any(|name| name == label) == is_added {
            return;
        }
        names.retain(|name| name != label);
        names.extend(is_added.then(|| label.to_owned()));
        issue["labels"] = names.iter().map(|name| json!({"name": name})).collect();
        let event = if is_added { "labeled" } else { "unlabeled" };
        // Later than any test.
        let at = "2099-01-01T00:00:00Z";
        let event = json!({
            "event": event, "actor": {"login": actor}, "label": {"name": label}, "created_at": at,
        });
        self.label_events.entry(key.clone()).or_default().push(event);
    }
}

fn review_state(event: &Json) -> &'static str {
    match event.as_str() {
        Some("APPROVE") => "APPROVED",
        Some("REQUEST_CHANGES") => "CHANGES_REQUESTED",
        _ => "COMMENTED",
    }
}

fn one(found: Option<&Json>) -> GithubAnswer {
    found.map_or_else(GithubAnswer::not_found, |it| GithubAnswer::ok(200, it.clone()))
}

fn of_repo(all: &BTreeMap<(String, u64), Json>, repo: &str) -> Vec<Json> {
    all.iter().filter(|((of, _), _)| of == repo).map(|(_, object)| object.clone()).collect()
}

/// Returns a page with a `link` header, as GitHub does.
fn page<M: Borrow<Json>>(request: &ApiRequest, all: Vec<M>) -> GithubAnswer {
    let number = |name: &str, default: usize| {
        query(request, name).and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (size, page) = (number("per_page", 30), number("page", 1));
    let last = all.len().div_ceil(size).max(1);
    let mut answer = GithubAnswer::ok(200, Json::Null);
    if page < last {
        let path = request.path.split("&page=").next().unwrap_or_default();
        let host = request.header("host").unwrap_or_default();
        let link =
            |to: usize, kind: &str| format!("<http://{host}{path}&page={to}>; rel=\"{kind}\"");
        let links = format!("{}, {}", link(page + 1, "next"), link(last, "last"));
        answer.headers.push(("link".to_owned(), links));
    }
    let of_page = all.iter().skip((page - 1) * size).take(size);
    answer.body = of_page.map(|it| it.borrow().clone()).collect();
    answer
}

fn query(request: &ApiRequest, name: &str) -> Option<String> {
    let (_, query) = request.path.split_once('?')?;
    query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .find_map(|(key, value)| (key == name).then(|| decode(value)))
}

/// Decodes `%2F` and `+`.
fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits: Vec<u8> = rest.by_ref().take(2).collect();
                let digits = std::str::from_utf8(&digits).unwrap_or_default();
                u8::from_str_radix(digits, 16).unwrap_or(b'?')
            }
            byte => byte,
        });
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
