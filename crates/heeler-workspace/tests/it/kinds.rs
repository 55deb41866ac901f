//! Repositories of every kind: SHA-256, linked, shallow, borrowing, without a commit, with others inside.

use std::fs;

use heeler_workspace::{SnapshotOmission, SnapshotStore, WorkTree, WorkTreeFindError};

use crate::scene::{Scene, git, git_command, items, name, names, now};

#[test]
fn a_repository_without_a_commit() {
    let scene = Scene::empty(&[]);
    let nothing = scene.take("0");
    assert_eq!((nothing.base.as_ref(), nothing.branch.as_deref()), (None, Some("main")));
    assert!(scene.restored(&nothing).is_empty());
    scene.write("a", "1");
    scene.write("b", "2");
    scene.git(&["add", "a"]);
    let fork = scene.fork(&scene.take("1"));
    assert_eq!(items(&fork.top), items(&scene.repo));
    assert_eq!(git(&fork.top, &["status", "--porcelain"]), scene.git(&["status", "--porcelain"]));
}

#[test]
fn a_repository_that_uses_sha_256() {
    let scene = Scene::empty(&["--object-format=sha256"]);
    scene.write("a", "1");
    scene.git(&["add", "a"]);
    scene.git(&["commit", "-qm", "1"]);
    scene.write("b", "2");
    let snapshot = scene.take("1");
    assert_eq!(snapshot.commit.as_str().len(), 64);
    let fork = scene.fork(&snapshot);
    assert_eq!(items(&fork.top), items(&scene.repo));
    assert_eq!(git(&fork.top, &["status", "--porcelain"]), "?? b");
    let mut file = Vec::new();
    scene.open().export(&[(name("s/1"), snapshot.commit)], &mut file).unwrap();
    let other = scene.root.join("other");
    heeler_workspace::SnapshotStore::import(&other, "there", &name("s"), &mut &file[..]).unwrap();
}

#[test]
fn a_linked_worktree_of_the_users() {
    let scene = Scene::new();
    scene.git(&["worktree", "add", "-q", "-b", "side", "../linked"]);
    let linked = scene.root.join("linked");
    fs::write(linked.join("new"), "1").unwrap();
    let tree = WorkTree::find(&linked).unwrap().unwrap();
    assert_eq!(tree.common_dir, scene.tree().common_dir);
    let snapshot = scene.open().take(&tree, &name("1"), "", now()).unwrap();
    assert_eq!(snapshot.branch.as_deref(), Some("side"));
    assert_eq!(scene.restored(&snapshot), items(&linked));
    assert_eq!(names(&scene.restored(&scene.take("main"))), ["README"]);
}

#[test]
fn a_shallow_clone() {
    let scene = Scene::new();
    scene.write("a", "1");
    scene.git(&["add", "-A"]);
    scene.git(&["commit", "-qm", "second"]);
    let url = format!("file://{}", scene.repo);
    git(&scene.root, &["clone", "-q", "--depth=1", &url, "shallow"]);
    let clone = scene.root.join("shallow");
    fs::write(clone.join("new"), "1").unwrap();
    let tree = WorkTree::find(&clone).unwrap().unwrap();
    let snapshots = heeler_workspace::SnapshotStore::open(&scene.dir, &tree).unwrap();
    let snapshot = snapshots.take(&tree, &name("1"), "", now()).unwrap();
    let fork = snapshots.add_worktree(&snapshot.commit, &scene.root.join("fork")).unwrap();
    assert_eq!(items(&fork.top), items(&clone));
    assert_eq!(git(&fork.top, &["log", "--oneline"]).lines().count(), 1);
    snapshots.prune(now()).unwrap();
    let export = |from: &SnapshotStore| {
        let mut out = Vec::new();
        from.export(&[(name("s/1"), snapshot.commit.clone())], &mut out).map(|()| out).unwrap()
    };
    let file = export(&snapshots);
    let elsewhere = scene.root.join("elsewhere");
    let import = |dir: &camino::Utf8Path, key: &str| {
        SnapshotStore::import(dir, key, &name("s"), &mut &file[..]).unwrap().0
    };
    let there = import(&elsewhere, "k");
    assert!(export(&there) == file);
    // Where the whole history is, none of it is cut off.
    let whole = scene.take("whole");
    let full = import(&scene.dir, scene.open().key());
    let at = full.add_worktree(&whole.commit, &scene.root.join("full")).unwrap().top;
    assert_eq!(git(&at, &["log", "--oneline"]).lines().count(), 2);
    let fork = there.add_worktree(&snapshot.commit, &scene.root.join("fork2")).unwrap();
    assert_eq!(git(&fork.top, &["log", "--oneline"]).lines().count(), 1);
}

