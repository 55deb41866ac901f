//! Restoring files in place: only recorded content is replaced, and nothing outside is touched.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use heeler_testkit::ProofSettings;
use heeler_workspace::{
    CommitId, FileRestoration, RestoreMode, RestoredFileAction, Snapshot, SnapshotLimits,
    SnapshotStore, WorkTree,
};

use crate::scene::{Item, Scene, items, name, now};

impl Scene {
    fn restore(&self, to: &Snapshot) -> FileRestoration {
        let undo = name("undo/1");
        self.open().restore(&self.tree(), &to.commit, RestoreMode::Restore(&undo), now()).unwrap()
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.repo.join(path)).unwrap()
    }
}

/// The files of a restoration, each with a word, or the reason for which it was kept.
fn actions<'a>(restored: &'a FileRestoration) -> Vec<(&'a str, &'a str)> {
    let word = |action: &'a RestoredFileAction| match action {
        RestoredFileAction::Created => "created",
        RestoredFileAction::Replaced => "replaced",
        RestoredFileAction::Removed => "removed",
        RestoredFileAction::Kept(why) => why.as_str(),
    };
    let files = restored.files.iter();
    files.map(|it| (&*it.path, word(&it.action))).collect()
}

const CHANGED: &str =
    "its content is not the recorded one: it changed meanwhile, or no snapshot holds it";

#[test]
fn files_are_created_replaced_and_removed_and_the_repository_is_untouched() {
    let scene = Scene::new();
    scene.write("kept", "same");
    scene.write("changed", "old");
    scene.write("gone/below/file", "once");
    scene.write("run", "#!/bin/sh\n");
    let before = scene.take("s/1");
    scene.write("changed", "new");
    scene.write("added/below/file", "agent");
    fs::remove_dir_all(scene.repo.join("gone")).unwrap();
    fs::set_permissions(scene.repo.join("run"), fs::Permissions::from_mode(0o700)).unwrap();
    scene.git(&["add", "-A"]);
    let (head, index) = (scene.git(&["rev-parse", "HEAD"]), scene.git(&["ls-files", "-s"]));
    let restored = scene.restore(&before);
    let wanted = [
        ("added/below/file", "removed"),
        ("changed", "replaced"),
        ("gone/below/file", "created"),
        ("run", "replaced"),
    ];
    assert_eq!(actions(&restored), wanted);
    assert_eq!(
        (scene.read("changed").as_str(), scene.read("gone/below/file").as_str()),
        ("old", "once")
    );
    assert!(!scene.repo.join("added").exists(), "empty directories go with their last file");
    let mode = fs::metadata(scene.repo.join("run")).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600, "only the right to execute changes");
    assert_eq!(scene.git(&["rev-parse", "HEAD"]), head);
    assert_eq!(scene.git(&["ls-files", "-s"]), index);
    let named = scene.open().commit_of(&name("undo/1")).unwrap();
    assert_eq!(named.as_ref(), Some(&restored.before.commit));
    scene.restore(&restored.before);
    assert_eq!(scene.read("added/below/file"), "agent");
    assert!(!scene.repo.join("gone").exists());
}

#[test]
fn a_dry_run_changes_nothing() {
    let scene = Scene::new();
    let before = scene.take("s/1");
    scene.write("README", "other");
    let now_there = items(&scene.repo);
    let plan = scene.open().restore(&scene.tree(), &before.commit, RestoreMode::DryRun, now());
    assert_eq!(actions(&plan.unwrap()), [("README", "replaced")]);
    assert_eq!(items(&scene.repo), now_there);
    assert_eq!(scene.open().commit_of(&name("undo/1")).unwrap(), None);
}

#[test]
fn files_that_no_snapshot_holds_are_kept() {
    let scene = Scene::new();
    scene.write("large", "small so far");
    let before = scene.take("s/1");
    scene.write(".gitignore", "secret\n");
    scene.write("secret", "ignored");
    scene.write("large", vec![b'x'; 4096]);
    scene.write("dir/secret", "ignored too");
    scene.write("dir/file", "agent");
    let limits = SnapshotLimits { file_bytes_max: 1024, ..SnapshotLimits::default() };
    let undo = name("undo/1");
    let mode = RestoreMode::Restore(&undo);
    let snapshots = scene.open().with_limits(limits);
    let restored = snapshots.restore(&scene.tree(), &before.commit, mode, now()).unwrap();
    let wanted = [(".gitignore", "removed"), ("dir/file", "removed"), ("large", CHANGED)];
    assert_eq!(actions(&restored), wanted);
    assert_eq!(scene.read("secret"), "ignored");
    assert_eq!(scene.read("dir/secret"), "ignored too");
    assert_eq!(scene.read("large").len(), 4096);
}

