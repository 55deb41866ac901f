//! Limits on work that is submitted to other threads: a number of slots, or one piece of work for
//! each key.
//!
//! A claim is a guard: it is given back when the work has ended, also by a panic or because the work
//! was dropped. Start at [`WorkSlots`] and [`WorkKeys`].

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Limit on the number of pieces of work.
#[derive(Debug, Clone)]
pub(crate) struct WorkSlots {
    limit: usize,
    taken: Arc<AtomicUsize>,
}

/// One of the slots.
#[derive(Debug)]
pub(crate) struct SlotClaim(Arc<AtomicUsize>);

impl WorkSlots {
    pub(crate) fn new(limit: usize) -> WorkSlots {
        WorkSlots { limit, taken: Arc::default() }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the number of free slots.
    pub(crate) fn free(&self) -> usize {
        self.limit.saturating_sub(self.taken.load(Ordering::SeqCst))
    }

    /// Takes a slot, if one is free.
    pub(crate) fn claim(&self) -> Option<SlotClaim> {
        let one_more = |taken| (taken < self.limit).then_some(taken + 1);
        // Checking and taking are one step, because several threads claim at once.
        let claimed = self.taken.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more);
        claimed.is_ok().then(|| SlotClaim(Arc::clone(&self.taken)))
    }
}

impl Drop for SlotClaim {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Limit on the number of pieces of work for each key.
#[derive(Debug, Clone)]
pub(crate) struct WorkKeys<K: Eq + Hash> {
    limit: usize,
    taken: Arc<Mutex<HashMap<K, usize>>>,
}

/// A piece of work for a key.
#[derive(Debug)]
pub(crate) struct KeyClaim<K: Eq + Hash> {
    key: K,
    taken: Arc<Mutex<HashMap<K, usize>>>,
}

impl<K: Eq + Hash + Clone> WorkKeys<K> {
    pub(crate) fn new(limit: usize) -> WorkKeys<K> {
        WorkKeys { limit, taken: Arc::default() }
    }

    /// Claims a piece of work for the key, unless the key has as many as it may have.
    pub(crate) fn claim(&self, key: K) -> Option<KeyClaim<K>> {
        let mut taken = lock(&self.taken);
        let count = taken.get(&key).copied().unwrap_or_default();
        (count < self.limit).then(|| {
            taken.insert(key.clone(), count + 1);
            KeyClaim { key, taken: Arc::clone(&self.taken) }
        })
    }
}

impl<K: Eq + Hash> Drop for KeyClaim<K> {
    fn drop(&mut self) {
        let mut taken = lock(&self.taken);
        match taken.get_mut(&self.key) {
            Some(count) if *count > 1 => *count -= 1,
            // Keys without work are removed, or the map would grow with every run.
            _ => drop(taken.remove(&self.key)),
        }
    }
}

fn lock<K>(taken: &Mutex<HashMap<K, usize>>) -> MutexGuard<'_, HashMap<K, usize>> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_given_back_by_their_claims() {
        let slots = WorkSlots::new(2);
        let (first, second) = (slots.claim(), slots.claim());
        assert!(first.is_some() && second.is_some());
        assert_eq!((slots.free(), slots.claim().is_none()), (0, true));
        drop(first);
        assert_eq!((slots.free(), slots.claim().is_some()), (1, true));
    }

    #[test]
    fn keys_do_not_take_the_place_of_each_other() {
        let keys = WorkKeys::new(2);
        let held = [keys.claim("a"), keys.claim("a"), keys.claim("b")];
        assert!(held.iter().all(Option::is_some));
        assert!(keys.claim("a").is_none() && keys.claim("b").is_some());
        drop(held);
        assert!(keys.claim("a").is_some());
        assert!(lock(&keys.taken).is_empty(), "only claimed keys take memory");
    }
}
