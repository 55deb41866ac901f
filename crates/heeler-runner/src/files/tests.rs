//! What is written is read again, and what does not belong here is refused.

use std::os::unix::fs::MetadataExt as _;

use heeler_model::run::{
    ErrorClass, PROTOCOL, PROTOCOL_MIN, QuestionPolicy, RunCost, RunEnd, RunError, RunLimits,
    SessionPlan, SessionStart,
};
use heeler_model::workflow::OUTPUT_BYTES_MAX;
use heeler_model::{ExitReason, RunId, TriggerType};
use jiff::Timestamp;
use serde_json::json;

use super::*;
use crate::process::RunCgroup;
use crate::session;

/// A state directory with the folder of one run.
pub(crate) struct RunFolderFixture {
    _temp: tempfile::TempDir,
    pub(crate) state: Utf8PathBuf,
    pub(crate) dir: Utf8PathBuf,
    pub(crate) spec: RunSpec,
}

impl Drop for RunFolderFixture {
    fn drop(&mut self) {
        // A test that ended a runner in its midst leaves it.
        if let Some(cgroup) = RunCgroup::find(self.spec.run, None) {
            drop(cgroup.kill());
            cgroup.remove();
        }
    }
}

impl RunFolderFixture {
    pub(crate) fn new() -> RunFolderFixture {
        let temp = tempfile::tempdir().unwrap();
        let state = Utf8Path::from_path(temp.path()).unwrap().canonicalize_utf8().unwrap();
        let run = RunId::mint(Timestamp::UNIX_EPOCH, std::array::from_fn(|_| fastrand::u8(..)));
        let dir = state.join("runs").join(run.to_string());
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::create_dir(state.join("jobs")).unwrap();
        let id = "0b9f6c1a-5d0e-4b7e-9d3a-0c5a3c2b1a00".parse().unwrap();
        let spec = RunSpec {
            protocol: PROTOCOL,
            run,
            job: "job-2026-11-15-a1b2c3".parse().unwrap(),
            attempt: 1,
            agent: "coder".parse().unwrap(),
            trigger: TriggerType::Manual,
            runtime: heeler_config::RuntimeType::Scripted,
            working_directory: state.clone(),
            job_log: state.join("jobs/job-2026-11-15-a1b2c3.jsonl"),
            projects: state.join("agent-sessions/projects"),
            output_file: None,
            home: state.join("home"),
            sockets: state.join("sockets"),
            session: SessionPlan::new(SessionStart::Fresh { id }, "a fresh session"),
            limits: RunLimits::default(),
            attendance: QuestionPolicy::Nobody,
            sync_each_row: false,
            workspaces: None,
            keep_output: false,
            keep_agent: None,
        };
        let folder = RunFolderFixture { _temp: temp, state, dir, spec };
        folder.write_spec(&folder.spec);
        folder
    }

    pub(crate) fn write_spec(&self, spec: &RunSpec) {
        std::fs::write(self.dir.join("spec.json"), serde_json::to_vec(spec).unwrap()).unwrap();
    }

    /// Writes the spec as a daemon does.
    pub(crate) fn sign_spec(&self, spec: &RunSpec, key: &ResultSigningKey) {
        let mut text = serde_json::to_vec_pretty(spec).unwrap();
        text.push(b'\n');
        std::fs::write(self.dir.join("spec.json"), key.sign_spec(&text)).unwrap();
    }

    pub(crate) fn started(&self) -> RunStartRecord {
        RunStartRecord {
            protocol: PROTOCOL,
            run: self.spec.run,
            pid: 1,
            at: Timestamp::UNIX_EPOCH,
            session: self.spec.session.start.id().clone(),
            session_log: session::log_path(&self.spec, self.spec.session.start.id()),
            socket: self.spec.sockets.join("none.sock"),
            cgroup: None,
            job_rows_before: 0,
            session_rows_before: 0,
            own_sessions: None,
            agent_run: None,
        }
    }

