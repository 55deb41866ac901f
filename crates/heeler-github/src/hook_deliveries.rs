//! Deliveries of webhooks, as GitHub keeps them for a few days.
//!
//! An App has one webhook. A repository may have several, which a token can read if it has the right.
//! Start at [`GithubClient::webhooks`].

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value as Json;

use crate::credentials::GithubCredentials;
use crate::github_client::GithubClient;
use crate::github_error::GithubError;
use crate::github_repo::GithubRepo;
use crate::http_exchange::{ApiRequestAuth, ApiRequestSpec};

/// Most webhooks of one repository; GitHub allows 20 of each event.
const HOOKS_MAX: usize = 100;

/// A webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GithubWebhook {
    pub owner: WebhookOwner,
    /// Address to which its events are delivered.
    pub url: String,
}

/// Owner of a webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WebhookOwner {
    /// The App of the client.
    App,
    Repository {
        repo: GithubRepo,
        hook: u64,
    },
}

/// Attempt to deliver an event.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct HookDelivery {
    pub id: u64,
    /// ID of the event, the same for all attempts.
    pub guid: String,
    pub delivered_at: Timestamp,
    /// Status code of the receiver; GitHub reports 502 or 504 if there was none.
    #[serde(default)]
    pub status_code: u16,
    /// Installation of an App to which the event belongs.
    #[serde(default)]
    pub installation_id: Option<u64>,
}

/// Request by which an event was delivered. Its body is untrusted text of GitHub's users.
#[derive(Debug, Clone, PartialEq)]
pub struct HookDeliveryRequest {
    /// Name of the event, such as `issues`.
    pub event: String,
    /// Value of the header `X-Hub-Signature-256`, if the webhook has a secret.
    pub signature: Option<String>,
    pub payload: Json,
}

#[derive(Deserialize)]
struct HookConfigAnswer {
    #[serde(default)]
    url: String,
}

#[derive(Deserialize)]
struct HookAnswer {
    id: u64,
    #[serde(default)]
    active: bool,
    config: HookConfigAnswer,
}

impl GithubClient {
    /// Returns the active webhooks whose deliveries the client can read: that of its App, or those of
    /// the repository.
    pub fn webhooks(&self, repo: &GithubRepo) -> Result<Vec<GithubWebhook>, GithubError> {
        if matches!(self.config.credentials, GithubCredentials::App { .. }) {
            let attempt = "read the webhook of the App";
            let url = self.address(&["app", "hook", "config"]);
            let request = ApiRequestSpec {
                auth: self.app_auth(attempt)?,
                ..ApiRequestSpec::new("GET", url, attempt)
            };
            let HookConfigAnswer { url } = self.send_json(&request)?;
            return Ok(vec![GithubWebhook { owner: WebhookOwner::App, url }]);
        }
        let url = self.address(&["repos", repo.owner(), repo.name(), "hooks"]);
        let request = ApiRequestSpec::new("GET", url, format!("list the webhooks of {repo}"));
        let hooks = self.list(request, HOOKS_MAX, |page: Vec<HookAnswer>| page)?;
        let hooks = hooks.into_iter().filter(|hook| hook.active);
        let named = hooks.map(|hook| GithubWebhook {
            owner: WebhookOwner::Repository { repo: repo.clone(), hook: hook.id },
            url: hook.config.url,
        });
        Ok(named.collect())
    }

    /// Returns the last deliveries of a webhook, newest first.
    pub fn hook_deliveries(
        &self,
        hook: &GithubWebhook,
        count_max: usize,
    ) -> Result<Vec<HookDelivery>, GithubError> {
        let attempt = "list the deliveries of a webhook";
        let request = self.delivery_request(hook, None, attempt)?;
        self.list(request, count_max, |page: Vec<HookDelivery>| page)
    }

    /// Returns the request of a delivery.
    pub fn hook_delivery(
        &self,
        hook: &GithubWebhook,
        delivery: u64,
    ) -> Result<HookDeliveryRequest, GithubError> {
        #[derive(Deserialize)]
        struct DeliveryAnswer {
            event: String,
            request: RequestAnswer,
        }
        #[derive(Deserialize)]
        struct RequestAnswer {
            #[serde(default)]
            headers: Json,
            #[serde(default)]
            payload: Json,
        }
        let attempt = format!("read the delivery {delivery} of a webhook");
        let request = self.delivery_request(hook, Some(delivery), &attempt)?;
        let DeliveryAnswer { event, request } = self.send_json(&request)?;
        let headers = request.headers.as_object().into_iter().flatten();
        let mut signatures =
            headers.filter(|(name, _)| name.eq_ignore_ascii_case("x-hub-signature-256"));
        let signature = signatures.find_map(|(_, value)| value.as_str().map(str::to_owned));
        Ok(HookDeliveryRequest { event, signature, payload: request.payload })
    }

    fn delivery_request(
        &self,
        hook: &GithubWebhook,
        delivery: Option<u64>,
        attempt: &str,
    ) -> Result<ApiRequestSpec, GithubError> {
        let (mut parts, auth) = match &hook.owner {
            WebhookOwner::App => {
                (vec!["app".to_owned(), "hook".to_owned()], self.app_auth(attempt)?)
            }
            WebhookOwner::Repository { repo, hook } => {
                let (owner, name) = (repo.owner().to_owned(), repo.name().to_owned());
                let parts = vec!["repos".to_owned(), owner, name, "hooks".to_owned()];
                ([parts, vec![hook.to_string()]].concat(), ApiRequestAuth::Client)
            }
        };
        parts.push("deliveries".to_owned());
        parts.extend(delivery.map(|id| id.to_string()));
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        Ok(ApiRequestSpec { auth, ..ApiRequestSpec::new("GET", self.address(&parts), attempt) })
    }
}
