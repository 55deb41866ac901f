//! The session of a run: its lock, its transcript and its history.
//!
//! Only the holder of a session's lock writes to the session. The agent inherits the lock, so it is
//! free only when runner and agent are both gone. Start at [`lock_session`].

use std::collections::HashSet;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::job_row::{JobRow, JobRowKind};
use heeler_model::message::parse_row;
use heeler_model::recorder::{PRIOR_COUNTS_KEY, TranscriptRecorder};
use heeler_model::run::{RunSpec, SessionStart};
use heeler_model::{
    AgentSessionId, NATIVE_AGENT_KEY, NATIVE_SESSION_KEY, NATIVE_SESSION_SUBTYPE, project_slug,
};
use heeler_transcript::{
    CopyLimit, DiskBackend, DiskError, LockError, LockFile, LockHolder, OsDisk, PageBoundary,
    TranscriptCopyError, TranscriptEntry, TranscriptScanner, copy_prefix, create_folder,
    read_range, read_tail,
};
use jiff::Timestamp;
use memchr::memmem;
use serde_json::Value as Json;
use thiserror::Error;
use uuid::Uuid;

/// Time to wait for a lock that another process may only be probing.
pub(crate) const SESSION_LOCK_WAIT: Duration = Duration::from_millis(300);

/// Number of rows read per page, from the end.
const PAGE_ROWS: usize = 64;
/// Text that every turn result contains, so that other rows need not be parsed.
const RESULT: &str = "\"result\"";

