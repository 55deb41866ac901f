//! Clones of workflow runs: which repository, and how long.

use std::os::unix::fs::symlink;

use heeler_store::{Store, WorkflowRunRow};
use serde_json::{Map, json};

use super::*;

fn now() -> Timestamp {
    "2026-11-14T12:00:00Z".parse().unwrap()
}

/// A run of the workflow `flow` that ended some hours ago, or has not ended.
fn run(id: &str, target: &str, status: WorkflowRunStatus, hours: Option<i64>) -> WorkflowRunRow {
    let ended = hours.map(|hours| now() - SignedDuration::from_hours(hours));
    WorkflowRunRow {
        head: WorkflowRunHead {
            id: id.parse().unwrap(),
            workflow: "flow".to_owned(),
            trigger_id: target.to_owned(),
            trigger_type: None,
            current_phase: "a".to_owned(),
            status,
            restart_count: 0,
            started_at: now() - SignedDuration::from_hours(1000),
            updated_at: now(),
            finished_at: ended,
            spent: 0,
            origin: None,
            error: None,
            mode: None,
            owner: None,
            repo: None,
            issue_number: None,
        },
        version: 1,
        seq: 0,
        definition: None,
        triggered_by: None,
        trigger_actor_type: None,
        context: json!({}),
        scratch: Map::new(),
    }
}

/// A state directory with runs, each with a clone of its name.
struct CloneFixture {
    _temp: tempfile::TempDir,
    dir: StateDir,
}

impl CloneFixture {
    fn new(runs: Vec<(RunClonePolicy, WorkflowRunRow)>) -> CloneFixture {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(temp.path()).unwrap().join(".heeler");
        let dir = StateDir::create(&root).unwrap();
        let store = Store::open(&dir, "test", now()).unwrap().store;
        for (policy, run) in runs {
            let clone = dir.worktrees().join(format!("{policy}.{}.0123456789abcdef", run.head.id));
            fs::create_dir_all(clone.join(".git")).unwrap();
            let inserted = store.write(move |tx| tx.insert_workflow_run(&run)).unwrap();
            inserted.unwrap();
        }
        CloneFixture { _temp: temp, dir }
    }

    fn reader(&self) -> StoreReader {
        StoreReader::open(&self.dir).unwrap()
    }

    fn left(&self) -> Vec<String> {
        let entries = self.dir.worktrees().read_dir_utf8().unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().replace(".0123456789abcdef", ""))
            .collect();
        names.sort();
        names
    }
}

#[test]
fn clones_are_kept_for_a_day_or_a_week_and_never_removed_from_a_living_run() {
    use RunClonePolicy::{PerRun, PerTarget};
    use WorkflowRunStatus::{Cancelled, Failed, Paused, Running, Succeeded};
    let fixture = CloneFixture::new(vec![
        (PerRun, run("wf-done-new", "1", Succeeded, Some(23))),
        (PerRun, run("wf-done-old", "2", Succeeded, Some(25))),
        (PerRun, run("wf-failed-new", "3", Failed, Some(25))),
        (PerRun, run("wf-failed-old", "4", Cancelled, Some(7 * 24 + 1))),
        (PerRun, run("wf-running", "5", Running, None)),
        (PerTarget, run("wf-target-new", "6", Succeeded, Some(25))),
        (PerTarget, run("wf-target-old", "7", Succeeded, Some(7 * 24 + 1))),
        (PerTarget, run("wf-paused", "8", Paused, None)),
    ]);
    let outside = fixture.dir.root().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious"), "").unwrap();
    let old = fixture.dir.worktrees().join("per-run.wf-done-old.0123456789abcdef");
    symlink(&outside, old.join("link")).unwrap();
    for name in ["sess-1a2b3c4d", "mine", ".x.heeler-clone.0123456789abcdef", "per-run.gone.x"] {
        fs::create_dir(fixture.dir.worktrees().join(name)).unwrap();
    }
    remove_old_clones(&fixture.dir, &fixture.reader(), now());
    let kept = [
        "per-run.wf-done-new",
        "per-run.wf-failed-new",
        "per-run.wf-running",
        "per-target.wf-paused",
        "per-target.wf-target-new",
    ];
    let left = fixture.left();
    assert!(kept.iter().all(|name| left.iter().any(|it| it == name)), "{left:?}");
    let gone = ["per-run.wf-done-old", "per-run.wf-failed-old", "per-target.wf-target-old"];
    assert!(!gone.iter().any(|name| left.iter().any(|it| it == name)), "{left:?}");
    assert!(outside.join("precious").exists(), "links are not followed");
    let made = outside.metadata().unwrap().modified().unwrap();
    let later = Timestamp::try_from(made).unwrap() + SignedDuration::from_hours(2);
    remove_old_clones(&fixture.dir, &fixture.reader(), later);
    let left = fixture.left();
    assert!(left.contains(&"mine".to_owned()) && left.contains(&"sess-1a2b3c4d".to_owned()));
    assert!(!left.iter().any(|name| name.contains("heeler-clone") || name.contains("gone")));
}

#[test]
fn only_the_clone_of_an_earlier_run_about_the_same_target_is_in_the_way() {
    use RunClonePolicy::{PerRun, PerTarget};
    use WorkflowRunStatus::{Running, Succeeded};
    let next = run("wf-next", "acme/web#7", Running, None).head;
    let fixture = CloneFixture::new(vec![
        (PerTarget, run("wf-same", "acme/web#7", Succeeded, Some(1))),
        (PerTarget, run("wf-other", "acme/web#8", Succeeded, Some(1))),
        (PerTarget, run("wf-alive", "acme/web#9", Running, None)),
        (PerRun, run("wf-per-run", "acme/web#7", Succeeded, Some(1))),
    ]);
    let reader = fixture.reader();
    remove_clones(&fixture.dir, |clone| is_earlier(&reader, clone, &next));
    let left = ["per-run.wf-per-run", "per-target.wf-alive", "per-target.wf-other"];
    assert_eq!(fixture.left(), left);
}

#[test]
fn a_run_about_another_repository_has_no_clone_here() {
    let mut about = run("wf-1", "acme/web#7", WorkflowRunStatus::Running, None).head;
    (about.owner, about.repo) = (Some("Acme".to_owned()), Some("web".to_owned()));
    let nothing = run("wf-2", "x", WorkflowRunStatus::Running, None).head;
    let check_run = |about: &WorkflowRunHead, address: &str| {
        let text = format!("agents: [{{name: a, repo: '{address}'}}]");
        let read = |_: &Utf8Path| Ok(text.clone());
        let loaded = heeler_config::load("/f/heeler.yaml".into(), &read, &BTreeMap::new()).unwrap();
        foreign_subject(about, loaded.agents[0].repo.as_ref().unwrap())
    };
    let check = |address: &str| check_run(&about, address);
    for same in [
        "https://github.com/acme/web",
        "https://github.com/acme/web.git",
        "git@github.com:Acme/web.git",
        "ssh://git@github.com/acme/web/",
        "./origin.git",
        "file:///srv/other.git",
    ] {
        assert_eq!(check(same), None, "{same}");
    }
    for other in
        ["https://github.com/acme/web2", "git@github.com:evilacme/web.git", "https://x.test/web"]
    {
        assert_eq!(check(other).as_deref(), Some("Acme/web"), "{other}");
    }
    assert_eq!(check_run(&nothing, "https://x.test/web"), None);
}
