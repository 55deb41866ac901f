//! Who may use a daemon over the network: secrets, and the orders that change who they belong to.
//!
//! Secrets are random and stay with whoever made them; what reaches the dispatcher is their hash.
//! Start at [`AccessOperation`].

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

/// How many tokens count at once, at most.
pub const TOKENS_MAX: u64 = 1_000;

/// How many browsers are logged in at once, at most.
pub const LOGINS_MAX: u64 = 1_000;

/// How long a browser stays logged in.
pub const LOGIN_LIFETIME: SignedDuration = SignedDuration::from_hours(14 * 24);

/// Who makes the token that a daemon makes by itself.
const DAEMON_CREATOR: &str = "the daemon";

/// What every token begins with, so that those who look for leaked secrets know it.
pub(crate) const TOKEN_PREFIX: &str = "heeler_";

/// How many random bytes a secret has.
const SECRET_BYTES: usize = 32;

/// The most that is read of a file with a token.
const TOKEN_FILE_BYTES_MAX: u64 = 1024;

/// Something random that nobody can guess.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessSecret(String);

impl AccessSecret {
    /// Makes one.
    pub fn new() -> Result<AccessSecret, SecretGenerationError> {
        let mut bytes = [0_u8; SECRET_BYTES];
        getrandom::fill(&mut bytes).map_err(|error| SecretGenerationError(error.to_string()))?;
        Ok(AccessSecret(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// Makes one that looks like a token.
    pub fn token() -> Result<AccessSecret, SecretGenerationError> {
        AccessSecret::new()
            .map(|AccessSecret(digits)| AccessSecret(format!("{TOKEN_PREFIX}{digits}")))
    }

    /// Returns what is on record of it.
    pub fn hash(&self) -> String {
        secret_hash(&self.0)
    }

    /// Returns it itself, for the one who may know it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for AccessSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The machine gives nothing random.
#[derive(Debug, Error)]
#[error("the machine gives no random bytes: {0}")]
pub struct SecretGenerationError(String);

/// A change of who may do what.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessOperation {
    /// Let the bearer of a secret in.
    CreateToken {
        /// What it is called.
        name: AccessName,
        /// What its bearer may.
        scope: AccessScope,
        /// The hash of the secret.
        hash: String,
        /// When it ends to count by itself.
        expires_at: Option<Timestamp>,
    },
    /// Let the bearer of a secret in no more.
    RevokeToken {
        /// Its name, or its id.
        token: String,
    },
    /// Note that tokens are in use.
    TokensUsed {
        /// Which.
        tokens: Vec<TokenId>,
    },
    /// Give a person a password; their logins end.
    SetPassword {
        /// Who.
        name: AccessName,
        /// What they may; as before, or everything, if left out.
        scope: Option<AccessScope>,
        /// The hash of the password, as Argon2 writes it.
        hash: String,
    },
    /// Take a person's password away; their logins end.
    RemovePassword {
        /// Who.
        name: AccessName,
    },
    /// Let a browser in that has proved who it is.
    Login {
        /// The hash of its cookie.
        hash: String,
        /// Who logs in.
        who: LoginMethod,
    },
    /// Let a browser in no more.
    Logout {
        /// The hash of its cookie.
        hash: String,
    },
    /// Let no browser in that is logged in now.
    LogoutAll,
}

/// How somebody proved who they are.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoginMethod {
    /// By a password. It counts if it is still theirs.
    Password {
        /// Who.
        name: AccessName,
        /// The hash that their password fits.
        hash: String,
    },
    /// By a one-time link.
    Link {
        /// Whose it was.
        name: String,
        /// What it allows.
        scope: AccessScope,
    },
}

/// Returns what a token is called by somebody, unless that is the token itself.
fn redacted_token_name(token: &str) -> &str {
    if token.starts_with(TOKEN_PREFIX) { "by the token itself" } else { token }
}

/// Says what is ordered, without hashes: those of passwords are nobody's business.
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

/// Why there is no token of the daemon's own.
#[derive(Debug, Error)]
pub enum ApiTokenError {
    /// There is no secret to be had.
    #[error(transparent)]
    Secret(#[from] SecretGenerationError),
    /// Its file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: Utf8PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Its file cannot be written.
    #[error(transparent)]
    Write(#[from] DiskError),
    /// It cannot be put on record.
    #[error("cannot record the token of {path}: {reason}")]
    Record {
        /// The file.
        path: Utf8PathBuf,
        /// The cause.
        reason: String,
    },
}

/// Makes sure that `api-token` holds a token that counts. One whose file is gone is revoked.
///
/// It is on record before it is in the file: whoever reads the file can use it. What is on record
/// without a file nobody has seen, and the next start revokes it.
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
    let secret = AccessSecret::token()?;
    let hash = secret.hash();
    let is_made = store.write(move |tx| renew_api_token(tx, held.as_deref(), &hash, now));
    let is_made = is_made.map_err(|error: StoreWriteError<DatabaseError>| {
        ApiTokenError::Record { path: path.clone(), reason: error_chain(&error) }
    })?;
    if is_made {
        fault::reach(FaultPoint::BeforeApiToken);
        replace_file(&OsDisk, &path, format!("{}\n", secret.reveal()).as_bytes())?;
    }
    Ok(())
}

/// Records another token unless the one that is held counts; says whether it did.
fn renew_api_token(
    tx: &mut StoreTransaction<'_>,
    held: Option<&str>,
    hash: &str,
    now: Timestamp,
) -> Result<bool, DatabaseError> {
    let known = tx.token(API_TOKEN)?;
    let of_held = held.map(|held| tx.token_of_hash(held)).transpose()?.flatten();
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

/// Says whether a person gave somebody access who is not at this machine.
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
