//! GitHub as the fleet uses it: its account, its access and its repositories.
//!
//! [`GithubKeys`] declares the accepted keys; [`GithubConfig`] is the checked form.

use std::num::NonZeroU32;

use camino::Utf8PathBuf;
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use url::{Host, Url};

use crate::reader::{ConfigReader, SourceSpan};
use crate::shape::section;
use crate::value::{SpannedValue, VarName, WebUrl, word_value};
use crate::webhook_schedule::is_login;
use crate::words::words;
use crate::work_access::WorkSourceAccess;
use crate::work_source::RepoName;

words! {
    /// Level of a permission of a token.
    pub enum GithubPermissionLevel ("permission level") {
        Read = "read",
        Write = "write",
    }
}

word_value!(GithubPermissionLevel);

/// Permission of a token that an agent gets, such as `contents: write`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GithubPermission {
    pub name: String,
    pub level: GithubPermissionLevel,
}

/// Permissions of the token of one agent, and their place in the file.
#[derive(Debug)]
pub(crate) struct AgentTokenGrant {
    /// Qualified name of the agent.
    pub(crate) agent: String,
    pub(crate) permissions: Vec<GithubPermission>,
    pub(crate) at: SourceSpan,
}

section! {
    /// GitHub as the fleet uses it.
    pub(crate) struct GithubKeys ("github") {
        /// Login of the account under which the fleet acts, such as `heeler-bot` or `my-app[bot]`. Its own events
        /// never start anything, even with `bots: true`.
        bot: SpannedValue<String>,
        /// Environment variable that holds an access token. Use `app` instead for a GitHub App.
        token_env: Option<SpannedValue<VarName>>,
        /// GitHub App as which the fleet acts. Its tokens expire after an hour.
        app: Option<SpannedValue<GithubAppKeys>>,
        /// Address of the API. For GitHub Enterprise it is `https://HOST/api/v3`.
        api_url: SpannedValue<WebUrl> = "https://api.github.com",
        /// Repositories that the fleet searches and writes to, as `owner/name`.
        repos: Vec<RepoName>,
        /// Most runs that a cron starts for one repository at one due time.
        max_runs: NonZeroU32 = "25",
        /// Post the messages of a workflow run as comments on its issue or pull request.
        comments: bool = "true",
        /// Agents that get a token for `repos` in each run, and its permissions by name, such as
        /// `coder: {contents: write, pull_requests: write}`. The token is in the variables `GITHUB_TOKEN`
        /// and `GH_TOKEN`, and expires after an hour. Needs `app`.
        agent_tokens: IndexMap<String, SpannedValue<IndexMap<String, GithubPermissionLevel>>>,
    }
}

section! {
    /// GitHub App as which the fleet acts.
    pub(crate) struct GithubAppKeys ("github.app") {
        /// ID of the App.
        id: NonZeroU32,
        /// ID of its installation.
        installation: NonZeroU32,
        /// Environment variable that holds the private key in PEM form.
        private_key_env: Option<VarName>,
        /// File with the private key in PEM form, relative to this file. Agents cannot read it.
        private_key_file: Option<Utf8PathBuf>,
    }
}

/// Checked settings of GitHub.
#[derive(Debug, Clone, PartialEq)]
pub struct GithubConfig {
    /// Login of the account under which the fleet acts.
    pub bot: String,
    /// `None` if the fleet only receives events.
    pub access: Option<GithubAccess>,
    pub api_url: WebUrl,
    /// Repositories that the fleet searches and writes to.
    pub repos: Vec<RepoName>,
    /// Most runs that a cron starts for one repository at one due time.
    pub max_runs: u32,
    /// Post messages of workflow runs as comments.
    pub comments: bool,
}

impl GithubConfig {
    /// Returns true if the fleet can act on its repositories.
    pub fn can_act(&self) -> bool {
        self.access.is_some() && !self.repos.is_empty()
    }

    /// Returns true if the fleet may write to a repository. GitHub ignores case in names.
    pub fn owns_repo(&self, owner: &str, name: &str) -> bool {
        let full = format!("{owner}/{name}");
        self.repos.iter().any(|repo| repo.as_str().eq_ignore_ascii_case(&full))
    }

    /// Returns the variable that holds a credential, if one does.
    pub(crate) fn secret_variable(&self) -> Option<&VarName> {
        match self.access.as_ref()? {
            GithubAccess::Token { env } => Some(env),
            GithubAccess::App { key: AppKeySource::Env(env), .. } => Some(env),
            GithubAccess::App { key: AppKeySource::File(_), .. } => None,
        }
    }

    /// Returns the file that holds a private key, if one does.
    pub fn key_file(&self) -> Option<&Utf8PathBuf> {
        match self.access.as_ref()? {
            GithubAccess::App { key: AppKeySource::File(path), .. } => Some(path),
            _ => None,
        }
    }
}

/// Access to GitHub.
#[derive(Debug, Clone, PartialEq)]
pub enum GithubAccess {
    Token { env: VarName },
    App { id: u64, installation: u64, key: AppKeySource },
}

/// Place of an App's private key.
#[derive(Debug, Clone, PartialEq)]
pub enum AppKeySource {
    Env(VarName),
    File(Utf8PathBuf),
}

