//! Questions to real state directories.

use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::LoadedConfig;
use heeler_config::workflow::{freeze_workflow, load_workflow_folder};
use heeler_model::workflow::WorkflowRunStatus;
use heeler_model::{
    AgentSessionId, ExitReason, Job, JobId, JobStatus, Session, TriggerType, WorkflowRunId,
};
use heeler_store::{
    ChatMessageRecord, ConversationPlace, DatabaseError, StateDir, Store, StoreTransaction,
    WorkflowRunHead, WorkflowRunRow,
};
use heeler_transcript::{LockFile, LockHolder};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::chat_messages::ChatMessageQuery;
use crate::fleet_reader::IDLE_READERS_MAX;
use crate::jobs::JobListQuery;
use crate::session_holder::SessionHolderDetails;
use crate::{FleetReader, QueryContext, QueryErrorKind};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;
const SESSION: &str = "sess-00000001";

fn nothing_known() -> QueryContext {
    QueryContext {
        config: None,
        loaded: None,
        env: Default::default(),
        home: None,
        zone: TimeZone::UTC,
    }
}

/// A state directory in which a test writes, and the user's folder.
struct QueryFixture {
    _temp: tempfile::TempDir,
    root: Utf8PathBuf,
    store: Store,
}

impl QueryFixture {
    fn new() -> QueryFixture {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(temp.path()).unwrap().to_owned();
        let dir = StateDir::create(&root.join(".heeler")).unwrap();
        let store = Store::open(&dir, "test", NOW).unwrap().store;
        QueryFixture { _temp: temp, root, store }
    }

