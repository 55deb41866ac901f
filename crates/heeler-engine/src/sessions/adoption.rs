//! Sessions from outside: created by people with the agent's program, or exported.
//!
//! Files are written first. A file that exists with the same content counts as written, so an
//! interrupted operation can be repeated. One transaction then adds the session. Start at
//! [`adopt_native_session`] and [`import_bundle`].

use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::{AgentConfig, RuntimeType, find_known_agent};
use heeler_model::{AgentSessionId, NativeSessionPosition, Session, SessionId, SessionStatus};
use heeler_store::bundle::{self, BundleDestination};
use heeler_store::native::{
    self, DisplayRedactor, NativeFolder, NativeProgram, NativeRows, NativeSessionError,
};
use heeler_store::{StateDatabase, StateDir, StoreReader, StoreTransaction};
use heeler_transcript::{OsDisk, create_folder, resolve_inside, write_new_file};

use super::errors::internal_error;
use super::worktree;
use crate::command::{CommandReply, DaemonCommandError, DaemonCommandErrorKind};
use crate::dispatch_failure::DispatchFailure;
use crate::fleet::EngineContext;
use crate::prepare::{environment, real_folder};
use crate::session_operation::{AdoptedSession, NATIVE_ORIGIN};
use crate::setup::DaemonSetup;

/// Maximum size of a native session that is adopted.
pub(crate) const ADOPTED_BYTES_MAX: u64 = 8 << 30;

/// A prepared session from outside.
#[derive(Debug)]
pub(crate) struct SessionAdoption {
    session: Session,
    adopted: AdoptedSession,
}

/// Native session to adopt, as a command names it.
pub(super) struct NativeSessionChoice<'c> {
    pub(super) id: &'c str,
    pub(super) agent: &'c str,
    /// Directory to which a person has agreed.
    pub(super) agreed_directory: Option<&'c Utf8Path>,
}

/// Copies a native session.
pub(super) fn adopt_native_session(
    fleet: &EngineContext,
    setup: &DaemonSetup,
    reader: &StoreReader,
    source: &NativeSessionChoice<'_>,
) -> Result<SessionAdoption, DaemonCommandError> {
    let id = source.id;
    let agent = setup.find_agent(source.agent)?;
    let name = &agent.name;
    let runtime = agent.runtime.kind();
    refuse_unread_program(id)?;
    let (program, id) = NativeProgram::split_id(id);
    refuse_other_program(agent, program)?;
    let given = environment::select_environment(agent, &setup.env)
        .map_err(|error| internal_error(&error))?;
    let variable = |name: &str| given.env.get(name).map(String::as_str);
    let folder = program.folder(variable, &agent.working_directory);
    let unknown = || native_session_not_found(program, id);
    let found = folder.ok_or_else(unknown).and_then(|folder| {
        native::find(&folder, id).map_err(|error| match error {
            NativeSessionError::Unknown { .. } => unknown(),
            error => DaemonCommandError::new(
                DaemonCommandErrorKind::Usage,
                heeler_model::error_chain(&error),
            ),
        })
    })?;
    // Two sessions of Heeler would write one thread, without knowing of each other.
    if found.is_heelers {
        let message = format!("Heeler began the session {id} of {program}, so a fleet has it");
        let refused = DaemonCommandError::new(DaemonCommandErrorKind::Busy, message);
        return Err(refused.with_hint("heeler session list"));
    }
    // This early check saves a long copy. The transaction checks again.
    refuse_known(reader, &found.id).map_err(refusal)?;
    refuse_opened(fleet, program, &found.id)?;
    // A session continues where it was used: Claude looks for it under that directory, and the
    // messages are about its files.
    if let Some(cwd) = &found.cwd {
        refuse_foreign_directory(setup, cwd, source.agreed_directory)?;
    }
    let cwd = found.cwd.clone().unwrap_or_else(|| agent.working_directory.clone());
    let log_path = StateDir::session_log_relative(&cwd, &found.id);
    let rows = NativeRows::open(&found, DisplayRedactor::new(&given.secrets))
        .map_err(|error| internal_error(&error))?;
    copy_native_log(&fleet.dir, rows, &log_path)?;
    let now = (fleet.now)();
    let session = Session {
        agent_session_id: Some(found.id.clone()),
        mode: agent.session.mode,
        approvals: agent.approvals,
        status: SessionStatus::Paused,
        // The session keeps its age, or an old one would look as if it was just used.
        last_active_at: found.last_at.unwrap_or(now),
        message_count: i64::try_from(found.messages).unwrap_or(i64::MAX),
        token_estimate: i64::try_from(found.tokens).unwrap_or(i64::MAX),
        working_directory: Some(cwd),
        runtime: runtime.to_string(),
        // Only what follows this position counts as external messages later.
        own: found.last_entry.map(|last| NativeSessionPosition {
            bytes: found.bytes,
            last,
            hash: None,
        }),
        log_path: Some(log_path),
        origin: Some(NATIVE_ORIGIN.to_owned()),
        ..Session::new(
            SessionId::mint(fastrand::u32(..)),
            name.as_str(),
            found.first_at.unwrap_or(now),
        )
    };
    Ok(build_adoption(session))
}

