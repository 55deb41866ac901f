//! Logs of jobs and sessions: torn, damaged, missing, or named by no record.

use std::collections::HashSet;
use std::fs::TryLockError;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::{Entry, FaultKind, Log, LogOptions, OpenError, Repair, Scan};

use super::finding::{Area, Finding, Fix, Severity, first_of};
use heeler_transcript::plain;

/// What is wrong inside one log.
#[derive(Debug, Default, PartialEq, Eq)]
struct Faults {
    torn: bool,
    nul_runs: u64,
    garbage: u64,
}

/// Finds what is wrong inside a log.
pub(crate) fn contents(log: &Utf8Path) -> Vec<Finding> {
    let faults = match faults(log) {
        Ok(faults) => faults,
        Err(problem) => {
            let finding = Finding::new(Severity::Error, Area::Transcripts, log.as_str(), problem);
            return vec![finding.cure("check its permissions and the disk")];
        }
    };
    let mut findings = Vec::new();
    if faults.torn && !has_writer(log) {
        let problem = "ends in the middle of a line: its writer was killed";
        let finding = Finding::new(Severity::Warning, Area::Transcripts, log.as_str(), problem);
        findings.push(finding.fixable(Fix::RepairTail(log.to_owned())));
    }
    let bad = [(faults.garbage, "damaged line"), (faults.nul_runs, "block of NUL bytes")]
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}{}", if *count == 1 { "" } else { "s" }))
        .collect::<Vec<_>>();
    if !bad.is_empty() {
        let problem = format!("has {}; readers skip them", bad.join(" and "));
        let finding = Finding::new(Severity::Note, Area::Transcripts, log.as_str(), problem);
        findings.push(finding.cure("nothing to do: what cannot be read stays in the file"));
    }
    findings
}

fn faults(log: &Utf8Path) -> Result<Faults, String> {
    let mut faults = Faults::default();
    for entry in Scan::open(log).map_err(|error| describe(&error))? {
        let Entry::Fault(fault) = entry.map_err(|error| describe(&error))? else { continue };
        match fault.kind {
            FaultKind::TornTail => faults.torn = true,
            FaultKind::Nul => faults.nul_runs += 1,
            FaultKind::NotUtf8 | FaultKind::NotAnObject | FaultKind::TooLong => {
                faults.garbage += 1;
            }
        }
    }
    Ok(faults)
}

fn describe(error: &heeler_transcript::DiskError) -> String {
    format!("cannot be read: {}", error.source)
}

/// Says whether a process is writing the log: a torn tail is then a line on its way.
fn has_writer(log: &Utf8Path) -> bool {
    let Ok(file) = plain::open(log) else { return false };
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}

/// Repairs a torn tail unless the log has a writer.
pub(crate) fn repair(log: &Utf8Path) -> Result<String, String> {
    let opened = match Log::open(log, LogOptions::default()) {
        Ok(opened) => opened,
        Err(OpenError::Busy { .. }) => return Err("it has a writer now".to_owned()),
        Err(error) => return Err(error.to_string()),
    };
    let done = match opened.repair {
        None => "nothing had to be repaired any more".to_owned(),
        Some(Repair::Completed { .. }) => "completed its last line".to_owned(),
        Some(Repair::Cut { len, kept, .. }) => format!("cut {len} bytes off, kept in {kept}"),
    };
    opened.log.close().map_err(|error| error.to_string())?;
    Ok(done)
}

/// Finds logs that records name and that are not there.
pub(crate) fn missing(named: &[Utf8PathBuf]) -> Option<Finding> {
    let missing = named.iter().filter(|path| !path.exists()).collect::<Vec<_>>();
    if missing.is_empty() {
        return None;
    }
    let problem = "is named by a record and is not there";
    let finding = Finding::new(Severity::Warning, Area::Transcripts, first_of(&missing), problem);
    Some(finding.cure("`heeler restore` puts it back from a backup that has it"))
}

/// Finds logs that no record names.
pub(crate) fn unnamed(logs: &[Utf8PathBuf], named: &HashSet<Utf8PathBuf>) -> Option<Finding> {
    let unnamed = logs.iter().filter(|path| !named.contains(*path)).collect::<Vec<_>>();
    if unnamed.is_empty() {
        return None;
    }
    let problem = "belongs to no job or session in the database";
    let finding = Finding::new(Severity::Note, Area::Transcripts, first_of(&unnamed), problem);
    Some(finding.cure("nothing is lost: `heeler search` finds it; delete it if you do not need it"))
}
