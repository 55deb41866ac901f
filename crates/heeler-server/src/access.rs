//! Who may come in over TCP: tokens, passwords, one-time links, cookies.
//!
//! Every request is checked by [`with_access_control`]: that it means us (Host), that no strange page sent it
//! (Origin), who sent it (a token or a cookie), and, where it changes something, that a page of ours
//! asked for it (a CSRF token) and no process of a run did. `/hooks` is left to signatures.

mod allowed_hosts;
mod cookie;
mod guard;
mod identity_cache;
mod login;
mod login_limiter;
mod password;
mod peer_caller;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::http::{HeaderMap, Uri};
use axum::middleware::from_fn_with_state;
use heeler_engine::{AccessSecret, SecretGenerationError};
use heeler_model::AccessScope;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::Semaphore;

use crate::server_state::SharedServerState;
use allowed_hosts::AllowedHosts;
use cookie::CookieName;
use identity_cache::IdentityCache;
use login_limiter::LoginLimiter;

pub(crate) use guard::identify_peer;
pub use password::{PASSWORD_BYTES_MAX, PASSWORD_CHARS_MIN, PasswordError, hash_password};

/// How long a one-time link counts.
const LINK_LIFETIME: SignedDuration = SignedDuration::from_mins(5);

/// How many links count at once; one more, and the oldest counts no longer.
const LINKS_MAX: usize = 64;

/// How many passwords are checked at once: each takes 19 MiB and a good part of a core.
const PASSWORD_CHECKS_MAX: usize = 2;

/// Where the dashboard and the API are reached.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WebEndpoint {
    /// The name or address that the config listens on.
    pub host: String,
    /// The port that is listened on.
    pub port: u16,
    /// Addresses under which a proxy serves it: `https://heeler.example.com`.
    pub origins: Vec<String>,
}

impl WebEndpoint {
    /// Returns the address that people open.
    pub fn url(&self) -> String {
        self.origins
            .first()
            .cloned()
            .unwrap_or_else(|| allowed_hosts::local_url(&self.host, self.port))
    }
}

/// What is known of those who come in.
#[derive(Debug)]
pub struct AccessControl {
    allowed_hosts: AllowedHosts,
    url: String,
    links: Mutex<HashMap<String, PendingLoginLink>>,
    limiter: Mutex<LoginLimiter>,
    password_permits: Semaphore,
    identities: IdentityCache,
}

/// A login that somebody at the machine has promised.
#[derive(Debug, Clone, PartialEq)]
struct PendingLoginLink {
    user_name: String,
    scope: AccessScope,
    expires_at: Timestamp,
}

impl AccessControl {
    /// Knows nobody yet.
    pub fn new(reach: &WebEndpoint) -> AccessControl {
        AccessControl {
            allowed_hosts: AllowedHosts::new(&reach.host, &reach.origins),
            url: reach.url(),
            links: Mutex::default(),
            limiter: Mutex::default(),
            password_permits: Semaphore::new(PASSWORD_CHECKS_MAX),
            identities: IdentityCache::default(),
        }
    }

    /// Makes a link by which one browser may log in, once and soon.
    pub(crate) fn make_link(
        &self,
        who: &str,
        scope: AccessScope,
        now: Timestamp,
    ) -> Result<String, SecretGenerationError> {
        let secret = AccessSecret::new()?;
        let until = now.checked_add(LINK_LIFETIME).unwrap_or(Timestamp::MAX);
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.retain(|_, link| link.expires_at > now);
        while links.len() >= LINKS_MAX {
            let oldest = links.iter().min_by_key(|(_, link)| link.expires_at);
            let Some(oldest) = oldest.map(|(hash, _)| hash.clone()) else { break };
            links.remove(&oldest);
        }
        links.insert(
            secret.hash(),
            PendingLoginLink { user_name: who.to_owned(), scope, expires_at: until },
        );
        Ok(format!("{}/login?link={}", self.url, secret.reveal()))
    }

    /// Says whether there is such a link.
    fn has_link(&self, secret: &str) -> bool {
        let hash = heeler_model::secret_hash(secret);
        self.links.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&hash)
    }

    /// Takes a link, which counts for the first who does so.
    fn take_link(&self, secret: &str, now: Timestamp) -> Option<PendingLoginLink> {
        let hash = heeler_model::secret_hash(secret);
        let link = self.links.lock().unwrap_or_else(PoisonError::into_inner).remove(&hash)?;
        (link.expires_at > now).then_some(link)
    }

    fn limiter(&self) -> MutexGuard<'_, LoginLimiter> {
        self.limiter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names the cookie of a browser that sent a request.
    fn cookie_name_for(&self, uri: &Uri, headers: &HeaderMap) -> CookieName {
        let authority = guard::authority(uri, headers).unwrap_or_default();
        CookieName::new(&self.url, authority, self.allowed_hosts.is_secure(None, authority))
    }

    /// Names the cookie of a browser that calls us so.
    #[cfg(test)]
    pub(crate) fn cookie_name(&self, authority: &str) -> String {
        CookieName::new(&self.url, authority, false).plain().to_owned()
    }

    /// Forgets who was seen: who may do what has changed.
    pub(crate) fn invalidate_identities(&self) {
        self.identities.clear();
    }
}

/// Returns the routes of the login, and lets nobody reach any route without saying who they are.
/// What is asked for is counted in the same layer, since each costs every request some allocations.
pub(crate) fn with_access_control(
    router: Router<SharedServerState>,
    app: &SharedServerState,
) -> Router<SharedServerState> {
    router.merge(login::router()).layer(from_fn_with_state(Arc::clone(app), guard::guard_and_count))
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
        link.strip_prefix("http://127.0.0.1:7878/login?link=").unwrap()
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
