//! Adoption of hostile directories, such as one that came with a cloned repository.

use std::os::unix::fs::symlink;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_import::adopt;
use heeler_store::{PublishedView, StateDir, Store, StoreReader, doctor};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::{Place, now};

/// A folder outside, which nothing may touch.
struct OutsideFolder {
    root: Utf8PathBuf,
    _temp: tempfile::TempDir,
}

impl OutsideFolder {
    fn new() -> OutsideFolder {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(temp.path().canonicalize().unwrap()).unwrap();
        std::fs::write(root.join("precious"), "precious").unwrap();
        OutsideFolder { root, _temp: temp }
    }

    fn file(&self) -> Utf8PathBuf {
        self.root.join("precious")
    }

    #[track_caller]
    fn is_untouched(&self) {
        assert_eq!(std::fs::read_to_string(self.file()).unwrap(), "precious");
        assert_eq!(self.root.read_dir_utf8().unwrap().count(), 1);
    }
}

fn pipe(path: &Utf8Path) {
    mknodat(CWD, path.as_std_path(), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

/// A directory in herdctl's form, as a repository may bring it.
fn herdctl() -> (tempfile::TempDir, Utf8PathBuf) {
    let temp = tempfile::tempdir().unwrap();
    let root = Utf8PathBuf::from_path_buf(temp.path().canonicalize().unwrap()).unwrap();
    let root = root.join(".herdctl");
    std::fs::create_dir_all(root.join("sessions")).unwrap();
    std::fs::write(root.join("state.yaml"), "fleet: {}\nagents: {}\n").unwrap();
    std::fs::write(root.join("sessions/settings.json"), "{\"evil\": true}").unwrap();
    (temp, root)
}

#[test]
fn a_directory_with_links_where_ours_would_be_is_not_adopted() {
    for name in [
        "heeler.db",
        "heeler.db-wal",
        "heeler.db-shm",
        "heeler.db-journal",
        "heeler.db.rebuilt",
        "heeler.lock",
        "restore.lock",
        "rebuild.json",
        "state.yaml",
        "schema",
        ".before-heeler",
        "jobs",
        "sessions",
        "agent-sessions",
        "agent-sessions/projects",
        "runs",
        "logs",
        "backups",
        "trash",
        "workspaces",
        "worktrees",
        "agent-sessions/projects/-home-me",
        "trash/sessions",
        "trash/jobs",
        "workspaces/0123456789abcdef",
        "worktrees/sess-0123abcd",
    ] {
        let (_temp, root) = herdctl();
        let outside = OutsideFolder::new();
        let path = root.join(name);
        drop(std::fs::remove_dir_all(&path).or_else(|_| std::fs::remove_file(&path)));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(&outside.root, &path).unwrap();
        adopt(&root, now()).unwrap_err();
        outside.is_untouched();
    }
}

#[test]
fn what_is_kept_before_adoption_is_not_written_through_links() {
    let (_temp, root) = herdctl();
    let outside = OutsideFolder::new();
    std::fs::create_dir(root.join(".before-heeler")).unwrap();
    symlink(&outside.root, root.join(".before-heeler/sessions")).unwrap();
    let error = adopt(&root, now()).unwrap_err();
    let text = heeler_model::error_chain(&error);
    assert!(text.contains(".before-heeler/sessions is a symbolic link"), "{text}");
    outside.is_untouched();
    assert!(!root.join("heeler.db").exists());
}

#[test]
fn pipes_in_place_of_records_stop_nobody() {
    let (_temp, root) = herdctl();
    let job = "job-2026-11-14-stuck1";
    std::fs::create_dir(root.join("jobs")).unwrap();
    let yaml = "agent: coder\nstatus: running\nstarted_at: 2026-11-14T00:00:00Z\n";
    std::fs::write(root.join(format!("jobs/{job}.yaml")), yaml).unwrap();
    pipe(&root.join(format!("jobs/{job}.jsonl")));
    pipe(&root.join("jobs/job-2026-11-14-stuck2.yaml"));
    pipe(&root.join("herdctl.pid"));
    adopt(&root, now()).unwrap().unwrap();
    std::fs::remove_file(root.join("state.yaml")).unwrap();
    pipe(&root.join("state.yaml"));
    let dir = StateDir::open(&root).unwrap();
    let store = Store::open(&dir, "test", now()).unwrap().store;
    store.write(|tx| tx.mark_view_due(&PublishedView::State)).unwrap();
    let report = store.publish_views(now()).unwrap();
    assert!(report.failed.iter().any(|failure| failure.path == "state.yaml"), "{report:?}");
    drop(store);
    doctor::examine(&root, None, now());
}

#[test]
fn a_rebuild_that_was_never_begun_here_is_not_completed_by_adoption() {
    let (_temp, root) = herdctl();
    let other = Place::new();
    let database = other.store().dir().database();
    std::fs::copy(database, root.join("heeler.db.rebuilt")).unwrap();
    std::fs::write(root.join("rebuild.json"), "{\"version\":1,\"trash\":\"trash/x\"}").unwrap();
    let error = heeler_model::error_chain(&adopt(&root, now()).unwrap_err());
    assert!(error.contains("rebuild.json") && error.contains("remove it"), "{error}");
    assert!(!root.join("heeler.db").exists());
    // The old database in the trash shows that one was.
    std::fs::create_dir_all(root.join("trash/x")).unwrap();
    std::fs::write(root.join("trash/x/heeler.db"), "").unwrap();
    assert!(adopt(&root, now()).unwrap().is_none());
    assert!(root.join("heeler.db").exists());
}

#[test]
fn a_context_that_links_elsewhere_is_not_adopted_as_a_log() {
    let (_temp, root) = herdctl();
    let outside = OutsideFolder::new();
    std::fs::create_dir_all(root.join("agent-sessions/projects/-p")).unwrap();
    std::fs::write(root.join("agent-sessions/projects/-p/s.jsonl"), "").unwrap();
    let links = [
        ("sess-00000001", outside.file()),
        ("sess-00000002", "../../../precious".into()),
        ("sess-00000003", "../agent-sessions/projects/-p/s.jsonl".into()),
    ];
    for (id, target) in &links {
        let json = format!(
            "{{\"id\": \"{id}\", \"agentId\": \"coder\", \"createdAt\": \"2026-11-14T08:00:00Z\"}}"
        );
        std::fs::write(root.join(format!("sessions/{id}.json")), json).unwrap();
        symlink(target, root.join(format!("sessions/{id}.context"))).unwrap();
    }
    adopt(&root, now()).unwrap().unwrap();
    let reader = StoreReader::open(&StateDir::open(&root).unwrap()).unwrap();
    let log = |id: &str| reader.session(&id.parse().unwrap()).unwrap().unwrap().log_path;
    assert_eq!(log("sess-00000001"), None);
    assert_eq!(log("sess-00000002"), None);
    let inside = Utf8PathBuf::from("agent-sessions/projects/-p/s.jsonl");
    assert_eq!(log("sess-00000003"), Some(inside));
}
