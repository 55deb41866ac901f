//! Connection to GitHub with the credentials of the config.
//!
//! Start at [`GithubConnections::get`].

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use heeler_config::{AppKeySource, GithubAccess, GithubConfig, LoadedConfig};
use heeler_github::{
    AppPrivateKey, GithubClient, GithubClientConfig, GithubCredentials, HostClock,
};
use heeler_transcript::untrusted_file;
use jiff::Timestamp;

use crate::setup::DaemonSetup;

/// Time limit of one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest pause for a rate limit within an attempt.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Longest private key, in bytes.
const KEY_BYTES_MAX: u64 = 64 << 10;

/// Connection to GitHub.
#[derive(Debug)]
pub(crate) struct GithubConnection {
    pub(crate) client: GithubClient,
    bot: String,
    login: OnceLock<String>,
}

impl GithubConnection {
    /// Creates a connection, or returns the reason why there is none.
    fn open(
        github: &GithubConfig,
        env: &std::collections::BTreeMap<String, String>,
        now: fn() -> Timestamp,
    ) -> Result<GithubConnection, String> {
        let value = |name: &str| {
            let value = env.get(name).map(|value| value.trim().to_owned());
            value.filter(|value| !value.is_empty()).ok_or_else(|| {
                format!(
                    "there is no {name}: set it in the daemon's environment or in the `.env` \
                     beside the config, or name another variable in `github`"
                )
            })
        };
        let credentials = match &github.access {
            None => return Err("`github` has neither `token_env` nor `app`".to_owned()),
            Some(GithubAccess::Token { env }) => GithubCredentials::Token(value(env.as_str())?),
            Some(GithubAccess::App { id, installation, key }) => {
                let pem = match key {
                    AppKeySource::Env(env) => value(env.as_str())?,
                    AppKeySource::File(path) => {
                        let unreadable = |error| format!("cannot read the key {path}: {error}");
                        // A mounted secret is a link.
                        let path = path.canonicalize_utf8().map_err(unreadable)?;
                        let bytes = untrusted_file::read(&path, KEY_BYTES_MAX);
                        let bytes =
                            bytes.map_err(|error| format!("cannot read the key: {error}"))?;
                        String::from_utf8(bytes).map_err(|_| format!("{path} is no text"))?
                    }
                };
                let key = AppPrivateKey::from_pem(&pem).map_err(|error| error.to_string())?;
                GithubCredentials::App { app: *id, installation: *installation, key }
            }
        };
        let url = github.api_url.expose();
        let api_url = url.parse().map_err(|_| format!("`github.api_url` is no address: {url}"))?;
        let client = GithubClient::new(GithubClientConfig {
            api_url,
            credentials,
            clock: HostClock { now, pause: std::thread::sleep },
            timeout: CALL_TIMEOUT,
            pause_max: PAUSE_MAX,
        });
        let client = client.map_err(|error| error.to_string())?;
        Ok(GithubConnection { client, bot: github.bot.clone(), login: OnceLock::new() })
    }

    /// Returns the login under which posts appear.
    pub(super) fn login(&self) -> Result<&str, heeler_github::GithubError> {
        if let Some(known) = self.login.get() {
            return Ok(known);
        }
        match self.client.own_login() {
            Ok(login) => Ok(self.login.get_or_init(|| login)),
            Err(error) if error.is_transient() => Err(error),
            // A token of an installation may not ask for its own account.
            Err(_) => Ok(&self.bot),
        }
    }
}

/// The connection of the current config.
#[derive(Debug, Default)]
pub(crate) struct GithubConnections {
    current: Mutex<Option<(Arc<DaemonSetup>, Arc<GithubConnection>)>>,
}

impl GithubConnections {
    /// Returns the connection of a config. It is created once, so that its token is used again.
    pub(crate) fn get(
        &self,
        setup: &Arc<DaemonSetup>,
        now: fn() -> Timestamp,
    ) -> Result<Arc<GithubConnection>, String> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, connection)) = &*current
            && Arc::ptr_eq(of, setup)
        {
            return Ok(Arc::clone(connection));
        }
        let github = setup.root().and_then(|root| root.github.as_ref());
        let github = github.ok_or("the config has no `github`")?;
        let connection = Arc::new(GithubConnection::open(github, &setup.env, now)?);
        *current = Some((Arc::clone(setup), Arc::clone(&connection)));
        Ok(connection)
    }
}

/// State of the access to GitHub, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GithubAccessReport {
    /// Account, limit and repositories.
    pub summary: String,
    /// Problems, each with its cure.
    pub problems: Vec<String>,
}

/// Checks the access to GitHub. Returns `None` if the config has none.
pub fn check_github_access(
    loaded: &LoadedConfig,
    env: &std::collections::BTreeMap<String, String>,
    now: fn() -> Timestamp,
) -> Option<GithubAccessReport> {
    let github = loaded.fleets.first()?.github.as_ref()?;
    github.access.as_ref()?;
    let mut report = GithubAccessReport { summary: String::new(), problems: Vec::new() };
    let connection = match GithubConnection::open(github, env, now) {
        Ok(connection) => connection,
        Err(reason) => {
            report.problems.push(reason);
            return Some(report);
        }
    };
    match connection.client.own_login() {
        Ok(login) => {
            report.summary = format!("acts as {login}");
            if !login.eq_ignore_ascii_case(&github.bot) {
                let bot = &github.bot;
                report.problems.push(format!(
                    "the credentials belong to {login}, but `github.bot` is {bot}: events of \
                     {login} would start schedules; set `bot: {login}`"
                ));
            }
        }
        Err(error) => report.problems.push(error.to_string()),
    }
    match connection.client.rate_limit() {
        Ok(limit) => {
            let (left, most) = (limit.remaining, limit.limit);
            let _infallible = write!(report.summary, ", {left} of {most} calls left");
        }
        // One problem is enough for one cause.
        Err(error) if report.problems.is_empty() => report.problems.push(error.to_string()),
        Err(_) => {}
    }
    if github.repos.is_empty() {
        report.problems.push("`github.repos` is empty: the fleet cannot act on GitHub".to_owned());
    }
    Some(report)
}
