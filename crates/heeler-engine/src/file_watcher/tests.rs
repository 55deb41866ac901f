//! The watcher with real file changes.

use std::cell::RefCell;
use std::fs;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};

use heeler_config::load;
use heeler_testkit::WAIT_MAX;
use notify::Event;
use notify::event::Flag;
use tempfile::TempDir;

use super::*;

struct WatchFixture {
    root: Utf8PathBuf,
    watching: FileWatcher,
    told: Receiver<WatchEvent>,
    known: RefCell<HashSet<(String, String)>>,
    _folder: TempDir,
}

impl WatchFixture {
    fn new() -> WatchFixture {
        WatchFixture::with_limit(WATCHED_FOLDERS_MAX)
    }

    fn with_limit(folders_max: usize) -> WatchFixture {
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(folder.path()).unwrap().canonicalize_utf8().unwrap();
        let (tell, told) = mpsc::channel();
        let tell = Box::new(move |watched| tell.send(watched).unwrap_or_default());
        let watching = FileWatcher::with_limit(&root.join("work/.heeler"), folders_max, tell);
        WatchFixture { root, watching, told, known: RefCell::default(), _folder: folder }
    }

    /// Watches by schedules, written as in a config, in the folder `work`.
    fn set(&self, schedules: &str) {
        let file = self.root.join("heeler.yaml");
        let text =
            format!("agents: [{{name: a, working_directory: work, schedules: {{{schedules}}}}}]");
        let read = |path: &Utf8Path| match path == file {
            true => Ok(text.clone()),
            false => Err(std::io::Error::from(std::io::ErrorKind::NotFound)),
        };
        let loaded = load(&file, &read, &std::collections::BTreeMap::new()).unwrap();
        let agent = &loaded.agents[0];
        let specs: Vec<WatchSpec> =
            agent.schedules.iter().filter_map(|one| WatchSpec::of(agent, one)).collect();
        self.watching.set_specs(&specs);
        self.settle();
    }

    /// Waits until all requests are applied.
    fn settle(&self) {
        let (done, settled) = mpsc::channel();
        self.watching.inbox.update(|mail| mail.settled.push(done));
        settled.recv_timeout(WAIT_MAX).unwrap();
    }

