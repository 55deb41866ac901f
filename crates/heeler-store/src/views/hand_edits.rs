//! Applies the supported changes that people make in views by hand.
//!
//! Two are documented: resetting a `status` in `state.yaml`, and deleting
//! `sessions/<agent>.json`. Enabling and disabling a schedule in `state.yaml` works too.

use camino::Utf8PathBuf;
use heeler_model::{AgentName, AgentState, AgentStatus, ScheduleStatus};
use indexmap::IndexMap;
use jiff::Timestamp;
use serde_json::Value;

use super::PublishedView;
use super::publish::{PublishError, is_own, move_aside, read_if_there, was_deleted_by_hand};
use super::view_node::ViewFormat;
use crate::db::{DatabaseError, StateDatabase, agents};
use crate::store_writer::StoreWriter;

/// A status that a person set in `state.yaml`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusEdit {
    pub agent: String,
    /// The schedule, if it is a schedule's status.
    pub schedule: Option<String>,
    pub old_status: String,
    pub new_status: String,
}

/// Changes made by hand; all of them are already in the database.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct HandEdits {
    /// Changed statuses. If such a run turns out to be alive, the caller restores the old state.
    pub statuses: Vec<StatusEdit>,
    /// States of agents before their status was reset.
    pub agents_before: Vec<(String, AgentState)>,
    /// Agents with a deleted session file: their next job starts a new session.
    pub detached: Vec<String>,
    /// Unreadable views, renamed to these paths.
    pub moved_aside: Vec<Utf8PathBuf>,
}

pub(crate) fn apply_hand_edits(
    store: &StoreWriter,
    now: Timestamp,
) -> Result<HandEdits, PublishError> {
    let mut edits = HandEdits::default();
    // The last leader may have published its views on another machine: those here prove nothing.
    if store.dir().host().is_some() {
        return Ok(edits);
    }
    let db = StateDatabase::reader_of(store.dir())?;
    apply_state_edits(store, &db, now, &mut edits)?;
    detach_deleted_sessions(store, &db, &mut edits)?;
    Ok(edits)
}

fn apply_state_edits(
    store: &StoreWriter,
    db: &StateDatabase,
    now: Timestamp,
    edits: &mut HandEdits,
) -> Result<(), PublishError> {
    let path = PublishedView::State.path();
    // A view that was never published cannot have been edited since.
    let Some(row) = db.view(&path)?.filter(|row| row.sha256.is_some()) else { return Ok(()) };
    let file = store.dir().root().join(&path);
    let found = match read_if_there(&file) {
        // An unchanged file holds nothing that a person wrote.
        Ok(Some(bytes)) if !is_own(&row, &bytes) => bytes,
        Ok(Some(bytes)) if bytes.is_empty() => {
            return Ok(store.write(|tx| tx.mark_view_due(&PublishedView::State))?);
        }
        Ok(_) => return Ok(()),
        Err(error) => {
            tracing::warn!(%error, "cannot read state.yaml");
            return Ok(());
        }
    };
    match ViewFormat::from_path(&path).parse(&found) {
        Ok(found) => apply_statuses(store, db.agents()?, &found, edits),
        Err(reason) => {
            tracing::warn!(%file, reason, "state.yaml cannot be read; it is renamed and kept");
            match move_aside(&file, now) {
                Ok(aside) => edits.moved_aside.push(aside),
                Err(error) => tracing::warn!(%error, "cannot rename state.yaml"),
            }
            // The view is published again, since its name is free now.
            Ok(store.write(|tx| tx.mark_view_due(&PublishedView::State))?)
        }
    }
}

fn apply_statuses(
    store: &StoreWriter,
    agents: IndexMap<String, AgentState>,
    found: &Value,
    edits: &mut HandEdits,
) -> Result<(), PublishError> {
    let mut changed = Vec::new();
    for (name, before) in agents {
        let mut agent = before.clone();
        // A missing agent in the file is no edit: removing agents by hand is not supported.
        let statuses = edited_statuses(&name, &mut agent, &found["agents"][&name]);
        if !statuses.is_empty() {
            edits.statuses.extend(statuses);
            // The old state is needed if the run turns out to be alive.
            edits.agents_before.push((name.clone(), before));
            changed.push((name, agent));
        }
    }
    // Marked even if no status changed, so that unknown keys are merged once and preserved.
    store.write(move |tx| {
        changed.iter().try_for_each(|(name, agent)| tx.put_agent(name, agent))?;
        tx.mark_view_due(&PublishedView::State)
    })?;
    Ok(())
}

/// Applies the statuses in the file to `agent`, and lists the changes. A status can never be
/// set to `running` by hand.
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
    // Only `idle` is accepted, because herdctl documents it as the remedy for a stuck agent.
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
    store: &StoreWriter,
    db: &StateDatabase,
    edits: &mut HandEdits,
) -> Result<(), PublishError> {
    for (agent, session) in agents::with_session(&db.conn)? {
        // Names of other systems may be no file names; such an agent has no view.
        let Ok(name) = agent.parse::<AgentName>() else { continue };
        let view = PublishedView::AgentSession(name.clone());
        let Some(row) = db.view(&view.path())? else { continue };
        let is_there = store.dir().agent_session(&name).symlink_metadata().is_ok();
        // A missing file counts as deleted only if it was published for this very session.
        if !is_there && was_deleted_by_hand(&row, Some(session.as_str())) {
            let detached = agent.clone();
            store.write::<(), DatabaseError, _>(move |tx| tx.set_agent_session(&detached, None))?;
            edits.detached.push(agent);
        }
    }
    Ok(())
}
