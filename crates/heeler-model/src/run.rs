//! Runner protocol: the data exchanged between the engine and one run.
//!
//! The engine writes a [`RunSpec`] into the run's directory and passes an [`AgentLaunchSpec`]
//! through a pipe. The runner writes a [`RunStartRecord`] and, once, a [`RunResult`]. Meanwhile its
//! socket answers each [`ControlRequest`] with a [`ControlReply`] and sends each [`ControlEvent`]
//! to subscribers. Old runners survive an upgrade, so all data carries [`PROTOCOL`], and golden
//! files pin the formats. Start at [`RunSpec`].

mod control;
pub mod file;
mod launch_spec;
mod lease;
mod result;
mod result_check;
mod signature;
mod spec;

pub use control::{
    ControlEvent, ControlOperation, ControlReply, ControlReplyBody, ControlRequest, QuestionAnswer,
    RunState, SOCKET_NAME_LEN, socket_name,
};
pub use launch_spec::{
    AGENT_KEPT_REPLY, AgentLaunchSpec, CAPABILITY_VARIABLE, ClaudeLaunchSpec, ContainerSpec,
    ContainerVolume, FileLimitSpec, GitAccessSpec, McpServerSpec, ProgramLaunchSpec,
    RUN_TAKEN_REPLY, RunAuthority, RunnerInput, RuntimeLaunchSpec, SandboxSpec, SettleInput,
    TokenRates,
};
pub use lease::{
    HOST_CONTACT_BYTES_MAX, HostContact, RUN_LEASE, RunLease, RunLeaseSource, RunLeaseState,
    give_up_after,
};
pub use result::{
    AgentQuestion, ClosedQuestion, ContainerRecord, ErrorClass, QuestionOutcome, RunCost, RunEnd,
    RunError, RunRecovery, RunResult, RunStartRecord, SessionEnd, TranscriptHashRecord,
    UsageLimitState,
};
pub use result_check::{ImpossibleResultError, check_run_result};
pub use signature::{
    QuestionFileKind, QuestionProof, ResultKeyParseError, ResultPublicKey, ResultSigningKey,
    SIGNATURE_FIELD_BYTES,
};
pub use spec::{
    BudgetSource, KeptAgentLimits, QuestionPolicy, RunLimits, RunSpec, SessionPlan, SessionStart,
};

/// Version that all data of this protocol carries.
pub const PROTOCOL: u32 = 1;

/// Oldest readable version: that of the previous release, since its runners survive an upgrade.
pub const PROTOCOL_MIN: u32 = 1;

/// Exit code of `settle` if another process is working on the run.
pub const SETTLE_EXIT_BUSY: u8 = 5;

/// Exit code of `settle` if the run's directory is permanently unusable. Distinct from the code for
/// an invalid command line.
pub const SETTLE_EXIT_UNUSABLE: u8 = 65;

/// Returns true if data of this version can be read.
pub fn is_readable_protocol(protocol: u32) -> bool {
    (PROTOCOL_MIN..=PROTOCOL).contains(&protocol)
}
