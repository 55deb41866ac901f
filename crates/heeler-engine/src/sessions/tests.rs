//! Files, snapshots and worktrees of removed sessions, and expiry of sessions.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use heeler_model::{Session, SessionStatus};
use heeler_workspace::{SnapshotName, SnapshotStore, WorkTree};
use jiff::SignedDuration;

use camino::Utf8PathBuf;
use heeler_model::AgentSessionId;
use heeler_store::DatabaseError;

use super::*;
use crate::tests::EngineFixture;

const NOW: &str = "2026-11-15T12:00:00Z";

struct SessionsFixture {
    place: EngineFixture,
}

impl SessionsFixture {
    fn new() -> SessionsFixture {
        SessionsFixture { place: EngineFixture::new("success") }
    }

    /// Stores a session with a transcript that was last used some hours ago.
    fn session(&self, number: u32, parent: Option<&Session>, hours: i64) -> Session {
        let own: AgentSessionId = format!("{number:08}-own").parse().unwrap();
        let log = heeler_store::StateDir::session_log_relative(&self.place.root, &own);
        let session = Session {
            agent_session_id: Some(own),
            mode: heeler_model::SessionMode::Persistent,
            status: SessionStatus::Paused,
            last_active_at: now() - SignedDuration::from_hours(hours),
            parent: parent.map(|parent| parent.id.clone()),
            log_path: Some(log.clone()),
            ..Session::new(SessionId::mint(number), "coder", now())
        };
        let log = self.place.fleet.dir.root().join(log);
        fs::create_dir_all(log.parent().unwrap()).unwrap();
        fs::write(log, format!("{{\"n\":{number}}}\n")).unwrap();
        self.put(&session);
        session
    }

    fn put(&self, session: &Session) {
        let session = session.clone();
        let written =
            self.place.store().write::<_, DatabaseError, _>(move |tx| tx.put_session(&session));
        written.unwrap();
    }

    fn log(&self, session: &Session) -> Utf8PathBuf {
        self.place.fleet.dir.session_log_path(None, session).unwrap()
    }

    fn delete(&self, session: &Session, purge: bool) {
        let (home, id) = (self.place.root.join("home"), session.id.clone());
        let change = SessionChange::Delete { session: id, purge };
        let written =
            self.place.store().write::<_, DatabaseError, _>(move |tx| {
                match commit_change(tx, &home, &change, "test", now()) {
                    Ok(_) => Ok(()),
                    Err(DispatchFailure::Database(error)) => Err(error),
                    Err(DispatchFailure::Refused(refused)) => panic!("{}", refused.message),
                }
            });
        written.unwrap();
    }

    fn complete(&self, now: Timestamp) -> Result<(), String> {
        let home = self.place.root.join("home");
        sync_session_files(
            &self.place.fleet.dir,
            &home,
            &self.place.reader(),
            &SessionMoveLocks::default(),
            now,
        )
    }

    /// A repository of the user.
    fn repository(&self) -> (Utf8PathBuf, SnapshotStore) {
        let repo = self.place.root.join("repo");
        fs::create_dir(&repo).unwrap();
        fs::write(repo.join("file"), "1").unwrap();
        for args in [&["init", "-q"][..], &["add", "-A"], &["commit", "-qm", "first"]] {
            git(&repo, args);
        }
        let tree = WorkTree::find(&repo).unwrap().unwrap();
        let snapshots = SnapshotStore::open(&self.place.fleet.dir.workspaces(), &tree).unwrap();
        (repo, snapshots)
    }

    /// Names of the snapshots that are kept for a session.
    fn kept(&self, snapshots: &SnapshotStore, session: &Session) -> usize {
        let own = session.agent_session_id.as_ref().unwrap();
        snapshots.list(Some(&SnapshotName::parse(own.as_str()).unwrap())).unwrap().len()
    }
}

