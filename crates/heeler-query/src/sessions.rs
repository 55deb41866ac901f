//! Sessions: lists, trees of forks, and details.

use std::collections::HashMap;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::RuntimeType;
use heeler_model::job_row::JobRow;
use heeler_model::session_choice::SessionChoice;
use heeler_model::session_expiry::has_expired;
use heeler_model::{AgentSessionId, ApprovalMode, Session, SessionId, SessionMode, SessionStatus};
use heeler_store::history::{HistoryMessage, load_history};
use heeler_store::{IdLookupError, SessionCursor, SessionFilter, StoreReader, expired_sessions};
use heeler_transcript::read_tail;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::session_moves::SessionMoveSummary;
use crate::{FleetReader, QueryContext, QueryError, enum_schemas};

/// Maximum number of ancestors that a tree adds to a page.
// A chain of forks may be long, and a page must stay small.
const ANCESTORS_MAX: usize = 200;
/// Maximum number of continuations reported per session.
const CONTINUATIONS_MAX: usize = 10;
/// Number of messages read at once to find the end of a job.
const MESSAGES_AT_ONCE: usize = 200;
/// Number of rows read from the end of a job's transcript to find its last message.
const JOB_ROWS: usize = 200;

/// Filter and page of a session list.
#[derive(Debug, Clone, Default)]
pub struct SessionListQuery {
    /// Only sessions of this agent; its own name suffices if it is unique.
    pub agent: Option<String>,
    /// Only sessions with this status.
    pub status: Option<SessionStatus>,
    /// Only sessions of this chat channel and its threads.
    pub channel: Option<String>,
    /// Only sessions used since this time.
    pub since: Option<Timestamp>,
    /// Only sessions last used before this one.
    pub before: Option<String>,
    /// Maximum number of entries.
    pub limit: usize,
    /// Show forks and continuations below the session they came from.
    pub tree: bool,
}

/// A page of sessions, last used first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionPage {
    /// Sessions.
    pub sessions: Vec<SessionSummary>,
    /// Number of sessions on all pages.
    pub total: i64,
    /// Maximum number of entries per page.
    pub limit: usize,
    /// Value of `before` for the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A session.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionSummary {
    /// Session ID.
    pub id: String,
    /// ID of the native session.
    pub agent_session_id: Option<String>,
    /// Name of the agent.
    pub agent_id: String,
    /// Session mode.
    #[schema(value_type = enum_schemas::SessionMode)]
    pub mode: SessionMode,
    /// Handling of the agent's questions.
    #[schema(value_type = enum_schemas::ApprovalsMode)]
    pub approvals: ApprovalMode,
    /// Status.
    #[schema(value_type = enum_schemas::SessionStatus)]
    pub status: SessionStatus,
    /// ID of the chat channel it belongs to.
    pub channel_id: Option<String>,
    /// Creation time.
    pub created_at: Timestamp,
    /// Time of last use.
    pub last_active_at: Timestamp,
    /// Number of messages.
    pub message_count: i64,
    /// Estimated size of the context, in tokens.
    pub token_estimate: i64,
    /// Number of jobs that ran in the session.
    pub job_count: i64,
    /// IDs of its jobs.
    pub jobs: Vec<String>,
    /// Working directory.
    pub working_directory: Option<String>,
    /// Runtime.
    pub runtime: String,
    /// ID of the session from which it was forked.
    pub parent: Option<String>,
    /// Number of the last message copied from the parent.
    pub forked_at_message: Option<i64>,
    /// ID of the session it continues because that session's context was full.
    pub continues: Option<String>,
    /// Path of its own worktree.
    pub workspace: Option<String>,
    /// Program that created the session, if not Heeler.
    pub origin: Option<String>,
    /// First line of the first prompt.
    pub title: Option<String>,
    /// Depth below its origin, in a tree.
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
            title: None,
            depth,
        }
    }
}

