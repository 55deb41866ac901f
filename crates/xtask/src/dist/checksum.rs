//! Checksums of files, in the forms that package formats use.

use base64::Engine as _;
use sha2::{Digest as _, Sha256};

/// Returns the SHA-256 of bytes in hexadecimal.
pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the SHA-256 of bytes as the list of a wheel's files has it.
pub(crate) fn sha256_record(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    format!("sha256={}", base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(digest))
}
