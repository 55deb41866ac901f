//! A fork whose first run was cut off: the agent may have made it already.
//!
//! An agent refuses to fork under a name that is taken, so what is there is gone on with, if it holds
//! all that the fork takes over. Start at [`Order::first_start`].

use camino::Utf8Path;
use heeler_model::chain;
use heeler_model::message::read_row;
use heeler_model::run::SessionStart;
use heeler_transcript::{Before, DiskError, range};
use uuid::Uuid;

use super::Order;
use crate::{own, session};

/// How many rows of the fork's log are looked at at once, from the end.
const PAGE_ROWS: usize = 64;

/// What the row of a fork has that says what it takes over.
const FORKED: &str = "forkedFrom";

impl Order<'_> {
    /// Returns how the session really starts, and why: as planned, but for a fork that was begun.
    pub(super) fn first_start(&self) -> Result<(SessionStart, String), String> {
        let plan = &self.spec.session;
        let as_planned = (plan.start.clone(), plan.reason.clone());
        let SessionStart::Fork { id, at, .. } = &plan.start else { return Ok(as_planned) };
        let own = self.own_sessions().and_then(|folder| self.find_own(&folder, id));
        let Some(own) = own else { return Ok(as_planned) };
        if self.is_whole(&own, *at).map_err(|error| chain(&error))? {
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
    fn is_whole(&self, own: &Utf8Path, at: Option<Uuid>) -> Result<bool, DiskError> {
        let log = session::log_path(self.spec, self.spec.session.start.id());
        let cut = match at {
            Some(at) => Some(at),
            None if log.is_file() => recorded_cut(&log)?,
            None => None,
        };
        cut.map_or(Ok(true), |cut| own::has(own, cut))
    }
}

/// Returns the last entry that a fork took over, as its first run recorded it.
fn recorded_cut(log: &Utf8Path) -> Result<Option<Uuid>, DiskError> {
    let mut before = Before::End;
    loop {
        let page = range(log, before, PAGE_ROWS)?;
        for record in page.records.iter().rev().filter(|record| record.text.contains(FORKED)) {
            let row = read_row(&record.text).unwrap_or_default();
            if row["type"] == "system" && row["subtype"] == "session" && row[FORKED].is_object() {
                let cut = row[FORKED]["messageUuid"].as_str();
                return Ok(cut.and_then(|cut| Uuid::try_parse(cut).ok()));
            }
        }
        if page.start == 0 {
            return Ok(None);
        }
        before = Before::Offset(page.start);
    }
}
