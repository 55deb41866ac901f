//! Files of Claude that decide what it does.

/// Entries of Claude's config directory from which it takes instructions, settings and commands. Its
/// sessions and its login are there too.
pub const CLAUDE_FOLDER_ENTRIES: [&str; 10] = [
    "CLAUDE.md",
    "agents",
    "commands",
    "hooks",
    "output-styles",
    "plugins",
    "rules",
    "settings.json",
    "settings.local.json",
    "skills",
];

/// File with Claude's global state, in the config directory or in the home directory.
pub const CLAUDE_STATE_FILE: &str = ".claude.json";
