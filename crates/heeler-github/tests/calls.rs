//! Calls of the client, against a server that speaks GitHub's protocol.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use heeler_github::{
    AppPrivateKey, CheckConclusion, DiffSide, DiscoveryQuery, DiscoveryTarget, GithubClient,
    GithubClientConfig, GithubCredentials, GithubError, GithubRepo, HostClock, IssueListFilter,
    ReactionKind, ReviewComment, ReviewDraft, ReviewEvent, TokenRequest,
};
use heeler_testkit::{FakeGithub, GithubFailure};
use jiff::Timestamp;
use serde_json::{Value as Json, json};

const TOKEN: &str = "github_pat_secret";
const KEY: &str = include_str!("fixtures/test-app-pkcs1.pem");

fn noon() -> Timestamp {
    "2026-11-17T12:00:00Z".parse().unwrap()
}

fn client_with(url: &str, credentials: GithubCredentials, now: fn() -> Timestamp) -> GithubClient {
    GithubClient::new(GithubClientConfig {
        api_url: url.parse().unwrap(),
        credentials,
        clock: HostClock { now, pause: |_| {} },
        timeout: Duration::from_secs(30),
        pause_max: Duration::from_secs(30),
    })
    .unwrap()
}

fn client(github: &FakeGithub) -> GithubClient {
    client_with(github.url(), GithubCredentials::Token(TOKEN.to_owned()), noon)
}

fn app_client(github: &FakeGithub, now: fn() -> Timestamp) -> GithubClient {
    let key = AppPrivateKey::from_pem(KEY).unwrap();
    let credentials = GithubCredentials::App { app: 1, installation: 7, key };
    client_with(github.url(), credentials, now)
}

fn repo() -> GithubRepo {
    "acme/app".parse().unwrap()
}

fn failure(call: &'static str, status: u16, headers: &[(&'static str, &str)]) -> GithubFailure {
    let headers = headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    let body = json!({"message": "no \u{1b}[31m"});
    GithubFailure { call, status, headers, body, is_executed: false }
}

fn token_calls(github: &FakeGithub) -> usize {
    github.calls().iter().filter(|call| call.ends_with("/access_tokens")).count()
}

#[test]
fn all_pages_are_read_until_there_is_enough() {
    let github = FakeGithub::start(TOKEN);
    for number in 1..=205 {
        github.add_issue("acme/app", number, json!({}));
    }
    github.add_pull_request("acme/app", 300, json!({}));
    github.add_issue("acme/other", 1, json!({}));
    let client = client(&github);
    let filter = IssueListFilter::default();
    let all = client.open_issues(&repo(), &filter, 1_000).unwrap();
    assert_eq!(all.len(), 205, "pull requests are no issues");
    assert_eq!(github.calls().len(), 3);
    assert_eq!(client.open_issues(&repo(), &filter, 100).unwrap().len(), 100);
    assert_eq!(github.calls().len(), 4, "nobody asked for more");
    let last = github.requests().pop().unwrap();
    assert_eq!(last.header("authorization"), Some("Bearer github_pat_secret"));
    assert_eq!(last.header("x-github-api-version"), Some("2022-11-28"));
}

#[test]
fn a_page_on_another_host_is_not_followed() {
    let github = FakeGithub::start(TOKEN);
    let elsewhere = FakeGithub::start(TOKEN);
    let link = format!("<{}/repos/acme/app/issues?page=2>; rel=\"next\"", elsewhere.url());
    let body: Json = json!([]);
    let call = "GET /repos/acme/app/issues";
    let headers = vec![("link", link)];
    github.fail_next(GithubFailure { call, status: 200, headers, body, is_executed: false });
    let error = client(&github).open_issues(&repo(), &IssueListFilter::default(), 9).unwrap_err();
    assert!(error.to_string().contains("another host"), "{error}");
    let place = format!("{}/repos/acme/app", elsewhere.url());
    github.fail_next(failure("GET /repos/acme/app/pulls/1", 301, &[("location", &place)]));
    let error = client(&github).pull_request(&repo(), 1).unwrap_err();
    assert!(error.to_string().contains("another host"), "{error}");
    assert_eq!(elsewhere.calls(), Vec::<String>::new(), "it must not see the token");
}

