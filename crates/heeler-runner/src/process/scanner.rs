//! Finds and ends every process of a run.
//!
//! A process belongs to the run by its cgroup, by descent, by its marker or because it inherited the
//! lock of the run's session. It is identified by PID
//! and start time together and signalled through a handle checked against both, so that a reused
//! PID is never hit. Processes are first stopped, so that they fork no more during the search, then
//! killed. Start at [`RunProcessScanner`].

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Read as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::RunId;
use heeler_process::ProcessOrigin;
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use super::agent_process::ChildExitRegistry;
use super::cgroup::RunCgroup;
use super::marker::{has_marker, run_of_process};
use super::os::ProcessHandle;

/// Time limit for ending a tree; the remaining processes are reported. Only processes that hang in
/// the kernel, or fork faster than they are killed, take longer than an instant.
const END_TIME_MAX: Duration = Duration::from_secs(10);
/// Number of consecutive scans that must find nothing: a process is invisible to a scan while it
/// executes another program.
const EMPTY_SCANS_MIN: u32 = 2;
/// Limit on further scans for processes forked before their parent was stopped.
const STOP_SCANS_MAX: u32 = 16;
/// Limit on processes waited for at once: each is an open file.
const WAITS_MAX: usize = 256;

/// Length of the part of `/proc/<pid>/stat` that is read. The fields up to the start time take less,
/// whatever their values: a name of 64 bytes and 21 numbers of up to 20 digits.
const STAT_BYTES_READ: usize = 1024;

/// Outcome of ending a tree.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct TerminationReport {
    /// Number of processes found and ended.
    pub(crate) processes: u64,
    /// Processes that could not be ended, and the reasons, as sentences for people.
    pub(crate) survivors: Vec<String>,
}

/// Scanner for the processes of one run.
#[derive(Debug)]
pub(crate) struct RunProcessScanner {
    run: RunId,
    cgroup: Option<RunCgroup>,
    /// Set if the children of this process belong to the run.
    children: Option<Arc<ChildExitRegistry>>,
    /// Set if every process of the run is a descendant of this process.
    has_only_descendants: bool,
    /// Processes started earlier do not belong to the run.
    started_after: u64,
    /// Lock whose holders belong to the run.
    lock: Option<Utf8PathBuf>,
}

/// Runs with live processes that carry their marker, found by as many scans as ending a tree takes.
#[derive(Debug)]
pub(crate) struct LiveRunSet(HashSet<RunId>);

impl LiveRunSet {
    /// Scans all processes. The result holds for a run as long as no process can be started for it:
    /// its runner was dead before the scan, and the caller holds its lock.
    pub(crate) fn scan() -> LiveRunSet {
        LiveRunSet(
            (0..EMPTY_SCANS_MIN).flat_map(|_| all_pids()).filter_map(run_of_process).collect(),
        )
    }

    /// Returns true if a process of the run was seen.
    pub(crate) fn contains(&self, run: RunId) -> bool {
        self.0.contains(&run)
    }
}

/// Identity of a process: a PID alone may be reused by the time it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ProcessIdentity {
    pid: Pid,
    /// Time of the fork, in ticks since boot.
    start: u64,
}

impl RunProcessScanner {
    /// Scanner for a run that this process has claimed. `has_only_descendants` is false for a run with
    /// processes that another program has started for it, like a container engine.
    pub(crate) fn for_own_run(
        run: RunId,
        cgroup: Option<RunCgroup>,
        children: &Arc<ChildExitRegistry>,
        has_only_descendants: bool,
    ) -> RunProcessScanner {
        let since =
            ProcessStat::read(rustix::process::getpid()).map_or(0, |stat| stat.process.start);
        RunProcessScanner {
            run,
            cgroup,
            children: Some(Arc::clone(children)),
            has_only_descendants,
            started_after: since,
            lock: None,
        }
    }

    /// Scanner for a run with a dead runner.
    pub(crate) fn for_dead_run(run: RunId, cgroup: Option<RunCgroup>) -> RunProcessScanner {
        RunProcessScanner {
            run,
            cgroup,
            children: None,
            has_only_descendants: false,
            started_after: 0,
            lock: None,
        }
    }

    /// Adds the processes that hold a lock which the run's runner took and passed to its agent.
    pub(crate) fn with_lock_holders(self, lock: Utf8PathBuf) -> RunProcessScanner {
        RunProcessScanner { lock: Some(lock), ..self }
    }

