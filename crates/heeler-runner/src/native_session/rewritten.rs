//! Notices that the content of a native session was changed since the last run left it. Start at
//! [`find_rewrite`].
//!
//! Agents that share a working directory share the folder of their native sessions. Claude only
//! appends to a session, so another content of its first bytes is the work of someone else.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _};

use camino::Utf8Path;
use heeler_model::redact::SecretRedactor;
use heeler_model::{NativePrefixHash, NativeSessionPosition};
use heeler_transcript::{DiskError, TranscriptEntry as Line, TranscriptScanner};
use serde_json::Value as Json;
use sha2::{Digest as _, Sha256};

/// Number of bytes that are hashed at once.
const BLOCK_BYTES: usize = 64 << 10;

/// Returns the hash of the first bytes of a file; `None` if it is shorter.
pub(super) fn prefix_hash(
    path: &Utf8Path,
    bytes: u64,
) -> Result<Option<NativePrefixHash>, DiskError> {
    let failed = |source| DiskError { action: "read", path: path.to_owned(), source };
    let mut prefix = File::open(path).map_err(failed)?.take(bytes);
    let (mut hasher, mut block) = (Sha256::new(), vec![0; BLOCK_BYTES]);
    loop {
        match prefix.read(&mut block) {
            Ok(0) => break,
            Ok(read) => hasher.update(&block[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok((prefix.limit() == 0).then(|| NativePrefixHash(hasher.finalize().into())))
}

/// Returns what was changed in the part of a native session that the last run left; `None` if that
/// part is the same, or if its hash is not on record. `log` is the session's transcript.
pub(crate) fn find_rewrite(
    path: &Utf8Path,
    position: &NativeSessionPosition,
    log: &Utf8Path,
    redactor: &SecretRedactor,
) -> Result<Option<String>, DiskError> {
    let Some(expected) = position.hash else { return Ok(None) };
    match prefix_hash(path, position.bytes)? {
        Some(found) if found == expected => Ok(None),
        Some(_) => Ok(Some(describe_difference(path, log, redactor)?)),
        None => Ok(Some(format!("it was shortened; it had {} bytes", position.bytes))),
    }
}

/// Compares the messages with those of the transcript, which agents cannot write.
fn describe_difference(
    path: &Utf8Path,
    log: &Utf8Path,
    redactor: &SecretRedactor,
) -> Result<String, DiskError> {
    let mut known = HashMap::new();
    let recorded = log.is_file().then(|| TranscriptScanner::open(log)).transpose()?;
    for line in recorded.into_iter().flatten() {
        if let Line::Record(record) = line?
            && let Some((id, content)) = message(&record.text, redactor)
        {
            known.insert(id, content);
        }
    }
    let mut number = 0;
    for line in TranscriptScanner::open(path)? {
        number += 1;
        let Line::Record(record) = line? else { continue };
        let Some((id, content)) = message(&record.text, redactor) else { continue };
        if known.get(&id).is_some_and(|known| *known != content) {
            return Ok(format!("the message in line {number} ({id}) is not the recorded one"));
        }
    }
    Ok("a part that the transcript does not have, such as a summary or a tool's result, is not the \
        one that the run left"
        .to_owned())
}

/// Returns the ID and the content of a message.
fn message(line: &str, redactor: &SecretRedactor) -> Option<(String, Json)> {
    let mut row: Json = serde_json::from_str(line).ok()?;
    redactor.redact_json(&mut row);
    let id = row["uuid"].as_str()?.to_owned();
    let content = row.get_mut("message")?.get_mut("content")?.take();
    // A single text may have either form.
    let text = match content.as_array().map(Vec::as_slice) {
        Some([only]) => only.get("text").cloned(),
        _ => None,
    };
    Some((id, text.unwrap_or(content)))
}
