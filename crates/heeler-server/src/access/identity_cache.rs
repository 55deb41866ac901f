//! Short-lived cache of the owners of tokens and cookies, because most requests repeat a recent
//! credential.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use heeler_model::{AccessScope, AccessToken, BrowserLogin, TokenId};
use heeler_query::{FleetReader, QueryError};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;

/// Lifetime of a cache entry. Changes made through the daemon clear the cache at once; this limit
/// covers a database that was restored from a backup.
const CACHE_TTL: Duration = Duration::from_secs(2);

/// Most cache entries; one more clears the cache.
const CACHE_ENTRIES_MAX: usize = 1_024;

/// Precision of the recorded time of a token's last use.
const USE_RECORD_INTERVAL: SignedDuration = SignedDuration::from_mins(10);

/// Kind of a credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum CredentialKind {
    Token,
    Cookie,
}

/// Owner of a credential.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum AuthIdentity {
    Token(AccessToken),
    Login(BrowserLogin),
}

impl AuthIdentity {
    pub(super) fn is_valid(&self, now: Timestamp) -> bool {
        match self {
            AuthIdentity::Token(token) => token.is_valid(now),
            AuthIdentity::Login(login) => login.expires_at > now,
        }
    }

    pub(super) fn caller_name(&self) -> String {
        match self {
            AuthIdentity::Token(token) => format!("token {}", token.name),
            AuthIdentity::Login(login) => login.caller.clone(),
        }
    }

    pub(super) fn scope(&self) -> AccessScope {
        match self {
            AuthIdentity::Token(token) => token.scope,
            AuthIdentity::Login(login) => login.scope,
        }
    }
}

/// Cache of the owners of credentials.
#[derive(Debug, Default)]
pub(super) struct IdentityCache {
    state: Mutex<IdentityCacheState>,
    invalidations: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct IdentityCacheState {
    /// Number of times the cache was cleared. A lookup that began before is not cached.
    generation: u64,
    identities: HashMap<(CredentialKind, String), (AuthIdentity, Instant)>,
    /// Time at which each token's use was last recorded.
    use_recorded_at: HashMap<TokenId, Timestamp>,
}

impl IdentityCache {
    fn lock(&self) -> std::sync::MutexGuard<'_, IdentityCacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the owner of a hash if it is cached, or else the generation that
    /// [`IdentityCache::insert`] needs.
    pub(super) fn get(&self, kind: CredentialKind, hash: &str) -> Result<AuthIdentity, u64> {
        let seen = self.lock();
        match seen.identities.get(&(kind, hash.to_owned())) {
            Some((identity, at)) if at.elapsed() < CACHE_TTL => Ok(identity.clone()),
            _ => Err(seen.generation),
        }
    }

    /// Looks up the owner of a hash in the database; this may wait for the disk.
    pub(super) fn look_up(
        records: &FleetReader,
        kind: CredentialKind,
        hash: &str,
    ) -> Result<Option<AuthIdentity>, QueryError> {
        Ok(match kind {
            CredentialKind::Token => records.token_by_hash(hash)?.map(AuthIdentity::Token),
            CredentialKind::Cookie => records.login_by_hash(hash)?.map(AuthIdentity::Login),
        })
    }

    /// Caches a lookup, unless the cache was cleared since `age`.
    pub(super) fn insert(
        &self,
        kind: CredentialKind,
        hash: &str,
        identity: &AuthIdentity,
        age: u64,
    ) {
        let mut seen = self.lock();
        // The lookup may have read the state from before a revocation.
        if seen.generation != age {
            return;
        }
        if seen.identities.len() >= CACHE_ENTRIES_MAX {
            // An order of eviction is not worth its cost, because every entry lives for two seconds
            // only.
            seen.identities.clear();
        }
        // The time is monotonic, so that a changed clock does not prolong an entry.
        seen.identities.insert((kind, hash.to_owned()), (identity.clone(), Instant::now()));
    }

    /// Clears the cache and notifies subscribers.
    pub(super) fn clear(&self) {
        let mut seen = self.lock();
        seen.generation += 1;
        seen.identities.clear();
        // The lock is released first, because subscribers look up identities at once.
        drop(seen);
        self.invalidations.send_replace(());
    }

    /// Returns a receiver that is notified each time the cache is cleared.
    pub(super) fn subscribe(&self) -> watch::Receiver<()> {
        self.invalidations.subscribe()
    }

    /// Returns true if the use of a token must be recorded now; the next call within
    /// [`USE_RECORD_INTERVAL`] returns false.
    pub(super) fn should_record_use(&self, token: &AccessToken, now: Timestamp) -> bool {
        let is_recent = |at: Timestamp| now.duration_since(at) < USE_RECORD_INTERVAL;
        // Uses that an earlier daemon recorded count too.
        if token.used_at.is_some_and(is_recent) {
            return false;
        }
        let mut seen = self.lock();
        if seen.use_recorded_at.get(&token.id).is_some_and(|at| is_recent(*at)) {
            return false;
        }
        // Only recent entries matter, so the map does not grow with revoked tokens.
        seen.use_recorded_at.retain(|_, at| is_recent(*at));
        seen.use_recorded_at.insert(token.id.clone(), now);
        true
    }
}

#[cfg(test)]
mod tests {
    use heeler_model::secret_hash;

    use super::*;

    fn token(used_at: Option<Timestamp>) -> AccessToken {
        AccessToken {
            id: TokenId::from_hash(&secret_hash("x")),
            name: "ci".parse().unwrap(),
            scope: AccessScope::Read,
            created_at: Timestamp::UNIX_EPOCH,
            created_by: "me".to_owned(),
            expires_at: None,
            used_at,
            revoked_at: None,
        }
    }

    #[test]
    fn what_was_looked_up_before_a_change_is_not_remembered_after_it() {
        let (known, identity) = (IdentityCache::default(), AuthIdentity::Token(token(None)));
        let age = known.get(CredentialKind::Token, "h").unwrap_err();
        known.clear();
        known.insert(CredentialKind::Token, "h", &identity, age);
        let age = known.get(CredentialKind::Token, "h").unwrap_err();
        known.insert(CredentialKind::Token, "h", &identity, age);
        assert_eq!(known.get(CredentialKind::Token, "h"), Ok(identity));
        assert!(known.get(CredentialKind::Cookie, "h").is_err(), "a token is no cookie");
        known.clear();
        assert!(known.get(CredentialKind::Token, "h").is_err());
    }

    #[test]
    fn no_more_are_remembered_than_there_is_room_for() {
        let (known, identity) = (IdentityCache::default(), AuthIdentity::Token(token(None)));
        for number in 0..=CACHE_ENTRIES_MAX {
            known.insert(CredentialKind::Token, &number.to_string(), &identity, 0);
        }
        assert_eq!(known.lock().identities.len(), 1);
    }

    #[test]
    fn the_use_of_a_token_is_told_now_and_then() {
        let (known, now) = (IdentityCache::default(), Timestamp::UNIX_EPOCH);
        assert!(known.should_record_use(&token(None), now));
        assert!(!known.should_record_use(&token(None), now));
        let later = now + USE_RECORD_INTERVAL;
        assert!(known.should_record_use(&token(Some(now)), later));
        assert!(!IdentityCache::default().should_record_use(&token(Some(later)), later));
    }
}
