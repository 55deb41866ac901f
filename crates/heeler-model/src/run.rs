//! The runner protocol: what passes between the engine and one run of an agent.
//!
//! The engine writes a [`RunSpec`] into the run's folder and hands a [`Brief`] through a pipe; the
//! runner writes [`Started`] and, once, a [`RunResult`]. While it runs it answers a [`Request`] on
//! its socket with a [`Reply`] and tells subscribers each [`Happening`]. Old runners outlive an
//! upgrade: everything carries [`PROTOCOL`], and golden files hold the forms. Start at [`RunSpec`].

mod brief;
mod control;
mod result;
mod spec;

pub use brief::{Brief, ClaudeBrief, McpBrief, Work};
pub use control::{Answer, Happening, Op, Reply, ReplyBody, Request, RunState};
pub use result::{Ask, Cost, End, ErrorClass, Recovery, RunError, RunResult, SessionEnd, Started};
pub use spec::{Attendance, Limits, RunSpec, SessionPlan, SessionStart};

/// The version that everything of this protocol carries. A reader takes this one and the one before.
pub const PROTOCOL: u32 = 1;
