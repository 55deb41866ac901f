//! Private key of a GitHub App, and the JSON Web Tokens that it signs.
//!
//! Start at [`AppPrivateKey::from_pem`].

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jiff::Timestamp;
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use serde_json::json;
use thiserror::Error;

/// Seconds by which a token is predated, as GitHub advises, because clocks differ.
const CLOCK_SKEW_SECS: i64 = 60;

/// Seconds for which a token is valid. GitHub's limit is 600.
const JWT_SECS: i64 = 540;

/// Longest key file, in bytes.
const PEM_BYTES_MAX: usize = 64 << 10;

/// Private key of a GitHub App.
#[derive(Clone)]
pub struct AppPrivateKey(Arc<RsaKeyPair>);

/// Error for a text that is no usable private key. It contains nothing of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AppKeyError {
    #[error("the private key is not in PEM form; use the .pem file that GitHub generated")]
    NotPem,
    #[error("the private key cannot be used: an RSA key of at least 2048 bits is needed")]
    NotRsa,
    #[error("the private key could not sign")]
    Signing,
}

impl fmt::Debug for AppPrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AppPrivateKey")
    }
}

impl AppPrivateKey {
    /// Parses a key in PEM form: PKCS#1, as GitHub generates it, or PKCS#8.
    pub fn from_pem(text: &str) -> Result<AppPrivateKey, AppKeyError> {
        if text.len() > PEM_BYTES_MAX {
            return Err(AppKeyError::NotPem);
        }
        // A variable in a `.env` file often has `\n` instead of line ends.
        let text = text.replace("\\n", "\n");
        let block = |label: &str| {
            let (begin, end) =
                (format!("-----BEGIN {label}-----"), format!("-----END {label}-----"));
            let (_, rest) = text.split_once(&begin)?;
            let (inner, _) = rest.split_once(&end)?;
            let inner: String = inner.split_whitespace().collect();
            STANDARD.decode(inner).ok()
        };
        let key = match (block("RSA PRIVATE KEY"), block("PRIVATE KEY")) {
            (Some(der), _) => RsaKeyPair::from_der(&der),
            (None, Some(der)) => RsaKeyPair::from_pkcs8(&der),
            (None, None) => return Err(AppKeyError::NotPem),
        };
        key.map(|key| AppPrivateKey(Arc::new(key))).map_err(|_| AppKeyError::NotRsa)
    }

    /// Returns a token with which the App identifies itself.
    pub(crate) fn sign_jwt(&self, app: u64, now: Timestamp) -> Result<String, AppKeyError> {
        let issued = now.as_second() - CLOCK_SKEW_SECS;
        let header = json!({ "alg": "RS256", "typ": "JWT" });
        let claims = json!({
            "iat": issued,
            "exp": issued + JWT_SECS,
            "iss": app.to_string(),
        });
        let encode = |json: &serde_json::Value| URL_SAFE_NO_PAD.encode(json.to_string());
        let signed = format!("{}.{}", encode(&header), encode(&claims));
        let mut signature = vec![0; self.0.public().modulus_len()];
        self.0
            .sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), signed.as_bytes(), &mut signature)
            .map_err(|_| AppKeyError::Signing)?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

#[cfg(test)]
mod tests {
    use ring::signature::{RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};

    use super::*;

    const PKCS1: &str = include_str!("../tests/fixtures/test-app-pkcs1.pem");
    const PKCS8: &str = include_str!("../tests/fixtures/test-app-pkcs8.pem");

    #[test]
    fn a_token_of_the_app_can_be_verified_with_its_public_key() {
        let now: Timestamp = "2026-11-17T12:00:00Z".parse().unwrap();
        for pem in [PKCS1.to_owned(), PKCS8.to_owned(), PKCS1.replace('\n', "\\n")] {
            let key = AppPrivateKey::from_pem(&pem).unwrap();
            let jwt = key.sign_jwt(77, now).unwrap();
            let (signed, signature) = jwt.rsplit_once('.').unwrap();
            let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
            let public = UnparsedPublicKey::new(
                &RSA_PKCS1_2048_8192_SHA256,
                key.0.public().as_ref().to_vec(),
            );
            public.verify(signed.as_bytes(), &signature).unwrap();
            assert!(public.verify(b"something else", &signature).is_err());
            let claims = URL_SAFE_NO_PAD.decode(signed.split_once('.').unwrap().1).unwrap();
            let claims: serde_json::Value = serde_json::from_slice(&claims).unwrap();
            assert_eq!(claims["iss"], "77");
            assert_eq!(claims["iat"], now.as_second() - 60);
            assert_eq!(claims["exp"], now.as_second() + 480);
        }
    }

    #[test]
    fn a_text_that_is_no_key_is_refused_without_repeating_it() {
        let short = "-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----";
        assert_eq!(AppPrivateKey::from_pem(short).unwrap_err(), AppKeyError::NotRsa);
        let error = AppPrivateKey::from_pem("hunter2").unwrap_err();
        assert_eq!(error, AppKeyError::NotPem);
        assert!(!error.to_string().contains("hunter2"));
        assert_eq!(format!("{:?}", AppPrivateKey::from_pem(PKCS1).unwrap()), "AppPrivateKey");
    }
}
