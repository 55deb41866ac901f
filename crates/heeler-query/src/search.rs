//! Full-text search in all transcripts: those of jobs first, newest files first.
//!
//! The rows of a job are in its own transcript, in its session's and in those of forks; each is
//! reported once. Start at [`FleetReader::search`].

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::time::SystemTime;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::job_row::{JobRow, JobRowKind};
use heeler_model::recorder::nth_uuid;
use heeler_model::redact::SecretRedactor;
use heeler_store::native::{self, DisplayRedactor};
use heeler_store::{JobCursor, JobFilter, StoreReader, is_sent_file};
use heeler_transcript::{
    CaseSensitivity, DiskError, LineMatcher, SearchPattern, TranscriptHit, TranscriptQuery, search,
};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{FleetReader, QueryError};

/// Number of jobs read per query.
const JOBS_PER_PAGE: usize = 1_000;

/// Parameters of a search.
#[derive(Debug, Clone)]
pub struct FleetSearchQuery {
    pub text: String,
    /// The text is a regular expression.
    pub regex: bool,
    /// Ignore case. Otherwise case is ignored only if the text has no upper-case letters.
    pub ignore_case: bool,
    /// Only jobs of this agent; its own name suffices if it is unique.
    pub agent: Option<String>,
    /// Directory of Claude's native sessions, to search instead of the fleet's transcripts.
    pub native: Option<Utf8PathBuf>,
    /// Maximum number of hits.
    pub limit: usize,
}

/// A row that matches.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SearchHitSummary {
    /// Job ID or session ID.
    pub id: String,
    /// Path of the transcript.
    pub file: String,
    /// Line number, counted from one.
    pub line: u64,
    /// The row.
    pub row: Value,
    /// The row as written.
    #[serde(skip)]
    pub text: String,
}

/// Result of a search.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SearchPage {
    /// Hits.
    pub hits: Vec<SearchHitSummary>,
    /// True if there are more hits.
    pub more: bool,
    /// Number of transcripts in the search scope.
    pub transcripts: usize,
}

/// Summary of a search.
#[derive(Debug)]
pub struct FleetSearchOutcome {
    /// True if there are more hits than the limit.
    pub more: bool,
    /// Number of transcripts in the search scope.
    pub transcripts: usize,
    /// Transcripts that could not be read.
    pub unreadable: Vec<DiskError>,
}

impl FleetReader {
    /// Searches transcripts and returns all hits.
    pub fn search(&self, wanted: &FleetSearchQuery) -> Result<SearchPage, QueryError> {
        let mut hits = Vec::new();
        let done = self.search_with::<QueryError>(wanted, &mut |hit| {
            hits.push(hit);
            Ok(())
        })?;
        Ok(SearchPage { hits, more: done.more, transcripts: done.transcripts })
    }

    /// Searches transcripts and passes each hit to `each` as it is found.
    pub fn search_with<E: From<QueryError>>(
        &self,
        wanted: &FleetSearchQuery,
        each: &mut dyn FnMut(SearchHitSummary) -> Result<(), E>,
    ) -> Result<FleetSearchOutcome, E> {
        if wanted.text.is_empty() {
            return Err(QueryError::usage("there is nothing to search for").into());
        }
        let query = TranscriptQuery {
            pattern: build_pattern(wanted),
            case: if wanted.ignore_case {
                CaseSensitivity::Insensitive
            } else {
                CaseSensitivity::Smart
            },
            // Rows that were already reported do not count.
            hits_max: usize::MAX,
        };
        let usage =
            |error: heeler_transcript::SearchPatternError| QueryError::usage(error_chain(&error));
        // The same matcher checks redacted text, so both searches agree.
        let finder = LineMatcher::new(&query).map_err(usage)?;
        let reader = self.reader()?;
        let known = self.context();
        let secrets = known.secrets();
        let (paths, redactor) = match &wanted.native {
            Some(projects) => {
                let paths = native::paths(projects).map_err(QueryError::from)?;
                (paths, SearchRedactor::Native(DisplayRedactor::new(&secrets)))
            }
            None => (
                self.list_transcripts(&reader, wanted.agent.as_deref())?,
                SearchRedactor::Recorded(SecretRedactor::new(&secrets)),
            ),
        };
        let mut filter = SearchHitFilter {
            redactor,
            finder,
            reader: &reader,
            seen_rows: HashSet::new(),
            last_reply: None,
            hits_reported: 0,
        };
        let mut failed = None;
        let found = search(&query, &paths, &mut |hit| {
            let reported = match filter.check_hit(&hit, wanted.limit) {
                Ok(SearchHitDecision::Skip) => return ControlFlow::Continue(()),
                Ok(SearchHitDecision::LimitReached) => return ControlFlow::Break(()),
                Ok(SearchHitDecision::Report(hit)) => each(hit),
                Err(error) => Err(error.into()),
            };
            match reported {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            }
        });
        let found = found.map_err(usage)?;
        match failed {
            Some(error) => Err(error),
            None => Ok(FleetSearchOutcome {
                more: found.ended_early,
                transcripts: paths.len(),
                unreadable: found.unreadable,
            }),
        }
    }

