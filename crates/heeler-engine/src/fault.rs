//! Fault points: places at which a daemon kills itself as with `kill -9`, so that tests can check
//! the next daemon's recovery.
//!
//! Without the feature `fault-points` nothing of this is compiled but the names of the variants. With
//! it, nothing happens unless a process is armed, which only `heeler start --fault` does. A
//! new point is one line below and one call of `reach`. The test under live runs covers each point of
//! `FaultPoint::AT_WORK`; those of `FaultPoint::APART` have their own tests.

#[cfg(feature = "fault-points")]
pub use self::injection::{FaultInjection, FaultParseError, arm};

/// Declares the points with their names.
macro_rules! points {
    (
        at work: { $($(#[$meta:meta])* $point:ident = $name:literal,)+ }
        apart: { $($(#[$apart_meta:meta])* $apart:ident = $apart_name:literal,)+ }
    ) => {
        /// A point at which a daemon can be made to die.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum FaultPoint { $($(#[$meta])* $point,)+ $($(#[$apart_meta])* $apart,)+ }

        #[cfg(feature = "fault-points")]
        impl FaultPoint {
            /// Points that every daemon with jobs, hooks and due times reaches.
            pub const AT_WORK: &[FaultPoint] = &[$(FaultPoint::$point,)+];

            /// Points that a daemon reaches only when it ends, when files are watched, when logs
            /// are full, when requests have idempotency keys, or when access changes.
            pub const APART: &[FaultPoint] = &[$(FaultPoint::$apart,)+];

            pub fn name(self) -> &'static str {
                match self {
                    $(FaultPoint::$point => $name,)+
                    $(FaultPoint::$apart => $apart_name,)+
                }
            }
        }
    };
}

points! {
at work: {
    /// A turn is about to be committed.
    BeforeCommit = "before-commit",
    /// The turn is committed; no reply was sent and no effect executed.
    AfterCommit = "after-commit",
    /// A run is recorded; nothing of it is on disk.
    BeforeLaunch = "before-launch",
    /// The run directory exists.
    FolderMade = "folder-made",
    /// The run's spec is written.
    SpecWritten = "spec-written",
    /// The runner is started but has not received its brief.
    RunnerUntold = "runner-untold",
    /// The runner has its brief but is late: it is stopped before it has done anything.
    RunnerLate = "runner-late",
    /// The runner has its brief but is not watched.
    RunnerStarted = "runner-started",
    /// A run was found to have ended; that is not recorded.
    RunEnded = "run-ended",
    /// The end of a job is recorded with its hooks; no hook has started.
    BeforeHooks = "before-hooks",
    /// A hook has finished; that is not recorded.
    HookDone = "hook-done",
    /// A starting daemon has adopted the runs that only have a directory.
    Adopted = "adopted",
    /// A starting daemon has completed the records and has not inspected any run.
    RecordWhole = "record-whole",
    /// A run of an earlier daemon was inspected.
    TakenOver = "taken-over",
    /// The daemon listens; `daemon.json` is not written.
    BeforeDaemonFile = "before-daemon-file",
    /// `daemon.json` is written.
    AfterDaemonFile = "after-daemon-file",
}
apart: {
    /// All jobs of a stopping daemon have ended; that it was stopped is not recorded.
    BeforeStopped = "before-stopped",
    /// That it was stopped is recorded; no reply was sent.
    AfterStopped = "after-stopped",
    /// `daemon.json` is about to be removed.
    BeforeFileRemoved = "before-file-removed",
    /// `daemon.json` is removed; the socket still exists.
    AfterFileRemoved = "after-file-removed",
    /// Both are removed; the daemon still holds the state directory.
    AfterSocketRemoved = "after-socket-removed",
    /// The daemon's API token is stored; its file is not written.
    BeforeApiToken = "before-api-token",
    /// An agent's question was noticed; it is not recorded.
    QuestionSeen = "question-seen",
    /// A person's answer is recorded; it was not sent to the run.
    BeforeDelivery = "before-delivery",
    /// The answer was sent to the run; that is not recorded.
    Delivered = "delivered",
    /// A dead run is settled; its result was not read.
    RunSettled = "run-settled",
    /// A result without a valid signature was set aside; its run is not settled.
    ResultRefused = "result-refused",
    /// Watched files have changed; their job is not recorded.
    Fired = "fired",
    /// A task on GitHub was executed; its result is not recorded.
    GithubActed = "github-acted",
    /// Missed webhook deliveries were handled; that they were fetched is not recorded.
    DeliveriesHandled = "deliveries-handled",
    /// A chat platform delivered an event; it is not recorded.
    ChatReceived = "chat-received",
    /// Events of a chat platform are recorded; they are not acknowledged.
    ChatRecorded = "chat-recorded",
    /// The files of a chat message are stored; the run of its job is not recorded.
    FilesReceived = "files-received",
    /// A gap of a chat platform is recorded; the platform is not connected.
    GapRecorded = "gap-recorded",
    /// The messages of a gap are recorded; that the gap was read is not.
    GapRead = "gap-read",
    /// A post to a chat was made; its result is not recorded.
    ChatPosted = "chat-posted",
    /// A run card was posted to a chat; that is not recorded.
    CardPosted = "card-posted",
    /// A running job has taken a message of a chat; that is not recorded.
    MessageSaid = "message-said",
    /// A host has read a message for one of its runs; nothing was sent to the run.
    MessageFetched = "message-fetched",
    /// A notice to a person was sent; its result is not recorded.
    NoticeSent = "notice-sent",
    /// Older logs were renamed to make room for the current one, which is still in place.
    LogsMoved = "logs-moved",
    /// The current log was rotated; no new one exists.
    LogSetAside = "log-set-aside",
    /// A request with an idempotency key is executed and recorded; no reply was sent.
    RequestDone = "request-done",
    /// A run was passed to the runner of its conversation's last run; the outcome is not known yet.
    RunHandedOver = "run-handed-over",
    /// An access change is recorded; no reply was sent.
    AccessDone = "access-done",
    /// The files of a run's skills are written; its spec is not.
    SkillsPlaced = "skills-placed",
    /// A run of the leader is prepared on its host; the host has not claimed it.
    BeforeClaim = "before-claim",
    /// A host has claimed a run of the leader; nothing of it is on disk.
    RunClaimed = "run-claimed",
    /// A part of a transcript is shipped to the other hosts; the host does not remember it.
    PartShipped = "part-shipped",
    /// A part of another host's file is copied; that is not on record.
    PartCopied = "part-copied",
    /// A part of a session that moves to another host is shipped; there may be more.
    MovePartShipped = "move-part-shipped",
    /// All parts of a session that moves to another host are shipped; that is not on record.
    MovePacked = "move-packed",
    /// A session that moves to this host is fetched; nothing of it is placed.
    MoveFetched = "move-fetched",
    /// A session that moves to this host is placed; that is not on record.
    MovePlaced = "move-placed",
    /// A host has placed a session; the leader has not recorded that the session is there.
    MoveReported = "move-reported",
    /// Nothing of a run's files is shipped to the other hosts.
    BeforeShipping = "before-shipping",
    /// The files of a run are shipped to their end; that is not on record.
    FilesShipped = "files-shipped",
    /// A chunk of a file is in the archive; the file is not on record there.
    ArchiveChunkStored = "archive-chunk-stored",
    /// All chunks of a file are in the archive; the file is not on record there.
    ArchiveStored = "archive-stored",
    /// A file is on record in the archive.
    ArchiveRecorded = "archive-recorded",
    /// A file of the archive is read and checked; the copy of this host is unchanged.
    ArchiveFetched = "archive-fetched",
    /// A file of the archive is copied; that is not on record.
    ArchiveCopied = "archive-copied",
}
}

/// Runs `deed` if this process is about to die at the point.
#[cfg(feature = "fault-points")]
pub(crate) fn run_before_fault(point: FaultPoint, deed: impl FnOnce()) {
    if heeler_transcript::fault::is_next(point.name()) {
        deed();
    }
}

/// Marks that a point is reached.
#[cfg(feature = "fault-points")]
pub(crate) fn reach(point: FaultPoint) {
    heeler_transcript::fault::reach(point.name());
}

#[cfg(not(feature = "fault-points"))]
pub(crate) fn run_before_fault(_: FaultPoint, _: impl FnOnce()) {}

#[cfg(not(feature = "fault-points"))]
pub(crate) fn reach(_: FaultPoint) {}

#[cfg(feature = "fault-points")]
mod injection {
    use std::str::FromStr;

    use thiserror::Error;

    use super::FaultPoint;

    /// Death of the process at a fault point.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct FaultInjection {
        pub point: FaultPoint,
        /// Number of the visit at which the process dies, starting at 1.
        pub nth: u32,
    }

    /// The text does not describe a fault.
    #[derive(Debug, Error)]
    #[error("`{0}` is no point with a number from one, such as before-commit:3")]
    pub struct FaultParseError(String);

    impl FromStr for FaultInjection {
        type Err = FaultParseError;

        fn from_str(text: &str) -> Result<FaultInjection, FaultParseError> {
            let unknown = || FaultParseError(text.to_owned());
            let (name, nth) = text.split_once(':').unwrap_or((text, "1"));
            let mut all = FaultPoint::AT_WORK.iter().chain(FaultPoint::APART);
            let point = all.find(|point| point.name() == name);
            let nth: u32 = nth.parse().map_err(|_| unknown())?;
            match point {
                Some(&point) if nth > 0 => Ok(FaultInjection { point, nth }),
                _ => Err(unknown()),
            }
        }
    }

    /// Arms a fault for this process. Only the first call has an effect.
    pub fn arm(fault: FaultInjection) {
        heeler_transcript::fault::arm(fault.point.name(), fault.nth);
    }
}

#[cfg(all(test, feature = "fault-points"))]
mod tests {
    use super::*;

    #[test]
    fn a_fault_names_a_point_and_which_time() {
        for &point in FaultPoint::AT_WORK.iter().chain(FaultPoint::APART) {
            let once = point.name().parse::<FaultInjection>().unwrap();
            assert_eq!(once, FaultInjection { point, nth: 1 });
            let later = format!("{}:7", point.name()).parse::<FaultInjection>().unwrap();
            assert_eq!(later, FaultInjection { point, nth: 7 });
        }
        for text in ["", "nowhere", "before-commit:0", "before-commit:x", ":1"] {
            assert!(text.parse::<FaultInjection>().is_err(), "{text}");
        }
    }
}
