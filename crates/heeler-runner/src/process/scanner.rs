//! Finds and ends every process of a run.
//!
//! A process belongs to the run by its control group, by descent or by its marker. It is known by
//! its number and its start together and signalled through a handle that is checked against both, so
//! that no number that was given anew is ever hit. What is found is first stopped, so that it forks
//! no more while the rest is looked for, then killed. Start at [`RunProcessScanner`].

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use heeler_model::RunId;
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use super::agent_process::ChildExitRegistry;
use super::cgroup::RunCgroup;
use super::marker::{has_marker, run_of_process};
use super::os::ProcessHandle;

/// How long ending a tree may take; what is left then is told. Only what hangs in the kernel, or
/// forks faster than it is killed, takes longer than an instant.
const END_TIME_MAX: Duration = Duration::from_secs(10);
/// How many looks in a row must find nothing: a process is invisible to one while it becomes
/// another program.
const EMPTY_SCANS_MIN: u32 = 2;
/// How many times more is looked for what was forked before its parent was stopped.
const STOP_SCANS_MAX: u32 = 16;
/// How many processes are waited for at once: each is an open file.
const WAITS_MAX: usize = 256;

/// What came of ending a tree.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct TerminationReport {
    /// How many processes were found and ended.
    pub(crate) processes: u64,
    /// What could not be ended, and why, as sentences for people.
    pub(crate) survivors: Vec<String>,
}

/// Whose processes are looked for.
#[derive(Debug)]
pub(crate) struct RunProcessScanner {
    run: RunId,
    cgroup: Option<RunCgroup>,
    /// The children of this process are the run's.
    children: Option<Arc<ChildExitRegistry>>,
    /// Nothing that started before belongs to the run.
    started_after: u64,
}

/// The runs of which processes live that carry the marker, found by as many looks as a hunt takes.
#[derive(Debug)]
pub(crate) struct LiveRunSet(HashSet<RunId>);

impl LiveRunSet {
    /// Looks at every process. It holds for a run while nobody can start a process for it: its
    /// runner was dead before, and its lock is ours.
    pub(crate) fn scan() -> LiveRunSet {
        LiveRunSet(
            (0..EMPTY_SCANS_MIN).flat_map(|_| all_pids()).filter_map(run_of_process).collect(),
        )
    }

    /// Says whether a process of the run was seen.
    pub(crate) fn contains(&self, run: RunId) -> bool {
        self.0.contains(&run)
    }
}

/// A process: its number alone may be another's by the time that it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ProcessIdentity {
    pid: Pid,
    /// When it was forked, in ticks since boot.
    start: u64,
}

impl RunProcessScanner {
    /// Looks for the processes of a run that this process has claimed.
    pub(crate) fn for_own_run(
        run: RunId,
        cgroup: Option<RunCgroup>,
        children: &Arc<ChildExitRegistry>,
    ) -> RunProcessScanner {
        let since =
            ProcessStat::read(rustix::process::getpid()).map_or(0, |stat| stat.process.start);
        RunProcessScanner {
            run,
            cgroup,
            children: Some(Arc::clone(children)),
            started_after: since,
        }
    }

    /// Looks for the processes of a run whose runner is dead.
    pub(crate) fn for_dead_run(run: RunId, cgroup: Option<RunCgroup>) -> RunProcessScanner {
        RunProcessScanner { run, cgroup, children: None, started_after: 0 }
    }

    /// Says whether a process is the run's, or may be: one that is gone cannot tell. This one is not.
    pub(crate) fn contains(&self, pid: Pid) -> bool {
        let us = rustix::process::getpid();
        let in_group: HashSet<Pid> =
            self.cgroup.iter().flat_map(|cgroup| cgroup.processes()).collect();
        let mut next = Some(pid).filter(|pid| *pid != us);
        while let Some(pid) = next {
            if pid == us || in_group.contains(&pid) || has_marker(pid, self.run) {
                return true;
            }
            let Some(stat) = ProcessStat::read(pid) else { return true };
            next = stat.parent;
        }
        false
    }

    /// Ends them all; returns when [`EMPTY_SCANS_MIN`] find none, or after [`END_TIME_MAX`].
    pub(crate) fn kill_all(&self) -> TerminationReport {
        let deadline = Instant::now() + END_TIME_MAX;
        let mut seen = HashSet::new();
        let mut unkillable = HashSet::new();
        let mut quiet = 0;
        while quiet < EMPTY_SCANS_MIN && Instant::now() < deadline {
            let mut found = self.find();
            found.retain(|process| !unkillable.contains(process));
            if found.is_empty() {
                quiet += 1;
            } else {
                quiet = 0;
                self.stop_all(&mut found);
                wait_for_exits(&kill_processes(&found, &mut unkillable), deadline);
                seen.extend(found);
            }
            if let Some(children) = &self.children {
                children.end_groups();
                children.reap();
            }
        }
        if let Some(cgroup) = &self.cgroup {
            cgroup.remove_when_empty();
        }
        let late = if quiet < EMPTY_SCANS_MIN { self.find() } else { HashSet::new() };
        summarize(&seen, &unkillable, &late)
    }