    /// Lists the transcripts of an agent's jobs, or all transcripts.
    fn list_transcripts(
        &self,
        reader: &StoreReader,
        agent: Option<&str>,
    ) -> Result<Vec<Utf8PathBuf>, QueryError> {
        // Two groups: jobs come before sessions, which repeat their rows.
        let mut found: Vec<Vec<(SystemTime, Utf8PathBuf)>> = vec![Vec::new(), Vec::new()];
        match agent {
            Some(agent) => {
                let agent = self.resolve_agent_name(reader, agent)?;
                for path in self.agent_transcripts(reader, &agent)? {
                    found[0].extend(modified_at(&path).map(|at| (at, path)));
                }
            }
            None => {
                let root = self.dir().root();
                collect_transcripts(&root.join("jobs"), &mut found[0]);
                collect_transcripts(&root.join("agent-sessions"), &mut found[1]);
                if let Some(home) = self.context().home {
                    collect_transcripts(&home.join("sessions"), &mut found[1]);
                }
            }
        }
        // Newest files first, because recent work is usually meant.
        found.iter_mut().for_each(|files| files.sort_by(|a, b| b.cmp(a)));
        Ok(found.into_iter().flatten().map(|(_, path)| path).collect())
    }

    fn agent_transcripts(
        &self,
        reader: &StoreReader,
        agent: &str,
    ) -> Result<Vec<Utf8PathBuf>, QueryError> {
        let filter = JobFilter { agent: Some(agent.to_owned()), ..JobFilter::default() };
        let mut found = Vec::new();
        let mut before = None;
        loop {
            let page = reader.jobs(&filter, before.as_ref(), JOBS_PER_PAGE)?;
            let Some(last) = page.last() else { break };
            before = Some(JobCursor::after(last));
            for head in &page {
                found.extend(self.job_transcript_path(reader, head)?);
            }
        }
        // Several jobs share the transcript of one session.
        found.sort();
        found.dedup();
        Ok(found)
    }
}

fn error_chain(error: &dyn std::error::Error) -> String {
    heeler_model::error_chain(error)
}

/// Builds the search pattern. Transcripts hold text as JSON, so quotes and newlines are searched in
/// escaped form.
fn build_pattern(wanted: &FleetSearchQuery) -> SearchPattern {
    if wanted.regex {
        return SearchPattern::Regex(wanted.text.clone());
    }
    // Encoded as JSON, because transcripts hold the text in this form.
    let quoted = Value::from(wanted.text.as_str()).to_string();
    // Without the quotes around it.
    SearchPattern::Literal(quoted[1..quoted.len() - 1].to_owned())
}

/// Removes secrets from the rows found.
enum SearchRedactor {
    /// Native sessions are stored without redaction.
    Native(DisplayRedactor),
    /// Transcripts are redacted as they are written, but a secret may have become known later.
    Recorded(SecretRedactor),
}

impl SearchRedactor {
    fn redact_json(&self, row: &mut Value) {
        match self {
            SearchRedactor::Native(redactor) => redactor.json(row),
            SearchRedactor::Recorded(redactor) => redactor.redact_json(row),
        }
    }
}

