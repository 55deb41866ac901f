//! Writing, rotating and reading logs.

use std::os::unix::fs::PermissionsExt as _;

use heeler_model::TriggerType;
use tempfile::TempDir;

use super::*;

struct LogFixture {
    root: Utf8PathBuf,
    _folder: TempDir,
}

impl LogFixture {
    fn new() -> LogFixture {
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(folder.path()).unwrap().to_owned();
        LogFixture { root, _folder: folder }
    }

    fn log(&self, size: &str, keep: u32) -> RotatingLog {
        let limits = LogRotation { max_size: size.parse().unwrap(), keep };
        RotatingLog::open(&self.root.join("x.log"), limits).unwrap()
    }

    /// Names and contents of all files.
    fn files(&self) -> Vec<String> {
        let mut found: Vec<String> = self
            .root
            .read_dir_utf8()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let text = fs::read_to_string(entry.path()).unwrap();
                format!("{} {}", entry.file_name(), text.replace('\n', "|"))
            })
            .collect();
        found.sort();
        found
    }
}

fn limits() -> LogRotation {
    LogRotation { max_size: "1m".parse().unwrap(), keep: 5 }
}

#[test]
fn a_log_that_has_grown_is_set_aside_and_so_many_are_kept() {
    let rig = LogFixture::new();
    let mut log = rig.log("8", 2);
    for number in 0..9 {
        log.append(format!("{number}aa\n").as_bytes()).unwrap();
    }
    assert_eq!(rig.files(), ["x.log 8aa|", "x.log.1 6aa|7aa|", "x.log.2 4aa|5aa|"]);
    log.append(b"longer than the limit\n").unwrap();
    assert_eq!(rig.files(), ["x.log longer than the limit|", "x.log.1 8aa|", "x.log.2 6aa|7aa|"]);
}

#[test]
fn none_is_kept_where_none_is_wanted() {
    let rig = LogFixture::new();
    for name in ["x.log.1", "x.log.7", "x.log.old"] {
        fs::write(rig.root.join(name), "old\n").unwrap();
    }
    let mut log = rig.log("4", 0);
    log.append(b"one\n").unwrap();
    log.append(b"two\n").unwrap();
    assert_eq!(rig.files(), ["x.log two|", "x.log.old old|"]);
}

#[test]
fn a_rotation_that_was_cut_off_loses_nothing() {
    let rig = LogFixture::new();
    // Killed after `.2` became `.3` and before `.1` became `.2`.
    for (name, text) in [("x.log", "new\n"), ("x.log.1", "b\n"), ("x.log.3", "a\n")] {
        fs::write(rig.root.join(name), text).unwrap();
    }
    rig.log("4", 3).append(b"next\n").unwrap();
    assert_eq!(rig.files(), ["x.log next|", "x.log.1 new|", "x.log.2 b|", "x.log.3 a|"]);
}

#[test]
fn a_log_that_somebody_moved_away_is_begun_anew() {
    let rig = LogFixture::new();
    let mut log = rig.log("1k", 2);
    log.append(b"one\n").unwrap();
    fs::rename(rig.root.join("x.log"), rig.root.join("away")).unwrap();
    log.append(b"two\n").unwrap();
    assert_eq!(rig.files(), ["away one|", "x.log two|"]);
}

#[test]
fn logs_are_private_and_no_links() {
    let rig = LogFixture::new();
    let logs = AgentLogs::new(&rig.root, limits());
    let agent: AgentName = "web.coder".parse().unwrap();
    logs.append_line(&agent, Timestamp::UNIX_EPOCH, "job-1 \u{1b}[31mstarted\nnow");
    assert_eq!(rig.files(), ["web.coder.log 1970-01-01T00:00:00.000Z job-1 started now|"]);
    let mode = logs.path(&agent).metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    std::os::unix::fs::symlink("target", rig.root.join("link.log")).unwrap();
    logs.append_line(&"link".parse().unwrap(), Timestamp::UNIX_EPOCH, "x");
    assert!(!rig.root.join("target").exists());
}

#[test]
fn an_agent_called_heeler_does_not_write_the_daemons_log() {
    let rig = LogFixture::new();
    let logs = AgentLogs::new(&rig.root, limits());
    assert_eq!(logs.path(&"heeler".parse().unwrap()).file_name(), Some("heeler+.log"));
    assert_eq!(logs.path(&"coder".parse().unwrap()).file_name(), Some("coder.log"));
}

#[test]
fn a_line_has_a_limit() {
    let line = first_line_chars(&"é ".repeat(TEXT_CHARS_MAX));
    assert_eq!(line.chars().count(), TEXT_CHARS_MAX + 1);
    assert!(line.ends_with('…'));
}

#[test]
fn a_job_is_told_as_people_want_to_hear_it() {
    let mut job = JobHead {
        id: "job-2026-11-15-abc123".parse().unwrap(),
        agent: "coder".to_owned(),
        schedule: Some("nightly".to_owned()),
        trigger_type: TriggerType::Schedule,
        status: JobStatus::Running,
        exit_reason: None,
        started_at: Timestamp::UNIX_EPOCH,
        finished_at: None,
        duration_ms: None,
        cost_usd: None,
        session_id: None,
        summary: None,
    };
    let told = |schedule| job_start_line(&job.id, schedule, job.trigger_type.as_str());
    assert_eq!(told(Some("nightly")), "job-2026-11-15-abc123 started: schedule nightly");
    assert_eq!(told(None), "job-2026-11-15-abc123 started: schedule");
    (job.status, job.duration_ms, job.cost_usd) =
        (JobStatus::Completed, Some(192_345), Some(0.125));
    job.summary = Some("\n Fixed it.\nMore.".to_owned());
    assert_eq!(
        job_end_line(&job, None),
        "job-2026-11-15-abc123 completed in 3m12s, $0.1250: Fixed it."
    );
    (job.status, job.duration_ms, job.cost_usd) = (JobStatus::Failed, Some(12), None);
    assert_eq!(
        job_end_line(&job, Some("no key\nat all")),
        "job-2026-11-15-abc123 failed in 12ms: no key"
    );
}

