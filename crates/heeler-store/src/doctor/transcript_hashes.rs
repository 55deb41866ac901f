//! Doctor check that the transcripts of jobs and sessions are as their ended runs left them.
//!
//! The signed result of each run has a hash of the rows that the run wrote to either. Rows that none
//! wrote are found in the transcripts of jobs only: commands add rows to sessions too.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};

use camino::Utf8Path;
use heeler_model::JobId;
use heeler_model::run::TranscriptHashRecord;
use heeler_transcript::{resolve_inside, untrusted_file};
use sha2::{Digest as _, Sha256};

use super::finding::{Finding, FindingArea, FindingSeverity};
use crate::db::{DatabaseError, StateDatabase, runs};
use crate::hex::hex;
use crate::layout::StateDir;

const CHANGED: &str = "was changed after its run had ended";
const ADDED: &str = "has rows that none of its runs wrote";

const REMEDY: &str = "compare it with an archive that contains it, and check which agents can write \
    to the state directory";

/// Reports transcripts with rows that were changed, removed or added.
pub(crate) fn examine(
    dir: &StateDir,
    db: &StateDatabase,
    findings: &mut Vec<Finding>,
) -> Result<(), DatabaseError> {
    let parts = runs::transcript_parts(&db.conn)?;
    for parts in parts.chunk_by(|(job, _), (next, _)| job == next) {
        let [(job, _), ..] = parts else { continue };
        let log = dir.job_transcript(job);
        // A transcript that does not exist, or cannot be read, has its own finding.
        let Ok(Some(problem)) = check_transcript(&log, parts) else { continue };
        // A run that goes on with the job has rows that are not in a result yet.
        let now = db.runs_of_job(job)?;
        let ended = runs::transcript_parts_of(&db.conn, job)?;
        // The rows of a run on another host are there.
        let is_whole = now.iter().all(|run| run.committed && !run.is_elsewhere(dir));
        if is_whole && ended == parts {
            let finding = Finding::new(
                FindingSeverity::Error,
                FindingArea::Transcripts,
                log.as_str(),
                problem,
            );
            findings.push(finding.with_remedy(REMEDY));
        }
    }
    examine_sessions(dir, db, findings)
}

/// Reports session transcripts with rows that were changed or removed.
fn examine_sessions(
    dir: &StateDir,
    db: &StateDatabase,
    findings: &mut Vec<Finding>,
) -> Result<(), DatabaseError> {
    let parts = runs::session_parts(&db.conn)?;
    for parts in parts.chunk_by(|(log, _), (next, _)| log == next) {
        let [(log, _), ..] = parts else { continue };
        // A path in the database may lead anywhere if somebody changed it.
        let Ok(log) = resolve_inside(dir.root(), log) else { continue };
        // A transcript that does not exist, or cannot be read, has its own finding.
        let Ok(mut file) = untrusted_file::open(&log) else { continue };
        let mut is_changed = |part: &TranscriptHashRecord| {
            hash_part(&mut file, part).is_ok_and(|hash| hash.as_ref() != Some(&part.sha256))
        };
        if parts.iter().any(|(_, part)| is_changed(part)) {
            let (error, area) = (FindingSeverity::Error, FindingArea::Transcripts);
            findings.push(Finding::new(error, area, log.as_str(), CHANGED).with_remedy(REMEDY));
        }
    }
    Ok(())
}

type RunTranscriptPart = (JobId, Option<TranscriptHashRecord>);

fn check_transcript(
    log: &Utf8Path,
    parts: &[RunTranscriptPart],
) -> io::Result<Option<&'static str>> {
    // Most jobs of an earlier release have no hash at all.
    if parts.iter().all(|(_, part)| part.is_none()) {
        return Ok(None);
    }
    let mut file = untrusted_file::open(log)?;
    let len = file.metadata()?.len();
    // End of the rows that are vouched for; unknown after a run without a hash.
    let mut end = None;
    for (_, part) in parts {
        let Some(part) = part else {
            end = None;
            continue;
        };
        if end.is_some_and(|end| part.from > end) {
            return Ok(Some(ADDED));
        }
        if hash_part(&mut file, part)?.as_ref() != Some(&part.sha256) {
            return Ok(Some(CHANGED));
        }
        end = part.from.checked_add(part.bytes);
    }
    Ok(end.filter(|end| len > *end).map(|_| ADDED))
}

/// Returns the hash of a part, or `None` if the file is too short.
fn hash_part(file: &mut File, part: &TranscriptHashRecord) -> io::Result<Option<String>> {
    file.seek(SeekFrom::Start(part.from))?;
    let mut rest = file.take(part.bytes);
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        match rest.read(&mut buffer)? {
            0 => break,
            read => hash.update(&buffer[..read]),
        }
    }
    Ok((rest.limit() == 0).then(|| hex(&hash.finalize())))
}