#[test]
fn a_renamed_repository_is_read_at_its_new_place() {
    let github = FakeGithub::start(TOKEN);
    github.add_issue("acme/new", 1, json!({"title": "Moved"}));
    let place = format!("{}/repos/acme/new/issues/1", github.url());
    github.fail_next(failure("GET /repos/acme/app/issues/1", 301, &[("location", &place)]));
    assert_eq!(client(&github).issue(&repo(), 1).unwrap().title, "Moved");
    // A change is not sent to a place that nobody named.
    github.fail_next(failure("POST /repos/acme/app/issues/1", 307, &[("location", &place)]));
    let error = client(&github).create_comment(&repo(), 1, "hi").unwrap_err();
    assert!(error.to_string().contains("current name"), "{error}");
    assert!(github.comments("acme/new", 1).is_empty());
}

#[test]
fn a_short_rate_limit_is_waited_for_and_a_long_one_is_reported() {
    let github = FakeGithub::start(TOKEN);
    github.add_issue("acme/app", 1, json!({}));
    let client = client(&github);
    let call = "POST /repos/acme/app/issues/1/comments";
    github.fail_next(failure(call, 429, &[("retry-after", "20")]));
    client.create_comment(&repo(), 1, "once").unwrap();
    assert_eq!(github.comments("acme/app", 1).len(), 1);

    let reset = (noon().as_second() + 1_800).to_string();
    let limited = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", reset.as_str())];
    github.fail_next(failure("GET /repos/acme/app/issues/1", 403, &limited));
    let until = "2026-11-17T12:30:00Z".parse().unwrap();
    let attempt = "read acme/app#1".to_owned();
    let error = client.issue(&repo(), 1).unwrap_err();
    assert_eq!(error, GithubError::RateLimited { attempt, until });
    assert!(error.is_transient());

    // The same status without those headers is a missing permission.
    github.fail_next(failure("GET /repos/acme/app/issues/1", 403, &[]));
    let error = client.issue(&repo(), 1).unwrap_err();
    assert!(
        matches!(&error, GithubError::Forbidden { said, .. } if said == "no [31m"),
        "{error:?}"
    );
}

#[test]
fn only_a_call_that_may_be_executed_twice_is_repeated_after_a_failure() {
    let github = FakeGithub::start(TOKEN);
    github.add_issue("acme/app", 1, json!({}));
    let client = client(&github);
    for _ in 0..2 {
        github.fail_next(failure("GET /repos/acme/app/issues/1", 502, &[]));
    }
    assert_eq!(client.issue(&repo(), 1).unwrap().number, 1);
    for _ in 0..3 {
        github.fail_next(failure("GET /repos/acme/app/issues/1", 503, &[]));
    }
    let error = client.issue(&repo(), 1).unwrap_err();
    assert!(matches!(error, GithubError::Refused { status: 503, .. }), "{error:?}");
    let lost = GithubFailure {
        is_executed: true,
        ..failure("POST /repos/acme/app/issues/1/comments", 502, &[])
    };
    github.fail_next(lost);
    assert!(client.create_comment(&repo(), 1, "hi").unwrap_err().is_transient());
    assert_eq!(github.comments("acme/app", 1).len(), 1, "it was executed, and not repeated");
}

#[test]
fn an_app_uses_one_token_until_it_expires_or_is_revoked() {
    static NOW: AtomicU64 = AtomicU64::new(0);
    let clock = || noon() + Duration::from_secs(NOW.load(Ordering::SeqCst));
    let github = FakeGithub::start("unused");
    github.add_issue("acme/app", 1, json!({}));
    let client = app_client(&github, clock);
    client.issue(&repo(), 1).unwrap();
    client.issue(&repo(), 1).unwrap();
    assert_eq!(token_calls(&github), 1);
    // It expires at 13:00; five minutes before that it is replaced.
    NOW.store(55 * 60 + 1, Ordering::SeqCst);
    client.issue(&repo(), 1).unwrap();
    assert_eq!(token_calls(&github), 2);
    NOW.store(0, Ordering::SeqCst);
    github.revoke_tokens();
    client.issue(&repo(), 1).unwrap();
    assert_eq!(token_calls(&github), 3, "a token that is not accepted is replaced once");
    assert_eq!(client.own_login().unwrap(), "heeler-app[bot]");
    let narrow = TokenRequest { repositories: vec![repo()], permissions: Vec::new() };
    let token = client.create_installation_token(&narrow).unwrap();
    assert!(token.token.starts_with("ghs_"));
    assert!(!format!("{token:?} {client:?}").contains("ghs_"), "no log shows a token");
    let last = github.requests().pop().unwrap();
    assert_eq!(last.body, json!({"repositories": ["app"]}));
}

