//! Native sessions, made with an agent program in a terminal: `session list --native` and
//! `session show`.
//! Start at [`NativeSessionReader`].

use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::{AgentSessionId, SessionId, iso_millis};
use heeler_query::messages::MessageListQuery;
use heeler_query::sessions::build_resume_command;
use heeler_store::StoreReader;
use heeler_store::history::{ForkSafety, HistoryPage, load_history};
use heeler_store::native::{
    self, DisplayRedactor, NativeFolder, NativeProgram, NativeRows, NativeSession,
    NativeSessionError, NativeSessionFilter,
};
use serde_json::{Value, json};

use crate::context::CommandContext;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config::OptionalFleetConfig;
use crate::output::{self, OutputTable, SafeText};
use crate::process_env;
use crate::shared_args::ListPageArgs;

/// Most bytes of messages that are shown of a native session. They are in a temporary file meanwhile.
const SHOWN_BYTES_MAX: u64 = 256 << 20;

/// Session folders of the agent programs, and the redactor applied to everything shown from them.
pub(crate) struct NativeSessionReader {
    /// Claude's folder.
    pub(crate) projects: Utf8PathBuf,
    /// All folders.
    folders: Vec<NativeFolder>,
    pub(crate) cleaner: DisplayRedactor,
}

impl NativeSessionReader {
    /// Finds the folders as the programs do: by a variable, else in the user's home.
    pub(crate) fn open(context: &CommandContext) -> CommandResult<NativeSessionReader> {
        let variable = |name: &str| context.env.get(name).map(String::as_str);
        let folders = native::native_folders(variable, &context.working_dir);
        let claude = folders.iter().find(|folder| folder.program == NativeProgram::Claude);
        let Some(projects) = claude.map(|folder| folder.path.clone()) else {
            let message = "HOME is not set, so Claude's session folder is unknown";
            return Err(CommandFailure::message(FailureCode::Usage, message)
                .hint("CLAUDE_CONFIG_DIR=/some/folder heeler …"));
        };
        // These files are not Heeler's, so secrets of the fleet may stand in them in plain text.
        let cleaner = DisplayRedactor::new(&OptionalFleetConfig::load(context)?.secrets());
        Ok(NativeSessionReader { projects, folders, cleaner })
    }

    /// Finds a session; returns `None` if the program has none with this ID.
    pub(super) fn find(&self, id: &str) -> CommandResult<Option<NativeSession>> {
        let (program, id) = NativeProgram::split_id(id);
        let folder = self.folders.iter().find(|folder| folder.program == program);
        let Some(folder) = folder else { return Ok(None) };
        match native::find(folder, id) {
            Ok(mut session) => {
                self.cleaner.session(&mut session);
                Ok(Some(session))
            }
            Err(NativeSessionError::Unknown { .. }) => Ok(None),
            Err(error) => Err(failure(error)),
        }
    }

    /// Reads a page of a session's messages.
    pub(super) fn read(
        &self,
        session: &NativeSession,
        page: &MessageListQuery,
    ) -> CommandResult<HistoryPage> {
        if session.program != NativeProgram::Claude {
            let rows = NativeRows::open(session, self.cleaner.clone());
            let rows = rows.map_err(|error| CommandFailure::new(FailureCode::Failed, error))?;
            let past = read_rows(rows, page, SHOWN_BYTES_MAX)?;
            return past.ok_or_else(|| {
                let message = format!(
                    "the session has more than {} of messages, which are shown only after an adoption",
                    output::format_size(SHOWN_BYTES_MAX)
                );
                let adopt = format!("heeler session adopt {} --as AGENT", session.qualified_id());
                CommandFailure::message(FailureCode::Refused, message).hint(adopt)
            });
        }
        // The native session is both transcript and context here, because Heeler has no copy.
        let past = load_history(&session.path, Some(&session.path), page.before, page.limit);
        let mut past = past.map_err(|error| CommandFailure::new(FailureCode::Failed, error))?;
        self.cleaner.history(&mut past);
        Ok(past)
    }
}

