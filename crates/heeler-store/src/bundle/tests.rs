//! Bundles: written, read back, cut, changed, placed.

use heeler_model::{SessionId, SessionStatus};
use jiff::Timestamp;
use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::layout::StateDir;

mod native;

struct BundleTestHost {
    _temp: tempfile::TempDir,
    root: Utf8PathBuf,
    dir: StateDir,
}

impl BundleTestHost {
    fn new() -> BundleTestHost {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(temp.path().canonicalize().unwrap()).unwrap();
        let dir = StateDir::create(&root.join("state")).unwrap();
        BundleTestHost { root, dir, _temp: temp }
    }

    fn path(&self, name: &str) -> Utf8PathBuf {
        self.root.join(name)
    }

    /// Writes the two files of a session.
    fn files(&self, log: &[u8], own: &[u8]) -> (Utf8PathBuf, Utf8PathBuf) {
        let (log_path, own_path) = (self.path("log.jsonl"), self.path("own.jsonl"));
        std::fs::write(&log_path, log).unwrap();
        std::fs::write(&own_path, own).unwrap();
        (log_path, own_path)
    }

    fn bundle(&self, bytes: &[u8]) -> Result<SessionBundle, BundleOpenError> {
        let path = self.path("bundle.json");
        std::fs::write(&path, bytes).unwrap();
        open(&path)
    }
}

fn session() -> Session {
    let id: SessionId = "sess-0000abcd".parse().unwrap();
    let mut session = Session::new(id, "coder", Timestamp::UNIX_EPOCH);
    session.agent_session_id = Some(Uuid::from_u128(7).to_string().parse().unwrap());
    session.status = SessionStatus::Active;
    session.working_directory = Some("/home/them/app".into());
    session
}

fn work_in<'a>(projects: Option<&'a Utf8Path>, cwd: &'a Utf8Path) -> BundleDestination<'a> {
    BundleDestination { cwd, native_projects: projects, native_folder: None }
}

fn export(session: &Session, log: &Utf8Path, own: Option<&Utf8Path>, secrets: &[&str]) -> Vec<u8> {
    let secrets: Vec<String> = secrets.iter().map(|it| (*it).to_owned()).collect();
    let jobs = [json!({"id": "job-1"}), json!({"id": "job-2", "summary": "hunter2hunter2"})];
    let mut out = Vec::new();
    let redactor = SecretRedactor::new(&secrets);
    let log = Some(log);
    let own = own.map(|path| NativeSessionFile { path, fork: None });
    let export = BundleContents {
        session,
        jobs: &jobs,
        log,
        native_file: own,
        native_session: None,
        workspace: Vec::new(),
        redactor: &redactor,
    };
    write(export, &mut out).unwrap();
    out
}

const LOG: &[u8] = b"{\"type\":\"user\",  \"text\":\"a \\u00e9 \\\"b\\\" \xc3\xa9\"}\n\nnot json\n {\"a\":1} \n\xff\xfe\n{\"a\":1}{\"b\":2}\n],\n{\"torn";
const OWN_FILE: &[u8] = b"{\"type\":\"user\",\"uuid\":\"00000000-0000-0000-0000-000000000001\",\"parentUuid\":null}\n{\"type\":\"mode\"}\n";