/// Returns the first prompt of a session, or of the session that it was forked from or continues.
fn session_title(reader: &StoreReader, session: &Session) -> Result<Option<String>, QueryError> {
    let own = session.agent_session_id.as_ref().map(|id| reader.session_title(id)).transpose()?;
    if let Some(title) = own.flatten() {
        return Ok(Some(title));
    }
    let Some(origin) = session.parent.as_ref().or(session.continues.as_ref()) else {
        return Ok(None);
    };
    let origin = reader.session(origin)?.and_then(|origin| origin.agent_session_id);
    Ok(origin.map(|id| reader.session_title(&id)).transpose()?.flatten())
}

/// Details of a session without its messages.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionDetails {
    /// Fields of the list entry.
    #[serde(flatten)]
    pub item: SessionSummary,
    /// Path of the transcript.
    pub log: Option<String>,
    /// IDs of the sessions forked from it.
    pub forks: Vec<String>,
    /// IDs of the sessions that continue it.
    pub continued_by: Vec<String>,
    /// Shell command that continues the session without Heeler.
    pub resume_command: Option<String>,
    /// Host that has its files, in a fleet with several hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Its last move to another host.
    #[serde(rename = "move", skip_serializing_if = "Option::is_none")]
    pub last_move: Option<SessionMoveSummary>,
    /// True for a fork that has not started yet; it copies its history when it starts.
    #[serde(skip)]
    pub is_unbegun: bool,
}

/// Computes the current status of sessions. The record of an expired session is updated only when a
/// daemon checks for expiry, and no daemon may be running.
struct SessionStatusResolver<'k> {
    known: &'k QueryContext,
    now: Timestamp,
}

impl SessionStatusResolver<'_> {
    /// Returns the current status of a session.
    fn status(&self, session: &Session) -> SessionStatus {
        let has_expired = |loaded| has_expired(session, loaded, self.now);
        // Without a config the rules of expiry are unknown, so the recorded status counts.
        match self.known.loaded.as_deref().is_some_and(has_expired) {
            true => SessionStatus::Expired,
            false => session.status,
        }
    }

    /// Lists expired sessions with records that do not yet show the expiry.
    fn unrecorded_expired(&self, reader: &StoreReader) -> Result<Vec<Session>, QueryError> {
        match &self.known.loaded {
            // All of them: the total of the page must include every expired session.
            Some(loaded) => Ok(expired_sessions(reader, loaded, self.now, usize::MAX)?),
            None => Ok(Vec::new()),
        }
    }

    /// Returns a page of sessions and the number that match the filter. Their status is as
    /// recorded.
    fn page(
        &self,
        reader: &StoreReader,
        filter: &SessionFilter,
        before: Option<&SessionCursor>,
        limit: usize,
    ) -> Result<(Vec<Session>, i64), QueryError> {
        let recorded = reader.count_sessions(filter)?;
        // Without a filter by status no session changes its place in the list.
        let Some(status) = filter.status else {
            return Ok((reader.sessions(filter, before, limit)?, recorded));
        };
        let mut unrecorded = self.unrecorded_expired(reader)?;
        unrecorded.retain(|session| matches_filter(filter, session));
        if status == SessionStatus::Expired {
            let mut page = reader.sessions(filter, before, limit)?;
            // Counted before the cursor is applied, because the total covers all pages.
            let total = recorded + unrecorded.len() as i64;
            unrecorded
                // Sessions on earlier pages must not appear again.
                .retain(|session| before.is_none_or(|before| is_after_cursor(session, before)));
            page.extend(unrecorded);
            page.sort_by(|a, b| (b.last_active_at, &b.id).cmp(&(a.last_active_at, &a.id)));
            page.truncate(limit);
            return Ok((page, total));
        }
        unrecorded.retain(|session| session.status == status);
        let hidden = unrecorded.len();
        // Expired sessions are dropped below, so as many more are read to fill the page.
        let mut page = reader.sessions(filter, before, limit.saturating_add(hidden))?;
        page.retain(|session| self.status(session) == status);
        page.truncate(limit);
        Ok((page, recorded - hidden as i64))
    }
}

