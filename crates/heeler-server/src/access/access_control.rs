//! State of access control: allowed hosts, one-time login links, login limits, cached identities.
//!
//! Start at [`AccessControl`].

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::http::{HeaderMap, Uri};
use heeler_engine::{AccessSecret, SecretGenerationError};
use heeler_model::AccessScope;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::Semaphore;

use super::allowed_hosts::{AllowedHosts, authority, is_local_host, local_url};
use super::cookie::{self, CookieName};
use super::identity_cache::IdentityCache;
use super::login_limiter::LoginLimiter;

/// Lifetime of a one-time login link.
const LINK_LIFETIME: SignedDuration = SignedDuration::from_mins(5);

/// Most pending login links; one more removes the oldest.
const LINKS_MAX: usize = 64;

/// Most concurrent password checks: each takes 19 MiB and much of a CPU core.
const PASSWORD_CHECKS_MAX: usize = 2;

/// Address of the dashboard and the API.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WebEndpoint {
    /// Host name or address from the config (`web.host`).
    pub host: String,
    pub port: u16,
    /// URLs under which a proxy serves the dashboard, such as `https://heeler.example.com`.
    pub origins: Vec<String>,
}

impl WebEndpoint {
    /// Returns the URL that people open.
    pub fn url(&self) -> String {
        // A proxy's URL works from everywhere, the local one only on this machine.
        self.origins.first().cloned().unwrap_or_else(|| local_url(&self.host, self.port))
    }

    /// Returns a host name that no other program has, if browsers on this machine can use one.
    ///
    /// Browsers send the cookies of `localhost` to every port of it. They resolve all names below
    /// `localhost` to this machine.
    fn own_host(&self) -> Option<String> {
        let is_own = self.origins.is_empty() && is_local_host(&self.host);
        is_own.then(|| format!("heeler-{}.localhost", cookie::host_tag(&self.url())))
    }

    /// Returns the URL that `heeler open` opens.
    fn browser_url(&self) -> String {
        self.own_host().map_or_else(|| self.url(), |host| format!("http://{host}:{}", self.port))
    }
}

/// State of access control: allowed hosts, login links, login limits, cached identities.
#[derive(Debug)]
pub struct AccessControl {
    pub(super) allowed_hosts: AllowedHosts,
    url: String,
    browser_url: String,
    links: Mutex<HashMap<String, PendingLoginLink>>,
    limiter: Mutex<LoginLimiter>,
    pub(super) password_permits: Semaphore,
    pub(super) identities: IdentityCache,
}

/// Pending one-time login link, created by a person on this machine.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PendingLoginLink {
    pub(super) user_name: String,
    pub(super) scope: AccessScope,
    expires_at: Timestamp,
}

impl AccessControl {
    pub fn new(endpoint: &WebEndpoint) -> AccessControl {
        AccessControl {
            allowed_hosts: AllowedHosts::new(&endpoint.host, &endpoint.origins)
                .with_host(endpoint.own_host()),
            url: endpoint.url(),
            browser_url: endpoint.browser_url(),
            links: Mutex::default(),
            limiter: Mutex::default(),
            password_permits: Semaphore::new(PASSWORD_CHECKS_MAX),
            identities: IdentityCache::default(),
        }
    }

    /// Creates a link with which one browser can log in, once, within [`LINK_LIFETIME`].
    pub(crate) fn make_link(
        &self,
        user_name: &str,
        scope: AccessScope,
        now: Timestamp,
    ) -> Result<String, SecretGenerationError> {
        let secret = AccessSecret::new()?;
        let until = now.checked_add(LINK_LIFETIME).unwrap_or(Timestamp::MAX);
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        // Expired links go first, so that they never push out a link that still works.
        links.retain(|_, link| link.expires_at > now);
        while links.len() >= LINKS_MAX {
            let oldest = links.iter().min_by_key(|(_, link)| link.expires_at);
            let Some(oldest) = oldest.map(|(hash, _)| hash.clone()) else { break };
            links.remove(&oldest);
        }
        // Only the hash stays here, as for every other secret of access control.
        links.insert(
            secret.hash(),
            PendingLoginLink { user_name: user_name.to_owned(), scope, expires_at: until },
        );
        Ok(format!("{}/login?link={}", self.browser_url, secret.reveal()))
    }

