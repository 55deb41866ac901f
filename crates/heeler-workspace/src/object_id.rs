//! Object IDs, computed in this process, so that the stored bytes are the bytes on disk: no filter,
//! no conversion. Start at [`ObjectId`].

use sha1::{Digest as _, Sha1};
use sha2::Sha256;

/// Hash algorithm of a repository's objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ObjectFormat {
    Sha1,
    Sha256,
}

impl ObjectFormat {
    pub(crate) fn bytes(self) -> usize {
        match self {
            ObjectFormat::Sha1 => 20,
            ObjectFormat::Sha256 => 32,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            ObjectFormat::Sha1 => "sha1",
            ObjectFormat::Sha256 => "sha256",
        }
    }

    /// Returns the ID that denotes no object.
    pub(crate) fn null(self) -> String {
        "0".repeat(2 * self.bytes())
    }
}

/// Object ID: 20 or 32 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ObjectId {
    // One array for both lengths, so that ids are copied without allocation.
    bytes: [u8; 32],
    len: u8,
}

impl ObjectId {
    pub(crate) fn from_bytes(from: &[u8]) -> Option<ObjectId> {
        let mut bytes = [0; 32];
        if !matches!(from.len(), 20 | 32) {
            return None;
        }
        bytes[..from.len()].copy_from_slice(from);
        Some(ObjectId { bytes, len: from.len() as u8 })
    }

    pub(crate) fn parse(hex: &[u8]) -> Option<ObjectId> {
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
        Some(ObjectId { bytes, len: (hex.len() / 2) as u8 })
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    pub(crate) fn hex(&self) -> String {
        self.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Kind of object; the number is that of pack files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ObjectKind {
    Commit = 1,
    Tree = 2,
    Blob = 3,
}

impl ObjectKind {
    fn name(self) -> &'static str {
        match self {
            ObjectKind::Commit => "commit",
            ObjectKind::Tree => "tree",
            ObjectKind::Blob => "blob",
        }
    }
}

/// Incremental hasher of an object.
pub(crate) enum ObjectHasher {
    Sha1(Sha1),
    Sha256(Sha256),
}

impl ObjectHasher {
    pub(crate) fn new(format: ObjectFormat) -> ObjectHasher {
        match format {
            ObjectFormat::Sha1 => ObjectHasher::Sha1(Sha1::new()),
            ObjectFormat::Sha256 => ObjectHasher::Sha256(Sha256::new()),
        }
    }

    /// Begins an object of `size` bytes.
    pub(crate) fn begin(format: ObjectFormat, kind: ObjectKind, size: u64) -> ObjectHasher {
        let mut hash = ObjectHasher::new(format);
        // Git hashes this header together with the content.
        hash.update(format!("{} {size}\0", kind.name()).as_bytes());
        hash
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            ObjectHasher::Sha1(hash) => hash.update(bytes),
            ObjectHasher::Sha256(hash) => hash.update(bytes),
        }
    }

    pub(crate) fn finish(self) -> ObjectId {
        let oid = match self {
            ObjectHasher::Sha1(hash) => ObjectId::from_bytes(&hash.finalize()),
            ObjectHasher::Sha256(hash) => ObjectId::from_bytes(&hash.finalize()),
        };
        oid.expect("a digest has 20 or 32 bytes")
    }

    /// Returns the ID of an object in memory.
    pub(crate) fn hash_object(format: ObjectFormat, kind: ObjectKind, bytes: &[u8]) -> ObjectId {
        let mut hash = ObjectHasher::begin(format, kind, bytes.len() as u64);
        hash.update(bytes);
        hash.finish()
    }
}

/// Returns the first 16 hex digits of a text's SHA-256, for use as a file name.
pub(crate) fn short_digest(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blobs_have_the_ids_that_git_gives_them() {
        let hello = ObjectHasher::hash_object(ObjectFormat::Sha1, ObjectKind::Blob, b"hello\n");
        assert_eq!(hello.hex(), "ce013625030ba8dba906f756967f9e9ca394464a");
        assert_eq!(ObjectId::parse(hello.hex().as_bytes()), Some(hello));
        let empty = ObjectHasher::hash_object(ObjectFormat::Sha256, ObjectKind::Blob, b"");
        assert_eq!(empty.hex(), "473a0f4c3be8a93681a267e3b1e9a7dcda1185436fe141f7749120a303721813");
        assert_eq!(ObjectId::parse(b"ce01"), None);
        assert_eq!(ObjectId::parse(&[b'g'; 40]), None);
    }
}
