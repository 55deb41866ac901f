//! Work trees: recording one after a turn, and making one of a snapshot, beside git's own way.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_workspace::{CommitId, SnapshotName, SnapshotStore, WorkTree};
use jiff::Timestamp;

use crate::{Bench, Figure, Goal};

const FILES: usize = 20_000;

/// How many files lie in one folder.
const FILES_PER_FOLDER: usize = 50;

const CHANGED: usize = 10;

/// Of the tree that is recorded, and of the one that is checked out: 1 GB in all.
const SMALL_BYTES: usize = 2_000;
const LARGE_BYTES: usize = 50_000;

const ROUNDS: usize = 9;
const WORKTREES: usize = 3;

/// A file that was touched so shortly before is read again by the next snapshot.
const SETTLE: Duration = Duration::from_secs(3);

pub(crate) fn figures(bench: &Bench) -> Vec<Figure> {
    vec![snapshot(bench), worktree(bench)]
}

/// A repository of fresh content with one commit, and our folder beside it.
struct Place {
    root: Utf8PathBuf,
    repo: Utf8PathBuf,
    random: fastrand::Rng,
}

impl Place {
    fn new(bench: &Bench, name: &str, bytes: usize) -> Place {
        let root = bench.folder.join(name);
        drop(fs::remove_dir_all(&root));
        let repo = root.join("repo");
        fs::create_dir_all(&repo).expect("disk has space");
        let mut place = Place { root, repo, random: fastrand::Rng::new() };
        for number in 0..FILES {
            let path = place.file(number);
            fs::create_dir_all(path.parent().expect("it is in a folder")).expect("disk has space");
            let text = place.text(bytes);
            fs::write(path, text).expect("disk has space");
        }
        git(&place.repo, &["init", "-q"], &[]);
        git(&place.repo, &["add", "-A"], &[]);
        git(&place.repo, &["commit", "-qm", "all"], &[]);
        git(&place.repo, &["repack", "-adq"], &[]);
        place
    }

    fn file(&self, number: usize) -> Utf8PathBuf {
        let folder = number / FILES_PER_FOLDER;
        self.repo.join(format!("part-{:02}/folder-{folder:03}/{number:05}.txt", folder / 20))
    }

    /// Words, so that it packs as source code does: to about half.
    fn text(&mut self, bytes: usize) -> String {
        let mut text = String::with_capacity(bytes + 16);
        while text.len() < bytes {
            let end = if self.random.u8(..12) == 0 { '\n' } else { ' ' };
            write!(text, "{:x}{end}", self.random.u32(..1 << 24)).expect("a string takes all");
        }
        text.truncate(bytes);
        text
    }

    /// Gives ten files new content.
    fn turn(&mut self) {
        for _ in 0..CHANGED {
            let number = self.random.usize(..FILES);
            let text = self.text(SMALL_BYTES);
            fs::write(self.file(number), text).expect("disk has space");
        }
    }

    fn tree(&self) -> WorkTree {
        WorkTree::find(&self.repo).expect("it can be read").expect("it is a repository")
    }

    fn take(&self, number: usize) -> (CommitId, Duration) {
        let name = SnapshotName::parse(&format!("bench/{number}")).expect("a name");
        let start = Instant::now();
        let tree = self.tree();
        let snapshots = SnapshotStore::open(&self.root.join("ours"), &tree).expect("it opens");
        let taken = snapshots.take(&tree, &name, "a turn", Timestamp::now()).expect("it is taken");
        (taken.commit, start.elapsed())
    }
}

/// The alternative has an index of its own, and records nothing but a tree.
fn snapshot(bench: &Bench) -> Figure {
    let mut place = Place::new(bench, "snapshots", SMALL_BYTES);
    let index = place.root.join("index");
    fs::copy(place.repo.join(".git/index"), &index).expect("disk has space");
    let add = |place: &Place| {
        let start = Instant::now();
        let own = [("GIT_INDEX_FILE", index.as_str())];
        git(&place.repo, &["add", "-A"], &own);
        git(&place.repo, &["write-tree"], &own);
        start.elapsed()
    };
    std::thread::sleep(SETTLE);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    place.take(0);
    add(&place);
    for number in 1..=ROUNDS {
        place.turn();
        // Who comes second finds the files in memory: each does so in turn.
        if number % 2 == 0 {
            ours.push(place.take(number).1);
            theirs.push(add(&place));
        } else {
            theirs.push(add(&place));
            ours.push(place.take(number).1);
        }
    }
    Figure {
        what: "snapshot after 10 of 20,000 files changed".to_owned(),
        ours: middle(ours).into(),
        goal: Goal::AtMost(Duration::from_millis(150).into()),
        alternative: Some(("git add -A, write-tree".to_owned(), middle(theirs).into())),
    }
}

fn worktree(bench: &Bench) -> Figure {
    let place = Place::new(bench, "worktrees", LARGE_BYTES);
    let (commit, _) = place.take(0);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for number in 0..WORKTREES {
        let at = place.root.join(format!("ours-{number}"));
        let start = Instant::now();
        let snapshots =
            SnapshotStore::open(&place.root.join("ours"), &place.tree()).expect("it opens");
        snapshots.add_worktree(&commit, &at).expect("it is made");
        ours.push(start.elapsed());
        settle(&at);
        let at = place.root.join(format!("theirs-{number}"));
        let start = Instant::now();
        git(&place.repo, &["worktree", "add", "-q", "--detach", at.as_str()], &[]);
        theirs.push(start.elapsed());
        settle(&at);
    }
    drop(fs::remove_dir_all(&place.root));
    Figure {
        what: "worktree of 1 GB in 20,000 files".to_owned(),
        ours: middle(ours).into(),
        // At most 1.3 times what git takes.
        goal: Goal::TimesFaster(0.77),
        alternative: Some(("git worktree add".to_owned(), middle(theirs).into())),
    }
}

/// Neither pays for writing what the other made; the next has the space.
fn settle(at: &Utf8Path) {
    fs::remove_dir_all(at).expect("it was made");
    rustix::fs::sync();
}

fn middle(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn git(folder: &Utf8Path, args: &[&str], env: &[(&str, &str)]) {
    let mut git = Command::new("git");
    git.args(["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0"]);
    // Searching a gigabyte of fresh content for likeness takes minutes and finds none.
    git.args(["-c", "maintenance.auto=false", "-c", "pack.window=0", "-c", "core.compression=1"])
        .args(args)
        .envs(env.iter().copied());
    let output = git.current_dir(folder).output().expect("git is installed");
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}
