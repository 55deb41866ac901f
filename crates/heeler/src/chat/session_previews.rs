//! Loads previews of many sessions for a list that is already on the screen, visible entries first.
//! Start at [`SessionPreviewLoader`].

use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heeler_chat::{SessionDirectory, SessionFileEntry, SessionFileSummary};
use heeler_tui::SessionPickerEntry;

/// Most threads that load previews.
const THREADS_MAX: usize = 8;

/// Loaded previews that may wait to be shown. At the limit the threads wait for the list.
const LOADED_MAX: usize = 64;

/// Loader of session previews, with its results.
pub(crate) struct SessionPreviewLoader {
    /// Loaded previews, each with its index in the list.
    pub(crate) cards: Receiver<(usize, SessionPickerEntry)>,
    queue: Arc<Mutex<PreviewQueue>>,
}

impl SessionPreviewLoader {
    /// Starts loading, in threads of its own.
    pub(crate) fn start(
        sessions: &SessionDirectory,
        named: Vec<SessionFileEntry>,
    ) -> SessionPreviewLoader {
        let left = Arc::new(Mutex::new(PreviewQueue::new(named.len())));
        let (sender, cards) = sync_channel(LOADED_MAX);
        let named = Arc::new(named);
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..threads.min(THREADS_MAX) {
            let (sessions, named) = (sessions.clone(), Arc::clone(&named));
            let (left, sender) = (Arc::clone(&left), sender.clone());
            std::thread::spawn(move || {
                loop {
                    // In a `while let`, the lock would be held while the session is read.
                    let next = lock(&left).next();
                    let Some(index) = next else { return };
                    // The list is closed.
                    if sender.send((index, to_card(sessions.summarize(&named[index])))).is_err() {
                        return;
                    }
                }
            });
        }
        SessionPreviewLoader { cards, queue: left }
    }

    /// Loads the entries from index `index` on first.
    pub(crate) fn prioritize_from(&self, index: usize) {
        lock(&self.queue).start_from(index);
    }
}

fn lock(left: &Mutex<PreviewQueue>) -> MutexGuard<'_, PreviewQueue> {
    // A panic of one thread must not stop the others.
    left.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Indexes of the list that are still to be loaded.
struct PreviewQueue {
    is_taken: Vec<bool>,
    next: usize,
    /// Index last passed to [`PreviewQueue::start_from`].
    from: usize,
}

impl PreviewQueue {
    fn new(count: usize) -> PreviewQueue {
        PreviewQueue { is_taken: vec![false; count], next: 0, from: 0 }
    }

    fn start_from(&mut self, index: usize) {
        // The list reports its position at every frame; the same one must not restart the search.
        if index != self.from {
            (self.from, self.next) = (index, index);
        }
    }

    /// Takes the next index: from the wanted one to the end, then from the beginning.
    fn next(&mut self) -> Option<usize> {
        let count = self.is_taken.len();
        let is_free = |index: &usize| !self.is_taken[*index];
        let index = (self.next..count).find(is_free).or_else(|| (0..self.next).find(is_free))?;
        self.is_taken[index] = true;
        self.next = index + 1;
        Some(index)
    }
}

/// Returns the list entry of a session that is not loaded yet.
pub(crate) fn placeholder_card(named: &SessionFileEntry) -> SessionPickerEntry {
    let id = named.file.id.clone();
    let foreign = source_label(named.file.is_foreign);
    SessionPickerEntry {
        id,
        at: Some(named.updated),
        foreign_source: foreign,
        is_loading: true,
        ..SessionPickerEntry::default()
    }
}

fn to_card(one: SessionFileSummary) -> SessionPickerEntry {
    SessionPickerEntry {
        id: one.id,
        agent: one.agent.unwrap_or_default(),
        at: Some(one.updated),
        entries: one.messages,
        first_message: one.first_message.unwrap_or_default(),
        last_message: one.last_message.unwrap_or_default(),
        foreign_source: source_label(one.is_foreign),
        fault: one.fault,
        is_loading: false,
    }
}

fn source_label(is_foreign: bool) -> Option<String> {
    is_foreign.then(|| "agents-fleet".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_seen_is_looked_into_first_and_everything_once() {
        let mut left = PreviewQueue::new(6);
        assert_eq!(left.next(), Some(0));
        left.start_from(4);
        assert_eq!((left.next(), left.next()), (Some(4), Some(5)));
        left.start_from(4);
        assert_eq!(left.next(), Some(1), "the same again changes nothing");
        left.start_from(2);
        assert_eq!((left.next(), left.next(), left.next()), (Some(2), Some(3), None));
    }
}
