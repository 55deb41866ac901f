//! Hooks that are calls, against servers on this machine.