#[test]
fn a_wrong_token_is_an_error_that_does_not_repeat_it() {
    let github = FakeGithub::start("another");
    let client = client(&github);
    let error = client.issue(&repo(), 1).unwrap_err();
    assert!(matches!(error, GithubError::Unauthorized { .. }), "{error:?}");
    assert!(!format!("{error} {client:?}").contains(TOKEN));
    assert_eq!(github.calls().len(), 1);
    let error = client.create_installation_token(&TokenRequest::default()).unwrap_err();
    assert!(error.to_string().contains("github.app"), "{error}");
}

#[test]
fn labels_reactions_and_reviews_arrive() {
    let github = FakeGithub::start(TOKEN);
    github.add_pull_request("acme/app", 5, json!({"labels": [{"name": "a/b"}]}));
    let client = client(&github);
    client.add_labels(&repo(), 5, &["agent working"]).unwrap();
    client.remove_label(&repo(), 5, "a/b").unwrap();
    client.remove_label(&repo(), 5, "a/b").unwrap();
    assert_eq!(github.labels("acme/app", 5), ["agent working"]);
    let comment = client.create_comment(&repo(), 5, "hello").unwrap();
    client.react_to_comment(&repo(), comment.id, ReactionKind::Eyes).unwrap();
    assert_eq!(github.reactions(), [(comment.id, "eyes".to_owned())]);
    assert_eq!(client.comments(&repo(), 5, noon(), 10).unwrap(), [comment]);
    let draft = ReviewDraft {
        event: ReviewEvent::Approve,
        body: "Good.".to_owned(),
        commit: Some("sha-5".to_owned()),
        comments: vec![ReviewComment {
            path: "a.rs".to_owned(),
            side: DiffSide::New,
            line: 2,
            start_line: None,
            body: "Why?".to_owned(),
        }],
    };
    let posted = client.create_review(&repo(), 5, &draft).unwrap();
    assert_eq!((posted.state.as_str(), posted.commit.as_str()), ("APPROVED", "sha-5"));
    assert_eq!(client.reviews(&repo(), 5, 10).unwrap(), [posted]);
    assert_eq!(github.reviews("acme/app", 5)[0]["comments"][0]["path"], "a.rs");
}

#[test]
fn checks_of_the_own_app_do_not_count() {
    let github = FakeGithub::start(TOKEN);
    github.add_pull_request("acme/app", 5, json!({}));
    let client = client(&github);
    let pull = client.open_pull_requests(&repo(), 10).unwrap().remove(0);
    assert_eq!((pull.head_ref.as_str(), pull.base_ref.as_str()), ("branch-5", "main"));
    let conclusion = |except| client.check_conclusion(&repo(), &pull.head_sha, except).unwrap();
    assert_eq!(conclusion(None), CheckConclusion::Absent);
    let own = json!({"status": "in_progress", "conclusion": null, "app": {"slug": "heeler"}});
    let ci = json!({"status": "completed", "conclusion": "success", "app": {"slug": "ci"}});
    github.set_checks("acme/app", "sha-5", &[own, ci]);
    assert_eq!(conclusion(None), CheckConclusion::Pending);
    assert_eq!(conclusion(Some("heeler")), CheckConclusion::Passing);
}

fn found(client: &GithubClient, target: DiscoveryTarget, limit: usize) -> Vec<(u64, String)> {
    let associations = Some(&["OWNER", "MEMBER", "COLLABORATOR"][..]);
    let query = DiscoveryQuery { target, own: "heeler-user", associations, limit };
    let items = client.discover(&repo(), &query).unwrap();
    items.into_iter().map(|it| (it.number, it.reason.unwrap_or_default())).collect()
}

