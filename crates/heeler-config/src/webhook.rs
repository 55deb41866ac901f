//! Webhooks: selection of the requests that create a job, and of the payload that the agent sees.
//!
//! A payload is untrusted data. Fields are selected by the config and passed between markers; no
//! part of a payload is ever used as a template. Start at [`WebhookRules`].

use std::fmt;
use std::str::FromStr;

use indexmap::IndexMap;
use serde_json::{Map, Value as Json};

use crate::github_event::{AuthorAssociation, EVENT_INPUTS, GithubEvent, TRUSTED_ASSOCIATIONS};
use crate::{GlobList, VarName};

/// Longest field passed to an agent, in bytes. The rest is cut, and its length is reported.
pub const FIELD_BYTES_MAX: usize = 16 << 10;

/// Most fields that a schedule may name.
pub const FIELDS_MAX: usize = 50;

/// Deepest field that can be addressed.
const FIELD_DEPTH_MAX: usize = 16;

/// Rules of a schedule of type `webhook`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WebhookRules {
    /// Environment variable with the signature secret. Defaults to the fleet's.
    pub secret_env: Option<VarName>,
    /// Events that create a job. Empty accepts any request.
    pub events: Vec<WebhookEventName>,
    /// For events with a branch: accepts only these branches.
    pub branches: Option<GlobList>,
    /// For pushes: accepts only those that touch one of these files.
    pub paths: Option<GlobList>,
    /// For events about an object with labels: accepts only those with one of these labels.
    pub labels: Vec<String>,
    /// Accepts only events of these users.
    pub authors: Vec<String>,
    /// Accepts only events whose author has one of these relations to the repository; `None` stands
    /// for [`TRUSTED_ASSOCIATIONS`].
    pub associations: Option<Vec<AuthorAssociation>>,
    /// Accepts only events whose text mentions this account.
    pub mention: Option<String>,
    /// The word after the mention chooses the workflow.
    pub intents: bool,
    /// Account under which the fleet acts. Its own events start nothing.
    pub own_login: Option<String>,
    /// Also accepts events of bots.
    pub bots: bool,
    /// Fields passed to the agent, by name.
    pub fields: IndexMap<String, PayloadFieldPath>,
}

/// Event name, optionally with an action: `issues.opened`, `push`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookEventName {
    event: String,
    action: Option<String>,
}

/// Error for an invalid event name or field path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookNameError(&'static str);

impl fmt::Display for WebhookNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl FromStr for WebhookEventName {
    type Err = WebhookNameError;

    fn from_str(text: &str) -> Result<WebhookEventName, WebhookNameError> {
        let is_word = |word: &str| {
            // The words become parts of messages and records, so their length is limited.
            !word.is_empty()
                && word.len() <= 64
                && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        };
        let (event, action) = match text.split_once('.') {
            None => (text, None),
            Some((event, action)) => (event, Some(action)),
        };
        // GitHub's own events and actions have this form.
        if !is_word(event) || !action.is_none_or(is_word) {
            return Err(WebhookNameError(
                "an event is lower-case words, with its action after a dot",
            ));
        }
        Ok(WebhookEventName { event: event.to_owned(), action: action.map(str::to_owned) })
    }
}

impl fmt::Display for WebhookEventName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.event)?;
        self.action.iter().try_for_each(|action| write!(f, ".{action}"))
    }
}

impl WebhookEventName {
    fn matches_event(&self, event: &str, action: Option<&str>) -> bool {
        // An event without an action stands for all of its actions.
        self.event == event && self.action.as_deref().is_none_or(|wanted| Some(wanted) == action)
    }
}

/// Path of a field: keys and list indexes, separated by dots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PayloadFieldPath(String);

impl FromStr for PayloadFieldPath {
    type Err = WebhookNameError;

