//! Former states of a session's files that can be restored. Start at [`FleetReader::plan_rewind`].
//!
//! Nothing is changed here: the caller restores the files with the plan.

use camino::Utf8PathBuf;
use heeler_model::{AgentSessionId, Session};
use heeler_store::history::snapshots;
use heeler_workspace::{CommitId, SnapshotName, SnapshotStore, WorkTree};
use jiff::Timestamp;
use uuid::Uuid;

use crate::diff::{DiffBase, find_work_tree, no_snapshot, parse_commit};
use crate::{FleetReader, QueryError, sessions};

/// First part of the names of states that were recorded before files were restored.
const STATE_PREFIX: &str = "rewind-";

/// State of the files to restore.
#[derive(Debug, Clone, PartialEq)]
pub enum RewindTarget {
    /// Before the first turn of the session.
    Start,
    /// At a message, or at the last message before it with a snapshot.
    Message(u64),
    /// The same for the message that ends with an entry.
    Entry(Uuid),
    /// State that was recorded before an earlier restoration.
    State(String),
}

/// Checked data with which the files of a session can be restored.
#[derive(Debug)]
pub struct RewindPlan {
    pub session: Session,
    pub snapshots: SnapshotStore,
    pub tree: WorkTree,
    pub commit: CommitId,
    /// Remark about the state.
    pub note: Option<String>,
    /// Name under which the current state will be recorded.
    pub undo: SnapshotName,
    /// Lock of the session. Its holder keeps agents from starting in the session.
    pub lock: Option<Utf8PathBuf>,
}

impl RewindPlan {
    /// Returns the name of the current state, for [`RewindTarget::State`].
    pub fn undo_state(&self) -> &str {
        state_name(&self.undo)
    }
}

impl FleetReader {
    /// Finds the state of a session's files to restore, and checks that it can be done now.
    pub fn plan_rewind(
        &self,
        id: &str,
        target: &RewindTarget,
        now: Timestamp,
    ) -> Result<RewindPlan, QueryError> {
        let known = self.context();
        let session = sessions::find_session(&*self.reader()?, id)?;
        let log =
            self.session_transcript_path(&known, &session).ok_or_else(|| no_snapshot(&session))?;
        let noted = snapshots(&log)?;
        let last = &noted.last().ok_or_else(|| no_snapshot(&session))?.snapshot;
        let tree = find_work_tree(&session, last).ok_or_else(|| {
            refused(
                format!(
                    "the files of session {} are not on this machine, or have moved",
                    session.id
                ),
                "heeler session fork ID --workspace makes a copy of a former state",
            )
        })?;
        let native_id = session.agent_session_id.clone().ok_or_else(|| no_snapshot(&session))?;
        // The state directory may be inside the work tree.
        let snapshots = SnapshotStore::open(&self.dir().workspaces(), &tree)?
            .excluding(&[self.dir().root().to_owned()]);
        let (commit, note) = match target {
            RewindTarget::State(state) => {
                let name = parse_state(&native_id, state)?;
                let commit = snapshots.commit_of(&name)?;
                let none = || {
                    QueryError::not_found(
                        format!("session {} has no recorded state `{state}`", session.id),
                        "heeler session rewind ID --list shows them",
                    )
                };
                (commit.ok_or_else(none)?, None)
            }
            RewindTarget::Start => {
                let is_first = |id: &Option<AgentSessionId>| id.as_ref() == Some(&native_id);
                let first = noted.iter().find(|it| is_first(&it.initial_session));
                let first = first.ok_or_else(|| no_state(&session, "before the first turn"))?;
                require_repository(&first.snapshot.repository, &snapshots)?;
                (parse_commit(&first.snapshot.commit)?, None)
            }
            RewindTarget::Message(_) | RewindTarget::Entry(_) => {
                let number = match target {
                    RewindTarget::Entry(entry) => {
                        sessions::find_last_message(&log, |it| it.uuid == Some(*entry))?
                    }
                    RewindTarget::Message(number) => Some(*number),
                    _ => None,
                };
                let none = || no_state(&session, "at that message or before it");
                let number = number.ok_or_else(none)?;
                let base = DiffBase::at_message(&log, number)?.ok_or_else(none)?;
                require_repository(&base.note.repository, &snapshots)?;
                (parse_commit(&base.note.commit)?, base.message)
            }
        };
        self.require_idle_files(&session, &tree)?;
        let undo = now.strftime("%Y%m%dT%H%M%S").to_string();
        let undo = format!("{STATE_PREFIX}{undo}-{:03}", now.subsec_millisecond());
        let undo = parse_state(&native_id, &undo)?;
        let lock = known.home.map(|home| home.join("locks").join(native_id.as_str()));
        Ok(RewindPlan { session, snapshots, tree, commit, note, undo, lock })
    }

