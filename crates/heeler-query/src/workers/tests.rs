//! Which jobs are a worker's, and which workers are one.

use camino::Utf8Path;
use heeler_model::{AgentSessionId, Session, SessionId, SessionMode, TriggerType};
use heeler_store::{DatabaseError, StateDir, Store};
use jiff::Timestamp;

use super::*;

/// A record in which a test puts jobs, each a second after the one before.
struct WorkersFixture {
    _temp: tempfile::TempDir,
    dir: StateDir,
    store: Store,
    count: u32,
}

impl WorkersFixture {
    fn new() -> WorkersFixture {
        let temp = tempfile::tempdir().unwrap();
        let dir = StateDir::create(Utf8Path::from_path(temp.path()).unwrap()).unwrap();
        let store = Store::open(&dir, "test", Timestamp::UNIX_EPOCH).unwrap().store;
        WorkersFixture { _temp: temp, dir, store, count: 0 }
    }

    /// Begins a session, perhaps as a fork of another.
    fn session(&self, own: &str, mode: SessionMode, parent: Option<&str>) {
        let known = |own: &str| SessionId::mint(own.bytes().map(u32::from).sum());
        let mut session = Session::new(known(own), "coder", Timestamp::UNIX_EPOCH);
        session.agent_session_id = Some(own.parse().unwrap());
        (session.mode, session.parent) = (mode, parent.map(known));
        self.store.write::<_, DatabaseError, _>(move |tx| tx.put_session(&session)).unwrap();
    }

    /// Adds a job to a session; it belongs to a worker if it has a name and a parent job.
    fn job(&mut self, session: Option<&str>, worker: Option<(&str, &JobId)>) -> JobId {
        self.count += 1;
        let at = Timestamp::from_second(self.count.into()).unwrap();
        let trigger = worker.map_or(TriggerType::Manual, |_| TriggerType::Spawned);
        let mut job = Job::new_pending(JobId::mint(at, self.count.into()), "coder", trigger, at);
        job.head.session_id = session.map(|session| session.parse::<AgentSessionId>().unwrap());
        if let Some((name, parent)) = worker {
            job.trigger_id = parent.to_string();
            job.set_worker(name);
        }
        let id = job.head.id.clone();
        self.store.write::<_, DatabaseError, _>(move |tx| tx.insert_job(&job)).unwrap();
        id
    }

    fn workers(&self, of: &[&JobId]) -> Vec<(String, Vec<JobId>)> {
        let of: Vec<JobId> = of.iter().copied().cloned().collect();
        let listed = list_workers(&StoreReader::open(&self.dir).unwrap(), &of).unwrap();
        let ids =
            |worker: WorkerDetails| worker.jobs.iter().map(|job| job.head.id.clone()).collect();
        listed.into_iter().map(|worker| (worker.name.clone(), ids(worker))).collect()
    }
}

#[test]
fn what_people_ask_a_worker_is_its_own_only_in_a_session_that_is() {
    let mut record = WorkersFixture::new();
    record.session("own", SessionMode::FreshPerJob, None);
    record.session("shared", SessionMode::Persistent, None);
    let lead = record.job(Some("lead"), None);
    let before = record.job(Some("shared"), None);
    let one = record.job(Some("own"), Some(("coder-1", &lead)));
    let two = record.job(Some("shared"), Some(("coder-2", &lead)));
    let persons = record.job(Some("own"), None);
    let strangers = record.job(Some("shared"), None);
    let of_another = record.job(Some("own"), Some(("ada", &before)));
    let expected = [("coder-1".to_owned(), vec![one, persons]), ("coder-2".to_owned(), vec![two])];
    assert_eq!(record.workers(&[&lead]), expected, "not {strangers} nor {of_another}");
}

#[test]
fn workers_of_one_name_whom_no_session_knew_together_are_two() {
    let mut record = WorkersFixture::new();
    let fresh = SessionMode::FreshPerJob;
    for (own, parent) in [("first", None), ("fork", Some("first")), ("anew", None)] {
        record.session(own, fresh, parent);
    }
    let first = record.job(Some("first"), None);
    let one = record.job(Some("w1"), Some(("coder-1", &first)));
    let fork = record.job(Some("fork"), None);
    let more = record.job(Some("w1"), Some(("coder-1", &fork)));
    // It waits, so it has no session yet.
    let waits = record.job(None, Some(("coder-1", &fork)));
    let anew = record.job(Some("anew"), None);
    let other = record.job(Some("w2"), Some(("coder-1", &anew)));
    let again = record.job(Some("w2"), Some(("coder-1", &anew)));
    let expected = [
        ("coder-1".to_owned(), vec![one, more, waits]),
        ("coder-1.2".to_owned(), vec![other, again]),
    ];
    assert_eq!(record.workers(&[&first, &fork, &anew]), expected);
}
