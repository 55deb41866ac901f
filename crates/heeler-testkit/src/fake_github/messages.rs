//! Messages of people on issues and pull requests of the fake GitHub: comments, comments on lines, and the
//! lists of what changed since a time.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value as Json, json};

use super::{FakeGithub, GithubAnswer, GithubState, page, query};
use crate::messages_api::ApiRequest;

/// A person: ID, login and relation to the repository.
pub(super) type GithubPerson<'p> = (u64, &'p str, &'p str);

impl FakeGithub {
    /// Lets a person open an issue now.
    pub fn open_issue(&self, repo: &str, number: u64, by: GithubPerson<'_>, text: (&str, &str)) {
        let mut fields = json!({"title": text.0, "body": text.1});
        set_origin(&mut fields, &(repo.to_owned(), number), by);
        self.add_issue(repo, number, fields);
    }

    /// Lets a person comment now; returns the ID of the comment.
    pub fn write_comment(&self, repo: &str, number: u64, by: GithubPerson<'_>, body: &str) -> u64 {
        let mut state = self.shared.lock();
        // Under the lock, so that a list that has a later comment has this one too.
        state.add_comment((repo.to_owned(), number), by, (body, &now()))
    }

    /// Lets a person comment at a time; returns the ID of the comment.
    pub fn write_comment_at(
        &self,
        repo: &str,
        number: u64,
        by: GithubPerson<'_>,
        (body, at): (&str, &str),
    ) -> u64 {
        self.shared.lock().add_comment((repo.to_owned(), number), by, (body, at))
    }

    /// Lets a person comment on a line of a pull request now; returns the ID of the comment.
    pub fn write_line_comment(
        &self,
        repo: &str,
        number: u64,
        by: GithubPerson<'_>,
        (body, path, line): (&str, &str, u64),
    ) -> u64 {
        let mut state = self.shared.lock();
        state.last_id += 1;
        let id = state.last_id;
        let key = (repo.to_owned(), number);
        let mut comment = json!({"id": id, "body": body, "path": path, "line": line});
        set_origin(&mut comment, &key, by);
        state.line_comments.entry(key).or_default().push(comment);
        id
    }

    /// Deletes the comments of an issue or pull request.
    pub fn delete_comments(&self, repo: &str, number: u64) {
        self.shared.lock().comments.remove(&(repo.to_owned(), number));
    }

    /// Returns the comments on lines of a pull request.
    pub fn line_comments(&self, repo: &str, number: u64) -> Vec<Json> {
        let key = (repo.to_owned(), number);
        self.shared.lock().line_comments.get(&key).cloned().unwrap_or_default()
    }
}

impl GithubState {
    fn add_comment(
        &mut self,
        key: (String, u64),
        by: GithubPerson<'_>,
        (body, at): (&str, &str),
    ) -> u64 {
        self.last_id += 1;
        let mut comment = json!({"id": self.last_id, "body": body});
        set_origin(&mut comment, &key, by);
        (comment["created_at"], comment["updated_at"]) = (json!(at), json!(at));
        self.comments.entry(key).or_default().push(comment);
        self.last_id
    }

    /// Answers a call about messages; `None` if the call is another one.
    pub(super) fn message_answer(
        &mut self,
        repo: &str,
        request: &ApiRequest,
        rest: &[&str],
    ) -> Option<GithubAnswer> {
        let numbered = |text: &str| (repo.to_owned(), text.parse::<u64>().unwrap_or(0));
        let mut since = query(request, "since").and_then(|text| text.parse::<Timestamp>().ok());
        let mut listed: Vec<&Json> = match (request.method.as_str(), rest) {
            ("GET", ["issues"]) => {
                query(request, "since")?;
                let of_repo = self.issues.iter().filter(|((of, _), _)| of == repo);
                of_repo.map(|(_, issue)| issue).collect()
            }
            ("GET", ["issues", "comments"]) => all_of_repo(&self.comments, repo),
            ("GET", ["pulls", "comments"]) => all_of_repo(&self.line_comments, repo),
            ("GET", ["issues", number, "comments"]) => {
                // Tests of single issues have clocks of their own.
                since = None;
                self.comments.get(&numbered(number)).into_iter().flatten().collect()
            }
            ("GET", ["pulls", number, "comments"]) => {
                self.line_comments.get(&numbered(number)).into_iter().flatten().collect()
            }
            ("POST", ["pulls", number, "comments", to, "replies"]) => {
                let body = json!({
                    "body": request.body["body"],
                    "in_reply_to_id": to.parse::<u64>().ok(),
                    "path": "src/lib.rs",
                });
                return Some(self.create(numbered(number), body, |state| &mut state.line_comments));
            }
            _ => return None,
        };
        let updated = |it: &&Json| it["updated_at"].as_str()?.parse::<Timestamp>().ok();
        listed.retain(|it| since.is_none_or(|since| updated(it).is_some_and(|at| at >= since)));
        // A storm has many messages, so their times are read once.
        listed.sort_by_cached_key(updated);
        Some(page(request, listed))
    }
}

fn all_of_repo<'a>(all: &'a BTreeMap<(String, u64), Vec<Json>>, repo: &str) -> Vec<&'a Json> {
    all.iter().filter(|((of, _), _)| of == repo).flat_map(|(_, list)| list).collect()
}

/// Sets author, time and addresses of a message, unless it has them.
pub(super) fn set_origin(message: &mut Json, key: &(String, u64), by: GithubPerson<'_>) {
    let (repo, number) = key;
    let (id, login, association) = by;
    let at = now();
    for (name, value) in [
        ("user", json!({"id": id, "login": login, "type": "User"})),
        ("author_association", json!(association)),
        ("created_at", json!(at)),
        ("updated_at", json!(at)),
        ("issue_url", json!(format!("https://api.github.com/repos/{repo}/issues/{number}"))),
        ("pull_request_url", json!(format!("https://api.github.com/repos/{repo}/pulls/{number}"))),
    ] {
        if message.get(name).is_none() {
            message[name] = value;
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a server of its own has a clock of its own")]
fn now() -> String {
    Timestamp::now().to_string()
}
