//! Sessions of the scripted agent: one append-only file per session, in Claude's envelope.
//!
//! A line is in the file before it is sent, so every visible message of a session can be resumed
//! after any end of its process. A session exists from its first prompt on. A fork appears under
//! its name once all its history is in it. Start at [`ScriptedSession::open`].

use std::collections::HashMap;
use std::fs;
use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::script::ScriptSessionKind;
use heeler_model::AgentSessionId;
use heeler_model::run::SessionStart;
use heeler_transcript::{
    OsDisk, TranscriptWriter, TranscriptWriterOptions, create_folder, replace_file,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use thiserror::Error;
use uuid::Uuid;

use crate::native_session;

/// Reason that a session cannot be opened or saved; the first three use Claude's wording.
#[derive(Debug, Error)]
pub(super) enum ScriptedSessionError {
    #[error("No conversation found with session ID: {id}")]
    NotFound { id: AgentSessionId },
    #[error("No message found with message.uuid of: {at}")]
    NoSuchMessage { at: Uuid },
    #[error("Error: Session ID {id} is already in use.")]
    InUse { id: AgentSessionId },
    #[error("cannot read session {path}: {source}")]
    Read { path: Utf8PathBuf, source: io::Error },
    #[error("cannot keep session {path}: {reason}")]
    Write { path: Utf8PathBuf, reason: String },
}

/// Cost and usage of a session until now.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct ScriptedSpending {
    pub(super) usd: f64,
    pub(super) input: u64,
    pub(super) output: u64,
}

/// One session of the scripted agent.
pub(super) struct ScriptedSession {
    pub(super) id: AgentSessionId,
    pub(super) kind: ScriptSessionKind,
    /// Prompts, oldest first.
    pub(super) prompts: Vec<String>,
    /// Cost and usage before this process.
    pub(super) spent: ScriptedSpending,
    /// The session is saved to its file.
    pub(super) is_persistent: bool,
    path: Utf8PathBuf,
    cwd: Utf8PathBuf,
    /// Entry that the next one follows.
    last: Option<Uuid>,
    /// History that a fork takes over, until it is written.
    inherited: Option<Vec<u8>>,
    log: Option<TranscriptWriter>,
}

impl ScriptedSession {
    /// Opens or begins a session below `home`. Nothing is written yet.
    pub(super) fn open(
        home: &Utf8Path,
        cwd: &Utf8Path,
        start: &SessionStart,
    ) -> Result<ScriptedSession, ScriptedSessionError> {
        let projects = home.join("scripted/projects");
        let mut session = ScriptedSession {
            id: start.id().clone(),
            kind: ScriptSessionKind::New,
            prompts: Vec::new(),
            spent: ScriptedSpending::default(),
            is_persistent: true,
            path: native_session::session_path(&projects, cwd, start.id()),
            cwd: cwd.to_owned(),
            last: None,
            inherited: None,
            log: None,
        };
        let found = native_session::find_session(&projects, cwd, start.id());
        match start {
            SessionStart::Resume { id } | SessionStart::Continue { id, .. } => {
                let path =
                    found.ok_or_else(|| ScriptedSessionError::NotFound { id: id.clone() })?;
                session.kind = ScriptSessionKind::Resumed;
                session.load_history(&ScriptedSessionHistory::read(&path, None)?);
                session.path = path;
            }
            // Claude refuses to begin a session under an ID that is taken.
            SessionStart::Fresh { id } | SessionStart::Fork { id, .. } if found.is_some() => {
                return Err(ScriptedSessionError::InUse { id: id.clone() });
            }
            SessionStart::Fresh { .. } => {}
            SessionStart::Fork { source, at, id } => {
                let path = native_session::find_session(&projects, cwd, source)
                    .ok_or_else(|| ScriptedSessionError::NotFound { id: source.clone() })?;
                session.kind = ScriptSessionKind::Forked;
                let history = ScriptedSessionHistory::read(&path, *at)?;
                session.load_history(&history);
                // It is written with the first prompt, so that an unused fork leaves no file.
                session.inherited = Some(history.copy_lines_for(id));
            }
        }
        Ok(session)
    }

    fn load_history(&mut self, history: &ScriptedSessionHistory) {
        self.prompts = history.prompts();
        self.last = history.chain.last().map(|entry| entry.uuid);
        self.spent = history.spent;
    }

    /// Appends an entry after the last one.
    pub(super) fn append_entry(
        &mut self,
        kind: &str,
        uuid: Uuid,
        message: &impl Serialize,
        timestamp: &str,
    ) -> Result<(), ScriptedSessionError> {
        let line = to_line(&ScriptedEntryEnvelope {
            parent_uuid: self.last,
            is_sidechain: false,
            r#type: kind,
            message,
            uuid,
            timestamp,
            user_type: "external",
            cwd: &self.cwd,
            session_id: &self.id,
            version: "scripted",
        });
        self.append(&line)?;
        self.last = Some(uuid);
        Ok(())
    }

