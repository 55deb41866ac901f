//! Signature of a question and of its outcome: proof that the runner wrote the file, and not its
//! agent.
//!
//! The key is that of the run's result. Each run has its own, so a file that was moved into another
//! run proves nothing there. Start at [`QuestionProof`].

use ring::digest::{SHA256, digest};

use super::{ResultPublicKey, ResultSigningKey, SIGNATURE_BYTES, split_signature};

/// Kind of a file in the directory of a run's questions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuestionFileKind {
    /// `asks/<id>.json`
    Open,
    /// `asks/<id>.closed`
    Closed,
}

impl QuestionFileKind {
    /// Returns the end of the file's name.
    pub fn suffix(self) -> &'static str {
        match self {
            QuestionFileKind::Open => ".json",
            QuestionFileKind::Closed => ".closed",
        }
    }

    /// Returns the signed bytes. They hold a digest, so that a check does not depend on the length
    /// of a file that an agent may have written.
    fn signed_bytes(self, body: &[u8]) -> Vec<u8> {
        // The kind comes first, so that a question is never the proof of its own outcome.
        let purpose: &[u8] = match self {
            QuestionFileKind::Open => b"heeler run question 1\0",
            QuestionFileKind::Closed => b"heeler closed question 1\0",
        };
        [purpose, digest(&SHA256, body).as_ref()].concat()
    }
}

impl ResultSigningKey {
    /// Adds the signature to a file of a question in pretty JSON.
    pub fn sign_question(&self, kind: QuestionFileKind, document: &[u8]) -> Vec<u8> {
        self.sign_with(document, |body| kind.signed_bytes(body))
    }
}

/// Proof of the author of a question's file. It can be made without the key and checked without the
/// file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuestionProof {
    /// The signed bytes and the signature; `None` if the file has none.
    signed: Option<(Vec<u8>, [u8; SIGNATURE_BYTES])>,
}

impl QuestionProof {
    pub fn of_file(kind: QuestionFileKind, file: &[u8]) -> QuestionProof {
        let signed = split_signature(file);
        QuestionProof { signed: signed.map(|(body, by)| (kind.signed_bytes(body), by)) }
    }

    /// Returns true if the holder of the private key wrote the file.
    pub fn is_by(&self, key: &ResultPublicKey) -> bool {
        self.signed.as_ref().is_some_and(|(message, by)| key.verifies(message, by))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_runner_of_the_run_proves_a_file_and_only_as_what_it_is() {
        let (key, other) =
            (ResultSigningKey::from_seed([1; 32]), ResultSigningKey::from_seed([2; 32]));
        let document = b"{\n  \"id\": \"q1\"\n}\n";
        let file = key.sign_question(QuestionFileKind::Open, document);
        let proof = |kind, file: &[u8]| QuestionProof::of_file(kind, file);
        assert!(proof(QuestionFileKind::Open, &file).is_by(&key.public_key()));
        assert!(!proof(QuestionFileKind::Open, &file).is_by(&other.public_key()));
        assert!(!proof(QuestionFileKind::Closed, &file).is_by(&key.public_key()));
        assert!(!proof(QuestionFileKind::Open, document).is_by(&key.public_key()));
        assert!(!key.public_key().has_signed(&file), "it is no result");
        let result = key.sign_document(document);
        assert!(!proof(QuestionFileKind::Open, &result).is_by(&key.public_key()));
        let mut changed = file.clone();
        changed[11] = b'x';
        assert!(!proof(QuestionFileKind::Open, &changed).is_by(&key.public_key()));
    }
}
