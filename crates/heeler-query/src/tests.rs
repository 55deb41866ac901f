//! Questions to real state directories.

use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::config::Loaded;
use heeler_model::workflow::{CourseStatus, freeze, load_all};
use heeler_model::{AgentSessionId, Job, JobId, JobStatus, Session, TriggerType, WorkflowRunId};
use heeler_store::{DbError, StateDir, Store, Tx, WorkflowRunHead, WorkflowRunRow};
use heeler_transcript::{Holder as LockHolder, LockFile};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::json;

use crate::holder::Holder;
use crate::records::READERS_KEPT;
use crate::{Known, QueryErrorKind, Records};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;
const SESSION: &str = "sess-00000001";

fn nothing_known() -> Known {
    Known { config: None, loaded: None, env: Default::default(), home: None, zone: TimeZone::UTC }
}

/// A state directory in which a test writes, and the user's folder.
struct Place {
    _temp: tempfile::TempDir,
    root: Utf8PathBuf,
    store: Store,
}

impl Place {
    fn new() -> Place {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(temp.path()).unwrap().to_owned();
        let dir = StateDir::create(&root.join(".heeler")).unwrap();
        let store = Store::open(&dir, "test", NOW).unwrap().store;
        Place { _temp: temp, root, store }
    }

    fn write(&self, change: impl FnOnce(&mut Tx<'_>) -> Result<(), DbError> + Send + 'static) {
        self.store.write(change).unwrap();
    }

    fn dir(&self) -> StateDir {
        StateDir::open(&self.root.join(".heeler")).unwrap()
    }

    fn records(&self, loaded: Option<Arc<Loaded>>) -> Records {
        let home = self.root.join("home");
        Records::new(self.dir(), move || Known {
            home: Some(home.clone()),
            loaded: loaded.clone(),
            ..nothing_known()
        })
    }
}

#[test]
fn a_fleet_without_a_database_is_trouble_and_no_panic() {
    let temp = tempfile::tempdir().unwrap();
    let dir = StateDir::create(Utf8Path::from_path(temp.path()).unwrap()).unwrap();
    let records = Records::new(dir, nothing_known);
    let error = records.jobs(&Default::default()).unwrap_err();
    assert_eq!(error.kind(), QueryErrorKind::Trouble);
    const { assert!(READERS_KEPT > 0) };
}

#[test]
fn whoever_is_at_work_in_a_session_is_known_by_its_lock_and_else_by_the_record() {
    let place = Place::new();
    let own: AgentSessionId = "5e550000-0000-4000-8000-000000000001".parse().unwrap();
    let mut job = Job::asked(JobId::mint(NOW, 1), "coder", TriggerType::Manual, NOW);
    let id = job.head.id.clone();
    let session = Session::new(SESSION.parse().unwrap(), "coder", NOW);
    place.write(move |tx| tx.put_session(&session).map(drop));
    let records = place.records(None);
    let holder = || records.holder(SESSION).unwrap();
    assert_eq!(holder(), None, "it was never used");
    let mut session = Session::new(SESSION.parse().unwrap(), "coder", NOW);
    session.agent_session_id = Some(own.clone());
    place.write(move |tx| tx.put_session(&session).map(drop));
    assert_eq!(holder(), None, "nobody works in it");

    let locks = place.root.join("home/locks");
    std::fs::create_dir_all(&locks).unwrap();
    let lock = |doing: &str| {
        let by = LockHolder::this_process(doing, NOW);
        LockFile::acquire(&locks.join(own.as_str()), &by, Duration::ZERO).unwrap()
    };
    let held = lock("runner job-of-another-fleet");
    let other = holder().unwrap();
    assert_eq!((other.job, other.lines), (None, 0));
    assert!(other.process.unwrap().contains(&std::process::id().to_string()));
    drop(held);

    (job.head.session_id, job.head.status) = (Some(own.clone()), JobStatus::Running);
    place.write(move |tx| tx.insert_job(&job));
    let recorded = Holder { process: None, job: Some(id.to_string()), lines: 0 };
    assert_eq!(holder(), Some(recorded), "only the record says so");
    std::fs::write(place.dir().log_of(&id), "{\"n\":1}\n{\"n\":2}\n").unwrap();
    let _held = lock(&format!("runner {id}"));
    let ours = holder().unwrap();
    assert_eq!((ours.job, ours.lines), (Some(id.to_string()), 2));
    assert!(ours.process.is_some());
    assert_eq!(records.holder("sess-none").unwrap_err().kind(), QueryErrorKind::NotFound);
}

#[test]
fn the_plan_of_a_run_is_the_file_that_it_began_with() {
    let place = Place::new();
    let config = "agents: [{name: coder, runtime: scripted, script: [{say: Done.}]}]";
    let workflow = "name: build\nagent: coder\nphases:\n  - {name: plan, prompt: Plan.}\n  \
                    - {name: work, prompt: Work., depends_on: [plan]}\n";
    let read = |path: &Utf8Path| {
        Ok(if path.ends_with("heeler.yaml") { config } else { workflow }.to_owned())
    };
    let file = place.root.join("heeler.yaml");
    let loaded = heeler_model::config::load(&file, &read, &Default::default()).unwrap();
    let settings = &loaded.fleets[0].workflows;
    let found = load_all(&[settings.folder.join("build.yaml")], &read, &loaded.agents, settings);
    let (hash, frozen) = freeze(&found.workflows[0]);
    let run = |number: u64, definition: Option<String>| WorkflowRunRow {
        head: WorkflowRunHead {
            id: WorkflowRunId::mint(NOW, number),
            workflow: "build".to_owned(),
            trigger_id: number.to_string(),
            trigger_type: None,
            current_phase: String::new(),
            status: CourseStatus::Running,
            restart_count: 0,
            started_at: NOW,
            updated_at: NOW,
            finished_at: None,
            spent: 0,
            origin: None,
            error: None,
            mode: None,
        },
        version: 1,
        seq: 0,
        definition,
        triggered_by: None,
        context: json!({}),
        scratch: Default::default(),
    };
    let runs = [run(1, Some(hash.clone())), run(2, Some("lost".to_owned())), run(3, None)];
    let ids = runs.each_ref().map(|run| run.head.id.to_string());
    place.write(move |tx| {
        tx.put_definition(&hash, "build", &frozen, NOW)?;
        runs.iter().try_for_each(|run| tx.insert_workflow_run(run).map(|done| done.unwrap()))
    });
    // The folder of today has no such workflow.
    let records = place.records(Some(Arc::new(loaded)));
    let plan = records.run_plan(&ids[0]).unwrap();
    let phases: Vec<_> = plan.iter().map(|it| (it.name.as_str(), it.depends_on.len())).collect();
    assert_eq!(phases, [("plan", 0), ("work", 1)]);
    assert_eq!(plan[0].agent.as_deref(), Some("coder"));
    for unknown in &ids[1..] {
        assert_eq!(records.run_plan(unknown).unwrap(), [], "{unknown}");
    }
    assert_eq!(records.run_plan("run-none").unwrap_err().kind(), QueryErrorKind::NotFound);
}
