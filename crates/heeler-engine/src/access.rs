//! Network access to a daemon: secrets, and the commands that create and revoke access.
//!
//! Secrets are random and are never stored. Only their hashes reach the dispatcher. Start at
//! [`AccessOperation`].

use std::fmt;
use std::io;

use camino::Utf8PathBuf;
use heeler_model::{
    API_TOKEN, AccessName, AccessScope, AccessToken, TokenId, error_chain, secret_hash,
};
use heeler_store::{DatabaseError, StateDir, Store, StoreTransaction, StoreWriteError};
use heeler_transcript::{DiskError, OsDisk, replace_file, untrusted_file};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::fault::{self, FaultPoint};

/// Maximum number of valid tokens.
pub const TOKENS_MAX: u64 = 1_000;

/// Maximum number of logged-in browsers.
pub const LOGINS_MAX: u64 = 1_000;

/// Lifetime of a browser login.
pub const LOGIN_LIFETIME: SignedDuration = SignedDuration::from_hours(14 * 24);

/// Creator recorded for the daemon's own API token.
const DAEMON_CREATOR: &str = "the daemon";

/// Prefix of every token, so that secret scanners can recognize leaked ones.
pub(crate) const TOKEN_PREFIX: &str = "heeler_";

const SECRET_BYTES: usize = 32;

/// Maximum number of bytes read from a token file.
const TOKEN_FILE_BYTES_MAX: u64 = 1024;

/// Unguessable random secret.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessSecret(String);

impl AccessSecret {
    /// Generates a secret.
    pub fn new() -> Result<AccessSecret, SecretGenerationError> {
        let mut bytes = [0_u8; SECRET_BYTES];
        getrandom::fill(&mut bytes).map_err(|error| SecretGenerationError(error.to_string()))?;
        Ok(AccessSecret(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// Generates a secret with the token prefix `heeler_`.
    pub fn token() -> Result<AccessSecret, SecretGenerationError> {
        AccessSecret::new()
            .map(|AccessSecret(digits)| AccessSecret(format!("{TOKEN_PREFIX}{digits}")))
    }

    /// Returns the hash that the store keeps.
    pub fn hash(&self) -> String {
        secret_hash(&self.0)
    }

    /// Returns the secret itself. Pass it only to its owner.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for AccessSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A secret must not reach a log by accident.
        f.write_str("Secret")
    }
}

/// The operating system returned no random bytes.
#[derive(Debug, Error)]
#[error("the system returned no random bytes: {0}")]
pub struct SecretGenerationError(String);

/// Change to users, tokens and logins.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessOperation {
    /// Create a token.
    CreateToken {
        name: AccessName,
        /// Actions that the token allows.
        scope: AccessScope,
        /// Hash of the secret.
        hash: String,
        /// Expiry time; `None` means that the token never expires.
        expires_at: Option<Timestamp>,
    },
    /// Revoke a token.
    RevokeToken {
        /// Name or ID of the token.
        token: String,
    },
    /// Record that tokens were used.
    TokensUsed { tokens: Vec<TokenId> },
    /// Set a user's password. The user's logins end.
    SetPassword {
        name: AccessName,
        /// New scope. `None` keeps the current one; a new user gets `admin`.
        scope: Option<AccessScope>,
        /// Argon2 hash of the password.
        hash: String,
    },
    /// Remove a user's password. The user's logins end.
    RemovePassword { name: AccessName },
    /// Log in a browser after its user was authenticated.
    Login {
        /// Hash of the login cookie.
        hash: String,
        who: LoginMethod,
    },
    /// Log out one browser.
    Logout {
        /// Hash of the login cookie.
        hash: String,
    },
    /// Log out every browser.
    LogoutAll,
}

/// Method by which a browser's user was authenticated.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoginMethod {
    /// Password. The login counts only if the user still has this password.
    Password {
        name: AccessName,
        /// Hash that the password matched.
        hash: String,
    },
    /// One-time link.
    Link {
        /// User that the link was made for.
        name: String,
        /// Actions that the link allows.
        scope: AccessScope,
    },
}

/// Returns the given token name, or a placeholder if the caller passed the token's secret.
fn redacted_token_name(token: &str) -> &str {
    if token.starts_with(TOKEN_PREFIX) { "by the token itself" } else { token }
}

