//! JSON file of a session: known keys are typed, all others are kept unchanged.
//!
//! Pure. Keys keep their order and unknown values their exact text, so that data of other programs
//! survives to the digit. Versions 1 to 3 are read. Start at [`SessionMetadata::read`].

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value as Json;
use serde_json::value::RawValue;

use crate::conversation_state::{
    ConversationState, HEELER_KEY, NDJSON_SUFFIX, RosterWorker, unsafe_file_reason,
};

/// Version that is written.
const SCHEMA_VERSION: u64 = 3;

const VERSION: &str = "schemaVersion";
const TRANSCRIPT: &str = "transcript";
const WORKERS: &str = "workers";
const MESSAGES: &str = "msgCount";
const TRANSCRIPT_PATH: &str = "transcriptPath";

/// Content of a session's JSON file.
#[derive(Debug)]
pub(crate) struct SessionMetadata {
    keys: RawJsonObject,
    pub(crate) version: u64,
    pub(crate) state: ConversationState,
    /// Inline transcript of versions 1 and 2, one line per entry.
    pub(crate) inline: Vec<String>,
    /// Roster entries that were skipped.
    skipped: Vec<Box<RawValue>>,
    /// Name of the coordinator's transcript, in the directory of the session.
    pub(crate) transcript: String,
    /// Problems that do not prevent use.
    pub(crate) warnings: Vec<String>,
}

/// Treatment of the inline transcript and the version in a write.
pub(crate) enum InlineTranscriptUpdate {
    /// Empty the array and raise the version.
    Clear,
    /// Keep array and version.
    Keep,
    /// Keep the version and replace the array.
    Replace(Vec<String>),
}

impl SessionMetadata {
    /// Creates the content for a new session.
    pub(crate) fn new(id: &str, about: ConversationState) -> SessionMetadata {
        let mut keys = RawJsonObject::default();
        keys.put("id", &id);
        let (inline, skipped, warnings) = (Vec::new(), Vec::new(), Vec::new());
        let transcript = default_transcript_name(id);
        SessionMetadata {
            keys,
            version: SCHEMA_VERSION,
            state: about,
            inline,
            skipped,
            transcript,
            warnings,
        }
    }

    /// Parses the file of the session `id`. The error is the reason as text.
    pub(crate) fn read(id: &str, text: &str) -> Result<SessionMetadata, String> {
        let keys: RawJsonObject =
            serde_json::from_str(text).map_err(|error| format!("it is no JSON object: {error}"))?;
        let version = match keys.parse::<Option<Json>>(VERSION)?.flatten() {
            None => 1,
            Some(version) => match version.as_u64() {
                Some(known @ 1..=SCHEMA_VERSION) => known,
                // A write could damage a later format, so it is not opened at all.
                _ => return Err(format!("its {VERSION} is {version}; 1 to 3 are known")),
            },
        };
        let entries = keys.parse::<Option<Vec<&RawValue>>>(TRANSCRIPT)?.flatten();
        let inline =
            entries.unwrap_or_default().into_iter().map(|raw| entry_line(raw.get())).collect();
        let about = keys.parse::<ConversationState>(HEELER_KEY)?.unwrap_or_default();
        let transcript = default_transcript_name(id);
        let (skipped, warnings) = (Vec::new(), Vec::new());
        let mut metadata =
            SessionMetadata { keys, version, state: about, inline, skipped, transcript, warnings };
        metadata.read_roster()?;
        metadata.read_transcript_path(id)?;
        Ok(metadata)
    }

    fn read_roster(&mut self) -> Result<(), String> {
        let roster = self.keys.parse::<Option<Vec<Box<RawValue>>>>(WORKERS)?.flatten();
        for (at, raw) in roster.unwrap_or_default().into_iter().enumerate() {
            let entry = serde_json::from_str(raw.get()).unwrap_or(Json::Null);
            let known = |name: &str| self.state.workers.iter().any(|it| it.name == name);
            match RosterWorker::from_roster_entry(&entry, at + 1) {
                Ok(worker) if known(&worker.name) => {
                    self.warnings.push(format!("worker `{}`: it is listed twice", worker.name));
                    // Kept, so that the next write does not remove the entry of another program.
                    self.skipped.push(raw);
                }
                Ok(worker) => self.state.workers.push(worker),
                Err(warning) => {
                    self.warnings.push(warning);
                    // Kept, so that the next write does not remove the entry of another program.
                    self.skipped.push(raw);
                }
            }
        }
        Ok(())
    }

    /// Uses the transcript name from the file if it can only belong to this session.
    fn read_transcript_path(&mut self, id: &str) -> Result<(), String> {
        let Some(Some(path)) = self.keys.parse::<Option<String>>(TRANSCRIPT_PATH)? else {
            return Ok(());
        };
        let other = || {
            // The dot matters: `chat-1` must not use the file of `chat-10`.
            let is_own = path.strip_prefix(id).is_some_and(|rest| rest.starts_with('.'));
            (!is_own).then(|| "it is not named after the session".to_owned())
        };
        match unsafe_file_reason(&path).or_else(other) {
            None => self.transcript = path,
            Some(reason) => {
                self.warnings.push(format!("{TRANSCRIPT_PATH} `{path}` is not used: {reason}"));
            }
        }
        Ok(())
    }

