//! Sessions that come from elsewhere: made by people with the agent's program, or exported.
//!
//! Their files are put in place first; a file that is there with the same content is taken as placed,
//! so that whoever was cut off does it again. One transaction then makes the session one of ours.

use std::collections::VecDeque;
use std::io::{self, Read};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::config::{Agent, RuntimeType};
use heeler_model::record::without_own_keys;
use heeler_model::{AgentSessionId, OwnMark, Session, SessionId, SessionStatus};
use heeler_store::native::{self, Cleaner, NativeError};
use heeler_store::{Db, DbError, Reader, StateDir, Tx, bundle};
use heeler_transcript::{Entry, OsDisk, Scan, create_folder, place_file, resolve_inside};

use super::{NATIVE, TakenSession, place, trouble};
use crate::command::{Answer, Refused, RefusedKind};
use crate::fleet::Fleet;
use crate::prepare::{environment, real_folder, runtime_type};
use crate::setup::Setup;

/// The largest conversation that is taken over.
pub(crate) const ADOPTED_BYTES_MAX: u64 = 8 << 30;

/// What of claude's file is the conversation; the rest is its own bookkeeping.
const KEPT: [&str; 2] = ["user", "assistant"];

/// A session that is ready to be one of ours.
#[derive(Debug)]
pub(crate) struct Taken {
    session: Session,
    taken: TakenSession,
}

/// Copies the conversation that somebody had with the agent's program.
pub(super) fn adopt(
    fleet: &Fleet,
    setup: &Setup,
    reader: &Reader,
    id: &str,
    agent: &str,
) -> Result<Taken, Refused> {
    let agent = setup.find_agent(agent)?;
    let name = &agent.name;
    let runtime = runtime_type(&agent.runtime);
    if !matches!(runtime, RuntimeType::Sdk | RuntimeType::Cli) {
        let message = format!("{name} has runtime {runtime}, and the session is claude's");
        let refused = Refused::new(RefusedKind::NotAllowed, message);
        return Err(refused.hint("--as names an agent with runtime sdk or cli"));
    }
    let (projects, secrets) = own_projects(setup, agent, runtime)?;
    let found = projects.as_deref().ok_or_else(|| nowhere(id)).and_then(|projects| {
        native::find(projects, id).map_err(|error| match error {
            NativeError::Unknown { .. } => nowhere(id),
            error => Refused::new(RefusedKind::Usage, heeler_model::chain(&error)),
        })
    })?;
    refuse_known(reader, &found.id).map_err(|error| trouble(&error))??;
    let cwd = found.cwd.clone().unwrap_or_else(|| agent.working_directory.clone());
    let log_path = StateDir::session_log_relative(&cwd, &found.id);
    copy(&fleet.dir, &found.path, &log_path, Cleaner::new(&secrets))?;
    let now = (fleet.now)();
    let session = Session {
        agent_session_id: Some(found.id.clone()),
        mode: agent.session.mode,
        approvals: agent.approvals,
        status: SessionStatus::Paused,
        last_active_at: found.last_at.unwrap_or(now),
        message_count: i64::try_from(found.messages).unwrap_or(i64::MAX),
        token_estimate: i64::try_from(found.tokens).unwrap_or(i64::MAX),
        working_directory: Some(cwd),
        runtime: runtime.to_string(),
        own: found.last.map(|last| OwnMark { bytes: found.bytes, last }),
        log_path: Some(log_path),
        origin: Some(NATIVE.to_owned()),
        ..Session::new(
            SessionId::mint(fastrand::u32(..)),
            name.as_str(),
            found.first_at.unwrap_or(now),
        )
    };
    Ok(taken(session))
}

/// Puts the files of an exported session in place.
pub(super) fn import(
    fleet: &Fleet,
    setup: &Setup,
    reader: &Reader,
    file: &Utf8Path,
    agent: Option<&str>,
) -> Result<Taken, Refused> {
    let usage = |error: &dyn std::error::Error| {
        Refused::new(RefusedKind::Usage, heeler_model::chain(error))
    };
    let bundle = bundle::open(file).map_err(|error| usage(&error))?;
    if let Some(own) = &bundle.session.agent_session_id {
        refuse_known(reader, own).map_err(|error| trouble(&error))??;
    }
    let agent = setup.find_agent(agent.unwrap_or(&bundle.session.agent))?;
    let runtime = runtime_type(&agent.runtime);
    let is_claude = |word: &str| matches!(word, "sdk" | "cli");
    let (theirs, ours) = (bundle.session.runtime.as_str(), runtime.as_str());
    if !theirs.is_empty() && is_claude(theirs) != is_claude(ours) {
        let message =
            format!("the session was made by runtime {theirs}, {} has {ours}", agent.name);
        let refused = Refused::new(RefusedKind::NotAllowed, message);
        return Err(refused.hint("--as names an agent with the same runtime"));
    }
    let directory = &agent.working_directory;
    let cwd = real_folder(directory).map_err(|error| {
        Refused::new(
            RefusedKind::Usage,
            format!("{} cannot work in {directory}: {error}", agent.name),
        )
    })?;
    let (projects, _) = own_projects(setup, agent, runtime)?;
    let placed = bundle::place(&fleet.dir, &bundle, projects.as_deref(), &cwd);
    let placed = placed
        .map_err(|error| Refused::new(RefusedKind::NotAllowed, heeler_model::chain(&error)))?;
    let snapshots = place::import(&fleet.dir, &bundle)?;
    let session = Session {
        agent: agent.name.to_string(),
        runtime: runtime.to_string(),
        // What it came of is on the other machine.
        parent: None,
        continues: None,
        channel_id: None,
        ..placed.session
    };
    let mut taken = taken(session);
    taken.taken.snapshots = snapshots;
    Ok(taken)
}

