//! Finds and ends every process of a run.
//!
//! A process belongs to the run by its control group, by descent or by its marker. It is known by
//! its number and its start together and signalled through a handle that is checked against both, so
//! that no number that was given anew is ever hit. What is found is first stopped, so that it forks
//! no more while the rest is looked for, then killed. Start at [`Hunt`].

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use heeler_model::RunId;
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use super::agent::Children;
use super::cgroup::Cgroup;
use super::marker::{has_marker, marker_of};
use super::os::Handle;

/// How long ending a tree may take; what is left then is told. Only what hangs in the kernel, or
/// forks faster than it is killed, takes longer than an instant.
const END_TIME_MAX: Duration = Duration::from_secs(10);
/// How many looks in a row must find nothing: a process is invisible to one while it becomes
/// another program.
const QUIET_LOOKS: u32 = 2;
/// How many times more is looked for what was forked before its parent was stopped.
const HOLD_LOOKS_MAX: u32 = 16;
/// How many processes are waited for at once: each is an open file.
const WAITS_MAX: usize = 256;

/// What came of ending a tree.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Ended {
    /// How many processes were found and ended.
    pub(crate) processes: u64,
    /// What could not be ended, and why, as sentences for people.
    pub(crate) left: Vec<String>,
}

/// Whose processes are looked for.
#[derive(Debug)]
pub(crate) struct Hunt {
    run: RunId,
    cgroup: Option<Cgroup>,
    /// The children of this process are the run's.
    children: Option<Arc<Children>>,
    /// Nothing that started before belongs to the run.
    since: u64,
}

/// The runs of which processes live that carry the marker, found by as many looks as a hunt takes.
#[derive(Debug)]
pub(crate) struct Census(HashSet<RunId>);

impl Census {
    /// Looks at every process. It holds for a run while nobody can start a process for it: its
    /// runner was dead before, and its lock is ours.
    pub(crate) fn take() -> Census {
        Census((0..QUIET_LOOKS).flat_map(|_| pids()).filter_map(marker_of).collect())
    }

    /// Says whether a process of the run was seen.
    pub(crate) fn has(&self, run: RunId) -> bool {
        self.0.contains(&run)
    }
}

/// A process: its number alone may be another's by the time that it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Process {
    pid: Pid,
    /// When it was forked, in ticks since boot.
    start: u64,
}

impl Hunt {
    /// Looks for the processes of a run that this process has claimed.
    pub(crate) fn of_own(run: RunId, cgroup: Option<Cgroup>, children: &Arc<Children>) -> Hunt {
        let since = Stat::read(rustix::process::getpid()).map_or(0, |stat| stat.process.start);
        Hunt { run, cgroup, children: Some(Arc::clone(children)), since }
    }

    /// Looks for the processes of a run whose runner is dead.
    pub(crate) fn of_dead(run: RunId, cgroup: Option<Cgroup>) -> Hunt {
        Hunt { run, cgroup, children: None, since: 0 }
    }

    /// Says whether a process is the run's, or may be: one that is gone cannot tell. This one is not.
    pub(crate) fn holds(&self, pid: Pid) -> bool {
        let us = rustix::process::getpid();
        let in_group: HashSet<Pid> =
            self.cgroup.iter().flat_map(|cgroup| cgroup.processes()).collect();
        let mut next = Some(pid).filter(|pid| *pid != us);
        while let Some(pid) = next {
            if pid == us || in_group.contains(&pid) || has_marker(pid, self.run) {
                return true;
            }
            let Some(stat) = Stat::read(pid) else { return true };
            next = stat.parent;
        }
        false
    }

    /// Ends them all; returns when [`QUIET_LOOKS`] find none, or after [`END_TIME_MAX`].
    pub(crate) fn end(&self) -> Ended {
        let deadline = Instant::now() + END_TIME_MAX;
        let mut seen = HashSet::new();
        let mut unkillable = HashSet::new();
        let mut quiet = 0;
        while quiet < QUIET_LOOKS && Instant::now() < deadline {
            let mut found = self.find();
            found.retain(|process| !unkillable.contains(process));
            if found.is_empty() {
                quiet += 1;
            } else {
                quiet = 0;
                self.hold(&mut found);
                wait(&kill(&found, &mut unkillable), deadline);
                seen.extend(found);
            }
            if let Some(children) = &self.children {
                children.end_groups();
                children.reap();
            }
        }
        if let Some(cgroup) = &self.cgroup {
            cgroup.remove_soon();
        }
        let late = if quiet < QUIET_LOOKS { self.find() } else { HashSet::new() };
        account(&seen, &unkillable, &late)
    }