/// Refuses an agent that does not run the program that made a native session.
fn refuse_other_program(
    agent: &AgentConfig,
    program: NativeProgram,
) -> Result<(), DaemonCommandError> {
    let runtime = agent.runtime.kind();
    let (fits, runtimes) = match program {
        NativeProgram::Claude => {
            (matches!(runtime, RuntimeType::Sdk | RuntimeType::Cli), "runtime sdk or cli")
        }
        NativeProgram::Codex => (runtime == RuntimeType::Codex, "runtime codex"),
        NativeProgram::Qwen => (is_program(agent, program), "program qwen"),
        NativeProgram::Gemini => (is_program(agent, program), "program gemini"),
        NativeProgram::Copilot => (is_program(agent, program), "program copilot"),
        NativeProgram::Kimi => (is_program(agent, program), "program kimi"),
        NativeProgram::Grok => (is_program(agent, program), "program grok"),
    };
    if fits {
        return Ok(());
    }
    let message = format!("the session is {program}'s, which {} does not run", agent.name);
    let refused = DaemonCommandError::new(DaemonCommandErrorKind::NotAllowed, message);
    Err(refused.with_hint(format!("--as names an agent with {runtimes}")))
}

/// Refuses a directory outside of the fleet's working directories, unless a person has agreed to it.
/// An agent could have written it into a file of the program, in order to work there.
fn refuse_foreign_directory(
    setup: &DaemonSetup,
    cwd: &Utf8Path,
    agreed: Option<&Utf8Path>,
) -> Result<(), DaemonCommandError> {
    // A path with a link in it may lead elsewhere tomorrow.
    let is_real = cwd.canonicalize_utf8().is_ok_and(|real| real == cwd);
    let contains = |agent: &AgentConfig| {
        real_folder(&agent.working_directory).is_ok_and(|folder| cwd.starts_with(folder))
    };
    if agreed == Some(cwd) || (is_real && setup.loaded.agents.iter().any(contains)) {
        return Ok(());
    }
    let message = format!(
        "the session would continue in {cwd}, which is outside of the fleet's working directories"
    );
    let refused = DaemonCommandError::new(DaemonCommandErrorKind::Unconfirmed, message).with_hint(
        "if you made the session there: heeler session adopt --yes, or `directory` in a request",
    );
    Err(DaemonCommandError { directory: Some(cwd.to_owned()), ..refused })
}

/// Returns the program besides Claude Code that an agent runs, if its native sessions are known.
fn own_program(agent: &AgentConfig) -> Option<NativeProgram> {
    let mut programs = NativeProgram::ALL.into_iter();
    programs.find(|it| *it != NativeProgram::Claude && refuse_other_program(agent, *it).is_ok())
}

/// Returns true if the agent's program is the one that made a native session.
fn is_program(agent: &AgentConfig, program: NativeProgram) -> bool {
    agent.runtime.program().is_some_and(|it| it.name() == program.as_str())
}

/// Refuses a native session that Heeler cannot read.
fn refuse_unread_program(id: &str) -> Result<(), DaemonCommandError> {
    let known = id.split_once(':').and_then(|(name, _)| find_known_agent(name));
    let is_read = |name: &str| NativeProgram::ALL.iter().any(|it| it.as_str() == name);
    let Some(known) = known.filter(|known| !is_read(known.name)) else { return Ok(()) };
    let as_text = "give an agent the conversation as text, in the prompt of a job";
    let (reason, hint) = match known.name {
        "opencode" => {
            ("has them in a database beside its keys, which Heeler does not open", as_text)
        }
        "goose" => ("has them in a database, which Heeler does not open", as_text),
        "claude-acp" => (
            "keeps those of Claude Code",
            "heeler session adopt ID --as AGENT, with an agent of runtime sdk",
        ),
        "codex-acp" => (
            "keeps those of Codex",
            "heeler session adopt codex:ID --as AGENT, with an agent of runtime codex",
        ),
        _ => ("has them in a form that Heeler does not read", as_text),
    };
    let message = format!("native sessions of {} cannot be adopted: it {reason}", known.title);
    let refused = DaemonCommandError::new(DaemonCommandErrorKind::NotAllowed, message);
    Err(refused.with_hint(hint))
}

