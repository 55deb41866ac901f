//! Limit of open files: [`raise_limit`] for the daemon, [`restore_limit`] for runners.
//!
//! A daemon with many readers needs more than the usual limit. Agents get the daemon's original
//! limit, because some programs break with a higher one.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Open files that a daemon wants.
const OPEN_FILES_TARGET: u64 = 16_384;

/// Variable that passes the original limit to runners.
const ORIGINAL_LIMIT_VARIABLE: &str = "HEELER_OPEN_FILES";

/// The limit before it was raised.
static ORIGINAL_LIMIT: OnceLock<u64> = OnceLock::new();

/// Undoes [`raise_limit`], for a program that is executed in place of this one.
pub(crate) fn undo_raise() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Some(given) = ORIGINAL_LIMIT.get() {
        // A limit that stays higher does little harm.
        let _lowered = setrlimit(Resource::Nofile, Rlimit { current: Some(*given), maximum });
    }
}

/// Raises this process's limit, and passes the original limit to its runners.
pub(crate) fn raise_limit(env: &mut Vec<(String, String)>) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // No limit, or a higher one, is left alone.
    let Some(given) = current.filter(|given| *given < OPEN_FILES_TARGET) else { return };
    let wanted = maximum.map_or(OPEN_FILES_TARGET, |most| most.min(OPEN_FILES_TARGET));
    match setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }) {
        Ok(()) => {
            ORIGINAL_LIMIT.get_or_init(|| given);
            env.push((ORIGINAL_LIMIT_VARIABLE.to_owned(), given.to_string()));
        }
        // The daemon works with the lower limit; it then accepts fewer readers at once.
        Err(error) => tracing::debug!(%error, "cannot raise the limit of open files above {given}"),
    }
}

/// Restores the original limit of the daemon that started this process.
pub(crate) fn restore_limit(env: &BTreeMap<String, String>) {
    let given = env.get(ORIGINAL_LIMIT_VARIABLE).and_then(|given| given.parse().ok());
    let Some(given) = given else { return };
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // Never raise it: an administrator may have lowered the limit since.
    if current.is_none_or(|current| current > given) {
        // Failing to lower the limit does no harm.
        let _lowered = setrlimit(Resource::Nofile, Rlimit { current: Some(given), maximum });
    }
}
