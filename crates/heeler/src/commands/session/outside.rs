//! What somebody said in a session with the agent's own program, and no job has taken in yet.

use std::collections::HashSet;

use camino::Utf8Path;
use heeler_model::record::OUTSIDE_KEY;
use heeler_model::{Session, SessionStatus};
use heeler_store::history::{Cut, History, HistoryMessage, history};
use heeler_store::native::Cleaner;
use serde_json::Value;

use super::past::NOT_TAKEN_IN;
use super::show::Page;
use crate::failure::{Code, Failure, Outcome};

/// Adds to the last page of a session what is in the agent's own file behind the place where we left
/// it, without secrets. While a run is at work, what is there is its own.
pub(super) fn add(
    session: &Session,
    own: Option<&Utf8Path>,
    page: &Page,
    secrets: &[String],
    past: &mut History,
) -> Outcome {
    let (Some(left), Some(own)) = (&session.own, own.filter(|own| own.is_file())) else {
        return Ok(());
    };
    if page.before.is_some() || session.status == SessionStatus::Active {
        return Ok(());
    }
    let failed = |error| Failure::new(Code::Failed, error);
    let added = heeler_runner::said_outside(own, left).map_err(failed)?;
    let known: HashSet<&str> = past.messages.iter().flat_map(uuids).collect();
    let added: HashSet<&str> = added.iter().filter_map(uuid).collect();
    let added: HashSet<&str> = added.difference(&known).copied().collect();
    if added.is_empty() {
        return Ok(());
    }
    let all = history(own, Some(own), None, page.count);
    let mut all = all.map_err(|error| Failure::new(Code::Failed, error))?;
    all.messages.retain(|message| uuids(message).any(|uuid| added.contains(uuid)));
    Cleaner::new(secrets).history(&mut all);
    for message in &mut all.messages {
        message.cut = Cut::Unsafe("it is not taken in yet");
        message.rows.iter_mut().for_each(|row| row[OUTSIDE_KEY] = NOT_TAKEN_IN.into());
    }
    past.messages.append(&mut all.messages);
    Ok(())
}

fn uuid(row: &Value) -> Option<&str> {
    row["uuid"].as_str()
}

fn uuids(message: &HistoryMessage) -> impl Iterator<Item = &str> {
    message.rows.iter().filter_map(uuid)
}