/// Returns true if the filter matches a session, ignoring its status.
fn matches_filter(filter: &SessionFilter, session: &Session) -> bool {
    let of_channel = |wanted: &String| {
        let rest = session.channel_id.as_deref().and_then(|id| id.strip_prefix(wanted.as_str()));
        // A thread's id starts with its channel's id and a slash.
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    filter.agent.as_ref().is_none_or(|agent| session.agent == *agent)
        && filter.channel.as_ref().is_none_or(of_channel)
        && filter.since.is_none_or(|since| session.last_active_at >= since)
}

fn is_after_cursor(session: &Session, before: &SessionCursor) -> bool {
    (session.last_active_at, &session.id) < (before.last_active_at, &before.id)
}

/// Returns the session from which a session was forked or which it continues.
fn source_session(session: &Session) -> Option<&SessionId> {
    session.parent.as_ref().or(session.continues.as_ref())
}

/// Adds the ancestors of the sessions on a page.
fn with_ancestors(
    reader: &StoreReader,
    mut sessions: Vec<Session>,
) -> Result<Vec<Session>, QueryError> {
    // Imported state may contain a long chain or a circle of sessions.
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

/// Arranges each session below the one it came from. The most recently used come first.
fn arrange_as_tree(sessions: Vec<Session>) -> Vec<(usize, Session)> {
    let known: HashMap<SessionId, usize> =
        sessions.iter().enumerate().map(|(at, session)| (session.id.clone(), at)).collect();
    let above = |session: &Session| source_session(session).and_then(|id| known.get(id)).copied();
    let mut below: HashMap<Option<usize>, Vec<usize>> = HashMap::new();
    for (at, session) in sessions.iter().enumerate() {
        // A session that names itself as its origin becomes a root.
        below.entry(above(session).filter(|&from| from != at)).or_default().push(at);
    }
    let mut order = Vec::with_capacity(sessions.len());
    // A stack and not recursion: the depth comes from records.
    let mut stack: Vec<(usize, usize)> = Vec::new();
    let push = |from: Option<usize>, depth: usize, stack: &mut Vec<(usize, usize)>| {
        let children = below.get(&from).map_or(&[][..], Vec::as_slice);
        // Reversed, because the stack returns the last entry first.
        stack.extend(children.iter().rev().map(|&at| (depth, at)));
    };
    push(None, 0, &mut stack);
    while let Some((depth, at)) = stack.pop() {
        order.push((depth, at));
        push(Some(at), depth + 1, &mut stack);
    }
    // Sessions in a cycle of origins, which only imported state can contain, have no root.
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

/// Finds a session. For a deleted one the error describes how to restore it.
pub fn find_session(reader: &StoreReader, text: &str) -> Result<Session, QueryError> {
    let unknown = match reader.find_session(text) {
        Err(unknown @ IdLookupError::Unknown { .. }) => unknown,
        found => return Ok(found?),
    };
    match find_deleted_sessions(reader, text)?.as_slice() {
        // Only a unique match is named. Several deleted sessions would make the hint wrong.
        [one] => Err(QueryError::not_found(
            format!("session {} is deleted", one.id),
            &format!("heeler session restore {}", one.id),
        )),
        _ => Err(unknown.into()),
    }
}

/// Lists the deleted sessions that match the text.
pub fn find_deleted_sessions(reader: &StoreReader, text: &str) -> Result<Vec<Session>, QueryError> {
    // Deleted sessions are few, so all of them are read.
    let all = reader.deleted_sessions()?.into_iter().map(|deleted| deleted.session);
    let matches = |session: &Session| {
        let native_id = session.agent_session_id.as_ref().map(|id| id.as_str());
        session.id.as_str().starts_with(text)
            || native_id.is_some_and(|native_id| native_id.starts_with(text))
    };
    Ok(all.filter(matches).collect())
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
            // Read as a record, because the position needs the time of its last use.
            Some(id) => Some(SessionCursor::after(&reader.find_session(id)?)),
        };
        let resolver = SessionStatusResolver { known: &known, now };
        // One extra entry shows if there is a next page.
        let more = limit.saturating_add(1);
        let (mut page, total) = resolver.page(&reader, &filter, before.as_ref(), more)?;
        let has_more = page.len() > *limit;
        page.truncate(*limit);
        let next = page.last().filter(|_| has_more).map(|last| last.id.to_string());
        let arranged: Vec<(Option<usize>, Session)> = match tree {
            true => {
                // Ancestors may be on other pages, but a tree needs them.
                let tree = arrange_as_tree(with_ancestors(&reader, page)?).into_iter();
                tree.map(|(depth, session)| (Some(depth), session)).collect()
            }
            false => page.into_iter().map(|session| (None, session)).collect(),
        };
        let mut sessions = Vec::with_capacity(arranged.len());
        for (depth, mut session) in arranged {
            // The page holds the recorded status. Ancestors may have expired, too.
            session.status = resolver.status(&session);
            let jobs = session_job_ids(&reader, &session)?;
            let title = session_title(&reader, &session)?;
            sessions.push(SessionSummary { title, ..SessionSummary::of(&session, jobs, depth) });
        }
        Ok(SessionPage { sessions, total, limit: *limit, next })
    }

    /// Returns a session by a unique prefix of its ID or native session ID.
    pub fn session(&self, id: &str, now: Timestamp) -> Result<SessionDetails, QueryError> {
        let (known, reader) = (self.context(), self.reader()?);
        let mut session = find_session(&reader, id)?;
        session.status = SessionStatusResolver { known: &known, now }.status(&session);
        let jobs = session_job_ids(&reader, &session)?;
        let forks = reader.forks_of(&session.id)?;
        let continued_by = reader.continuations_of(&session.id, CONTINUATIONS_MAX)?;
        let title = session_title(&reader, &session)?;
        let host = session_host(&reader, &session)?;
        let moved = reader.session_move(&session.id)?;
        // The reader goes back to the pool before files are examined.
        drop(reader);
        Ok(SessionDetails {
            item: SessionSummary { title, ..SessionSummary::of(&session, jobs, None) },
            log: self.session_transcript_path(&known, &session).map(Into::into),
            forks: forks.iter().map(|fork| fork.id.to_string()).collect(),
            continued_by: continued_by.iter().map(ToString::to_string).collect(),
            resume_command: resume_command(&known, &session),
            host,
            last_move: moved.as_ref().map(SessionMoveSummary::from),
            is_unbegun: session.fork.is_some(),
        })
    }

    /// Resolves the session that a request refers to. An unknown native session ID is accepted if
    /// it is complete.
    pub fn session_choice(&self, text: &str, fork: bool) -> Result<SessionChoice, QueryError> {
        let id = match self.reader()?.find_session(text) {
            Ok(session) => session.agent_session_id.ok_or_else(|| QueryError::Refused {
                message: format!("{} was never used, so there is nothing to continue", session.id),
                hint: None,
            })?,
            // A session that was started outside Heeler has no record yet.
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

    /// Returns the session of a job, and the number of the last message that the job's rows share
    /// with it.
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
        // A command has no sessions, so its jobs have none.
        let session = session.ok_or_else(|| {
            let message = format!("job {} has no session to fork", job.id);
            refused(message, format!("heeler jobs retry {}", job.id))
        })?;
        let nowhere = || {
            let message = format!(
                "job {} has no message in the transcript of session {}",
                job.id, session.id
            );
            refused(message, format!("heeler session fork {}", session.id))
        };
        let log = self.session_transcript_path(&self.context(), &session).ok_or_else(nowhere)?;
        let number =
            last_common_message(&self.dir().job_transcript(&job.id), &log)?.ok_or_else(nowhere)?;
        Ok((session, number))
    }

    /// Returns the path of a session's transcript, if it exists.
    pub(crate) fn session_transcript_path(
        &self,
        known: &QueryContext,
        session: &Session,
    ) -> Option<Utf8PathBuf> {
        let log = self.dir().session_log_path(known.home.as_deref(), session);
        log.filter(|log| log.is_file())
    }
}

/// Returns the host that has the files of a session; `None` in a fleet with one machine.
fn session_host(reader: &StoreReader, session: &Session) -> Result<Option<String>, QueryError> {
    let Some(native) = &session.agent_session_id else { return Ok(None) };
    if reader.hosts()?.is_empty() {
        return Ok(None);
    }
    Ok(reader.session_host(native)?)
}

/// Parses a complete native session ID.
fn parse_complete_id(text: &str) -> Option<AgentSessionId> {
    // A shorter text is a prefix, which cannot be looked up without a record.
    const UUID_LEN: usize = 36;
    let id: AgentSessionId = text.parse().ok()?;
    let is_whole = text.len() == UUID_LEN && text.bytes().filter(|byte| *byte == b'-').count() == 4;
    is_whole.then_some(id)
}

/// Returns the number of the last message that a job's rows share with its session.
fn last_common_message(job: &Utf8Path, session: &Utf8Path) -> Result<Option<u64>, QueryError> {
    let uuid = |text: &str| JobRow::parse(text.as_bytes()).ok()?.uuid();
    // A job's last message is near its end, so the whole transcript is not read.
    let rows = read_tail(job, JOB_ROWS)?.records;
    let uuids: Vec<uuid::Uuid> = rows.iter().filter_map(|row| uuid(&row.text)).collect();
    find_last_message(session, |message| message.uuid.is_some_and(|it| uuids.contains(&it)))
}

/// Returns the number of the last message of a transcript for which `is_wanted` returns true.
pub(crate) fn find_last_message(
    log: &Utf8Path,
    is_wanted: impl Fn(&HistoryMessage) -> bool,
) -> Result<Option<u64>, QueryError> {
    let mut before = None;
    loop {
        // From the end, because the wanted message is usually one of the last.
        let page = load_history(log, None, before, MESSAGES_AT_ONCE)?;
        if let Some(found) = page.messages.iter().rev().find(|message| is_wanted(message)) {
            return Ok(Some(found.number));
        }
        before = page.messages.first().map(|first| first.number);
        if before.is_none_or(|number| number <= 1) {
            return Ok(None);
        }
    }
}

/// Returns the shell command that continues a session without Heeler.
fn resume_command(known: &QueryContext, session: &Session) -> Option<String> {
    // Other runtimes have no program that could resume the session.
    let is_claudes = matches!(session.runtime.parse(), Ok(RuntimeType::Sdk | RuntimeType::Cli));
    let id = session.agent_session_id.as_ref().filter(|_| is_claudes)?;
    let directory = session.working_directory.as_deref()?;
    // Without its file the command would fail, so it is not shown.
    let native_file =
        known.read_context()?.native_session_file(session, id).filter(|file| file.is_file())?;
    Some(build_resume_command(&known.env, directory, id, &native_file))
}

/// Builds the command that continues a Claude session. Claude finds the session by the working
/// directory, and its own directory by an environment variable.
pub fn build_resume_command(
    env: &std::collections::BTreeMap<String, String>,
    directory: &Utf8Path,
    id: &AgentSessionId,
    native_file: &Utf8Path,
) -> String {
    // The file is `<config>/projects/<directory>/<id>.jsonl`.
    let config = native_file.ancestors().nth(3);
    let usual = match (env.get("CLAUDE_CONFIG_DIR"), env.get("HOME")) {
        (Some(config), _) if !config.is_empty() => Some(Utf8PathBuf::from(config)),
        (_, Some(home)) => Some(Utf8Path::new(home).join(".claude")),
        _ => None,
    };
    // The variable is shown only if it differs from the default of the user's shell.
    let config = config.filter(|config| usual.as_deref() != Some(config));
    let config = config.map(|path| format!("CLAUDE_CONFIG_DIR={} ", shell_quote(path.as_str())));
    let (directory, config) = (shell_quote(directory.as_str()), config.unwrap_or_default());
    format!("cd {directory} && {config}claude --resume {}", shell_quote(id.as_str()))
}

/// Quotes a word for a shell if necessary.
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
