//! Identity behind a request: a person, a run, a hook, or an unknown process.
//!
//! Processes of runs and hooks identify themselves by a capability. A person is recognized by the
//! kernel's facts about the process that connected, or by a token. A caller without one of these has
//! no authority. An agent that makes another service start the process (a service manager, cron, a
//! container engine) evades the facts. Start at [`PeerIdentity::caller`].

use camino::Utf8Path;
use heeler_model::RunId;
use heeler_process::{ProcessOrigin, SocketPeerProcess};
use serde::{Deserialize, Serialize};

/// Identity behind a request to the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Caller {
    /// A person, or a program that a person set up.
    Person,
    /// A process of a run.
    Run(RunId),
    /// A process of a command hook, by the run that executes it.
    Hook(RunId),
    /// A process of an agent without a capability, another program without a token, or a
    /// process that cannot be inspected. It may change nothing.
    Unknown,
}

/// Facts about the process at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerIdentity {
    standing: PeerStanding,
    /// Run of the process's topmost runner, be it of an agent or of a hook.
    runner: Option<RunId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PeerStanding {
    /// Heeler, outside of all agents.
    HeelerProgram,
    /// Another program outside of all agents.
    OtherProgram,
    /// A process of an agent or hook, or one that cannot be inspected.
    Untrusted,
}

impl PeerIdentity {
    /// Facts about a process that cannot be inspected.
    pub const UNTRUSTED: PeerIdentity =
        PeerIdentity { standing: PeerStanding::Untrusted, runner: None };

    /// Inspects the process at the other end of a unix socket.
    pub fn of_socket_peer(peer: &SocketPeerProcess) -> PeerIdentity {
        peer.inspect().map_or(PeerIdentity::UNTRUSTED, |origin| PeerIdentity::from_origin(&origin))
    }

    /// Inspects a process of a user. Must be called as early as possible, because the PID of a
    /// process that has ended may be reused.
    pub fn of_process(pid: u32, user: u32) -> PeerIdentity {
        ProcessOrigin::inspect(pid, user)
            .map_or(PeerIdentity::UNTRUSTED, |origin| PeerIdentity::from_origin(&origin))
    }

    fn from_origin(origin: &ProcessOrigin) -> PeerIdentity {
        let standing = match (origin.is_free_of_agents(), origin.is_heeler) {
            (true, true) => PeerStanding::HeelerProgram,
            (true, false) => PeerStanding::OtherProgram,
            (false, _) => PeerStanding::Untrusted,
        };
        let run = |dir: &Utf8Path| dir.file_name()?.parse().ok();
        PeerIdentity { standing, runner: origin.runner_dir.as_deref().and_then(run) }
    }

    /// Returns the caller behind a request without a credential, on a socket that only this user and
    /// root can reach.
    pub fn caller(self) -> Caller {
        match self.standing {
            PeerStanding::HeelerProgram => Caller::Person,
            PeerStanding::OtherProgram | PeerStanding::Untrusted => Caller::Unknown,
        }
    }

    /// Returns the caller behind a request with a valid token or login of a person. An agent may have
    /// found the token, so it counts only outside of agents.
    pub fn caller_with_token(self) -> Caller {
        match self.standing {
            PeerStanding::HeelerProgram | PeerStanding::OtherProgram => Caller::Person,
            PeerStanding::Untrusted => Caller::Unknown,
        }
    }

    /// Returns the caller behind a request with a valid capability. The capability of a run counts
    /// only below its runner: a process that outlived its own may have found that of another run.
    /// Hooks have a runner only while an agent runs them.
    pub fn caller_with_capability(self, holder: Caller) -> Caller {
        match (holder, self.runner) {
            (Caller::Run(run), runner) if runner != Some(run) => Caller::Unknown,
            (Caller::Hook(run), Some(runner)) if run != runner => Caller::Unknown,
            _ => holder,
        }
    }

    /// Returns true if the process belongs to an agent or cannot be inspected.
    pub fn is_untrusted(self) -> bool {
        self.standing == PeerStanding::Untrusted
    }

    /// Returns the run of the process's topmost runner.
    pub fn runner(self) -> Option<RunId> {
        self.runner
    }

    /// Returns the less trusted of two processes that share a connection.
    #[must_use]
    pub fn least_trusted(self, other: PeerIdentity) -> PeerIdentity {
        let rank = |peer: &PeerIdentity| match peer.standing {
            PeerStanding::Untrusted => 0,
            PeerStanding::OtherProgram => 1,
            PeerStanding::HeelerProgram => 2,
        };
        if rank(&other) < rank(&self) { other } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(number: u8) -> RunId {
        RunId::mint(jiff::Timestamp::UNIX_EPOCH, [number; 10])
    }

    fn peer(is_marked: bool, runner: Option<RunId>, is_heeler: bool) -> PeerIdentity {
        let runner_dir = runner.map(|run| format!("/f/.heeler/runs/{run}").into());
        let (runner_pid, is_own_descendant) = (runner.map(|_| 1), false);
        PeerIdentity::from_origin(&ProcessOrigin {
            is_marked,
            runner_dir,
            runner_pid,
            is_own_descendant,
            is_heeler,
        })
    }

    #[test]
    fn only_heeler_outside_of_agents_is_a_person_without_a_token() {
        assert_eq!(peer(false, None, true).caller(), Caller::Person);
        let others = [
            peer(false, None, false),
            peer(true, None, true),
            peer(false, Some(run(1)), true),
            PeerIdentity::UNTRUSTED,
        ];
        assert!(others.iter().all(|other| other.caller() == Caller::Unknown));
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(PeerIdentity::of_process(u32::MAX, user), PeerIdentity::UNTRUSTED);
        assert_eq!(PeerIdentity::of_process(std::process::id(), user).caller(), Caller::Person);
    }

    #[test]
    fn a_token_counts_outside_of_agents() {
        assert_eq!(peer(false, None, false).caller_with_token(), Caller::Person);
        assert_eq!(peer(true, None, false).caller_with_token(), Caller::Unknown);
        assert_eq!(peer(false, Some(run(1)), false).caller_with_token(), Caller::Unknown);
        let shared = peer(false, None, true).least_trusted(peer(true, None, true));
        assert_eq!(shared.caller_with_token(), Caller::Unknown);
    }

    #[test]
    fn a_capability_counts_only_below_its_own_runner() {
        let of = |peer: PeerIdentity| peer.caller_with_capability(Caller::Run(run(1)));
        assert_eq!(of(peer(true, Some(run(1)), true)), Caller::Run(run(1)));
        assert_eq!(of(peer(true, None, true)), Caller::Unknown, "it outlived its runner");
        assert_eq!(of(peer(false, None, true)), Caller::Unknown);
        assert_eq!(of(peer(true, Some(run(2)), true)), Caller::Unknown);
        let hook = peer(true, Some(run(2)), true).caller_with_capability(Caller::Hook(run(1)));
        assert_eq!(hook, Caller::Unknown);
    }
}
