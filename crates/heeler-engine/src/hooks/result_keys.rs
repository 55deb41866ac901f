//! Keys that prove the result of a command hook: agents can write the directory of a hook's event.
//!
//! Each daemon makes one key, and records its public half before it executes a hook. A runner signs
//! its result with the key and the event, so that it counts for no other hook. The next daemon
//! accepts results of recorded keys only; otherwise it executes the hook again. Start at
//! [`HookResultKey`].

use std::io;

use camino::Utf8Path;
use heeler_model::error_chain;
use heeler_model::run::{ResultPublicKey, ResultSigningKey, RunResult, file};
use heeler_store::{DatabaseError, HOOK_KEYS, StateDatabase, StoreReader, StoreTransaction};
use heeler_transcript::{set_file_aside, untrusted_file};

use super::hook_error::{HookExecutionError, transient_error};
use crate::fleet::EngineContext;
use crate::run_start;

/// Number of recorded keys, which is the number of daemons whose hooks may be unfinished. A result
/// of an earlier daemon does not count any more.
pub const HOOK_KEYS_MAX: usize = 64;

/// Key of the command hooks that one daemon executes.
#[derive(Debug, Clone)]
pub struct HookResultKey(ResultSigningKey);

impl HookResultKey {
    /// Makes a key, which must be [recorded](Self::record) before it is used.
    pub fn new() -> HookResultKey {
        HookResultKey(run_start::random_result_key())
    }

    /// Records the key for later daemons.
    pub fn record(&self, tx: &mut StoreTransaction<'_>) -> Result<(), DatabaseError> {
        let own = self.0.public_key().without_spec();
        let mut keys = vec![own];
        keys.extend(recorded_keys(tx)?);
        keys.truncate(HOOK_KEYS_MAX);
        let text: Vec<String> = keys.iter().map(ToString::to_string).collect();
        tx.set_meta(HOOK_KEYS, &text.join(" "))
    }
}

impl Default for HookResultKey {
    fn default() -> HookResultKey {
        HookResultKey::new()
    }
}

/// Returns the recorded keys, the newest first.
fn recorded_keys(db: &StateDatabase) -> Result<Vec<ResultPublicKey>, DatabaseError> {
    let text = db.meta(HOOK_KEYS)?.unwrap_or_default();
    // What is not a key proves nothing.
    Ok(text.split(' ').filter_map(|key| key.parse().ok()).collect())
}

/// Keys by which the result of a run of this event is recognized: agents can write its directory.
pub(super) struct ResultProof<'s> {
    event: &'s str,
    /// Signs the results of this process's runs.
    key: ResultSigningKey,
    /// Keys of this daemon and of earlier ones.
    accepted: Vec<ResultPublicKey>,
}

impl<'s> ResultProof<'s> {
    pub(super) fn load(
        event: &'s str,
        key: &HookResultKey,
        fleet: &EngineContext,
    ) -> Result<ResultProof<'s>, HookExecutionError> {
        let reader = StoreReader::open(&fleet.dir).map_err(transient_error)?;
        let accepted = recorded_keys(&reader).map_err(transient_error)?;
        Ok(ResultProof { event, key: key.0.for_event(event), accepted })
    }

    /// Returns the key for a runner of this event.
    pub(super) fn key(&self) -> &ResultSigningKey {
        &self.key
    }

    /// Reads the result of a run; `None` if it has none that a runner of this event signed. Any
    /// other file is set aside, so that the run can be settled.
    pub(super) fn read_result(
        &self,
        folder: &Utf8Path,
    ) -> Result<Option<RunResult>, HookExecutionError> {
        let path = folder.join(file::RESULT);
        let refused = match untrusted_file::read(&path, file::BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            // It is a link, a folder or too long, which no runner writes.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => error.to_string(),
            Err(error) => return Err(transient_error(error)),
            Ok(bytes) => match self.parse(folder, &bytes) {
                Ok(result) => return Ok(Some(result)),
                Err(reason) => reason,
            },
        };
        tracing::warn!(%folder, reason = refused, "a result of a hook was refused");
        match set_file_aside(&path, file::REFUSED_SUFFIX) {
            Err(error) if error.source.kind() != io::ErrorKind::NotFound => {
                Err(transient_error(error))
            }
            _ => Ok(None),
        }
    }

    fn parse(&self, folder: &Utf8Path, bytes: &[u8]) -> Result<RunResult, String> {
        if !self.accepted.iter().any(|key| key.has_signed_for(self.event, bytes)) {
            return Err("no runner of this hook signed it".to_owned());
        }
        let result: RunResult = file::parse_run_file(bytes).map_err(|error| error_chain(&error))?;
        match folder.file_name() == Some(result.run.to_string().as_str()) {
            true => Ok(result),
            false => Err("it belongs to another run".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::EngineFixture;

    #[test]
    fn the_keys_of_the_last_daemons_are_kept_and_older_ones_are_dropped() {
        let fixture = EngineFixture::new("");
        let keys: Vec<HookResultKey> = (0..=HOOK_KEYS_MAX).map(|_| HookResultKey::new()).collect();
        let store = fixture.store();
        for key in &keys {
            let key = key.clone();
            store.write::<_, DatabaseError, _>(move |tx| key.record(tx)).unwrap();
        }
        let reader = StoreReader::open(&fixture.fleet.dir).unwrap();
        let recorded = recorded_keys(&reader).unwrap();
        let expected = keys.iter().skip(1).rev().map(|key| key.0.public_key().without_spec());
        assert_eq!(recorded, expected.collect::<Vec<_>>());
    }
}
