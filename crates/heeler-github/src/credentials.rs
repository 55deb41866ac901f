//! Credentials: a token, or an App with short-lived installation tokens.
//!
//! Start at [`GithubCredentials`].

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::{Map, Value as Json};

use crate::app_key::AppPrivateKey;
use crate::github_client::GithubClient;
use crate::github_error::GithubError;
use crate::github_repo::GithubRepo;
use crate::http_exchange::{ApiRequestAuth, ApiRequestSpec};

/// Remaining validity below which a cached token is replaced.
const RENEWAL_MARGIN: SignedDuration = SignedDuration::from_mins(5);

/// Means by which the client authenticates.
#[derive(Clone)]
pub enum GithubCredentials {
    /// A token of a user or an installation.
    Token(String),
    /// An App, by the installation that it acts as.
    App { app: u64, installation: u64, key: AppPrivateKey },
}

impl fmt::Debug for GithubCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GithubCredentials::Token(_) => f.write_str("Token"),
            GithubCredentials::App { app, installation, .. } => {
                write!(f, "App {app}, installation {installation}")
            }
        }
    }
}

/// Token of an installation. It expires after an hour.
#[derive(Clone, PartialEq, Eq, Deserialize)]
pub struct InstallationToken {
    pub token: String,
    pub expires_at: Timestamp,
}

impl fmt::Debug for InstallationToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InstallationToken until {}", self.expires_at)
    }
}

/// Limits of an installation token. By default it has all rights of the installation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenRequest {
    /// Repositories that it can access; empty stands for all of the installation.
    pub repositories: Vec<GithubRepo>,
    /// Permissions by name, such as `contents: read`; empty stands for all of the installation.
    pub permissions: Vec<(String, String)>,
}

impl TokenRequest {
    fn to_body(&self) -> Json {
        let mut body = Map::new();
        if !self.repositories.is_empty() {
            // GitHub expects names without the owner: an installation has one owner.
            let names = self.repositories.iter().map(|repo| Json::from(repo.name())).collect();
            body.insert("repositories".to_owned(), names);
        }
        if !self.permissions.is_empty() {
            let all = self.permissions.iter();
            let all = all.map(|(name, level)| (name.clone(), Json::from(level.as_str())));
            body.insert("permissions".to_owned(), Json::Object(all.collect()));
        }
        Json::Object(body)
    }
}

/// Calls that are left until the limit is renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GithubRateLimit {
    pub limit: u64,
    pub remaining: u64,
    pub renewed_at: Timestamp,
}

impl GithubClient {
    /// Returns the calls that are left. Asking does not count as a call.
    pub fn rate_limit(&self) -> Result<GithubRateLimit, GithubError> {
        #[derive(Deserialize)]
        struct LimitAnswer {
            resources: ResourcesAnswer,
        }
        #[derive(Deserialize)]
        struct ResourcesAnswer {
            core: CoreAnswer,
        }
        #[derive(Deserialize)]
        struct CoreAnswer {
            limit: u64,
            remaining: u64,
            reset: i64,
        }
        let address = self.address(&["rate_limit"]);
        let request = ApiRequestSpec::new("GET", address, "read the rate limit of GitHub");
        let CoreAnswer { limit, remaining, reset } =
            self.send_json::<LimitAnswer>(&request)?.resources.core;
        let renewed_at = Timestamp::from_second(reset).unwrap_or(Timestamp::UNIX_EPOCH);
        Ok(GithubRateLimit { limit, remaining, renewed_at })
    }

    /// Returns the value of the `authorization` header.
    pub(crate) fn authorization(&self) -> Result<String, GithubError> {
        match &self.config.credentials {
            GithubCredentials::Token(token) => Ok(format!("Bearer {token}")),
            GithubCredentials::App { .. } => {
                let now = (self.config.clock.now)();
                let mut cached = self.lock_token();
                if let Some(known) =
                    cached.as_ref().filter(|it| it.expires_at.duration_since(now) > RENEWAL_MARGIN)
                {
                    return Ok(format!("Bearer {}", known.token));
                }
                // The lock is held meanwhile, so that concurrent calls create one token.
                let fresh = self.create_installation_token(&TokenRequest::default())?;
                let value = format!("Bearer {}", fresh.token);
                *cached = Some(fresh);
                Ok(value)
            }
        }
    }

    /// Forgets the cached token, for example because GitHub no longer accepts it. Returns false if
    /// there is no other one to try.
    pub(crate) fn discard_token(&self) -> bool {
        match &self.config.credentials {
            GithubCredentials::Token(_) => false,
            GithubCredentials::App { .. } => self.lock_token().take().is_some(),
        }
    }

    /// Returns the authentication as the App itself.
    pub(crate) fn app_auth(&self, attempt: &str) -> Result<ApiRequestAuth, GithubError> {
        let GithubCredentials::App { app, key, .. } = &self.config.credentials else {
            return Err(GithubError::BadAnswer {
                attempt: attempt.to_owned(),
                reason: "only a GitHub App can do this; configure `github.app`".to_owned(),
            });
        };
        let jwt = key.sign_jwt(*app, (self.config.clock.now)());
        let jwt = jwt.map_err(|source| GithubError::Key { attempt: attempt.to_owned(), source })?;
        Ok(ApiRequestAuth::Given(format!("Bearer {jwt}")))
    }

    /// Creates a token of the App's installation. With a plain token as credential this is refused:
    /// a token cannot be narrowed.
    pub fn create_installation_token(
        &self,
        wanted: &TokenRequest,
    ) -> Result<InstallationToken, GithubError> {
        let attempt = "create an installation token";
        let GithubCredentials::App { installation, .. } = &self.config.credentials else {
            return Err(GithubError::BadAnswer {
                attempt: attempt.to_owned(),
                reason: "only a GitHub App has installation tokens; configure `github.app`"
                    .to_owned(),
            });
        };
        let installation = installation.to_string();
        let request = ApiRequestSpec {
            auth: self.app_auth(attempt)?,
            // A second token does no harm, so this call may be repeated.
            is_repeatable: true,
            body: Some(wanted.to_body()),
            ..ApiRequestSpec::new(
                "POST",
                self.address(&["app", "installations", &installation, "access_tokens"]),
                attempt,
            )
        };
        self.send_json(&request)
    }

    /// Returns the login under which the client acts: `name[bot]` for an App.
    pub fn own_login(&self) -> Result<String, GithubError> {
        #[derive(Deserialize)]
        struct AppAnswer {
            slug: String,
        }
        #[derive(Deserialize)]
        struct UserAnswer {
            login: String,
        }
        let attempt = "ask GitHub for the own login";
        match &self.config.credentials {
            GithubCredentials::Token(_) => {
                let request = ApiRequestSpec::new("GET", self.address(&["user"]), attempt);
                self.send_json::<UserAnswer>(&request).map(|user| user.login)
            }
            GithubCredentials::App { .. } => {
                let request = ApiRequestSpec {
                    auth: self.app_auth(attempt)?,
                    ..ApiRequestSpec::new("GET", self.address(&["app"]), attempt)
                };
                self.send_json::<AppAnswer>(&request).map(|app| format!("{}[bot]", app.slug))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_token_is_narrowed_to_what_is_named() {
        assert_eq!(TokenRequest::default().to_body(), json!({}));
        let wanted = TokenRequest {
            repositories: vec!["acme/app".parse().unwrap()],
            permissions: vec![("contents".to_owned(), "read".to_owned())],
        };
        let expected = json!({"repositories": ["app"], "permissions": {"contents": "read"}});
        assert_eq!(wanted.to_body(), expected);
    }
}
