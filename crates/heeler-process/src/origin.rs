//! Origin of a process: whether an agent started it, and which program it is.
//!
//! A runner starts its agent without the right to gain privileges (`no_new_privs`). The kernel
//! passes this mark to every descendant, and no process can remove it: not by detaching, by clearing
//! its environment, by executing another program or by ending its runner. While the runner lives, it
//! is also an ancestor of every process of its agent.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};

use crate::agent_descent::{AgentDescent, is_own_process_marked, ticks};
use crate::fleet_tag::FleetTag;

/// Maximum number of ancestors to inspect. A process with more counts as one that cannot be
/// inspected.
pub(crate) const ANCESTORS_MAX: usize = 256;

/// Space for a file of the kernel about a process. Longer ones are read too.
const PROCESS_FILE_BYTES: usize = 4096;

/// Beginning of the file name of Heeler's programs. Wrappers may put a dot before it.
pub const HEELER_PROGRAM_PREFIX: &str = "heeler";

/// Facts about a process that sent a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessOrigin {
    /// True if it carries the mark of agents: it can gain no privileges, this process could, and no
    /// other sandbox is known to be the reason.
    pub is_marked: bool,
    /// Run directory of its topmost runner. An agent can start a process that looks like another
    /// run's runner, but only below its own.
    pub runner_dir: Option<Utf8PathBuf>,
    /// PID of that runner.
    pub runner_pid: Option<u32>,
    /// True if it descends from this process. Every descendant of a runner belongs to its agent.
    pub is_own_descendant: bool,
    /// True if it executes Heeler. A forwarder of connections does not.
    pub is_heeler: bool,
}

impl ProcessOrigin {
    /// Returns the facts about a process of user `user`, or `None` if it cannot be inspected: it has
    /// ended, is hidden, or was replaced by another process meanwhile. Common ancestors with this
    /// process do not count, and neither does this process: a fleet may run in an agent of another.
    pub fn inspect(pid: u32, user: u32) -> Option<ProcessOrigin> {
        let started = start_time(pid)?;
        let own = own_ancestors();
        let lineage = Lineage::trace(pid, &own, inspect_process)?;
        let is_marked = !is_own_process_marked() && has_agent_mark(pid, &own, inspect_mark)?;
        let is_heeler = is_heeler_program(pid, user);
        // The PID may have been reused while the files above were read.
        let is_own_descendant = pid != own[0] && lineage.end == own[0];
        let (runner_pid, runner_dir) = lineage.runner.unzip();
        let origin =
            ProcessOrigin { is_marked, runner_dir, runner_pid, is_own_descendant, is_heeler };
        (start_time(pid)? == started).then_some(origin)
    }

    /// Returns true if nothing ties the process to an agent.
    pub fn is_free_of_agents(&self) -> bool {
        !self.is_marked && self.runner_dir.is_none()
    }

    /// Returns true if a person runs this program: Heeler, outside of all agents.
    pub fn is_person(&self) -> bool {
        self.is_free_of_agents() && self.is_heeler
    }
}

/// Returns true if an agent started this process, or if that cannot be ruled out.
pub fn is_own_process_of_agent() -> bool {
    let lineage = Lineage::trace(std::process::id(), &[], inspect_process);
    AgentDescent::of_own_process().is_some()
        || lineage.is_none_or(|lineage| lineage.runner.is_some())
}

/// Returns true if a process of an agent of this state directory is alive, whether or not its runner
/// is. A marked orphan of this user counts if it is not older than `orphan_age_max`, because older ones
/// and their children are services with the same mark, and if it is not of another fleet. Processes of hooks and of containers that an
/// engine has started do not count. Where the mark tells nothing, only processes below a runner are
/// found.
pub fn has_agent_process(state_dir: &Utf8Path, orphan_age_max: Duration) -> bool {
    let (own, hooks) = (own_ancestors(), state_dir.join("hooks"));
    let (is_mark_useful, tag) = (!is_own_process_marked(), FleetTag::new(state_dir));
    let user = rustix::process::geteuid().as_raw();
    let Ok(entries) = std::fs::read_dir("/proc") else { return false };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // Agents of other users cannot write what belongs to this one.
    let pids = pids.filter(|pid| !own.contains(pid) && is_marked_process_of(*pid, user));
    pids.filter_map(|pid| agent_mark_origin(pid, &own)).any(|origin| match origin {
        AgentMarkOrigin::NoAgent => false,
        AgentMarkOrigin::Orphan { first } => {
            is_mark_useful
                && process_age(first).is_none_or(|age| age <= orphan_age_max)
                && !tag.rules_out(first)
        }
        AgentMarkOrigin::Runner(dir) => dir.starts_with(state_dir) && !dir.starts_with(&hooks),
    })
}

