//! How many files a process may have open.
//!
//! A daemon with many readers needs more than programs are usually given. Agents get what the daemon
//! was given: some programs break if they may have more.

use std::collections::BTreeMap;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// How many files a daemon wants to have open at once.
const OPEN_FILES_TARGET: u64 = 16_384;

/// Tells runners what the daemon was given.
const ORIGINAL_LIMIT_VARIABLE: &str = "HEELER_OPEN_FILES";

/// Lets this process have more files open, and notes for its runners what it was given.
pub(crate) fn raise_limit(env: &mut Vec<(String, String)>) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(given) = current.filter(|given| *given < OPEN_FILES_TARGET) else { return };
    let wanted = maximum.map_or(OPEN_FILES_TARGET, |most| most.min(OPEN_FILES_TARGET));
    match setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }) {
        Ok(()) => env.push((ORIGINAL_LIMIT_VARIABLE.to_owned(), given.to_string())),
        Err(error) => tracing::debug!(%error, "no more files may be open than {given}"),
    }
}

/// Gives this process back what the daemon that started it was given.
pub(crate) fn restore_limit(env: &BTreeMap<String, String>) {
    let given = env.get(ORIGINAL_LIMIT_VARIABLE).and_then(|given| given.parse().ok());
    let Some(given) = given else { return };
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current > given) {
        // What cannot be lowered does no harm.
        let _lowered = setrlimit(Resource::Nofile, Rlimit { current: Some(given), maximum });
    }
}