/// Reason that a session's lock was not acquired.
#[derive(Debug, Error)]
pub(crate) enum SessionLockError {
    /// The directory of locks cannot be created.
    #[error(transparent)]
    Folder(#[from] DiskError),
    #[error(transparent)]
    Lock(#[from] LockError),
}

pub(crate) fn lock_session(
    spec: &RunSpec,
    session: &AgentSessionId,
    now: Timestamp,
) -> Result<LockFile, SessionLockError> {
    let locks = locks_folder(&spec.home)?;
    // A lock need not survive a power loss, so an existing directory is not synced.
    if !locks.is_dir() {
        create_folder(&OsDisk, &locks)?;
    }
    let holder = LockHolder::this_process(&runner_command(spec), now);
    Ok(LockFile::acquire(&locks.join(session.as_str()), &holder, SESSION_LOCK_WAIT)?)
}

/// Returns the command that a run's locks name as their holder.
pub(crate) fn runner_command(spec: &RunSpec) -> String {
    format!("runner {}", spec.job)
}

/// Returns the directory of session locks. Refuses a link or a directory of another user: it could
/// make the runner write its signature into a file that is not a lock.
pub(crate) fn locks_folder(home: &Utf8Path) -> Result<Utf8PathBuf, DiskError> {
    let locks = home.join("locks");
    let us = rustix::process::geteuid();
    match locks.symlink_metadata() {
        // Root may work with the files of any user.
        Ok(found) if !found.is_dir() || !(us.is_root() || found.uid() == us.as_raw()) => {
            let reason = "it is not a directory of this user; move it away";
            let source = io::Error::new(io::ErrorKind::InvalidInput, reason);
            Err(DiskError { action: "use", path: locks, source })
        }
        _ => Ok(locks),
    }
}

pub(crate) fn log_path(spec: &RunSpec, session: &AgentSessionId) -> Utf8PathBuf {
    // An existing session may have begun in another directory, so the caller names its transcript.
    if let Some(log) = spec.session.log.as_ref().filter(|_| session == spec.session.start.id()) {
        return log.clone();
    }
    let folder = spec.projects.join(project_slug(&spec.working_directory));
    folder.join(format!("{session}.jsonl"))
}

/// Copies the history that a fork knows into its transcript: the rows of its source up to the fork
/// point. The source is only read.
///
/// If the source has no transcript, or the transcript lacks that entry, nothing is copied; the
/// agent knows its history all the same.
pub(crate) fn copy_history(
    disk: &dyn DiskBackend,
    spec: &RunSpec,
) -> Result<(), TranscriptCopyError> {
    let SessionStart::Fork { source, id, at } = &spec.session.start else { return Ok(()) };
    let copy = log_path(spec, id);
    let Some(source) = find_log(spec, source).filter(|_| !copy.exists()) else { return Ok(()) };
    let Some(end) = row_end_offset(&source, *at)? else { return Ok(()) };
    if let Some(folder) = copy.parent() {
        create_folder(disk, folder)?;
    }
    copy_prefix(disk, &source, &copy, CopyLimit::Offset(end))?;
    Ok(())
}

/// Returns the transcript of a session: in this working directory, or in another one.
pub(crate) fn find_log(spec: &RunSpec, session: &AgentSessionId) -> Option<Utf8PathBuf> {
    let here = log_path(spec, session);
    if here.is_file() {
        return Some(here);
    }
    let name = format!("{session}.jsonl");
    let projects = spec.projects.read_dir_utf8().ok()?;
    let logs = projects.filter_map(Result::ok).map(|project| project.path().join(&name));
    logs.into_iter().find(|log| log.is_file())
}

/// Returns the offset behind the row with this ID, or behind the last row.
fn row_end_offset(log: &Utf8Path, at: Option<Uuid>) -> Result<Option<u64>, DiskError> {
    let Some(at) = at else {
        return Ok(read_tail(log, 1)?.records.last().map(|record| record.next));
    };
    for entry in TranscriptScanner::open(log)? {
        let TranscriptEntry::Record(record) = entry? else { continue };
        // A damaged line has no ID and so cannot be the one that is searched.
        let row: Json = serde_json::from_str(&record.text).unwrap_or_default();
        if row["uuid"].as_str().and_then(|uuid| Uuid::try_parse(uuid).ok()) == Some(at) {
            return Ok(Some(record.next));
        }
    }
    Ok(None)
}

pub(crate) fn row_ids(log: &Utf8Path) -> Result<HashSet<String>, DiskError> {
    #[derive(serde::Deserialize)]
    struct SessionRowId {
        uuid: String,
    }
    let mut known = HashSet::new();
    for entry in TranscriptScanner::open(log)? {
        if let TranscriptEntry::Record(record) = entry?
            && let Ok(SessionRowId { uuid }) = serde_json::from_str(&record.text)
        {
            known.insert(uuid);
        }
    }
    Ok(known)
}

/// History of a session before this run.
#[derive(Debug)]
pub(crate) struct RunSessionHistory {
    /// Recorder that continues where the session stopped.
    pub(crate) recorder: TranscriptRecorder,
    pub(crate) last_result: Option<Json>,
}

/// Reads the transcript of a session, which may be empty. Of a long one only the rows after the
/// last row with cumulative counts, and the last result, are read.
pub(crate) fn load_history(
    spec: &RunSpec,
    session: &AgentSessionId,
) -> Result<RunSessionHistory, DiskError> {
    load_history_until(spec, &log_path(spec, session), session, u64::MAX)
}

/// Returns the last result of a session that this run does not write to, if it has a transcript.
pub(crate) fn last_result(spec: &RunSpec, session: &AgentSessionId) -> Option<Json> {
    let log = find_log(spec, session)?;
    load_history_until(spec, &log, session, u64::MAX).ok()?.last_result
}

/// Returns the number of messages in a session that this run does not write to; `None` if it has no
/// transcript.
pub(crate) fn count_messages(spec: &RunSpec, session: &AgentSessionId) -> Option<u64> {
    let log = find_log(spec, session)?;
    Some(load_history_until(spec, &log, session, u64::MAX).ok()?.recorder.messages())
}

/// Returns the agent program's own ID of a session, as the last run recorded it. `None` if there is
/// none, or if another agent chose it.
pub(crate) fn native_session_id(
    spec: &RunSpec,
    session: &AgentSessionId,
    agent: &str,
) -> Result<Option<String>, DiskError> {
    let log = log_path(spec, session);
    let finder = memmem::Finder::new(NATIVE_SESSION_KEY);
    let mut before = PageBoundary::End;
    loop {
        let page = read_range(&log, before, PAGE_ROWS)?;
        let candidates =
            page.records.iter().rev().filter(|it| finder.find(it.text.as_bytes()).is_some());
        for row in candidates.filter_map(|record| parse_row(&record.text)).map(JobRow::new) {
            // Other rows may contain the key too, in the text of an agent.
            if row.kind() != (JobRowKind::System { subtype: NATIVE_SESSION_SUBTYPE }) {
                continue;
            }
            let row = row.as_json();
            let id = row[NATIVE_SESSION_KEY].as_str().filter(|_| row[NATIVE_AGENT_KEY] == agent);
            return Ok(id.map(str::to_owned));
        }
        if page.start == 0 {
            return Ok(None);
        }
        before = PageBoundary::Offset(page.start);
    }
}

/// Like [`load_history`], limited to the rows before an offset.
pub(crate) fn load_history_until(
    spec: &RunSpec,
    log: &Utf8Path,
    session: &AgentSessionId,
    end: u64,
) -> Result<RunSessionHistory, DiskError> {
    let cwd = spec.working_directory.clone();
    let mut recorder = TranscriptRecorder::new(session.clone(), cwd);
    // The counts of a long session stand in one of its last rows, so the rest need not be read.
    let SessionReplayStart { counted_offset: counted, mut last_result } =
        find_replay_start(log, &mut recorder, end)?;
    for entry in TranscriptScanner::open_at(log, counted.unwrap_or(0))? {
        // Faults were reported when the transcript was repaired; they do not prevent continuing.
        let TranscriptEntry::Record(record) = entry? else { continue };
        if record.offset >= end {
            break;
        }
        let Some(row) = parse_row(&record.text).map(JobRow::new) else { continue };
        recorder.replay_row(row.as_json());
        if is_result(&row) {
            last_result = Some(row.into_json());
        }
    }
    Ok(RunSessionHistory { recorder, last_result })
}

fn is_result(row: &JobRow) -> bool {
    matches!(row.kind(), JobRowKind::TurnResult(_))
}

/// Positions found by searching a transcript from its end.
#[derive(Default)]
struct SessionReplayStart {
    /// Offset of the last row with cumulative counts.
    counted_offset: Option<u64>,
    last_result: Option<Json>,
}

impl SessionReplayStart {
    fn is_complete(&self) -> bool {
        self.counted_offset.is_some() && self.last_result.is_some()
    }
}

/// Finds the replay positions and initializes the recorder from the counting row.
fn find_replay_start(
    log: &Utf8Path,
    recorder: &mut TranscriptRecorder,
    end: u64,
) -> Result<SessionReplayStart, DiskError> {
    let counts = format!("\"{PRIOR_COUNTS_KEY}\"");
    let counts = memmem::Finder::new(&counts);
    let results = memmem::Finder::new(RESULT);
    let mut found = SessionReplayStart::default();
    let mut before = PageBoundary::Offset(end);
    loop {
        let page = read_range(log, before, PAGE_ROWS)?;
        for record in page.records.iter().rev() {
            let text = record.text.as_bytes();
            // Searching the text is much cheaper than parsing each row.
            let may_count = found.counted_offset.is_none() && counts.find(text).is_some();
            let may_end = found.last_result.is_none() && results.find(text).is_some();
            if !may_count && !may_end {
                continue;
            }
            let Some(row) = parse_row(&record.text).map(JobRow::new) else { continue };
            // A text that only looks like the counts is refused by the recorder.
            if may_count && recorder.resume_from_row(row.as_json()) {
                found.counted_offset = Some(record.offset);
            }
            if may_end && is_result(&row) {
                found.last_result = Some(row.into_json());
            }
            if found.is_complete() {
                return Ok(found);
            }
        }
        if page.start == 0 {
            return Ok(found);
        }
        before = PageBoundary::Offset(page.start);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::files::tests::RunFolderFixture;

    fn row(kind: &str) -> Json {
        json!({"type": kind, "uuid": Uuid::new_v4(), "message": {"role": kind, "content": "x"},
            "timestamp": "2026-11-15T10:00:00Z"})
    }

    fn counts(messages: u64) -> Json {
        json!({"type": "system", "subtype": "session", "uuid": Uuid::new_v4(),
            PRIOR_COUNTS_KEY: {"messages": messages, "tokens": 7, "last": Uuid::nil()}})
    }

    /// Reads the history of a transcript with these rows.
    fn history_of(rows: &[Json]) -> RunSessionHistory {
        let folder = RunFolderFixture::new();
        let id = folder.spec.session.start.id();
        let log = log_path(&folder.spec, id);
        std::fs::create_dir_all(log.parent().unwrap()).unwrap();
        let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
        std::fs::write(&log, lines).unwrap();
        load_history(&folder.spec, id).unwrap()
    }

    #[test]
    fn of_a_long_session_only_what_follows_its_last_count_is_read() {
        let mut rows: Vec<Json> = (0..5000).map(|_| row("user")).collect();
        rows.push(json!({"type": "result", "subtype": "success", "total_cost_usd": 1.5}));
        // If the rows before it were read, they would count as well.
        rows.extend([counts(1_000_000), row("user"), row("assistant")]);
        let RunSessionHistory { recorder, last_result } = history_of(&rows);
        assert_eq!(recorder.messages(), 1_000_002);
        assert_eq!(last_result.unwrap()["total_cost_usd"], 1.5);
    }

    #[test]
    fn the_last_id_of_the_same_agent_is_found_and_not_a_text_that_looks_like_it() {
        let folder = RunFolderFixture::new();
        let id = folder.spec.session.start.id();
        let native = |agent: &str, id: &str| {
            json!({"type": "system", "subtype": NATIVE_SESSION_SUBTYPE, NATIVE_SESSION_KEY: id,
                NATIVE_AGENT_KEY: agent})
        };
        let forged = json!({"type": "user", NATIVE_SESSION_KEY: "forged",
            NATIVE_AGENT_KEY: "gemini", "message": {"content": NATIVE_SESSION_KEY}});
        let mut rows = vec![native("gemini", "first"), native("gemini", "second"), forged];
        rows.extend((0..300).map(|_| row("user")));
        let log = log_path(&folder.spec, id);
        std::fs::create_dir_all(log.parent().unwrap()).unwrap();
        let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
        std::fs::write(&log, lines).unwrap();
        let find = |agent: &str| native_session_id(&folder.spec, id, agent).unwrap();
        assert_eq!(find("gemini").as_deref(), Some("second"));
        assert_eq!(find("qwen"), None);
    }

    #[test]
    fn a_session_without_a_count_is_read_from_its_start() {
        let mut rows: Vec<Json> = (0..500).map(|_| row("user")).collect();
        // Rows that only look like counting rows.
        rows.insert(
            300,
            json!({"type": "user", "message": {"content": format!("{{\"{PRIOR_COUNTS_KEY}\": 1}}")}}),
        );
        rows.insert(
            400,
            json!({"type": "system", "subtype": "other", PRIOR_COUNTS_KEY: {"messages": 9}}),
        );
        rows.insert(410, counts(u64::MAX));
        let RunSessionHistory { recorder, last_result } = history_of(&rows);
        assert_eq!((recorder.messages(), last_result), (501, None));
    }

    #[test]
    fn the_last_count_and_the_last_result_count() {
        let ended = |cost: f64| json!({"type": "result", "total_cost_usd": cost});
        let rows = [
            counts(0),
            row("user"),
            ended(1.0),
            counts(10),
            row("user"),
            ended(2.0),
            counts(20),
            row("user"),
        ];
        let RunSessionHistory { recorder, last_result } = history_of(&rows);
        assert_eq!(recorder.messages(), 21);
        assert_eq!(last_result.unwrap()["total_cost_usd"], 2.0);
        assert_eq!(history_of(&[]).recorder.messages(), 0);
    }
}