fn taken(session: Session) -> Taken {
    let told = TakenSession {
        id: session.id.clone(),
        agent_session_id: session.agent_session_id.clone(),
        agent: session.agent.clone(),
        messages: session.message_count.unsigned_abs(),
        working_directory: session.working_directory.clone(),
        snapshots: 0,
    };
    Taken { session, taken: told }
}

/// Makes it one of ours.
pub(super) fn commit(
    tx: &mut Tx<'_>,
    Taken { session, taken }: &Taken,
    by: &str,
) -> Result<Result<Answer, Refused>, DbError> {
    if let Some(own) = &session.agent_session_id
        && let Err(refused) = refuse_known(tx, own)?
    {
        return Ok(Err(refused));
    }
    let is_taken = tx.session(&session.id)?.is_some() || tx.deleted_session(&session.id)?.is_some();
    let id = if is_taken { tx.new_session_id()? } else { session.id.clone() };
    tx.put_session(&Session { id: id.clone(), ..session.clone() })?;
    tracing::info!(session = %id, agent = session.agent, by, "taken over");
    Ok(Ok(Answer::Taken(Box::new(TakenSession { id, ..taken.clone() }))))
}

/// Refuses one that is here, or in the trash.
fn refuse_known(db: &Db, own: &AgentSessionId) -> Result<Result<(), Refused>, DbError> {
    if let Some(known) = db.session_by_agent_id(own)? {
        return Ok(Err(already(&known)));
    }
    let deleted = db.deleted_session_by_agent_id(own)?;
    Ok(match deleted.filter(|deleted| deleted.purged_at.is_none()) {
        None => Ok(()),
        Some(deleted) => {
            let id = deleted.session.id;
            let refused = Refused::new(RefusedKind::Busy, format!("it is in the trash, as {id}"));
            Err(refused.hint(format!("heeler session restore {id}")))
        }
    })
}

fn already(known: &Session) -> Refused {
    let message = format!("it is here already, as {} of {}", known.id, known.agent);
    let refused = Refused::new(RefusedKind::Busy, message);
    refused.hint(format!("heeler session resume {} -p '…'", known.id))
}

fn nowhere(id: &str) -> Refused {
    let message = format!("claude has no session `{id}`");
    Refused::new(RefusedKind::NotFound, message).hint("heeler session list --native")
}

/// Returns where an agent keeps its own sessions, and its secrets.
fn own_projects(
    setup: &Setup,
    agent: &Agent,
    runtime: RuntimeType,
) -> Result<(Option<Utf8PathBuf>, Vec<String>), Refused> {
    let given = environment::give(agent, &setup.env).map_err(|error| trouble(&error))?;
    let projects = setup.around().projects(runtime, &given.env, &agent.working_directory);
    Ok((projects, given.secrets))
}

/// Makes our log of the conversation, without secrets. One that an attempt left that was cut off is of
/// no record, and may be older than the conversation.
fn copy(
    dir: &StateDir,
    source: &Utf8Path,
    relative: &Utf8Path,
    cleaner: Cleaner,
) -> Result<(), Refused> {
    let log = resolve_inside(dir.root(), relative.as_str()).map_err(|error| trouble(&error))?;
    match std::fs::remove_file(&log) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(trouble(&error)),
        _ => {}
    }
    let folder = log.parent().expect("a log is in its project's folder");
    create_folder(&OsDisk, folder).map_err(|error| trouble(&error))?;
    let scan = Scan::open(source).map_err(|error| trouble(&error))?;
    let mut rows = Conversation { scan, cleaner, waiting: VecDeque::new() };
    place_file(&OsDisk, &log, &mut rows, ADOPTED_BYTES_MAX).map_err(|error| trouble(&error))?;
    Ok(())
}

/// The lines of a file that are the conversation, without secrets.
struct Conversation {
    scan: Scan,
    cleaner: Cleaner,
    waiting: VecDeque<u8>,
}

impl Read for Conversation {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.waiting.is_empty() {
            match self.scan.next() {
                None => return Ok(0),
                Some(Err(error)) => return Err(error.source),
                Some(Ok(Entry::Record(record))) => {
                    let Ok(mut row) = serde_json::from_str::<serde_json::Value>(&record.text)
                    else {
                        continue;
                    };
                    if row["type"].as_str().is_some_and(|word| KEPT.contains(&word)) {
                        without_own_keys(&mut row);
                        self.cleaner.json(&mut row);
                        self.waiting.extend(row.to_string().as_bytes());
                        self.waiting.push_back(b'\n');
                    }
                }
                // What is no record is no part of the conversation.
                Some(Ok(_)) => {}
            }
        }
        self.waiting.read(buffer)
    }
}
