//! Reads a session file of agents-fleet, versions 1 to 3, and upgrades it to version 3; pure.
//!
//! Upgrading adds fields and never removes any. Start at [`AgentsFleetSession`].

use heeler_model::{AgentSessionId, ApprovalMode, Session, parse_iso};
use heeler_store::{LenientRecord, idle_session};
use jiff::Timestamp;
use serde_json::Value;

use crate::source::unsafe_name;

/// Agent under which interactive sessions are listed.
pub(crate) const INTERACTIVE: &str = "interactive";

/// The version that is written.
const SCHEMA_VERSION: i64 = 3;

#[derive(Debug)]
pub(crate) struct AgentsFleetSession {
    pub(crate) id: AgentSessionId,
    /// ID in the file, if it is not the file's name.
    pub(crate) other_id: Option<String>,
    record: LenientRecord,
    /// File names of its workers' transcripts.
    pub(crate) workers: Vec<String>,
    /// Workers with a transcript that must not be read, with the reason.
    pub(crate) unsafe_workers: Vec<(String, String)>,
    /// File name of the coordinator's transcript.
    pub(crate) transcript: Result<String, String>,
}

impl AgentsFleetSession {
    /// Reads `<stem>.json`.
    pub(crate) fn read(stem: &str, text: &str) -> Result<AgentsFleetSession, String> {
        let id: AgentSessionId = stem.parse().map_err(|error| format!("{error}"))?;
        let record = LenientRecord::json(text)?;
        // The id has one of two keys.
        let recorded_id = record.filled("id").or_else(|| record.filled("sessionId"));
        // A file that was renamed is resumed by its name, so it is imported by its name too.
        let other_id = recorded_id.filter(|recorded_id| recorded_id != stem);
        match record.map().get("schemaVersion").map(Value::as_i64) {
            // A file without a version is read like version 1.
            None | Some(Some(1..=SCHEMA_VERSION)) => {}
            Some(version) => {
                let version = version.map_or("no number".to_owned(), |number| number.to_string());
                return Err(format!("its schemaVersion is {version}; 1 to 3 are known"));
            }
        }
        let (workers, unsafe_workers) = workers(&record);
        // The path may come from anywhere, so only a plain name beside the file is accepted.
        let transcript = match record.text("transcriptPath") {
            None => Ok(own_transcript(&id)),
            Some(path) => match unsafe_name(&path) {
                None => Ok(path),
                Some(reason) => Err(format!("transcript path `{path}`: {reason}")),
            },
        };
        Ok(AgentsFleetSession { id, other_id, record, workers, unsafe_workers, transcript })
    }

    /// Returns the inline transcript, one entry per line; `None` if there is none.
    pub(crate) fn inline_transcript(&self) -> Option<Vec<u8>> {
        let entries = self.record.map().get("transcript")?.as_array()?;
        let mut lines = Vec::new();
        for entry in entries {
            serde_json::to_writer(&mut lines, entry)
                .expect("a JSON value can be written to memory");
            lines.push(b'\n');
        }
        // An empty list means that the transcript is in its own file.
        (!lines.is_empty()).then_some(lines)
    }

    /// Returns the file upgraded to version 3, as agents-fleet would write it.
    pub(crate) fn upgraded_json(&self, messages: i64) -> Vec<u8> {
        let mut record = self.record.clone();
        let map = record.map_mut();
        map.insert("schemaVersion".to_owned(), SCHEMA_VERSION.into());
        map.insert("msgCount".to_owned(), messages.into());
        map.insert("transcriptPath".to_owned(), own_transcript(&self.id).into());
        let mut text =
            serde_json::to_vec_pretty(map).expect("a JSON value can be written to memory");
        text.push(b'\n');
        text
    }

    /// Creates Heeler's session record. `file_time` is used if the file has no times.
    pub(crate) fn session(&self, messages: i64, file_time: Timestamp) -> Session {
        let first =
            |keys: &[&str]| keys.iter().find_map(|key| moment(self.record.map().get(*key)?));
        // The key differs between files.
        let created = first(&["createdAt", "created_at", "startedAt"]);
        let last = first(&["updatedAt", "lastActiveAt", "savedAt", "updated_at", "lastUpdated"]);
        let last = last.or(created).unwrap_or(file_time);
        let mut session = idle_session(INTERACTIVE, Some(self.id.clone()), last);
        session.created_at = created.unwrap_or(last);
        session.approvals = ApprovalMode::Interactive;
        session.message_count = messages;
        let folder = ["cwd", "workingDirectory", "projectRoot", "workspace"];
        session.working_directory =
            folder.iter().find_map(|key| self.record.filled(key)).map(Into::into);
        session
    }
}

/// Returns the file name under which the coordinator's transcript is written.
pub(crate) fn own_transcript(id: &AgentSessionId) -> String {
    format!("{id}.transcript.ndjson")
}

