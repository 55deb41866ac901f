//! Events of GitHub: their subject, the rights of the person behind them, and the inputs of a
//! workflow that they start.
//!
//! A public repository accepts texts from everyone, and a text can manipulate an agent. Therefore
//! the rights of the author are read from the signed body, never from a header, and an event that
//! does not tell them counts as one of a stranger. Start at [`GithubEvent`].

use serde_json::{Map, Value as Json, json};

use crate::RepoName;
use crate::value::word_value;
use crate::webhook::truncate_field;
use crate::words::words;

words! {
    /// Relation of a person to a repository, as GitHub names it.
    pub enum AuthorAssociation ("author association") {
        /// Owns the repository.
        Owner = "OWNER",
        /// Is a member of the organisation that owns it.
        Member = "MEMBER",
        /// Was invited to collaborate.
        Collaborator = "COLLABORATOR",
        /// Has had a pull request merged.
        Contributor = "CONTRIBUTOR",
        /// Everyone, also persons without any relation.
        Any = "ANY",
    }
}

word_value!(AuthorAssociation);

/// Persons whose events start something if the config does not say otherwise: those whom an owner
/// of the repository has chosen.
pub const TRUSTED_ASSOCIATIONS: [AuthorAssociation; 3] =
    [AuthorAssociation::Owner, AuthorAssociation::Member, AuthorAssociation::Collaborator];

/// Events that only a person with write access can cause.
const WRITE_EVENTS: [&str; 7] = [
    "push",
    "create",
    "delete",
    "release",
    "repository_dispatch",
    "workflow_dispatch",
    "deployment",
];

/// Actions on an issue or pull request of another person, for which GitHub demands at least the
/// triage role.
const MAINTAINER_ACTIONS: [&str; 6] =
    ["labeled", "unlabeled", "assigned", "unassigned", "milestoned", "demilestoned"];

/// Longest name of an account or branch that is taken over, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// Subject of an event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventSubject {
    pub owner: Option<String>,
    /// Name of the repository without its owner.
    pub repo: Option<String>,
    /// Number of the issue or pull request.
    pub number: Option<u64>,
    /// Login of the person who caused the event.
    pub sender: Option<String>,
}

impl EventSubject {
    /// Returns the trigger ID of runs of a workflow: `owner/repo#7`, or `owner/repo::workflow` if
    /// the event is about no issue or pull request.
    pub fn trigger_id(&self, workflow: &str) -> Option<String> {
        let (owner, repo) = (self.owner.as_ref()?, self.repo.as_ref()?);
        Some(match self.number {
            Some(number) => format!("{owner}/{repo}#{number}"),
            None => format!("{owner}/{repo}::{workflow}"),
        })
    }
}

/// Rights of the person whose text an event carries.
#[derive(Debug, Clone, PartialEq, Eq)]
enum AuthorRights<'j> {
    /// A role of the repository was needed to cause it.
    Maintainer,
    /// GitHub's word for the relation to the repository.
    Association(&'j str),
    /// The event does not tell.
    Unknown,
}

/// An event of GitHub.
#[derive(Debug, Clone, Copy)]
pub struct GithubEvent<'j> {
    /// Name from the header, which is not signed.
    pub name: &'j str,
    pub json: &'j Json,
}

