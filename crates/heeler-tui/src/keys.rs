//! Which key it is.

use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// Returns the key that is pressed, if it is one.
pub(crate) fn pressed_key(event: &Event) -> Option<KeyEvent> {
    match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => Some(*key),
        _ => None,
    }
}

/// Says whether a key is pressed with exactly these.
pub(crate) fn is_key(event: &Event, code: KeyCode, with: KeyModifiers) -> bool {
    pressed_key(event).is_some_and(|key| key.code == code && key.modifiers == with)
}

/// The keys that there are, and what each does, for help.
pub const KEYS: &[(&str, &str)] = &[
    ("Enter", "send; with Shift, Alt, after `\\`, or as Ctrl+J: a new line"),
    ("Esc", "interrupt who is at work; else clear the input, go to the end, go back to the agent"),
    (
        "Tab, Shift+Tab",
        "look at the next or previous worker; complete; answer what is asked, or type",
    ),
    ("Ctrl+O", "show tool calls whole, or folded"),
    ("PgUp, PgDn, wheel", "scroll; Shift+Up and Shift+Down by a line, Ctrl+End to the end"),
    ("Shift and the mouse", "select text, in most terminals"),
    ("Up, Down, Ctrl+P, Ctrl+N", "what was typed before"),
    ("Ctrl+R", "search what was typed before"),
    ("/, @", "commands and files are offered"),
    (
        "Ctrl+A, E, B, F, K, U, W, Y, _",
        "move, cut, paste and undo as in a shell; Alt+B, F, D by words",
    ),
    ("Ctrl+E", "show all of a long request"),
    ("Ctrl+L", "draw the screen anew"),
    ("Ctrl+Z", "stop here for a while; `fg` in the shell goes on"),
    ("Ctrl+C", "clear the input; twice on an empty one: leave"),
    ("Ctrl+D", "leave, on an empty input"),
];
