//! Sessions: pages of them, what they came from, and all that is known of one.

use std::collections::HashMap;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_engine::{expired_sessions, has_expired};
use heeler_model::config::RuntimeType;
use heeler_model::session_choice::SessionChoice;
use heeler_model::{AgentSessionId, ApprovalMode, Session, SessionId, SessionMode, SessionStatus};
use heeler_store::history::{HistoryMessage, load_history};
use heeler_store::{IdLookupError, SessionCursor, SessionFilter, StoreReader};
use heeler_transcript::read_tail;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::{FleetReader, QueryContext, QueryError, enum_schemas};

/// How many sessions that are not in the page a tree shows for those that are: what they came from.
const ANCESTORS_MAX: usize = 200;
/// How many successors of a session are told.
const CONTINUATIONS_MAX: usize = 10;
/// How many messages are looked at at once for the end of a job.
const MESSAGES_AT_ONCE: usize = 200;
/// How many of a job's last rows are looked at for its last message.
const JOB_ROWS: usize = 200;

/// Which sessions to list.
#[derive(Debug, Clone, Default)]
pub struct SessionListQuery {
    /// Only those of this agent; its last name will do while it is unique.
    pub agent: Option<String>,
    /// Only those in this state.
    pub status: Option<SessionStatus>,
    /// Only those of this chat channel and its threads.
    pub channel: Option<String>,
    /// Only those that were used since then.
    pub since: Option<Timestamp>,
    /// Those that were last used before this one.
    pub before: Option<String>,
    /// How many.
    pub limit: usize,
    /// Whether forks, and sessions that go on from a full one, stand below what they came from.
    pub tree: bool,
}

/// A page of sessions, last used first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionPage {
    /// The sessions.
    pub sessions: Vec<SessionSummary>,
    /// How many there are on all pages.
    pub total: i64,
    /// How many a page has at most.
    pub limit: usize,
    /// What `before` is for the next page; none on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A session.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionSummary {
    /// Our id of it.
    pub id: String,
    /// The agent's own id of it.
    pub agent_session_id: Option<String>,
    /// Whose it is.
    pub agent_id: String,
    /// How long it lasts.
    #[schema(value_type = enum_schemas::SessionMode)]
    pub mode: SessionMode,
    /// Whether the agent asks people.
    #[schema(value_type = enum_schemas::ApprovalsMode)]
    pub approvals: ApprovalMode,
    /// Where it is.
    #[schema(value_type = enum_schemas::SessionStatus)]
    pub status: SessionStatus,
    /// The chat channel that it belongs to.
    pub channel_id: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last used.
    pub last_active_at: Timestamp,
    /// How many messages it has.
    pub message_count: i64,
    /// How large its context is, about.
    pub token_estimate: i64,
    /// How many jobs ran in it.
    pub job_count: i64,
    /// Its jobs.
    pub jobs: Vec<String>,
    /// Where it works.
    pub working_directory: Option<String>,
    /// What runs it.
    pub runtime: String,
    /// The session that it was forked from.
    pub parent: Option<String>,
    /// The last message that it has of that one.
    pub forked_at_message: Option<i64>,
    /// The full session that it goes on from.
    pub continues: Option<String>,
    /// Its own worktree.
    pub workspace: Option<String>,
    /// Where it came from, if it is not ours.
    pub origin: Option<String>,
    /// How far below what it came from it stands, in a tree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<usize>,
}

impl SessionSummary {
    fn of(session: &Session, jobs: Vec<String>, depth: Option<usize>) -> SessionSummary {
        SessionSummary {
            id: session.id.to_string(),
            agent_session_id: session.agent_session_id.as_ref().map(ToString::to_string),
            agent_id: session.agent.clone(),
            mode: session.mode,
            approvals: session.approvals,
            status: session.status,
            channel_id: session.channel_id.clone(),
            created_at: session.created_at,
            last_active_at: session.last_active_at,
            message_count: session.message_count,
            token_estimate: session.token_estimate,
            job_count: session.job_count,
            jobs,
            working_directory: session.working_directory.as_ref().map(ToString::to_string),
            runtime: session.runtime.clone(),
            parent: session.parent.as_ref().map(ToString::to_string),
            forked_at_message: session.forked_at_message,
            continues: session.continues.as_ref().map(ToString::to_string),
            workspace: session.workspace.as_ref().map(ToString::to_string),
            origin: session.origin.clone(),
            depth,
        }
    }
}

