//! Worktrees of snapshots: whole, of our repository, and never removed with unsaved work.

use std::fs;

use heeler_workspace::{SnapshotError, UnrecordedPolicy, WorkTree};

use crate::scene::{Scene, as_anybody, git, items, name, now};

#[test]
fn a_fork_of_a_fork_belongs_to_the_same_repository() {
    let scene = Scene::new();
    let fork = scene.fork(&scene.take("1"));
    fs::write(fork.top.join("in-fork"), "1").unwrap();
    git(&fork.top, &["add", "-A"]);
    git(&fork.top, &["commit", "-qm", "in the fork"]);
    fs::write(fork.top.join("unsaved"), "2").unwrap();
    let snapshots = heeler_workspace::SnapshotStore::open(&scene.dir, &fork).unwrap();
    assert_eq!(snapshots.key(), scene.open().key());
    let snapshot = snapshots.take(&fork, &name("2"), "", now()).unwrap();
    let second = scene.fork(&snapshot);
    assert_eq!(items(&second.top), items(&fork.top));
    assert_eq!(git(&second.top, &["log", "--oneline"]).lines().count(), 2);
    let mut wanted = vec![fork.top.clone(), second.top];
    wanted.sort();
    assert_eq!(snapshots.worktrees().unwrap(), wanted);
    // And its work comes back by an ordinary fetch.
    scene.git(&["fetch", "-q", fork.top.as_str(), "HEAD"]);
    assert_eq!(scene.git(&["log", "-1", "--format=%s", "FETCH_HEAD"]), "in the fork");
}

#[test]
fn a_removed_worktree_is_recorded_first() {
    let scene = Scene::new();
    let fork = scene.fork(&scene.take("1"));
    fs::write(fork.top.join("unsaved"), "1").unwrap();
    let before = items(&fork.top);
    let snapshots = scene.open();
    let last =
        snapshots.remove_worktree(&fork.top, &name("last"), UnrecordedPolicy::Keep, now()).unwrap();
    assert!(!fork.top.exists());
    assert!(snapshots.worktrees().unwrap().is_empty());
    assert_eq!(snapshots.find(&name("last")).unwrap(), Some(last.clone()));
    assert_eq!(scene.restored(&last), before);
    // The same place can be used again.
    assert_eq!(items(&snapshots.add_worktree(&last.commit, &fork.top).unwrap().top), before);
}

#[test]
fn a_worktree_with_folders_that_may_not_be_changed_is_removed_all_the_same() {
    use std::os::unix::fs::PermissionsExt as _;
    let scene = Scene::new();
    scene.write(".gitignore", "cache/\n");
    let fork = scene.fork(&scene.take("1"));
    let cache = fork.top.join("cache/module");
    fs::create_dir_all(&cache).unwrap();
    fs::write(cache.join("file"), "1").unwrap();
    for folder in [&cache, &fork.top.join("cache")] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o555)).unwrap();
    }
    as_anybody(|| {
        scene
            .open()
            .remove_worktree(&fork.top, &name("last"), UnrecordedPolicy::Keep, now())
            .unwrap()
    });
    assert!(!fork.top.exists());
}

#[test]
fn a_worktree_with_what_no_snapshot_holds_stays_unless_told() {
    let scene = Scene::new();
    let fork = scene.fork(&scene.take("1"));
    git(&fork.top, &["init", "-q", "nested"]);
    fs::write(fork.top.join("nested/work"), "1").unwrap();
    let snapshots = scene.open();
    let remove = |what| snapshots.remove_worktree(&fork.top, &name("last"), what, now());
    let kept = remove(UnrecordedPolicy::Keep).unwrap_err();
    assert!(matches!(kept, SnapshotError::WouldLose { .. }), "{kept}");
    assert!(fork.top.join("nested/work").exists());
    remove(UnrecordedPolicy::Discard).unwrap();
    assert!(!fork.top.exists());
}

#[test]
fn what_an_agent_writes_into_its_worktree_names_no_other_folder_to_be_removed() {
    let scene = Scene::new();
    let fork = scene.fork(&scene.take("1"));
    let told = fs::read_to_string(fork.top.join(".git")).unwrap();
    let admin = told.trim_end().strip_prefix("gitdir: ").unwrap().to_owned();
    let folders = admin.rsplit_once('/').unwrap().0;
    let other = format!("{folders}/other");
    fs::create_dir(&other).unwrap();
    fs::write(format!("{other}/gitdir"), "/elsewhere/.git\n").unwrap();
    for named in [format!("{folders}/.."), format!("{folders}/."), other.clone()] {
        fs::write(fork.top.join(".git"), format!("gitdir: {named}\n")).unwrap();
        let removed =
            scene.open().remove_worktree(&fork.top, &name("x"), UnrecordedPolicy::Discard, now());
        assert!(removed.is_err(), "{named}");
        assert!(fs::exists(&other).unwrap() && fs::exists(&admin).unwrap(), "{named}");
    }
}

#[test]
fn nothing_but_a_worktree_of_ours_is_removed_and_no_place_is_taken_twice() {
    let scene = Scene::new();
    let snapshot = scene.take("1");
    let snapshots = scene.open();
    let not_ours =
        snapshots.remove_worktree(&scene.repo, &name("x"), UnrecordedPolicy::Discard, now());
    assert!(matches!(not_ours, Err(SnapshotError::NotAWorktree { .. })));
    assert!(scene.repo.exists());
    let taken = snapshots.add_worktree(&snapshot.commit, &scene.repo).unwrap_err();
    assert!(matches!(taken, SnapshotError::Taken { .. }), "{taken}");
    let head = snapshot.base.unwrap();
    let other = snapshots.add_worktree(&head, &scene.root.join("fork")).unwrap_err();
    assert!(matches!(other, SnapshotError::NotASnapshot { .. }), "{other}");
}

#[test]
fn git_housekeeping_in_a_worktree_harms_no_snapshot() {
    let scene = Scene::new();
    scene.write("only-here", "1");
    let snapshot = scene.take("1");
    let wanted = items(&scene.repo);
    let fork = scene.fork(&snapshot);
    for chore in [
        &["gc", "-q", "--prune=now"][..],
        &["worktree", "prune"],
        &["pack-refs", "--all"],
        &["status"],
    ] {
        let output = crate::scene::git_command(&fork.top).args(chore).output().unwrap();
        drop(output);
    }
    assert_eq!(scene.restored(&snapshot), wanted);
    assert_eq!(scene.open().worktrees().unwrap().len(), 2);
}

#[test]
fn a_status_in_a_new_worktree_reads_no_file_again() {
    let scene = Scene::new();
    let fork = scene.fork(&scene.take("1"));
    // The index knows the files by their times; a file of the same size and times is not opened.
    let index = git(&fork.top, &["ls-files", "--debug"]);
    assert!(!index.contains("mtime: 0:0"), "{index}");
    assert_eq!(WorkTree::find(&fork.top).unwrap().unwrap(), fork);
}
