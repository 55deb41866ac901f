//! Whose a secret is, remembered for a moment: most requests come from those who were just there.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use heeler_model::{AccessScope, AccessToken, BrowserLogin, TokenId};
use heeler_query::{FleetReader, QueryError};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;

/// How long it is remembered. Every change through the daemon is heard of at once; a database that
/// was brought back from a backup is looked at after this.
const CACHE_TTL: Duration = Duration::from_secs(2);

/// How many are remembered; one more, and all are looked up anew.
const CACHE_ENTRIES_MAX: usize = 1_024;

/// How exactly it is on record when a token was used.
const USE_RECORD_INTERVAL: SignedDuration = SignedDuration::from_mins(10);

/// What a secret is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum CredentialKind {
    Token,
    Cookie,
}

/// Whose a secret is.
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

/// Who was seen.
#[derive(Debug, Default)]
pub(super) struct IdentityCache {
    state: Mutex<IdentityCacheState>,
    invalidations: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct IdentityCacheState {
    /// Counts how often all were forgotten: what was looked up before that is not remembered.
    generation: u64,
    identities: HashMap<(CredentialKind, String), (AuthIdentity, Instant)>,
    /// When it was last told that a token is in use.
    use_recorded_at: HashMap<TokenId, Timestamp>,
}

impl IdentityCache {
    fn lock(&self) -> std::sync::MutexGuard<'_, IdentityCacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whose a hash is if that was just looked up, else what [`IdentityCache::look_up`] needs.
    pub(super) fn get(&self, kind: CredentialKind, hash: &str) -> Result<AuthIdentity, u64> {
        let seen = self.lock();
        match seen.identities.get(&(kind, hash.to_owned())) {
            Some((identity, at)) if at.elapsed() < CACHE_TTL => Ok(identity.clone()),
            _ => Err(seen.generation),
        }
    }

    /// Looks up whose a hash is. It may wait for a disk.
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

    /// Remembers what was looked up, unless all was forgotten since.
    pub(super) fn insert(
        &self,
        kind: CredentialKind,
        hash: &str,
        identity: &AuthIdentity,
        age: u64,
    ) {
        let mut seen = self.lock();
        if seen.generation != age {
            return;
        }
        if seen.identities.len() >= CACHE_ENTRIES_MAX {
            seen.identities.clear();
        }
        seen.identities.insert((kind, hash.to_owned()), (identity.clone(), Instant::now()));
    }

    /// Forgets all.
    pub(super) fn clear(&self) {
        let mut seen = self.lock();
        seen.generation += 1;
        seen.identities.clear();
        drop(seen);
        self.invalidations.send_replace(());
    }

    /// Tells of each time that all were forgotten.
    pub(super) fn subscribe(&self) -> watch::Receiver<()> {
        self.invalidations.subscribe()
    }

    /// Says whether the use of a token is to be put on record, once.
    pub(super) fn should_record_use(&self, token: &AccessToken, now: Timestamp) -> bool {
        let is_recent = |at: Timestamp| now.duration_since(at) < USE_RECORD_INTERVAL;
        if token.used_at.is_some_and(is_recent) {
            return false;
        }
        let mut seen = self.lock();
        if seen.use_recorded_at.get(&token.id).is_some_and(|at| is_recent(*at)) {
            return false;
        }
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
