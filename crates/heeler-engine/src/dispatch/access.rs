//! Who may do what, inside a turn.

use heeler_model::{API_TOKEN, AccessName, Login, Person, Scope, Token, TokenId, secret_hash};
use heeler_store::DbError;
use jiff::Timestamp;

use super::turn::{Outcome, Turn};
use crate::access::{AccessOrder, LOGIN_LASTS, LOGINS_MAX, LoginBy, TOKEN_PREFIX, TOKENS_MAX};
use crate::command::{Answer, Refused, RefusedKind};

impl Turn<'_, '_> {
    pub(super) fn access(&mut self, order: AccessOrder, by: &str) -> Result<Outcome, DbError> {
        if !matches!(order, AccessOrder::TokensUsed { .. }) {
            tracing::info!(?order, by, "access");
        }
        match order {
            AccessOrder::CreateToken { name, scope, hash, expires_at } => {
                let id = TokenId::of_hash(&hash);
                let (created_at, created_by) = (self.now, by.to_owned());
                let (used_at, revoked_at) = (None, None);
                let token = Token {
                    id,
                    name,
                    scope,
                    created_at,
                    created_by,
                    expires_at,
                    used_at,
                    revoked_at,
                };
                self.create_token(&token, &hash)
            }
            AccessOrder::RevokeToken { token } => self.revoke_token(&token),
            AccessOrder::TokensUsed { tokens } => {
                tokens.iter().try_for_each(|id| self.tx.set_token_used(id, self.now))?;
                Ok(Ok(None))
            }
            AccessOrder::SetPassword { name, scope, hash } => self.set_password(name, scope, &hash),
            AccessOrder::RemovePassword { name } => match self.tx.remove_person(&name)? {
                true => done(format!("{name} has no password any more")),
                false => refuse(RefusedKind::NotFound, format!("{name} has no password")),
            },
            AccessOrder::Login { hash, who } => self.log_in(&hash, who),
            AccessOrder::Logout { hash } => {
                self.tx.remove_login(&hash)?;
                done("logged out".to_owned())
            }
            AccessOrder::LogoutAll => {
                let count = self.tx.remove_logins()?;
                done(format!("{count} logged out"))
            }
        }
    }

    fn create_token(&mut self, token: &Token, hash: &str) -> Result<Outcome, DbError> {
        let Token { id, name, expires_at, .. } = token;
        if !is_hash(hash) {
            return refuse(RefusedKind::Usage, "the hash of a token is none".to_owned());
        }
        if name.as_str() == API_TOKEN {
            let message = format!("the daemon makes {API_TOKEN} by itself");
            return refuse(RefusedKind::NotAllowed, message);
        }
        if expires_at.is_some_and(|at| at <= self.now) {
            return refuse(RefusedKind::Usage, "the token would have expired".to_owned());
        }
        if let Some(known) = self.tx.token(name.as_str())? {
            let message = format!("there is a token {name} already ({})", known.id);
            let hint = format!("another name, or heeler token revoke {name}");
            return Ok(Err(Refused::new(RefusedKind::Busy, message).hint(hint)));
        }
        if self.tx.count_tokens()? >= TOKENS_MAX {
            let message = format!("there are {TOKENS_MAX} tokens already, the most");
            let refused = Refused::new(RefusedKind::Busy, message);
            return Ok(Err(refused.hint("heeler token revoke")));
        }
        self.tx.insert_token(token, hash)?;
        done(format!("token {name} is {id}"))
    }

    fn revoke_token(&mut self, name_or_id: &str) -> Result<Outcome, DbError> {
        // Whoever gives the token itself means it, and it is told nobody.
        let asked = match name_or_id.starts_with(TOKEN_PREFIX) {
            true => TokenId::of_hash(&secret_hash(name_or_id)).to_string(),
            false => name_or_id.to_owned(),
        };
        let Some(token) = self.tx.token(&asked)? else {
            let refused = Refused::new(RefusedKind::NotFound, format!("there is no token {asked}"));
            return Ok(Err(refused.hint("heeler token list")));
        };
        let name = &token.name;
        if !self.tx.revoke_token(&token.id, self.now)? {
            return done(format!("token {name} ({}) was revoked already", token.id));
        }
        let again = match name.as_str() {
            API_TOKEN => "; the next start makes another",
            _ => "",
        };
        done(format!("token {name} ({}) counts no more{again}", token.id))
    }

    fn set_password(
        &mut self,
        name: AccessName,
        scope: Option<Scope>,
        hash: &str,
    ) -> Result<Outcome, DbError> {
        let known = self.tx.person(&name)?.map(|(person, _)| person);
        let scope = scope.or(known.as_ref().map(|known| known.scope)).unwrap_or(Scope::Admin);
        let created_at = known.as_ref().map_or(self.now, |known| known.created_at);
        let person = Person { name, scope, created_at, changed_at: self.now };
        self.tx.put_person(&person, hash)?;
        let again = if known.is_some() { "another" } else { "a" };
        done(format!("{} has {again} password, scope {scope}", person.name))
    }

    fn log_in(&mut self, hash: &str, by: LoginBy) -> Result<Outcome, DbError> {
        let not_now = |message: &str| refuse(RefusedKind::NotAllowed, message.to_owned());
        if !is_hash(hash) {
            return refuse(RefusedKind::Usage, "the hash of a cookie is none".to_owned());
        }
        let (who, scope, person) = match by {
            LoginBy::Link { name, scope } => (name, scope, None),
            LoginBy::Password { name, hash } => match self.tx.person(&name)? {
                Some((person, current)) if current == hash => {
                    (name.to_string(), person.scope, Some(name))
                }
                _ => return not_now("the password was changed meanwhile"),
            },
        };
        let now = self.now;
        let expires_at = now.checked_add(LOGIN_LASTS).unwrap_or(Timestamp::MAX);
        let login = Login { who, scope, person, created_at: now, expires_at };
        self.tx.insert_login(&login, hash)?;
        if self.tx.count_logins()? > LOGINS_MAX {
            self.tx.remove_login(hash)?;
            return not_now("too many browsers are logged in; heeler token revoke --logins");
        }
        done(format!("{} is logged in", login.who))
    }
}

/// Says whether something is a hash as we write it.
fn is_hash(hash: &str) -> bool {
    hash.len() == 64 && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn done(message: String) -> Result<Outcome, DbError> {
    Ok(Ok(Some(Answer::Done { message })))
}

fn refuse(kind: RefusedKind, message: String) -> Result<Outcome, DbError> {
    Ok(Err(Refused::new(kind, message)))
}
