//! What is known of a session besides its words: what the person talks to, where, what was asked, and
//! who works for it.
//!
//! Plain data. In the session's file it is the value of one key of ours, so that it can never be taken
//! for what another program has put there, nor the other way round. Start at [`ConversationState`].

use camino::Utf8PathBuf;
use heeler_model::{AgentSessionId, JobId};
use heeler_transcript::validate_id;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use uuid::Uuid;

use crate::{ConversationLoop, ConversationTask};

/// The key of ours, in the session's file and in each worker of its roster.
pub(crate) const HEELER_KEY: &str = "heeler";

/// Where programs have a worker's name, and its file.
const NAME_KEYS: [&str; 3] = ["agentId", "id", "name"];
const FILE_KEYS: [&str; 3] = ["transcriptPath", "transcript", "path"];

/// What the file of a transcript ends in.
pub(crate) const NDJSON_SUFFIX: &str = ".ndjson";

/// What is known of a session besides its words.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConversationState {
    /// Whom the person talks to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The state directory of the agent's fleet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_dir: Option<Utf8PathBuf>,
    /// Where the person was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<Utf8PathBuf>,
    /// The agent's own id of the conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<AgentSessionId>,
    /// The entry of that which the next turn goes on behind, if not the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<Uuid>,
    /// The next turn goes on in a copy of it: this session was forked from another.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_fork: bool,
    /// The model, if the person chose one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// When it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Timestamp>,
    /// What was asked, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<ConversationTurn>,
    /// What comes back to the agent by itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub loops: Vec<ConversationLoop>,
    /// What is to be done.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<ConversationTask>,
    /// The file with what was learned, beside the session's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub insights: Option<String>,
    /// The workers whose transcripts can be read; they stand in the file's own roster.
    #[serde(skip)]
    pub workers: Vec<RosterWorker>,
    /// How many entries the transcript was seen to have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) counted: Option<EntryCount>,
    /// The entries of the inline transcript are on their way to the transcript's own file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) adopting: Option<InlineBoundary>,
    /// What a later Heeler has put there.
    #[serde(flatten)]
    pub other: Map<String, Json>,
}

impl ConversationState {
    /// Returns the jobs of its turns, oldest first.
    pub fn jobs(&self) -> Vec<JobId> {
        self.turns.iter().filter_map(|asked| asked.job.clone()).collect()
    }

    /// Returns whom the person talks to.
    pub fn agent(&self) -> &str {
        self.agent.as_deref().unwrap_or_default()
    }
}

/// Something that the agent was asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConversationTurn {
    /// [`crate::TurnRequest::id`].
    pub turn: Uuid,
    /// The job that it became, once that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    /// The loop that asked, by its place among them, until what came of it counts there.
    #[serde(default, rename = "loop", skip_serializing_if = "Option::is_none")]
    pub by_loop: Option<usize>,
    /// The task that it asked to be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
}

/// How many entries a transcript has up to a place. It is a cache: what came since is counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EntryCount {
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
}

/// Where an inline transcript goes on from the transcript's own file: behind the first `bytes` of that
/// come the entries from number `entries` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InlineBoundary {
    pub(crate) bytes: u64,
    pub(crate) entries: usize,
}

/// A worker of a session's roster.
#[derive(Debug, Clone, PartialEq)]
pub struct RosterWorker {
    /// Its name among the workers of the session: `coder-1`.
    pub name: String,
    /// What was asked of it first.
    pub task: Option<String>,
    /// Its jobs, oldest first.
    pub jobs: Vec<JobId>,
    /// The name of its transcript in the folder of the workers.
    pub(crate) file: String,
    /// The roster's entry as it was found.
    entry: Map<String, Json>,
}

/// What we put into a roster's entry.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct RosterWorkerKeys {
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    jobs: Vec<JobId>,
    #[serde(flatten)]
    other: Map<String, Json>,
}

impl RosterWorker {
    /// Makes a worker that has said nothing yet. Its name must do as a file's.
    pub fn new(name: &str) -> RosterWorker {
        let mut entry = Map::new();
        let file = format!("{name}{NDJSON_SUFFIX}");
        entry.insert(NAME_KEYS[0].to_owned(), name.into());
        entry.insert(FILE_KEYS[0].to_owned(), file.as_str().into());
        RosterWorker { name: name.to_owned(), task: None, jobs: Vec::new(), file, entry }
    }

    /// Reads an entry of a roster. An error says which entry it is and why it is skipped.
    pub(crate) fn from_roster_entry(entry: &Json, number: usize) -> Result<RosterWorker, String> {
        let nameless = || format!("worker {number}");
        let entry = entry.as_object().ok_or_else(|| format!("{}: it is no object", nameless()))?;
        let text = |keys: &[&str]| keys.iter().find_map(|key| entry.get(*key)?.as_str());
        let name = text(&NAME_KEYS);
        let who = name.map_or_else(nameless, |name| format!("worker `{name}`"));
        let name = name.ok_or_else(|| format!("{who}: it has no name"))?;
        validate_id(name).map_err(|error| format!("{who}: {error}"))?;
        let file = text(&FILE_KEYS).map_or_else(|| format!("{name}{NDJSON_SUFFIX}"), str::to_owned);
        if let Some(reason) = unsafe_file_reason(&file) {
            return Err(format!("{who}: transcript path `{file}`: {reason}"));
        }
        let ours = entry.get(HEELER_KEY).cloned().unwrap_or_else(|| Json::Object(Map::new()));
        let ours: RosterWorkerKeys = serde_json::from_value(ours)
            .map_err(|error| format!("{who}: its `{HEELER_KEY}` cannot be read: {error}"))?;
        let (task, jobs) = (ours.task, ours.jobs);
        Ok(RosterWorker { name: name.to_owned(), task, jobs, file, entry: entry.clone() })
    }

    /// Returns the roster's entry: as it was found, with what is known now.
    pub(crate) fn to_roster_entry(&self) -> Json {
        let mut entry = self.entry.clone();
        let found = entry.get(HEELER_KEY).cloned().and_then(|it| serde_json::from_value(it).ok());
        let mut ours: RosterWorkerKeys = found.unwrap_or_default();
        (ours.task, ours.jobs) = (self.task.clone(), self.jobs.clone());
        let ours = serde_json::to_value(ours).expect("plain data can be written as JSON");
        if ours.as_object().is_some_and(|ours| !ours.is_empty()) || entry.contains_key(HEELER_KEY) {
            entry.insert(HEELER_KEY.to_owned(), ours);
        }
        Json::Object(entry)
    }
}

/// Says why a file's name from a session's file is not used.
pub(crate) fn unsafe_file_reason(name: &str) -> Option<String> {
    if name.starts_with('/') {
        return Some("it is an absolute path".to_owned());
    }
    if name.split(['/', '\\']).any(|part| part == "..") {
        return Some("it contains `..`".to_owned());
    }
    if name.contains(['/', '\\']) {
        return Some("it contains a path separator".to_owned());
    }
    let Some(stem) = name.strip_suffix(NDJSON_SUFFIX) else {
        return Some(format!("it does not end in `{NDJSON_SUFFIX}`"));
    };
    // Ids and names have a largest length; what their files add to them does not count.
    let stem = stem.strip_suffix(".transcript").unwrap_or(stem);
    validate_id(stem).err().map(|error| error.to_string())
}
