//! Encryption of messages for browsers: RFC 8291, with the content coding of RFC 8188.
//!
//! Only the browser can read a message; the push service sees its length. Start at [`encrypt`].

use ring::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::agreement::{ECDH_P256, EphemeralPrivateKey, UnparsedPublicKey, agree_ephemeral};
use ring::error::Unspecified;
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};
use ring::rand::{SecureRandom as _, SystemRandom};

/// Length of a public key: an uncompressed point of P-256.
pub(crate) const PUBLIC_KEY_BYTES: usize = 65;

/// Length of the secret that the browser shares.
pub(crate) const AUTH_SECRET_BYTES: usize = 16;

/// Largest encrypted message. Every push service accepts this size (RFC 8030, section 7.2).
pub(crate) const PUSH_BODY_BYTES_MAX: usize = 4096;

const SALT_BYTES: usize = 16;

const KEY_BYTES: usize = 16;

const TAG_BYTES: usize = 16;

/// Salt, size of a record, length of the key, and the key.
const HEADER_BYTES: usize = SALT_BYTES + 4 + 1 + PUBLIC_KEY_BYTES;

/// Mark of the last record, which follows the text.
const LAST_RECORD: u8 = 2;

/// Largest text of a message.
pub(crate) const PUSH_TEXT_BYTES_MAX: usize = PUSH_BODY_BYTES_MAX - HEADER_BYTES - 1 - TAG_BYTES;

/// Keys of a browser.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct BrowserKeys {
    pub(crate) public_key: [u8; PUBLIC_KEY_BYTES],
    pub(crate) auth_secret: [u8; AUTH_SECRET_BYTES],
}

/// Encrypts a text for a browser. Fails if the public key is not a point of the curve, or the text is
/// longer than [`PUSH_TEXT_BYTES_MAX`].
pub(crate) fn encrypt(text: &[u8], to: &BrowserKeys) -> Result<Vec<u8>, Unspecified> {
    let random = SystemRandom::new();
    let mut salt = [0; SALT_BYTES];
    random.fill(&mut salt)?;
    let sender = EphemeralPrivateKey::generate(&ECDH_P256, &random)?;
    encrypt_with(text, to, sender, salt)
}

fn encrypt_with(
    text: &[u8],
    to: &BrowserKeys,
    sender: EphemeralPrivateKey,
    salt: [u8; SALT_BYTES],
) -> Result<Vec<u8>, Unspecified> {
    if text.len() > PUSH_TEXT_BYTES_MAX {
        return Err(Unspecified);
    }
    let own_key = sender.compute_public_key()?;
    let browser_key = UnparsedPublicKey::new(&ECDH_P256, &to.public_key);
    let keys = agree_ephemeral(sender, &browser_key, |shared| {
        let mut secret = [0; 32];
        let info: [&[u8]; 3] = [b"WebPush: info\0", &to.public_key, own_key.as_ref()];
        derive(&to.auth_secret, shared, &info, &mut secret)?;
        let (mut key, mut nonce) = ([0; KEY_BYTES], [0; NONCE_LEN]);
        derive(&salt, &secret, &[b"Content-Encoding: aes128gcm\0"], &mut key)?;
        derive(&salt, &secret, &[b"Content-Encoding: nonce\0"], &mut nonce)?;
        Ok::<_, Unspecified>((key, nonce))
    });
    let (key, nonce) = keys??;
    let mut record = text.to_vec();
    record.push(LAST_RECORD);
    let cipher = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key)?);
    let nonce = Nonce::assume_unique_for_key(nonce);
    cipher.seal_in_place_append_tag(nonce, Aad::empty(), &mut record)?;
    let record_bytes = u32::try_from(PUSH_BODY_BYTES_MAX).map_err(|_| Unspecified)?;
    let key_bytes = u8::try_from(PUBLIC_KEY_BYTES).map_err(|_| Unspecified)?;
    let mut body = Vec::with_capacity(HEADER_BYTES + record.len());
    body.extend_from_slice(&salt);
    body.extend_from_slice(&record_bytes.to_be_bytes());
    body.push(key_bytes);
    body.extend_from_slice(own_key.as_ref());
    body.extend_from_slice(&record);
    Ok(body)
}

/// Length of a derived key.
struct DerivedBytes(usize);

impl KeyType for DerivedBytes {
    fn len(&self) -> usize {
        self.0
    }
}

/// Derives a key by HKDF with SHA-256.
fn derive(salt: &[u8], secret: &[u8], info: &[&[u8]], out: &mut [u8]) -> Result<(), Unspecified> {
    let key = Salt::new(HKDF_SHA256, salt).extract(secret);
    key.expand(info, DerivedBytes(out.len()))?.fill(out)
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    use super::*;

    fn bytes<const LENGTH: usize>(text: &str) -> [u8; LENGTH] {
        URL_SAFE_NO_PAD.decode(text).unwrap().try_into().unwrap()
    }

    /// Keys of the example of RFC 8291, appendix A.
    fn example_keys() -> BrowserKeys {
        BrowserKeys {
            public_key: bytes(
                "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
            ),
            auth_secret: bytes("BTBZMqHH6r4Tts7J_aSIgg"),
        }
    }

    #[test]
    #[expect(deprecated, reason = "ring has no other way to use a given private key")]
    fn the_example_of_the_standard_gives_its_result() {
        let scalar: [u8; 32] = bytes("yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw");
        let random = ring::test::rand::FixedSliceRandom { bytes: &scalar };
        let sender = EphemeralPrivateKey::generate(&ECDH_P256, &random).unwrap();
        let text = b"When I grow up, I want to be a watermelon";
        let salt = bytes("DGv6ra1nlYgDCS1FRnbzlw");
        let body = encrypt_with(text, &example_keys(), sender, salt).unwrap();
        let expected = "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN";
        assert_eq!(URL_SAFE_NO_PAD.encode(body), expected);
    }

    #[test]
    fn the_longest_text_fills_a_message_and_a_longer_one_is_refused() {
        let keys = example_keys();
        let longest = encrypt(&[b'x'; PUSH_TEXT_BYTES_MAX], &keys).unwrap();
        assert_eq!(longest.len(), PUSH_BODY_BYTES_MAX);
        assert!(encrypt(&[b'x'; PUSH_TEXT_BYTES_MAX + 1], &keys).is_err());
        // Each message has a key and a salt of its own.
        assert_ne!(encrypt(b"same", &keys).unwrap(), encrypt(b"same", &keys).unwrap());
    }

    #[test]
    fn a_key_that_is_no_point_of_the_curve_is_refused() {
        let mut keys = example_keys();
        keys.public_key[64] ^= 1;
        assert!(encrypt(b"text", &keys).is_err());
    }
}