    /// Lists the states of a session's files that were recorded before restorations, newest first.
    pub fn rewind_states(&self, id: &str) -> Result<Vec<(String, CommitId)>, QueryError> {
        let session = sessions::find_session(&*self.reader()?, id)?;
        let Some(native_id) = &session.agent_session_id else { return Ok(Vec::new()) };
        // An ID that is no snapshot name never had snapshots.
        let Ok(prefix) = SnapshotName::parse(native_id.as_str()) else { return Ok(Vec::new()) };
        let dir = self.dir().workspaces();
        let mut found = Vec::new();
        for key in SnapshotStore::keys(&dir)? {
            let named = SnapshotStore::open_key(&dir, &key)?.list(Some(&prefix))?;
            let states = named.into_iter().filter(|(name, _)| is_state(name));
            found.extend(states.map(|(name, commit)| (state_name(&name).to_owned(), commit)));
        }
        found.sort_unstable_by(|a, b| b.cmp(a));
        Ok(found)
    }

    /// Makes sure that no agent works in the files.
    fn require_idle_files(&self, session: &Session, tree: &WorkTree) -> Result<(), QueryError> {
        if let Some(holder) = self.session_holder(session.id.as_str())? {
            let by = holder.job.or(holder.process).unwrap_or_default();
            return Err(refused(
                format!("session {} is in use by {by}", session.id),
                "wait for its end, or cancel the job",
            ));
        }
        let reader = self.reader()?;
        for head in reader.running_jobs()? {
            let Some(job) = reader.job(&head.id)? else { continue };
            let folder = job.working_directory.and_then(|folder| folder.canonicalize_utf8().ok());
            if folder.is_some_and(|folder| folder.starts_with(&tree.top)) {
                return Err(refused(
                    format!("job {} of agent {} works in {}", head.id, head.agent, tree.top),
                    "wait for its end, or cancel the job",
                ));
            }
        }
        Ok(())
    }
}

fn refused(message: String, hint: &str) -> QueryError {
    QueryError::Refused { message, hint: Some(hint.to_owned()) }
}

fn no_state(session: &Session, moment: &str) -> QueryError {
    refused(
        format!("no snapshot of the files of session {} was taken {moment}", session.id),
        "heeler session show ID --history numbers the messages",
    )
}

/// Refuses a state of another repository: the directory was replaced since.
fn require_repository(key: &str, snapshots: &SnapshotStore) -> Result<(), QueryError> {
    if key == snapshots.key() {
        return Ok(());
    }
    Err(refused(
        "that state belongs to another repository than the one in the working directory now"
            .to_owned(),
        "heeler session fork ID --workspace makes a copy of it",
    ))
}

/// Returns the complete name of a state.
fn parse_state(native_id: &AgentSessionId, state: &str) -> Result<SnapshotName, QueryError> {
    let name = SnapshotName::parse(&format!("{native_id}/{state}"));
    let name = name.map_err(|error| QueryError::usage(error.to_string()))?;
    match is_state(&name) {
        true => Ok(name),
        false => Err(QueryError::usage(format!(
            "`{state}` is not a recorded state; heeler session rewind ID --list shows them"
        ))),
    }
}

fn state_name(name: &SnapshotName) -> &str {
    name.as_str().rsplit_once('/').map_or(name.as_str(), |(_, state)| state)
}

fn is_state(name: &SnapshotName) -> bool {
    state_name(name).starts_with(STATE_PREFIX)
}