    /// Stops what was found, and what it forked before that, until nothing new is found.
    fn hold(&self, found: &mut HashSet<Process>) {
        self.kill_group();
        let mut fresh: Vec<Process> = found.iter().copied().collect();
        for _ in 0..HOLD_LOOKS_MAX {
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
        if cgroup.holds_us() {
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
    fn find(&self) -> HashSet<Process> {
        let us = rustix::process::getpid();
        let all: HashMap<Pid, Stat> =
            pids().filter_map(|pid| Some((pid, Stat::read(pid)?))).collect();
        let in_group: HashSet<Pid> =
            self.cgroup.iter().flat_map(|cgroup| cgroup.processes()).collect();
        let is_root = |stat: &Stat| {
            let pid = stat.process.pid;
            (stat.parent == Some(us) && self.children.is_some())
                || in_group.contains(&pid)
                || (stat.process.start >= self.since && has_marker(pid, self.run))
        };
        let roots = all.values().filter(|stat| stat.process.pid != us && is_root(stat));
        let mut open: Vec<&Stat> = roots.collect();
        let mut found: HashSet<Pid> = open.iter().map(|stat| stat.process.pid).collect();
        let mut children: HashMap<Pid, Vec<&Stat>> = HashMap::new();
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
fn account(
    seen: &HashSet<Process>,
    unkillable: &HashSet<Process>,
    late: &HashSet<Process>,
) -> Ended {
    let mut left: Vec<String> = unkillable
        .iter()
        .map(|process| format!("process {} belongs to another user", process.pid))
        .collect();
    for process in late.difference(unkillable) {
        let seconds = END_TIME_MAX.as_secs();
        left.push(format!("process {} still runs after {seconds} s", process.pid));
    }
    let ended = seen.difference(unkillable).filter(|process| !late.contains(process));
    Ended { processes: ended.count() as u64, left }
}

/// Kills each; returns some of those that die of it, and notes which cannot be killed.
fn kill(found: &HashSet<Process>, unkillable: &mut HashSet<Process>) -> Vec<Handle> {
    let mut dying: Vec<Handle> = Vec::new();
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
fn wait(dying: &[Handle], deadline: Instant) {
    for handle in dying {
        handle.wait(deadline.saturating_duration_since(Instant::now()));
    }
}

/// Says whether a runner of this run lives, in whatever folder. It does not carry the marker, but it
/// was told the run's folder when it was started.
pub(crate) fn has_runner(run: RunId) -> bool {
    let run = run.to_string();
    let is_runner = |pid: Pid| {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let has = |is: &dyn Fn(&[u8]) -> bool| arguments.split(|&byte| byte == 0).any(is);
        has(&|word| word == b"runner")
            && has(&|word| word.strip_suffix(b"/").unwrap_or(word).ends_with(run.as_bytes()))
            && !has(&|word| word == b"--settle" || word == b"--end")
    };
    pids().any(is_runner)
}

/// Sends a signal if the process is still the one that was found.
fn signal(process: Process, signal: Signal) -> Result<Option<Handle>, Errno> {
    let handle = Handle::open(process.pid)?;
    // The handle was opened before: if the number has the same start still, it is that process.
    if Stat::read(process.pid).map(|stat| stat.process) != Some(process) {
        return Ok(None);
    }
    handle.signal(signal)?;
    Ok(Some(handle))
}

fn pids() -> impl Iterator<Item = Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
}

/// What `/proc/<pid>/stat` tells.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Stat {
    process: Process,
    parent: Option<Pid>,
    /// A zombie is not, unless other threads of it live on.
    alive: bool,
}

impl Stat {
    fn read(pid: Pid) -> Option<Stat> {
        Stat::parse(pid, &std::fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(pid: Pid, text: &[u8]) -> Option<Stat> {
        // The second field is the program's name in parentheses, which may hold anything.
        let after_name = memchr::memrchr(b')', text)? + 1;
        let rest = std::str::from_utf8(&text[after_name..]).ok()?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        let dead = matches!(*fields.first()?, "Z" | "X" | "x");
        Some(Stat {
            process: Process { pid, start: number(19)? },
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
        let us = Stat::read(rustix::process::getpid()).unwrap().process;
        let other = Process { start: us.start + 1, ..us };
        assert!(matches!(signal(other, Signal::KILL), Ok(None)));
        let none = Process { pid: Pid::from_raw(i32::MAX).unwrap(), start: 1 };
        assert!(matches!(signal(none, Signal::KILL), Err(Errno::SRCH)));
    }

    #[test]
    fn what_could_not_be_ended_is_told_and_not_counted() {
        let process = |pid| Process { pid: Pid::from_raw(pid).unwrap(), start: 1 };
        let foreign = "process 1 belongs to another user";
        let late = "process 8 still runs after 10 s";
        let check = |seen: &[i32], unkillable: &[i32], late: &[i32], processes, left: &[&str]| {
            let set = |pids: &[i32]| pids.iter().map(|&pid| process(pid)).collect();
            let ended = account(&set(seen), &set(unkillable), &set(late));
            let left = left.iter().map(|&text| text.to_owned()).collect();
            assert_eq!(ended, Ended { processes, left });
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
        let stat = Stat::parse(pid, text).unwrap();
        assert_eq!(stat.process, Process { pid, start: 4242 });
        assert_eq!((stat.parent, stat.alive), (Pid::from_raw(5), true));
        assert_eq!(Stat::parse(pid, b"7 (cut"), None);
    }
}