/// Reads a page of the messages that an adoption would copy; returns `None` if they have more than `max`
/// bytes.
fn read_rows(
    rows: impl io::Read,
    page: &MessageListQuery,
    max: u64,
) -> CommandResult<Option<HistoryPage>> {
    // A page is read from the end of a file, and these rows exist nowhere else.
    let mut copy = tempfile::NamedTempFile::new()?;
    if io::copy(&mut rows.take(max + 1), &mut copy)? > max {
        return Ok(None);
    }
    let path = Utf8Path::from_path(copy.path());
    let path = path.ok_or_else(|| io::Error::other("the temporary directory is not UTF-8"))?;
    let past = load_history(path, None, page.before, page.limit);
    let mut past = past.map_err(|error| CommandFailure::new(FailureCode::Failed, error))?;
    for message in &mut past.messages {
        message.fork_safety = ForkSafety::Unsafe("it is not adopted yet");
        // The reader made it up for the row of an adoption.
        message.uuid = None;
    }
    Ok(Some(past))
}

fn failure(error: NativeSessionError) -> CommandFailure {
    let code = match error {
        NativeSessionError::Unknown { .. } | NativeSessionError::UnknownPosition { .. } => {
            FailureCode::NotFound
        }
        NativeSessionError::Ambiguous { .. } => FailureCode::Usage,
        NativeSessionError::Disk(_) => FailureCode::Failed,
    };
    CommandFailure::new(code, error)
}

pub(super) fn list(
    context: &CommandContext,
    args: &ListPageArgs,
    filter: NativeSessionFilter,
) -> CommandResult {
    let natives = NativeSessionReader::open(context)?;
    let limit = args.limit.get() as usize;
    let mut page = native::list(&natives.folders, &filter, limit).map_err(failure)?;
    page.sessions.iter_mut().for_each(|session| natives.cleaner.session(session));
    let reader = context.open_reader()?;
    let mut listed = Vec::with_capacity(page.sessions.len());
    // Adopted sessions are marked, so that no one tries to adopt them again.
    for session in page.sessions {
        let ours = own_session_id(reader.as_ref(), &session.id)?;
        listed.push((session, ours));
    }
    drop(reader);
    for error in &page.unreadable {
        output::print_error(format!("{error}: {}", error.source))?;
    }
    if args.json {
        let sessions: Vec<Value> =
            listed.iter().map(|(session, ours)| to_json(session, ours.as_ref())).collect();
        let (total, limit) = (page.total, args.limit);
        return Ok(output::print_json(
            &json!({ "sessions": sessions, "total": total, "limit": limit }),
        )?);
    }
    let Some((last, _)) = listed.last() else {
        let folders: Vec<&str> =
            natives.folders.iter().map(|folder| folder.path.as_str()).collect();
        let folders = folders.join(" and ");
        return Ok(output::print_line(format!("no native sessions in {folders}"))?);
    };
    let next = args.next_page_command("session list --native", None, &last.qualified_id());
    // The total counts from the first page on, so it says nothing about later ones.
    let more = (filter.before.is_none() && page.total > listed.len())
        .then(|| format!("showing {} of {}; older: {next}", listed.len(), page.total));
    table(&listed)?;
    if let Some(more) = more {
        output::print_note(&more)?;
    }
    Ok(output::print_note("take over a session: heeler session adopt ID")?)
}

/// Returns Heeler's ID of a native session, if it was adopted.
fn own_session_id(
    reader: Option<&StoreReader>,
    id: &AgentSessionId,
) -> CommandResult<Option<SessionId>> {
    let known = reader.map(|reader| reader.session_by_agent_id(id)).transpose()?.flatten();
    Ok(known.map(|session| session.id))
}

