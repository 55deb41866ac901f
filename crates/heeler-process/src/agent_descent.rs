//! Descent of this process from an agent or a hook.
//!
//! The facts come from system calls and from a `/proc` that is the kernel's own: in namespaces of
//! its making, an agent can mount anything there. Start at [`AgentDescent::of_own_process`].

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::time::Duration;

use camino::Utf8PathBuf;
use rustix::fs::{CWD, Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, fstatfs, openat, openat2};

use crate::origin::{ANCESTORS_MAX, parse_mark, parse_stat, runner_dir};

/// Clock ticks per second in `/proc`, which the kernel has fixed for programs.
const TICKS_PER_SECOND: u64 = 100;

/// The user map of the first user namespace of the system.
const FIRST_USER_MAP: [&str; 3] = ["0", "0", "4294967295"];

/// An agent or a hook among the ancestors of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentDescent {
    /// Age of the agent's oldest process that is an ancestor of this one. An age below the true one
    /// is possible, a larger one is not. `None` if the kernel does not show it.
    pub age: Option<Duration>,
    /// Directories of the runs whose runners are ancestors of this process.
    pub run_dirs: Vec<Utf8PathBuf>,
}

impl AgentDescent {
    /// Returns the descent of this process; `None` if no agent started it, as far as the kernel can
    /// tell. In a container whose first process carries the mark of agents, only the runners among
    /// the ancestors count.
    pub fn of_own_process() -> Option<AgentDescent> {
        let is_marked = is_own_process_marked();
        let hidden = || AgentDescent { age: None, run_dirs: Vec::new() };
        let Some(files) = ProcFiles::open() else { return is_marked.then(hidden) };
        let is_first_user = || files.is_in_first_user_namespace();
        let chain = ancestor_chain(std::process::id(), |pid| files.inspect(pid));
        let descent = evaluate(&chain, is_marked, is_first_user)?;
        // The age of a process without a readable clock is unknown.
        let uptime = files.uptime();
        let age = descent.started.zip(uptime).map(|(start, uptime)| uptime.saturating_sub(start));
        Some(AgentDescent { age, run_dirs: descent.run_dirs })
    }
}

/// Returns true if this process carries the mark of agents itself: it runs in a container without
/// new privileges, or in an agent. The mark then tells nothing about other processes.
pub fn is_own_process_marked() -> bool {
    // A kernel without this call cannot mark agents either, and starts none.
    rustix::thread::no_new_privs().unwrap_or(true)
}

/// An ancestor of this process, or this process.
#[derive(Debug, Clone)]
struct AncestorFacts {
    pid: u32,
    parent: u32,
    is_marked: bool,
    run_dir: Option<Utf8PathBuf>,
    /// Time of its fork since the boot of the system.
    started: Duration,
}

/// Ancestors, from this process upwards.
struct AncestorChain {
    ancestors: Vec<AncestorFacts>,
    /// False if an ancestor is hidden, or there are too many.
    is_complete: bool,
}

fn ancestor_chain(own: u32, look: impl Fn(u32) -> Option<AncestorFacts>) -> AncestorChain {
    let (mut pid, mut ancestors) = (own, Vec::new());
    while ancestors.len() < ANCESTORS_MAX {
        let Some(found) = look(pid) else { break };
        let is_last = matches!(found.parent, 0) || found.pid == 1;
        pid = found.parent;
        ancestors.push(found);
        if is_last {
            return AncestorChain { ancestors, is_complete: true };
        }
    }
    AncestorChain { ancestors, is_complete: false }
}

struct DescentFacts {
    /// Start of the latest of: the topmost marked ancestor, and every runner.
    started: Option<Duration>,
    run_dirs: Vec<Utf8PathBuf>,
}

fn evaluate(
    chain: &AncestorChain,
    is_marked: bool,
    is_in_first_user_namespace: impl Fn() -> bool,
) -> Option<DescentFacts> {
    let AncestorChain { ancestors, is_complete } = chain;
    let runners: Vec<&AncestorFacts> = ancestors.iter().filter(|it| it.run_dir.is_some()).collect();
    // An agent cannot replace the first process of the system or of its container, but can make a
    // PID namespace with a first process of its own. For that it needs a user namespace.
    let is_container = || {
        let first = ancestors.last().filter(|last| *is_complete && last.pid == 1);
        first.is_some_and(|first| first.is_marked) && is_in_first_user_namespace()
    };
    if runners.is_empty() && (!is_marked || is_container()) {
        return None;
    }
    let topmost_marked = ancestors.iter().take_while(|it| it.is_marked).last();
    // A process that an agent made to look like a runner makes the result only stricter.
    let started = topmost_marked.into_iter().chain(runners.iter().copied()).map(|it| it.started);
    let run_dirs = runners.iter().filter_map(|it| it.run_dir.clone()).collect();
    Some(DescentFacts { started: started.max(), run_dirs })
}

/// The kernel's own files in `/proc`.
struct ProcFiles(OwnedFd);