#[test]
fn a_directory_with_ignored_files_keeps_the_place_of_a_file() {
    let scene = Scene::new();
    scene.write(".gitignore", "*.o\n");
    scene.write("build", "a file");
    let before = scene.take("s/1");
    fs::remove_file(scene.repo.join("build")).unwrap();
    scene.write("build/a.o", "ignored");
    scene.write("build/a.c", "agent");
    let restored = scene.restore(&before);
    let why = "something that no snapshot holds is in its place";
    assert_eq!(actions(&restored), [("build", why), ("build/a.c", "removed")]);
    assert_eq!(scene.read("build/a.o"), "ignored");
}

#[test]
fn empty_directories_give_way_to_a_file() {
    let scene = Scene::new();
    scene.write("build", "a file");
    let before = scene.take("s/1");
    fs::remove_file(scene.repo.join("build")).unwrap();
    fs::create_dir_all(scene.repo.join("build/a/b")).unwrap();
    assert_eq!(actions(&scene.restore(&before)), [("build", "created")]);
    assert_eq!(scene.read("build"), "a file");
}

#[test]
fn links_are_restored_and_never_followed() {
    let scene = Scene::new();
    scene.write("dir/file", "mine");
    symlink("README", scene.repo.join("link")).unwrap();
    let before = scene.take("s/1");
    let outside = scene.root.join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "not mine").unwrap();
    fs::remove_dir_all(scene.repo.join("dir")).unwrap();
    symlink(&outside, scene.repo.join("dir")).unwrap();
    fs::remove_file(scene.repo.join("link")).unwrap();
    scene.write("link", "a file now");
    let restored = scene.restore(&before);
    let wanted = [("dir", "removed"), ("dir/file", "created"), ("link", "replaced")];
    assert_eq!(actions(&restored), wanted);
    assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "not mine");
    assert_eq!(scene.read("dir/file"), "mine");
    assert_eq!(items(&scene.repo)[&b"link"[..]], Item::Link(b"README".to_vec()));
}

#[test]
fn a_repository_inside_the_work_tree_is_left_alone() {
    let scene = Scene::new();
    scene.write("inner/file", "mine");
    let before = scene.take("s/1");
    crate::scene::git(&scene.repo.join("inner"), &["init", "-q"]);
    fs::remove_file(scene.repo.join("inner/file")).unwrap();
    let restored = scene.restore(&before);
    assert_eq!(actions(&restored), [("inner/file", "its directory is a repository of its own")]);
    assert!(!scene.repo.join("inner/file").exists());
}

