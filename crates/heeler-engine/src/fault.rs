//! Deaths to order: points at which a daemon kills itself, as kill -9 would, so that proofs can show
//! what the next one makes of what is left.
//!
//! Nothing happens unless a process is [armed](arm), which only `heeler start --fault` does. A new
//! point is a line below and a call of `reach`. The proof under live runs asks for each of
//! [`FaultPoint::ACTIVE_STATUSES`]; those of [`FaultPoint::APART`] have tests of their own.

use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Signal, getpid, kill_process};
use thiserror::Error;

/// Declares the points with their names.
macro_rules! points {
    (
        at work: { $($(#[$meta:meta])* $point:ident = $name:literal,)+ }
        apart: { $($(#[$apart_meta:meta])* $apart:ident = $apart_name:literal,)+ }
    ) => {
        /// A point at which a daemon can be made to die.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum FaultPoint { $($(#[$meta])* $point,)+ $($(#[$apart_meta])* $apart,)+ }

        impl FaultPoint {
            /// The points that a daemon comes by that has jobs, hooks and due times.
            pub const AT_WORK: &[FaultPoint] = &[$(FaultPoint::$point,)+];

            /// The points that it comes by at its end, or only if files are watched, logs are full,
            /// requests have names, or people change who may come in.
            pub const APART: &[FaultPoint] = &[$(FaultPoint::$apart,)+];

            /// Returns its name.
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
    /// What a turn decided is about to be saved.
    BeforeCommit = "before-commit",
    /// It is saved; nobody was told, and nothing was done about it.
    AfterCommit = "after-commit",
    /// A run is on record, and nothing of it on disk.
    BeforeLaunch = "before-launch",
    /// Its folder is there.
    FolderMade = "folder-made",
    /// Its spec is there.
    SpecWritten = "spec-written",
    /// Its runner was started, and not told what to do.
    RunnerUntold = "runner-untold",
    /// Its runner was told, and comes late: it is stopped before it has done anything.
    RunnerLate = "runner-late",
    /// Its runner was told, and nobody watches it.
    RunnerStarted = "runner-started",
    /// A run was found to have ended; that is not on record.
    RunEnded = "run-ended",
    /// The end of a job is on record with its hooks; nobody does them.
    BeforeHooks = "before-hooks",
    /// A hook is done; that is not on record.
    HookDone = "hook-done",
    /// A starting daemon has adopted what only folders know.
    Adopted = "adopted",
    /// A starting daemon has made the record whole, and has not looked at runs.
    RecordWhole = "record-whole",
    /// A run that an earlier daemon left was looked at.
    TakenOver = "taken-over",
    /// The daemon listens, and does not say where.
    BeforeDaemonFile = "before-daemon-file",
    /// It says where.
    AfterDaemonFile = "after-daemon-file",
}
apart: {
    /// All jobs of a daemon that is stopped have ended; that it was stopped is not on record.
    BeforeStopped = "before-stopped",
    /// That it was stopped is on record; nobody was told.
    AfterStopped = "after-stopped",
    /// It is about to say no more where it listens.
    BeforeFileRemoved = "before-file-removed",
    /// Its file is gone, and its socket is there.
    AfterFileRemoved = "after-file-removed",
    /// Both are gone, and it still holds the state.
    AfterSocketRemoved = "after-socket-removed",
    /// A token of the daemon's own is on record; its file is not written.
    BeforeApiToken = "before-api-token",
    /// An agent's question was noticed; it is not on record.
    QuestionSeen = "question-seen",
    /// A person's answer is on record; its run was not told.
    BeforeDelivery = "before-delivery",
    /// Its run was told; that is not on record.
    Delivered = "delivered",
    /// Watched files have changed; their job is not on record.
    Fired = "fired",
    /// Older logs have made room for one that has grown, which is still in its place.
    LogsMoved = "logs-moved",
    /// A log that had grown was set aside, and there is no new one.
    LogSetAside = "log-set-aside",
    /// A request that has a name is done and on record; nobody was told.
    RequestDone = "request-done",
    /// Who may do what was changed, and is on record; nobody was told.
    AccessDone = "access-done",
}
}

/// A death at a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultInjection {
    /// Where.
    pub point: FaultPoint,
    /// At which time that the point is reached, from one.
    pub nth: u32,
}

/// What is no fault.
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

static ARMED: OnceLock<(FaultPoint, AtomicU32)> = OnceLock::new();

/// Lets this process die of a fault; the first one counts.
pub fn arm(fault: FaultInjection) {
    ARMED.get_or_init(|| (fault.point, AtomicU32::new(fault.nth)));
}

/// Does something first if this process is about to die at a point.
pub(crate) fn run_before_fault(point: FaultPoint, deed: impl FnOnce()) {
    if let Some((armed, left)) = ARMED.get()
        && *armed == point
        && left.load(Ordering::SeqCst) == 1
    {
        deed();
    }
}

/// Says that a point is reached.
pub(crate) fn reach(point: FaultPoint) {
    if let Some((armed, left)) = ARMED.get()
        && *armed == point
        && left.fetch_sub(1, Ordering::SeqCst) == 1
    {
        // It does not return from this.
        let _sent = kill_process(getpid(), Signal::KILL);
    }
}

#[cfg(test)]
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