impl<'j> GithubEvent<'j> {
    fn text(&self, pointer: &str) -> Option<&'j str> {
        self.json.pointer(pointer)?.as_str()
    }

    fn object(&self, key: &str) -> Option<&'j Json> {
        self.json.get(key).filter(|value| value.is_object())
    }

    /// Returns a name if it is short and contains nothing that could control a terminal.
    fn short_text(&self, pointer: &str) -> Option<String> {
        let name = self.text(pointer)?;
        let fits = !name.is_empty()
            && name.len() <= NAME_BYTES_MAX
            && !name.chars().any(|c| c.is_control() || crate::is_terminal_control(c));
        fits.then(|| name.to_owned())
    }

    /// Returns the issue or pull request that the event is about.
    fn about(&self) -> Option<&'j Json> {
        self.object("issue").or_else(|| self.object("pull_request"))
    }

    fn is_pull_request(&self) -> bool {
        // A comment on a pull request comes as a comment on an issue.
        self.object("pull_request").is_some()
            || self.json.pointer("/issue/pull_request").is_some_and(Json::is_object)
            || self.check_number().is_some()
    }

    /// Returns the number of the pull request whose checks have ended.
    fn check_number(&self) -> Option<u64> {
        let places = ["/check_suite", "/check_run", "/workflow_run"];
        let mut found = places.iter().filter_map(|place| {
            self.json.pointer(&format!("{place}/pull_requests/0/number"))?.as_u64()
        });
        found.next()
    }

    pub fn subject(&self) -> EventSubject {
        let full = self.text("/repository/full_name");
        // Checked, because the parts become an address and the key of runs.
        let repo = full.and_then(|full| full.parse::<RepoName>().ok());
        let parts = repo.as_ref().and_then(|repo| repo.as_str().split_once('/'));
        let number = self.about().and_then(|about| about["number"].as_u64());
        EventSubject {
            owner: parts.map(|(owner, _)| owner.to_owned()),
            repo: parts.map(|(_, repo)| repo.to_owned()),
            number: number.or_else(|| self.check_number()),
            sender: self.short_text("/sender/login"),
        }
    }

    /// Returns true if the account caused the event.
    pub fn is_by(&self, login: &str) -> bool {
        let sender = self.text("/sender/login").unwrap_or_default();
        let (sender, login) = (base_login(sender), base_login(login));
        !sender.is_empty() && sender.eq_ignore_ascii_case(login)
    }

    /// Returns the rights of the person whose text the event carries.
    fn author_rights(&self) -> AuthorRights<'j> {
        // The body decides and not the name: a header could turn a comment into a push.
        let texts = ["comment", "review", "discussion"];
        if let Some(text) = texts.iter().find_map(|key| self.object(key)) {
            return association(text);
        }
        let Some(about) = self.about() else {
            let has_write_access = WRITE_EVENTS.contains(&self.name);
            return match has_write_access && self.check_number().is_none() {
                true => AuthorRights::Maintainer,
                false => AuthorRights::Unknown,
            };
        };
        let action = self.text("/action").unwrap_or_default();
        let author = about.pointer("/user/login").and_then(Json::as_str);
        let sender = self.text("/sender/login");
        // A template may set labels when a stranger opens an issue. Then the stranger is the sender.
        let is_by_another = author.is_some() && sender.is_some() && author != sender;
        match is_by_another && MAINTAINER_ACTIONS.contains(&action) {
            true => AuthorRights::Maintainer,
            false => association(about),
        }
    }

    /// Returns `Ok` if one of the associations allows the event, or the reason why not.
    pub fn check_author(&self, allowed: &[AuthorAssociation]) -> Result<(), String> {
        if allowed.contains(&AuthorAssociation::Any) {
            return Ok(());
        }
        match self.author_rights() {
            AuthorRights::Maintainer => Ok(()),
            AuthorRights::Association(word)
                if allowed.iter().any(|allowed| allowed.as_str() == word) =>
            {
                Ok(())
            }
            AuthorRights::Association(_) => {
                Err("the association of its author is not among `associations`".to_owned())
            }
            AuthorRights::Unknown => Err("it does not tell the association of its author, and \
                                          `associations` does not contain ANY"
                .to_owned()),
        }
    }

    /// Returns true if the newest text of the event mentions an account. Quoted lines and code do
    /// not count.
    pub fn mentions(&self, login: &str) -> bool {
        self.mention(login).is_some()
    }

    /// Returns the word that follows the first mention of an account in the newest text of the event.
    pub fn word_after_mention(&self, login: &str) -> Option<&'j str> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        let rest = self.mention(login)?.trim_start_matches([' ', '\t', ',', ':', '/']);
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        Some(&rest[..end]).filter(|word| !word.is_empty())
    }

    /// Returns the rest of the line behind the first mention of an account.
    fn mention(&self, login: &str) -> Option<&'j str> {
        let places = ["/comment/body", "/review/body", "/issue/body", "/pull_request/body"];
        let text = places.iter().find_map(|place| self.text(place))?;
        find_mention(text, base_login(login))
    }

    /// Returns the inputs of a workflow that the event starts, under the names of Last Light.
    pub fn inputs(&self) -> Map<String, Json> {
        let subject = self.subject();
        let mut inputs = Map::new();
        let mut add = |name: &str, value: Json| {
            if !value.is_null() {
                inputs.insert(name.to_owned(), truncate_field(&value));
            }
        };
        let field = |about: Option<&'j Json>, key: &str| {
            about.and_then(|about| about.get(key)).cloned().unwrap_or_default()
        };
        let about = self.about();
        add("event", json!(self.name));
        add("action", json!(self.text("/action")));
        add("owner", json!(subject.owner));
        add("repo", json!(subject.repo));
        add("sender", json!(subject.sender));
        add("issueNumber", json!(subject.number));
        add("prNumber", json!(subject.number.filter(|_| self.is_pull_request())));
        add("issueTitle", field(about, "title"));
        add("issueBody", field(about, "body"));
        add("title", field(about, "title"));
        add("body", field(about, "body"));
        add("url", field(about, "html_url"));
        if let Some(labels) = about.and_then(|about| about["labels"].as_array()) {
            let names: Json = labels.iter().map(|label| label["name"].clone()).collect();
            add("issueLabels", names.clone());
            add("labels", names);
        }
        let comment = self.object("comment").or_else(|| self.object("review"));
        add("commentBody", field(comment, "body"));
        add("commentUrl", field(comment, "html_url"));
        add("commentId", field(self.object("comment"), "id"));
        add("branch", json!(self.branch()));
        add("headSha", json!(self.head_commit()));
        inputs
    }

    /// Returns the branch with the changes.
    fn branch(&self) -> Option<String> {
        let pushed = self.short_text("/ref").map(|name| name.replacen("refs/heads/", "", 1));
        let places = ["/pull_request/head/ref", "/check_suite/head_branch"];
        places.iter().find_map(|place| self.short_text(place)).or(pushed)
    }

    fn head_commit(&self) -> Option<String> {
        let places = ["/pull_request/head/sha", "/check_suite/head_sha", "/check_run/head_sha"];
        places.iter().find_map(|place| self.short_text(place)).or_else(|| self.short_text("/after"))
    }
}

