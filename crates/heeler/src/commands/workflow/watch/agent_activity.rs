//! What the agents of a run are at: the end of their transcripts.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

use heeler_model::{JobId, JobStatus};
use heeler_store::{StateDir, StoreReader, WorkflowPartRow};
use heeler_transcript::{FollowStart, FollowUpdate, TranscriptFollower, read_tail};
use jiff::tz::TimeZone;

use super::super::progress::{WorkflowPhaseProgress, WorkflowRunProgress};
use super::frame;
use crate::display_rows::{DisplayRow, RowFormatter};
use crate::output::{self, SafeText};

/// How many rows at a transcript's end are looked at for what an agent does now.
const ROWS_LOOKED_AT: usize = 4;
/// How many lines are told at once; the rest come with the next look.
const LINES_MAX: usize = 500;

/// The agents of a run.
pub(super) struct AgentActivityReader {
    dir: StateDir,
    /// The end of each transcript, with the length that it had.
    last_lines: RefCell<HashMap<JobId, (u64, String)>>,
    /// Where all lines are told.
    follow: Option<AgentLogFollower>,
}

struct AgentLogFollower {
    follower: TranscriptFollower,
    known: HashSet<JobId>,
    /// Each file's part, and what was told of it.
    files: Vec<(String, RowFormatter)>,
    zone: TimeZone,
}

impl AgentActivityReader {
    pub(super) fn new(dir: StateDir, follow: bool) -> AgentActivityReader {
        let follow = follow.then(|| AgentLogFollower {
            follower: TranscriptFollower::new(),
            known: HashSet::new(),
            files: Vec::new(),
            zone: TimeZone::system(),
        });
        AgentActivityReader { dir, last_lines: RefCell::default(), follow }
    }

    /// Returns the lines that were written since the last look, if they are wanted.
    pub(super) fn new_lines(&mut self, stand: &WorkflowRunProgress) -> Vec<SafeText> {
        let Some(follow) = &mut self.follow else { return Vec::new() };
        let is_first = follow.known.is_empty();
        for phase in &stand.phases {
            for part in &phase.parts {
                let Some(job) = part.job.as_ref().filter(|job| !follow.known.contains(*job)) else {
                    continue;
                };
                follow.known.insert(job.clone());
                // What a run that is joined has done already is in its logs.
                let start = match is_first && part.outcome.is_some() {
                    true => FollowStart::End,
                    false => FollowStart::Beginning,
                };
                follow.follower.add(&self.dir.job_transcript(job), start);
                follow.files.push((frame::part_name(phase, part), RowFormatter::new()));
            }
        }
        follow.lines()
    }

    /// Says what a phase is at.
    pub(super) fn current_activity(
        &self,
        reader: &StoreReader,
        phase: &WorkflowPhaseProgress,
    ) -> Option<String> {
        let open: Vec<&WorkflowPartRow> =
            phase.parts.iter().filter(|part| part.outcome.is_none()).collect();
        let part = open.first()?;
        let said = match part.status {
            JobStatus::Pending => {
                let queued = reader.queued_job(part.job.as_ref()?).ok()??;
                match output::one_line(&queued.reason) {
                    why if why.is_empty() => why,
                    why => format!("waits: {why}"),
                }
            }
            _ => self.last_line(part.job.as_ref()?),
        };
        let what = match (open.len(), &phase.items) {
            (1, None) => phase.part_name(part.part),
            _ => Some(frame::items_word(phase, open.len())),
        };
        Some(
            [what.unwrap_or_default(), said]
                .into_iter()
                .filter(|it| !it.is_empty())
                .collect::<Vec<_>>()
                .join(": "),
        )
    }

    /// Returns the last line of a transcript.
    fn last_line(&self, job: &JobId) -> String {
        let path = self.dir.job_transcript(job);
        let Ok(found) = std::fs::metadata(&path) else { return String::new() };
        let mut ends = self.last_lines.borrow_mut();
        if let Some((len, text)) = ends.get(job)
            && *len == found.len()
        {
            return text.clone();
        }
        let page = read_tail(&path, ROWS_LOOKED_AT);
        let records = page.map(|page| page.records).unwrap_or_default();
        let rows = records.iter().rev().map(|record| DisplayRow::read(record.text.as_bytes()));
        let told =
            rows.filter(|row| matches!(row.speaker.as_str(), "assistant" | "tool" | "error"));
        let text =
            told.map(|row| output::one_line(&row.text.plain())).find(|text| !text.is_empty());
        let text = text.unwrap_or_default();
        ends.insert(job.clone(), (found.len(), text.clone()));
        text
    }
}

impl AgentLogFollower {
    fn lines(&mut self) -> Vec<SafeText> {
        let mut lines = Vec::new();
        while lines.len() < LINES_MAX {
            let Ok(Some(update)) = self.follower.next(Duration::ZERO) else { break };
            let FollowUpdate::Record { file, record, .. } = update else { continue };
            let Some((name, told)) = self.files.get_mut(file) else { continue };
            if let Some(row) = told.next_row(record.text.as_bytes()) {
                let name = SafeText::styled(anstyle::Style::new().dimmed(), &format!("{name} │ "));
                lines.push(name.append(row.show(&self.zone)));
            }
        }
        lines
    }
}
