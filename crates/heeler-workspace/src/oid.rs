//! Object ids, computed here, so that what is stored is what is on disk: no filter, no conversion.

use sha1::{Digest as _, Sha1};
use sha2::Sha256;

/// Which hash names a repository's objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Sha1,
    Sha256,
}

impl Format {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Format::Sha1 => 20,
            Format::Sha256 => 32,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Format::Sha1 => "sha1",
            Format::Sha256 => "sha256",
        }
    }

    /// Returns the id that means no object.
    pub(crate) fn null(self) -> String {
        "0".repeat(2 * self.bytes())
    }
}

/// An object's id: 20 or 32 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Oid {
    bytes: [u8; 32],
    len: u8,
}

impl Oid {
    pub(crate) fn from_bytes(from: &[u8]) -> Option<Oid> {
        let mut bytes = [0; 32];
        if !matches!(from.len(), 20 | 32) {
            return None;
        }
        bytes[..from.len()].copy_from_slice(from);
        Some(Oid { bytes, len: from.len() as u8 })
    }

    pub(crate) fn parse(hex: &[u8]) -> Option<Oid> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        if !matches!(hex.len(), 40 | 64) {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(hex.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Oid { bytes, len: (hex.len() / 2) as u8 })
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    pub(crate) fn hex(&self) -> String {
        self.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// What an object is; the number is that of packs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Commit = 1,
    Tree = 2,
    Blob = 3,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Commit => "commit",
            Kind::Tree => "tree",
            Kind::Blob => "blob",
        }
    }
}

/// Computes an id from the parts of what it names.
pub(crate) enum Hash {
    Sha1(Sha1),
    Sha256(Sha256),
}

impl Hash {
    pub(crate) fn new(format: Format) -> Hash {
        match format {
            Format::Sha1 => Hash::Sha1(Sha1::new()),
            Format::Sha256 => Hash::Sha256(Sha256::new()),
        }
    }

    /// Begins an object of so many bytes.
    pub(crate) fn begin(format: Format, kind: Kind, size: u64) -> Hash {
        let mut hash = Hash::new(format);
        hash.update(format!("{} {size}\0", kind.name()).as_bytes());
        hash
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Hash::Sha1(hash) => hash.update(bytes),
            Hash::Sha256(hash) => hash.update(bytes),
        }
    }

    pub(crate) fn finish(self) -> Oid {
        let oid = match self {
            Hash::Sha1(hash) => Oid::from_bytes(&hash.finalize()),
            Hash::Sha256(hash) => Oid::from_bytes(&hash.finalize()),
        };
        oid.expect("a digest has 20 or 32 bytes")
    }

    /// Returns the id of an object at hand.
    pub(crate) fn object(format: Format, kind: Kind, bytes: &[u8]) -> Oid {
        let mut hash = Hash::begin(format, kind, bytes.len() as u64);
        hash.update(bytes);
        hash.finish()
    }
}

/// Returns the first 16 hex digits of a text's SHA-256, to name a file by it.
pub(crate) fn short_digest(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blobs_have_the_ids_that_git_gives_them() {
        let hello = Hash::object(Format::Sha1, Kind::Blob, b"hello\n");
        assert_eq!(hello.hex(), "ce013625030ba8dba906f756967f9e9ca394464a");
        assert_eq!(Oid::parse(hello.hex().as_bytes()), Some(hello));
        let empty = Hash::object(Format::Sha256, Kind::Blob, b"");
        assert_eq!(empty.hex(), "473a0f4c3be8a93681a267e3b1e9a7dcda1185436fe141f7749120a303721813");
        assert_eq!(Oid::parse(b"ce01"), None);
        assert_eq!(Oid::parse(&[b'g'; 40]), None);
    }
}