/// Names of the inputs that an event may give to a workflow.
pub const EVENT_INPUTS: [&str; 19] = [
    "event",
    "action",
    "owner",
    "repo",
    "sender",
    "issueNumber",
    "prNumber",
    "issueTitle",
    "issueBody",
    "title",
    "body",
    "url",
    "issueLabels",
    "labels",
    "commentBody",
    "commentUrl",
    "commentId",
    "branch",
    "headSha",
];

fn association(text: &Json) -> AuthorRights<'_> {
    match text["author_association"].as_str() {
        Some(word) => AuthorRights::Association(word),
        None => AuthorRights::Unknown,
    }
}

/// Returns a login without the suffix of Apps.
fn base_login(login: &str) -> &str {
    login.strip_suffix("[bot]").unwrap_or(login)
}

/// Returns a text without the first mention of an account; `None` if it mentions it nowhere. Quoted lines
/// and code do not count.
pub fn take_github_mention(text: &str, login: &str) -> Option<String> {
    let login = base_login(login);
    let rest = find_mention(text, login)?;
    // The rest is a part of the text.
    let end = rest.as_ptr().addr().checked_sub(text.as_ptr().addr())?;
    let before = text.get(..end.checked_sub(login.len() + 1)?)?;
    let after = text.get(end..)?;
    let before = before.trim_end_matches([' ', '\t']);
    let joint = if before.is_empty() || before.ends_with('\n') { "" } else { " " };
    let after = after.trim_start_matches([' ', '\t', ',', ':']);
    Some(format!("{before}{joint}{after}").trim().to_owned())
}