/// Omits hashes, because password hashes must not reach logs.
impl fmt::Debug for AccessOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AccessOperation::CreateToken { name, scope, .. } => {
                write!(f, "CreateToken({name}, {scope})")
            }
            AccessOperation::RevokeToken { token } => {
                write!(f, "RevokeToken({})", redacted_token_name(token))
            }
            AccessOperation::TokensUsed { tokens } => write!(f, "TokensUsed({tokens:?})"),
            AccessOperation::SetPassword { name, scope, .. } => {
                write!(f, "SetPassword({name}, {scope:?})")
            }
            AccessOperation::RemovePassword { name } => write!(f, "RemovePassword({name})"),
            AccessOperation::Login { who, .. } => match who {
                LoginMethod::Password { name, .. } => write!(f, "Login({name})"),
                LoginMethod::Link { name, .. } => write!(f, "Login({name} by link)"),
            },
            AccessOperation::Logout { .. } => f.write_str("Logout"),
            AccessOperation::LogoutAll => f.write_str("LogoutAll"),
        }
    }
}

/// Failure to provide the daemon's own API token.
#[derive(Debug, Error)]
pub enum ApiTokenError {
    #[error(transparent)]
    Secret(#[from] SecretGenerationError),
    #[error("cannot read {path}")]
    Read {
        path: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Write(#[from] DiskError),
    /// The token cannot be stored.
    #[error("cannot record the token of {path}: {reason}")]
    Record { path: Utf8PathBuf, reason: String },
}

/// Makes sure that the file `api-token` holds a valid token. A token that is missing from the file
/// is revoked and replaced.
///
/// The token is stored before the file is written, so a token read from the file always works. A
/// token that was stored without reaching the file was never seen by anyone; the next start revokes
/// it.
pub(crate) fn ensure_api_token(
    dir: &StateDir,
    store: &Store,
    now: Timestamp,
) -> Result<(), ApiTokenError> {
    let path = dir.api_token();
    let held = match untrusted_file::read(&path, TOKEN_FILE_BYTES_MAX) {
        Ok(bytes) => Some(secret_hash(String::from_utf8_lossy(&bytes).trim())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(source) => return Err(ApiTokenError::Read { path, source }),
    };
    // The secret is made before the transaction knows whether it is needed; unused it is dropped.
    let secret = AccessSecret::token()?;
    let hash = secret.hash();
    // The hash is committed before the file is written, so a token from the file always works.
    let is_made = store.write(move |tx| renew_api_token(tx, held.as_deref(), &hash, now));
    let is_made = is_made.map_err(|error: StoreWriteError<DatabaseError>| {
        ApiTokenError::Record { path: path.clone(), reason: error_chain(&error) }
    })?;
    if is_made {
        // A kill here leaves a token that nobody has seen. The next start revokes it.
        fault::reach(FaultPoint::BeforeApiToken);
        replace_file(&OsDisk, &path, format!("{}\n", secret.reveal()).as_bytes())?;
    }
    Ok(())
}

/// Revokes the token of the file `api-token`, and removes the file. Returns true if there was one.
///
/// Agents can read the file, so a token that was ever in it must not work any more.
pub(crate) fn retire_api_token(
    dir: &StateDir,
    store: &Store,
    now: Timestamp,
) -> Result<bool, ApiTokenError> {
    let path = dir.api_token();
    let revoked = store.write(move |tx| match tx.token(API_TOKEN)? {
        Some(known) => tx.revoke_token(&known.id, now).map(|_| true),
        None => Ok(false),
    });
    let is_revoked = revoked.map_err(|error: StoreWriteError<DatabaseError>| {
        ApiTokenError::Record { path: path.clone(), reason: error_chain(&error) }
    })?;
    // A kill here leaves a file with a token that is revoked. The next start removes the file.
    match std::fs::remove_file(&path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(is_revoked),
        Err(source) => Err(ApiTokenError::Read { path, source }),
    }
}

/// Stores a new token unless the one in the file is valid. Returns true if a token was stored.
fn renew_api_token(
    tx: &mut StoreTransaction<'_>,
    held: Option<&str>,
    hash: &str,
    now: Timestamp,
) -> Result<bool, DatabaseError> {
    let known = tx.token(API_TOKEN)?;
    let of_held = held.map(|held| tx.token_of_hash(held)).transpose()?.flatten();
    // The name alone proves nothing: the file may hold an older token.
    if let (Some(known), Some(held)) = (&known, &of_held)
        && known.id == held.id
    {
        return Ok(false);
    }
    if let Some(known) = known {
        tx.revoke_token(&known.id, now)?;
    }
    let token = AccessToken {
        id: TokenId::from_hash(hash),
        name: API_TOKEN.parse().expect("it is a name"),
        scope: AccessScope::Admin,
        created_at: now,
        created_by: DAEMON_CREATOR.to_owned(),
        expires_at: None,
        used_at: None,
        revoked_at: None,
    };
    tx.insert_token(&token, hash)?;
    Ok(true)
}

/// Returns true if any user or token exists besides the daemon's own API token, so that a remote
/// client could authenticate.
pub fn has_remote_access(
    reader: &heeler_store::StoreReader,
    now: Timestamp,
) -> Result<bool, DatabaseError> {
    let of_people = |token: &AccessToken| token.name.as_str() != API_TOKEN && token.is_valid(now);
    Ok(!reader.users()?.is_empty() || reader.tokens()?.iter().any(of_people))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use camino::Utf8Path;
    use heeler_store::StoreReader;

    use super::*;

    struct AccessFixture {
        _temp: tempfile::TempDir,
        dir: StateDir,
        store: Store,
    }

    impl AccessFixture {
        fn new() -> AccessFixture {
            let temp = tempfile::tempdir().unwrap();
            let dir = StateDir::create(Utf8Path::from_path(temp.path()).unwrap()).unwrap();
            let store = Store::open(&dir, "test", Timestamp::UNIX_EPOCH).unwrap().store;
            AccessFixture { _temp: temp, dir, store }
        }

        fn keep(&self) -> String {
            ensure_api_token(&self.dir, &self.store, Timestamp::UNIX_EPOCH).unwrap();
            std::fs::read_to_string(self.dir.api_token()).unwrap()
        }

        fn counts(&self, text: &str) -> bool {
            let reader = StoreReader::open(&self.dir).unwrap();
            let token = reader.token_of_hash(&secret_hash(text.trim())).unwrap();
            token.is_some_and(|token| token.is_valid(Timestamp::UNIX_EPOCH))
        }
    }

    #[test]
    fn a_secret_is_random_and_shows_itself_to_nobody_by_accident() {
        let (one, two) = (AccessSecret::token().unwrap(), AccessSecret::token().unwrap());
        assert_ne!(one, two);
        assert_eq!(one.reveal().len(), TOKEN_PREFIX.len() + 2 * SECRET_BYTES);
        assert_eq!(format!("{one:?}"), "Secret");
    }

    #[test]
    fn the_first_start_makes_a_token_for_the_user_alone_and_later_ones_keep_it() {
        let rig = AccessFixture::new();
        let first = rig.keep();
        assert!(rig.counts(&first));
        let mode = rig.dir.api_token().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(rig.keep(), first);
    }

    #[test]
    fn a_token_whose_file_is_gone_or_holds_something_else_is_revoked_and_made_anew() {
        let rig = AccessFixture::new();
        let first = rig.keep();
        std::fs::remove_file(rig.dir.api_token()).unwrap();
        let second = rig.keep();
        assert_ne!(first, second);
        assert_eq!((rig.counts(&first), rig.counts(&second)), (false, true));
        std::fs::write(rig.dir.api_token(), &first).unwrap();
        let third = rig.keep();
        assert_eq!([&first, &second, &third].map(|it| rig.counts(it)), [false, false, true]);
    }

    #[test]
    fn the_daemons_own_token_lets_nobody_in_who_is_elsewhere() {
        let rig = AccessFixture::new();
        rig.keep();
        let now = Timestamp::UNIX_EPOCH;
        let is_let_in = || has_remote_access(&StoreReader::open(&rig.dir).unwrap(), now).unwrap();
        assert!(!is_let_in());
        let hash = secret_hash("x");
        let token = AccessToken {
            id: TokenId::from_hash(&hash),
            name: "ci".parse().unwrap(),
            scope: AccessScope::Read,
            created_at: now,
            created_by: "me".to_owned(),
            expires_at: None,
            used_at: None,
            revoked_at: None,
        };
        let made: Result<(), StoreWriteError<DatabaseError>> =
            rig.store.write(move |tx| tx.insert_token(&token, &hash));
        made.unwrap();
        assert!(is_let_in());
    }

    #[test]
    fn a_link_in_the_place_of_the_file_is_not_followed() {
        let rig = AccessFixture::new();
        std::os::unix::fs::symlink("/etc/passwd", rig.dir.api_token()).unwrap();
        let error = ensure_api_token(&rig.dir, &rig.store, Timestamp::UNIX_EPOCH).unwrap_err();
        assert!(matches!(error, ApiTokenError::Read { .. }), "{error}");
    }
}
