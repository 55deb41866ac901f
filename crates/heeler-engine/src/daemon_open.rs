//! Checks before the start of a daemon, and the reasons to refuse it. Start at
//! [`DaemonOpenError`].

use std::io;

use heeler_model::config_change::HeldConfigChange;
use heeler_model::error_chain;
use heeler_model::redact::SecretRedactor;
use heeler_store::StoreReader;
use thiserror::Error;

use crate::config_guard::ConfigGuard;
use crate::fleet::{EngineContext, StateOpenError};
use crate::recovery::RecoveryError;
use crate::setup::DaemonSetup;

/// Failure to start a daemon.
#[derive(Debug, Error)]
pub enum DaemonOpenError {
    /// The state directory belongs to another process, or cannot be opened.
    #[error(transparent)]
    Open(#[from] StateOpenError),
    #[error("{0}")]
    Config(String),
    /// The config was changed while a run was alive, and no person has confirmed it.
    #[error("{}", .0.summary())]
    HeldChange(Box<HeldConfigChange>),
    #[error("cannot read the state: {0}")]
    Read(String),
    #[error("cannot write the state: {0}")]
    Write(String),
    /// Recovery of an earlier process's runs failed.
    #[error(transparent)]
    Recover(#[from] RecoveryError),
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
}

/// Fails if the config was changed while a run was alive. Runs that are alive continue by themselves,
/// and the next daemon records their results.
pub(crate) fn refuse_held_change(
    fleet: &EngineContext,
    setup: &DaemonSetup,
) -> Result<(), DaemonOpenError> {
    let read = |error: &dyn std::error::Error| DaemonOpenError::Read(error_chain(error));
    let reader = StoreReader::open(&fleet.dir).map_err(|error| read(&error))?;
    let guard = ConfigGuard::load(&reader).map_err(|error| read(&error))?;
    match guard.held_change(&setup.content, &SecretRedactor::new(&setup.secrets())) {
        Some(change) => Err(DaemonOpenError::HeldChange(Box::new(change))),
        None => Ok(()),
    }
}
