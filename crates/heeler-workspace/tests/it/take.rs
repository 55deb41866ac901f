//! What a snapshot holds, what it says of the rest, and what it leaves alone.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use camino::Utf8Path;
use heeler_workspace::{
    DiffTarget, SnapshotError, SnapshotName, SnapshotOmission, SnapshotStore, WorkTree,
};
use jiff::SignedDuration;

use crate::scene::{Item, Scene, git, items, listing, name, names, now, odd};

#[test]
fn tracked_and_untracked_files_are_recorded_and_ignored_ones_are_said() {
    let scene = Scene::new();
    scene.write(".gitignore", "*.log\n/build/\n");
    scene.write("src/main.rs", "fn main() {}\n");
    scene.write("a.log", "noise");
    scene.write("build/out", "made");
    scene.write("README", "changed\n");
    let snapshot = scene.take("s/1");
    assert_eq!(names(&scene.restored(&snapshot)), [".gitignore", "README", "src/main.rs"]);
    let examples = vec!["a.log".to_owned(), "build".to_owned()];
    let SnapshotOmission::Ignored { count: 2, examples: mut said } = snapshot.omissions[0].clone()
    else {
        panic!("{:?}", snapshot.omissions)
    };
    said.sort();
    assert_eq!(said, examples);
    assert_eq!(snapshot.branch.as_deref(), Some("main"));
    assert_eq!(snapshot.base.unwrap().as_str(), scene.git(&["rev-parse", "HEAD"]));
}

#[test]
fn the_whole_tree_is_recorded_from_a_folder_inside_it() {
    let scene = Scene::new();
    scene.write("deep/er/file", "1");
    let tree = WorkTree::find(&scene.repo.join("deep/er")).unwrap().unwrap();
    assert_eq!(tree, scene.tree());
    let snapshot = scene.open().take(&tree, &name("a"), "", now()).unwrap();
    assert_eq!(names(&scene.restored(&snapshot)), ["README", "deep/er/file"]);
}

