//! Number of calls that chat platforms refused because of their limits.
//!
//! Links, posts and live output make calls as the same bot, each with a client of its own. So the count
//! is one of the process. Start at [`note_rate_limit`].

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Counts by platform and account. The accounts come from the config, so there are few.
static COUNTS: Mutex<BTreeMap<(String, String), u64>> = Mutex::new(BTreeMap::new());

/// Counts a refused call.
pub(crate) fn note_rate_limit(platform: &str, account: &str) {
    let mut counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    *counts.entry((platform.to_owned(), account.to_owned())).or_default() += 1;
}

/// Returns the number of refused calls as a bot.
pub(super) fn rate_limit_count(platform: &str, account: &str) -> u64 {
    let counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    counts.get(&(platform.to_owned(), account.to_owned())).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bot_has_a_count_of_its_own() {
        note_rate_limit("slack", "A-of-this-test");
        note_rate_limit("slack", "A-of-this-test");
        assert_eq!(rate_limit_count("slack", "A-of-this-test"), 2);
        assert_eq!(rate_limit_count("discord", "A-of-this-test"), 0);
    }
}