    /// Removes a worker from the list, but keeps its entry in the file.
    pub(crate) fn skip_worker(&mut self, worker: usize) {
        let entry = self.state.workers.remove(worker).to_roster_entry().to_string();
        self.skipped.push(RawValue::from_string(entry).expect("it was written as JSON"));
    }

    /// Returns the first non-null value under keys that other programs may use.
    pub(crate) fn foreign_value(&self, keys: &[&str]) -> Option<Json> {
        let found = keys.iter().filter_map(|key| self.keys.parse::<Json>(key).ok().flatten());
        found.into_iter().find(|value| !value.is_null())
    }

    /// Returns the file's bytes. An unknown count stays unchanged.
    pub(crate) fn write(
        &mut self,
        messages: Option<u64>,
        inline: InlineTranscriptUpdate,
    ) -> Vec<u8> {
        let is_raised = matches!(inline, InlineTranscriptUpdate::Clear);
        if is_raised {
            self.version = SCHEMA_VERSION;
            self.inline = Vec::new();
            self.keys.put(VERSION, &SCHEMA_VERSION);
            self.keys.put(TRANSCRIPT, &[(); 0]);
        }
        if let InlineTranscriptUpdate::Replace(lines) = inline {
            self.keys.put_text(TRANSCRIPT, format!("[\n{}\n]", lines.join(",\n")));
            self.inline = lines;
        }
        if self.version == SCHEMA_VERSION {
            messages.iter().for_each(|messages| self.keys.put(MESSAGES, messages));
            self.keys.put(TRANSCRIPT_PATH, &self.transcript);
        }
        // Otherwise the key keeps its text, which still has the skipped entries.
        if !self.state.workers.is_empty() {
            let known = self.state.workers.iter().map(|it| it.to_roster_entry().to_string());
            let skipped = self.skipped.iter().map(|raw| raw.get().to_owned());
            let roster: Vec<String> = known.chain(skipped).collect();
            self.keys.put_text(WORKERS, format!("[\n    {}\n  ]", roster.join(",\n    ")));
        }
        self.keys.put(HEELER_KEY, &self.state);
        self.keys.text().into_bytes()
    }
}

/// Returns the default name of the coordinator's transcript.
pub(crate) fn default_transcript_name(id: &str) -> String {
    format!("{id}.transcript{NDJSON_SUFFIX}")
}

/// Returns an entry of an inline transcript as one line: its exact text without whitespace between
/// tokens. A value that is not an object becomes the content of one.
fn entry_line(entry: &str) -> String {
    let (mut line, mut in_text, mut is_escaped) =
        (String::with_capacity(entry.len()), false, false);
    for char in entry.chars() {
        if in_text || !char.is_ascii_whitespace() {
            line.push(char);
        }
        in_text = in_text != (char == '"' && !is_escaped);
        is_escaped = in_text && char == '\\' && !is_escaped;
    }
    if line.starts_with('{') { line } else { format!(r#"{{"role":"unknown","content":{line}}}"#) }
}

/// JSON object with unparsed values. If a key occurs twice, the last one counts.
#[derive(Debug, Default)]
struct RawJsonObject(Vec<(String, Box<RawValue>)>);

impl RawJsonObject {
    /// Parses the value of a key; `None` if it is missing.
    fn parse<'a, T: Deserialize<'a>>(&'a self, key: &str) -> Result<Option<T>, String> {
        let Some((_, raw)) = self.0.iter().rfind(|(name, _)| name == key) else { return Ok(None) };
        let value = serde_json::from_str(raw.get());
        value.map(Some).map_err(|error| format!("its `{key}` cannot be read: {error}"))
    }

    fn put(&mut self, key: &str, value: &impl Serialize) {
        let text = serde_json::to_string_pretty(value).expect("plain data can be written as JSON");
        // JSON strings contain no raw line breaks, so all of these are between tokens.
        self.put_text(key, text.replace('\n', "\n  "));
    }

    fn put_text(&mut self, key: &str, text: String) {
        let raw = RawValue::from_string(text).expect("it was put together from JSON");
        match self.0.iter_mut().rfind(|(name, _)| name == key) {
            Some((_, found)) => *found = raw,
            None => self.0.push((key.to_owned(), raw)),
        }
    }

    fn text(&self) -> String {
        let keys = self.0.iter().map(|(key, raw)| format!("  {}: {raw}", Json::from(key.as_str())));
        format!("{{\n{}\n}}\n", keys.collect::<Vec<_>>().join(",\n"))
    }
}

impl<'de> Deserialize<'de> for RawJsonObject {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<RawJsonObject, D::Error> {
        struct RawJsonObjectVisitor;
        impl<'de> Visitor<'de> for RawJsonObjectVisitor {
            type Value = RawJsonObject;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawJsonObject, A::Error> {
                let mut keys = RawJsonObject::default();
                // `RawValue` keeps the exact text, such as all digits of a number.
                while let Some((key, raw)) = map.next_entry::<String, Box<RawValue>>()? {
                    keys.0.push((key, raw));
                }
                Ok(keys)
            }
        }
        from.deserialize_map(RawJsonObjectVisitor)
    }
}
