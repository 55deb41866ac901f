//! Adoption of a `.herdctl/` in place.

use std::time::Duration;

use camino::Utf8Path;
use heeler_import::{AdoptError, ImportItemKind, adopt};
use heeler_store::{StateDir, Store, StoreReader, is_adoptable};
use heeler_transcript::{LockFile, LockHolder};

use super::{Place, fingerprint, mode, now, tally};

fn open(root: &Utf8Path) -> Store {
    Store::open(&StateDir::open(root).unwrap(), "test", now()).unwrap().store
}

#[test]
fn a_herdctl_directory_becomes_ours_and_keeps_what_will_be_rewritten() {
    let place = Place::new();
    let root = place.fixture("herdctl", "site/.herdctl");
    let original = |file: &str| {
        let fixtures = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/herdctl");
        std::fs::read(fixtures.join(file)).unwrap()
    };
    assert!(is_adoptable(&root));
    let adoption = adopt(&root, now()).unwrap().unwrap();
    assert_eq!(adoption.report.counts_for(ImportItemKind::Job), tally(6, 5, 0, 1));
    assert_eq!((adoption.interrupted, adoption.report.refused.len()), (2, 3));
    assert!(!is_adoptable(&root));
    assert!(adopt(&root, now()).unwrap().is_none(), "it is adopted once");

    let store = open(&root);
    for file in [
        "state.yaml",
        "jobs/job-2026-11-14-stuck1.yaml",
        "jobs/job-2026-11-11-pend01.yaml",
        "sessions/coder.json",
        "sessions/sess-a1b2c3d4.json",
    ] {
        let kept = root.join(".before-heeler").join(file);
        assert_eq!(std::fs::read(&kept).unwrap(), original(file), "{file}");
        assert_eq!(mode(&kept), 0o600);
    }
    for file in [
        "jobs/job-2026-11-14-k3x9ab.yaml",
        "jobs/job-2026-11-14-k3x9ab.jsonl",
        "jobs/job-2026-11-14-stuck1.jsonl",
        "jobs/job-2026-11-12-broken.yaml",
        "sessions/coder.json",
        "sessions/sess-a1b2c3d4.context",
        "discord-sessions/support.yaml",
    ] {
        assert_eq!(std::fs::read(root.join(file)).unwrap(), original(file), "{file} is as it was");
        assert_eq!(mode(&root.join(file)), 0o600, "{file}");
    }
    assert_eq!(mode(&root), 0o700);
    let stuck = std::fs::read_to_string(root.join("jobs/job-2026-11-14-stuck1.yaml")).unwrap();
    assert!(stuck.contains("status: failed") && stuck.contains("reviewer: ann"), "{stuck}");
    let state = std::fs::read_to_string(root.join("state.yaml")).unwrap();
    assert!(state.contains("session_wakes") && !state.contains("running"), "{state}");
    drop(store);
    assert_eq!(
        StoreReader::open(&StateDir::open(&root).unwrap()).unwrap().running_jobs().unwrap(),
        []
    );
}

#[test]
fn deleting_an_adopted_agents_session_file_lets_the_session_go() {
    let place = Place::new();
    let root = place.fixture("herdctl", "site/.herdctl");
    adopt(&root, now()).unwrap().unwrap();
    drop(open(&root));
    std::fs::remove_file(root.join("sessions/coder.json")).unwrap();
    let opened = Store::open(&StateDir::open(&root).unwrap(), "test", now()).unwrap();
    assert_eq!(opened.hand_edits.detached, ["coder"]);
}

#[test]
fn nothing_is_touched_while_herdctl_runs() {
    let place = Place::new();
    let root = place.fixture("herdctl", "site/.herdctl");
    let mut herdctl = place.living_herdctl(&root);
    let before = fingerprint(&root);
    let outcome = adopt(&root, now());
    let after = fingerprint(&root);
    herdctl.kill().unwrap();
    herdctl.wait().unwrap();
    let error = outcome.unwrap_err();
    assert!(
        matches!(error, AdoptError::HerdctlRunning { pid, .. } if pid == herdctl.id()),
        "{error}"
    );
    assert!(error.to_string().contains("herdctl stop"));
    assert_eq!(after, before);
    assert!(adopt(&root, now()).unwrap().is_some(), "its pid file is stale now");
}

#[test]
fn a_held_lock_refuses_the_adoption_and_names_the_holder() {
    let place = Place::new();
    let root = place.fixture("herdctl", "site/.herdctl");
    let holder = LockHolder::this_process("adopt", now());
    let _held = LockFile::acquire(&root.join("heeler.lock"), &holder, Duration::ZERO).unwrap();
    let error = adopt(&root, now()).unwrap_err();
    assert!(matches!(error, AdoptError::Locked { .. }), "{error}");
    assert!(is_adoptable(&root));
}

#[test]
fn a_directory_without_herdctl_state_is_not_adoptable() {
    let place = Place::new();
    let dir = StateDir::create(&place.path(".heeler")).unwrap();
    assert!(!is_adoptable(dir.root()));
    assert!(!is_adoptable(&place.path("none")));
}
