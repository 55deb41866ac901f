//! Takes over what people changed in the views by hand, where that means something.
//!
//! Two cures are promised: resetting a `status` in `state.yaml`, and deleting
//! `sessions/<agent>.json`. Switching a schedule off and on there works too.

use camino::Utf8PathBuf;
use heeler_model::{AgentName, AgentState, AgentStatus, ScheduleStatus};
use indexmap::IndexMap;
use jiff::Timestamp;
use serde_json::Value;

use super::PublishedView;
use super::publish::{PublishError, move_aside, read_if_there, sha256_hex, was_deleted_by_hand};
use super::view_node::ViewFormat;
use crate::db::{DatabaseError, StateDatabase, agents};
use crate::store::Store;

/// A status that somebody set in `state.yaml`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusEdit {
    /// The agent.
    pub agent: String,
    /// The schedule, when it is that one's status.
    pub schedule: Option<String>,
    /// What it was.
    pub old_status: String,
    /// What it is now.
    pub new_status: String,
}

/// What people changed by hand; all of it is already in the database.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct HandEdits {
    /// Statuses. Whoever finds that such a run lives writes the old state again.
    pub statuses: Vec<StatusEdit>,
    /// Agents as they were before their status was reset.
    pub agents_before: Vec<(String, AgentState)>,
    /// Agents whose session file was deleted: their next job starts afresh.
    pub detached: Vec<String>,
    /// Views that could not be read as what they are, kept under this name.
    pub moved_aside: Vec<Utf8PathBuf>,
}

pub(crate) fn apply_hand_edits(store: &Store, now: Timestamp) -> Result<HandEdits, PublishError> {
    let db = StateDatabase::open_read_only(&store.dir().database())?;
    let mut edits = HandEdits::default();
    apply_state_edits(store, &db, now, &mut edits)?;
    detach_deleted_sessions(store, &db, &mut edits)?;
    Ok(edits)
}

fn apply_state_edits(
    store: &Store,
    db: &StateDatabase,
    now: Timestamp,
    edits: &mut HandEdits,
) -> Result<(), PublishError> {
    let path = PublishedView::State.path();
    // What was never published was not edited since.
    let Some(row) = db.view(&path)?.filter(|row| row.sha256.is_some()) else { return Ok(()) };
    let file = store.dir().root().join(&path);
    let found = match read_if_there(&file) {
        Ok(Some(bytes)) if !row.is_published_hash(&sha256_hex(&bytes)) => bytes,
        Ok(_) => return Ok(()),
        Err(error) => {
            tracing::warn!(%error, "cannot read state.yaml");
            return Ok(());
        }
    };
    match ViewFormat::from_path(&path).parse(&found) {
        Ok(found) => apply_statuses(store, db.agents()?, &found, edits),
        Err(reason) => {
            tracing::warn!(%file, reason, "state.yaml cannot be read; it is kept beside");
            match move_aside(&file, now) {
                Ok(aside) => edits.moved_aside.push(aside),
                Err(error) => tracing::warn!(%error, "cannot move state.yaml aside"),
            }
            Ok(store.write(|tx| tx.mark_view_due(&PublishedView::State))?)
        }
    }
}

fn apply_statuses(
    store: &Store,
    agents: IndexMap<String, AgentState>,
    found: &Value,
    edits: &mut HandEdits,
) -> Result<(), PublishError> {
    let mut changed = Vec::new();
    for (name, before) in agents {
        let mut agent = before.clone();
        let statuses = edited_statuses(&name, &mut agent, &found["agents"][&name]);
        if !statuses.is_empty() {
            edits.statuses.extend(statuses);
            edits.agents_before.push((name.clone(), before));
            changed.push((name, agent));
        }
    }
    // Marked even if no status changed: keys of others go through our hands once and stay.
    store.write(move |tx| {
        changed.iter().try_for_each(|(name, agent)| tx.put_agent(name, agent))?;
        tx.mark_view_due(&PublishedView::State)
    })?;
    Ok(())
}

/// Applies to `agent` what the file says, and lists it. Nothing becomes `running` by hand.
fn edited_statuses(name: &str, agent: &mut AgentState, found: &Value) -> Vec<StatusEdit> {
    let mut edits = Vec::new();
    let mut note = |schedule: Option<&str>, was: &str, now: &str| {
        edits.push(StatusEdit {
            agent: name.to_owned(),
            schedule: schedule.map(str::to_owned),
            old_status: was.to_owned(),
            new_status: now.to_owned(),
        });
    };
    if found["status"] == AgentStatus::Idle.as_str() && agent.status != AgentStatus::Idle {
        note(None, agent.status.as_str(), AgentStatus::Idle.as_str());
        agent.status = AgentStatus::Idle;
        agent.current_job = None;
        agent.error_message = None;
    }
    for (schedule, state) in &mut agent.schedules {
        let word = found["schedules"][schedule]["status"].as_str();
        match word.and_then(|word| word.parse::<ScheduleStatus>().ok()) {
            Some(status) if status != state.status && status != ScheduleStatus::Running => {
                note(Some(schedule), state.status.as_str(), status.as_str());
                state.status = status;
            }
            _ => {}
        }
    }
    edits
}

fn detach_deleted_sessions(
    store: &Store,
    db: &StateDatabase,
    edits: &mut HandEdits,
) -> Result<(), PublishError> {
    for (agent, session) in agents::with_session(&db.conn)? {
        let Ok(name) = agent.parse::<AgentName>() else { continue };
        let view = PublishedView::AgentSession(name.clone());
        let Some(row) = db.view(&view.path())? else { continue };
        let is_there = store.dir().agent_session(&name).symlink_metadata().is_ok();
        if !is_there && was_deleted_by_hand(&row, Some(session.as_str())) {
            let detached = agent.clone();
            store.write::<(), DatabaseError, _>(move |tx| tx.set_agent_session(&detached, None))?;
            edits.detached.push(agent);
        }
    }
    Ok(())
}
