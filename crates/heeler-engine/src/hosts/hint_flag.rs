//! At most one hint of the server at a time. Start at [`HintFlag`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// True while a hint waits in the channel of a thread, so that further ones take no room in it. Clones share
/// it.
#[derive(Debug, Clone, Default)]
pub(super) struct HintFlag(Arc<AtomicBool>);

impl HintFlag {
    /// Sends a hint, unless one waits. `send` returns false if the channel is full.
    pub(super) fn raise(&self, send: impl FnOnce() -> bool) {
        if !self.0.swap(true, Ordering::SeqCst) && !send() {
            self.lower();
        }
    }

    /// Notes that the hint was taken from the channel. The thread looks at the database only afterwards.
    pub(super) fn lower(&self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn one_hint_waits_and_none_is_forgotten() {
        let (sender, receiver) = sync_channel(2);
        let hint = HintFlag::default();
        let raise = || hint.clone().raise(|| sender.try_send(()).is_ok());
        (0..5).for_each(|_| raise());
        assert_eq!(receiver.try_iter().count(), 1);
        raise();
        assert_eq!(receiver.try_iter().count(), 0, "the first one is not dealt with yet");
        hint.lower();
        // A full channel takes no hint. The next one counts again.
        (0..2).for_each(|_| sender.try_send(()).unwrap());
        raise();
        assert_eq!(receiver.try_iter().count(), 2);
        raise();
        assert_eq!(receiver.try_iter().count(), 1);
    }
}