#[test]
fn bytes_modes_links_and_names_come_back_as_they_were() {
    let scene = Scene::empty(&[]);
    scene.write(
        ".gitattributes",
        "* text=auto eol=crlf ident\n*.bin -text\n*.u working-tree-encoding=UTF-16\n",
    );
    scene.write("crlf.txt", "a\r\nb\r\n$Id$\r\n");
    scene.write("lf.txt", "a\nb\n$Id: 1 $\n");
    scene.write("mixed.txt", "a\nb\r\n");
    scene.write("x.bin", [0, 13, 10, 255]);
    scene.write("wide.u", "not utf-16");
    scene.write("pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n");
    scene.write("run.sh", "#!/bin/sh\n");
    scene.write("empty", "");
    fs::set_permissions(scene.repo.join("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    for odd_name in
        [&b"new\nline"[..], b"quo\"te\\", b"\xff\xfe", b"-dash", b" space ", b"tab\t", b"*"]
    {
        fs::write(scene.repo.as_std_path().join(odd(odd_name)), odd_name).unwrap();
    }
    symlink("README", scene.repo.join("link")).unwrap();
    symlink("/nowhere", scene.repo.join("dangling")).unwrap();
    symlink(".", scene.repo.join("folder-link")).unwrap();
    let before = items(&scene.repo);
    assert_eq!(before.len(), 19);
    assert_eq!(scene.restored(&scene.take("untracked")), before);
    scene.git(&["-c", "core.autocrlf=true", "-c", "core.safecrlf=false", "add", "-A", ":!wide.u"]);
    scene.git(&["commit", "-qm", "all"]);
    assert_eq!(scene.restored(&scene.take("tracked")), before);
}

#[test]
fn a_repository_that_converts_line_ends_is_recorded_as_it_is_on_disk() {
    let scene = Scene::empty(&[]);
    scene.git(&["config", "core.autocrlf", "true"]);
    scene.git(&["config", "filter.up.clean", "tr a-z A-Z"]);
    scene.git(&["config", "filter.up.smudge", "tr A-Z a-z"]);
    scene.write(".gitattributes", "*.up filter=up\n");
    scene.write("a.txt", "one\r\ntwo\r\n");
    scene.write("b.up", "lower\n");
    scene.git(&["add", "-A"]);
    scene.git(&["commit", "-qm", "converted"]);
    // The user's index calls both clean, though its blobs are not the bytes on disk.
    assert_eq!(scene.git(&["status", "--porcelain"]), "");
    assert_eq!(scene.restored(&scene.take("1")), items(&scene.repo));
    let fork = scene.fork(&scene.take("2"));
    assert_eq!(fs::read(fork.top.join("b.up")).unwrap(), b"lower\n");
    assert_eq!(fs::read(fork.top.join("a.txt")).unwrap(), b"one\r\ntwo\r\n");
}

#[test]
fn nothing_in_the_users_repository_changes() {
    let scene = Scene::new();
    scene.write("staged", "1");
    scene.git(&["add", "staged"]);
    scene.write("new", "2");
    let before = listing(&scene.repo);
    let snapshot = scene.take("s/1");
    scene.fork(&snapshot);
    scene.write("new", "2");
    let diff = scene.open().diff(&snapshot.commit, DiffTarget::Now(&scene.tree()), now()).unwrap();
    assert_eq!(diff.summary, "");
    scene.open().forget(&[name("s/1")]).unwrap();
    scene.open().prune(now()).unwrap();
    let mut after = listing(&scene.repo);
    let rewritten = scene.repo.join("new");
    after.insert(rewritten.to_string(), before[rewritten.as_str()].clone());
    let changed: Vec<_> =
        before.iter().filter(|(path, was)| after.get(*path) != Some(was)).collect();
    assert!(changed.is_empty() && before.len() == after.len(), "{changed:?}");
    // So there is nothing that `git push --mirror` could take along.
    assert_eq!(scene.git(&["for-each-ref", "--format=%(refname)"]), "refs/heads/main");
}

#[test]
fn what_was_staged_and_where_head_was_shows_in_the_worktree() {
    let scene = Scene::new();
    scene.write("kept", "1\n");
    scene.git(&["add", "kept"]);
    scene.git(&["commit", "-qm", "second"]);
    scene.write("kept", "2\n");
    scene.git(&["add", "kept"]);
    scene.write("kept", "3\n");
    scene.write("added", "4\n");
    scene.git(&["add", "added"]);
    scene.write("new", "5\n");
    fs::remove_file(scene.repo.join("README")).unwrap();
    let fork = scene.fork(&scene.take("1"));
    for look in
        [&["status", "--porcelain"][..], &["log", "--oneline"], &["diff"], &["diff", "--cached"]]
    {
        assert_eq!(git(&fork.top, look), scene.git(look), "{look:?}");
    }
    assert_eq!(git(&fork.top, &["rev-parse", "HEAD"]), scene.git(&["rev-parse", "HEAD"]));
    assert_eq!(git(&fork.top, &["branch", "--show-current"]), "");
}

#[test]
fn a_change_of_the_same_size_in_the_same_instant_is_seen() {
    let scene = Scene::new();
    let path = scene.repo.join("racy");
    let stamp = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
    for turn in 0..10_u8 {
        fs::write(&path, [b'a' + turn; 10]).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_times(stamp).unwrap();
        let snapshot = scene.take("racy");
        let restored = scene.restored(&snapshot);
        assert_eq!(restored[&b"racy"[..]], Item::File(vec![b'a' + turn; 10], false));
    }
}

#[test]
fn a_change_of_a_file_that_had_long_been_left_alone_is_seen() {
    let scene = Scene::new();
    scene.write("text", "one");
    scene.write("script", "run");
    let text = scene.repo.join("text");
    // Two seconds after a change a file is known by its times; the file system's clock says when.
    let settled = || {
        let probe = scene.root.join("probe");
        fs::write(&probe, "").unwrap();
        let changed = |path| fs::metadata(path).unwrap().modified().unwrap();
        changed(&probe).duration_since(changed(&text)).is_ok_and(|past| past.as_millis() > 2100)
    };
    while !settled() {
        std::thread::yield_now();
    }
    scene.take("1");
    scene.take("2");
    let modified = fs::metadata(&text).unwrap().modified().unwrap();
    scene.write("text", "two");
    let stamp = fs::FileTimes::new().set_modified(modified);
    fs::File::options().write(true).open(&text).unwrap().set_times(stamp).unwrap();
    let script = scene.repo.join("script");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(scene.restored(&scene.take("3")), items(&scene.repo));
}

#[test]
fn what_changed_is_shown_as_git_shows_it() {
    let scene = Scene::new();
    let first = scene.take("1");
    scene.write("README", "read it\n");
    scene.write("added", "new\n");
    let second = scene.take("2");
    let diff = scene.open().diff(&first.commit, DiffTarget::Commit(&second.commit), now()).unwrap();
    let patch = String::from_utf8(diff.patch.clone()).unwrap();
    assert!(patch.contains("-read me\n+read it\n") && patch.contains("+++ b/added"), "{patch}");
    assert!(diff.summary.contains("2 files changed"), "{}", diff.summary);
    assert!(!diff.cut);
    let now_diff = scene.open().diff(&first.commit, DiffTarget::Now(&scene.tree()), now()).unwrap();
    assert_eq!(now_diff, diff);
}

#[test]
fn snapshots_are_found_listed_and_forgotten_by_name() {
    let scene = Scene::new();
    let one = scene.take("sess/1");
    scene.write("new", "1");
    let two = scene.take("sess/2");
    let other = scene.take("other/1");
    let snapshots = scene.open();
    assert_eq!(snapshots.find(&name("sess/1")).unwrap(), Some(one.clone()));
    assert_eq!(snapshots.find(&name("sess")).unwrap(), None);
    assert_eq!(snapshots.find(&name("sess/3")).unwrap(), None);
    let listed = snapshots.list(Some(&name("sess"))).unwrap();
    let wanted = [(name("sess/1"), one.commit.clone()), (name("sess/2"), two.commit.clone())];
    assert_eq!(listed, wanted);
    assert_eq!(snapshots.list(None).unwrap().len(), 3);
    snapshots.forget(&[name("sess/1"), name("sess/9")]).unwrap();
    assert_eq!(snapshots.list(Some(&name("sess"))).unwrap(), [(name("sess/2"), two.commit)]);
    assert_eq!(SnapshotStore::keys(&scene.dir).unwrap(), [snapshots.key()]);
    let again = SnapshotStore::open_key(&scene.dir, snapshots.key()).unwrap();
    assert_eq!(again.find(&name("other/1")).unwrap(), Some(other));
    assert!(SnapshotStore::open_key(&scene.dir, "../x").is_err());
}

#[test]
fn names_that_git_or_a_file_system_would_misread_are_refused() {
    for bad in
        ["", "/", "a/", "/a", "a//b", "..", "a/../b", ".a", "a.lock", "-a", "a b", "a\n", "é"]
    {
        assert!(SnapshotName::parse(bad).is_err(), "{bad:?}");
    }
    assert!(SnapshotName::parse(&"x".repeat(201)).is_err());
    assert!(SnapshotName::parse("sess-1a2b/0195e3c4-77aa").is_ok());
}

#[test]
fn pruning_drops_what_nobody_needs_and_nothing_else() {
    let scene = Scene::new();
    scene.write("secret", "only in the forgotten one");
    let gone = scene.take("gone");
    fs::remove_file(scene.repo.join("secret")).unwrap();
    scene.write("kept", "still wanted");
    let kept = scene.take("kept");
    let fork = scene.fork(&kept);
    fs::write(fork.top.join("staged"), "in the fork's index only").unwrap();
    git(&fork.top, &["add", "staged"]);
    fs::write(fork.top.join("committed"), "in the fork's branch").unwrap();
    git(&fork.top, &["checkout", "-q", "-b", "work"]);
    git(&fork.top, &["add", "committed"]);
    git(&fork.top, &["commit", "-qm", "work"]);
    git(&fork.top, &["checkout", "-q", "--detach", "HEAD~1"]);
    scene.open().forget(&[name("gone")]).unwrap();
    let day = jiff::SignedDuration::from_hours(24);
    let stored: jiff::Timestamp = std::time::SystemTime::now().try_into().unwrap();
    // Young objects stay.
    scene.open().prune(stored).unwrap();
    assert!(scene.open().snapshot(&gone.commit).is_ok());
    scene.open().prune(stored + day + day).unwrap();
    assert!(scene.open().snapshot(&gone.commit).is_err());
    assert_eq!(scene.restored(&kept), items(&scene.repo));
    git(&fork.top, &["fsck", "--connectivity-only"]);
    assert_eq!(git(&fork.top, &["show", "work:committed"]), "in the fork's branch");
    assert_eq!(git(&fork.top, &["show", "work:staged"]), "in the fork's index only");
    // The next snapshot needs nothing that went.
    scene.write("secret", "only in the forgotten one");
    assert_eq!(scene.restored(&scene.take("again")), items(&scene.repo));
}

#[test]
fn a_repack_of_the_users_repository_does_not_double_ours_for_long() {
    let scene = Scene::new();
    scene.write("big", (0..300_000).map(|_| fastrand::u8(..)).collect::<Vec<u8>>());
    scene.git(&["add", "-A"]);
    scene.git(&["commit", "-qm", "big"]);
    scene.git(&["repack", "-adq"]);
    let first = scene.take("1");
    scene.write("more", "x");
    scene.git(&["add", "-A"]);
    scene.git(&["commit", "-qm", "more"]);
    scene.git(&["repack", "-adq"]);
    scene.take("2");
    let packs = scene.dir.join(scene.open().key()).join("repo.git/objects/pack");
    let count = || {
        let names = packs.read_dir_utf8().unwrap().map(|entry| entry.unwrap());
        names.filter(|entry| entry.file_name().ends_with(".pack")).count()
    };
    assert_eq!(count(), 4, "their two, and one for each snapshot");
    let stored: jiff::Timestamp = std::time::SystemTime::now().try_into().unwrap();
    scene.open().prune(stored + jiff::SignedDuration::from_hours(48)).unwrap();
    let bytes: u64 =
        packs.read_dir_utf8().unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!(bytes < 400_000, "{bytes} bytes in {} packs", count());
    assert!(scene.restored(&first).contains_key(&b"big"[..]));
}

#[test]
fn an_export_comes_back_equal_and_is_written_equal_again() {
    let scene = Scene::new();
    scene.write("new", "1");
    let one = scene.take("s/1");
    scene.write("README", "more\n");
    let two = scene.take("s/2");
    let names = [name("s/1"), name("s/2")];
    let both = [(names[0].clone(), one.commit.clone()), (names[1].clone(), two.commit.clone())];
    let export = |snapshots: &SnapshotStore| {
        let mut out = Vec::new();
        snapshots.export(&both, &mut out).map(|()| out)
    };
    let exported = export(&scene.open()).unwrap();
    let elsewhere = scene.root.join("elsewhere");
    let import = |key: &str, prefix: &str, bytes: &[u8]| {
        let mut bytes = bytes;
        SnapshotStore::import(&elsewhere, key, &name(prefix), &mut bytes)
    };
    let (there, found) = import("imported-1", "s", &exported).unwrap();
    assert_eq!(found, names);
    assert_eq!(there.find(&names[0]).unwrap(), Some(one));
    assert_eq!(there.find(&names[1]).unwrap(), Some(two.clone()));
    assert!(export(&there).unwrap() == exported);
    import("imported-1", "s", &exported).expect("what was cut off is done again");
    assert!(export(&there).unwrap() == exported);
    let at = scene.root.join("restored");
    assert_eq!(items(&there.add_worktree(&two.commit, &at).unwrap().top), items(&scene.repo));
    let refused = [
        import("imported-2", "s", b"no bundle"),
        import("imported-3", "s", &exported[..exported.len() / 2]),
        import("imported-1", "somebody-else", &exported),
        import("../out", "s", &exported),
    ];
    for refused in refused {
        let error = refused.map(|_| ()).unwrap_err();
        assert!(matches!(error, SnapshotError::BadExport { .. }), "{error}");
    }
    assert!(!scene.root.join("out").exists());
}

#[test]
fn all_of_it_is_private() {
    let scene = Scene::new();
    let fork = scene.fork(&scene.take("1"));
    scene.write("new/file", "1");
    scene.take("2");
    let snapshots = scene.open();
    snapshots.prune(now()).unwrap();
    let mode = |path: &Utf8Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&scene.dir), 0o700);
    assert_eq!(mode(&fork.top), 0o700);
    let root = scene.dir.join(snapshots.key());
    assert_eq!(mode(&root), 0o700);
    let found = listing(&root);
    assert!(found.len() > 20, "{found:?}");
    for path in found.keys().map(Utf8Path::new) {
        // What is linked has the user's mode: to change it would change theirs.
        let is_linked = path.is_file() && fs::metadata(path).unwrap().nlink() > 1;
        assert!(is_linked || mode(path) & 0o077 == 0, "{path}: {:o}", mode(path));
    }
}