    fn result(&self) -> RunResult {
        RunResult {
            protocol: PROTOCOL,
            run: self.spec.run,
            job: self.spec.job.clone(),
            end: RunEnd::Finished,
            exit_reason: ExitReason::Success,
            stop_reason: None,
            summary: Some("done".to_owned()),
            error: None,
            cost: RunCost::default(),
            session: None,
            started_at: Timestamp::UNIX_EPOCH,
            finished_at: Timestamp::UNIX_EPOCH,
            exit_code: Some(0),
            settled: None,
            output: None,
            transcript: None,
            session_transcript: None,
            denied: heeler_model::DeniedTools::default(),
            usage_limit: None,
        }
    }
}

#[test]
fn what_is_written_is_read_again() {
    let folder = RunFolderFixture::new();
    assert_eq!(read_spec(&folder.dir).unwrap(), folder.spec);
    assert_eq!(read_started(&folder.dir, &folder.spec).unwrap(), None);
    write_started(&folder.dir, &folder.started()).unwrap();
    assert_eq!(read_started(&folder.dir, &folder.spec).unwrap(), Some(folder.started()));
    assert_eq!(read_result(&folder.dir).unwrap(), None);
    ReservedResultFile::create(&folder.dir, None).unwrap().write(&folder.result()).unwrap();
    assert_eq!(read_result(&folder.dir).unwrap(), Some(folder.result()));
}

#[test]
fn a_result_is_written_into_space_that_was_reserved_and_takes_no_more_than_it_needs() {
    let folder = RunFolderFixture::new();
    let reserved = ReservedResultFile::create(&folder.dir, None).unwrap();
    let before = reserved.file.metadata().unwrap();
    assert!(before.blocks() * 512 >= RESULT_BYTES_MAX as u64, "{}", before.blocks());
    reserved.write(&folder.result()).unwrap();
    let after = std::fs::metadata(folder.dir.join(file::RESULT)).unwrap();
    assert_eq!(after.ino(), before.ino());
    assert!(after.blocks() * 512 < RESULT_BYTES_MAX as u64, "{}", after.blocks());
    assert_eq!(after.mode() & 0o777, 0o600);
    assert!(!folder.dir.join(RESERVE_FILE).exists());
}

