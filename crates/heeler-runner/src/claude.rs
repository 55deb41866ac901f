//! Claude Code as an agent: launching it, talking to it, and enforcing its tool allowlist.
//!
//! [`SdkRuntime`] speaks the control protocol in both directions; [`ClaudeCliRuntime`] starts a
//! one-shot run. Both are started from [`ClaudeLaunchOptions`]. A list of allowed tools is enforced
//! as a true allowlist, or the run is refused (`docs/design/003-claude.md` has the evidence).
//! Protected files stay protected with any list and in any mode. This module does no IO.

mod args;
mod call_policy;
mod cli;
pub(crate) mod control_messages;
mod progress;
#[cfg(test)]
mod replay;
mod sdk;
mod shell_parser;
mod tool_allowlist;

pub use tool_allowlist::check_allowed_tools;
pub(crate) use tool_allowlist::{AllowedToolsError, McpToolLists};

pub(crate) use args::{ClaudeLaunchOptions, limit_args, session_args, text_args};
pub(crate) use cli::ClaudeCliRuntime;
pub(crate) use progress::ClaudeBackgroundTasks;
#[cfg(test)]
pub(crate) use replay::{replay_control, replay_output};
pub(crate) use sdk::SdkRuntime;