/// All that is known of a session beside what was said in it.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionDetails {
    /// What a list shows of it.
    #[serde(flatten)]
    pub item: SessionSummary,
    /// Our log of it.
    pub log: Option<String>,
    /// The sessions that were forked from it.
    pub forks: Vec<String>,
    /// The sessions that go on from it.
    pub continued_by: Vec<String>,
    /// What continues it in a terminal, without us.
    pub resume_command: Option<String>,
    /// It was forked and has not begun: it takes its history over when it does.
    #[serde(skip)]
    pub is_unbegun: bool,
}

/// What state sessions are in now. The record of one that was not used for too long says so only
/// when a daemon has looked through them, and there may be none.
struct SessionStatusResolver<'k> {
    known: &'k QueryContext,
    now: Timestamp,
}

impl SessionStatusResolver<'_> {
    /// Returns the state that a session is in.
    fn status(&self, session: &Session) -> SessionStatus {
        let has_expired = |loaded| has_expired(session, loaded, self.now);
        match self.known.loaded.as_deref().is_some_and(has_expired) {
            true => SessionStatus::Expired,
            false => session.status,
        }
    }

    /// Lists sessions that have expired and whose records do not say so yet.
    fn unrecorded_expired(&self, reader: &StoreReader) -> Result<Vec<Session>, QueryError> {
        match &self.known.loaded {
            Some(loaded) => Ok(expired_sessions(reader, loaded, self.now, usize::MAX)?),
            None => Ok(Vec::new()),
        }
    }

    /// Returns a page of sessions, and how many the filter shows. Their states are as recorded.
    fn page(
        &self,
        reader: &StoreReader,
        filter: &SessionFilter,
        before: Option<&SessionCursor>,
        limit: usize,
    ) -> Result<(Vec<Session>, i64), QueryError> {
        let recorded = reader.count_sessions(filter)?;
        let Some(status) = filter.status else {
            return Ok((reader.sessions(filter, before, limit)?, recorded));
        };
        let mut unrecorded = self.unrecorded_expired(reader)?;
        unrecorded.retain(|session| matches_filter(filter, session));
        if status == SessionStatus::Expired {
            let mut page = reader.sessions(filter, before, limit)?;
            let total = recorded + unrecorded.len() as i64;
            unrecorded
                .retain(|session| before.is_none_or(|before| is_after_cursor(session, before)));
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
fn matches_filter(filter: &SessionFilter, session: &Session) -> bool {
    let of_channel = |wanted: &String| {
        let rest = session.channel_id.as_deref().and_then(|id| id.strip_prefix(wanted.as_str()));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    filter.agent.as_ref().is_none_or(|agent| session.agent == *agent)
        && filter.channel.as_ref().is_none_or(of_channel)
        && filter.since.is_none_or(|since| session.last_active_at >= since)
}

fn is_after_cursor(session: &Session, before: &SessionCursor) -> bool {
    (session.last_active_at, &session.id) < (before.last_active_at, &before.id)
}

/// Returns what a session came from: the one it was forked from, or goes on from.
fn source_session(session: &Session) -> Option<&SessionId> {
    session.parent.as_ref().or(session.continues.as_ref())
}

/// Adds the sessions that those of a page came from.
fn with_ancestors(
    reader: &StoreReader,
    mut sessions: Vec<Session>,
) -> Result<Vec<Session>, QueryError> {
    let most = sessions.len() + ANCESTORS_MAX;
    let mut at = 0;
    while at < sessions.len() && sessions.len() < most {
        if let Some(from) = source_session(&sessions[at]).cloned()
            && !sessions.iter().any(|known| known.id == from)
        {
            sessions.extend(reader.session(&from)?);
        }
        at += 1;
    }
    Ok(sessions)
}

/// Puts each session below what it came from. Who was used last comes first.
fn arrange_as_tree(sessions: Vec<Session>) -> Vec<(usize, Session)> {
    let known: HashMap<SessionId, usize> =
        sessions.iter().enumerate().map(|(at, session)| (session.id.clone(), at)).collect();
    let above = |session: &Session| source_session(session).and_then(|id| known.get(id)).copied();
    let mut below: HashMap<Option<usize>, Vec<usize>> = HashMap::new();
    for (at, session) in sessions.iter().enumerate() {
        below.entry(above(session).filter(|&from| from != at)).or_default().push(at);
    }
    let mut order = Vec::with_capacity(sessions.len());
    let mut ahead: Vec<(usize, usize)> = Vec::new();
    let push = |from: Option<usize>, depth: usize, ahead: &mut Vec<(usize, usize)>| {
        let children = below.get(&from).map_or(&[][..], Vec::as_slice);
        ahead.extend(children.iter().rev().map(|&at| (depth, at)));
    };
    push(None, 0, &mut ahead);
    while let Some((depth, at)) = ahead.pop() {
        order.push((depth, at));
        push(Some(at), depth + 1, &mut ahead);
    }
    // Two that are said to have come from each other: somebody else's state.
    let is_shown: Vec<usize> = order.iter().map(|(_, at)| *at).collect();
    order.extend((0..sessions.len()).filter(|at| !is_shown.contains(at)).map(|at| (0, at)));
    order.into_iter().map(|(depth, at)| (depth, sessions[at].clone())).collect()
}

fn session_job_ids(reader: &StoreReader, session: &Session) -> Result<Vec<String>, QueryError> {
    let jobs = match &session.agent_session_id {
        Some(id) => reader.job_ids_of_session(id)?,
        None => Vec::new(),
    };
    Ok(jobs.iter().map(ToString::to_string).collect())
}

/// Finds a session of ours; of one that was deleted it says how it comes back.
pub fn find_session(reader: &StoreReader, text: &str) -> Result<Session, QueryError> {
    let unknown = match reader.find_session(text) {
        Err(unknown @ IdLookupError::Unknown { .. }) => unknown,
        found => return Ok(found?),
    };
    match find_deleted_sessions(reader, text)?.as_slice() {
        [one] => Err(QueryError::not_found(
            format!("session {} is deleted", one.id),
            &format!("heeler session restore {}", one.id),
        )),
        _ => Err(unknown.into()),
    }
}

/// Lists the deleted sessions that are called so.
pub fn find_deleted_sessions(reader: &StoreReader, text: &str) -> Result<Vec<Session>, QueryError> {
    let all = reader.deleted_sessions()?.into_iter().map(|deleted| deleted.session);
    let is_meant = |session: &Session| {
        let own = session.agent_session_id.as_ref().map(|id| id.as_str());
        session.id.as_str().starts_with(text) || own.is_some_and(|own| own.starts_with(text))
    };
    Ok(all.filter(is_meant).collect())
}

impl FleetReader {
    /// Lists sessions, last used first.
    pub fn sessions(
        &self,
        wanted: &SessionListQuery,
        now: Timestamp,
    ) -> Result<SessionPage, QueryError> {
        let (known, reader) = (self.context(), self.reader()?);
        let SessionListQuery { agent, status, channel, since, before, limit, tree } = wanted;
        let agent =
            agent.as_deref().map(|name| self.resolve_agent_name(&reader, name)).transpose()?;
        let (status, since, channel) = (*status, *since, channel.clone());
        let filter = SessionFilter { agent, status, channel, since };
        let before = match before {
            None => None,
            Some(id) => Some(SessionCursor::after(&reader.find_session(id)?)),
        };
        let truth = SessionStatusResolver { known: &known, now };
        // One more tells whether there is a next page.
        let more = limit.saturating_add(1);
        let (mut page, total) = truth.page(&reader, &filter, before.as_ref(), more)?;
        let has_more = page.len() > *limit;
        page.truncate(*limit);
        let next = page.last().filter(|_| has_more).map(|last| last.id.to_string());
        let arranged: Vec<(Option<usize>, Session)> = match tree {
            true => {
                let tree = arrange_as_tree(with_ancestors(&reader, page)?).into_iter();
                tree.map(|(depth, session)| (Some(depth), session)).collect()
            }
            false => page.into_iter().map(|session| (None, session)).collect(),
        };
        let mut sessions = Vec::with_capacity(arranged.len());
        for (depth, mut session) in arranged {
            session.status = truth.status(&session);
            let jobs = session_job_ids(&reader, &session)?;
            sessions.push(SessionSummary::of(&session, jobs, depth));
        }
        Ok(SessionPage { sessions, total, limit: *limit, next })
    }

    /// Returns a session of ours, by its id or the agent's own; a beginning will do while it is
    /// unique.
    pub fn session(&self, id: &str, now: Timestamp) -> Result<SessionDetails, QueryError> {
        let (known, reader) = (self.context(), self.reader()?);
        let mut session = find_session(&reader, id)?;
        session.status = SessionStatusResolver { known: &known, now }.status(&session);
        let jobs = session_job_ids(&reader, &session)?;
        let forks = reader.forks_of(&session.id)?;
        let continued_by = reader.continuations_of(&session.id, CONTINUATIONS_MAX)?;
        drop(reader);
        Ok(SessionDetails {
            item: SessionSummary::of(&session, jobs, None),
            log: self.session_transcript_path(&known, &session).map(Into::into),
            forks: forks.iter().map(|fork| fork.id.to_string()).collect(),
            continued_by: continued_by.iter().map(ToString::to_string).collect(),
            resume_command: resume_command(&known, &session),
            is_unbegun: session.fork.is_some(),
        })
    }

    /// Says which conversation is asked for. One that we do not know is trusted if its id is whole.
    pub fn session_choice(&self, text: &str, fork: bool) -> Result<SessionChoice, QueryError> {
        let id = match self.reader()?.find_session(text) {
            Ok(session) => session.agent_session_id.ok_or_else(|| QueryError::Refused {
                message: format!("{} was never used, so there is nothing to continue", session.id),
                hint: None,
            })?,
            Err(unknown @ IdLookupError::Unknown { .. }) => {
                parse_complete_id(text).ok_or(unknown)?
            }
            Err(error) => return Err(error.into()),
        };
        Ok(if fork {
            SessionChoice::Fork { source: id, at: None }
        } else {
            SessionChoice::Given { id }
        })
    }

    /// Returns the session of a job, and the number of the last message that the job's rows have in
    /// common with it.
    pub fn fork_point_of_job(&self, id: &str) -> Result<(Session, u64), QueryError> {
        let refused =
            |message: String, hint: String| QueryError::Refused { message, hint: Some(hint) };
        let reader = self.reader()?;
        let job = reader.find_job(id)?.head;
        let session = match &job.session_id {
            Some(id) => reader.session_by_agent_id(id)?,
            None => None,
        };
        drop(reader);
        let session = session.ok_or_else(|| {
            let message = format!("job {} has no session to fork", job.id);
            refused(message, format!("heeler jobs retry {}", job.id))
        })?;
        let nowhere = || {
            let message =
                format!("nothing of job {} is in the log of session {}", job.id, session.id);
            refused(message, format!("heeler session fork {}", session.id))
        };
        let log = self.session_transcript_path(&self.context(), &session).ok_or_else(nowhere)?;
        let number =
            last_common_message(&self.dir().job_transcript(&job.id), &log)?.ok_or_else(nowhere)?;
        Ok((session, number))
    }

    /// Returns where the log of a session is, if there is one.
    pub(crate) fn session_transcript_path(
        &self,
        known: &QueryContext,
        session: &Session,
    ) -> Option<Utf8PathBuf> {
        let log = self.dir().session_log_path(known.home.as_deref(), session);
        log.filter(|log| log.is_file())
    }
}

/// Returns the agent's own id of a session, if it is whole.
fn parse_complete_id(text: &str) -> Option<AgentSessionId> {
    const UUID_LEN: usize = 36;
    let id: AgentSessionId = text.parse().ok()?;
    let is_whole = text.len() == UUID_LEN && text.bytes().filter(|byte| *byte == b'-').count() == 4;
    is_whole.then_some(id)
}

/// Returns the number of the last message that a job's rows have in common with its session.
fn last_common_message(job: &Utf8Path, session: &Utf8Path) -> Result<Option<u64>, QueryError> {
    let uuid = |text: &str| {
        let row: serde_json::Value = serde_json::from_str(text).ok()?;
        row["uuid"].as_str()?.parse().ok()
    };
    let rows = read_tail(job, JOB_ROWS)?.records;
    let uuids: Vec<uuid::Uuid> = rows.iter().filter_map(|row| uuid(&row.text)).collect();
    let is_of_job = |message: &HistoryMessage| message.uuid.is_some_and(|it| uuids.contains(&it));
    let mut before = None;
    loop {
        let page = load_history(session, None, before, MESSAGES_AT_ONCE)?;
        if let Some(found) = page.messages.iter().rev().find(|message| is_of_job(message)) {
            return Ok(Some(found.number));
        }
        before = page.messages.first().map(|first| first.number);
        if before.is_none_or(|number| number <= 1) {
            return Ok(None);
        }
    }
}

/// Returns what continues a session in a terminal, without us.
fn resume_command(known: &QueryContext, session: &Session) -> Option<String> {
    let is_claudes = matches!(session.runtime.parse(), Ok(RuntimeType::Sdk | RuntimeType::Cli));
    let id = session.agent_session_id.as_ref().filter(|_| is_claudes)?;
    let directory = session.working_directory.as_deref()?;
    let own = known.read_context()?.native_session_file(session, id).filter(|own| own.is_file())?;
    Some(build_resume_command(&known.env, directory, id, &own))
}

/// Spells the command that continues a session of claude's. It finds a session by the folder it is
/// begun in, and its own folder by a variable.
pub fn build_resume_command(
    env: &std::collections::BTreeMap<String, String>,
    directory: &Utf8Path,
    id: &AgentSessionId,
    own: &Utf8Path,
) -> String {
    let config = own.ancestors().nth(3);
    let usual = match (env.get("CLAUDE_CONFIG_DIR"), env.get("HOME")) {
        (Some(config), _) if !config.is_empty() => Some(Utf8PathBuf::from(config)),
        (_, Some(home)) => Some(Utf8Path::new(home).join(".claude")),
        _ => None,
    };
    let config = config.filter(|config| usual.as_deref() != Some(config));
    let config = config.map(|path| format!("CLAUDE_CONFIG_DIR={} ", shell_quote(path.as_str())));
    let (directory, config) = (shell_quote(directory.as_str()), config.unwrap_or_default());
    format!("cd {directory} && {config}claude --resume {}", shell_quote(id.as_str()))
}

/// Quotes a word for a shell where it needs that.
fn shell_quote(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell_where_they_need_it() {
        assert_eq!(shell_quote("/home/me/a-b_c"), "/home/me/a-b_c");
        assert_eq!(shell_quote("/my files/it's"), r"'/my files/it'\''s'");
        assert_eq!(shell_quote("$(reboot)"), "'$(reboot)'");
        assert_eq!(shell_quote(""), "''");
    }

    fn tree(sessions: &[(&str, Option<&str>, Option<&str>)]) -> String {
        let id = |id: &str| format!("sess-{id:0>8}").parse::<SessionId>().unwrap();
        let sessions = sessions.iter().map(|(own, from, continues)| {
            let mut made = Session::new(id(own), "coder", Timestamp::UNIX_EPOCH);
            (made.parent, made.continues) = (from.map(id), continues.map(id));
            made
        });
        let line = |(depth, session): &(usize, Session)| {
            let id = session.id.as_str().trim_start_matches("sess-").trim_start_matches('0');
            format!("{}{id}", " ".repeat(*depth))
        };
        arrange_as_tree(sessions.collect()).iter().map(line).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_session_stands_below_what_it_came_from() {
        let shown = tree(&[
            ("d", Some("c"), None),
            ("e", None, None),
            ("c", Some("a"), None),
            ("b", None, Some("a")),
            ("a", None, None),
        ]);
        assert_eq!(shown, "e\na\n c\n  d\n b");
    }

    #[test]
    fn sessions_that_come_from_each_other_are_shown_once() {
        assert_eq!(tree(&[("a", Some("b"), None), ("b", Some("a"), None)]), "a\nb");
        assert_eq!(tree(&[("a", Some("a"), None), ("b", Some("f"), None)]), "a\nb");
    }
}
