//! Doctor check of transcripts: torn, damaged, missing, or without a record.

use std::collections::HashSet;
use std::fs::TryLockError;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::{
    TailRepair, TranscriptEntry, TranscriptFaultKind, TranscriptOpenError, TranscriptScanner,
    TranscriptWriter, TranscriptWriterOptions,
};

use super::finding::{Finding, FindingArea, FindingSeverity, RepairAction, describe_first};
use heeler_transcript::untrusted_file;

/// Faults inside one transcript.
#[derive(Debug, Default, PartialEq, Eq)]
struct TranscriptFaultCounts {
    torn: bool,
    nul_runs: u64,
    damaged_lines: u64,
}

/// Reports faults inside a transcript.
pub(crate) fn check_contents(log: &Utf8Path) -> Vec<Finding> {
    let faults = match faults(log) {
        Ok(faults) => faults,
        Err(problem) => {
            let finding = Finding::new(
                FindingSeverity::Error,
                FindingArea::Transcripts,
                log.as_str(),
                problem,
            );
            return vec![finding.with_remedy("check its permissions and the disk")];
        }
    };
    let mut findings = Vec::new();
    // A torn tail of a live transcript is a line in progress.
    if faults.torn && !has_writer(log) {
        let problem = "ends in the middle of a line: its writer was killed";
        let finding =
            Finding::new(FindingSeverity::Warning, FindingArea::Transcripts, log.as_str(), problem);
        findings.push(finding.with_repair(RepairAction::RepairTail(log.to_owned())));
    }
    let bad = [(faults.damaged_lines, "damaged line"), (faults.nul_runs, "block of NUL bytes")]
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}{}", if *count == 1 { "" } else { "s" }))
        .collect::<Vec<_>>();
    if !bad.is_empty() {
        let problem = format!("has {}; readers skip them", bad.join(" and "));
        let finding =
            Finding::new(FindingSeverity::Note, FindingArea::Transcripts, log.as_str(), problem);
        findings.push(finding.with_remedy("nothing to do: unreadable parts stay in the file"));
    }
    findings
}

fn faults(log: &Utf8Path) -> Result<TranscriptFaultCounts, String> {
    let mut faults = TranscriptFaultCounts::default();
    for entry in TranscriptScanner::open(log).map_err(|error| describe(&error))? {
        let TranscriptEntry::Fault(fault) = entry.map_err(|error| describe(&error))? else {
            continue;
        };
        match fault.kind {
            TranscriptFaultKind::TornTail => faults.torn = true,
            TranscriptFaultKind::Nul => faults.nul_runs += 1,
            TranscriptFaultKind::NotUtf8
            | TranscriptFaultKind::NotAnObject
            | TranscriptFaultKind::TooLong => {
                faults.damaged_lines += 1;
            }
        }
    }
    Ok(faults)
}

fn describe(error: &heeler_transcript::DiskError) -> String {
    format!("cannot be read: {}", error.source)
}

/// Returns true if a process is writing the transcript: a torn tail is then an unfinished
/// write.
fn has_writer(log: &Utf8Path) -> bool {
    let Ok(file) = untrusted_file::open(log) else { return false };
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}

/// Repairs a torn tail unless the transcript has a writer.
pub(crate) fn repair(log: &Utf8Path) -> Result<String, String> {
    let opened = match TranscriptWriter::open(log, TranscriptWriterOptions::default()) {
        Ok(opened) => opened,
        // A run may have resumed the session since it was examined.
        Err(TranscriptOpenError::Busy { .. }) => return Err("it has a writer now".to_owned()),
        Err(error) => return Err(error.to_string()),
    };
    let done = match opened.repair {
        None => "nothing had to be repaired any more".to_owned(),
        Some(TailRepair::NewlineAdded { .. }) => "completed its last line".to_owned(),
        Some(TailRepair::TornTailMoved { len, saved_to: kept, .. }) => {
            format!("cut {len} bytes off, kept in {kept}")
        }
    };
    // Closed explicitly, because dropping the writer would hide a failed sync.
    opened.writer.close().map_err(|error| error.to_string())?;
    Ok(done)
}

/// Reports transcripts that records refer to and that do not exist.
pub(crate) fn missing(named: &[Utf8PathBuf]) -> Option<Finding> {
    let missing = named.iter().filter(|path| !path.exists()).collect::<Vec<_>>();
    if missing.is_empty() {
        return None;
    }
    let problem = "is named by a record but does not exist";
    let finding = Finding::new(
        FindingSeverity::Warning,
        FindingArea::Transcripts,
        describe_first(&missing),
        problem,
    );
    Some(finding.with_remedy("`heeler restore` restores it from an archive that contains it"))
}

/// Reports transcripts that no record refers to.
pub(crate) fn find_unreferenced(
    logs: &[Utf8PathBuf],
    named: &HashSet<Utf8PathBuf>,
) -> Option<Finding> {
    let unnamed = logs.iter().filter(|path| !named.contains(*path)).collect::<Vec<_>>();
    if unnamed.is_empty() {
        return None;
    }
    let problem = "belongs to no job or session in the database";
    let finding = Finding::new(
        FindingSeverity::Note,
        FindingArea::Transcripts,
        describe_first(&unnamed),
        problem,
    );
    Some(
        finding.with_remedy(
            "nothing is lost: `heeler search` finds it; delete it if you do not need it",
        ),
    )
}