#[test]
fn a_foreign_snapshot_cannot_write_into_the_repository() {
    let scene = Scene::new();
    let store = scene.open();
    let first = scene.take("s/1");
    // Git itself never makes such a tree, but an imported snapshot may contain one.
    let objects = scene.dir.join(store.key()).join("repo.git");
    let hash = |args: &[&str], input: &[u8]| {
        let mut git = crate::scene::git_command(&scene.root);
        let mut child = git
            .env("GIT_DIR", &objects)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{args:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let bytes = |hex: &str| -> Vec<u8> {
        (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
            .collect()
    };
    let blob = hash(&["hash-object", "-w", "--stdin"], b"#!/bin/sh\n");
    let literal = ["hash-object", "-w", "--literally", "-t", "tree", "--stdin"];
    let entry = |mode: &str, name: &str, oid: &str| {
        [format!("{mode} {name}\0").into_bytes(), bytes(oid)].concat()
    };
    let inner = hash(&literal, &entry("100755", "hook", &blob));
    let tree =
        hash(&literal, &[entry("40000", "..", &inner), entry("40000", ".GIT", &inner)].concat());
    let text = crate::scene::git_command(&scene.root)
        .env("GIT_DIR", &objects)
        .args(["cat-file", "commit", first.commit.as_str()])
        .output()
        .unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    let (_, rest) = text.split_once('\n').unwrap();
    let text = format!("tree {tree}\n{rest}");
    let commit = hash(&["hash-object", "-w", "-t", "commit", "--stdin"], text.as_bytes());
    let commit = CommitId::parse(&commit).unwrap();
    let (listing, undo) = (crate::scene::listing(&scene.repo.join(".git")), name("undo/1"));
    let restored = scene.open().restore(&scene.tree(), &commit, RestoreMode::Restore(&undo), now());
    let why = "the path is not valid in a work tree";
    let wanted = [("../hook", why), (".GIT/hook", why), ("README", "removed")];
    assert_eq!(actions(&restored.unwrap()), wanted);
    assert_eq!(crate::scene::listing(&scene.repo.join(".git")), listing);
    assert!(!scene.root.join("hook").exists() && !scene.repo.join(".GIT").exists());
}

#[test]
fn another_commit_than_a_known_one_is_refused() {
    let scene = Scene::new();
    let unknown = CommitId::parse(&"1".repeat(40)).unwrap();
    let undo = name("undo/1");
    let error = scene.open().restore(&scene.tree(), &unknown, RestoreMode::Restore(&undo), now());
    let wanted = format!("{unknown} is not a snapshot in this repository");
    assert_eq!(error.unwrap_err().to_string(), wanted);
}

const CHILD_ROOT: &str = "HEELER_TEST_RESTORE_ROOT";
const FILES: usize = 60;

/// kill -9 at any moment leaves each file in one of its two states, and a second call completes it.
#[test]
fn proof_an_interrupted_restoration_can_be_completed() {
    if let Ok(root) = std::env::var(CHILD_ROOT) {
        return restore_forever(&root.into());
    }
    let proof = ProofSettings::new(20);
    let scene = Scene::new();
    let write = |text: &str| {
        for n in 0..FILES {
            // Some files exist in one state only.
            let path =
                scene.repo.join(format!("dir{}/{n}-{}", n % 5, if n % 3 == 0 { text } else { "" }));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text} {n}")).unwrap();
        }
    };
    let states = ["old", "new"].map(|text| {
        for n in 0..5 {
            drop(fs::remove_dir_all(scene.repo.join(format!("dir{n}"))));
        }
        write(text);
        (scene.take(&format!("state/{text}")), items(&scene.repo))
    });
    for round in 0..proof.rounds {
        let mut random = proof.random(round);
        let context = format!("round {round}, HEELER_PROOF_SEED={}", proof.seed);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "restore::proof_an_interrupted_restoration_can_be_completed"])
            .args(["--nocapture", "--test-threads=1"])
            .env(CHILD_ROOT, &scene.root)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // The child restores from its first line on.
        while lines.next().is_some_and(|line| line.unwrap() != "begins") {}
        let (moment, begun) = (Duration::from_micros(random.u64(0..80_000)), Instant::now());
        while begun.elapsed() < moment {
            std::hint::spin_loop();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let allowed = |path: &Vec<u8>, item: &Item| {
            states.iter().any(|(_, items)| items.get(path) == Some(item))
        };
        let found: BTreeMap<_, _> =
            items(&scene.repo).into_iter().filter(|(path, item)| !allowed(path, item)).collect();
        // A draft may be left until the repository of the snapshots is opened again.
        let is_draft = |path: &[u8]| path.starts_with(b".restored.tmp.");
        assert!(found.keys().all(|path| is_draft(path)), "{context}: {found:?}");
        let (state, wanted) = random.choice(&states).unwrap();
        let restored = scene.restore(state);
        let kept =
            restored.files.iter().find(|it| matches!(it.action, RestoredFileAction::Kept(_)));
        assert_eq!(kept, None, "{context}");
        assert!(items(&scene.repo) == *wanted, "{context}: the state is not complete");
    }
}

/// In the child: restores the two states in turn.
fn restore_forever(root: &Utf8PathBuf) {
    let tree = WorkTree::find(&root.join("repo")).unwrap().unwrap();
    let snapshots = SnapshotStore::open(&root.join("state/workspaces"), &tree).unwrap();
    let states =
        ["state/old", "state/new"].map(|it| snapshots.commit_of(&name(it)).unwrap().unwrap());
    let mut out = std::io::stdout().lock();
    writeln!(out, "\nbegins").unwrap();
    out.flush().unwrap();
    let undo = name("undo/child");
    for state in states.iter().cycle() {
        snapshots.restore(&tree, state, RestoreMode::Restore(&undo), now()).unwrap();
    }
}