    /// Returns true if a process belongs to the run, or may: a process that is gone cannot be
    /// checked. Returns false for this process.
    pub(crate) fn contains(&self, pid: Pid) -> bool {
        let us = rustix::process::getpid();
        let in_group: HashSet<Pid> =
            self.cgroup.iter().flat_map(|cgroup| cgroup.processes()).collect();
        let mut next = Some(pid).filter(|pid| *pid != us);
        while let Some(pid) = next {
            if pid == us || in_group.contains(&pid) || has_marker(pid, self.run) {
                return true;
            }
            // In doubt a request is refused, because it may come from the agent.
            let Some(stat) = ProcessStat::read(pid) else { return true };
            next = stat.parent;
        }
        false
    }

    /// Returns true if the run has no other process than its agent, and those between the runner and
    /// an agent that executes `program` in a sandbox.
    #[cfg(target_os = "linux")]
    pub(crate) fn is_agent_alone(&self, first: Pid, program: Option<&Utf8Path>) -> bool {
        if let Some(children) = &self.children {
            children.reap();
        }
        let mut others: HashSet<Pid> = self.find().into_iter().map(|it| it.pid).collect();
        let mut pid = first;
        loop {
            if !others.remove(&pid) {
                return false;
            }
            if program.is_none_or(|program| executes(pid, program)) {
                // The last of the chain is the agent, and nothing may be left.
                return others.is_empty();
            }
            let child = |other: &&Pid| {
                ProcessStat::read(**other).is_some_and(|stat| stat.parent == Some(pid))
            };
            let Some(next) = others.iter().find(child).copied() else { return false };
            pid = next;
        }
    }

    /// Returns true if the kernel says that no process of the run is left. A runner adopts the
    /// orphans of its agent, so it has a child as long as the agent has a descendant.
    fn is_gone(&self) -> bool {
        self.has_only_descendants
            && self.children.as_ref().is_some_and(|children| children.reap())
            && self.cgroup.as_ref().is_none_or(RunCgroup::is_empty)
    }

    /// Ends all processes; returns once the kernel says that none is left, [`EMPTY_SCANS_MIN`] scans
    /// find none, or after [`END_TIME_MAX`].
    pub(crate) fn kill_all(&self) -> TerminationReport {
        let deadline = Instant::now() + END_TIME_MAX;
        let mut seen = HashSet::new();
        let mut unkillable = HashSet::new();
        let mut quiet = 0;
        while !self.is_gone() && quiet < EMPTY_SCANS_MIN && Instant::now() < deadline {
            let mut found = self.find();
            // Processes of other users would keep the search busy until its deadline.
            found.retain(|process| !unkillable.contains(process));
            if found.is_empty() {
                quiet += 1;
            } else {
                quiet = 0;
                self.stop_all(&mut found);
                wait_for_exits(&kill_processes(&found, &mut unkillable), deadline);
                seen.extend(found);
            }
            // The children of a killed process become children of this one, which must reap them.
            if let Some(children) = &self.children {
                children.end_groups();
                children.reap();
            }
        }
        if let Some(cgroup) = &self.cgroup {
            cgroup.remove_when_empty();
        }
        let has_time_passed = quiet < EMPTY_SCANS_MIN && !self.is_gone();
        let late = if has_time_passed { self.find() } else { HashSet::new() };
        summarize(&seen, &unkillable, &late)
    }

    /// Stops the processes found, and those forked before that, until no new ones are found.
    fn stop_all(&self, found: &mut HashSet<ProcessIdentity>) {
        // The kernel kills a control group at once, before its processes can fork again.
        self.kill_group();
        let mut fresh: Vec<ProcessIdentity> = found.iter().copied().collect();
        for _ in 0..STOP_SCANS_MAX {
            for process in fresh {
                // A process that cannot be stopped is reported when it cannot be killed.
                let _stopped = signal(process, Signal::STOP);
            }
            fresh = self.find().into_iter().filter(|process| found.insert(*process)).collect();
            if fresh.is_empty() {
                break;
            }
        }
    }

    fn kill_group(&self) {
        let Some(cgroup) = &self.cgroup else { return };
        // Killing the group would end this process too.
        if cgroup.contains_self() {
            return;
        }
        if let Err(error) = cgroup.kill() {
            // Its processes are killed one by one instead.
            tracing::debug!(%error, path = %cgroup.path(), "the control group cannot be killed");
        }
    }

