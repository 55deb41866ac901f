//! Whose a secret is, remembered for a moment: most requests come from those who were just there.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use heeler_model::{Login, Scope, Token, TokenId};
use heeler_query::{QueryError, Records};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;

/// How long it is remembered. Every change through the daemon is heard of at once; a database that
/// was brought back from a backup is looked at after this.
const REMEMBERED: Duration = Duration::from_secs(2);

/// How many are remembered; one more, and all are looked up anew.
const KNOWN_MAX: usize = 1_024;

/// How exactly it is on record when a token was used.
const USED_EVERY: SignedDuration = SignedDuration::from_mins(10);

/// What a secret is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Token,
    Cookie,
}

/// Whose a secret is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Identity {
    Token(Token),
    Login(Login),
}

impl Identity {
    pub(super) fn counts(&self, now: Timestamp) -> bool {
        match self {
            Identity::Token(token) => token.counts(now),
            Identity::Login(login) => login.expires_at > now,
        }
    }

    pub(super) fn by(&self) -> String {
        match self {
            Identity::Token(token) => format!("token {}", token.name),
            Identity::Login(login) => login.who.clone(),
        }
    }

    pub(super) fn scope(&self) -> Scope {
        match self {
            Identity::Token(token) => token.scope,
            Identity::Login(login) => login.scope,
        }
    }
}

/// Who was seen.
#[derive(Debug, Default)]
pub(super) struct Known {
    seen: Mutex<Seen>,
    forgotten: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Seen {
    /// Counts how often all were forgotten: what was looked up before that is not remembered.
    age: u64,
    identities: HashMap<(Kind, String), (Identity, Instant)>,
    /// When it was last told that a token is in use.
    told: HashMap<TokenId, Timestamp>,
}

impl Known {
    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whose a hash is if that was just looked up, else what [`Known::look`] needs.
    pub(super) fn remembered(&self, kind: Kind, hash: &str) -> Result<Identity, u64> {
        let seen = self.seen();
        match seen.identities.get(&(kind, hash.to_owned())) {
            Some((identity, at)) if at.elapsed() < REMEMBERED => Ok(identity.clone()),
            _ => Err(seen.age),
        }
    }

    /// Looks up whose a hash is. It may wait for a disk.
    pub(super) fn look(
        records: &Records,
        kind: Kind,
        hash: &str,
    ) -> Result<Option<Identity>, QueryError> {
        Ok(match kind {
            Kind::Token => records.token_of_hash(hash)?.map(Identity::Token),
            Kind::Cookie => records.login_of_hash(hash)?.map(Identity::Login),
        })
    }

    /// Remembers what was looked up, unless all was forgotten since.
    pub(super) fn remember(&self, kind: Kind, hash: &str, identity: &Identity, age: u64) {
        let mut seen = self.seen();
        if seen.age != age {
            return;
        }
        if seen.identities.len() >= KNOWN_MAX {
            seen.identities.clear();
        }
        seen.identities.insert((kind, hash.to_owned()), (identity.clone(), Instant::now()));
    }

    /// Forgets all.
    pub(super) fn forget(&self) {
        let mut seen = self.seen();
        seen.age += 1;
        seen.identities.clear();
        drop(seen);
        self.forgotten.send_replace(());
    }

    /// Tells of each time that all were forgotten.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.forgotten.subscribe()
    }

    /// Says whether the use of a token is to be put on record, once.
    pub(super) fn is_use_due(&self, token: &Token, now: Timestamp) -> bool {
        let is_recent = |at: Timestamp| now.duration_since(at) < USED_EVERY;
        if token.used_at.is_some_and(is_recent) {
            return false;
        }
        let mut seen = self.seen();
        if seen.told.get(&token.id).is_some_and(|at| is_recent(*at)) {
            return false;
        }
        seen.told.retain(|_, at| is_recent(*at));
        seen.told.insert(token.id.clone(), now);
        true
    }
}

#[cfg(test)]
mod tests {
    use heeler_model::secret_hash;

    use super::*;

    fn token(used_at: Option<Timestamp>) -> Token {
        Token {
            id: TokenId::of_hash(&secret_hash("x")),
            name: "ci".parse().unwrap(),
            scope: Scope::Read,
            created_at: Timestamp::UNIX_EPOCH,
            created_by: "me".to_owned(),
            expires_at: None,
            used_at,
            revoked_at: None,
        }
    }

    #[test]
    fn what_was_looked_up_before_a_change_is_not_remembered_after_it() {
        let (known, identity) = (Known::default(), Identity::Token(token(None)));
        let age = known.remembered(Kind::Token, "h").unwrap_err();
        known.forget();
        known.remember(Kind::Token, "h", &identity, age);
        let age = known.remembered(Kind::Token, "h").unwrap_err();
        known.remember(Kind::Token, "h", &identity, age);
        assert_eq!(known.remembered(Kind::Token, "h"), Ok(identity));
        assert!(known.remembered(Kind::Cookie, "h").is_err(), "a token is no cookie");
        known.forget();
        assert!(known.remembered(Kind::Token, "h").is_err());
    }

    #[test]
    fn no_more_are_remembered_than_there_is_room_for() {
        let (known, identity) = (Known::default(), Identity::Token(token(None)));
        for number in 0..=KNOWN_MAX {
            known.remember(Kind::Token, &number.to_string(), &identity, 0);
        }
        assert_eq!(known.seen().identities.len(), 1);
    }

    #[test]
    fn the_use_of_a_token_is_told_now_and_then() {
        let (known, now) = (Known::default(), Timestamp::UNIX_EPOCH);
        assert!(known.is_use_due(&token(None), now));
        assert!(!known.is_use_due(&token(None), now));
        let later = now + USED_EVERY;
        assert!(known.is_use_due(&token(Some(now)), later));
        assert!(!Known::default().is_use_due(&token(Some(later)), later));
    }
}
