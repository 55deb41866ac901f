//! kill -9 at any moment leaves nothing that breaks the next call, and no finished snapshot is lost.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::ops::ControlFlow;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_testkit::ProofSettings;
use heeler_workspace::{CommitId, RestoreMode, SnapshotStore, UnrecordedPolicy, WorkTree};

use crate::scene::{Items, Scene, items, name, now};

const CHILD_ROOT: &str = "HEELER_TEST_WORKSPACE_ROOT";

#[test]
fn proof_kill_9_leaves_nothing_that_breaks_the_next_call() {
    if be_the_child().is_break() {
        return;
    }
    let proof = ProofSettings::new(40);
    let mut scene = Scene::new();
    for round in 0..proof.rounds {
        let mut random = proof.random(round);
        if round % 8 == 0 {
            scene = Scene::new();
            (0..200).for_each(|n| scene.write(&format!("dir{}/{n}", n % 7), vec![b'x'; n * 10]));
        }
        scene.write("changing", format!("{round}"));
        let context = format!("round {round}, HEELER_PROOF_SEED={}", proof.seed);
        let done = run_and_kill(&scene.root, &mut random);
        check(&scene, &done, &context);
    }
}

/// After the kill: all that was done is there, and all can be done again.
fn check(scene: &Scene, done: &[String], context: &str) {
    let snapshots = scene.open();
    let wanted = items(&scene.repo);
    for line in done {
        let (text, commit) = line.split_once(' ').unwrap();
        let commit = CommitId::parse(commit).unwrap();
        let found = snapshots.commit_of(&name(text)).unwrap();
        assert_eq!(found.as_ref(), Some(&commit), "{context}: {text}");
        assert!(snapshots.snapshot(&commit).is_ok(), "{context}: {text} is damaged");
    }
    let snapshot = scene.open().take(&scene.tree(), &name("after"), "", now());
    let snapshot = snapshot.unwrap_or_else(|error| panic!("{context}: {error}"));
    let at = scene.root.join("fork");
    if let Ok(Some(tree)) = WorkTree::find(&at)
        && tree.top == at
    {
        assert!(is_whole(&items(&at), &wanted), "{context}: half a worktree");
        let last = snapshots.remove_worktree(&at, &name("rest"), UnrecordedPolicy::Keep, now());
        last.unwrap_or_else(|error| panic!("{context}: {error}"));
    }
    let fork = snapshots.add_worktree(&snapshot.commit, &at);
    let fork = fork.unwrap_or_else(|error| panic!("{context}: {error}"));
    assert!(items(&fork.top) == wanted, "{context}: the worktree is not the snapshot");
    snapshots.remove_worktree(&at, &name("rest"), UnrecordedPolicy::Keep, now()).unwrap();
    snapshots.prune(now()).unwrap();
    let left: Vec<String> = drafts(&scene.root);
    assert!(left.is_empty(), "{context}: {left:?} is left behind");
}

/// The worktree may be of an earlier round, in which `changing` differs.
fn is_whole(found: &Items, wanted: &Items) -> bool {
    found.keys().eq(wanted.keys())
}

fn drafts(root: &Utf8Path) -> Vec<String> {
    let mut left = Vec::new();
    let mut folders = vec![root.to_owned(), root.join("state/workspaces")];
    for key in SnapshotStore::keys(&root.join("state/workspaces")).unwrap() {
        folders.push(root.join("state/workspaces").join(&key).join("tmp"));
        folders.push(root.join("state/workspaces").join(&key).join("pending"));
    }
    for folder in folders {
        for entry in folder.read_dir_utf8().unwrap() {
            let entry = entry.unwrap();
            let is_draft = entry.file_name().contains(".tmp.")
                || folder.ends_with("tmp")
                || folder.ends_with("pending");
            if is_draft {
                left.push(entry.path().to_string());
            }
        }
    }
    left
}

fn run_and_kill(root: &Utf8Path, random: &mut fastrand::Rng) -> Vec<String> {
    let mut child = start_child(root);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut done = Vec::new();
    for _ in 0..random.usize(0..3) {
        done.extend(
            lines.next().and_then(|line| line.unwrap().strip_prefix("done ").map(str::to_owned)),
        );
    }
    let moment = Duration::from_micros(random.u64(0..60_000));
    let waited = Instant::now();
    while waited.elapsed() < moment {
        std::hint::spin_loop();
    }
    child.kill().unwrap();
    done.extend(lines.filter_map(|line| line.unwrap().strip_prefix("done ").map(str::to_owned)));
    child.wait().unwrap();
    done
}

fn start_child(root: &Utf8Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill::proof_kill_9_leaves_nothing_that_breaks_the_next_call"])
        .args(["--nocapture", "--test-threads=1"])
        .env(CHILD_ROOT, root)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// In the child: does everything over and over, and tells of each snapshot that it took.
fn be_the_child() -> ControlFlow<()> {
    let Ok(root) = std::env::var(CHILD_ROOT) else { return ControlFlow::Continue(()) };
    let root = Utf8PathBuf::from(root);
    let tree = WorkTree::find(&root.join("repo")).unwrap().unwrap();
    let mut out = std::io::stdout().lock();
    writeln!(out).unwrap();
    for turn in 0_u64.. {
        let snapshots = SnapshotStore::open(&root.join("state/workspaces"), &tree).unwrap();
        let this = name(&format!("{:x}/{turn}", fastrand::u64(..)));
        let snapshot = snapshots.take(&tree, &this, "", now()).unwrap();
        if writeln!(out, "done {this} {}", snapshot.commit).and_then(|()| out.flush()).is_err() {
            break;
        }
        let at = root.join("fork");
        snapshots.add_worktree(&snapshot.commit, &at).unwrap();
        fs::write(at.join("changing"), "in the fork").unwrap();
        let fork = WorkTree::find(&at).unwrap().unwrap();
        let undo = name(&format!("{:x}/undo", fastrand::u64(..)));
        let mode = RestoreMode::Restore(&undo);
        snapshots.restore(&fork, &snapshot.commit, mode, now()).unwrap();
        snapshots.remove_worktree(&at, &name("rest"), UnrecordedPolicy::Keep, now()).unwrap();
        snapshots.take(&tree, &name(&format!("gone/{turn}")), "", now()).unwrap();
        let old: Vec<_> = snapshots.list(None).unwrap().into_iter().map(|(name, _)| name).collect();
        let gone: Vec<_> =
            old.into_iter().filter(|name| name.as_str().starts_with("gone")).collect();
        snapshots.forget(&gone).unwrap();
        if turn % 3 == 2 {
            snapshots.prune(now()).unwrap();
        }
    }
    ControlFlow::Break(())
}
