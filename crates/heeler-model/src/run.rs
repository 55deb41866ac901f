//! The runner protocol: what passes between the engine and one run of an agent.
//!
//! The engine writes a [`RunSpec`] into the run's folder and hands a [`AgentLaunchSpec`] through a pipe; the
//! runner writes [`RunStartRecord`] and, once, a [`RunResult`]. While it runs it answers a [`ControlRequest`] on
//! its socket with a [`ControlReply`] and tells subscribers each [`Happening`]. Old runners outlive an
//! upgrade: everything carries [`PROTOCOL`], and golden files hold the forms. Start at [`RunSpec`].

mod control;
pub mod file;
mod launch_spec;
mod result;
mod spec;

pub use control::{
    ControlEvent, ControlOperation, ControlReply, ControlReplyBody, ControlRequest, QuestionAnswer,
    RunState, SOCKET_NAME_LEN, socket_name,
};
pub use launch_spec::{AgentLaunchSpec, ClaudeLaunchSpec, McpServerSpec, RuntimeLaunchSpec};
pub use result::{
    AgentQuestion, ClosedQuestion, ErrorClass, QuestionOutcome, RunCost, RunEnd, RunError,
    RunRecovery, RunResult, RunStartRecord, SessionEnd,
};
pub use spec::{QuestionPolicy, RunLimits, RunSpec, SessionPlan, SessionStart};

/// The version that everything of this protocol carries.
pub const PROTOCOL: u32 = 1;

/// The oldest version that is read: that of the release before, whose runners outlive an upgrade.
pub const PROTOCOL_MIN: u32 = 1;

/// With this code a settling ends that finds another process at the run.
pub const SETTLE_EXIT_BUSY: u8 = 5;

/// With this code a settling ends that can use what is in the run's folder neither now nor later. It
/// is none of a command line that is not understood.
pub const SETTLE_EXIT_UNUSABLE: u8 = 65;

/// Says whether something of this version can be read.
pub fn is_readable_protocol(protocol: u32) -> bool {
    (PROTOCOL_MIN..=PROTOCOL).contains(&protocol)
}