    /// Returns every live process of the run, except this one.
    ///
    /// Identities are read before memberships, so a PID that is reused in between fails the check
    /// against its start time.
    fn find(&self) -> HashSet<ProcessIdentity> {
        let us = rustix::process::getpid();
        let all: HashMap<Pid, ProcessStat> =
            all_pids().filter_map(|pid| Some((pid, ProcessStat::read(pid)?))).collect();
        let in_group: HashSet<Pid> =
            self.cgroup.iter().flat_map(|cgroup| cgroup.processes()).collect();
        let holders: HashSet<Pid> = self.lock.iter().flat_map(|lock| lock_holders(lock)).collect();
        let is_root = |stat: &ProcessStat| {
            // Only a runner that claimed the tree has no children other than the agent's.
            let pid = stat.process.pid;
            (stat.parent == Some(us) && self.children.is_some())
                || in_group.contains(&pid)
                || holders.contains(&pid)
                || (stat.process.start >= self.started_after && has_marker(pid, self.run))
        };
        let roots = all.values().filter(|stat| stat.process.pid != us && is_root(stat));
        let mut open: Vec<&ProcessStat> = roots.collect();
        let mut found: HashSet<Pid> = open.iter().map(|stat| stat.process.pid).collect();
        let mut children: HashMap<Pid, Vec<&ProcessStat>> = HashMap::new();
        for stat in all.values() {
            if let Some(parent) = stat.parent {
                children.entry(parent).or_default().push(stat);
            }
        }
        while let Some(parent) = open.pop() {
            for &child in children.get(&parent.process.pid).into_iter().flatten() {
                // A child cannot be older than its parent: here the PID of the parent was reused.
                let older = child.process.start < parent.process.start;
                if !older && child.process.pid != us && found.insert(child.process.pid) {
                    open.push(child);
                }
            }
        }
        // Zombies lead to their descendants, but there is nothing left in them to kill.
        let found = found.iter().filter_map(|pid| all.get(pid));
        found.filter(|stat| stat.alive).map(|stat| stat.process).collect()
    }
}

/// Returns true if a process executes this program.
#[cfg(target_os = "linux")]
fn executes(pid: Pid, program: &Utf8Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let identity = |path: &str| std::fs::metadata(path).ok().map(|it| (it.dev(), it.ino()));
    let program = identity(program.as_str());
    program.is_some() && identity(&format!("/proc/{pid}/exe")) == program
}

fn summarize(
    seen: &HashSet<ProcessIdentity>,
    unkillable: &HashSet<ProcessIdentity>,
    late: &HashSet<ProcessIdentity>,
) -> TerminationReport {
    let mut left: Vec<String> = unkillable
        .iter()
        .map(|process| format!("process {} belongs to another user", process.pid))
        .collect();
    for process in late.difference(unkillable) {
        let seconds = END_TIME_MAX.as_secs();
        left.push(format!("process {} still runs after {seconds} s", process.pid));
    }
    let ended = seen.difference(unkillable).filter(|process| !late.contains(process));
    TerminationReport { processes: ended.count() as u64, survivors: left }
}

/// Kills each process; returns handles of some that are dying, and records those that cannot be
/// killed.
fn kill_processes(
    found: &HashSet<ProcessIdentity>,
    unkillable: &mut HashSet<ProcessIdentity>,
) -> Vec<ProcessHandle> {
    let mut dying: Vec<ProcessHandle> = Vec::new();
    // Waiting for some of them is enough, because the next scan finds the others.
    for &process in found {
        match signal(process, Signal::KILL) {
            Ok(Some(handle)) if dying.len() < WAITS_MAX => dying.push(handle),
            Err(Errno::PERM) => {
                unkillable.insert(process);
            }
            // A process that still exists is found by the next scan.
            Ok(_) | Err(_) => {}
        }
    }
    dying
}

/// Waits until the processes have ended, or until the deadline.
fn wait_for_exits(dying: &[ProcessHandle], deadline: Instant) {
    for handle in dying {
        handle.wait(deadline.saturating_duration_since(Instant::now()));
    }
}

/// Returns true if a runner of this run is alive, in any directory. A runner does not carry the
/// marker, but the run directory is one of its arguments.
pub(crate) fn is_runner_alive(run: RunId) -> bool {
    let run = run.to_string();
    let is_runner = |pid: Pid| {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let has = |is: &dyn Fn(&[u8]) -> bool| arguments.split(|&byte| byte == 0).any(is);
        // A process that settles or ends the run names the directory too, but is no runner.
        has(&|word| word == b"runner")
            && has(&|word| word.strip_suffix(b"/").unwrap_or(word).ends_with(run.as_bytes()))
            && !has(&|word| word == b"--settle" || word == b"--end")
    };
    all_pids().any(is_runner)
}

/// Sends a signal if the process is still the one that was found.
fn signal(process: ProcessIdentity, signal: Signal) -> Result<Option<ProcessHandle>, Errno> {
    let handle = ProcessHandle::open(process.pid)?;
    // The handle was opened first: if the PID still has the same start time, the handle refers to
    // that process.
    if ProcessStat::read(process.pid).map(|stat| stat.process) != Some(process) {
        return Ok(None);
    }
    handle.signal(signal)?;
    Ok(Some(handle))
}