/// Source of a process's mark.
enum AgentMarkOrigin {
    NoAgent,
    /// The runner with this run directory, which is alive.
    Runner(Utf8PathBuf),
    /// A runner that has ended. Its agent's oldest process that is left has the PID `first`.
    Orphan {
        first: u32,
    },
}

/// Finds the source of a process's mark. A runner that carries the mark itself is a fake. Returns
/// `None` if the process has ended.
fn agent_mark_origin(pid: u32, adopters: &[u32]) -> Option<AgentMarkOrigin> {
    if !has_mark(pid)? || read_stat(pid)?.has_ended {
        return Some(AgentMarkOrigin::NoAgent);
    }
    let (mut first, mut parent) = (pid, parent_pid(pid)?);
    for _ in 0..ANCESTORS_MAX {
        if matches!(parent, 0 | 1) || adopters.contains(&parent) {
            return Some(AgentMarkOrigin::Orphan { first });
        }
        // A parent that ends meanwhile leaves an orphan.
        let Some(found) = inspect_mark(parent) else {
            return Some(AgentMarkOrigin::Orphan { first });
        };
        if !found.is_marked {
            let runner = inspect_process(parent).and_then(|(runner, _)| runner);
            return Some(match runner {
                Some(runner) => AgentMarkOrigin::Runner(runner),
                None if found.starts_containers => AgentMarkOrigin::NoAgent,
                None if found.adopts_orphans => AgentMarkOrigin::Orphan { first },
                None => AgentMarkOrigin::NoAgent,
            });
        }
        (first, parent) = (parent, found.parent);
    }
    Some(AgentMarkOrigin::Orphan { first })
}

/// Returns the time since a process was forked.
fn process_age(pid: u32) -> Option<Duration> {
    let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
    let uptime = uptime.split_whitespace().next()?.parse().ok()?;
    let uptime = Duration::try_from_secs_f64(uptime).ok()?;
    Some(uptime.saturating_sub(ticks(start_time(pid)?)))
}

/// Finds the real user in the content of the file `status` of a process. The owner of the folder of a
/// process that hides its memory is root.
fn user_of(status: &str) -> Option<u32> {
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_whitespace().next()?.parse().ok()
}

/// Returns true if a process of this user carries the mark. One file tells both: this is asked about
/// every process of the machine.
fn is_marked_process_of(pid: u32, user: u32) -> bool {
    let status = read_process_file(pid, "status");
    status.is_some_and(|status| parse_mark(&status) == Some(true) && user_of(&status) == Some(user))
}

/// Returns true if a process carries the mark; `None` if it cannot be inspected.
pub(crate) fn has_mark(pid: u32) -> Option<bool> {
    parse_mark(&read_process_file(pid, "status")?)
}

/// Finds the mark in the content of the file `status` of a process.
pub(crate) fn parse_mark(status: &str) -> Option<bool> {
    // The process name comes first; line breaks in it are escaped.
    let mark = status.lines().find_map(|line| line.strip_prefix("NoNewPrivs:"))?;
    Some(mark.trim() != "0")
}

/// Returns true if the mark of a process may be that of an agent. A browser sets the same mark for
/// processes of its own, and is itself unmarked: such a mark begins below an ordinary process. The
/// mark of an agent begins below its runner or, once that is dead, below the process that adopted
/// the agent. Only an ancestor of the runner can adopt it, so one of `adopters`, this process and its
/// ancestors, the first process, or, after a restart of the daemon, another manager of services.
fn has_agent_mark(
    pid: u32,
    adopters: &[u32],
    look: impl Fn(u32) -> Option<MarkInspection>,
) -> Option<bool> {
    let mut is_marked = false;
    let mut pid = pid;
    for _ in 0..ANCESTORS_MAX {
        if matches!(pid, 0 | 1) || adopters.contains(&pid) {
            return Some(is_marked);
        }
        let found = look(pid)?;
        if !found.is_marked {
            return Some(is_marked && (found.is_runner || found.adopts_orphans));
        }
        (is_marked, pid) = (true, found.parent);
    }
    None
}

