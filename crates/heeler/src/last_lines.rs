//! Current activity of agents, read from the end of their transcripts. Start at [`LastLines`].

use std::cell::RefCell;
use std::collections::HashMap;

use heeler_model::JobId;
use heeler_store::StateDir;
use heeler_transcript::read_tail;

use crate::display_rows::DisplayRow;
use crate::output;

/// Rows at a transcript's end that are searched for the current activity.
const ROWS_LOOKED_AT: usize = 4;

/// Last lines of transcripts. A transcript is read again only if it has grown.
#[derive(Default)]
pub(crate) struct LastLines(RefCell<HashMap<JobId, (u64, String)>>);

impl LastLines {
    /// Returns the last line of a job's transcript; empty if there is none.
    pub(crate) fn of(&self, dir: &StateDir, job: &JobId) -> String {
        let path = dir.job_transcript(job);
        let Ok(found) = std::fs::metadata(&path) else { return String::new() };
        let mut ends = self.0.borrow_mut();
        // A transcript only grows, so the same length means the same end.
        if let Some((len, text)) = ends.get(job)
            && *len == found.len()
        {
            return text.clone();
        }
        let page = read_tail(&path, ROWS_LOOKED_AT);
        let records = page.map(|page| page.records).unwrap_or_default();
        let rows = records.iter().rev().map(|record| DisplayRow::read(record.text.as_bytes()));
        let messages =
            // Rows of the system, such as costs, are no activity.
            rows.filter(|row| matches!(row.speaker.as_str(), "agent" | "tool" | "error"));
        let text =
            messages.map(|row| output::one_line(&row.text.plain())).find(|text| !text.is_empty());
        let text = text.unwrap_or_default();
        ends.insert(job.clone(), (found.len(), text.clone()));
        text
    }
}