    /// Stops what was found, and what it forked before that, until nothing new is found.
    fn stop_all(&self, found: &mut HashSet<ProcessIdentity>) {
        self.kill_group();
        let mut fresh: Vec<ProcessIdentity> = found.iter().copied().collect();
        for _ in 0..STOP_SCANS_MAX {
            for process in fresh {
                // What cannot be stopped is told when it cannot be killed.
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
        if cgroup.contains_self() {
            return;
        }
        if let Err(error) = cgroup.kill() {
            // Its processes are killed one by one all the same.
            tracing::debug!(%error, path = %cgroup.path(), "the control group cannot be killed");
        }
    }

    /// Returns every living process of the run, this one excepted.
    ///
    /// Who is who is read before who belongs to what: a number that is given anew in between then
    /// fails the check against its start.
    fn find(&self) -> HashSet<ProcessIdentity> {
        let us = rustix::process::getpid();
        let all: HashMap<Pid, ProcessStat> =
            all_pids().filter_map(|pid| Some((pid, ProcessStat::read(pid)?))).collect();
        let in_group: HashSet<Pid> =
            self.cgroup.iter().flat_map(|cgroup| cgroup.processes()).collect();
        let is_root = |stat: &ProcessStat| {
            let pid = stat.process.pid;
            (stat.parent == Some(us) && self.children.is_some())
                || in_group.contains(&pid)
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
                let older = child.process.start < parent.process.start;
                if !older && child.process.pid != us && found.insert(child.process.pid) {
                    open.push(child);
                }
            }
        }
        let found = found.iter().filter_map(|pid| all.get(pid));
        found.filter(|stat| stat.alive).map(|stat| stat.process).collect()
    }
}

/// Tells what came of it.
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

/// Kills each; returns some of those that die of it, and notes which cannot be killed.
fn kill_processes(
    found: &HashSet<ProcessIdentity>,
    unkillable: &mut HashSet<ProcessIdentity>,
) -> Vec<ProcessHandle> {
    let mut dying: Vec<ProcessHandle> = Vec::new();
    for &process in found {
        match signal(process, Signal::KILL) {
            Ok(Some(handle)) if dying.len() < WAITS_MAX => dying.push(handle),
            Err(Errno::PERM) => {
                unkillable.insert(process);
            }
            // What is still there, for whatever reason, is found again.
            Ok(_) | Err(_) => {}
        }
    }
    dying
}

/// Waits until they have ended, or until the deadline.
fn wait_for_exits(dying: &[ProcessHandle], deadline: Instant) {
    for handle in dying {
        handle.wait(deadline.saturating_duration_since(Instant::now()));
    }
}

/// Says whether a runner of this run lives, in whatever folder. It does not carry the marker, but it
/// was told the run's folder when it was started.
pub(crate) fn is_runner_alive(run: RunId) -> bool {
    let run = run.to_string();
    let is_runner = |pid: Pid| {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let has = |is: &dyn Fn(&[u8]) -> bool| arguments.split(|&byte| byte == 0).any(is);
        has(&|word| word == b"runner")
            && has(&|word| word.strip_suffix(b"/").unwrap_or(word).ends_with(run.as_bytes()))
            && !has(&|word| word == b"--settle" || word == b"--end")
    };
    all_pids().any(is_runner)
}

/// Sends a signal if the process is still the one that was found.
fn signal(process: ProcessIdentity, signal: Signal) -> Result<Option<ProcessHandle>, Errno> {
    let handle = ProcessHandle::open(process.pid)?;
    // The handle was opened before: if the number has the same start still, it is that process.
    if ProcessStat::read(process.pid).map(|stat| stat.process) != Some(process) {
        return Ok(None);
    }
    handle.signal(signal)?;
    Ok(Some(handle))
}

fn all_pids() -> impl Iterator<Item = Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
}

/// What `/proc/<pid>/stat` tells.
#[derive(Debug, Clone, Copy, PartialEq)]
struct ProcessStat {
    process: ProcessIdentity,
    parent: Option<Pid>,
    /// A zombie is not, unless other threads of it live on.
    alive: bool,
}

impl ProcessStat {
    fn read(pid: Pid) -> Option<ProcessStat> {
        ProcessStat::parse(pid, &std::fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(pid: Pid, text: &[u8]) -> Option<ProcessStat> {
        // The second field is the program's name in parentheses, which may hold anything.
        let after_name = memchr::memrchr(b')', text)? + 1;
        let rest = std::str::from_utf8(&text[after_name..]).ok()?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        let dead = matches!(*fields.first()?, "Z" | "X" | "x");
        Some(ProcessStat {
            process: ProcessIdentity { pid, start: number(19)? },
            parent: Pid::from_raw(fields.get(1)?.parse().ok()?),
            alive: !dead || number(17)? > 1,
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
        // It was tried to kill it, so it is not told as one that takes its time.
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
    }
}