    fn from_str(text: &str) -> Result<PayloadFieldPath, WebhookNameError> {
        let steps: Vec<&str> = text.split('.').collect();
        if steps.iter().any(|step| step.is_empty()) {
            return Err(WebhookNameError("it has an empty step"));
        }
        if steps.len() > FIELD_DEPTH_MAX {
            return Err(WebhookNameError("it has more than 16 steps"));
        }
        Ok(PayloadFieldPath(text.to_owned()))
    }
}

impl fmt::Display for PayloadFieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl PayloadFieldPath {
    fn find<'j>(&self, json: &'j Json) -> Option<&'j Json> {
        self.0.split('.').try_fold(json, |at, step| match at {
            Json::Array(items) => items.get(step.parse::<usize>().ok()?),
            at => at.get(step),
        })
    }
}

/// Content of a webhook request.
#[derive(Debug, Clone, Copy)]
pub struct WebhookPayload<'s> {
    /// Event name, if the request has one, as GitHub's do.
    pub event: Option<&'s str>,
    pub text: &'s str,
    /// Parsed body, if it is JSON.
    pub json: Option<&'s Json>,
}

/// Input of a workflow that holds the body of a request without fields.
pub const PAYLOAD_INPUT: &str = "payload";

/// GitHub's event for testing a webhook.
pub const PING_EVENT: &str = "ping";

/// Fields of a GitHub event that are passed by default, where present.
const GITHUB_FIELDS: [(&str, &str); 24] = [
    ("action", "action"),
    ("repository", "repository.full_name"),
    ("sender", "sender.login"),
    ("number", "number"),
    ("ref", "ref"),
    ("before", "before"),
    ("after", "after"),
    ("compare", "compare"),
    ("head_commit_message", "head_commit.message"),
    ("issue_number", "issue.number"),
    ("issue_title", "issue.title"),
    ("issue_body", "issue.body"),
    ("issue_url", "issue.html_url"),
    ("pull_request_number", "pull_request.number"),
    ("pull_request_title", "pull_request.title"),
    ("pull_request_body", "pull_request.body"),
    ("pull_request_url", "pull_request.html_url"),
    ("pull_request_base", "pull_request.base.ref"),
    ("pull_request_head", "pull_request.head.ref"),
    ("pull_request_head_sha", "pull_request.head.sha"),
    ("comment_body", "comment.body"),
    ("comment_url", "comment.html_url"),
    ("label", "label.name"),
    ("release_tag", "release.tag_name"),
];