    /// Saves cost and usage.
    pub(super) fn write_spending(
        &mut self,
        spent: ScriptedSpending,
    ) -> Result<(), ScriptedSessionError> {
        self.append(&to_line(&cost_state(&self.id, spent)))
    }

    fn append(&mut self, line: &[u8]) -> Result<(), ScriptedSessionError> {
        if !self.is_persistent {
            return Ok(());
        }
        let path = &self.path;
        let keep = |reason: String| ScriptedSessionError::Write { path: path.clone(), reason };
        let log = match &mut self.log {
            Some(log) => log,
            None => {
                let folder = path.parent().expect("a session's path has its project's folder");
                create_folder(&OsDisk, folder).map_err(|error| keep(error.to_string()))?;
                // The history appears as a whole, so a crash never leaves a part of a fork.
                if let Some(lines) = self.inherited.take() {
                    replace_file(&OsDisk, path, &lines).map_err(|error| keep(error.to_string()))?;
                }
                let opened = TranscriptWriter::open(path, TranscriptWriterOptions::default());
                self.log.insert(opened.map_err(|error| keep(error.to_string()))?.writer)
            }
        };
        log.append(line).map_err(|error| keep(error.to_string()))
    }
}

/// One entry in its written form.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ScriptedEntryEnvelope<'e, M> {
    parent_uuid: Option<Uuid>,
    is_sidechain: bool,
    r#type: &'e str,
    message: &'e M,
    uuid: Uuid,
    timestamp: &'e str,
    user_type: &'e str,
    cwd: &'e Utf8Path,
    session_id: &'e AgentSessionId,
    version: &'e str,
}

fn cost_state(id: &AgentSessionId, spent: ScriptedSpending) -> Json {
    json!({
        "type": "cost-state", "sessionId": id, "totalCostUSD": spent.usd,
        "inputTokens": spent.input, "outputTokens": spent.output,
    })
}

fn to_line(entry: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(entry).expect("JSON is written to memory")
}

/// Content of a session file.
struct ScriptedSessionHistory {
    /// Entries from the first to the newest, or to the requested one.
    chain: Vec<ScriptedStoredEntry>,
    spent: ScriptedSpending,
}

#[derive(Deserialize)]
struct ScriptedStoredEntry {
    uuid: Uuid,
    #[serde(rename = "parentUuid")]
    parent: Option<Uuid>,
    #[serde(flatten)]
    rest: serde_json::Map<String, Json>,
}

impl ScriptedSessionHistory {
    /// Reads a file. Lines that are not entries are skipped: a process may have died while writing
    /// one.
    fn read(
        path: &Utf8Path,
        at: Option<Uuid>,
    ) -> Result<ScriptedSessionHistory, ScriptedSessionError> {
        let text = fs::read(path)
            .map_err(|source| ScriptedSessionError::Read { path: path.to_owned(), source })?;
        let mut spent = ScriptedSpending::default();
        let mut entries = HashMap::new();
        let mut newest = None;
        for line in text.split(|byte| *byte == b'\n') {
            let Ok(line) = serde_json::from_slice::<Json>(line) else { continue };
            if line["type"] == "cost-state" {
                spent = ScriptedSpending {
                    usd: line["totalCostUSD"].as_f64().unwrap_or(0.0),
                    input: line["inputTokens"].as_u64().unwrap_or(0),
                    output: line["outputTokens"].as_u64().unwrap_or(0),
                };
            } else if let Ok(entry) = serde_json::from_value::<ScriptedStoredEntry>(line) {
                newest = Some(entry.uuid);
                entries.insert(entry.uuid, entry);
            }
        }
        if let Some(at) = at.filter(|at| !entries.contains_key(at)) {
            return Err(ScriptedSessionError::NoSuchMessage { at });
        }
        let mut chain = Vec::new();
        let mut next = at.or(newest);
        // Entries are removed as they are visited, so that a cycle of parents ends.
        while let Some(entry) = next.and_then(|uuid| entries.remove(&uuid)) {
            next = entry.parent;
            chain.push(entry);
        }
        chain.reverse();
        Ok(ScriptedSessionHistory { chain, spent })
    }

    fn prompts(&self) -> Vec<String> {
        let prompt = |entry: &ScriptedStoredEntry| match &entry.rest.get("message")?["content"] {
            Json::String(text) if entry.rest.get("type")? == "user" => Some(text.clone()),
            _ => None,
        };
        self.chain.iter().filter_map(prompt).collect()
    }

    /// Returns the lines of a session that begins with this history. As in Claude's forks the
    /// entries keep their IDs, and cost and usage are carried over.
    fn copy_lines_for(&self, id: &AgentSessionId) -> Vec<u8> {
        let mut lines = Vec::new();
        let mut push = |line: &Json| {
            lines.extend(to_line(line));
            lines.push(b'\n');
        };
        for entry in &self.chain {
            let mut line = json!({"parentUuid": entry.parent, "uuid": entry.uuid});
            let map = line.as_object_mut().expect("it was made an object above");
            map.extend(entry.rest.clone());
            map.insert("sessionId".to_owned(), json!(id));
            push(&line);
        }
        push(&cost_state(id, self.spent));
        lines
    }
}
