//! Looks into many sessions for a list that is on the screen already, those that are seen first.
//! Start at [`Glances`].

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heeler_chat::{Listed, Named, Shelf};
use heeler_tui::Card;

/// How many threads look at most.
const THREADS_MAX: usize = 8;

/// What is looked into, and what was found.
pub(crate) struct Glances {
    /// What was found in each session, with its place in the list.
    pub(crate) cards: Receiver<(usize, Card)>,
    left: Arc<Mutex<Left>>,
}

impl Glances {
    /// Begins to look, in threads of its own.
    pub(crate) fn start(shelf: &Shelf, named: Vec<Named>) -> Glances {
        let left = Arc::new(Mutex::new(Left::all(named.len())));
        let (tell, cards) = channel();
        let named = Arc::new(named);
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..threads.min(THREADS_MAX) {
            let (shelf, named) = (shelf.clone(), Arc::clone(&named));
            let (left, tell) = (Arc::clone(&left), tell.clone());
            std::thread::spawn(move || {
                while let Some(place) = lock(&left).next() {
                    // Nobody looks at the list any more.
                    if tell.send((place, card(shelf.glance(&named[place])))).is_err() {
                        return;
                    }
                }
            });
        }
        Glances { cards, left }
    }

    /// From now on those are looked into first that come from this place on.
    pub(crate) fn look_first_at(&self, place: usize) {
        lock(&self.left).look_at(place);
    }
}

fn lock(left: &Mutex<Left>) -> MutexGuard<'_, Left> {
    left.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The places that nobody has looked at.
struct Left {
    is_taken: Vec<bool>,
    /// Where it is looked next.
    next: usize,
    /// Where somebody wanted it to begin.
    from: usize,
}

impl Left {
    fn all(count: usize) -> Left {
        Left { is_taken: vec![false; count], next: 0, from: 0 }
    }

    fn look_at(&mut self, place: usize) {
        if place != self.from {
            (self.from, self.next) = (place, place);
        }
    }

    /// Takes the next place: from where it was wanted to the end, then from the beginning.
    fn next(&mut self) -> Option<usize> {
        let count = self.is_taken.len();
        let is_free = |place: &usize| !self.is_taken[*place];
        let place = (self.next..count).find(is_free).or_else(|| (0..self.next).find(is_free))?;
        self.is_taken[place] = true;
        self.next = place + 1;
        Some(place)
    }
}

/// Returns what a list shows of a session that nobody has looked into.
pub(crate) fn unread(named: &Named) -> Card {
    let id = named.found.id.clone();
    let foreign = from(named.found.is_foreign);
    Card { id, at: Some(named.updated), foreign, is_unread: true, ..Card::default() }
}

fn card(one: Listed) -> Card {
    Card {
        id: one.id,
        agent: one.agent.unwrap_or_default(),
        at: Some(one.updated),
        entries: one.messages,
        first: one.first.unwrap_or_default(),
        last: one.last.unwrap_or_default(),
        foreign: from(one.is_foreign),
        fault: one.fault,
        is_unread: false,
    }
}

fn from(is_foreign: bool) -> Option<String> {
    is_foreign.then(|| "agents-fleet".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_seen_is_looked_into_first_and_everything_once() {
        let mut left = Left::all(6);
        assert_eq!(left.next(), Some(0));
        left.look_at(4);
        assert_eq!((left.next(), left.next()), (Some(4), Some(5)));
        left.look_at(4);
        assert_eq!(left.next(), Some(1), "the same again changes nothing");
        left.look_at(2);
        assert_eq!((left.next(), left.next(), left.next()), (Some(2), Some(3), None));
    }
}