#[test]
fn many_snapshots_are_few_packs_and_each_comes_back() {
    let scene = Scene::new();
    let packs = || {
        let packs = scene.dir.join(scene.open().key()).join("repo.git/objects/pack");
        let names = packs.read_dir_utf8().unwrap().map(|entry| entry.unwrap());
        names.filter(|entry| entry.file_name().ends_with(".pack")).count()
    };
    let mut taken = Vec::new();
    for number in 0..45 {
        scene.write("changing", format!("state {number}"));
        scene.write(&format!("new/{number}/file"), format!("{number}"));
        taken.push((scene.take(&format!("{number}")), items(&scene.repo)));
    }
    // Forty became one; five came after it.
    assert_eq!(packs(), 6);
    for (snapshot, wanted) in taken.iter().step_by(11) {
        assert_eq!(scene.restored(snapshot), *wanted);
    }
    let fork = scene.fork(&taken[0].0);
    git(&fork.top, &["fsck", "--full", "--strict"]);
}

#[test]
fn a_pack_that_is_just_being_put_in_place_is_not_merged_away() {
    let scene = Scene::new();
    scene.write("first", "1");
    let first = scene.take("first");
    let wanted = items(&scene.repo);
    let root = scene.dir.join(scene.open().key());
    let noted = root.join("packs").read_dir_utf8().unwrap().next().unwrap().unwrap();
    // Another process has noted its pack and renamed it; the index comes next.
    let index = root.join(format!("repo.git/objects/pack/pack-{}.idx", noted.file_name()));
    let later = scene.root.join("index-of-another");
    fs::rename(&index, &later).unwrap();
    for number in 0..45 {
        scene.write("changing", format!("state {number}"));
        scene.take(&format!("{number}"));
    }
    assert!(root.join("packs").join(noted.file_name()).exists());
    fs::rename(&later, &index).unwrap();
    assert_eq!(scene.restored(&first), wanted);
    // Once it is whole it is one of those that are merged.
    for number in 45..90 {
        scene.write("changing", format!("state {number}"));
        scene.take(&format!("{number}"));
    }
    assert!(!index.exists());
    assert_eq!(scene.restored(&first), wanted);
}

