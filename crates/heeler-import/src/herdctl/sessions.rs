//! Import of herdctl's sessions: agents', numbered, of chat channels, adopted, in containers.

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::{AgentSessionId, Session, SessionId, SessionMode};
use heeler_store::staging::state_files;
use heeler_store::view_records::parse_session;
use heeler_store::{DatabaseError, PublishedView, StoreTransaction, UNKNOWN_AGENT, idle_session};
use heeler_transcript::resolve_inside;
use indexmap::IndexMap;
use jiff::Timestamp;

use super::{HerdctlImport, ImportPurpose, SourceFileOutcome, read};
use crate::import_error::ImportError;
use crate::message_count::count_messages;
use crate::report::ImportItemKind;

/// Directory for the contexts of numbered sessions; their working directory is unknown.
const CONTEXTS: &str = "agent-sessions/projects/-herdctl";

/// A session to insert.
struct PlannedSession {
    session: Session,
    /// The agent to which the session view `sessions/<agent>.json` belongs, and the file's text.
    agent_view: Option<(String, String)>,
    /// Text of the session's own file.
    view: Option<String>,
}

/// A session with its files in place.
struct CopiedHerdctlSession {
    session: Session,
    /// Hash of its own file, if that was imported.
    sha256: Option<String>,
    agent_session_policy: AgentSessionPolicy,
    /// Hash of its agent's file, if that was imported.
    agent_sha256: Option<String>,
}

/// Decides if a session becomes the one that its agent continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AgentSessionPolicy {
    Never,
    /// If the agent has none.
    IfNone,
    /// In any case: the row comes from a backup, and the agent's file is newer.
    Always,
}

impl CopiedHerdctlSession {
    fn put(self, tx: &mut StoreTransaction<'_>, now: Timestamp) -> Result<(), DatabaseError> {
        let session = tx.import_session(self.session)?;
        if let Some(sha256) = self.sha256 {
            let view = PublishedView::Session(session.id.clone());
            tx.adopt_view(&view, &sha256, now)?;
            if session.log_path.is_some() {
                // The link to the transcript must be created with the file.
                tx.mark_view_due(&view)?;
            }
        }
        let becomes_current = match self.agent_session_policy {
            AgentSessionPolicy::Never => false,
            AgentSessionPolicy::IfNone => tx.agent_session(&session.agent)?.is_none(),
            AgentSessionPolicy::Always => true,
        };
        if !becomes_current {
            return Ok(());
        }
        tx.set_agent_session(&session.agent, Some(&session.id))?;
        // An agent name of another system may be no file name; it has no such view then.
        match (self.agent_sha256, session.agent.parse()) {
            (Some(sha256), Ok(agent)) => {
                tx.adopt_agent_session_view(&agent, &session.id, &sha256, now)
            }
            _ => Ok(()),
        }
    }
}

/// Sessions by their native id, or by Heeler's id if they have none.
type SessionImportPlan = IndexMap<String, PlannedSession>;

