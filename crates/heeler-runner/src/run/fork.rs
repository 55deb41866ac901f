//! A fork with an interrupted first run: the agent may have created it already.
//!
//! An agent refuses to fork under a name that is taken, so an existing fork is continued if it
//! holds everything that the fork takes over. Start at [`RunExecutor::resolve_session_start`].

use camino::Utf8Path;
use heeler_config::RuntimeType;
use heeler_model::error_chain;
use heeler_model::job_row::{JobRow, JobRowKind};
use heeler_model::message::parse_row;
use heeler_model::run::SessionStart;
use heeler_transcript::{DiskError, PageBoundary, read_range};
use uuid::Uuid;

use super::executor::RunExecutor;
use crate::codex::CODEX_AGENT;
use crate::conversation_text::is_handed_over;
use crate::native_fork::find_native_fork;
use crate::{native_session, session};

/// Number of transcript rows read per page, from the end.
const PAGE_ROWS: usize = 64;

/// Key in a fork's row that names its source.
const FORKED_KEY: &str = "forkedFrom";

impl RunExecutor<'_> {
    /// Returns the actual start of the session, and the reason: as planned, except for a fork that
    /// was begun.
    pub(super) fn resolve_session_start(&self) -> Result<(SessionStart, String), String> {
        let plan = &self.spec.session;
        let as_planned = (plan.start.clone(), plan.reason.clone());
        let SessionStart::Fork { id, at, .. } = &plan.start else { return Ok(as_planned) };
        let is_handed_over = is_handed_over(self.spec).map_err(|error| error_chain(&error))?;
        let native_file =
            self.native_sessions_folder().and_then(|folder| self.find_native_session(&folder, id));
        if is_handed_over {
            let agent = match self.spec.runtime {
                RuntimeType::Codex => CODEX_AGENT,
                _ => self.agent_program(),
            };
            let native = find_native_fork(self.spec, agent).map_err(|error| error_chain(&error))?;
            // The agent tells whether it can, and a row of the runtime says so.
            let how = match native {
                Some(_) => "the agent forks its own session if it can",
                None => "the agent gets the conversation as text",
            };
            let reason = format!("{}; {how}", plan.reason);
            let id = id.clone();
            // An interrupted run has sent the conversation already.
            return Ok(match native_file {
                Some(_) => (SessionStart::Resume { id }, reason),
                None => (SessionStart::Fresh { id }, reason),
            });
        }
        let Some(native_file) = native_file else { return Ok(as_planned) };
        // The agent refuses to fork again under the same ID, so an existing file must be dealt
        // with.
        if self.is_complete_fork(&native_file, *at).map_err(|error| error_chain(&error))? {
            let reason =
                format!("{}; the agent had begun the fork before the interruption", plan.reason);
            return Ok((SessionStart::Resume { id: id.clone() }, reason));
        }
        // The copy was interrupted: the fork holds no messages of its own.
        let moved_to = native_file.with_extension("jsonl.cut-off");
        std::fs::rename(&native_file, &moved_to)
            .map_err(|error| format!("cannot move the incomplete {native_file} away: {error}"))?;
        Ok(as_planned)
    }

    /// Returns true if the native session of a fork holds the fork point. If the fork point is
    /// unknown, the agent's record is trusted.
    fn is_complete_fork(
        &self,
        native_file: &Utf8Path,
        at: Option<Uuid>,
    ) -> Result<bool, DiskError> {
        let log = session::log_path(self.spec, self.spec.session.start.id());
        let cut = match at {
            Some(at) => Some(at),
            None if log.is_file() => recorded_fork_point(&log)?,
            None => None,
        };
        cut.map_or(Ok(true), |cut| native_session::contains_entry(native_file, cut))
    }
}

/// Returns the last entry that a fork took over, as recorded by its first run.
fn recorded_fork_point(log: &Utf8Path) -> Result<Option<Uuid>, DiskError> {
    let mut before = PageBoundary::End;
    loop {
        let page = read_range(log, before, PAGE_ROWS)?;
        // The text is searched first, because parsing every row would be slow.
        for record in page.records.iter().rev().filter(|record| record.text.contains(FORKED_KEY)) {
            let row = JobRow::new(parse_row(&record.text).unwrap_or_default());
            let source = &row.as_json()[FORKED_KEY];
            let is_session = row.kind() == JobRowKind::System { subtype: "session" };
            // Other rows may contain the key too; only the one that begins the session counts.
            if is_session && source.is_object() {
                let cut = source["messageUuid"].as_str();
                return Ok(cut.and_then(|cut| Uuid::try_parse(cut).ok()));
            }
        }
        if page.start == 0 {
            return Ok(None);
        }
        before = PageBoundary::Offset(page.start);
    }
}