#[test]
fn a_repository_that_borrows_its_objects_and_is_deleted_afterwards() {
    let scene = Scene::new();
    scene.write("a", "1");
    scene.git(&["add", "-A"]);
    scene.git(&["commit", "-qm", "second"]);
    scene.git(&["repack", "-adq"]);
    git(&scene.root, &["clone", "-q", "--shared", "repo", "one"]);
    git(&scene.root, &["clone", "-q", "--shared", "one", "two"]);
    let clone = scene.root.join("two");
    fs::write(clone.join("new"), "1").unwrap();
    let tree = WorkTree::find(&clone).unwrap().unwrap();
    let snapshots = heeler_workspace::SnapshotStore::open(&scene.dir, &tree).unwrap();
    let snapshot = snapshots.take(&tree, &name("1"), "", now()).unwrap();
    let wanted = items(&clone);
    for folder in ["repo", "one", "two"] {
        fs::remove_dir_all(scene.root.join(folder)).unwrap();
    }
    let fork = snapshots.add_worktree(&snapshot.commit, &scene.root.join("fork")).unwrap();
    assert_eq!(items(&fork.top), wanted);
    assert_eq!(git(&fork.top, &["log", "--oneline"]).lines().count(), 2);
    git(&fork.top, &["fsck"]);
}

#[test]
fn submodules_nested_repositories_and_empty_folders_are_said_and_not_entered() {
    let scene = Scene::new();
    git(&scene.root, &["clone", "-q", "repo", "library"]);
    scene.git(&[
        "-c",
        "protocol.file.allow=always",
        "submodule",
        "--quiet",
        "add",
        "../library",
        "sub",
    ]);
    scene.git(&["commit", "-qm", "submodule"]);
    git(&scene.repo, &["clone", "-q", "../library", "vendor/nested"]);
    git(&scene.repo, &["init", "-q", "unborn"]);
    scene.write("unborn/file", "1");
    fs::create_dir_all(scene.repo.join("void/deeper")).unwrap();
    scene.write("sub/changed", "inside the submodule");
    let snapshot = scene.take("1");
    let nested = |path: &str| SnapshotOmission::NestedRepository { path: path.to_owned() };
    for wanted in [
        nested("vendor/nested"),
        nested("unborn"),
        SnapshotOmission::Submodule { path: "sub".to_owned() },
        SnapshotOmission::EmptyFolder { count: 1, examples: vec!["void/deeper".to_owned()] },
    ] {
        assert!(snapshot.omissions.contains(&wanted), "{wanted:?} in {:?}", snapshot.omissions);
    }
    let fork = scene.fork(&snapshot);
    assert_eq!(names(&items(&fork.top)), [".gitmodules", "README"]);
    assert_eq!(git(&fork.top, &["status", "--porcelain"]), "");
}

#[test]
fn a_merge_in_conflict_is_recorded_as_it_is_on_disk() {
    let scene = Scene::new();
    scene.git(&["checkout", "-q", "-b", "other"]);
    scene.write("README", "theirs\n");
    scene.git(&["commit", "-qam", "theirs"]);
    scene.git(&["checkout", "-q", "main"]);
    scene.write("README", "ours\n");
    scene.git(&["commit", "-qam", "ours"]);
    assert!(
        !git_command(&scene.repo).args(["merge", "-q", "other"]).output().unwrap().status.success()
    );
    let snapshot = scene.take("1");
    assert!(matches!(snapshot.omissions[..], [SnapshotOmission::Conflict { count: 1, .. }]));
    assert_eq!(scene.restored(&snapshot), items(&scene.repo));
    let again = scene.take("2");
    assert_eq!(scene.restored(&again), items(&scene.repo));
}

#[test]
fn indexes_that_are_split_sparse_or_of_another_version() {
    for settings in [
        &["update-index", "--split-index"][..],
        &["update-index", "--index-version", "4"],
        &["update-index", "--assume-unchanged", "dir/a"],
        &["update-index", "--skip-worktree", "dir/a"],
        &["update-index", "--untracked-cache"],
    ] {
        let scene = Scene::new();
        scene.write("dir/a", "1");
        scene.write("dir/b", "2");
        scene.git(&["add", "-A"]);
        scene.git(&["commit", "-qm", "second"]);
        scene.git(settings);
        scene.git(&["status"]);
        scene.write("dir/a", "changed");
        scene.write("new", "3");
        assert_eq!(scene.restored(&scene.take("1")), items(&scene.repo), "{settings:?}");
    }
    let scene = Scene::new();
    scene.write("in/a", "1");
    scene.write("out/b", "2");
    scene.git(&["add", "-A"]);
    scene.git(&["commit", "-qm", "second"]);
    scene.git(&["sparse-checkout", "set", "--cone", "--sparse-index", "in"]);
    assert!(!scene.repo.join("out").exists());
    let snapshot = scene.take("1");
    assert_eq!(scene.restored(&snapshot), items(&scene.repo));
    assert!(matches!(snapshot.omissions[..], [SnapshotOmission::NotCheckedOut { count: 1, .. }]));
}

