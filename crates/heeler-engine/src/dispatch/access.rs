//! Applies changes of users, tokens and logins in a transaction.
//!
//! Start at [`DispatchTransaction::apply_access_operation`].

use heeler_model::{
    API_TOKEN, AccessName, AccessScope, AccessToken, BrowserLogin, TokenId, UserAccount,
    secret_hash,
};
use jiff::Timestamp;

use super::transaction::DispatchTransaction;
use crate::access::{
    AccessOperation, LOGIN_LIFETIME, LOGINS_MAX, LoginMethod, TOKEN_PREFIX, TOKENS_MAX,
};
use crate::command::{CommandReply, DaemonCommandError, DaemonCommandErrorKind};
use crate::dispatch_failure::DispatchFailure;

impl DispatchTransaction<'_, '_> {
    pub(super) fn apply_access_operation(
        &mut self,
        order: AccessOperation,
        by: &str,
    ) -> Result<Option<CommandReply>, DispatchFailure> {
        // The server reports used tokens all the time, which would fill the log.
        if !matches!(order, AccessOperation::TokensUsed { .. }) {
            tracing::info!(?order, by, "access");
        }
        match order {
            AccessOperation::CreateToken { name, scope, hash, expires_at } => {
                let id = TokenId::from_hash(&hash);
                let (created_at, created_by) = (self.now, by.to_owned());
                let (used_at, revoked_at) = (None, None);
                let token = AccessToken {
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
            AccessOperation::RevokeToken { token } => self.revoke_token(&token),
            AccessOperation::TokensUsed { tokens } => {
                tokens.iter().try_for_each(|id| self.tx.set_token_used(id, self.now))?;
                Ok(None)
            }
            AccessOperation::SetPassword { name, scope, hash } => {
                self.set_password(name, scope, &hash)
            }
            AccessOperation::RemovePassword { name } => match self.tx.remove_user(&name)? {
                true => done(format!("{name} has no password any more")),
                false => {
                    refuse(DaemonCommandErrorKind::NotFound, format!("{name} has no password"))
                }
            },
            AccessOperation::Login { hash, who } => self.log_in(&hash, who),
            AccessOperation::Logout { hash } => {
                self.tx.remove_login(&hash)?;
                done("logged out".to_owned())
            }
            AccessOperation::LogoutAll => {
                let count = self.tx.remove_logins()?;
                done(format!("{count} logged out"))
            }
        }
    }

    fn create_token(
        &mut self,
        token: &AccessToken,
        hash: &str,
    ) -> Result<Option<CommandReply>, DispatchFailure> {
        let AccessToken { id, name, expires_at, .. } = token;
        // Anything else, such as the secret itself, must not be stored.
        if !is_hash(hash) {
            return refuse(DaemonCommandErrorKind::Usage, "the token hash is invalid".to_owned());
        }
        if name.as_str() == API_TOKEN {
            let message = format!("the token name {API_TOKEN} is reserved for the daemon");
            return refuse(DaemonCommandErrorKind::NotAllowed, message);
        }
        if expires_at.is_some_and(|at| at <= self.now) {
            return refuse(
                DaemonCommandErrorKind::Usage,
                "the token's expiry time is in the past".to_owned(),
            );
        }
        if let Some(known) = self.tx.token(name.as_str())? {
            let message = format!("token {name} already exists ({})", known.id);
            let hint = format!("choose another name, or heeler token revoke {name}");
            return Err(DaemonCommandError::new(DaemonCommandErrorKind::Busy, message)
                .with_hint(hint)
                .into());
        }
        if self.tx.count_tokens()? >= TOKENS_MAX {
            let message = format!("the limit of {TOKENS_MAX} tokens is reached");
            let refused = DaemonCommandError::new(DaemonCommandErrorKind::Busy, message);
            return Err(refused.with_hint("heeler token revoke").into());
        }
        self.tx.insert_token(token, hash)?;
        done(format!("token {name} is {id}"))
    }

    fn revoke_token(&mut self, name_or_id: &str) -> Result<Option<CommandReply>, DispatchFailure> {
        // A caller may pass the secret itself; messages then show the ID, never the secret.
        let asked = match name_or_id.starts_with(TOKEN_PREFIX) {
            true => TokenId::from_hash(&secret_hash(name_or_id)).to_string(),
            false => name_or_id.to_owned(),
        };
        let Some(token) = self.tx.token(&asked)? else {
            let refused = DaemonCommandError::new(
                DaemonCommandErrorKind::NotFound,
                format!("there is no token {asked}"),
            );
            return Err(refused.with_hint("heeler token list").into());
        };
        let name = &token.name;
        if !self.tx.revoke_token(&token.id, self.now)? {
            return done(format!("token {name} ({}) was revoked already", token.id));
        }
        let again = match name.as_str() {
            API_TOKEN => "; the next start creates another",
            _ => "",
        };
        done(format!("token {name} ({}) is revoked{again}", token.id))
    }

    fn set_password(
        &mut self,
        name: AccessName,
        scope: Option<AccessScope>,
        hash: &str,
    ) -> Result<Option<CommandReply>, DispatchFailure> {
        let known = self.tx.user(&name)?.map(|(person, _)| person);
        let scope = scope.or(known.as_ref().map(|known| known.scope)).unwrap_or(AccessScope::Admin);
        let created_at = known.as_ref().map_or(self.now, |known| known.created_at);
        let person = UserAccount { name, scope, created_at, changed_at: self.now };
        self.tx.put_user(&person, hash)?;
        let again = if known.is_some() { "another" } else { "a" };
        done(format!("{} has {again} password, scope {scope}", person.name))
    }

    fn log_in(
        &mut self,
        hash: &str,
        by: LoginMethod,
    ) -> Result<Option<CommandReply>, DispatchFailure> {
        let not_now =
            |message: &str| refuse(DaemonCommandErrorKind::NotAllowed, message.to_owned());
        if !is_hash(hash) {
            return refuse(DaemonCommandErrorKind::Usage, "the cookie hash is invalid".to_owned());
        }
        let (who, scope, person) = match by {
            LoginMethod::Link { name, scope } => (name, scope, None),
            LoginMethod::Password { name, hash } => match self.tx.user(&name)? {
                // The password was checked outside the transaction and may have been changed since.
                Some((person, current)) if current == hash => {
                    (name.to_string(), person.scope, Some(name))
                }
                _ => return not_now("the password was changed meanwhile"),
            },
        };
        let now = self.now;
        // A lifetime beyond the last timestamp never ends.
        let expires_at = now.checked_add(LOGIN_LIFETIME).unwrap_or(Timestamp::MAX);
        let login = BrowserLogin { caller: who, scope, user: person, created_at: now, expires_at };
        self.tx.insert_login(&login, hash)?;
        // Inserting prunes expired logins first, so the count is exact only afterwards.
        if self.tx.count_logins()? > LOGINS_MAX {
            self.tx.remove_login(hash)?;
            return not_now("too many browsers are logged in; heeler token revoke --logins");
        }
        done(format!("{} is logged in", login.caller))
    }
}

/// Returns true if the text is a hash in this program's format.
fn is_hash(hash: &str) -> bool {
    hash.len() == 64 && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn done(message: String) -> Result<Option<CommandReply>, DispatchFailure> {
    Ok(Some(CommandReply::Done { message }))
}

fn refuse(
    kind: DaemonCommandErrorKind,
    message: String,
) -> Result<Option<CommandReply>, DispatchFailure> {
    Err(DaemonCommandError::new(kind, message).into())
}