/// Reads a time: ISO text, or JavaScript milliseconds.
fn moment(value: &Value) -> Option<Timestamp> {
    match value {
        Value::String(text) => parse_iso(text),
        // JavaScript's `Date.now()` is in milliseconds.
        Value::Number(number) => Timestamp::from_millisecond(number.as_i64()?).ok(),
        _ => None,
    }
}

type WorkerTranscripts = (Vec<String>, Vec<(String, String)>);

fn workers(record: &LenientRecord) -> WorkerTranscripts {
    let roster = record.map().get("workers").and_then(Value::as_array);
    let mut found: WorkerTranscripts = Default::default();
    for (at, worker) in roster.into_iter().flatten().enumerate() {
        // The key differs between files.
        let path = ["transcriptPath", "transcript", "path"]
            .iter()
            .find_map(|key| worker.get(key).and_then(Value::as_str));
        let Some(path) = path else { continue };
        match unsafe_name(path) {
            None => found.0.push(path.to_owned()),
            Some(reason) => {
                let name = ["agentId", "id", "name"]
                    .iter()
                    .find_map(|key| worker.get(key).and_then(Value::as_str));
                let name = name.map_or_else(|| format!("worker {}", at + 1), str::to_owned);
                found.1.push((name, format!("transcript path `{path}`: {reason}")));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const V2: &str = r#"{"id":"f-2","schemaVersion":2,"createdAt":1736935200000,"goal":"tidy",
        "transcript":[{"role":"user","content":"go"},{"role":"assistant","content":"ok"}],
        "workers":[{"agentId":"w1","transcriptPath":"w1.ndjson"},
        {"agentId":"w2","transcriptPath":"/etc/passwd"},{"agentId":"w3","transcriptPath":"../x"},
        {"agentId":"w4","transcriptPath":"a/b.ndjson"},{"agentId":"w5"}]}"#;

    #[test]
    fn raising_to_version_3_adds_and_removes_nothing() {
        let read = AgentsFleetSession::read("f-2", V2).unwrap();
        let raised: Value = serde_json::from_slice(&read.upgraded_json(2)).unwrap();
        let original: Value = serde_json::from_str(V2).unwrap();
        for (key, value) in original.as_object().unwrap() {
            if key != "schemaVersion" {
                assert_eq!(&raised[key], value, "{key}");
            }
        }
        assert_eq!(raised["schemaVersion"], 3);
        assert_eq!(raised["msgCount"], 2);
        assert_eq!(raised["transcriptPath"], "f-2.transcript.ndjson");
    }

    #[test]
    fn the_inline_transcript_becomes_lines() {
        let read = AgentsFleetSession::read("f-2", V2).unwrap();
        let lines = String::from_utf8(read.inline_transcript().unwrap()).unwrap();
        assert_eq!(
            lines,
            "{\"role\":\"user\",\"content\":\"go\"}\n{\"role\":\"assistant\",\"content\":\"ok\"}\n"
        );
        assert!(AgentsFleetSession::read("f-3", "{}").unwrap().inline_transcript().is_none());
    }

    #[test]
    fn unsafe_worker_paths_are_refused_one_by_one() {
        let read = AgentsFleetSession::read("f-2", V2).unwrap();
        assert_eq!(read.workers, ["w1.ndjson"]);
        let refused = read.unsafe_workers.iter().map(|(who, why)| format!("{who}: {why}"));
        assert_eq!(
            refused.collect::<Vec<_>>(),
            [
                "w2: transcript path `/etc/passwd`: it is an absolute path",
                "w3: transcript path `../x`: it contains `..`",
                "w4: transcript path `a/b.ndjson`: it contains a path separator",
            ]
        );
    }

    #[test]
    fn a_file_that_is_no_session_is_refused_with_the_reason() {
        assert!(AgentsFleetSession::read("..", "{}").unwrap_err().contains("agent session id"));
        // A renamed file is a session under its name, as it is when it is resumed.
        let renamed = AgentsFleetSession::read("a", r#"{"id":"b"}"#).unwrap();
        assert_eq!((renamed.id.as_str(), renamed.other_id.as_deref()), ("a", Some("b")));
        let error = AgentsFleetSession::read("a", r#"{"schemaVersion":9}"#).unwrap_err();
        assert_eq!(error, "its schemaVersion is 9; 1 to 3 are known");
        let read = AgentsFleetSession::read("a", r#"{"transcriptPath":"../../x"}"#).unwrap();
        assert!(read.transcript.unwrap_err().contains("it contains `..`"));
    }

    #[test]
    fn times_are_read_as_text_or_milliseconds() {
        let at = parse_iso("2025-01-15T10:00:00Z").unwrap();
        let read = AgentsFleetSession::read("f-2", V2).unwrap();
        let session = read.session(2, Timestamp::UNIX_EPOCH);
        assert_eq!((session.created_at, session.last_active_at), (at, at));
        assert_eq!(session.agent, INTERACTIVE);
        let read = AgentsFleetSession::read("f", "{}").unwrap();
        assert_eq!(read.session(0, at).last_active_at, at);
    }
}