#[test]
fn a_tracked_file_that_is_ignored_is_recorded_and_an_untracked_one_no_longer() {
    let scene = Scene::new();
    scene.write("forced", "1");
    scene.write("loose", "2");
    assert_eq!(names(&scene.restored(&scene.take("1"))), ["README", "forced", "loose"]);
    scene.write(".gitignore", "forced\nloose\n");
    scene.git(&["add", "-f", "forced"]);
    assert_eq!(names(&scene.restored(&scene.take("2"))), [".gitignore", "README", "forced"]);
    fs::write(scene.repo.join(".git/info/exclude"), "README\nextra\n").unwrap();
    scene.write("extra", "3");
    assert_eq!(names(&scene.restored(&scene.take("3"))), [".gitignore", "README", "forced"]);
}

#[test]
fn a_folder_in_no_repository_a_bare_one_and_a_broken_one() {
    let scene = Scene::new();
    assert_eq!(WorkTree::find(&scene.root).unwrap(), None);
    git(&scene.root, &["init", "-q", "--bare", "bare"]);
    let bare = WorkTree::find(&scene.root.join("bare")).unwrap_err();
    assert!(matches!(bare, WorkTreeFindError::Bare { .. }), "{bare}");
    fs::create_dir(scene.root.join("broken")).unwrap();
    for text in ["gitdir: /nowhere/at/all", "nonsense", ""] {
        fs::write(scene.root.join("broken/.git"), text).unwrap();
        let broken = WorkTree::find(&scene.root.join("broken")).unwrap_err();
        assert!(matches!(broken, WorkTreeFindError::Broken { .. }), "{broken}");
    }
}

#[test]
fn refs_are_found_loose_packed_and_detached() {
    let scene = Scene::new();
    let head = scene.git(&["rev-parse", "HEAD"]);
    scene.git(&["pack-refs", "--all"]);
    assert_eq!(scene.take("packed").base.unwrap().as_str(), head);
    scene.git(&["checkout", "-q", "--detach"]);
    let detached = scene.take("detached");
    assert_eq!((detached.base.unwrap().as_str(), detached.branch), (head.as_str(), None));
}

#[test]
fn a_partial_clone_is_recorded_and_pruned_without_what_it_lacks() {
    let scene = Scene::new();
    scene.write("old", "in the first commit only");
    scene.git(&["add", "-A"]);
    scene.git(&["commit", "-qm", "old"]);
    scene.git(&["rm", "-q", "old"]);
    scene.git(&["commit", "-qm", "gone"]);
    scene.git(&["config", "uploadpack.allowFilter", "true"]);
    let (url, clone) = (format!("file://{}", scene.repo), scene.root.join("clone"));
    git(&scene.root, &["clone", "-q", "--filter=blob:none", &url, clone.as_str()]);
    let tree = WorkTree::find(&clone).unwrap().unwrap();
    let snapshots = SnapshotStore::open(&scene.dir, &tree).unwrap();
    for text in ["1", "2"] {
        fs::write(clone.join("new"), text).unwrap();
        let taken = snapshots.take(&tree, &name(text), "a note", now()).unwrap();
        let stored: jiff::Timestamp = std::time::SystemTime::now().try_into().unwrap();
        snapshots.prune(stored + jiff::SignedDuration::from_hours(48)).unwrap();
        let at = scene.root.join(format!("fork-{text}"));
        let fork = snapshots.add_worktree(&taken.commit, &at).unwrap();
        assert_eq!(items(&fork.top), items(&clone));
    }
}

#[test]
fn a_repository_with_a_reftable_is_refused_and_says_what_to_do() {
    let scene = Scene::new();
    // As git writes it where refs are a reftable, also where this git does not know them.
    scene.write(".git/HEAD", "ref: refs/heads/.invalid\n");
    let error = scene.open().take(&scene.tree(), &name("1"), "a note", now()).unwrap_err();
    assert!(error.to_string().contains("git refs migrate --ref-format=files"), "{error}");
}