/// Programs that adopt orphans of the services and containers that they manage. The kernel does not
/// show which processes do.
const ORPHAN_ADOPTERS: [&str; 12] = [
    "catatonit",
    "conmon",
    "containerd-shim",
    "docker-init",
    "dumb-init",
    "init",
    "podman",
    "runit",
    "s6-svscan",
    "supervisord",
    "systemd",
    "tini",
];

/// Those of them that start containers. Only a process of the container is below one.
const CONTAINER_STARTERS: [&str; 2] = ["conmon", "containerd-shim"];

struct MarkInspection {
    is_marked: bool,
    is_runner: bool,
    adopts_orphans: bool,
    starts_containers: bool,
    parent: u32,
}

fn inspect_mark(pid: u32) -> Option<MarkInspection> {
    let is_marked = has_mark(pid)?;
    let (runner_dir, parent) = inspect_process(pid)?;
    let name = read_process_file(pid, "comm")?;
    let name = name.trim_end();
    Some(MarkInspection {
        is_marked,
        is_runner: runner_dir.is_some(),
        adopts_orphans: ORPHAN_ADOPTERS.contains(&name),
        starts_containers: CONTAINER_STARTERS.contains(&name),
        parent,
    })
}

/// A process and its ancestors, up to the first known one.
#[derive(Debug, PartialEq, Eq)]
struct Lineage {
    /// The topmost runner: its PID and its run directory.
    runner: Option<(u32, Utf8PathBuf)>,
    /// The known process at its end, or the first process.
    end: u32,
}

impl Lineage {
    /// Traces a process up to the first one in `known`. Returns `None` if one of its ancestors cannot
    /// be inspected, because it may belong to an agent.
    fn trace(
        pid: u32,
        known: &[u32],
        look: impl Fn(u32) -> Option<(Option<Utf8PathBuf>, u32)>,
    ) -> Option<Lineage> {
        let (mut pid, mut runner) = (pid, None);
        for _ in 0..ANCESTORS_MAX {
            // The first process adopts orphans and tells nothing.
            if matches!(pid, 0 | 1) || known.contains(&pid) {
                return Some(Lineage { runner, end: pid });
            }
            let (dir, parent) = look(pid)?;
            // A runner further up replaces one below it, which an agent may have faked.
            runner = dir.map(|dir| (pid, dir)).or(runner);
            pid = parent;
        }
        None
    }
}

/// Returns the runner of a run: a process that is started as one, outside of all agents.
pub fn find_runner(run_dir: &Utf8Path) -> Option<u32> {
    let user = rustix::process::geteuid().as_raw();
    let entries = std::fs::read_dir("/proc").ok()?.flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|&pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        executed_run(&String::from_utf8_lossy(&line)) == run_dir.file_name()
    })
    .find(|&pid| {
        ProcessOrigin::inspect(pid, user)
            .is_some_and(|origin| origin.runner_pid == Some(pid) && !origin.is_marked)
    })
}

/// Returns this process and its ancestors.
fn own_ancestors() -> Vec<u32> {
    let mut own = vec![std::process::id()];
    while let Some(parent) = own.last().copied().and_then(parent_pid)
        && !matches!(parent, 0 | 1)
        && own.len() < ANCESTORS_MAX
    {
        own.push(parent);
    }
    own
}

/// Returns the run directory if the process is a runner, and the process's parent.
fn inspect_process(pid: u32) -> Option<(Option<Utf8PathBuf>, u32)> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let line = String::from_utf8_lossy(&line);
    // Read the parent last: this fails if the process has ended in the meantime.
    Some((runner_dir(&line), parent_pid(pid)?))
}