impl ProcFiles {
    /// Opens `/proc`; returns `None` if something else is mounted there.
    fn open() -> Option<ProcFiles> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, "/proc", flags, Mode::empty()).ok()?;
        let is_kernels = fstatfs(&root).ok()?.f_type == PROC_SUPER_MAGIC;
        is_kernels.then_some(ProcFiles(root))
    }

    /// Reads a file over which nothing is mounted.
    fn read(&self, name: &str) -> Option<String> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
        let file = openat2(&self.0, name, flags, Mode::empty(), resolve).ok()?;
        let mut bytes = Vec::new();
        File::from(file).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn inspect(&self, pid: u32) -> Option<AncestorFacts> {
        let is_marked = parse_mark(&self.read(&format!("{pid}/status"))?)?;
        let run_dir = runner_dir(&self.read(&format!("{pid}/cmdline"))?);
        // Read last: this fails if the process has ended in the meantime.
        let stat = parse_stat(&self.read(&format!("{pid}/stat"))?)?;
        let started = ticks(stat.start_ticks);
        Some(AncestorFacts { pid, parent: stat.parent, is_marked, run_dir, started })
    }

    fn is_in_first_user_namespace(&self) -> bool {
        let map = self.read("self/uid_map").unwrap_or_default();
        map.split_whitespace().eq(FIRST_USER_MAP)
    }

    fn uptime(&self) -> Option<Duration> {
        let text = self.read("uptime")?;
        Duration::try_from_secs_f64(text.split_whitespace().next()?.parse().ok()?).ok()
    }
}

/// Converts a time of `/proc`.
pub(crate) fn ticks(count: u64) -> Duration {
    Duration::from_millis(count.saturating_mul(1000 / TICKS_PER_SECOND))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fact(pid: u32, parent: u32, is_marked: bool) -> AncestorFacts {
        let started = Duration::from_secs(u64::from(pid));
        AncestorFacts { pid, parent, is_marked, run_dir: None, started }
    }

    fn runner(pid: u32, parent: u32) -> AncestorFacts {
        let run_dir = Some(Utf8PathBuf::from(format!("/s/runs/{pid}")));
        AncestorFacts { run_dir, ..fact(pid, parent, false) }
    }

    /// Evaluates the descent of the first of these processes.
    fn descent(processes: &[AncestorFacts], is_first_user: bool) -> Option<(u64, usize)> {
        let look = |pid| processes.iter().find(|it| it.pid == pid).cloned();
        let own = &processes[0];
        let chain = ancestor_chain(own.pid, look);
        let found = evaluate(&chain, own.is_marked, || is_first_user)?;
        Some((found.started?.as_secs(), found.run_dirs.len()))
    }

    #[test]
    fn an_ordinary_process_descends_from_no_agent() {
        assert_eq!(descent(&[fact(9, 8, false), fact(8, 1, false), fact(1, 0, false)], true), None);
        // Ancestors of other users may be hidden.
        assert_eq!(descent(&[fact(9, 8, false)], true), None);
    }

    #[test]
    fn the_start_of_an_agent_is_where_its_mark_begins() {
        let first = fact(1, 0, false);
        let agent = [fact(9, 7, true), fact(7, 5, true), runner(5, 1), first.clone()];
        assert_eq!(descent(&agent, true), Some((7, 1)));
        // Its runner is dead, and the first process or another one has adopted it.
        assert_eq!(
            descent(&[fact(9, 7, true), fact(7, 1, true), first.clone()], true),
            Some((7, 0))
        );
        let adopted = [fact(9, 3, true), fact(3, 1, false), first.clone()];
        assert_eq!(descent(&adopted, true), Some((9, 0)));
        // It may gain privileges.
        assert_eq!(descent(&[fact(9, 5, false), runner(5, 1), first.clone()], true), Some((5, 1)));
        // A runner that is not one, and an ancestor that is hidden, only shorten the age.
        let false_runner = AncestorFacts { is_marked: true, ..runner(8, 5) };
        let agent = [fact(9, 8, true), false_runner, runner(5, 1), first];
        assert_eq!(descent(&agent, true), Some((8, 2)));
        assert_eq!(descent(&[fact(9, 7, true), fact(7, 5, true)], true), Some((7, 0)));
    }

    #[test]
    fn a_container_may_forbid_new_privileges_but_no_namespace_of_an_agent_looks_like_one() {
        let contained = [fact(9, 1, true), fact(1, 0, true)];
        assert_eq!(descent(&contained, true), None);
        assert_eq!(descent(&contained, false), Some((1, 0)));
        let agent = [fact(9, 5, true), AncestorFacts { is_marked: true, ..runner(5, 1) }];
        assert_eq!(descent(&[&agent[..], &[fact(1, 0, true)]].concat(), true), Some((5, 1)));
    }

    #[test]
    fn the_kernel_tells_about_this_process() {
        let files = ProcFiles::open().unwrap();
        let own = files.inspect(std::process::id()).unwrap();
        assert_eq!(own.parent, rustix::process::getppid().unwrap().as_raw_pid().cast_unsigned());
        assert!(own.started <= files.uptime().unwrap());
        assert_eq!(own.is_marked, is_own_process_marked());
        assert_eq!(files.read("../etc/passwd"), None);
    }
}
