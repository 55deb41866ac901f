//! A fork whose first run was cut off: the agent may have made it already.
//!
//! An agent refuses to fork under a name that is taken, so what is there is gone on with, if it holds
//! all that the fork takes over. Start at [`RunExecutor::resolve_session_start`].

use camino::Utf8Path;
use heeler_model::error_chain;
use heeler_model::message::parse_row;
use heeler_model::run::SessionStart;
use heeler_transcript::{DiskError, PageBoundary, read_range};
use uuid::Uuid;

use super::RunExecutor;
use crate::{native_session, session};

/// How many rows of the fork's log are looked at at once, from the end.
const PAGE_ROWS: usize = 64;

/// What the row of a fork has that says what it takes over.
const FORKED_KEY: &str = "forkedFrom";

impl RunExecutor<'_> {
    /// Returns how the session really starts, and why: as planned, but for a fork that was begun.
    pub(super) fn resolve_session_start(&self) -> Result<(SessionStart, String), String> {
        let plan = &self.spec.session;
        let as_planned = (plan.start.clone(), plan.reason.clone());
        let SessionStart::Fork { id, at, .. } = &plan.start else { return Ok(as_planned) };
        let own =
            self.native_sessions_folder().and_then(|folder| self.find_native_session(&folder, id));
        let Some(own) = own else { return Ok(as_planned) };
        if self.is_complete_fork(&own, *at).map_err(|error| error_chain(&error))? {
            let reason = format!("{}; the agent had begun it when it was cut off", plan.reason);
            return Ok((SessionStart::Resume { id: id.clone() }, reason));
        }
        // It was cut off in the midst of copying: nobody has said anything in it.
        let aside = own.with_extension("jsonl.cut-off");
        std::fs::rename(&own, &aside)
            .map_err(|error| format!("cannot move the half-made {own} away: {error}"))?;
        Ok(as_planned)
    }

    /// Says whether the agent's record of a fork holds the entry at which it was cut. Where nobody
    /// knows that entry, the agent's word has to do.
    fn is_complete_fork(&self, own: &Utf8Path, at: Option<Uuid>) -> Result<bool, DiskError> {
        let log = session::log_path(self.spec, self.spec.session.start.id());
        let cut = match at {
            Some(at) => Some(at),
            None if log.is_file() => recorded_fork_point(&log)?,
            None => None,
        };
        cut.map_or(Ok(true), |cut| native_session::contains_entry(own, cut))
    }
}

/// Returns the last entry that a fork took over, as its first run recorded it.
fn recorded_fork_point(log: &Utf8Path) -> Result<Option<Uuid>, DiskError> {
    let mut before = PageBoundary::End;
    loop {
        let page = read_range(log, before, PAGE_ROWS)?;
        for record in page.records.iter().rev().filter(|record| record.text.contains(FORKED_KEY)) {
            let row = parse_row(&record.text).unwrap_or_default();
            if row["type"] == "system" && row["subtype"] == "session" && row[FORKED_KEY].is_object()
            {
                let cut = row[FORKED_KEY]["messageUuid"].as_str();
                return Ok(cut.and_then(|cut| Uuid::try_parse(cut).ok()));
            }
        }
        if page.start == 0 {
            return Ok(None);
        }
        before = PageBoundary::Offset(page.start);
    }
}
