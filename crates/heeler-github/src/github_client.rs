//! The client: its settings, its addresses and its cached token.
//!
//! Start at [`GithubClient::new`].

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use url::{Host, Url};

use crate::credentials::{GithubCredentials, InstallationToken};
use crate::github_error::GithubError;

/// Clock of the process: the current time, and a pause.
#[derive(Debug, Clone, Copy)]
pub struct HostClock {
    pub now: fn() -> Timestamp,
    /// Pauses before a call is repeated.
    pub pause: fn(Duration),
}

/// Settings of a client.
#[derive(Debug, Clone)]
pub struct GithubClientConfig {
    /// Address of the API: `https://api.github.com`, or `https://HOST/api/v3` of GitHub Enterprise.
    pub api_url: Url,
    pub credentials: GithubCredentials,
    pub clock: HostClock,
    /// Time limit of a call.
    pub timeout: Duration,
    /// Longest pause before a call is repeated; a rate limit that lasts longer is an error.
    pub pause_max: Duration,
}

/// Client of GitHub's REST API. Its calls block.
#[derive(Debug)]
pub struct GithubClient {
    pub(crate) config: GithubClientConfig,
    token: Mutex<Option<InstallationToken>>,
}

impl GithubClient {
    /// Creates a client. An address without TLS is accepted only for this machine, because each
    /// call sends a credential.
    pub fn new(config: GithubClientConfig) -> Result<GithubClient, GithubError> {
        let url = &config.api_url;
        let is_local = match url.host() {
            Some(Host::Domain(name)) => name == "localhost",
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            None => false,
        };
        let is_safe = url.scheme() == "https" || url.scheme() == "http" && is_local;
        if !is_safe || url.cannot_be_a_base() {
            return Err(GithubError::Unreachable {
                attempt: format!("use {url} as address of GitHub"),
                reason: "it must begin with https://, since each call sends a credential"
                    .to_owned(),
            });
        }
        Ok(GithubClient { config, token: Mutex::new(None) })
    }

    /// Returns an address of the API. The parts are encoded, so no part can change the others.
    pub(crate) fn address(&self, parts: &[&str]) -> Url {
        let mut url = self.config.api_url.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(parts);
        }
        url
    }

    pub(crate) fn lock_token(&self) -> MutexGuard<'_, Option<InstallationToken>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(url: &str) -> Result<GithubClient, GithubError> {
        GithubClient::new(GithubClientConfig {
            api_url: url.parse().unwrap(),
            credentials: GithubCredentials::Token("t".to_owned()),
            clock: HostClock { now: || Timestamp::UNIX_EPOCH, pause: |_| {} },
            timeout: Duration::from_secs(1),
            pause_max: Duration::ZERO,
        })
    }

    #[test]
    fn a_credential_is_sent_over_tls_or_stays_on_this_machine() {
        for url in ["https://api.github.com", "http://127.0.0.1:8080", "http://[::1]:1/api/v3"] {
            assert!(client(url).is_ok(), "{url}");
        }
        for url in ["http://api.github.com", "http://127.0.0.1.example.com", "ftp://localhost"] {
            assert!(client(url).unwrap_err().to_string().contains("https://"), "{url}");
        }
    }

    #[test]
    fn a_part_of_an_address_stays_in_its_place() {
        let enterprise = client("https://git.example.com/api/v3/").unwrap();
        let address = enterprise.address(&["repos", "acme", "app", "labels", "a/b?c"]);
        let expected = "https://git.example.com/api/v3/repos/acme/app/labels/a%2Fb%3Fc";
        assert_eq!(address.as_str(), expected);
    }
}
