//! Facts of a job that a comparison with another job needs. Start at [`FleetReader::compared_job`].

use std::collections::BTreeMap;

use heeler_model::job_row::{ContentBlock, JobRow, JobRowKind, content_blocks};
use heeler_transcript::read_tail;

use crate::jobs::JobDetails;
use crate::{FleetReader, QueryError};

/// Most rows of a transcript that are read for a comparison: its last ones.
pub const COMPARED_ROWS_MAX: usize = 20_000;

/// Limit on different tools of a job that are counted. Names of tools are chosen by agents.
const TOOLS_MAX: usize = 200;

/// Limit on the characters of a tool's name.
const TOOL_CHARS_MAX: usize = 100;

/// Job in a comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct ComparedJob {
    pub job: JobDetails,
    /// Number of calls of each tool.
    pub tools: BTreeMap<String, u64>,
    /// Last text of the agent.
    pub last_text: Option<String>,
    /// True if the transcript is longer than [`COMPARED_ROWS_MAX`], so that calls are missing.
    pub is_cut: bool,
}

impl FleetReader {
    /// Returns the facts of a job for a comparison.
    pub fn compared_job(&self, id: &str) -> Result<ComparedJob, QueryError> {
        let reader = self.reader()?;
        let found = reader.find_job(id)?;
        let log = self.job_transcript_path(&reader, &found.head)?.filter(|log| log.is_file());
        let job = self.job_details(&reader, found)?;
        drop(reader);
        let mut compared =
            ComparedJob { job, tools: BTreeMap::new(), last_text: None, is_cut: false };
        let Some(log) = log else { return Ok(compared) };
        let page = read_tail(&log, COMPARED_ROWS_MAX)?;
        compared.is_cut = page.start > 0;
        for record in page.records {
            if let Ok(row) = JobRow::parse(record.text.as_bytes()) {
                compared.add(&row);
            }
        }
        Ok(compared)
    }
}

impl ComparedJob {
    fn add(&mut self, row: &JobRow) {
        match row.kind() {
            JobRowKind::ToolCall { tool, .. } => {
                let tool: String = tool.chars().take(TOOL_CHARS_MAX).collect();
                if self.tools.contains_key(&tool) || self.tools.len() < TOOLS_MAX {
                    *self.tools.entry(tool).or_default() += 1;
                }
            }
            JobRowKind::Assistant => {
                let blocks = row.content().map(content_blocks).unwrap_or_default();
                let texts = blocks.iter().filter_map(|block| match block {
                    ContentBlock::Text(text) => Some(*text),
                    _ => None,
                });
                let text = texts.collect::<Vec<_>>().join("\n");
                if !text.trim().is_empty() {
                    self.last_text = Some(text);
                }
            }
            _ => {}
        }
    }
}
