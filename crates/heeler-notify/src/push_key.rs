//! The key by which push services recognize the fleet: VAPID, RFC 8292.
//!
//! Start at [`PushKey`].

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::json;

/// Validity of a signed header. Push services accept at most 24 hours.
const HEADER_LIFETIME: SignedDuration = SignedDuration::from_hours(12);

/// Key pair of the fleet on the curve P-256. A browser that was added with it accepts no other.
pub struct PushKey {
    pair: EcdsaKeyPair,
}

impl PushKey {
    /// Creates a key pair, and returns it in the form in which it is stored.
    pub fn generate() -> Result<String, String> {
        let failed = |_| "the system returned no random bytes".to_owned();
        let key =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new());
        Ok(URL_SAFE_NO_PAD.encode(key.map_err(failed)?))
    }

    /// Reads a stored key pair.
    pub fn parse(stored: &str) -> Result<PushKey, String> {
        let broken = || "the stored key of Web Push is damaged".to_owned();
        let bytes = URL_SAFE_NO_PAD.decode(stored).map_err(|_| broken())?;
        let random = SystemRandom::new();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &bytes, &random);
        Ok(PushKey { pair: pair.map_err(|_| broken())? })
    }

    /// Returns the public key, as browsers take it.
    pub fn public_key(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.pair.public_key())
    }

    /// Returns the header `authorization` for a request to a push service. `origin` is that of the
    /// service, `contact` an address of the sender.
    pub(crate) fn authorization(
        &self,
        origin: &str,
        contact: Option<&str>,
        now: Timestamp,
    ) -> Result<String, String> {
        let expires = now.checked_add(HEADER_LIFETIME).unwrap_or(now).as_second();
        let mut claims = json!({"aud": origin, "exp": expires});
        if let Some(contact) = contact {
            claims["sub"] = json!(contact);
        }
        let head = json!({"typ": "JWT", "alg": "ES256"});
        let part = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(head), part(claims));
        let signature = self.pair.sign(&SystemRandom::new(), signed.as_bytes());
        let signature = signature.map_err(|_| "the request cannot be signed".to_owned())?;
        let signature = URL_SAFE_NO_PAD.encode(signature);
        Ok(format!("vapid t={signed}.{signature}, k={}", self.public_key()))
    }
}

/// Shows no part of the private key.
impl fmt::Debug for PushKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PushKey({})", self.public_key())
    }
}

#[cfg(test)]
mod tests {
    use ring::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};

    use super::*;

    #[test]
    fn a_header_is_signed_with_the_key_that_it_names() {
        let key = PushKey::parse(&PushKey::generate().unwrap()).unwrap();
        let header = key
            .authorization(
                "https://push.example",
                Some("mailto:a@b.example"),
                Timestamp::UNIX_EPOCH,
            )
            .unwrap();
        let (token, public) = header.strip_prefix("vapid t=").unwrap().split_once(", k=").unwrap();
        assert_eq!(public, key.public_key());
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).unwrap();
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, decode(public))
            .verify(signed.as_bytes(), &decode(signature))
            .unwrap();
        let claims: serde_json::Value =
            serde_json::from_slice(&decode(signed.split_once('.').unwrap().1)).unwrap();
        let expected =
            json!({"aud": "https://push.example", "exp": 43200, "sub": "mailto:a@b.example"});
        assert_eq!(claims, expected);
    }

    #[test]
    fn a_damaged_key_is_an_error_and_none_shows_itself() {
        let stored = PushKey::generate().unwrap();
        let shown = format!("{:?}", PushKey::parse(&stored).unwrap());
        assert!(!shown.contains(&stored), "{shown}");
        for damaged in ["", "AAAA", "no base64!", &stored[..40]] {
            assert!(PushKey::parse(damaged).is_err(), "{damaged}");
        }
    }
}
