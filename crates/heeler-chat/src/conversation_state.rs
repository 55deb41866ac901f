//! State of a conversation besides its transcript: agent, directories, turns, loops, tasks and
//! workers.
//!
//! Plain data. In the session file it is the value of one key, so that it cannot collide with keys
//! of other programs. Start at [`ConversationState`].

use camino::Utf8PathBuf;
use heeler_model::{AgentSessionId, JobId};
use heeler_transcript::validate_id;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use uuid::Uuid;

use crate::{ConversationLoop, ConversationTask};

/// Key of Heeler's data, in the session file and in each roster entry.
pub(crate) const HEELER_KEY: &str = "heeler";

/// Keys under which programs store a worker's name, and its file.
const NAME_KEYS: [&str; 3] = ["agentId", "id", "name"];
const FILE_KEYS: [&str; 3] = ["transcriptPath", "transcript", "path"];

/// Suffix of transcript files.
pub(crate) const NDJSON_SUFFIX: &str = ".ndjson";

/// State of a conversation besides its transcript.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConversationState {
    /// Agent that the person talks to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// State directory of the agent's fleet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_dir: Option<Utf8PathBuf>,
    /// Working directory of the person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<Utf8PathBuf>,
    /// Native session ID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<AgentSessionId>,
    /// Entry of the native session after which the next turn continues, if it is not the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<Uuid>,
    /// The next turn continues in a fork of the native session, because this session was forked.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_fork: bool,
    /// Model chosen by the person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Timestamp>,
    /// Turns, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<ConversationTurn>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub loops: Vec<ConversationLoop>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<ConversationTask>,
    /// Name of the insights file, next to the session file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub insights: Option<String>,
    /// Workers with a readable transcript; stored in the file's own roster.
    #[serde(skip)]
    pub workers: Vec<RosterWorker>,
    /// Cached number of entries in the transcript.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) counted: Option<EntryCount>,
    /// Position at which entries of the inline transcript are being moved to the transcript file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) adopting: Option<InlineBoundary>,
    /// Unknown keys, such as those of a later version.
    #[serde(flatten)]
    pub other: Map<String, Json>,
}

impl ConversationState {
    /// Returns the jobs of its turns, oldest first.
    pub fn jobs(&self) -> Vec<JobId> {
        self.turns.iter().filter_map(|turn| turn.job.clone()).collect()
    }

    /// Returns the name of the agent, or an empty string.
    pub fn agent(&self) -> &str {
        self.agent.as_deref().unwrap_or_default()
    }
}

/// Turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConversationTurn {
    /// [`crate::TurnRequest::id`].
    pub turn: Uuid,
    /// Job of the turn, once known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    /// Index of the loop that started the turn, until its result is counted there.
    #[serde(default, rename = "loop", skip_serializing_if = "Option::is_none")]
    pub by_loop: Option<usize>,
    /// Task that the turn was about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
}

/// Number of entries of a transcript up to an offset. It is a cache: later entries are counted when
/// needed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EntryCount {
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
}

/// Boundary between the transcript file and the inline transcript: the first `bytes` of the file
/// are followed by the inline entries from index `entries` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InlineBoundary {
    pub(crate) bytes: u64,
    pub(crate) entries: usize,
}

/// Worker in a session's roster.
#[derive(Debug, Clone, PartialEq)]
pub struct RosterWorker {
    /// Name among the workers of the session: `coder-1`.
    pub name: String,
    /// First task of the worker.
    pub task: Option<String>,
    /// Jobs, oldest first.
    pub jobs: Vec<JobId>,
    /// Name of its transcript in the directory of the workers.
    pub(crate) file: String,
    /// Roster entry as it was read.
    entry: Map<String, Json>,
}

/// Heeler's keys in a roster entry.
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
    /// Creates a worker without a transcript. Its name must be valid as a file name.
    pub fn new(name: &str) -> RosterWorker {
        let mut entry = Map::new();
        let file = format!("{name}{NDJSON_SUFFIX}");
        entry.insert(NAME_KEYS[0].to_owned(), name.into());
        entry.insert(FILE_KEYS[0].to_owned(), file.as_str().into());
        RosterWorker { name: name.to_owned(), task: None, jobs: Vec::new(), file, entry }
    }

    /// Parses a roster entry. An error names the entry and the reason for skipping it.
    pub(crate) fn from_roster_entry(entry: &Json, number: usize) -> Result<RosterWorker, String> {
        let nameless = || format!("worker {number}");
        let entry = entry.as_object().ok_or_else(|| format!("{}: it is no object", nameless()))?;
        let text = |keys: &[&str]| keys.iter().find_map(|key| entry.get(*key)?.as_str());
        let name = text(&NAME_KEYS);
        let subject = name.map_or_else(nameless, |name| format!("worker `{name}`"));
        let name = name.ok_or_else(|| format!("{subject}: it has no name"))?;
        // Any program may have written the roster, and the name becomes a file name.
        validate_id(name).map_err(|error| format!("{subject}: {error}"))?;
        let file = text(&FILE_KEYS).map_or_else(|| format!("{name}{NDJSON_SUFFIX}"), str::to_owned);
        if let Some(reason) = unsafe_file_reason(&file) {
            return Err(format!("{subject}: transcript path `{file}`: {reason}"));
        }
        let ours = entry.get(HEELER_KEY).cloned().unwrap_or_else(|| Json::Object(Map::new()));
        let ours: RosterWorkerKeys = serde_json::from_value(ours)
            .map_err(|error| format!("{subject}: its `{HEELER_KEY}` cannot be read: {error}"))?;
        let (task, jobs) = (ours.task, ours.jobs);
        Ok(RosterWorker { name: name.to_owned(), task, jobs, file, entry: entry.clone() })
    }

    /// Returns the roster entry as it was read, with Heeler's keys updated.
    pub(crate) fn to_roster_entry(&self) -> Json {
        let mut entry = self.entry.clone();
        let found = entry.get(HEELER_KEY).cloned().and_then(|it| serde_json::from_value(it).ok());
        let mut ours: RosterWorkerKeys = found.unwrap_or_default();
        (ours.task, ours.jobs) = (self.task.clone(), self.jobs.clone());
        let ours = serde_json::to_value(ours).expect("plain data can be written as JSON");
        // An entry of another program stays as it was if Heeler has nothing to add.
        if ours.as_object().is_some_and(|ours| !ours.is_empty()) || entry.contains_key(HEELER_KEY) {
            entry.insert(HEELER_KEY.to_owned(), ours);
        }
        Json::Object(entry)
    }
}

/// Returns the reason for which a file name from a session file is rejected, if any.
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
    // The length limit applies to IDs and names without file suffixes.
    let stem = stem.strip_suffix(".transcript").unwrap_or(stem);
    validate_id(stem).err().map(|error| error.to_string())
}