fn table(listed: &[(NativeSession, Option<SessionId>)]) -> CommandResult {
    let now = process_env::now();
    let mut lines = OutputTable::new(
        &["ID", "LAST USED", "MESSAGES", "SIZE", "HEELER ID", "TITLE", "DIRECTORY"],
        &["HEELER ID", "TITLE", "DIRECTORY"],
    );
    for (session, ours) in listed {
        lines.push(vec![
            session.qualified_id().into(),
            session.last_at.map(|at| output::relative_time(at, now)).unwrap_or_default().into(),
            messages(session).into(),
            output::format_size(session.bytes).into(),
            ours.as_ref().map_or("", |id| id.as_str()).into(),
            output::one_line(session.title.as_deref().unwrap_or_default()).into(),
            session.cwd.as_ref().map_or(String::new(), |cwd| output::one_line(cwd.as_str())).into(),
        ]);
    }
    Ok(lines.print()?)
}

fn messages(session: &NativeSession) -> String {
    let about = if session.is_estimate { "~" } else { "" };
    format!("{about}{}", session.messages)
}

fn to_json(session: &NativeSession, ours: Option<&SessionId>) -> Value {
    json!({
        "id": ours,
        "native": true,
        "program": session.program.as_str(),
        "agentSessionId": session.id,
        "title": session.title,
        "createdAt": session.first_at.map(iso_millis),
        "lastActiveAt": session.last_at.map(iso_millis),
        "messageCount": session.messages,
        "isEstimate": session.is_estimate,
        "tokenEstimate": session.tokens,
        "bytes": session.bytes,
        "workingDirectory": session.cwd,
        "gitBranch": session.git_branch,
        "version": session.version,
        "log": session.path,
    })
}

pub(super) fn print(
    context: &CommandContext,
    session: &NativeSession,
    json: bool,
) -> CommandResult {
    let cwd = session.cwd.as_deref();
    let resume = cwd.filter(|_| session.program == NativeProgram::Claude);
    let resume =
        resume.map(|cwd| build_resume_command(&context.env, cwd, &session.id, &session.path));
    if json {
        let mut value = to_json(session, None);
        value["resumeCommand"] = json!(resume);
        return Ok(output::print_json(&json!({ "session": value }))?);
    }
    let now = process_env::now();
    let when =
        |at| SafeText::from(format!("{} ({})", iso_millis(at), output::relative_time(at, now)));
    let made_with = match session.is_heelers {
        true => format!("{}, by Heeler", session.program),
        // The other programs do not record it.
        false if matches!(session.program, NativeProgram::Claude | NativeProgram::Codex) => {
            format!("{}, in a terminal", session.program)
        }
        false => session.program.to_string(),
    };
    let fields: [(&str, Option<SafeText>); 11] = [
        ("session", Some(session.id.as_str().into())),
        ("made with", Some(made_with.into())),
        ("title", session.title.as_deref().map(SafeText::from)),
        ("created", session.first_at.map(when)),
        ("last used", session.last_at.map(when)),
        ("messages", Some(messages(session).into())),
        ("tokens", output::format_token_estimate(session.tokens.cast_signed())),
        ("directory", cwd.map(|path| path.as_str().into())),
        ("git branch", session.git_branch.as_deref().map(SafeText::from)),
        ("size", Some(output::format_size(session.bytes).into())),
        ("log", Some(session.path.as_str().into())),
    ];
    for (name, value) in fields {
        output::print_field(name, value)?;
    }
    output::print_command("resume with", resume.as_deref())?;
    let id = session.qualified_id();
    output::print_note(&format!("messages: heeler session show {id} --history"))?;
    if session.is_heelers {
        return Ok(());
    }
    Ok(output::print_note(&format!("take it over: heeler session adopt {id}"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_native_session_are_shown_up_to_a_limit() {
        let rows = b"{\"type\":\"user\",\"uuid\":\"00000000-0000-4000-8000-000000000001\",\"message\":{\"content\":\"Hi.\"}}\n";
        let page = MessageListQuery { before: None, limit: 9 };
        let size = rows.len() as u64;
        let past = read_rows(&rows[..], &page, size).ok().flatten().unwrap();
        assert_eq!((past.total, past.messages.len()), (1, 1));
        let refusal = ForkSafety::Unsafe("it is not adopted yet");
        assert_eq!(past.messages[0].fork_safety, refusal);
        assert!(read_rows(&rows[..], &page, size - 1).ok().unwrap().is_none());
    }
}