/// Returns the name of the run that a command line executes. A runner that settles runs, or ends
/// their processes, executes none.
fn executed_run(line: &str) -> Option<&str> {
    let [_, "runner", dir] = line.trim_end_matches('\0').split('\0').collect::<Vec<_>>()[..] else {
        return None;
    };
    Utf8Path::new(dir).file_name()
}

/// Returns the run directory in the command line of a runner.
pub(crate) fn runner_dir(line: &str) -> Option<Utf8PathBuf> {
    // The first argument is the program's path, which says nothing.
    let mut arguments = line.split('\0').skip(1);
    if arguments.next() != Some("runner") {
        return None;
    }
    let is_run = |dir: &&Utf8Path| {
        dir.parent().and_then(Utf8Path::file_name).is_some_and(|parent| parent == "runs")
    };
    arguments.map(Utf8Path::new).find(is_run).map(Utf8Path::to_owned)
}

/// Facts in the file `stat` of a process.
pub(crate) struct ProcessForkFacts {
    pub(crate) has_ended: bool,
    pub(crate) parent: u32,
    /// Time of the fork, in ticks since boot.
    pub(crate) start_ticks: u64,
}

pub(crate) fn parse_stat(stat: &str) -> Option<ProcessForkFacts> {
    // The process name comes first, in parentheses, and may contain any character.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let has_ended = matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    Some(ProcessForkFacts { has_ended, parent, start_ticks: fields.nth(17)?.parse().ok()? })
}

/// Reads a file of the kernel about a process. The kernel does not tell its size, and without one the
/// standard library begins with reads of 32 bytes.
pub(crate) fn read_process_file(pid: u32, name: &str) -> Option<String> {
    let mut text = String::with_capacity(PROCESS_FILE_BYTES);
    File::open(format!("/proc/{pid}/{name}")).ok()?.read_to_string(&mut text).ok()?;
    Some(text)
}

fn read_stat(pid: u32) -> Option<ProcessForkFacts> {
    parse_stat(&read_process_file(pid, "stat")?)
}

pub(crate) fn parent_pid(pid: u32) -> Option<u32> {
    Some(read_stat(pid)?.parent)
}

/// Returns the time of the fork, in ticks since boot.
fn start_time(pid: u32) -> Option<u64> {
    Some(read_stat(pid)?.start_ticks)
}

fn is_heeler_program(pid: u32, user: u32) -> bool {
    let program = |pid: &str| std::fs::read_link(format!("/proc/{pid}/exe"));
    match program(&pid.to_string()) {
        Ok(found) => is_heeler_path(&found) || program("self").is_ok_and(|own| own == found),
        // A program of root is hidden from other users. Root can do everything anyway, and an agent
        // cannot become root, because it can gain no privileges.
        Err(_) => user == 0 && !rustix::process::geteuid().is_root(),
    }
}

