//! Key events, and the list of keys for help.

use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// Returns the pressed key, if the event is one.
pub(crate) fn pressed_key(event: &Event) -> Option<KeyEvent> {
    match event {
        // Terminals with the enhanced protocol also report the release of a key.
        Event::Key(key) if key.kind != KeyEventKind::Release => Some(*key),
        _ => None,
    }
}

/// Returns true if a key is pressed with exactly these modifiers.
pub(crate) fn is_key(event: &Event, code: KeyCode, with: KeyModifiers) -> bool {
    pressed_key(event).is_some_and(|key| key.code == code && key.modifiers == with)
}

/// Keys and their descriptions, for help.
pub const KEYS: &[(&str, &str)] = &[
    ("Enter", "send; with Shift, Alt, after `\\`, or as Ctrl+J: a new line"),
    ("Esc", "interrupt the agent; else clear the input, scroll to the end, return to the agent"),
    ("Tab", "view the next worker; complete; switch between question and input"),
    ("Shift+Tab", "change the permission mode: default, acceptEdits, plan"),
    ("Ctrl+O", "expand or collapse tool calls and long messages"),
    ("PgUp, PgDn, wheel", "scroll; Shift+Up and Shift+Down by a line, Ctrl+End to the end"),
    ("Shift and the mouse", "select text, in most terminals"),
    ("Up, Down, Ctrl+P, Ctrl+N", "recall earlier input"),
    ("Up, on an empty input", "take a queued message back, to edit it"),
    ("Ctrl+R", "search earlier input"),
    ("Ctrl+S", "search what is on the screen and above; Up and Down go on, Esc ends"),
    ("/, @", "complete commands and files; a part of a file's name is enough"),
    ("!", "run a command on this machine; its output goes with your next message"),
    ("!!", "run a command and only show its output"),
    (
        "Ctrl+A, E, B, F, K, U, W, Y, _",
        "move, cut, paste and undo as in a shell; Alt+B, F, D by words",
    ),
    ("Ctrl+E", "show a long request in full"),
    ("Ctrl+L", "redraw the screen"),
    ("Ctrl+Z", "suspend; `fg` in the shell continues"),
    ("Ctrl+C", "clear the input; twice within 3 s on an empty one: leave"),
    ("Ctrl+D", "leave, on an empty input"),
];