impl GithubKeys {
    pub(crate) fn check(&self, reader: &mut ConfigReader) {
        if !is_login(&self.bot.value) {
            let message = format!("`{}` is no name of an account", self.bot.value);
            let expected = "a login without `@`, such as `heeler-bot` or `my-app[bot]`";
            reader.error(self.bot.at, message).expected(expected);
        }
        if let (Some(_), Some(token)) = (&self.app, &self.token_env) {
            let message = "`token_env` and `app` cannot both be set".to_owned();
            reader.error(token.at, message).expected("remove one of them");
        }
        if let Some(app) = &self.app {
            let GithubAppKeys { private_key_env, private_key_file, .. } = &app.value;
            if private_key_env.is_some() == private_key_file.is_some() {
                let message = "an App has exactly one private key".to_owned();
                let expected = "either `private_key_env` or `private_key_file`";
                reader.error(app.at, message).expected(expected);
            }
        }
        if let Some(token) = self.token_env.as_ref().filter(|it| is_passed_to_agents(&it.value)) {
            let message = format!("every agent gets the variable {}", token.value.as_str());
            let expected = "a variable without the prefix CLAUDE_ or ANTHROPIC_";
            reader.error(token.at, message).expected(expected);
        }
        self.check_agent_tokens(reader);
        if !is_safe_for_credentials(self.api_url.value.expose()) {
            let message = "credentials are not sent to this address".to_owned();
            let expected = "an address that begins with https://, without a login or a query";
            reader.error(self.api_url.at, message).expected(expected);
        }
    }

    fn check_agent_tokens(&self, reader: &mut ConfigReader) {
        for permissions in self.agent_tokens.values() {
            let is_name = |name: &String| {
                !name.is_empty() && name.bytes().all(|it| it.is_ascii_lowercase() || it == b'_')
            };
            let fault = if self.app.is_none() {
                Some((
                    "only a GitHub App has tokens for agents",
                    "`app`, with the App's ID and key",
                ))
            } else if self.repos.is_empty() {
                Some(("the token would be for no repository", "`repos`, with at least one"))
            } else if !self.has_one_owner() {
                Some((
                    "the repositories in `repos` have several owners",
                    "those of one owner: an installation has one",
                ))
            } else if !permissions.value.keys().all(is_name) || permissions.value.is_empty() {
                Some(("a token has named permissions", "such as `{contents: write}`"))
            } else {
                None
            };
            if let Some((message, expected)) = fault {
                reader.error(permissions.at, message.to_owned()).expected(expected);
            }
        }
    }

    /// Returns true if all repositories have the same owner. GitHub ignores case.
    fn has_one_owner(&self) -> bool {
        let owner = |repo: &RepoName| {
            repo.as_str().split('/').next().unwrap_or_default().to_ascii_lowercase()
        };
        let first = self.repos.first().map(owner);
        self.repos.iter().all(|repo| Some(owner(repo)) == first)
    }

    /// Returns the permissions of the agents' tokens.
    pub(crate) fn agent_permissions(&self) -> Vec<AgentTokenGrant> {
        let grants = self.agent_tokens.iter().map(|(agent, permissions)| {
            let named = permissions.value.iter();
            let named =
                named.map(|(name, level)| GithubPermission { name: name.clone(), level: *level });
            AgentTokenGrant {
                agent: agent.clone(),
                permissions: named.collect(),
                at: permissions.at,
            }
        });
        grants.collect()
    }

    /// Returns the access that work sources use.
    pub(crate) fn work_access(&self) -> WorkSourceAccess {
        let has_access = self.app.is_some() || self.token_env.is_some();
        let repos = self.repos.iter().filter(|_| has_access);
        WorkSourceAccess {
            repos: repos.map(|repo| repo.as_str().to_owned()).collect(),
            token_env: self.token_env.as_ref().map(|env| env.value.as_str().to_owned()),
        }
    }

    pub(crate) fn into_config(self) -> GithubConfig {
        let token = self.token_env.map(|env| GithubAccess::Token { env: env.value });
        let app = self.app.and_then(|app| app.value.into_access());
        GithubConfig {
            bot: self.bot.value,
            access: token.or(app),
            api_url: self.api_url.value,
            repos: self.repos,
            max_runs: self.max_runs.get(),
            comments: self.comments,
        }
    }
}

impl GithubAppKeys {
    fn into_access(self) -> Option<GithubAccess> {
        let key = match (self.private_key_env, self.private_key_file) {
            (Some(env), _) => AppKeySource::Env(env),
            (None, Some(file)) => AppKeySource::File(file),
            // `check` has reported it.
            (None, None) => return None,
        };
        let (id, installation) = (self.id.get().into(), self.installation.get().into());
        Some(GithubAccess::App { id, installation, key })
    }
}

/// Returns true if agents inherit a variable although their config does not name it.
pub(crate) fn is_passed_to_agents(name: &VarName) -> bool {
    ["CLAUDE_", "ANTHROPIC_", "LC_"].iter().any(|prefix| name.as_str().starts_with(prefix))
}

/// Returns true if a credential may be sent to an address: over TLS, or within this machine.
pub(crate) fn is_safe_for_credentials(text: &str) -> bool {
    let Ok(url) = text.parse::<Url>() else { return false };
    let is_local = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    let is_plain = url.username().is_empty() && url.password().is_none() && url.query().is_none();
    is_plain && (url.scheme() == "https" || url.scheme() == "http" && is_local)
}