impl WebhookRules {
    /// Returns `Ok` if the request creates a job, or the reason why not.
    pub fn check_payload(&self, sent: &WebhookPayload<'_>) -> Result<(), String> {
        // GitHub sends it when the webhook is created.
        if sent.event == Some(PING_EVENT) {
            return Err("a ping starts nothing".to_owned());
        }
        // A plain request has no event, so there is nothing to filter by.
        if self.events.is_empty() && sent.event.is_none() {
            return Ok(());
        }
        let empty = Json::Null;
        let json = sent.json.unwrap_or(&empty);
        let action = json["action"].as_str();
        let event = sent.event.unwrap_or_default();
        if !self.events.is_empty()
            && !self.events.iter().any(|wanted| wanted.matches_event(event, action))
        {
            return Err("its event is not among `events`".to_owned());
        }
        self.check_person(&GithubEvent { name: event, json })?;
        // An agent's own actions would otherwise start it again.
        if !self.bots && json["sender"]["type"] == "Bot" {
            return Err("its sender is a bot, and `bots` is not set".to_owned());
        }
        let author = json["sender"]["login"].as_str().unwrap_or_default();
        // Login names ignore case on GitHub.
        if !self.authors.is_empty() && !contains_ignore_case(&self.authors, author) {
            return Err("its sender is not among `authors`".to_owned());
        }
        // Events about neither have no labels, and the filter does not apply.
        let about = [&json["issue"], &json["pull_request"]];
        let about = about.into_iter().find(|about| about.is_object());
        if let Some(about) = about.filter(|_| !self.labels.is_empty()) {
            let labels = about["labels"].as_array().into_iter().flatten();
            let mut names = labels.filter_map(|label| label["name"].as_str());
            if !names.any(|name| contains_ignore_case(&self.labels, name)) {
                return Err("none of its labels is among `labels`".to_owned());
            }
        }
        // An event without a branch passes: the filter is about those that have one.
        if let Some((branches, branch)) = self.branches.as_ref().zip(event_branch(event, json))
            && !branches.is_match(branch.into())
        {
            return Err("its branch is not among `branches`".to_owned());
        }
        // Only a push lists its files.
        match self.paths.as_ref().filter(|_| event == "push") {
            Some(paths) if !pushed_files(json).any(|file| paths.is_match(file.into())) => {
                Err("it touches none of `paths`".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Returns `Ok` if the person behind an event may start something, or the reason why not.
    fn check_person(&self, event: &GithubEvent<'_>) -> Result<(), String> {
        if self.own_login.as_deref().is_some_and(|login| event.is_by(login)) {
            return Err("its sender is the fleet's own account (`github.bot`)".to_owned());
        }
        event.check_author(self.associations.as_deref().unwrap_or(&TRUSTED_ASSOCIATIONS))?;
        match &self.mention {
            Some(login) if !event.mentions(login) => Err(format!("it does not mention @{login}")),
            _ => Ok(()),
        }
    }

    /// Returns the inputs of a workflow: the named fields, those of a GitHub event, or the whole
    /// body as `payload`.
    pub fn workflow_inputs(&self, sent: &WebhookPayload<'_>) -> Map<String, Json> {
        if !self.fields.is_empty() {
            let json = sent.json.unwrap_or(&Json::Null);
            let found = |path: &PayloadFieldPath| path.find(json).map(truncate_field);
            let fields = self.fields.iter();
            return fields.map(|(name, path)| (name.clone(), found(path).into())).collect();
        }
        match (sent.event, sent.json) {
            (Some(name), Some(json)) => GithubEvent { name, json }.inputs(),
            _ => Map::from_iter([(PAYLOAD_INPUT.to_owned(), Json::from(sent.text))]),
        }
    }

    /// Returns the names of the inputs that a request may give to a workflow.
    pub(crate) fn input_names(&self) -> Vec<&str> {
        match (self.fields.is_empty(), self.events.is_empty()) {
            (false, _) => self.fields.keys().map(String::as_str).collect(),
            (true, false) => EVENT_INPUTS.to_vec(),
            (true, true) => EVENT_INPUTS.into_iter().chain([PAYLOAD_INPUT]).collect(),
        }
    }

    /// Returns the text for the agent: the named fields, or the whole body.
    pub fn render_payload(&self, sent: &WebhookPayload<'_>) -> String {
        // A payload that is not JSON has no fields.
        let Some(json) = sent.json else { return sent.text.to_owned() };
        let mut told = Map::new();
        if let Some(event) = sent.event {
            told.insert("event".to_owned(), Json::from(event));
        }
        if !self.fields.is_empty() {
            // A missing field is shown as null, so that the agent sees a stable form.
            for (name, path) in &self.fields {
                told.insert(name.clone(), truncate_field(path.find(json).unwrap_or(&Json::Null)));
            }
        } else if sent.event.is_some() {
            // The whole payload of GitHub is large, and mostly links.
            for (name, path) in GITHUB_FIELDS {
                let found = PayloadFieldPath(path.to_owned());
                if let Some(value) = found.find(json).filter(|value| !value.is_null()) {
                    told.insert(name.to_owned(), truncate_field(value));
                }
            }
        } else {
            // The sender's own form is kept, since nothing selects parts of it.
            return sent.text.to_owned();
        }
        serde_json::to_string_pretty(&told).expect("fields are JSON")
    }
}

fn contains_ignore_case(names: &[String], name: &str) -> bool {
    names.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// Returns the branch that an event concerns.
fn event_branch<'j>(event: &str, json: &'j Json) -> Option<&'j str> {
    match event {
        "push" => {
            let name = json["ref"].as_str()?;
            // A tag is not a branch. `refs` replaces its name, so that no name of a branch matches.
            Some(name.strip_prefix("refs/heads/").unwrap_or("refs"))
        }
        // The name of a branch or tag, without the prefix.
        "create" | "delete" => json["ref"].as_str(),
        _ => {
            let places =
                ["pull_request.base.ref", "workflow_run.head_branch", "check_suite.head_branch"];
            places.iter().find_map(|path| PayloadFieldPath((*path).to_owned()).find(json)?.as_str())
        }
    }
}

/// Returns the files that a push touches.
fn pushed_files(json: &Json) -> impl Iterator<Item = &str> {
    let commits = json["commits"].as_array().into_iter().flatten();
    commits
        .flat_map(|commit| ["added", "modified", "removed"].map(|how| &commit[how]))
        .filter_map(Json::as_array)
        .flatten()
        .filter_map(Json::as_str)
}

/// Truncates a value to the longest field.
pub(crate) fn truncate_field(value: &Json) -> Json {
    let text = match value {
        Json::String(text) => text.clone(),
        value => value.to_string(),
    };
    // Compared as text, so that a nested value cannot be larger than a string.
    if text.len() <= FIELD_BYTES_MAX {
        return value.clone();
    }
    let kept = &text[..text.floor_char_boundary(FIELD_BYTES_MAX)];
    let left = text[kept.len()..].chars().count();
    Json::String(format!("{kept}…[truncated {left} chars]"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rules(events: &[&str]) -> WebhookRules {
        let events = events.iter().map(|event| event.parse().unwrap()).collect();
        // The rights of authors have tests of their own.
        let associations = Some(vec![AuthorAssociation::Any]);
        WebhookRules { events, associations, ..WebhookRules::default() }
    }

    #[track_caller]
    fn check(rules: &WebhookRules, event: &str, json: &Json, expected: Result<(), &str>) {
        let sent = WebhookPayload { event: Some(event), text: "", json: Some(json) };
        let found = rules.check_payload(&sent);
        match expected {
            Ok(()) => assert_eq!(found, Ok(())),
            Err(part) => assert!(found.as_ref().is_err_and(|why| why.contains(part)), "{found:?}"),
        }
    }

    #[test]
    fn events_and_actions_are_told_apart() {
        let wanted = rules(&["issues.opened", "push"]);
        check(&wanted, "issues", &json!({"action": "opened"}), Ok(()));
        check(&wanted, "issues", &json!({"action": "closed"}), Err("`events`"));
        check(&wanted, "issues", &json!({}), Err("`events`"));
        check(&wanted, "push", &json!({}), Ok(()));
        check(&wanted, "ping", &json!({}), Err("ping"));
        check(&rules(&[]), "ping", &json!({}), Err("ping"));
        check(&rules(&[]), "anything", &json!({}), Ok(()));
        let unnamed = WebhookPayload { event: None, text: "x", json: None };
        assert_eq!(rules(&[]).check_payload(&unnamed), Ok(()));
        assert!(wanted.check_payload(&unnamed).is_err());
    }

    #[test]
    fn who_did_it_and_what_it_is_about_counts() {
        let bot = json!({"sender": {"login": "x[bot]", "type": "Bot"}});
        check(&rules(&["push"]), "push", &bot, Err("`bots`"));
        check(&WebhookRules { bots: true, ..rules(&["push"]) }, "push", &bot, Ok(()));
        let authors = WebhookRules { authors: vec!["Ann".to_owned()], ..rules(&["push"]) };
        check(&authors, "push", &json!({"sender": {"login": "ann"}}), Ok(()));
        check(&authors, "push", &json!({"sender": {"login": "bob"}}), Err("`authors`"));
        check(&authors, "push", &json!({}), Err("`authors`"));
        let labels = WebhookRules { labels: vec!["bug".to_owned()], ..rules(&["issues", "push"]) };
        let issue = |label: &str| json!({"issue": {"labels": [{"name": "x"}, {"name": label}]}});
        check(&labels, "issues", &issue("Bug"), Ok(()));
        check(&labels, "issues", &issue("feature"), Err("`labels`"));
        check(&labels, "push", &json!({}), Ok(()));
    }

    #[test]
    fn branches_and_paths_count_where_there_are_some() {
        let branches = Some(GlobList::from_names(["main"]));
        let on_main = WebhookRules { branches, ..rules(&["push", "pull_request", "issues"]) };
        check(&on_main, "push", &json!({"ref": "refs/heads/main"}), Ok(()));
        check(&on_main, "push", &json!({"ref": "refs/heads/other"}), Err("`branches`"));
        check(&on_main, "push", &json!({"ref": "refs/tags/main"}), Err("`branches`"));
        let base = |name: &str| json!({"pull_request": {"base": {"ref": name}}});
        check(&on_main, "pull_request", &base("main"), Ok(()));
        check(&on_main, "pull_request", &base("dev"), Err("`branches`"));
        check(&on_main, "issues", &json!({}), Ok(()));
        let paths = Some(GlobList::from_extensions(&["rs"]));
        let sources = WebhookRules { paths, ..rules(&["push"]) };
        let push = |file: &str| json!({"commits": [{"added": []}, {"modified": ["a.md", file]}]});
        check(&sources, "push", &push("src/a.rs"), Ok(()));
        check(&sources, "push", &push("src/a.c"), Err("`paths`"));
    }

    #[test]
    fn an_agent_is_told_the_fields_that_are_named_and_no_more() {
        let payload = json!({"issue": {"title": "{{ secret }}", "labels": [{"name": "bug"}]}});
        let text = payload.to_string();
        let sent = WebhookPayload { event: None, text: &text, json: Some(&payload) };
        assert_eq!(rules(&[]).render_payload(&sent), text);
        let fields = [("what", "issue.title"), ("label", "issue.labels.0.name"), ("none", "a.b")];
        let fields = fields.map(|(name, path)| (name.to_owned(), path.parse().unwrap()));
        let named = WebhookRules { fields: IndexMap::from(fields), ..rules(&[]) };
        let told: Json = serde_json::from_str(&named.render_payload(&sent)).unwrap();
        assert_eq!(told, json!({"what": "{{ secret }}", "label": "bug", "none": null}));
        let github = WebhookPayload { event: Some("issues"), ..sent };
        let told: Json = serde_json::from_str(&rules(&[]).render_payload(&github)).unwrap();
        assert_eq!(told, json!({"event": "issues", "issue_title": "{{ secret }}"}));
    }

    #[test]
    fn a_field_that_is_too_long_is_cut_at_a_character() {
        let payload = json!({"a": "ü".repeat(FIELD_BYTES_MAX)});
        let fields = IndexMap::from([("a".to_owned(), "a".parse().unwrap())]);
        let named = WebhookRules { fields, ..rules(&[]) };
        let told =
            named.render_payload(&WebhookPayload { event: None, text: "", json: Some(&payload) });
        let told: Json = serde_json::from_str(&told).unwrap();
        let end = format!("ü…[truncated {} chars]", FIELD_BYTES_MAX / 2);
        assert!(told["a"].as_str().unwrap().ends_with(&end));
    }

    #[test]
    fn what_names_no_event_or_field_is_refused() {
        for text in ["", "Issues", "issues.", ".opened", "a b", "a.b.c"] {
            assert!(text.parse::<WebhookEventName>().is_err(), "{text}");
        }
        for text in ["", "a.", ".a", "a..b"] {
            assert!(text.parse::<PayloadFieldPath>().is_err(), "{text}");
        }
        assert_eq!(
            "issues.opened".parse::<WebhookEventName>().unwrap().to_string(),
            "issues.opened"
        );
    }
}
