//! A native session, and a file that may be one. Start at [`NativeSession`].

use std::time::SystemTime;

use camino::Utf8PathBuf;
use heeler_model::AgentSessionId;
use heeler_transcript::DiskError;
use jiff::Timestamp;
use uuid::Uuid;

use super::program::NativeProgram;

/// A session that a person started with an agent program.
#[derive(Debug, Clone, PartialEq)]
pub struct NativeSession {
    pub program: NativeProgram,
    /// The program's id of the session.
    pub id: AgentSessionId,
    pub path: Utf8PathBuf,
    /// Working directory in which the session was started; it is resumed from there.
    pub cwd: Option<Utf8PathBuf>,
    /// First prompt, on one line.
    pub title: Option<String>,
    /// Time of the first message.
    pub first_at: Option<Timestamp>,
    /// Time of the last use.
    pub last_at: Option<Timestamp>,
    /// Number of user and assistant messages.
    pub messages: u64,
    /// True if `messages` is an estimate from the beginning of a large file.
    pub is_estimate: bool,
    /// Approximate size of the context in tokens: input and output of the last reply.
    pub tokens: u64,
    /// Size of its history.
    pub bytes: u64,
    /// The branch that was checked out.
    pub git_branch: Option<String>,
    /// Version of the program.
    pub version: Option<String>,
    /// Id of the last entry of the conversation, in Claude's files.
    pub last_entry: Option<Uuid>,
    /// Codex records that Heeler began the session, so a fleet has it already.
    pub is_heelers: bool,
}

impl NativeSession {
    /// Returns a session of which only the file is known.
    pub(super) fn unread(file: &NativeSessionCandidate) -> Result<NativeSession, DiskError> {
        let path = file.path.clone();
        let found = path.symlink_metadata();
        let bytes = match found {
            Ok(found) => found.len(),
            Err(source) => return Err(DiskError { action: "read", path, source }),
        };
        Ok(NativeSession {
            program: file.program,
            id: file.id.clone(),
            path,
            cwd: None,
            title: None,
            first_at: None,
            // A file without a readable timestamp still has the time of its last change.
            last_at: Timestamp::try_from(file.modified_at).ok(),
            messages: 0,
            is_estimate: false,
            tokens: 0,
            bytes,
            git_branch: None,
            version: None,
            last_entry: None,
            is_heelers: false,
        })
    }

    /// Returns the id with which commands name the session: with its program, unless that is
    /// Claude.
    pub fn qualified_id(&self) -> String {
        match self.program {
            NativeProgram::Claude => self.id.to_string(),
            program => format!("{program}:{}", self.id),
        }
    }
}

/// A file that may be a native session.
#[derive(Debug, Clone)]
pub(super) struct NativeSessionCandidate {
    pub(super) program: NativeProgram,
    pub(super) modified_at: SystemTime,
    pub(super) path: Utf8PathBuf,
    pub(super) id: AgentSessionId,
}
