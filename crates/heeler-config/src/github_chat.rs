//! Conversations of an agent on issues and pull requests of GitHub.
//!
//! [`GithubChatConfig`] declares the accepted keys. The account and its access are those of `github` in
//! the fleet file.

use std::num::NonZeroU32;

use serde_json::Value as Json;

use crate::chat::{ChatLogLevel, ChatMode, ContextLength, WhileBusy};
use crate::reader::ConfigReader;
use crate::shape::{ValueShape, section};
use crate::value::{ConfigValue, read_int};
use crate::work_source::RepoName;
use crate::yaml::YamlNode;

section! {
    /// Issues and pull requests of GitHub.
    pub struct GithubChatConfig ("chat.github") {
        /// Repositories in which the agent answers. They must be in `github.repos` of the fleet file.
        repos: Vec<GithubChatRepo>,
        /// Hours after which the conversation on an issue starts a new session.
        session_expiry_hours: NonZeroU32 = "168",
        /// Messages in the daemon's log: `minimal` logs problems only, `standard` also each message that an agent gets or refuses, `verbose` also those that are ignored.
        log_level: ChatLogLevel = "standard",
        /// IDs of the users who may talk to the agent; `*` stands for everyone. Defaults to owners, members and collaborators of the repository.
        allow: Option<Vec<String>>,
        /// IDs of the users who may answer the agent's questions. With none, the agent's questions are denied.
        approvers: Vec<String>,
        /// IDs of the users who may stop jobs, begin sessions and retry (`/stop`, `/new`, `/retry`). Defaults to all who may talk to the agent.
        operators: Option<Vec<String>>,
        /// Effect of a comment while the agent is working in the conversation: it waits (`queue`), it cancels the work (`interrupt`), or the running job receives it (`say`).
        while_busy: WhileBusy = "queue",
        /// Most comments that the agent takes from one person within a minute. Further ones are refused.
        messages_per_minute: NonZeroU32 = "20",
        /// Seconds between two looks at the comments, 1 to 60. A webhook makes the daemon look at once.
        poll_seconds: PollSeconds = "30",
        /// Output shown in a conversation.
        output: GithubChatOutput = "{}",
    }
}

section! {
    /// A repository in which an agent answers.
    pub struct GithubChatRepo ("github.repo") {
        /// The repository, as `owner/name`.
        repo: GithubChatName,
        /// Comments that are answered: those that `mention` the account of the fleet, or all (`auto`, `all`).
        mode: ChatMode = "mention",
        /// Number of earlier comments that a new conversation begins with, at most 100; 0 for none.
        context_messages: ContextLength = "10",
    }
}

section! {
    /// Output shown in a conversation on GitHub.
    pub struct GithubChatOutput ("github.output") {
        /// Show errors.
        errors: bool = "true",
        /// Show cost and duration below each answer.
        result_summary: bool = "false",
        /// React to a comment that is accepted.
        acknowledge: bool = "true",
    }
}

/// A repository to which the fleet has access.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GithubChatName {
    repo: RepoName,
    chat: String,
}

impl GithubChatName {
    /// Returns the repository as `owner/name`.
    pub fn repo(&self) -> &str {
        self.repo.as_str()
    }

    /// Returns the name of the repository in names of conversations: `owner:name`, in lower case,
    /// because GitHub ignores case.
    pub fn chat(&self) -> &str {
        &self.chat
    }
}

impl ConfigValue for GithubChatName {
    fn shape() -> ValueShape {
        RepoName::shape()
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<GithubChatName> {
        let repo = RepoName::read(node, reader)?;
        let known = &reader.work_access.repos;
        let (message, help) = match known.iter().any(|it| it.eq_ignore_ascii_case(repo.as_str())) {
            true => {
                let chat = repo.as_str().replace('/', ":").to_ascii_lowercase();
                return Some(GithubChatName { repo, chat });
            }
            false if known.is_empty() => (
                "`chat.github` needs access to GitHub".to_owned(),
                "set `github` in the fleet file, with `token_env` or `app`, and `repos`",
            ),
            false => (
                format!("{} is not in `github.repos`", repo.as_str()),
                "add it there, to let the fleet write to it",
            ),
        };
        reader.error(node.at, message).expected("no comment could be answered").help(help);
        None
    }
    fn show(&self) -> Json {
        self.repo.show()
    }
}

/// Seconds between two looks: 1 to 60, so that a link without contact is noticed in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PollSeconds(u32);

impl PollSeconds {
    const MAX: u32 = 60;

    pub fn get(self) -> u32 {
        self.0
    }
}

impl ConfigValue for PollSeconds {
    fn shape() -> ValueShape {
        ValueShape::Int { min: 1, max: i64::from(PollSeconds::MAX) }
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<PollSeconds> {
        let seconds = read_int(node, reader, 1, i64::from(PollSeconds::MAX))?;
        u32::try_from(seconds).ok().map(PollSeconds)
    }
    fn show(&self) -> Json {
        serde_json::json!(self.0)
    }
}
