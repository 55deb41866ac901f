//! Which key it is.

use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// Returns the key that is pressed, if it is one.
pub(crate) fn pressed(event: &Event) -> Option<KeyEvent> {
    match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => Some(*key),
        _ => None,
    }
}

/// Says whether a key is pressed with exactly these.
pub(crate) fn is(event: &Event, code: KeyCode, with: KeyModifiers) -> bool {
    pressed(event).is_some_and(|key| key.code == code && key.modifiers == with)
}
