//! What state sessions are in now.
//!
//! The record of one that was not used for too long says so only when a daemon has looked through
//! them, and there may be none. Whoever looks is told what is true.

use heeler_engine::{expired, has_expired};
use heeler_model::config::Loaded;
use heeler_model::{Session, SessionStatus};
use heeler_store::{Reader, SessionCursor, SessionFilter};
use jiff::Timestamp;

use crate::failure::Outcome;
use crate::fleet::Fleets;
use crate::place::{self, Place};

/// Knows by which rules sessions expire; without a config none does.
pub(super) struct Truth {
    loaded: Option<Loaded>,
    now: Timestamp,
}

impl Truth {
    /// Reads the rules.
    pub(super) fn of(place: &Place) -> Outcome<Truth> {
        Ok(Truth { loaded: Fleets::of(place)?.into_loaded(), now: place::now() })
    }

    /// Returns the state that a session is in.
    pub(super) fn status(&self, session: &Session) -> SessionStatus {
        let has_expired = |loaded| has_expired(session, loaded, self.now);
        match self.loaded.as_ref().is_some_and(has_expired) {
            true => SessionStatus::Expired,
            false => session.status,
        }
    }

    /// Lists sessions that have expired and whose records do not say so yet.
    pub(super) fn unrecorded(&self, reader: &Reader) -> Outcome<Vec<Session>> {
        match &self.loaded {
            Some(loaded) => Ok(expired(reader, loaded, self.now, usize::MAX)?),
            None => Ok(Vec::new()),
        }
    }

    /// Returns a page of sessions, and how many the filter shows. Their states are as recorded.
    pub(super) fn page(
        &self,
        reader: &Reader,
        filter: &SessionFilter,
        before: Option<&SessionCursor>,
        limit: usize,
    ) -> Outcome<(Vec<Session>, i64)> {
        let recorded = reader.count_sessions(filter)?;
        let Some(status) = filter.status else {
            return Ok((reader.sessions(filter, before, limit)?, recorded));
        };
        let mut unrecorded = self.unrecorded(reader)?;
        unrecorded.retain(|session| is_shown(filter, session));
        if status == SessionStatus::Expired {
            let mut page = reader.sessions(filter, before, limit)?;
            let total = recorded + unrecorded.len() as i64;
            unrecorded.retain(|session| before.is_none_or(|before| comes_after(session, before)));
            page.extend(unrecorded);
            page.sort_by(|a, b| (b.last_active_at, &b.id).cmp(&(a.last_active_at, &a.id)));
            page.truncate(limit);
            return Ok((page, total));
        }
        unrecorded.retain(|session| session.status == status);
        let hidden = unrecorded.len();
        let mut page = reader.sessions(filter, before, limit.saturating_add(hidden))?;
        page.retain(|session| self.status(session) == status);
        page.truncate(limit);
        Ok((page, recorded - hidden as i64))
    }
}

/// Says whether a filter shows a session, whatever state it wants.
fn is_shown(filter: &SessionFilter, session: &Session) -> bool {
    let of_channel = |wanted: &String| {
        let rest = session.channel_id.as_deref().and_then(|id| id.strip_prefix(wanted.as_str()));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    filter.agent.as_ref().is_none_or(|agent| session.agent == *agent)
        && filter.channel.as_ref().is_none_or(of_channel)
        && filter.since.is_none_or(|since| session.last_active_at >= since)
}

fn comes_after(session: &Session, before: &SessionCursor) -> bool {
    (session.last_active_at, &session.id) < (before.last_active_at, &before.id)
}