    fn write(&self, path: &str) {
        let path = self.root.join("work").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "x").unwrap();
    }

    #[track_caller]
    fn next(&self) -> WatchEvent {
        self.told.recv_timeout(WAIT_MAX).unwrap()
    }

    /// Waits until all of these changes of a schedule were reported. On a slow machine the writing
    /// of one file may count as several changes, so a change may be reported again; nothing else may.
    #[track_caller]
    fn expect(&self, expected: &str, paths: &[&str]) {
        let mut left: HashSet<String> = paths.iter().map(|path| (*path).to_owned()).collect();
        while !left.is_empty() {
            for told in self.news() {
                assert_eq!(told.0, expected, "{told:?}");
                assert!(left.remove(&told.1), "{told:?}");
                self.known.borrow_mut().insert(told);
            }
        }
    }

    /// Waits for the next event and returns the changes in it that were not reported before.
    #[track_caller]
    fn news(&self) -> Vec<(String, String)> {
        match self.next() {
            WatchEvent::Changed { schedule, changed, .. } => {
                let told = changed.into_iter().map(|path| (schedule.clone(), path.into_string()));
                told.filter(|told| !self.known.borrow().contains(told)).collect()
            }
            WatchEvent::Trouble { message, .. } => panic!("{message}"),
        }
    }

    /// Writes a file repeatedly until the change is reported, and nothing else with it.
    #[track_caller]
    fn expect_in_the_end(&self, schedule: &str, path: &str) {
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            assert!(Instant::now() < deadline);
            self.write(path);
            match self.told.recv_timeout(Duration::from_millis(600)) {
                Ok(WatchEvent::Changed { schedule: told, changed, .. }) => {
                    if changed
                        .iter()
                        .all(|it| self.known.borrow().contains(&(told.clone(), it.to_string())))
                    {
                        continue;
                    }
                    assert_eq!((told.as_str(), changed), (schedule, vec![path.into()]));
                    return;
                }
                Ok(WatchEvent::Trouble { message, .. }) => panic!("{message}"),
                Err(RecvTimeoutError::Timeout) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn a_schedule_is_told_of_the_files_it_wants() {
    let rig = WatchFixture::new();
    rig.write("src/a.rs");
    rig.set("s: {paths: ['src/**/*.rs'], debounce: 100ms}");
    rig.write("src/c.txt");
    rig.write("src/b.rs");
    rig.write("src/a.rs");
    rig.expect("s", &["src/a.rs", "src/b.rs"]);
}

#[test]
fn files_that_come_go_and_are_renamed_are_changes() {
    let rig = WatchFixture::new();
    rig.write("a");
    rig.write("b");
    rig.set("s: {paths: ['*'], debounce: 200ms}");
    fs::remove_file(rig.root.join("work/a")).unwrap();
    rig.expect("s", &["a"]);
    fs::rename(rig.root.join("work/b"), rig.root.join("work/c")).unwrap();
    rig.expect("s", &["b", "c"]);
}

#[test]
fn what_is_in_a_new_folder_is_seen_however_fast_it_is_filled() {
    let rig = WatchFixture::new();
    rig.write("x");
    rig.set("s: {paths: ['**/*.rs'], debounce: 300ms}");
    rig.write("new/deep/a.rs");
    fs::create_dir_all(rig.root.join("aside/within")).unwrap();
    fs::write(rig.root.join("aside/within/b.rs"), "x").unwrap();
    fs::rename(rig.root.join("aside"), rig.root.join("work/moved")).unwrap();
    rig.expect("s", &["moved/within/b.rs", "new/deep/a.rs"]);
    rig.write("new/deep/c.rs");
    rig.expect("s", &["new/deep/c.rs"]);
    rig.known.borrow_mut().clear();
    fs::remove_dir_all(rig.root.join("work/new")).unwrap();
    rig.expect("s", &["new/deep/a.rs", "new/deep/c.rs"]);
    rig.write("new/deep/d.rs");
    rig.expect("s", &["new/deep/d.rs"]);
}

#[test]
fn git_the_state_and_what_is_ignored_start_nothing() {
    let rig = WatchFixture::new();
    rig.write("a");
    rig.set("s: {paths: ['**'], ignore: [target, '*.tmp'], debounce: 200ms}");
    rig.write(".git/index");
    rig.write("sub/.git/index");
    rig.write(".heeler/state.yaml");
    rig.write("target/debug/x");
    rig.write("b.tmp");
    rig.write("last");
    rig.expect("s", &["last", "sub"]);
}

#[test]
fn a_working_directory_that_is_not_there_is_waited_for() {
    let rig = WatchFixture::new();
    rig.set("s: {paths: ['src/*.rs'], debounce: 200ms}");
    rig.write("src/a.rs");
    rig.expect("s", &["src/a.rs"]);
}

#[test]
fn a_working_directory_that_is_moved_away_is_watched_no_more() {
    let rig = WatchFixture::new();
    rig.write("src/a.rs");
    rig.set("s: {paths: ['src/*.rs'], debounce: 100ms}");
    fs::rename(rig.root.join("work"), rig.root.join("away")).unwrap();
    rig.expect_in_the_end("s", "src/b.rs");
    fs::write(rig.root.join("away/src/not-ours.rs"), "x").unwrap();
    rig.write("src/c.rs");
    rig.expect("s", &["src/c.rs"]);
}

#[test]
fn each_schedule_is_told_of_its_own_files() {
    let rig = WatchFixture::new();
    rig.write("x");
    rig.set("r: {paths: ['*.rs'], debounce: 100ms}, m: {paths: ['*.md'], debounce: 100ms}");
    rig.write("a.md");
    rig.expect("m", &["a.md"]);
    rig.write("a.rs");
    rig.expect("r", &["a.rs"]);
}

#[test]
fn what_changes_while_its_own_job_runs_is_dropped() {
    let rig = WatchFixture::new();
    rig.write("x");
    rig.set("s: {paths: ['*'], debounce: 200ms}, t: {paths: ['*'], debounce: 200ms}");
    let agent: AgentName = "a".parse().unwrap();
    rig.watching.pause(&agent, "s");
    rig.write("by-the-job");
    rig.expect("t", &["by-the-job"]);
    rig.watching.pause(&agent, "t");
    rig.write("last-of-the-job");
    rig.watching.resume(&agent, "s");
    rig.expect_in_the_end("s", "by-a-person");
}

/// A watch state with a controlled clock.
struct WatchStateFixture {
    board: WatchState,
    told: Receiver<WatchEvent>,
    spec: WatchSpec,
    file: Utf8PathBuf,
    start: Instant,
    _folder: TempDir,
}

impl WatchStateFixture {
    /// A schedule that watches everything, with a debounce of two seconds.
    fn new() -> WatchStateFixture {
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(folder.path()).unwrap().canonicalize_utf8().unwrap();
        let (tell, told) = mpsc::channel();
        let folders = WatchedFolders::new(&root.join("state"), 10, Arc::new(WatchQueue::default()));
        let mut board =
            WatchState::new(folders, Box::new(move |it| tell.send(it).unwrap_or_default()));
        let yaml = "agents: [{name: a, schedules: {s: {paths: ['**']}}}]";
        let file = root.join("heeler.yaml");
        let none = std::collections::BTreeMap::new();
        let loaded = load(&file, &|_: &Utf8Path| Ok(yaml.to_owned()), &none).unwrap();
        let agent = &loaded.agents[0];
        let spec = WatchSpec::of(agent, &agent.schedules[0]).unwrap();
        board.apply_batch(WatchBatch { specs: Some(vec![spec.clone()]), ..WatchBatch::default() });
        WatchStateFixture {
            board,
            told,
            spec,
            file: root.join("x"),
            start: Instant::now(),
            _folder: folder,
        }
    }

    fn after(&self, seconds: u64) -> Instant {
        self.start + Duration::from_secs(seconds)
    }

    fn change_after(&mut self, seconds: u64) {
        let seen =
            PathChange { path: self.file.clone(), is_removed: false, at: self.after(seconds) };
        self.board.apply_batch(WatchBatch { changes: vec![seen], ..WatchBatch::default() });
    }

    /// Returns true if a change is reported by this time.
    fn is_told_after(&mut self, seconds: u64) -> bool {
        self.board.report_due(self.after(seconds));
        self.told.try_recv().is_ok()
    }
}

#[test]
fn what_was_seen_before_a_job_of_the_schedule_ended_is_dropped() {
    let mut table = WatchStateFixture::new();
    table.change_after(0);
    let (id, ended) = (table.spec.id(), table.after(60));
    table.board.apply_batch(WatchBatch {
        resumed_specs: vec![(id.clone(), ended)],
        ..WatchBatch::default()
    });
    // Processed late, but it happened while the job ran or right after.
    table.change_after(59);
    table.change_after(61);
    assert!(!table.is_told_after(600));
    table.change_after(62);
    assert!(!table.is_told_after(63));
    assert!(table.is_told_after(64));
    table.change_after(70);
    table.board.apply_batch(WatchBatch { paused: HashSet::from([id]), ..WatchBatch::default() });
    assert!(!table.is_told_after(600));
}

#[test]
fn files_that_are_never_at_rest_are_told_after_ten_times_as_long() {
    let mut table = WatchStateFixture::new();
    for second in 0..20 {
        table.change_after(second);
        assert!(!table.is_told_after(second));
    }
    assert!(table.is_told_after(20));
    assert!(!table.is_told_after(600));
}

#[test]
fn other_schedules_are_watched_after_a_reload() {
    let rig = WatchFixture::new();
    rig.write("x");
    rig.write("old/x");
    rig.set("s: {paths: [old], debounce: 100ms}");
    rig.set("t: {paths: [new], debounce: 100ms}");
    rig.write("old/a");
    rig.write("new/a");
    rig.expect("t", &["new", "new/a"]);
    rig.set("");
    rig.write("new/b");
    rig.set("t: {paths: [new], debounce: 100ms}");
    rig.write("new/c");
    rig.expect("t", &["new/c"]);
}

#[test]
fn changes_that_come_together_are_told_once() {
    let mut table = WatchStateFixture::new();
    table.change_after(0);
    table.change_after(1);
    assert!(!table.is_told_after(2));
    assert!(table.is_told_after(3));
    assert!(!table.is_told_after(600));
}

#[test]
fn a_schedule_that_stays_keeps_what_it_has_seen() {
    let mut table = WatchStateFixture::new();
    table.change_after(0);
    let (same, other) =
        (table.spec.clone(), WatchSpec { schedule: "t".to_owned(), ..table.spec.clone() });
    table.board.apply_batch(WatchBatch {
        specs: Some(vec![other.clone(), same]),
        ..WatchBatch::default()
    });
    assert!(table.is_told_after(2));
    table.change_after(10);
    table.board.apply_batch(WatchBatch { specs: Some(vec![]), ..WatchBatch::default() });
    assert!(!table.is_told_after(600));
}

#[track_caller]
fn expect_unknown(rig: &WatchFixture, schedule: &str) {
    let WatchEvent::Changed { schedule: told, changed, .. } = rig.next() else { panic!() };
    assert_eq!((told.as_str(), changed.len()), (schedule, 0));
}

#[test]
fn a_lost_event_counts_as_a_change_of_everything() {
    let rig = WatchFixture::new();
    rig.write("x");
    rig.set("s: {paths: ['*'], debounce: 100ms}");
    rig.watching.inbox.push_event(Ok(Event::new(EventKind::Other).set_flag(Flag::Rescan)));
    expect_unknown(&rig, "s");
    rig.watching.inbox.update(|mail| {
        for number in 0..=INBOX_MAX {
            mail.push_path(rig.root.join(format!("elsewhere/{number}")).as_std_path(), false);
        }
        assert_eq!(mail.changes.len(), INBOX_MAX);
    });
    expect_unknown(&rig, "s");
}

#[test]
fn only_so_many_paths_of_a_change_are_told() {
    let mut table = WatchStateFixture::new();
    let seen = |number| PathChange {
        path: table.file.with_file_name(format!("{number}")),
        is_removed: false,
        at: table.start,
    };
    let seen = (0..CHANGES_REPORTED_MAX + 20).map(seen).collect();
    table.board.apply_batch(WatchBatch { changes: seen, ..WatchBatch::default() });
    table.board.report_due(table.after(2));
    let Ok(WatchEvent::Changed { changed, .. }) = table.told.try_recv() else { panic!() };
    assert_eq!(changed.len(), CHANGES_REPORTED_MAX);
}

#[test]
fn more_folders_than_can_be_watched_are_told_with_the_cure() {
    let rig = WatchFixture::with_limit(3);
    for name in ["a", "b", "c", "d"] {
        rig.write(&format!("{name}/x"));
    }
    rig.set("s: {paths: ['**'], debounce: 50ms}");
    let WatchEvent::Trouble { schedule, message, .. } = rig.next() else { panic!() };
    assert_eq!(schedule, "s");
    assert!(message.contains("more than 3 folders to watch: narrow `paths`"), "{message}");
    // The rest is watched, and the problem is not reported again.
    rig.write("y");
    rig.expect("s", &["y"]);
}

#[test]
fn links_to_folders_are_not_followed() {
    let rig = WatchFixture::new();
    rig.write("x");
    fs::create_dir(rig.root.join("outside")).unwrap();
    std::os::unix::fs::symlink("../outside", rig.root.join("work/link")).unwrap();
    rig.set("s: {paths: ['**'], debounce: 100ms}");
    fs::write(rig.root.join("outside/a"), "x").unwrap();
    rig.write("b");
    rig.expect("s", &["b"]);
}