#[test]
fn only_pull_requests_that_passed_their_checks_are_green() {
    let github = FakeGithub::start(TOKEN);
    let bot = json!({"login": "dependabot[bot]", "type": "Bot"});
    let check = |conclusion: &str| json!({"status": "completed", "conclusion": conclusion});
    for number in 1..=7 {
        github.add_pull_request("acme/app", number, json!({"user": bot}));
        github.set_checks("acme/app", &format!("sha-{number}"), &[check("success")]);
    }
    // GitHub would merge both: a repository without required checks is always clean.
    github.set_checks("acme/app", "sha-2", &[check("failure")]);
    github.set_checks("acme/app", "sha-3", &[]);
    github.add_pull_request("acme/app", 4, json!({"user": bot, "mergeable_state": "behind"}));
    github.add_pull_request("acme/app", 5, json!({"user": bot, "draft": true}));
    github.add_pull_request("acme/app", 6, json!({"user": {"login": "ann"}}));
    github.add_pull_request("acme/app", 7, json!({"title": "Bump a from 1 to 2"}));
    let client = client(&github);
    let green = found(&client, DiscoveryTarget::GreenDependencies, 25);
    assert_eq!(green.iter().map(|it| it.0).collect::<Vec<_>>(), [1, 7]);
    let red = found(&client, DiscoveryTarget::RedDependencies, 25);
    let expected = [(2, "checks-failing".to_owned()), (4, "behind".to_owned())];
    assert_eq!(red, expected);
    let open = found(&client, DiscoveryTarget::OpenPullRequests, 25);
    assert_eq!(open.iter().map(|it| it.0).collect::<Vec<_>>(), [6, 7], "those of people");
    assert_eq!(found(&client, DiscoveryTarget::GreenDependencies, 1).len(), 1);
}

#[test]
fn a_merge_that_github_still_computes_is_asked_for_again() {
    let github = FakeGithub::start(TOKEN);
    let bot = json!({"login": "renovate[bot]", "type": "Bot"});
    let fields = json!({"user": bot, "mergeable_state": "unknown"});
    github.add_pull_request("acme/app", 1, fields);
    let check = json!({"status": "completed", "conclusion": "success"});
    github.set_checks("acme/app", "sha-1", &[check]);
    let client = client(&github);
    assert_eq!(found(&client, DiscoveryTarget::GreenDependencies, 25), []);
    let asked = github.calls().iter().filter(|call| call.ends_with("/pulls/1")).count();
    assert_eq!(asked, 4);
}

#[test]
fn an_issue_is_stale_if_nothing_has_changed_for_long() {
    let github = FakeGithub::start(TOKEN);
    github.add_issue("acme/app", 1, json!({"updated_at": "2026-11-10T00:00:00Z"}));
    github.add_issue("acme/app", 2, json!({"updated_at": "2026-09-01T00:00:00Z"}));
    github.add_issue("acme/app", 3, json!({"updated_at": "2026-08-01T00:00:00Z"}));
    let age = jiff::SignedDuration::from_hours(30 * 24);
    let stale = found(&client(&github), DiscoveryTarget::StaleIssues { age }, 25);
    assert_eq!(stale.iter().map(|it| it.0).collect::<Vec<_>>(), [3, 2]);
}

#[test]
fn a_stranger_cannot_have_a_pull_request_taken_for_one_of_the_fleet() {
    let github = FakeGithub::start(TOKEN);
    let check = json!({"status": "completed", "conclusion": "success"});
    for (number, association) in [(1, "NONE"), (2, "CONTRIBUTOR"), (3, "MEMBER")] {
        let title = "Bump left-pad from 1.0 to 1.1";
        let fields = json!({"title": title, "author_association": association});
        github.add_pull_request("acme/app", number, fields);
        github.set_checks("acme/app", &format!("sha-{number}"), std::slice::from_ref(&check));
    }
    let client = client(&github);
    let numbers =
        |target| found(&client, target, 25).into_iter().map(|it| it.0).collect::<Vec<_>>();
    assert_eq!(numbers(DiscoveryTarget::GreenDependencies), [3], "a title proves nothing");
    assert_eq!(numbers(DiscoveryTarget::OpenPullRequests), [3]);
    let query = DiscoveryQuery {
        target: DiscoveryTarget::OpenPullRequests,
        own: "heeler-user",
        associations: None,
        limit: 2,
    };
    let all = client.discover(&repo(), &query).unwrap();
    assert_eq!(all.iter().map(|it| it.number).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn the_rate_limit_is_read() {
    let github = FakeGithub::start(TOKEN);
    let limit = client(&github).rate_limit().unwrap();
    assert_eq!((limit.remaining, limit.limit), (4_990, 5_000));
}