#[test]
fn nothing_is_placed_through_a_link_in_the_state_directory() {
    let (there, here) = (BundleTestHost::new(), BundleTestHost::new());
    let (log, own) = there.files(b"{\"type\":\"user\"}\n", b"");
    drop(own);
    let bundle = here.bundle(&export(&session(), &log, None, &[])).unwrap();
    let (cwd, outside) = (here.path("work"), here.path("outside"));
    std::fs::create_dir_all(&cwd).unwrap();
    std::fs::create_dir_all(&outside).unwrap();
    let id = session().agent_session_id.unwrap();
    let folder = here.dir.root().join(StateDir::session_log_relative(&cwd, &id));
    let folder = folder.parent().unwrap();
    std::fs::create_dir_all(folder.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(&outside, folder).unwrap();
    let error = install_bundle(&here.dir, &bundle, &work_in(None, &cwd)).unwrap_err();
    assert!(error.to_string().contains("is a symbolic link"), "{error}");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
}

#[test]
fn a_bundle_is_one_json_document_with_the_lines_as_they_are() {
    let here = BundleTestHost::new();
    let (log, own) = here.files(LOG, OWN_FILE);
    let bytes = export(&session(), &log, Some(&own), &[]);
    let document: Json = serde_json::from_slice(&bytes).unwrap();
    assert_eq!((&document["format"], &document["version"]), (&json!(BUNDLE_FORMAT), &json!(1)));
    assert_eq!(document["session"]["id"], "sess-0000abcd");
    assert_eq!(document["events"][0]["text"], "a é \"b\" é");
    assert_eq!(document["events"][2], "not json");
    assert_eq!(document["events"].as_array().unwrap().len(), 7, "a torn tail is no line");
    assert_eq!(document["own"][1], json!({"type": "mode"}));
    assert_eq!(document["sums"]["own"]["bytes"], OWN_FILE.len());
}

#[test]
fn what_goes_around_comes_back_as_it_was() {
    let (there, here) = (BundleTestHost::new(), BundleTestHost::new());
    let (log, own) = there.files(LOG, OWN_FILE);
    let exported = export(&session(), &log, Some(&own), &[]);
    let bundle = here.bundle(&exported).unwrap();
    assert_eq!(bundle.session, session());
    assert_eq!(bundle.jobs.len(), 2);
    let (projects, cwd) = (here.path("claude/projects"), here.path("work"));
    let placed = install_bundle(&here.dir, &bundle, &work_in(Some(&projects), &cwd)).unwrap();
    let whole = &LOG[..LOG.len() - b"{\"torn".len()];
    assert_eq!(std::fs::read(&placed.log).unwrap(), whole);
    let own = placed.native_path.unwrap();
    assert_eq!(own, projects.join(heeler_model::project_slug(&cwd)).join(own.file_name().unwrap()));
    assert_eq!(std::fs::read(&own).unwrap(), OWN_FILE);
    let row = &placed.session;
    assert_eq!(row.working_directory.as_deref(), Some(cwd.as_path()));
    assert_eq!((row.status, row.version), (SessionStatus::Paused, 1));
    assert_eq!(here.dir.session_log_path(None, row), Some(placed.log.clone()));
    let mark = row.own.unwrap();
    assert_eq!((mark.bytes, mark.last), (OWN_FILE.len() as u64, Uuid::from_u128(1)));
    // Installed again, as after a crash; then exported again, whichever record this machine has of
    // it.
    install_bundle(&here.dir, &bundle, &work_in(Some(&projects), &cwd)).unwrap();
    assert!(export(row, &placed.log, Some(&own), &[]) == exported);
    // Once the session is continued, it is exported with the record of this machine.
    std::fs::write(&placed.log, [whole, b"{}\n"].concat()).unwrap();
    let later: Json = serde_json::from_slice(&export(row, &placed.log, Some(&own), &[])).unwrap();
    assert_eq!(later["session"]["working_directory"], cwd.as_str());
}

#[test]
fn no_file_that_is_there_is_changed() {
    let here = BundleTestHost::new();
    let (log, own) = here.files(LOG, OWN_FILE);
    let bundle = here.bundle(&export(&session(), &log, Some(&own), &[])).unwrap();
    let (projects, cwd) = (here.path("projects"), here.path("work"));
    let path = projects
        .join(heeler_model::project_slug(&cwd))
        .join(format!("{}.jsonl", Uuid::from_u128(7)));
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    for other in [&OWN_FILE[..10], b"", &[OWN_FILE, b"{}\n"].concat()] {
        std::fs::write(&path, other).unwrap();
        let error =
            install_bundle(&here.dir, &bundle, &work_in(Some(&projects), &cwd)).unwrap_err();
        assert!(
            matches!(&error, BundleInstallError::Exists { path: it } if *it == path),
            "{error}"
        );
        assert_eq!(std::fs::read(&path).unwrap(), other);
    }
    let log = here.dir.root().join(StateDir::session_log_relative(
        &cwd,
        bundle.session.agent_session_id.as_ref().unwrap(),
    ));
    assert!(!log.exists(), "nothing is placed of what cannot be placed whole");
}

#[test]
fn a_bundle_that_is_cut_off_anywhere_is_refused_with_where() {
    let here = BundleTestHost::new();
    let (log, own) = here.files(LOG, OWN_FILE);
    let bytes = export(&session(), &log, Some(&own), &[]);
    for len in 0..bytes.len() {
        let error = here.bundle(&bytes[..len]).unwrap_err();
        let lines = bytes[..len].iter().filter(|&&byte| byte == b'\n').count() as u64;
        match &error {
            BundleOpenError::NotABundle { .. } => assert_eq!(lines, 0),
            BundleOpenError::Truncated { line, .. } => assert_eq!(*line, lines),
            // The start of the next part is not there to be seen.
            BundleOpenError::UnexpectedLayout { .. } => {}
            _ => panic!("{len}: {error}"),
        }
    }
    here.bundle(&bytes).unwrap();
}

#[test]
fn what_is_no_bundle_or_a_newer_one_is_said_to_be() {
    let here = BundleTestHost::new();
    for other in ["", "{}", "[1,2]\n", "{\"format\":\"x\",\"version\":1,\n"] {
        let error = here.bundle(other.as_bytes()).unwrap_err();
        assert!(matches!(error, BundleOpenError::NotABundle { .. }), "{error}");
    }
    let error = here.bundle(b"{\"format\":\"heeler-session\",\"version\":3,\n").unwrap_err();
    let expected = "has version 3; this heeler reads versions up to 2: upgrade it";
    assert!(error.to_string().ends_with(expected), "{error}");
}

#[test]
fn the_fleets_secrets_are_in_no_bundle() {
    let here = BundleTestHost::new();
    let (log, own) = here.files(
        b"{\"text\":\"it is hunter2hunter2\"}\n{\"text\":\"nothing\"}\nraw hunter2hunter2\n",
        b"{\"text\":\"aHVudGVyMmh1bnRlcjI=\"}\n",
    );
    let bytes = export(&session(), &log, Some(&own), &["hunter2hunter2"]);
    let text = String::from_utf8(bytes.clone()).unwrap();
    assert!(!text.contains("hunter2") && !text.contains("aHVudGVyMm"), "{text}");
    assert!(text.contains("{\"text\":\"it is [secret]\"},\n{\"text\":\"nothing\"}"), "{text}");
    here.bundle(&bytes).unwrap();
}

#[test]
fn a_fork_that_has_not_begun_takes_along_what_it_will_take_over() {
    let here = BundleTestHost::new();
    let source: AgentSessionId = Uuid::from_u128(9).to_string().parse().unwrap();
    let entry = |number: u128, text: &str| {
        let parent = (number > 1).then(|| Uuid::from_u128(number - 1));
        json!({"type": "user", "uuid": Uuid::from_u128(number), "parentUuid": parent,
            "sessionId": source, "text": text})
    };
    let quoted = format!("\"sessionId\":\"{source}\"");
    let lines = [entry(1, &quoted), entry(2, "last"), entry(3, "never")];
    let own: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let (log, own) = here.files(b"{}\n", own.as_bytes());
    let export = |at| {
        let mut session = session();
        session.fork = Some(PendingFork { source: source.clone(), at: Some(Uuid::from_u128(at)) });
        let own = Some(NativeSessionFile { path: &own, fork: session.fork.as_ref() });
        let (redactor, log, mut out) = (SecretRedactor::new(&[]), Some(log.as_path()), Vec::new());
        let (session, redactor) = (&session, &redactor);
        let all = BundleContents {
            session,
            jobs: &[],
            log,
            native_file: own,
            native_session: None,
            workspace: Vec::new(),
            redactor,
        };
        write(all, &mut out).unwrap();
        out
    };
    let bundle = here.bundle(&export(2)).unwrap();
    let (projects, cwd) = (here.path("projects"), here.path("work"));
    let placed = install_bundle(&here.dir, &bundle, &work_in(Some(&projects), &cwd)).unwrap();
    let own = std::fs::read_to_string(placed.native_path.unwrap()).unwrap();
    let rows: Vec<Json> = own.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 2, "{own}");
    let id = placed.session.agent_session_id.unwrap();
    assert!(rows.iter().all(|row| row["sessionId"] == id.as_str()), "{own}");
    assert_eq!(rows[0]["text"], quoted, "only the name of the session is another");
    assert_eq!(placed.session.own.unwrap().last, Uuid::from_u128(2));
    assert_eq!(placed.session.fork, None);
    assert_eq!(here.bundle(&export(7)).unwrap().sums.own, None);
}

