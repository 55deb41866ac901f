//! What somebody else did with the session since we left it.
//!
//! The agent has no lock of its own: whoever resumes a session in a terminal adds to its record. Before
//! a run goes on with a session, that record is compared with the place where we left it. Nothing is
//! written to it here. Start at [`Order::outside`].

use camino::Utf8Path;
use heeler_model::outcome::{Conclusion, Ending, Tally};
use heeler_model::record::{OUTSIDE_KEY, Rows};
use heeler_model::run::{End, ErrorClass, RunError, RunResult, SessionStart};
use heeler_model::{AgentSessionId, chain};
use serde_json::Value as Json;

use super::Order;
use super::prepare::Unprepared;
use crate::fault::{self, Point};
use crate::journal::Journal;
use crate::own::{self, Since};
use crate::session;

/// What others said, and what the job's log says of it.
#[derive(Debug, Default)]
pub(super) struct Outside {
    rows: Vec<Json>,
    /// None where nobody went on.
    pub(super) note: Option<String>,
}

impl Order<'_> {
    /// Looks whether somebody else went on with the session; without leave to take that in, the run
    /// has ended with this result. Called under the session's lock.
    pub(super) fn outside(&self) -> Result<Outside, Box<RunResult>> {
        let plan = &self.spec.session;
        let (SessionStart::Resume { id } | SessionStart::Continue { source: id, .. }) = &plan.start
        else {
            return Ok(Outside::default());
        };
        let found = self.own_sessions().and_then(|folder| self.find_own(&folder, id));
        let (Some(left), Some(own)) = (&plan.own, found) else { return Ok(Outside::default()) };
        let since = match own::since(&own, left) {
            Ok(since) => since,
            Err(error) => return Err(Box::new(self.not_started(chain(&error)))),
        };
        if !since.has_moved_on() {
            return Ok(Outside::default());
        }
        let told = told(&since, &own);
        if !plan.take_in {
            return Err(Box::new(self.moved_on(&told)));
        }
        // Of a session that another goes on from, nothing is written: the new one has the rest.
        let goes_on = matches!(plan.start, SessionStart::Resume { .. });
        let rows = if goes_on { since.added } else { Vec::new() };
        Ok(Outside { rows, note: Some(format!("{told}; it is taken in, as asked")) })
    }

    /// Finds the agent's own record of a session.
    pub(super) fn find_own(
        &self,
        folder: &Utf8Path,
        id: &AgentSessionId,
    ) -> Option<camino::Utf8PathBuf> {
        own::find(folder, &self.spec.working_directory, id)
    }

    fn moved_on(&self, message: &str) -> RunResult {
        let error = Some(RunError::of(ErrorClass::SessionMovedOn, message));
        let reason = message.to_owned();
        let conclusion = Tally::new().conclude(&Ending::NotStarted { reason });
        let mut result = self.bare(End::Finished, Conclusion { error, ..conclusion });
        result.redact(self.host.redactor());
        result
    }

    /// Adds what others said to the session's log, as far as it is not there: a run before may have
    /// been cut off in this.
    pub(super) fn take_in(
        &self,
        outside: &mut Outside,
        journal: &mut Journal,
    ) -> Result<(), Unprepared> {
        if outside.rows.is_empty() {
            return Ok(());
        }
        let known = session::row_ids(&session::log_path(self.spec, self.spec.session.start.id()))?;
        let mut rows = std::mem::take(&mut outside.rows);
        rows.retain(|row| row["uuid"].as_str().is_none_or(|uuid| !known.contains(uuid)));
        rows.iter_mut().for_each(|row| row[OUTSIDE_KEY] = true.into());
        journal.push(Rows { session: rows, ..Rows::default() });
        journal.flush(&mut |_, _| {}).map_err(Unprepared::Refused)?;
        fault::point(Point::TakenIn);
        Ok(())
    }
}

/// Says what happened, for people.
fn told(since: &Since, own: &Utf8Path) -> String {
    let count = since.messages();
    let added = match count {
        1 => "1 message was added".to_owned(),
        count => format!("{count} messages were added"),
    };
    let last = since.added.last().and_then(|row| row["timestamp"].as_str());
    let last = last.map(|at| format!(", the last at {at}")).unwrap_or_default();
    if since.is_other {
        return format!(
            "the agent's own record of the session ({own}) is another one than we left: what was \
             said last is not in it any more, and {added} to it{last}"
        );
    }
    match since.dropped {
        0 => format!(
            "somebody else went on with the session: {added} to the agent's own record ({own}){last}"
        ),
        dropped => format!(
            "somebody else wrote to the session at the same time: {added} to the agent's own record \
             ({own}){last}, and it goes on from those, so that the agent does not remember the last \
             {dropped} of this session"
        ),
    }
}
