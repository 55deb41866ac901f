//! Limits have effects, and the effects are said.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use heeler_workspace::{Snapshot, SnapshotLimits, SnapshotOmission};

use crate::scene::{Item, Scene, as_anybody, items, name, names, now};

fn take_within(scene: &Scene, limits: SnapshotLimits) -> Snapshot {
    let snapshots = scene.open().with_limits(limits);
    snapshots.take(&scene.tree(), &name("1"), "", now()).unwrap()
}

#[test]
fn a_file_that_is_too_large_is_left_out_and_said() {
    let scene = Scene::new();
    scene.write("large", vec![b'x'; 101]);
    scene.write("fits", vec![b'x'; 100]);
    let limits = SnapshotLimits { file_bytes_max: 100, ..SnapshotLimits::default() };
    let snapshot = take_within(&scene, limits);
    let examples = vec!["large".to_owned()];
    assert_eq!(snapshot.omissions, [SnapshotOmission::TooLarge { count: 1, bytes: 101, examples }]);
    assert_eq!(names(&scene.restored(&snapshot)), ["README", "fits"]);
}

#[test]
fn a_large_tracked_file_is_recorded_while_git_has_it_and_else_as_it_was_staged() {
    let scene = Scene::new();
    scene.write("large", vec![b'x'; 1000]);
    scene.git(&["add", "-A"]);
    scene.git(&["commit", "-qm", "large"]);
    let limits = SnapshotLimits { file_bytes_max: 100, ..SnapshotLimits::default() };
    assert_eq!(take_within(&scene, limits).omissions, []);
    scene.write("large", vec![b'y'; 1001]);
    let snapshot = take_within(&scene, limits);
    assert!(matches!(
        snapshot.omissions[..],
        [SnapshotOmission::TooLarge { count: 1, bytes: 1001, .. }]
    ));
    let restored = scene.restored(&snapshot);
    assert_eq!(restored[&b"large"[..]], Item::File(vec![b'x'; 1000], false));
}

#[test]
fn a_large_file_of_git_lfs_is_recorded_as_its_pointer() {
    let scene = Scene::new();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1000\n";
    scene.write("model.bin", pointer);
    scene.git(&["add", "-A"]);
    scene.git(&["commit", "-qm", "pointer"]);
    scene.write("model.bin", vec![b'y'; 1000]);
    let snapshot =
        take_within(&scene, SnapshotLimits { file_bytes_max: 100, ..SnapshotLimits::default() });
    let examples = vec!["model.bin".to_owned()];
    assert_eq!(snapshot.omissions, [SnapshotOmission::Lfs { count: 1, examples }]);
    let restored = scene.restored(&snapshot);
    assert_eq!(restored[&b"model.bin"[..]], Item::File(pointer.into(), false));
}

#[test]
fn so_many_untracked_files_and_no_more() {
    let scene = Scene::new();
    (0..20).for_each(|number| scene.write(&format!("new/{number:02}"), "12345"));
    let limits = SnapshotLimits { untracked_files_max: 7, ..SnapshotLimits::default() };
    let snapshot = take_within(&scene, limits);
    assert!(matches!(
        snapshot.omissions[..],
        [SnapshotOmission::TooLarge { count: 13, bytes: 65, .. }]
    ));
    assert_eq!(scene.restored(&snapshot).len(), 8);
    let limits = SnapshotLimits { untracked_bytes_max: 52, ..SnapshotLimits::default() };
    let snapshot = take_within(&scene, limits);
    assert!(matches!(
        snapshot.omissions[..],
        [SnapshotOmission::TooLarge { count: 10, bytes: 50, .. }]
    ));
    assert_eq!(scene.restored(&snapshot).len(), 11);
}

#[test]
fn a_file_that_may_not_be_read_is_said_and_does_not_stop_the_rest() {
    let scene = Scene::new();
    scene.write("closed", "1");
    scene.write("open", "2");
    fs::set_permissions(scene.repo.join("closed"), fs::Permissions::from_mode(0o0)).unwrap();
    let snapshot = as_anybody(|| scene.take("1"));
    let examples = vec!["closed".to_owned()];
    assert_eq!(snapshot.omissions, [SnapshotOmission::Unreadable { count: 1, examples }]);
    assert!(scene.restored(&snapshot).contains_key(&b"open"[..]));
}

#[test]
fn a_folder_that_may_not_be_entered_keeps_what_was_staged_of_it() {
    let scene = Scene::new();
    scene.write("closed/a", "1");
    scene.git(&["add", "-A"]);
    scene.git(&["commit", "-qm", "second"]);
    let folder = scene.repo.join("closed");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o0)).unwrap();
    let snapshot = as_anybody(|| scene.take("1"));
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    let examples = vec!["closed".to_owned()];
    assert_eq!(snapshot.omissions, [SnapshotOmission::Unreadable { count: 1, examples }]);
    assert_eq!(scene.restored(&snapshot), items(&scene.repo));
}

#[test]
fn what_was_left_out_reads_as_a_sentence() {
    let examples = vec!["a".to_owned(), "b".to_owned()];
    let ignored = SnapshotOmission::Ignored { count: 3, examples };
    assert_eq!(ignored.to_string(), "3 ignored: a, b, …");
    let nested = SnapshotOmission::NestedRepository { path: "vendor/x".to_owned() };
    assert_eq!(nested.to_string(), "vendor/x is a repository of its own and is not recorded");
}
