//! Claude Code as an agent: how it is started, how one talks with it, and what it may not do.
//!
//! [`SdkRuntime`] speaks the control protocol both ways, [`ClaudeCliRuntime`] starts a one-shot run. Both are started
//! from a [`ClaudeLaunchOptions`]. A list of allowed tools is held here as a true whitelist, or the run is refused
//! (`docs/design/003-claude.md` has the evidence). Nothing here does IO.

mod args;
mod cli;
mod control_messages;
mod progress;
mod sdk;
mod shell_parser;
mod tool_allowlist;

pub(crate) use args::{ClaudeLaunchOptions, limit_args, session_args, text_args};
pub(crate) use cli::ClaudeCliRuntime;
pub(crate) use progress::ClaudeBackgroundTasks;
pub(crate) use sdk::SdkRuntime;
