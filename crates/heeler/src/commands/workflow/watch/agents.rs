//! What the agents of a run are at: the end of their transcripts.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

use heeler_model::{JobId, JobStatus};
use heeler_store::{PartRow, Reader, StateDir};
use heeler_transcript::{Follower, Start, Update, tail};
use jiff::tz::TimeZone;

use super::super::stand::{PhaseStand, Stand};
use super::frame;
use crate::output::{self, Text};
use crate::rows::{Row, Telling};

/// How many rows at a transcript's end are looked at for what an agent does now.
const ROWS_LOOKED_AT: usize = 4;
/// How many lines are told at once; the rest come with the next look.
const LINES_MAX: usize = 500;

/// The agents of a run.
pub(super) struct Agents {
    dir: StateDir,
    /// The end of each transcript, with the length that it had.
    ends: RefCell<HashMap<JobId, (u64, String)>>,
    /// Where all lines are told.
    follow: Option<Follow>,
}

struct Follow {
    follower: Follower,
    known: HashSet<JobId>,
    /// Each file's part, and what was told of it.
    files: Vec<(String, Telling)>,
    zone: TimeZone,
}

impl Agents {
    pub(super) fn new(dir: StateDir, follow: bool) -> Agents {
        let follow = follow.then(|| Follow {
            follower: Follower::new(),
            known: HashSet::new(),
            files: Vec::new(),
            zone: TimeZone::system(),
        });
        Agents { dir, ends: RefCell::default(), follow }
    }

    /// Returns the lines that were written since the last look, if they are wanted.
    pub(super) fn look(&mut self, stand: &Stand) -> Vec<Text> {
        let Some(follow) = &mut self.follow else { return Vec::new() };
        let is_first = follow.known.is_empty();
        for phase in &stand.phases {
            for part in &phase.parts {
                let Some(job) = part.job.as_ref().filter(|job| !follow.known.contains(*job)) else {
                    continue;
                };
                follow.known.insert(job.clone());
                // What a run that is joined has done already is in its logs.
                let start = match is_first && part.how.is_some() {
                    true => Start::End,
                    false => Start::Beginning,
                };
                follow.follower.add(&self.dir.log_of(job), start);
                follow.files.push((frame::name_of(phase, part), Telling::new()));
            }
        }
        follow.lines()
    }

    /// Says what a phase is at.
    pub(super) fn doing(&self, reader: &Reader, phase: &PhaseStand) -> Option<String> {
        let open: Vec<&PartRow> = phase.parts.iter().filter(|part| part.how.is_none()).collect();
        let part = open.first()?;
        let said = match part.status {
            JobStatus::Pending => {
                let queued = reader.queued(part.job.as_ref()?).ok()??;
                match output::one_line(&queued.reason) {
                    why if why.is_empty() => why,
                    why => format!("waits: {why}"),
                }
            }
            _ => self.end_of(part.job.as_ref()?),
        };
        let what = match (open.len(), &phase.items) {
            (1, None) => phase.name_of(part.part),
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
    fn end_of(&self, job: &JobId) -> String {
        let path = self.dir.log_of(job);
        let Ok(found) = std::fs::metadata(&path) else { return String::new() };
        let mut ends = self.ends.borrow_mut();
        if let Some((len, text)) = ends.get(job)
            && *len == found.len()
        {
            return text.clone();
        }
        let page = tail(&path, ROWS_LOOKED_AT);
        let records = page.map(|page| page.records).unwrap_or_default();
        let rows = records.iter().rev().map(|record| Row::read(record.text.as_bytes()));
        let told = rows.filter(|row| matches!(row.who.as_str(), "assistant" | "tool" | "error"));
        let text =
            told.map(|row| output::one_line(&row.text.plain())).find(|text| !text.is_empty());
        let text = text.unwrap_or_default();
        ends.insert(job.clone(), (found.len(), text.clone()));
        text
    }
}

impl Follow {
    fn lines(&mut self) -> Vec<Text> {
        let mut lines = Vec::new();
        while lines.len() < LINES_MAX {
            let Ok(Some(update)) = self.follower.next(Duration::ZERO) else { break };
            let Update::Record { file, record, .. } = update else { continue };
            let Some((name, told)) = self.files.get_mut(file) else { continue };
            if let Some(row) = told.row(record.text.as_bytes()) {
                let name = Text::styled(anstyle::Style::new().dimmed(), &format!("{name} │ "));
                lines.push(name.then(row.show(&self.zone)));
            }
        }
        lines
    }
}
