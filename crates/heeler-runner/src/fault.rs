//! Fault points: places at which a test kills this process, to prove that its files can be settled.
//!
//! Outside of this crate's own tests a fault point does nothing and cannot be armed.

/// Declares the points; a point is named like its variant.
macro_rules! points {
    ($($point:ident,)+) => {
        /// Fault point between two writes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum RunnerFaultPoint { $($point,)+ }

        #[cfg(test)]
        impl RunnerFaultPoint {
            fn name(self) -> &'static str {
                match self { $(RunnerFaultPoint::$point => stringify!($point),)+ }
            }
        }
    };
}

points! {
    RunLocked,
    SessionLocked,
    ExternalMessagesAdded,
    Started,
    ContainerNamed,
    ContainerCreated,
    ContainerStarted,
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
    AgentKept,
    NextRunReceived,
    NextRunConfirmed,
}

#[cfg(not(test))]
pub(crate) fn point(_: RunnerFaultPoint) {}

/// Dies as if by `kill -9` if the fault point is armed.
#[cfg(test)]
pub(crate) fn point(point: RunnerFaultPoint) {
    heeler_transcript::fault::reach(point.name());
}

/// Makes this process die at the fault point.
#[cfg(test)]
pub(crate) fn arm(point: RunnerFaultPoint) {
    heeler_transcript::fault::arm(point.name(), 1);
}