#[test]
fn the_last_lines_are_read_through_logs_that_were_set_aside() {
    let rig = LogFixture::new();
    let path = rig.root.join("x.log");
    let mut log = rig.log("8", 3);
    for number in 0..5 {
        log.append(format!("{number}aa\n").as_bytes()).unwrap();
    }
    let last = |count| LogTail::last(&path, count).unwrap().1;
    assert_eq!(last(1), ["4aa"]);
    assert_eq!(last(3), ["2aa", "3aa", "4aa"]);
    assert_eq!(last(100), ["0aa", "1aa", "2aa", "3aa", "4aa"]);
}

#[test]
fn of_a_long_log_only_the_end_is_read() {
    let rig = LogFixture::new();
    let line = "x".repeat(1023);
    let text = format!("{line}\n").repeat(TAIL_BYTES_MAX as usize / 1024 + 10);
    fs::write(rig.root.join("x.log"), text).unwrap();
    let (mut tail, lines) = LogTail::last(&rig.root.join("x.log"), usize::MAX).unwrap();
    assert_eq!(lines.len(), TAIL_BYTES_MAX as usize / 1024);
    assert!(lines.iter().all(|read| *read == line));
    assert!(tail.read_more().unwrap().is_empty());
}

#[test]
fn a_follower_reads_every_line_once_though_the_log_is_set_aside() {
    let rig = LogFixture::new();
    let mut log = rig.log("8", 3);
    let (mut tail, lines) = LogTail::last(&rig.root.join("x.log"), 10).unwrap();
    assert!(lines.is_empty());
    let mut seen = Vec::new();
    for number in 0..7 {
        log.append(format!("{number}aa\n").as_bytes()).unwrap();
        if number % 2 == 0 {
            seen.extend(tail.read_more().unwrap());
        }
    }
    assert_eq!(seen, ["0aa", "1aa", "2aa", "3aa", "4aa", "5aa", "6aa"]);
    fs::remove_file(rig.root.join("x.log")).unwrap();
    assert!(tail.read_more().unwrap().is_empty());
}

fn texts(lines: &[(LogCursor, String)]) -> Vec<&str> {
    lines.iter().map(|(_, text)| text.as_str()).collect()
}

#[test]
fn whoever_reads_a_log_by_marks_goes_on_after_any_line_also_when_it_was_set_aside() {
    let rig = LogFixture::new();
    let path = rig.root.join("x.log");
    let mut log = rig.log("12", 3);
    let mut lines = LogLineReader::last(&path, 10).unwrap();
    assert!(lines.read_more().unwrap().is_empty());
    let mut all = Vec::new();
    for number in 0..8 {
        log.append(format!("{number}aa\n").as_bytes()).unwrap();
        all.extend(lines.read_more().unwrap());
    }
    let expected: Vec<String> = (0..8).map(|number| format!("{number}aa")).collect();
    assert_eq!(texts(&all), expected);
    for (at, (mark, _)) in all.iter().enumerate() {
        let mark: LogCursor = mark.to_string().parse().unwrap();
        let mut again = LogLineReader::after(&path, &mark).unwrap().expect("its log is there");
        assert_eq!(again.read_more().unwrap(), all[at + 1..], "after {mark}");
        assert!(again.read_more().unwrap().is_empty());
    }
    for count in 0..=8 {
        let mut last = LogLineReader::last(&path, count).unwrap();
        assert_eq!(last.read_more().unwrap(), all[8 - count..], "the last {count}");
    }
    // Two rotations happen between two reads.
    let mut slow = LogLineReader::last(&path, 0).unwrap();
    for number in 8..15 {
        log.append(format!("{number:03}\n").as_bytes()).unwrap();
    }
    assert_eq!(
        texts(&slow.read_more().unwrap()),
        ["008", "009", "010", "011", "012", "013", "014"]
    );
    assert!(LogLineReader::after(&path, &all[0].0).unwrap().is_none(), "its log is gone");
}

#[test]
fn a_line_without_end_is_waited_for_and_told_when_its_log_is_set_aside() {
    let rig = LogFixture::new();
    let path = rig.root.join("x.log");
    let mut log = rig.log("12", 3);
    log.append(b"one\ntwo").unwrap();
    let mut lines = LogLineReader::last(&path, 10).unwrap();
    assert_eq!(texts(&lines.read_more().unwrap()), ["one"]);
    log.append(b"three\n").unwrap();
    let more = lines.read_more().unwrap();
    assert_eq!(texts(&more), ["two", "three"], "another log follows the half line");
}

#[test]
fn what_is_no_mark_of_a_line_is_refused() {
    for text in [
        "",
        "12",
        "0123456789abcdef",
        "0123456789abcdef-",
        "0123456789abcdeg-1",
        "x-1",
        "0123456789abcdef-01",
        "0123456789abcdef--1",
    ] {
        assert_eq!(text.parse::<LogCursor>(), Err(LogCursorParseError), "{text}");
    }
}