#[test]
fn commits_of_the_workspace_are_taken_along() {
    let here = BundleTestHost::new();
    let (log, _) = here.files(b"", b"");
    let commits: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
    let held = [("one", &commits[..]), ("none", b""), ("two", &commits[..7])];
    let repository = |(key, bytes): (&str, &'static [u8])| BundleRepository {
        key: key.to_owned(),
        write: Box::new(move |to| bytes.chunks(1000).try_for_each(|part| to.write_all(part))),
    };
    let held: Vec<(&str, &'static [u8])> =
        held.iter().map(|(key, bytes)| (*key, &*bytes.to_vec().leak())).collect();
    let (session, redactor) = (session(), SecretRedactor::new(&[]));
    let export = |workspace, out: &mut dyn Write| {
        let (log, redactor) = (Some(log.as_path()), &redactor);
        write(
            BundleContents {
                session: &session,
                jobs: &[],
                log,
                native_file: None,
                native_session: None,
                workspace,
                redactor,
            },
            out,
        )
    };
    let mut out = Vec::new();
    let sums = export(held.iter().copied().map(repository).collect(), &mut out).unwrap();
    assert_eq!(sums.workspace.unwrap().bytes, commits.len() as u64 + 7);
    let bundle = here.bundle(&out).unwrap();
    let mut back = Vec::new();
    let taken = bundle.repositories(|key, bytes| {
        let mut all = Vec::new();
        bytes.read_to_end(&mut all)?;
        back.push((key.to_owned(), all));
        Ok(())
    });
    taken.unwrap();
    let wanted: Vec<_> = held.iter().map(|(key, all)| ((*key).to_owned(), all.to_vec())).collect();
    assert!(back == wanted);
    // Who does not read it all gets the next one all the same.
    let mut keys = Vec::new();
    let taken = bundle.repositories(|key, _| {
        keys.push(key.to_owned());
        Ok(())
    });
    taken.unwrap();
    assert_eq!(keys, ["one", "none", "two"]);
    // A failure of the output is reported as such, whichever error the callback returns.
    struct FullDiskWriter;
    impl Write for FullDiskWriter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if bytes.len() > 1000 {
                Err(io::ErrorKind::StorageFull.into())
            } else {
                Ok(bytes.len())
            }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let error =
        export(held.into_iter().map(repository).collect(), &mut FullDiskWriter).unwrap_err();
    assert!(
        matches!(&error, BundleExportError::Write(it) if it.kind() == io::ErrorKind::StorageFull)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_lines_come_back_and_any_change_is_noticed(
        lines in proptest::collection::vec(any::<Vec<u8>>(), 0..8),
        texts in proptest::collection::vec(".*", 0..4),
        at in any::<prop::sample::Index>(),
        byte: u8,
    ) {
        let mut log: Vec<u8> = Vec::new();
        for line in lines.iter().map(Vec::as_slice).chain(texts.iter().map(String::as_bytes)) {
            log.extend(line.iter().filter(|&&byte| byte != b'\n'));
            log.push(b'\n');
        }
        let here = BundleTestHost::new();
        let (path, _) = here.files(&log, b"");
        let mut bytes = export(&session(), &path, None, &[]);
        let bundle = here.bundle(&bytes).unwrap();
        let cwd = here.path("work");
        let placed = install_bundle(&here.dir, &bundle, &work_in(None, &cwd)).unwrap();
        prop_assert!(std::fs::read(&placed.log).unwrap() == log);
        prop_assert_eq!(placed.native_path, None);
        let at = at.index(bytes.len());
        prop_assume!(bytes[at] != byte);
        bytes[at] = byte;
        // A space more or less in the first line is no change of anything that is kept.
        let first = bytes.iter().position(|&byte| byte == b'\n').unwrap_or(0);
        prop_assert!(at <= first || here.bundle(&bytes).is_err());
    }
}

#[test]
fn a_session_that_comes_back_continues_its_earlier_file_and_no_other_one() {
    let (there, here) = (BundleTestHost::new(), BundleTestHost::new());
    let (log, own) = there.files(b"{\"type\":\"user\"}\n", OWN_FILE);
    let bundle = here.bundle(&export(&session(), &log, Some(&own), &[])).unwrap();
    let (projects, cwd) = (here.path("projects"), here.path("work"));
    let place = || place_native_session(&bundle, &work_in(Some(&projects), &cwd));
    let placed = place().unwrap().unwrap();
    let position = placed.position.unwrap();
    assert_eq!((position.bytes, position.last), (OWN_FILE.len() as u64, Uuid::from_u128(1)));
    let content = || std::fs::read(&placed.path).unwrap();
    assert_eq!(content(), OWN_FILE);
    // It was here before, or an earlier attempt was interrupted.
    for there in [0, 1, OWN_FILE.len() / 2, OWN_FILE.len()] {
        std::fs::write(&placed.path, &OWN_FILE[..there]).unwrap();
        place().unwrap().unwrap();
        assert_eq!(content(), OWN_FILE, "{there} bytes were there");
    }
    let longer = [OWN_FILE, b"{\"type\":\"user\"}\n"].concat();
    for other in [b"{\"type\":\"other\"}\n".to_vec(), longer] {
        std::fs::write(&placed.path, &other).unwrap();
        let error = place().unwrap_err();
        assert!(error.to_string().contains("exists already and differs"), "{error}");
        assert_eq!(content(), other);
    }
    // A folder of the agent is no way out.
    let folder = placed.path.parent().unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    std::fs::create_dir(here.path("outside")).unwrap();
    std::os::unix::fs::symlink(here.path("outside"), folder).unwrap();
    let error = place().unwrap_err();
    assert!(error.to_string().contains("is a symbolic link"), "{error}");
    assert_eq!(std::fs::read_dir(here.path("outside")).unwrap().count(), 0);
    // An agent of a program without native sessions gets none.
    assert!(place_native_session(&bundle, &work_in(None, &cwd)).unwrap().is_none());
}
