//! Claude Code as an agent: how it is started, how one talks with it, and what it may not do.
//!
//! [`Sdk`] speaks the control protocol both ways, [`Cli`] starts a one-shot run. Both are started
//! from a [`Setup`]. A list of allowed tools is held here as a true whitelist, or the run is refused
//! (`docs/design/003-claude.md` has the evidence). Nothing here does IO.

mod allowed;
mod args;
mod cli;
mod progress;
mod sdk;
mod shell;
mod wire;

pub(crate) use args::{Setup, limit_args, session_args, texts};
pub(crate) use cli::Cli;
pub(crate) use progress::Background;
pub(crate) use sdk::Sdk;