/// Refuses a native session that a run of this fleet opened: two sessions of Heeler would continue it
/// without knowing of each other.
fn refuse_opened(
    fleet: &EngineContext,
    program: NativeProgram,
    id: &AgentSessionId,
) -> Result<(), DaemonCommandError> {
    if matches!(program, NativeProgram::Claude | NativeProgram::Codex) {
        return Ok(());
    }
    let is_opened = native::is_opened_by_run(&fleet.dir, id);
    match is_opened.map_err(|error| internal_error(&error))? {
        false => Ok(()),
        true => {
            let message = format!("a run of this fleet opened the session {id} of {program}");
            let refused = DaemonCommandError::new(DaemonCommandErrorKind::Busy, message);
            Err(refused.with_hint("heeler session list"))
        }
    }
}

/// Directory of an agent, and its native sessions.
pub(super) struct NativePlaces {
    /// Working directory, a real path.
    pub(super) cwd: Utf8PathBuf,
    projects: Option<Utf8PathBuf>,
    folder: Option<NativeFolder>,
}

impl NativePlaces {
    pub(super) fn of(
        setup: &DaemonSetup,
        agent: &AgentConfig,
    ) -> Result<NativePlaces, DaemonCommandError> {
        let directory = &agent.working_directory;
        // The path is resolved as at a start, so that later runs find the same project folder.
        let cwd = real_folder(directory).map_err(|error| {
            DaemonCommandError::new(
                DaemonCommandErrorKind::Usage,
                format!("{} cannot work in {directory}: {error}", agent.name),
            )
        })?;
        let given = environment::select_environment(agent, &setup.env)
            .map_err(|error| internal_error(&error))?;
        let environment = setup.fleet_environment();
        let projects = environment.projects_folder(agent.runtime.kind(), &given.env, directory);
        let variable = |name: &str| given.env.get(name).map(String::as_str);
        let folder = own_program(agent).and_then(|it| it.folder(variable, directory));
        Ok(NativePlaces { cwd, projects, folder })
    }

    pub(super) fn destination(&self) -> BundleDestination<'_> {
        BundleDestination {
            cwd: &self.cwd,
            native_projects: self.projects.as_deref(),
            native_folder: self.folder.as_ref(),
        }
    }
}

/// Writes the files of an exported session.
pub(super) fn import_bundle(
    fleet: &EngineContext,
    setup: &DaemonSetup,
    reader: &StoreReader,
    file: &Utf8Path,
    agent: Option<&str>,
) -> Result<SessionAdoption, DaemonCommandError> {
    let usage = |error: &dyn std::error::Error| {
        DaemonCommandError::new(DaemonCommandErrorKind::Usage, heeler_model::error_chain(error))
    };
    let bundle = bundle::open(file).map_err(|error| usage(&error))?;
    // The bundle may have been imported before, and its files must then stay untouched.
    if let Some(own) = &bundle.session.agent_session_id {
        refuse_known(reader, own).map_err(refusal)?;
    }
    let agent = setup.find_agent(agent.unwrap_or(&bundle.session.agent))?;
    let runtime = agent.runtime.kind();
    let is_claude = |word: &str| matches!(word, "sdk" | "cli");
    let (theirs, ours) = (bundle.session.runtime.as_str(), runtime.as_str());
    if !theirs.is_empty() && is_claude(theirs) != is_claude(ours) {
        let message =
            format!("the session was made by runtime {theirs}, {} has {ours}", agent.name);
        let refused = DaemonCommandError::new(DaemonCommandErrorKind::NotAllowed, message);
        return Err(refused.with_hint("--as names an agent with the same runtime"));
    }
    let places = NativePlaces::of(setup, agent)?;
    let placed = bundle::install_bundle(&fleet.dir, &bundle, &places.destination());
    let placed = placed.map_err(|error| {
        DaemonCommandError::new(
            DaemonCommandErrorKind::NotAllowed,
            heeler_model::error_chain(&error),
        )
    })?;
    let snapshots = worktree::import_snapshots(&fleet.dir, &bundle)?;
    // The others have no native sessions, or no fork without one.
    let has_text_forks =
        matches!(runtime, RuntimeType::Acp | RuntimeType::Codex | RuntimeType::Qwen);
    let as_text = placed.native_path.is_none() && has_text_forks;
    let session = Session {
        agent: agent.name.to_string(),
        runtime: runtime.to_string(),
        // Its source sessions are on the other machine.
        parent: None,
        continues: None,
        channel_id: None,
        ..placed.session
    };
    let mut taken = build_adoption(session);
    (taken.adopted.snapshots, taken.adopted.as_text) = (snapshots, as_text);
    Ok(taken)
}