#[expect(clippy::disallowed_methods, reason = "makes a repository for the test")]
fn git(folder: &Utf8Path, args: &[&str]) {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=t", "-c", "user.email=t@localhost"]).args(args);
    let output = command.current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

#[test]
fn what_a_fork_of_a_fork_has_from_a_purged_session_stays_as_long_as_it() {
    let rig = SessionsFixture::new();
    let (repo, snapshots) = rig.repository();
    let first = rig.session(1, None, 0);
    let second = rig.session(2, Some(&first), 0);
    let third = rig.session(3, Some(&second), 0);
    let tree = WorkTree::find(&repo).unwrap().unwrap();
    let name = SnapshotName::parse(&format!("{}/1", first.agent_session_id.as_ref().unwrap()));
    snapshots.take(&tree, &name.unwrap(), "a turn", now()).unwrap();
    rig.delete(&first, true);
    rig.delete(&second, true);
    rig.complete(now()).unwrap();
    assert_eq!(rig.kept(&snapshots, &first), 1, "a fork of its fork lives");
    rig.delete(&third, false);
    rig.complete(now()).unwrap();
    assert_eq!(rig.kept(&snapshots, &first), 1, "it can come back");
    rig.delete(&third, true);
    rig.complete(now()).unwrap();
    rig.complete(now()).unwrap();
    assert_eq!(rig.kept(&snapshots, &first), 0);
    assert!(!rig.place.fleet.dir.trashed_session(&first.id).exists());
}

#[test]
fn a_worktree_of_no_session_goes_after_an_hour_and_what_was_in_it_is_kept() {
    let rig = SessionsFixture::new();
    let (repo, snapshots) = rig.repository();
    let tree = WorkTree::find(&repo).unwrap().unwrap();
    let name = SnapshotName::parse("of/1").unwrap();
    let taken = snapshots.take(&tree, &name, "a turn", now()).unwrap();
    let dir = &rig.place.fleet.dir;
    let add = |id: &SessionId| {
        let at = dir.worktrees().join(id.as_str());
        snapshots.add_worktree(&taken.commit, &at).unwrap().top
    };
    let known = rig.session(1, None, 0);
    let known_top = add(&known.id);
    let deleted = rig.session(2, None, 0);
    let deleted_top = add(&deleted.id);
    rig.delete(&deleted, false);
    let orphan = add(&SessionId::mint(3));
    fs::write(orphan.join("unsaved"), "1").unwrap();

    let made = Timestamp::try_from(orphan.metadata().unwrap().modified().unwrap()).unwrap();
    rig.complete(made + SignedDuration::from_mins(59)).unwrap();
    assert!(orphan.exists(), "a fork may be in the making");
    rig.complete(made + SignedDuration::from_mins(61)).unwrap();
    assert!(!orphan.exists());
    assert!(known_top.exists() && deleted_top.exists());
    let kept = snapshots.list(Some(&SnapshotName::parse("orphans").unwrap())).unwrap();
    let again = snapshots.add_worktree(&kept[0].1, &rig.place.root.join("again")).unwrap();
    assert_eq!(fs::read_to_string(again.top.join("unsaved")).unwrap(), "1");
}

#[test]
fn what_cannot_come_back_since_its_place_is_taken_stays_in_the_trash() {
    let rig = SessionsFixture::new();
    let session = rig.session(1, None, 0);
    let log = rig.log(&session);
    let beside = log.with_extension("context.md");
    fs::write(&beside, "beside").unwrap();
    rig.delete(&session, false);
    rig.complete(now()).unwrap();
    assert!(!log.exists() && !beside.exists());
    // Its row is restored, as after a crash, and it has new messages since.
    let id = session.id.clone();
    let raised = rig.place.store().write::<_, DatabaseError, _>(move |tx| tx.restore_session(&id));
    raised.unwrap();
    fs::write(&log, "{\"n\":\"newer\"}\n").unwrap();
    rig.complete(now()).unwrap();
    assert_eq!(fs::read_to_string(&log).unwrap(), "{\"n\":\"newer\"}\n");
    assert_eq!(fs::read_to_string(&beside).unwrap(), "beside");
    let trash = rig.place.fleet.dir.trashed_session(&session.id);
    let kept = trash.join(log.file_name().unwrap());
    assert_eq!(fs::read_to_string(kept).unwrap(), "{\"n\":1}\n");
    assert!(!trash.join("tombstone.json").exists());
}

#[test]
fn no_files_go_to_or_come_from_the_trash_through_a_link() {
    let rig = SessionsFixture::new();
    let (session, other) = (rig.session(1, None, 0), rig.session(2, None, 0));
    let dir = &rig.place.fleet.dir;
    let outside = rig.place.root.join("outside");
    fs::create_dir_all(&outside).unwrap();
    fs::create_dir_all(dir.trash().join("sessions")).unwrap();
    symlink(&outside, dir.trashed_session(&session.id)).unwrap();
    rig.delete(&session, false);
    let said = rig.complete(now()).unwrap_err();
    assert!(said.contains("is a symbolic link"), "{said}");
    assert!(rig.log(&session).exists());
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);

    let name = rig.log(&other).file_name().unwrap().to_owned();
    fs::remove_file(rig.log(&other)).unwrap();
    fs::write(outside.join(&name), "another's").unwrap();
    fs::remove_file(dir.trashed_session(&session.id)).unwrap();
    symlink(&outside, dir.trashed_session(&other.id)).unwrap();
    let said = rig.complete(now()).unwrap_err();
    assert!(said.contains("is a symbolic link"), "{said}");
    assert_eq!(fs::read_to_string(outside.join(&name)).unwrap(), "another's");
}

