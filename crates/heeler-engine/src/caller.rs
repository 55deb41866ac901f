//! Identity of the process behind a request: a person, or a process of a run.
//!
//! A runner is an ancestor of every process that its agent starts, so walking up the process tree
//! leads to the runner, regardless of the process's environment. An agent can start a process that
//! looks like another run's runner, but only below its own: of all runners found, the topmost one
//! counts. An agent that makes another service start the process (a service manager, cron) evades
//! this check. Hooks also run under runners, but count as people's: they follow the config.

use camino::Utf8Path;
use heeler_model::RunId;

/// Maximum number of ancestors to inspect. A caller with more is [`Caller::Unknown`].
const ANCESTORS_MAX: usize = 256;

/// Identity behind a request to the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// A person, or a program that a person set up.
    Person,
    /// A process of a run.
    Run(RunId),
    /// A process that cannot be inspected: it has already ended, or is hidden.
    Unknown,
}

impl Caller {
    /// Identifies a process that sent a request to this daemon.
    pub fn from_process(pid: u32) -> Caller {
        Caller::from_ancestors(pid, std::process::id(), inspect_process)
    }

    /// Identifies a process by its ancestors, up to the daemon or the first process. Ancestors of
    /// the daemon do not count: the daemon may itself run in an agent of another fleet.
    fn from_ancestors(
        pid: u32,
        daemon: u32,
        look: impl Fn(u32) -> Option<(Option<RunId>, u32)>,
    ) -> Caller {
        let (mut pid, mut found) = (pid, Caller::Person);
        for _ in 0..ANCESTORS_MAX {
            // A process that cannot be inspected gets no rights, because it may belong to an agent.
            let Some((run, parent)) = look(pid) else { return Caller::Unknown };
            // A runner further up replaces one below it, which an agent may have faked.
            found = run.map_or(found, Caller::Run);
            // The walk ends at the first process, which adopts orphans, and at this daemon.
            if matches!(parent, 0 | 1) || parent == daemon {
                return found;
            }
            pid = parent;
        }
        Caller::Unknown
    }
}

/// Returns the run if the process is a runner, and the process's parent.
fn inspect_process(pid: u32) -> Option<(Option<RunId>, u32)> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let line = String::from_utf8_lossy(&line);
    // The first argument is the program's path, which says nothing.
    let mut arguments = line.split('\0').skip(1);
    let is_runner = arguments.next() == Some("runner");
    let run = arguments.find_map(|argument| run_of_folder(Utf8Path::new(argument)));
    // Read the parent last: this fails if the process has ended in the meantime.
    Some((run.filter(|_| is_runner), parent_pid(pid)?))
}

/// Returns the run of a run directory, unless it belongs to a hook.
fn run_of_folder(folder: &Utf8Path) -> Option<RunId> {
    let run = folder.file_name()?.parse().ok()?;
    let is_hook = folder.ancestors().nth(3).and_then(Utf8Path::file_name) == Some("hooks");
    (!is_hook).then_some(run)
}

fn parent_pid(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The process name comes first, in parentheses, and may contain any character.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_cannot_be_looked_at_is_unknown() {
        assert_eq!(Caller::from_process(std::process::id()), Caller::Person);
        assert_eq!(Caller::from_process(u32::MAX), Caller::Unknown);
    }

    #[test]
    fn whoever_looks_like_the_runner_of_another_run_is_still_of_its_own() {
        let run = |number| RunId::mint(jiff::Timestamp::UNIX_EPOCH, [number; 10]);
        // 7 is the daemon; 5 was started by a person, 6 runs in an agent of another fleet.
        let look = |pid| match pid {
            20 => Some((None, 11)),
            11 => Some((Some(run(2)), 10)),
            10 => Some((Some(run(1)), 7)),
            7 => Some((None, 6)),
            6 => Some((Some(run(9)), 1)),
            5 => Some((None, 1)),
            30 => Some((None, 30)),
            _ => None,
        };
        let of = |pid, daemon| Caller::from_ancestors(pid, daemon, look);
        assert_eq!(of(20, 7), Caller::Run(run(1)), "what it made itself does not count");
        assert_eq!(of(10, 7), Caller::Run(run(1)));
        assert_eq!(of(20, 99), Caller::Run(run(9)), "to the daemon of the outer fleet");
        assert_eq!((of(5, 7), of(8, 7), of(30, 7)), {
            (Caller::Person, Caller::Unknown, Caller::Unknown)
        });
    }

    #[test]
    fn the_way_up_leads_to_the_parent() {
        let own = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get().cast_unsigned());
        assert_eq!(parent_pid(std::process::id()), own);
    }

    #[test]
    fn a_hook_is_no_run_of_an_agent() {
        let run = "01a1df40-eac7-7752-b8ef-f2ffea31e74a";
        let of = |folder: String| run_of_folder(Utf8Path::new(&folder)).map(|run| run.to_string());
        assert_eq!(of(format!("/f/.heeler/runs/{run}")).as_deref(), Some(run));
        assert_eq!(of(format!("/f/.heeler/hooks/job.0/runs/{run}")), None);
        assert_eq!(of("/f/.heeler/runs".to_owned()), None);
    }
}
