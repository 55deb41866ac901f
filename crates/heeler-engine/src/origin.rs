//! Whether a process that asks for something is part of a run, and of which.
//!
//! A runner is the parent of all that its agent leaves, so the way up from any process of a run leads
//! to it, whatever the process did to its environment. One that has others start a process for it (a
//! service manager, cron) gets around that.

use camino::Utf8Path;
use heeler_model::RunId;

/// How far up is looked; a longer line of parents is cut.
const ANCESTORS_MAX: usize = 256;

/// Returns the run that a process is part of.
pub fn run_of_process(pid: u32) -> Option<RunId> {
    let mut pid = pid;
    for _ in 0..ANCESTORS_MAX {
        if let Some(run) = run_of_runner(pid) {
            return Some(run);
        }
        pid = parent(pid).filter(|parent| *parent > 1)?;
    }
    None
}

/// Returns the run that a process is the runner of.
fn run_of_runner(pid: u32) -> Option<RunId> {
    let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
    let mut arguments = line.split('\0').skip(1);
    if arguments.next() != Some("runner") {
        return None;
    }
    arguments.find_map(|argument| Utf8Path::new(argument).file_name()?.parse().ok())
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name comes before, in brackets, and may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_outside_of_runs_is_of_none() {
        assert_eq!(run_of_process(std::process::id()), None);
        assert_eq!(run_of_process(0), None);
        assert_eq!(run_of_process(u32::MAX), None);
    }

    #[test]
    fn the_way_up_leads_to_the_parent() {
        let own = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get().cast_unsigned());
        assert_eq!(parent(std::process::id()), own);
    }
}