impl HerdctlImport<'_> {
    /// Imports all sessions.
    pub(super) fn sessions(&mut self) -> Result<(), ImportError> {
        let mut plan = SessionImportPlan::new();
        let files = self.records("sessions", ".json");
        let (numbered, by_agent) =
            files.into_iter().partition(|(stem, _)| stem.parse::<SessionId>().is_ok());
        // Numbered files first: only they contain the session's id.
        self.plan_files(numbered, &mut plan)?;
        for platform in ["discord", "slack", "web"] {
            self.plan_chats(platform, &mut plan);
        }
        // After the numbered files and chats, which describe the same sessions in more detail.
        self.plan_files(by_agent, &mut plan)?;
        self.plan_adopted(&mut plan);
        // Last, because a container's transcript belongs to a session that is planned by now.
        self.plan_containers(&mut plan)?;
        self.put_plan(plan)
    }

    fn plan_chats(&mut self, platform: &str, plan: &mut SessionImportPlan) {
        for (stem, what) in self.records(&format!("{platform}-sessions"), ".yaml") {
            let text = self.source.text(&what);
            let channels = text.and_then(|text| read::chat_sessions(platform, &stem, &text));
            let channels = match channels {
                Ok(channels) => channels,
                Err(reason) => {
                    self.report.refuse(ImportItemKind::Session, what, reason);
                    continue;
                }
            };
            for (channel, session) in channels {
                let what = format!("{what}: channel {channel}");
                match session {
                    Ok(session) => self.plan(plan, what, session),
                    Err(reason) => self.report.refuse(ImportItemKind::Session, what, reason),
                }
            }
        }
    }

    fn plan_files(
        &mut self,
        files: Vec<(String, String)>,
        plan: &mut SessionImportPlan,
    ) -> Result<(), ImportError> {
        for (stem, what) in files {
            let read = self.source.text(&what).and_then(|text| {
                let session = parse_session(&stem, &text)?;
                // In a rebuild the names come from Heeler's own views, which also hold imported
                // ones.
                if self.purpose == ImportPurpose::TakeOver {
                    read::check_agent(&session.agent)?;
                }
                Ok((session, text))
            });
            let (mut session, text) = match read {
                Ok(read) => read,
                Err(reason) => {
                    self.report.refuse(ImportItemKind::Session, what, reason);
                    continue;
                }
            };
            let numbered = stem.parse::<SessionId>().is_ok();
            if numbered {
                // The context is copied before the row that will name it.
                self.copy_context(&stem, &mut session)?;
            }
            let (key, agent) = (key_of(&session), session.agent.clone());
            self.plan(plan, what, session);
            match plan.get_mut(&key) {
                Some(planned) if numbered => planned.view = Some(text),
                Some(planned) => planned.agent_view = Some((agent, text)),
                None => {}
            }
        }
        Ok(())
    }

    fn plan_adopted(&mut self, plan: &mut SessionImportPlan) {
        for (stem, what) in self.records("adopted-sessions", ".yaml") {
            match self.source.text(&what).and_then(|text| read::adopted_session(&stem, &text)) {
                Ok(session) => self.plan(plan, what, session),
                Err(reason) => self.report.refuse(ImportItemKind::Session, what, reason),
            }
        }
    }

    /// Plans the transcripts of containers: of a planned session, of a job's session, or of an
    /// unknown one.
    fn plan_containers(&mut self, plan: &mut SessionImportPlan) -> Result<(), ImportError> {
        for (stem, what) in self.records("docker-sessions", ".jsonl") {
            let id: AgentSessionId = match stem.parse() {
                Ok(id) => id,
                Err(error) => {
                    self.report.refuse(ImportItemKind::Transcript, what, format!("{error}"));
                    continue;
                }
            };
            // The session exists, so its transcript was imported with it.
            if self.target.db().session_by_agent_id(&id)?.is_some() {
                self.report.count_existing(ImportItemKind::Transcript);
                continue;
            }
            if self.copy_file(ImportItemKind::Transcript, &what, &what)?
                != SourceFileOutcome::Present
            {
                continue;
            }
            if !plan.contains_key(&stem) {
                let session = self.container_session(id)?;
                self.plan(plan, what.clone(), session);
            }
            if let Some(planned) = plan.get_mut(&stem) {
                self.set_log(&mut planned.session, &what)?;
                planned.session.docker_enabled = true;
            }
        }
        Ok(())
    }

    fn container_session(&self, id: AgentSessionId) -> Result<Session, ImportError> {
        let job = self.target.db().jobs_of_session(&id, None, 1)?.pop();
        let agent = job.as_ref().map_or(UNKNOWN_AGENT, |job| job.agent.as_str());
        let at = job.as_ref().map_or(self.now, |job| job.finished_at.unwrap_or(job.started_at));
        let mut session = idle_session(agent, Some(id), at);
        session.mode = SessionMode::FreshPerJob;
        session.job_count = i64::from(job.is_some());
        Ok(session)
    }

    /// Copies the context of a numbered session to the directory of session transcripts.
    fn copy_context(&mut self, stem: &str, session: &mut Session) -> Result<(), ImportError> {
        let context = format!("sessions/{stem}.context");
        let known = match &session.agent_session_id {
            Some(id) => self.target.db().session_by_agent_id(id)?,
            None => None,
        };
        // An existing session keeps its transcript, which may have grown since.
        if !self.source.has(&context)
            || known.is_some()
            || self.target.db().session(&session.id)?.is_some()
        {
            return Ok(());
        }
        // In place, Heeler's own link names the transcript; there is nothing to copy.
        if self.target.is_at(&self.source.root().join(&context), &context)
            && let Ok(link) = self.source.root().join(&context).read_link_utf8()
        {
            session.log_path = self.linked_log(&link);
            if session.log_path.is_none() {
                let reason = "it links to a path that cannot hold a transcript";
                self.report.refuse(ImportItemKind::Transcript, context, reason);
            }
            return Ok(());
        }
        let name = session.agent_session_id.as_ref().map_or(stem, AgentSessionId::as_str);
        let to = format!("{CONTEXTS}/{name}.jsonl");
        state_files::create_folder(&self.target.dir().root().join(CONTEXTS))?;
        if self.copy_file(ImportItemKind::Transcript, &context, &to)? == SourceFileOutcome::Present
        {
            self.set_log(session, &to)?;
        }
        Ok(())
    }

    /// Returns the transcript to which a link of Heeler points, as the database stores it.
    fn linked_log(&self, link: &Utf8Path) -> Option<Utf8PathBuf> {
        if link.is_absolute() {
            // Transcripts of interactive sessions are in the user's directory; only Heeler makes
            // such links.
            return (self.purpose == ImportPurpose::Rebuild).then(|| link.to_owned());
        }
        let log = link.strip_prefix("..").ok()?;
        log.as_str().strip_prefix("agent-sessions/")?;
        // A forged link must not make a file outside the directory a transcript.
        resolve_inside(self.target.dir().root(), log.as_str()).ok()?;
        Some(log.to_owned())
    }

    fn set_log(&self, session: &mut Session, relative: &str) -> Result<(), ImportError> {
        // A record without a count gets the real one.
        if session.message_count == 0 {
            let log = self.target.dir().root().join(relative);
            session.message_count = count_messages(&log)
                .map_err(|error| ImportError::Write { path: log, source: error.source })?;
        }
        session.log_path = Some(relative.into());
        Ok(())
    }

    /// Adds a session to the plan, or completes the planned one.
    fn plan(&mut self, plan: &mut SessionImportPlan, what: String, session: Session) {
        match plan.get_mut(&key_of(&session)) {
            None => {
                plan.insert(
                    key_of(&session),
                    PlannedSession { session, agent_view: None, view: None },
                );
            }
            Some(planned) => {
                // One native session cannot serve two channels. A job would mix their messages.
                let clash = session.channel_id.is_some()
                    && planned.session.channel_id.is_some()
                    && session.channel_id != planned.session.channel_id;
                if clash {
                    let reason = "another channel has the same session; the first one keeps it";
                    self.report.refuse(ImportItemKind::Session, what, reason);
                    return;
                }
                complete(&mut planned.session, session);
                self.report.count_existing(ImportItemKind::Session);
            }
        }
    }

    fn put_plan(&mut self, plan: SessionImportPlan) -> Result<(), ImportError> {
        // Three lists, because they are written in one transaction but by different operations.
        let (mut ready, mut newer, mut current) = (Vec::new(), Vec::new(), Vec::new());
        for planned in plan.into_values() {
            let db = self.target.db();
            let known = match &planned.session.agent_session_id {
                Some(id) => db.session_by_agent_id(id)?,
                None => db.session(&planned.session.id)?,
            };
            // In a rebuild the agent's file is newer than the backup, so it decides which session
            // continues.
            if let (Some(row), Some((agent, _)), ImportPurpose::Rebuild) =
                (&known, &planned.agent_view, self.purpose)
                && row.agent == *agent
            {
                current.push((agent.clone(), row.id.clone()));
            }
            match known {
                None => {
                    ready.push(self.copy_views(planned)?);
                    self.report.count_imported(ImportItemKind::Session);
                }
                Some(row) if self.is_newer(&row, &planned.session) => {
                    newer.push(overlay(row, &planned.session));
                    self.report.count_imported(ImportItemKind::Session);
                }
                Some(_) => self.report.count_existing(ImportItemKind::Session),
            }
        }
        let now = self.now;
        if ready.is_empty() && newer.is_empty() && current.is_empty() {
            return Ok(());
        }
        Ok(self.target.commit(move |tx| {
            // Existing rows first: an agent may refer to one of them.
            newer.iter().try_for_each(|session| tx.put_session(session).map(drop))?;
            for (agent, session) in &current {
                tx.set_agent_session(agent, Some(session))?;
            }
            ready.into_iter().try_for_each(|session| session.put(tx, now))
        })?)
    }

    /// Returns true if a view has more information on a session than its row.
    fn is_newer(&self, row: &Session, view: &Session) -> bool {
        self.purpose == ImportPurpose::Rebuild && view.last_active_at > row.last_active_at
    }

    fn copy_views(&mut self, planned: PlannedSession) -> Result<CopiedHerdctlSession, ImportError> {
        let PlannedSession { mut session, agent_view, view } = planned;
        session.origin.clone_from(&self.origin);
        let policy = match (&agent_view, self.purpose) {
            (None, _) => AgentSessionPolicy::Never,
            (Some(_), ImportPurpose::TakeOver) => AgentSessionPolicy::IfNone,
            (Some(_), ImportPurpose::Rebuild) => AgentSessionPolicy::Always,
        };
        let agent_sha256 = match agent_view {
            Some((agent, text)) => self.copy_view(&format!("sessions/{agent}.json"), &text)?,
            None => None,
        };
        let sha256 = match view {
            Some(text) => self.copy_view(&format!("sessions/{}.json", session.id), &text)?,
            None => None,
        };
        Ok(CopiedHerdctlSession { session, sha256, agent_session_policy: policy, agent_sha256 })
    }

    /// Lists the records of a directory: their stems, and their paths in the source.
    fn records(&mut self, folder: &str, ending: &str) -> Vec<(String, String)> {
        let names = self.source.names(folder, ImportItemKind::Session, &mut self.report);
        names
            .iter()
            // Hidden files are drafts that a crash left.
            .filter(|name| !name.starts_with('.'))
            .filter_map(|name| {
                Some((name.strip_suffix(ending)?.to_owned(), format!("{folder}/{name}")))
            })
            .collect()
    }
}

fn key_of(session: &Session) -> String {
    let native_id = session.agent_session_id.as_ref().map(AgentSessionId::as_str);
    native_id.unwrap_or(session.id.as_str()).to_owned()
}

/// Merges a newer view into a row.
fn overlay(mut row: Session, view: &Session) -> Session {
    row.last_active_at = view.last_active_at;
    row.status = view.status;
    // Counts only grow, so the larger one is newer.
    row.message_count = row.message_count.max(view.message_count);
    row.token_estimate = row.token_estimate.max(view.token_estimate);
    row.job_count = row.job_count.max(view.job_count);
    row
}

/// Fills in fields that another file has for the same session.
fn complete(known: &mut Session, other: Session) {
    known.created_at = known.created_at.min(other.created_at);
    known.last_active_at = known.last_active_at.max(other.last_active_at);
    known.job_count = known.job_count.max(other.job_count);
    known.message_count = known.message_count.max(other.message_count);
    known.channel_id = known.channel_id.take().or(other.channel_id);
    // The first file wins for fields that exclude each other.
    known.log_path = known.log_path.take().or(other.log_path);
    known.working_directory = known.working_directory.take().or(other.working_directory);
    known.docker_enabled |= other.docker_enabled;
}