#[test]
fn a_session_has_expired_when_no_schedule_of_its_agent_would_go_on_with_it() {
    let rig = SessionsFixture::new();
    let sessions = [rig.session(1, None, 1), rig.session(2, None, 5), rig.session(3, None, 30)];
    let check = |agent: &str, expected: &[usize]| {
        let config = format!(
            "agents:\n  - {{name: coder, runtime: scripted, script: [{{say: hi}}], {agent}}}\n"
        );
        let setup = rig.place.setup(&config);
        let found =
            heeler_store::expired_sessions(&rig.place.reader(), &setup.loaded, now(), 9).unwrap();
        let mut found: Vec<_> = found.into_iter().map(|session| session.id).collect();
        found.sort();
        let mut wanted: Vec<_> = expected.iter().map(|&at| sessions[at].id.clone()).collect();
        wanted.sort();
        assert_eq!(found, wanted, "{agent}");
    };
    let schedule = |session: &str| {
        format!(
            "session: {{mode: persistent, timeout: 2h}}, \
             schedules: {{daily: {{type: interval, interval: 1d, prompt: go, session: {session}}}}}"
        )
    };
    check("session: {mode: persistent, timeout: 2h}", &[1, 2]);
    check(&schedule("{mode: persistent, timeout: 24h}"), &[2]);
    check(&schedule("{mode: persistent, timeout: 1h}"), &[1, 2]);
    // An agent with a fresh session per job continues none.
    check(&schedule("{mode: fresh_per_job}"), &[1, 2]);
}

#[test]
fn one_session_that_cannot_be_restored_keeps_no_other_in_the_trash() {
    let rig = SessionsFixture::new();
    let sessions: Vec<Session> = (1..8).map(|number| rig.session(number, None, 0)).collect();
    sessions.iter().for_each(|session| rig.delete(session, false));
    rig.complete(now()).unwrap();
    let ids: Vec<SessionId> = sessions.iter().map(|session| session.id.clone()).collect();
    // As a daemon leaves it that died between the record and the moves.
    let back = move |tx: &mut heeler_store::StoreTransaction<'_>| {
        ids.iter().try_for_each(|id| tx.restore_session(id).map(drop))
    };
    rig.place.store().write::<_, DatabaseError, _>(back).unwrap();
    let (good, broken) = sessions.split_last().unwrap();
    for session in broken {
        let trash = rig.place.fleet.dir.trashed_session(&session.id);
        let aside = trash.with_extension("aside");
        fs::rename(&trash, &aside).unwrap();
        symlink(&aside, &trash).unwrap();
    }
    rig.complete(now()).unwrap_err();
    assert!(rig.log(good).is_file());
    assert!(!rig.log(&broken[0]).is_file());
}