#[test]
fn a_result_is_written_once() {
    let folder = RunFolderFixture::new();
    ReservedResultFile::create(&folder.dir, None).unwrap().write(&folder.result()).unwrap();
    let other = RunResult { end: RunEnd::Interrupted, ..folder.result() };
    let error = ReservedResultFile::create(&folder.dir, None).unwrap().write(&other).unwrap_err();
    assert_eq!(error.source.kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(read_result(&folder.dir).unwrap(), Some(folder.result()));
}

#[test]
fn a_signed_result_takes_the_place_of_a_file_that_the_runner_did_not_write() {
    let (folder, key) = (RunFolderFixture::new(), ResultSigningKey::from_seed([7; 32]));
    let reserved = ReservedResultFile::create(&folder.dir, Some(&key)).unwrap();
    let path = folder.dir.join(file::RESULT);
    std::fs::write(&path, "forged").unwrap();
    reserved.write(&folder.result()).unwrap();
    assert_eq!(read_signed_result(&folder.dir, &key.public_key()).unwrap(), Some(folder.result()));
    let kept = std::fs::read_to_string(format!("{path}.{}", file::REFUSED_SUFFIX)).unwrap();
    assert_eq!(kept, "forged");
}

#[test]
fn a_result_that_the_runner_did_not_sign_is_set_aside() {
    let key = ResultSigningKey::from_seed([7; 32]).public_key();
    type ForgeFile = fn(&RunFolderFixture);
    let forge: [(&str, ForgeFile); 4] = [
        ("unsigned", |folder| {
            ReservedResultFile::create(&folder.dir, None).unwrap().write(&folder.result()).unwrap();
        }),
        ("signed by another key", |folder| {
            let other = ResultSigningKey::from_seed([8; 32]);
            let reserved = ReservedResultFile::create(&folder.dir, Some(&other)).unwrap();
            reserved.write(&folder.result()).unwrap();
        }),
        ("a link", |folder| {
            std::os::unix::fs::symlink("spec.json", folder.dir.join(file::RESULT)).unwrap();
        }),
        ("a folder", |folder| std::fs::create_dir(folder.dir.join(file::RESULT)).unwrap()),
    ];
    for (what, forge) in forge {
        let folder = RunFolderFixture::new();
        forge(&folder);
        assert_eq!(read_signed_result(&folder.dir, &key).unwrap(), None, "{what}");
        assert!(folder.dir.join(file::RESULT).symlink_metadata().is_err(), "{what}");
    }
}

#[test]
fn a_reserve_that_a_crash_left_half_written_is_used_again() {
    let folder = RunFolderFixture::new();
    for left in [&b""[..], b"{\"protocol\":1,", &[b' '; RESULT_BYTES_MAX]] {
        let reserved = ReservedResultFile::create(&folder.dir, None).unwrap();
        reserved.file.write_all_at(left, 0).unwrap();
        drop(reserved);
        assert_eq!(read_result(&folder.dir).unwrap(), None);
        ReservedResultFile::create(&folder.dir, None).unwrap().write(&folder.result()).unwrap();
        assert_eq!(read_result(&folder.dir).unwrap(), Some(folder.result()));
        std::fs::remove_file(folder.dir.join(file::RESULT)).unwrap();
    }
}

#[test]
fn a_result_that_is_too_large_is_cut_and_still_says_how_the_run_ended() {
    let folder = RunFolderFixture::new();
    let long = "\u{1}é".repeat(RESULT_BYTES_MAX);
    let mut result = RunResult {
        stop_reason: Some(long.clone()),
        summary: Some(long.clone()),
        error: Some(RunError { cure: long.clone(), ..RunError::new(ErrorClass::Internal, &long) }),
        ..folder.result()
    };
    for n in 0..10_000 {
        result.cost.usage.per_model.insert(format!("model {n}"), json!({"inputTokens": n}));
    }
    ReservedResultFile::create(&folder.dir, None).unwrap().write(&result).unwrap();
    let written = std::fs::metadata(folder.dir.join(file::RESULT)).unwrap().len();
    assert!(written <= RESULT_BYTES_MAX as u64, "{written}");
    let read = read_result(&folder.dir).unwrap().unwrap();
    assert_eq!((read.run, read.end), (result.run, result.end));
    assert!(long.starts_with(&read.summary.unwrap()));
    assert_eq!(read.error.unwrap().class, ErrorClass::Internal);
}

#[test]
fn a_spec_that_is_not_this_folders_or_names_files_elsewhere_is_refused() {
    let folder = RunFolderFixture::new();
    let refused = |change: &dyn Fn(&mut RunSpec)| {
        let mut spec = folder.spec.clone();
        change(&mut spec);
        folder.write_spec(&spec);
        read_spec(&folder.dir).unwrap_err()
    };
    let outside = tempfile::tempdir().unwrap();
    let outside = Utf8Path::from_path(outside.path()).unwrap().canonicalize_utf8().unwrap();
    let link = folder.state.join("link");
    std::os::unix::fs::symlink(&outside, &link).unwrap();
    let elsewhere = [
        outside.join("log.jsonl"),
        "jobs/relative.jsonl".into(),
        folder.state.join("jobs/../../log.jsonl"),
        folder.state.join("none/../../../log.jsonl"),
        link.join("log.jsonl"),
        link.join("none/log.jsonl"),
    ];
    for path in elsewhere {
        let error = refused(&|spec| spec.job_log.clone_from(&path));
        assert!(
            matches!(&error, RunFileError::OutsideStateDirectory { named, .. } if *named == path),
            "{error}"
        );
    }
    let error = refused(&|spec| spec.projects.clone_from(&outside));
    assert!(matches!(error, RunFileError::OutsideStateDirectory { .. }), "{error}");
    let other = RunId::mint(Timestamp::UNIX_EPOCH, [0; 10]);
    let error = refused(&|spec| spec.run = other);
    assert!(matches!(error, RunFileError::OtherRun { .. }), "{error}");
    for protocol in [PROTOCOL_MIN - 1, PROTOCOL + 1] {
        let error = refused(&|spec| spec.protocol = protocol);
        assert!(
            matches!(error, RunFileError::Form { source: RunFileParseError::Protocol { .. }, .. }),
            "{error}"
        );
    }
    std::fs::write(folder.dir.join("spec.json"), "{").unwrap();
    let error = read_spec(&folder.dir).unwrap_err();
    assert!(
        matches!(error, RunFileError::Form { source: RunFileParseError::Content(_), .. }),
        "{error}"
    );
}

#[test]
fn a_dead_runs_logs_are_where_its_folder_is_whatever_it_names() {
    let folder = RunFolderFixture::new();
    let mut spec = folder.spec.clone();
    (spec.job_log, spec.projects) = ("/elsewhere/job.jsonl".into(), "/elsewhere".into());
    folder.write_spec(&spec);
    let spec = read_spec_of_dead_run(&folder.dir, None).unwrap();
    assert_eq!(spec, folder.spec);
    let started = RunStartRecord { session_log: "/etc/hosts".into(), ..folder.started() };
    write_started(&folder.dir, &started).unwrap();
    assert_eq!(read_started(&folder.dir, &spec).unwrap(), Some(folder.started()));
    // A link may still lead out of there.
    let log = folder.started().session_log;
    std::fs::create_dir_all(log.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink("/etc/hosts", &log).unwrap();
    let error = read_started(&folder.dir, &spec).unwrap_err();
    assert!(matches!(error, RunFileError::OutsideStateDirectory { .. }), "{error}");
    std::os::unix::fs::symlink("/etc/hosts", &spec.job_log).unwrap();
    let error = read_spec_of_dead_run(&folder.dir, None).unwrap_err();
    assert!(matches!(error, RunFileError::OutsideStateDirectory { .. }), "{error}");
}

#[test]
fn an_output_of_any_characters_fits_into_the_space_that_was_reserved() {
    let normal = "it said so\n".repeat(OUTPUT_BYTES_MAX / 11);
    let odd = "\u{1}".repeat(OUTPUT_BYTES_MAX);
    for (output, whole) in [(normal, true), (odd, false)] {
        let folder = RunFolderFixture::new();
        let result = RunResult { output: Some(output.clone()), ..folder.result() };
        ReservedResultFile::create(&folder.dir, None).unwrap().write(&result).unwrap();
        let written = std::fs::metadata(folder.dir.join(file::RESULT)).unwrap().len();
        assert!(written <= RESULT_BYTES_MAX as u64, "{written}");
        let read = read_result(&folder.dir).unwrap().unwrap().output.unwrap();
        assert!(output.starts_with(&read) && !read.is_empty());
        assert_eq!(read == output, whole);
    }
}

#[test]
fn a_question_is_a_file_named_by_its_id() {
    let folder = RunFolderFixture::new();
    let ask = |id: &str| AgentQuestion {
        protocol: PROTOCOL,
        id: id.to_owned(),
        at: Timestamp::UNIX_EPOCH,
        kind: "permission".to_owned(),
        tool: "Bash".to_owned(),
        input: json!({"command": "ls"}),
        until: None,
        network_host: None,
        grant: None,
    };
    write_ask(&folder.dir, &ask("toolu_1"), None).unwrap();
    let read: Option<AgentQuestion> = read(&folder.dir.join("asks/toolu_1.json")).unwrap();
    assert_eq!(read, Some(ask("toolu_1")));
    let error = write_ask(&folder.dir, &ask("../../spec"), None).unwrap_err();
    assert!(matches!(error, RunFileError::Name(_)), "{error}");
}