#[test]
fn a_file_that_is_only_meant_to_be_added_is_recorded() {
    let scene = Scene::new();
    scene.write("folder/empty", "");
    scene.write("folder/full", "1");
    scene.git(&["add", "--intent-to-add", "folder"]);
    let first = scene.take("1");
    assert_eq!(scene.restored(&first), items(&scene.repo));
    scene.write("other", "2");
    let second = scene.take("2");
    assert_eq!(scene.restored(&second), items(&scene.repo));
    git(&scene.fork(&second).top, &["fsck", "--full", "--strict"]);
}

#[test]
fn a_turn_that_changes_nothing_stores_nothing_and_has_the_same_snapshot() {
    let scene = Scene::new();
    scene.write("src/a", "1");
    let mut turn = 0;
    let mut take = || {
        turn += 1;
        let at = now() + SignedDuration::from_secs(turn);
        let (name, note) = (name(&format!("s/{turn}")), format!("turn {turn}"));
        let taken = scene.open().take(&scene.tree(), &name, &note, at).unwrap();
        assert_eq!(scene.open().commit_of(&name).unwrap(), Some(taken.commit.clone()));
        taken
    };
    let first = take();
    let stored = stored_packs(&scene);
    assert_eq!(take(), first);
    assert_eq!(take(), first);
    assert_eq!(stored_packs(&scene), stored, "nothing was stored");
    // Each of these changes one thing that a snapshot records.
    let mut last = first;
    let changes: [(&str, &dyn Fn()); 6] = [
        ("content", &|| scene.write("src/a", "2")),
        ("a new file", &|| scene.write("b", "")),
        ("staged files", &|| drop(scene.git(&["add", "src/a"]))),
        ("the branch", &|| drop(scene.git(&["checkout", "-q", "-b", "other"]))),
        ("the base", &|| drop(scene.git(&["commit", "-qm", "second"]))),
        ("what is left out", &|| scene.write(".git/info/exclude", "b\n")),
    ];
    for (what, change) in changes {
        change();
        let taken = take();
        assert_ne!(taken.commit, last.commit, "{what}");
        assert_eq!(take(), taken, "{what}");
        last = taken;
    }
    assert_eq!(names(&scene.restored(&last)), ["README", "src/a"]);
}

/// Lists the packs of all snapshot repositories.
fn stored_packs(scene: &Scene) -> Vec<String> {
    let mut packs = Vec::new();
    for repository in scene.dir.read_dir_utf8().unwrap() {
        let folder = repository.unwrap().path().join("repo.git/objects/pack");
        let Ok(entries) = folder.read_dir_utf8() else { continue };
        packs.extend(entries.map(|entry| entry.unwrap().file_name().to_owned()));
    }
    packs.sort();
    assert!(!packs.is_empty());
    packs
}