/// Filter that reports each message once.
struct SearchHitFilter<'s> {
    redactor: SearchRedactor,
    finder: LineMatcher,
    reader: &'s StoreReader,
    /// IDs of the rows found.
    seen_rows: HashSet<Uuid>,
    /// Last reply of the agent among the rows found.
    last_reply: Option<String>,
    hits_reported: usize,
}

enum SearchHitDecision {
    /// The hit was already reported or must not be shown.
    Skip,
    Report(SearchHitSummary),
    /// The hit exceeds the limit.
    LimitReached,
}

impl SearchHitFilter<'_> {
    fn check_hit(
        &mut self,
        hit: &TranscriptHit<'_>,
        limit: usize,
    ) -> Result<SearchHitDecision, QueryError> {
        // A row nested too deeply to be parsed is returned as text.
        let mut row = serde_json::from_str::<Value>(&hit.record.text)
            .unwrap_or_else(|_| Value::from(&*hit.record.text));
        let before = row.clone();
        self.redactor.redact_json(&mut row);
        let is_redacted = row != before;
        // The match was in a redacted secret. Reporting it would confirm a guessed secret.
        if is_redacted && !self.finder.matches(&row.to_string()) {
            return Ok(SearchHitDecision::Skip);
        }
        let row = JobRow::new(row);
        // Both calls update state, so neither may be skipped by short-circuit evaluation.
        let (is_new, is_echo) = (self.is_new(&row), self.repeats_last_reply(&row));
        if !is_new || is_echo {
            return Ok(SearchHitDecision::Skip);
        }
        // Checked only now, so that a search with exactly `limit` hits does not report more.
        if self.hits_reported == limit {
            return Ok(SearchHitDecision::LimitReached);
        }
        self.hits_reported += 1;
        Ok(SearchHitDecision::Report(SearchHitSummary {
            id: self.transcript_id(hit.path)?,
            file: hit.path.to_string(),
            line: hit.line + 1,
            text: match is_redacted {
                true => row.as_json().to_string(),
                false => hit.record.text.to_string(),
            },
            row: row.into_json(),
        }))
    }

    /// Returns true if the row was not found before, under its own ID or as rows of a job derived
    /// from it.
    fn is_new(&mut self, row: &JobRow) -> bool {
        let Some(uuid) = row.uuid() else { return true };
        let parts = row.content().and_then(Value::as_array).map_or(0, Vec::len);
        // One message of the agent becomes several rows of a job, with ids derived from its own.
        let is_known = (0..=parts).any(|part| self.seen_rows.contains(&nth_uuid(uuid, part)));
        self.seen_rows.insert(uuid);
        !is_known
    }

    /// Returns true if the row is the result of a turn that repeats the agent's last reply.
    fn repeats_last_reply(&mut self, row: &JobRow) -> bool {
        match row.kind() {
            JobRowKind::Assistant => {
                self.last_reply = row.text("content").map(str::to_owned);
                false
            }
            JobRowKind::TurnResult(turn) => {
                // The result of a turn repeats the agent's last text, so it would be found twice.
                turn.result.is_some() && turn.result == self.last_reply.as_deref()
            }
            _ => false,
        }
    }

    /// Returns the ID of the job or session that a transcript belongs to.
    fn transcript_id(&self, path: &Utf8Path) -> Result<String, QueryError> {
        let name = path.file_stem().unwrap_or_default();
        let session = match name.parse() {
            Ok(id) => self.reader.session_by_agent_id(&id)?,
            Err(_) => None,
        };
        // The transcript of a session is named by the native id, but people know Heeler's.
        Ok(session.map_or(name.to_owned(), |session| session.id.to_string()))
    }
}

fn modified_at(path: &Utf8Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|file| file.modified()).ok()
}

/// Collects transcript files below a directory without following links.
fn collect_transcripts(folder: &Utf8Path, found: &mut Vec<(SystemTime, Utf8PathBuf)>) {
    let Ok(entries) = folder.read_dir_utf8() else { return };
    for entry in entries.flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        let path = entry.path();
        if kind.is_dir() {
            collect_transcripts(path, found);
        } else if kind.is_file()
            && matches!(path.extension(), Some("jsonl" | "ndjson"))
            // An agent may send a file with such a name.
            && !is_sent_file(path)
        {
            found.extend(modified_at(path).map(|at| (at, path.to_owned())));
        }
    }
}