    /// Returns true if the link is pending, even if it has expired.
    pub(super) fn has_link(&self, secret: &str) -> bool {
        let hash = heeler_model::secret_hash(secret);
        self.links.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&hash)
    }

    /// Removes and returns a link, so that only the first caller can use it. Expired links are not
    /// returned.
    pub(super) fn take_link(&self, secret: &str, now: Timestamp) -> Option<PendingLoginLink> {
        let hash = heeler_model::secret_hash(secret);
        // One locked step decides, so that two browsers cannot both use the link.
        let link = self.links.lock().unwrap_or_else(PoisonError::into_inner).remove(&hash)?;
        (link.expires_at > now).then_some(link)
    }

    pub(super) fn limiter(&self) -> MutexGuard<'_, LoginLimiter> {
        self.limiter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the cookie name for the browser that sent a request.
    pub(super) fn cookie_name_for(&self, uri: &Uri, headers: &HeaderMap) -> CookieName {
        // A request without a host was refused before; the default matches no cookie of a real
        // host.
        let authority = authority(uri, headers).unwrap_or_default();
        // Requests with and without an Origin must find the same cookie, so only the host decides.
        CookieName::new(&self.url, authority, self.allowed_hosts.is_secure(None, authority))
    }

    /// Returns the cookie name for a browser that uses `authority` as the host.
    #[cfg(test)]
    pub(crate) fn cookie_name(&self, authority: &str) -> String {
        CookieName::new(&self.url, authority, false).plain().to_owned()
    }

    /// Clears the identity cache after a change to tokens, users or logins.
    pub(crate) fn invalidate_identities(&self) {
        self.identities.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access() -> AccessControl {
        AccessControl::new(&WebEndpoint {
            host: "127.0.0.1".to_owned(),
            port: 7878,
            origins: Vec::new(),
        })
    }

    fn secret(link: &str) -> &str {
        link.split_once(".localhost:7878/login?link=").unwrap().1
    }

    #[test]
    fn a_link_counts_once_also_under_races() {
        let (access, now) = (access(), Timestamp::UNIX_EPOCH);
        let link = access.make_link("ann", AccessScope::Admin, now).unwrap();
        let taken: usize = std::thread::scope(|scope| {
            let racers: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| usize::from(access.take_link(secret(&link), now).is_some()))
                })
                .collect();
            racers.into_iter().map(|racer| racer.join().unwrap()).sum()
        });
        assert_eq!(taken, 1);
    }

    #[test]
    fn a_link_counts_for_five_minutes() {
        let (access, now) = (access(), Timestamp::UNIX_EPOCH);
        let [soon, late] =
            [(); 2].map(|()| access.make_link("ann", AccessScope::Read, now).unwrap());
        let just = now + LINK_LIFETIME - SignedDuration::from_nanos(1);
        assert!(access.has_link(secret(&soon)) && !access.has_link("guessed"));
        assert_eq!(access.take_link(secret(&soon), just).unwrap().user_name, "ann");
        assert!(!access.has_link(secret(&soon)));
        assert_eq!(access.take_link(secret(&late), now + LINK_LIFETIME), None);
        assert_eq!(access.take_link("", now), None);
    }

    #[test]
    fn one_link_too_many_ends_the_oldest() {
        let (access, now) = (access(), Timestamp::UNIX_EPOCH);
        let first = access.make_link("ann", AccessScope::Read, now).unwrap();
        let later = now + SignedDuration::from_secs(1);
        for _ in 0..LINKS_MAX {
            access.make_link("ann", AccessScope::Read, later).unwrap();
        }
        assert_eq!(access.take_link(secret(&first), later), None);
        assert_eq!(access.links.lock().unwrap().len(), LINKS_MAX);
    }

    #[test]
    fn a_browser_on_this_machine_opens_a_host_of_its_own() {
        let reach = |host: &str, port, origins: &[&str]| WebEndpoint {
            host: host.to_owned(),
            port,
            origins: origins.iter().map(|&it| it.to_owned()).collect(),
        };
        let one = reach("127.0.0.1", 7878, &[]).browser_url();
        assert!(one.starts_with("http://heeler-") && one.ends_with(".localhost:7878"), "{one}");
        let other = reach("127.0.0.1", 7879, &[]).own_host();
        assert_ne!(reach("127.0.0.1", 7878, &[]).own_host(), other);
        for host in ["localhost", "0.0.0.0", "::1", "::"] {
            assert!(reach(host, 80, &[]).own_host().is_some(), "{host}");
        }
        assert_eq!(reach("192.0.2.1", 80, &[]).browser_url(), "http://192.0.2.1:80");
        assert_eq!(reach("::1", 80, &["https://a.example"]).browser_url(), "https://a.example");
    }

    #[test]
    fn people_open_what_a_proxy_serves_if_there_is_one() {
        let reach = |host: &str, origins: &[&str]| WebEndpoint {
            host: host.to_owned(),
            port: 80,
            origins: origins.iter().map(|&it| it.to_owned()).collect(),
        };
        assert_eq!(reach("localhost", &[]).url(), "http://localhost:80");
        assert_eq!(reach("0.0.0.0", &[]).url(), "http://127.0.0.1:80");
        assert_eq!(reach("::", &[]).url(), "http://[::1]:80");
        assert_eq!(reach("::1", &[]).url(), "http://[::1]:80");
        assert_eq!(reach("::1", &["https://a.example"]).url(), "https://a.example");
    }
}
