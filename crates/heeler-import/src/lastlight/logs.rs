//! Import of the transcripts of Last Light's sessions; each becomes a session.

use heeler_model::{AgentSessionId, Session, SessionMode};
use heeler_store::staging::state_files::{self, PutOutcome};
use heeler_store::{UNKNOWN_AGENT, idle_session};
use jiff::Timestamp;

use super::LastLightImport;
use super::read::{LastLightRow, chat_session};
use crate::import_error::ImportError;
use crate::message_count::count_messages;
use crate::report::ImportItemKind;
use crate::source::unsafe_name;

/// Directory in which both Last Light and Heeler keep session transcripts.
const PROJECTS: &str = "agent-sessions/projects";

/// Prefix of sub-agents' transcripts. Their names do not contain the session.
const SUB_AGENT: &str = "agent-";

/// Sessions per sync and transaction.
const BATCH: usize = 500;

impl LastLightImport<'_> {
    /// Copies all transcripts and creates a session for each.
    pub(super) fn session_logs(&mut self, threads: &[LastLightRow]) -> Result<(), ImportError> {
        let mut batch = Vec::new();
        for slug in self.source.names(PROJECTS, ImportItemKind::Transcript, &mut self.report) {
            let folder = format!("{PROJECTS}/{slug}");
            if let Some(reason) = unsafe_name(&slug) {
                self.report.refuse(ImportItemKind::Transcript, folder, reason);
                continue;
            }
            for name in self.source.names(&folder, ImportItemKind::Transcript, &mut self.report) {
                let relative = format!("{folder}/{name}");
                batch.extend(self.log(&relative, &name, threads)?);
                if batch.len() >= BATCH {
                    self.put_sessions(std::mem::take(&mut batch))?;
                }
            }
        }
        // No later commit syncs the transcripts of sub-agents, because they have no row.
        state_files::sync(self.target.dir().root())?;
        self.put_sessions(batch)
    }

    /// Copies one transcript; returns the session to create for it.
    fn log(
        &mut self,
        relative: &str,
        name: &str,
        threads: &[LastLightRow],
    ) -> Result<Option<Session>, ImportError> {
        let Some(stem) = name.strip_suffix(".jsonl").filter(|stem| !stem.starts_with('.')) else {
            return Ok(None);
        };
        let id: AgentSessionId = match stem.parse() {
            Ok(id) => id,
            Err(error) => {
                self.report.refuse(ImportItemKind::Transcript, relative, format!("{error}"));
                return Ok(None);
            }
        };
        // A sub-agent's transcript belongs to a session that its name does not show.
        let is_sub_agent = stem.starts_with(SUB_AGENT);
        let known = match is_sub_agent {
            true => None,
            false => self.target.db().session_by_agent_id(&id)?,
        };
        // The same import has run before.
        if let Some(known) =
            known.as_ref().filter(|it| it.log_path.as_deref() == Some(relative.into()))
        {
            self.correct_channel(known, threads)?;
            self.report.count_existing(ImportItemKind::Transcript);
            self.report.count_existing(ImportItemKind::Session);
            return Ok(None);
        }
        let mut file = match self.source.file(relative) {
            Ok(file) => file,
            Err(reason) => {
                self.report.refuse(ImportItemKind::Transcript, relative, reason);
                return Ok(None);
            }
        };
        // Read before the copy, which has a new time.
        let written_at = file.metadata().and_then(|meta| meta.modified()).ok();
        let written_at = written_at.and_then(|at| Timestamp::try_from(at).ok());
        let to = self.target.path(relative)?;
        state_files::create_folder(to.parent().expect("a log lies in its project's folder"))?;
        // An existing transcript is never replaced: it may have grown since.
        match state_files::put_new(&mut file, &to)? {
            PutOutcome::New => self.report.count_imported(ImportItemKind::Transcript),
            PutOutcome::Same | PutOutcome::Grown => {
                self.report.count_existing(ImportItemKind::Transcript);
            }
            PutOutcome::NameTaken => {
                self.report.refuse(ImportItemKind::Transcript, relative, state_files::NAME_TAKEN);
                return Ok(None);
            }
        }
        if known.is_some() {
            // The session has transcripts in two projects, and keeps the first.
            self.report.count_existing(ImportItemKind::Session);
            return Ok(None);
        }
        if is_sub_agent {
            return Ok(None);
        }
        let mut session = self.session(id, written_at.unwrap_or(self.now), threads)?;
        session.message_count = count_messages(&to)
            .map_err(|error| ImportError::Write { path: to, source: error.source })?;
        session.log_path = Some(relative.into());
        session.origin = Some(self.origin.clone());
        Ok(Some(session))
    }

    /// Corrects the channel of a session that an earlier release imported in another form.
    fn correct_channel(
        &self,
        known: &Session,
        threads: &[LastLightRow],
    ) -> Result<(), ImportError> {
        let id = known.agent_session_id.as_ref().map(AgentSessionId::as_str);
        let thread = threads.iter().find(|row| row.text("agent_session_id").as_deref() == id);
        let channel = thread.and_then(chat_session).and_then(|session| session.channel_id);
        if channel.is_none() || known.channel_id == channel {
            return Ok(());
        }
        let corrected = Session { channel_id: channel, ..known.clone() };
        Ok(self.target.commit(move |tx| tx.put_session(&corrected).map(drop))?)
    }

    /// Creates the session record from its chat, from its executions, or from its transcript alone.
    fn session(
        &self,
        id: AgentSessionId,
        written_at: Timestamp,
        threads: &[LastLightRow],
    ) -> Result<Session, ImportError> {
        // The chat names the channel, so it describes the session better than its executions.
        let thread = threads
            .iter()
            .find(|row| row.text("agent_session_id").as_deref() == Some(id.as_str()))
            .and_then(chat_session);
        let jobs = self.target.db().jobs_of_session(&id, None, i64::MAX as usize)?;
        let mut session = match (thread, jobs.first()) {
            (Some(session), _) => session,
            (None, Some(newest)) => {
                let mut session = idle_session(&newest.agent, Some(id), newest.started_at);
                session.mode = SessionMode::FreshPerJob;
                session
            }
            // Nothing but the file tells about the session.
            (None, None) => idle_session(UNKNOWN_AGENT, Some(id), written_at),
        };
        for job in &jobs {
            session.created_at = session.created_at.min(job.started_at);
            session.last_active_at =
                session.last_active_at.max(job.finished_at.unwrap_or(job.started_at));
        }
        session.job_count = i64::try_from(jobs.len()).unwrap_or(i64::MAX);
        Ok(session)
    }

    fn put_sessions(&mut self, sessions: Vec<Session>) -> Result<(), ImportError> {
        if sessions.is_empty() {
            return Ok(());
        }
        let fresh = self.target.commit(move |tx| {
            // An agent may have kept one session in two projects.
            let put = sessions.into_iter().map(|session| tx.import_new_session(session));
            put.collect::<Result<Vec<_>, _>>()
        })?;
        fresh.into_iter().for_each(|fresh| self.count(ImportItemKind::Session, fresh));
        Ok(())
    }
}