    fn write(
        &self,
        change: impl FnOnce(&mut StoreTransaction<'_>) -> Result<(), DatabaseError> + Send + 'static,
    ) {
        self.store.write(change).unwrap();
    }

    fn dir(&self) -> StateDir {
        StateDir::open(&self.root.join(".heeler")).unwrap()
    }

    fn records(&self, loaded: Option<Arc<LoadedConfig>>) -> FleetReader {
        let home = self.root.join("home");
        FleetReader::new(self.dir(), move || QueryContext {
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
    let records = FleetReader::new(dir, nothing_known);
    let error = records.jobs(&Default::default()).unwrap_err();
    assert_eq!(error.kind(), QueryErrorKind::Internal);
    const { assert!(IDLE_READERS_MAX > 0) };
}

#[test]
fn whoever_is_at_work_in_a_session_is_known_by_its_lock_and_else_by_the_record() {
    let place = QueryFixture::new();
    let own: AgentSessionId = "5e550000-0000-4000-8000-000000000001".parse().unwrap();
    let mut job = Job::new_pending(JobId::mint(NOW, 1), "coder", TriggerType::Manual, NOW);
    let id = job.head.id.clone();
    let session = Session::new(SESSION.parse().unwrap(), "coder", NOW);
    place.write(move |tx| tx.put_session(&session).map(drop));
    let records = place.records(None);
    let holder = || records.session_holder(SESSION).unwrap();
    assert_eq!(holder(), None, "it was never used");
    let mut session = Session::new(SESSION.parse().unwrap(), "coder", NOW);
    session.agent_session_id = Some(own.clone());
    place.write(move |tx| tx.put_session(&session).map(drop));
    assert_eq!(holder(), None, "the session is not in use");

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
    let recorded = SessionHolderDetails { process: None, job: Some(id.to_string()), lines: 0 };
    assert_eq!(holder(), Some(recorded), "only the record says so");
    std::fs::write(place.dir().job_transcript(&id), "{\"n\":1}\n{\"n\":2}\n").unwrap();
    let _held = lock(&format!("runner {id}"));
    let ours = holder().unwrap();
    assert_eq!((ours.job, ours.lines), (Some(id.to_string()), 2));
    assert!(ours.process.is_some());
    assert_eq!(records.session_holder("sess-none").unwrap_err().kind(), QueryErrorKind::NotFound);
}

#[test]
fn the_plan_of_a_run_is_the_file_that_it_began_with() {
    let place = QueryFixture::new();
    let config = "agents: [{name: coder, runtime: scripted, script: [{say: Done.}]}]";
    let workflow = "name: build\nagent: coder\nphases:\n  - {name: plan, prompt: Plan.}\n  \
                    - {name: work, prompt: Work., depends_on: [plan]}\n";
    let read = |path: &Utf8Path| {
        Ok(if path.ends_with("heeler.yaml") { config } else { workflow }.to_owned())
    };
    let file = place.root.join("heeler.yaml");
    let loaded = heeler_config::load(&file, &read, &Default::default()).unwrap();
    let settings = &loaded.fleets[0].workflows;
    let found = load_workflow_folder(
        &[settings.folder.join("build.yaml")],
        (&read, &|_| Vec::new()),
        &loaded.agents,
        settings,
    );
    let (hash, frozen) = freeze_workflow(&found.workflows[0]);
    let run = |number: u64, definition: Option<String>| WorkflowRunRow {
        head: WorkflowRunHead {
            id: WorkflowRunId::mint(NOW, number),
            workflow: "build".to_owned(),
            trigger_id: number.to_string(),
            trigger_type: None,
            current_phase: String::new(),
            status: WorkflowRunStatus::Running,
            restart_count: 0,
            started_at: NOW,
            updated_at: NOW,
            finished_at: None,
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
        definition,
        triggered_by: None,
        trigger_actor_type: None,
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
    let plan = records.workflow_run_phases(&ids[0]).unwrap();
    let phases: Vec<_> = plan.iter().map(|it| (it.name.as_str(), it.depends_on.len())).collect();
    assert_eq!(phases, [("plan", 0), ("work", 1)]);
    assert_eq!(plan[0].agent.as_deref(), Some("coder"));
    for unknown in &ids[1..] {
        assert_eq!(records.workflow_run_phases(unknown).unwrap(), [], "{unknown}");
    }
    assert_eq!(
        records.workflow_run_phases("run-none").unwrap_err().kind(),
        QueryErrorKind::NotFound
    );
}

/// Jobs of every status, with all fields that a list shows in several forms.
fn listed_jobs() -> Vec<Job> {
    (0..40_u32)
        .map(|number| {
            let at = NOW + SignedDuration::from_millis(i64::from(number / 3) * 86_400_010);
            let agent = ["coder", "team.writer"][number as usize % 2];
            let trigger = [TriggerType::Manual, TriggerType::from_word("a \"word\"")];
            let trigger = trigger[number as usize / 2 % 2].clone();
            let mut job = Job::new_pending(JobId::mint(at, number.into()), agent, trigger, at);
            job.head.status = JobStatus::ALL[number as usize % JobStatus::ALL.len()];
            if number % 3 == 0 {
                job.head.schedule = Some("hourly".to_owned());
                job.head.finished_at = Some(at + SignedDuration::from_millis(90_500));
                job.head.duration_ms = Some(90_500);
                job.head.cost_usd = Some(0.0123);
                job.head.exit_reason = Some(ExitReason::ALL[number as usize % 2]);
                job.head.session_id = Some("0b8c5d3e-aa01-4c2b-9a55-6d3f1f1f0001".parse().unwrap());
                job.run_started_at = Some(at + SignedDuration::from_millis(1));
            }
            if number % 5 == 0 {
                job.origin = Some("herdctl".to_owned());
                job.head.summary = Some("Zeile 1\nund \"Ü\" \u{7} \\ </script>".to_owned());
                job.error = Some("it failed".to_owned());
            }
            job
        })
        .collect()
}

#[test]
fn a_page_is_the_same_text_whether_it_is_written_from_rows_or_from_data() {
    let fleet = QueryFixture::new();
    let jobs = listed_jobs();
    let middle = jobs[20].head.id.to_string();
    fleet.write(move |tx| jobs.iter().try_for_each(|job| tx.insert_job(job)));
    let records = fleet.records(None);
    let mut pages = 0;
    for agent in [None, Some("coder".to_owned()), Some("writer".to_owned())] {
        for status in [None].into_iter().chain(JobStatus::ALL.iter().copied().map(Some)) {
            for (limit, since) in [(1, None), (7, None), (100, None), (7, Some(NOW))] {
                for before in [None, Some(middle.clone())] {
                    let agent = agent.clone();
                    let query = JobListQuery { agent, status, since, host: None, before, limit };
                    let mut text = Vec::new();
                    let page = records.with_job_lists(|lists| {
                        lists.write_page(&query, &mut text).unwrap();
                        lists.page(&query).unwrap()
                    });
                    let expected = serde_json::to_string(&page.unwrap()).unwrap();
                    assert_eq!(String::from_utf8(text).unwrap(), expected, "{query:?}");
                    pages += 1;
                }
            }
        }
    }
    assert!(pages > 100, "{pages}");
    let unknown = JobListQuery { before: Some("job-none".to_owned()), ..JobListQuery::default() };
    let found = records.with_job_lists(|lists| lists.write_page(&unknown, &mut Vec::new()));
    assert_eq!(found.unwrap().unwrap_err().kind(), QueryErrorKind::NotFound);
}

#[test]
fn pages_of_messages_of_all_conversations_have_each_message_once() {
    const CONVERSATIONS: usize = 7;
    const MESSAGES: usize = 150;
    let place = QueryFixture::new();
    place.write(|tx| {
        for thread in 0..CONVERSATIONS {
            let thread = thread.to_string();
            let at = ConversationPlace {
                agent: "coder",
                platform: "slack",
                chat: "C1",
                thread: Some(thread.as_str()),
            };
            tx.begin_conversation(&thread, at, NOW)?;
        }
        for number in 0..MESSAGES {
            // Some conversations have all their messages at the beginning, or at the end.
            let thread = (number * number / 5 + number / 40) % CONVERSATIONS;
            let message = ChatMessageRecord {
                role: "user".to_owned(),
                content: format!("Text {number} of {}", number % 3),
                at: NOW + SignedDuration::from_secs(number as i64),
            };
            tx.add_chat_message(&thread.to_string(), &message, None, None)?;
        }
        Ok(())
    });
    let records = place.records(None);
    for search in [None, Some("OF 1".to_owned())] {
        let expected = (0..MESSAGES).filter(|it| search.is_none() || it % 3 == 1);
        let expected: Vec<_> = expected.map(|it| format!("Text {it} of {}", it % 3)).collect();
        for limit in [1, 4, 50, 200] {
            let (mut texts, mut before) = (Vec::new(), None);
            loop {
                let query =
                    ChatMessageQuery { search: search.clone(), before, limit, channel: None };
                let page = records.chat_messages(&query).unwrap();
                assert!(page.messages.len() <= limit);
                texts.splice(0..0, page.messages.into_iter().map(|message| message.text));
                before = page.next;
                if before.is_none() {
                    break;
                }
            }
            assert_eq!(texts, expected, "{limit} {search:?}");
        }
    }
}