fn build_adoption(session: Session) -> SessionAdoption {
    let told = AdoptedSession {
        id: session.id.clone(),
        agent_session_id: session.agent_session_id.clone(),
        agent: session.agent.clone(),
        messages: session.message_count.unsigned_abs(),
        working_directory: session.working_directory.clone(),
        snapshots: 0,
        as_text: false,
    };
    SessionAdoption { session, adopted: told }
}

/// Commits the session.
pub(super) fn commit_adoption(
    tx: &mut StoreTransaction<'_>,
    SessionAdoption { session, adopted: taken }: &SessionAdoption,
    by: &str,
) -> Result<CommandReply, DispatchFailure> {
    // Another command may have adopted it while its files were copied.
    if let Some(own) = &session.agent_session_id {
        refuse_known(tx, own)?;
    }
    let is_taken = tx.session(&session.id)?.is_some() || tx.deleted_session(&session.id)?.is_some();
    // The id was chosen outside the transaction and may be taken by now.
    let id = if is_taken { tx.new_session_id()? } else { session.id.clone() };
    tx.put_session(&Session { id: id.clone(), ..session.clone() })?;
    tracing::info!(session = %id, agent = session.agent, by, "taken over");
    Ok(CommandReply::Taken(Box::new(AdoptedSession { id, ..taken.clone() })))
}

/// Refuses a session that already exists, or is in the trash.
fn refuse_known(db: &StateDatabase, own: &AgentSessionId) -> Result<(), DispatchFailure> {
    if let Some(known) = db.session_by_agent_id(own)? {
        return Err(already_adopted_error(&known).into());
    }
    let deleted = db.deleted_session_by_agent_id(own)?;
    // A purged session has no files left, so it may be adopted again.
    match deleted.filter(|deleted| deleted.purged_at.is_none()) {
        None => Ok(()),
        Some(deleted) => {
            let id = deleted.session.id;
            let refused = DaemonCommandError::new(
                DaemonCommandErrorKind::Busy,
                format!("it is in the trash, as {id}"),
            );
            Err(refused.with_hint(format!("heeler session restore {id}")).into())
        }
    }
}

/// Returns the reply to a failure outside the dispatcher's transaction.
fn refusal(failure: DispatchFailure) -> DaemonCommandError {
    match failure {
        DispatchFailure::Refused(refused) => refused,
        DispatchFailure::Database(error) => internal_error(&error),
    }
}

fn already_adopted_error(known: &Session) -> DaemonCommandError {
    let message = format!("it already exists, as {} of {}", known.id, known.agent);
    let refused = DaemonCommandError::new(DaemonCommandErrorKind::Busy, message);
    refused.with_hint(format!("heeler session resume {} -p '…'", known.id))
}

fn native_session_not_found(program: NativeProgram, id: &str) -> DaemonCommandError {
    let message = format!("{program} has no session `{id}`");
    DaemonCommandError::new(DaemonCommandErrorKind::NotFound, message)
        .with_hint("heeler session list --native")
}

/// Creates the transcript of a native session. A file left by an interrupted attempt belongs to no
/// record and may be outdated, so it is replaced.
fn copy_native_log(
    dir: &StateDir,
    mut rows: NativeRows,
    relative: &Utf8Path,
) -> Result<(), DaemonCommandError> {
    let log =
        resolve_inside(dir.root(), relative.as_str()).map_err(|error| internal_error(&error))?;
    match std::fs::remove_file(&log) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(internal_error(&error));
        }
        _ => {}
    }
    let folder = log.parent().expect("a log is in its project's folder");
    create_folder(&OsDisk, folder).map_err(|error| internal_error(&error))?;
    write_new_file(&OsDisk, &log, &mut rows, ADOPTED_BYTES_MAX)
        .map_err(|error| internal_error(&error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use heeler_config::KNOWN_AGENTS;

    use super::*;

    #[test]
    fn native_sessions_of_each_known_agent_are_read_or_refused_with_a_reason() {
        for known in KNOWN_AGENTS.iter() {
            let is_read = NativeProgram::ALL.iter().any(|it| it.as_str() == known.name);
            let refused = refuse_unread_program(&format!("{}:some-session", known.name));
            assert_eq!(refused.is_ok(), is_read, "{}", known.name);
            if let Err(refused) = refused {
                assert!(refused.message.contains(known.title), "{}", refused.message);
                assert!(refused.hint.is_some(), "{}", refused.message);
            }
        }
        let refused = refuse_unread_program("codex-acp:some-session").unwrap_err();
        assert!(refused.hint.is_some_and(|hint| hint.contains("codex:ID")));
    }
}