/// Lists the processes that hold a lock of a dead run's agent.
fn lock_holders(lock: &Utf8Path) -> impl Iterator<Item = Pid> {
    let holders = heeler_process::flock_descriptor_holders(lock).into_iter();
    // An agent can write the name of its dead runner into the lock file of another run.
    let holders = holders.filter(|pid| !has_live_runner(*pid));
    holders.filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?))
}

/// Returns true if a process is a runner or belongs to a living one. A runner that carries the mark
/// of agents is a fake.
fn has_live_runner(pid: u32) -> bool {
    let user = rustix::process::geteuid().as_raw();
    let inspect = |pid| ProcessOrigin::inspect(pid, user);
    let runner = inspect(pid).and_then(|origin| inspect(origin.runner_pid?));
    runner.is_some_and(|runner| !runner.is_marked)
}

fn all_pids() -> impl Iterator<Item = Pid> {
    // Without `/proc` nothing is found; such systems end the agent's process group instead.
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
}

/// Content of `/proc/<pid>/stat`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct ProcessStat {
    process: ProcessIdentity,
    parent: Option<Pid>,
    /// False for a zombie, unless other threads of it are alive.
    alive: bool,
}

impl ProcessStat {
    /// Reads the beginning of the file, which has all the fields, with one call: each end of a run
    /// reads the file of every process on the machine twice.
    fn read(pid: Pid) -> Option<ProcessStat> {
        let mut text = [0; STAT_BYTES_READ];
        let mut file = File::open(format!("/proc/{pid}/stat")).ok()?;
        let length = file.read(&mut text).ok()?;
        ProcessStat::parse(pid, &text[..length])
    }

    fn parse(pid: Pid, text: &[u8]) -> Option<ProcessStat> {
        // The second field is the program's name in parentheses, which may hold anything.
        let after_name = memchr::memrchr(b')', text)? + 1;
        let rest = std::str::from_utf8(&text[after_name..]).ok()?;
        // The numbers are those of proc(5), counted from the third field, the state.
        let mut fields = rest.split_ascii_whitespace();
        let dead = matches!(fields.next()?, "Z" | "X" | "x");
        let parent = fields.next()?.parse().ok()?;
        let threads: u64 = fields.nth(15)?.parse().ok()?;
        let start = fields.nth(1)?;
        // The last field of a text that was cut may be cut itself.
        fields.next()?;
        Some(ProcessStat {
            process: ProcessIdentity { pid, start: start.parse().ok()? },
            parent: Pid::from_raw(parent),
            alive: !dead || threads > 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_was_given_anew_is_not_signalled() {
        let us = ProcessStat::read(rustix::process::getpid()).unwrap().process;
        let other = ProcessIdentity { start: us.start + 1, ..us };
        assert!(matches!(signal(other, Signal::KILL), Ok(None)));
        let none = ProcessIdentity { pid: Pid::from_raw(i32::MAX).unwrap(), start: 1 };
        assert!(matches!(signal(none, Signal::KILL), Err(Errno::SRCH)));
    }

    #[test]
    fn what_could_not_be_ended_is_told_and_not_counted() {
        let process = |pid| ProcessIdentity { pid: Pid::from_raw(pid).unwrap(), start: 1 };
        let foreign = "process 1 belongs to another user";
        let late = "process 8 still runs after 10 s";
        let check = |seen: &[i32], unkillable: &[i32], late: &[i32], processes, left: &[&str]| {
            let set = |pids: &[i32]| pids.iter().map(|&pid| process(pid)).collect();
            let ended = summarize(&set(seen), &set(unkillable), &set(late));
            let left = left.iter().map(|&text| text.to_owned()).collect();
            assert_eq!(ended, TerminationReport { processes, survivors: left });
        };
        check(&[], &[], &[], 0, &[]);
        check(&[7, 8], &[], &[], 2, &[]);
        check(&[1], &[1], &[], 0, &[foreign]);
        check(&[7, 8], &[], &[8], 1, &[late]);
        // Killing it was attempted, so it is not reported as merely slow to exit.
        check(&[1, 7, 8], &[1], &[1, 8], 1, &[foreign, late]);
    }

    #[test]
    fn a_program_name_cannot_pose_as_other_fields() {
        let pid = Pid::from_raw(7).unwrap();
        let text = b"7 (x) Z 1 (\xff)) S 5 7 7 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0\n";
        let stat = ProcessStat::parse(pid, text).unwrap();
        assert_eq!(stat.process, ProcessIdentity { pid, start: 4242 });
        assert_eq!((stat.parent, stat.alive), (Pid::from_raw(5), true));
        assert_eq!(ProcessStat::parse(pid, b"7 (cut"), None);
        let cut = text.len() - b"2 0 0\n".len();
        assert_eq!(ProcessStat::parse(pid, &text[..cut]), None, "a cut start time is another one");
    }
}