fn is_heeler_path(path: &Path) -> bool {
    // The kernel appends ` (deleted)` to a program that was replaced by an update.
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    name.trim_start_matches('.').starts_with(HEELER_PROGRAM_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_a_person_unless_an_agent_runs_it() {
        let user = rustix::process::geteuid().as_raw();
        let own = ProcessOrigin::inspect(std::process::id(), user).unwrap();
        assert!(own.is_heeler && !own.is_marked && own.runner_dir.is_none(), "{own:?}");
        assert_eq!(ProcessOrigin::inspect(u32::MAX, user), None);
    }

    #[test]
    fn the_user_of_a_process_is_the_one_that_runs_it() {
        let status = read_process_file(std::process::id(), "status").unwrap();
        assert_eq!(user_of(&status), Some(rustix::process::getuid().as_raw()));
        assert_eq!(user_of(""), None);
        assert!(!is_marked_process_of(u32::MAX, 0));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test needs a process of another program")]
    fn a_forwarder_is_no_person() {
        let mut sleep = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let user = rustix::process::geteuid().as_raw();
        // Until it executes its program, the child is still this one.
        let origin = loop {
            let origin = ProcessOrigin::inspect(sleep.id(), user).unwrap();
            if !origin.is_heeler {
                break origin;
            }
        };
        assert!(origin.is_free_of_agents() && !origin.is_person());
        sleep.kill().unwrap();
        sleep.wait().unwrap();
        assert_eq!(ProcessOrigin::inspect(sleep.id(), user), None);
    }

    #[test]
    fn the_mark_of_a_browser_is_not_that_of_an_agent() {
        // 7 is the daemon and 6 its parent; 30 is a browser, 10 a runner, 60 a service manager.
        let look = |pid| {
            let adopts_orphans = pid == 60;
            let (is_marked, is_runner, parent) = match pid {
                10 => (false, true, 7),
                60 => (false, false, 1),
                61 => (true, false, 60),
                11 => (true, false, 10),
                12 => (true, false, 11),
                // Agents that outlived their runners.
                20 => (true, false, 1),
                21 => (true, false, 6),
                22 => (true, false, 7),
                30 => (false, false, 6),
                31 => (true, false, 30),
                32 => (true, false, 31),
                40 => (false, false, 1),
                50 => (true, false, 50),
                _ => return None,
            };
            Some(MarkInspection {
                is_marked,
                is_runner,
                adopts_orphans,
                starts_containers: false,
                parent,
            })
        };
        let has_mark = |pid| has_agent_mark(pid, &[7, 6], look);
        for agent in [11, 12, 20, 21, 22, 61] {
            assert_eq!(has_mark(agent), Some(true), "{agent}");
        }
        for person in [30, 31, 32, 40, 60] {
            assert_eq!(has_mark(person), Some(false), "{person}");
        }
        assert_eq!((has_mark(50), has_mark(70)), (None, None));
    }

    #[test]
    fn the_topmost_runner_counts_and_common_ancestors_do_not() {
        let dir = |number: u32| Utf8PathBuf::from(format!("/s/runs/{number}"));
        // 7 is this process; 5 was started by a person, 6 runs in an agent of another fleet.
        let look = |pid| match pid {
            20 => Some((None, 11)),
            11 => Some((Some(dir(2)), 10)),
            10 => Some((Some(dir(1)), 7)),
            7 => Some((None, 6)),
            6 => Some((Some(dir(9)), 1)),
            5 => Some((None, 1)),
            30 => Some((None, 30)),
            _ => None,
        };
        let of = |pid, known: &[u32]| {
            Lineage::trace(pid, known, look).map(|lineage| (lineage.runner, lineage.end))
        };
        let runner = |pid, number| Some((pid, dir(number)));
        assert_eq!(
            of(20, &[7, 6]),
            Some((runner(10, 1), 7)),
            "what it made itself does not count, and it descends from this process"
        );
        assert_eq!(of(10, &[7, 6]), Some((runner(10, 1), 7)));
        assert_eq!(of(20, &[99]), Some((runner(6, 9), 1)), "to the daemon of the outer fleet");
        assert_eq!((of(5, &[7, 6]), of(8, &[7, 6])), (Some((None, 1)), None));
        assert_eq!(of(30, &[7, 6]), None);
    }

    #[test]
    fn a_runner_is_known_by_its_arguments() {
        let of = |line: &str| runner_dir(line).map(Utf8PathBuf::into_string);
        assert_eq!(of("heeler\0runner\0/f/.heeler/runs/1\0").as_deref(), Some("/f/.heeler/runs/1"));
        assert_eq!(of("x\0runner\0--settle\0/s/runs/1\0").as_deref(), Some("/s/runs/1"));
        assert_eq!(executed_run("heeler\0runner\0/s/runs/1\0"), Some("1"));
        assert_eq!(executed_run("heeler\0runner\0--settle\0/s/runs/1\0"), None);
        assert_eq!(executed_run("heeler\0runner\0--end\0/s/runs/1\0"), None);
        assert_eq!((of("heeler\0start\0/s/runs/1\0"), of("heeler\0runner\0/s\0")), (None, None));
    }

    #[test]
    fn programs_of_heeler_have_its_name() {
        let is = |path: &str| is_heeler_path(Path::new(path));
        assert!(is("/usr/bin/heeler") && is("/x/heeler (deleted)") && is("/nix/.heeler-wrapped"));
        assert!(!is("/usr/bin/socat") && !is("/heeler/bin/curl") && !is("/"));
    }
}