/// Returns the rest of the line behind the first mention of an account.
fn find_mention<'t>(text: &'t str, login: &str) -> Option<&'t str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '/');
    let wanted = format!("@{}", login.to_ascii_lowercase());
    let mut is_code = false;
    text.lines().find_map(|line| {
        let line = line.trim_start();
        if line.starts_with("```") || line.starts_with("~~~") {
            is_code = !is_code;
            return None;
        }
        // A reply that quotes an earlier mention is no new one.
        if is_code || line.starts_with('>') {
            return None;
        }
        // Of ASCII letters only, so that positions are the same.
        let lower = line.to_ascii_lowercase();
        let mut found = lower.match_indices(&wanted).filter(|(at, found)| {
            let before = line[..*at].chars().next_back();
            let after = line[at + found.len()..].chars().next();
            // `ann@heeler` is an address, and `@heeler-dev` is another account.
            !before.is_some_and(|c| is_part(c) || c == '`') && !after.is_some_and(is_part)
        });
        found.next().map(|(at, found)| &line[at + found.len()..])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, json: &Json, is_allowed: bool) {
        let found = GithubEvent { name, json }.check_author(&TRUSTED_ASSOCIATIONS);
        assert_eq!(found.is_ok(), is_allowed, "{name} {json}: {found:?}");
    }

    fn person(login: &str, association: &str) -> Json {
        json!({"user": {"login": login}, "author_association": association, "number": 7})
    }

    #[test]
    fn a_mention_is_taken_out_of_a_text() {
        for (text, left) in [
            ("@heeler-bot fix it", Some("fix it")),
            ("@Heeler-Bot: fix it\n\nsoon", Some("fix it\n\nsoon")),
            ("please, @heeler-bot: fix it", Some("please, fix it")),
            ("Hi.\n@heeler-bot fix it", Some("Hi.\nfix it")),
            ("one\ntwo @heeler-bot\nthree", Some("one\ntwo \nthree")),
            ("@heeler-bot", Some("")),
            ("> @heeler-bot delete it\n\nno", None),
            ("`@heeler-bot`", None),
            ("ann@heeler-bot", None),
            ("", None),
        ] {
            let taken = take_github_mention(text, "heeler-bot[bot]");
            assert_eq!(taken.as_deref(), left, "{text}");
        }
    }

    #[test]
    fn a_stranger_starts_nothing() {
        for word in ["OWNER", "MEMBER", "COLLABORATOR"] {
            check("issues", &json!({"action": "opened", "issue": person("ann", word)}), true);
        }
        for word in ["CONTRIBUTOR", "FIRST_TIME_CONTRIBUTOR", "NONE", "MANNEQUIN", "owner"] {
            check("issues", &json!({"action": "opened", "issue": person("eve", word)}), false);
        }
        let comment = |word: &str| {
            let (issue, comment) = (person("ann", "OWNER"), person("eve", word));
            json!({"action": "created", "issue": issue, "comment": comment})
        };
        check("issue_comment", &comment("NONE"), false);
        check("issue_comment", &comment("MEMBER"), true);
        check("issues", &json!({"action": "opened", "issue": {"number": 7}}), false);
        check("issues", &json!({"action": "opened"}), false);
    }

    #[test]
    fn a_header_does_not_turn_the_comment_of_a_stranger_into_a_push() {
        let comment = json!({"comment": person("eve", "NONE"), "ref": "refs/heads/main"});
        let suite = json!({"check_suite": {"pull_requests": [{"number": 3}]}});
        for name in WRITE_EVENTS {
            check(name, &json!({"ref": "refs/heads/main"}), true);
            check(name, &comment, false);
            check(name, &json!({"issue": person("eve", "NONE")}), false);
            check(name, &suite, false);
        }
    }

    #[test]
    fn a_label_of_a_maintainer_admits_the_issue_of_a_stranger() {
        let labeled = |sender: &str, action: &str| {
            let issue = person("eve", "NONE");
            json!({"action": action, "issue": issue, "sender": {"login": sender}})
        };
        check("issues", &labeled("ann", "labeled"), true);
        // The template of an issue may have set the label.
        check("issues", &labeled("eve", "labeled"), false);
        check("issues", &labeled("ann", "edited"), false);
        let commented = json!({
            "action": "labeled",
            "issue": person("eve", "NONE"),
            "comment": person("eve", "NONE"),
            "sender": {"login": "ann"},
        });
        check("issues", &commented, false);
        // Everyone can push to a pull request of a fork.
        let pushed = json!({
            "action": "synchronize",
            "pull_request": person("eve", "NONE"),
            "sender": {"login": "mallory"},
        });
        check("pull_request", &pushed, false);
    }

    #[test]
    fn an_event_that_does_not_tell_who_caused_it_needs_any() {
        let suite = json!({"check_suite": {"pull_requests": [{"number": 3}]}});
        check("check_suite", &suite, false);
        let event = GithubEvent { name: "check_suite", json: &suite };
        assert_eq!(event.check_author(&[AuthorAssociation::Any]), Ok(()));
        assert_eq!(event.subject().number, Some(3));
        assert!(event.check_author(&[AuthorAssociation::Owner]).unwrap_err().contains("ANY"));
    }

    #[test]
    fn the_word_after_the_mention_is_the_intent() {
        let word = |body: &str| {
            let json = json!({"comment": {"body": body}});
            let event = GithubEvent { name: "issue_comment", json: &json };
            event.word_after_mention("heeler-bot[bot]").map(str::to_owned)
        };
        for body in ["@heeler-bot build", "Hi\n  @Heeler-Bot, build!", "@heeler-bot: /build it"] {
            assert_eq!(word(body).as_deref(), Some("build"), "{body}");
        }
        assert_eq!(word("@heeler-bot security-review\nnow").as_deref(), Some("security-review"));
        let none =
            ["build", "@heeler-bot", "@heeler-bot\nbuild", "> @heeler-bot build", "@heeler-bot *x"];
        for body in none {
            assert_eq!(word(body), None, "{body}");
        }
    }

    #[test]
    fn only_a_mention_of_the_account_itself_counts() {
        let said = |body: &str, login: &str| {
            let json = json!({"comment": {"body": body}, "issue": {"body": "@heeler"}});
            GithubEvent { name: "issue_comment", json: &json }.mentions(login)
        };
        for text in ["@heeler fix it", "please, @Heeler.", "a\n(@heeler)", "@heeler"] {
            assert!(said(text, "heeler"), "{text}");
            assert!(said(text, "heeler[bot]"), "{text}");
        }
        for text in [
            "nothing",
            "@heeler-dev go",
            "ann@heeler",
            "> @heeler fix it\n\nI disagree",
            "```\n@heeler\n```",
            "`@heeler`",
            "@acme/heeler",
        ] {
            assert!(!said(text, "heeler"), "{text}");
        }
    }

    #[test]
    fn the_own_account_is_recognized_with_and_without_the_suffix() {
        let json = json!({"sender": {"login": "Heeler[bot]"}});
        let event = GithubEvent { name: "push", json: &json };
        assert!(event.is_by("heeler"));
        assert!(event.is_by("heeler[bot]"));
        assert!(!event.is_by("heel"));
        let nobody = json!({});
        assert!(!GithubEvent { name: "push", json: &nobody }.is_by(""));
    }

    #[test]
    fn a_subject_is_an_issue_a_pull_request_or_a_repository() {
        let subject = |json: &Json| GithubEvent { name: "x", json }.subject();
        let json = json!({
            "repository": {"full_name": "acme/app"},
            "issue": {"number": 7, "pull_request": {}, "title": "T", "labels": [{"name": "bug"}]},
            "comment": {"body": "go", "id": 12},
            "sender": {"login": "ann"},
        });
        assert_eq!(subject(&json).trigger_id("triage").unwrap(), "acme/app#7");
        let inputs = GithubEvent { name: "issue_comment", json: &json }.inputs();
        assert_eq!(inputs["prNumber"], 7);
        assert_eq!(inputs["issueLabels"], json!(["bug"]));
        assert_eq!((&inputs["repo"], &inputs["owner"]), (&json!("app"), &json!("acme")));
        assert_eq!(inputs["commentBody"], "go");
        assert!(inputs.keys().all(|name| EVENT_INPUTS.contains(&name.as_str())));
        let push = json!({"repository": {"full_name": "acme/app"}, "ref": "refs/heads/a/b"});
        assert_eq!(subject(&push).trigger_id("ci").unwrap(), "acme/app::ci");
        assert_eq!(GithubEvent { name: "push", json: &push }.inputs()["branch"], "a/b");
        for name in ["acme", "acme/../x", "a b/c", "acme/\u{1b}"] {
            let bad = json!({"repository": {"full_name": name}});
            assert_eq!(subject(&bad).trigger_id("ci"), None, "{name}");
        }
    }
}
