//! Fault points: places at which a test kills this process, to prove that its files can be settled.
//!
//! Outside of this crate's own tests a fault point does nothing and cannot be armed.

/// Fault point between two writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunnerFaultPoint {
    RunLocked,
    SessionLocked,
    ExternalMessagesAdded,
    Started,
    Spawned,
    SessionRow,
    JobRow,
    QuestionAsked,
    SummaryWritten,
    NativeSessionWritten,
    MessagesCarriedOver,
    TreeEnded,
    LogsSynced,
    ResultWritten,
}

#[cfg(not(test))]
pub(crate) fn point(_: RunnerFaultPoint) {}

#[cfg(test)]
pub(crate) use armed::{arm, point};

#[cfg(test)]
mod armed {
    use std::sync::OnceLock;

    use super::RunnerFaultPoint;

    static ARMED: OnceLock<RunnerFaultPoint> = OnceLock::new();

    /// Makes this process die at the fault point.
    pub(crate) fn arm(point: RunnerFaultPoint) {
        ARMED.set(point).expect("a process dies once");
    }

    /// Dies as if by `kill -9` if the fault point is armed.
    pub(crate) fn point(point: RunnerFaultPoint) {
        if ARMED.get() == Some(&point) {
            let own = rustix::process::getpid();
            rustix::process::kill_process(own, rustix::process::Signal::KILL).unwrap();
        }
    }
}
