//! Current activity of a run's agents, read from the end of their transcripts. Start at
//! [`AgentActivityReader`].

use std::collections::HashSet;
use std::time::Duration;

use heeler_model::{JobId, JobStatus};
use heeler_query::job_feed::{MultiJobFeed, MultiJobFeedEvent};
use heeler_query::progress::{WorkflowPhaseProgress, WorkflowRunProgress};
use heeler_store::{StateDir, StoreReader, WorkflowPartRow};
use heeler_transcript::FollowStart;
use jiff::tz::TimeZone;

use super::frame;
use crate::display_rows::RowFormatter;
use crate::last_lines::LastLines;
use crate::output::{self, SafeText};

/// Most lines that are returned at once; the rest follow with the next call.
const LINES_MAX: usize = 500;

/// Reader of the transcripts of a run's agents.
pub(super) struct AgentActivityReader {
    dir: StateDir,
    last_lines: LastLines,
    /// Follower of all lines, with `--follow`.
    follow: Option<AgentLogFollower>,
}

struct AgentLogFollower {
    feed: MultiJobFeed<FollowedPart>,
    known: HashSet<JobId>,
    zone: TimeZone,
}

/// Part of a run with a job that is followed.
struct FollowedPart {
    name: String,
    formatter: RowFormatter,
}

impl AgentActivityReader {
    pub(super) fn new(dir: StateDir, follow: bool) -> AgentActivityReader {
        let follow = follow.then(|| AgentLogFollower {
            feed: MultiJobFeed::default(),
            known: HashSet::new(),
            zone: TimeZone::system(),
        });
        AgentActivityReader { dir, last_lines: LastLines::default(), follow }
    }

    /// Returns the lines written since the last call, if `--follow` is on.
    pub(super) fn new_lines(&mut self, progress: &WorkflowRunProgress) -> Vec<SafeText> {
        let Some(follow) = &mut self.follow else { return Vec::new() };
        // Parts that begin later are new, even if they end before they are first seen.
        let is_first = follow.known.is_empty();
        for phase in &progress.phases {
            for part in &phase.parts {
                let Some(job) = part.job.as_ref().filter(|job| !follow.known.contains(*job)) else {
                    continue;
                };
                follow.known.insert(job.clone());
                // Skip finished parts of a joined run; `workflow logs` shows them.
                let start = match is_first && part.outcome.is_some() {
                    true => FollowStart::End,
                    false => FollowStart::Beginning,
                };
                let name = frame::part_name(phase, part);
                let part = FollowedPart { name, formatter: RowFormatter::new() };
                follow.feed.add(part, &self.dir.job_transcript(job), start);
            }
        }
        follow.lines()
    }

    /// Describes the current activity of a phase.
    pub(super) fn current_activity(
        &self,
        reader: &StoreReader,
        phase: &WorkflowPhaseProgress,
    ) -> Option<String> {
        let open: Vec<&WorkflowPartRow> =
            phase.parts.iter().filter(|part| part.outcome.is_none()).collect();
        // One line per phase has room for one agent; the others are counted.
        let part = open.first()?;
        let activity = match part.status {
            JobStatus::Pending => {
                let queued = reader.queued_job(part.job.as_ref()?).ok()??;
                match output::one_line(&queued.reason) {
                    why if why.is_empty() => why,
                    why => format!("waiting: {why}"),
                }
            }
            _ => self.last_lines.of(&self.dir, part.job.as_ref()?),
        };
        let what = match (open.len(), &phase.items) {
            (1, None) => phase.part_name(part.part),
            _ => Some(frame::items_word(phase, open.len())),
        };
        Some(
            [what.unwrap_or_default(), activity]
                .into_iter()
                .filter(|it| !it.is_empty())
                .collect::<Vec<_>>()
                .join(": "),
        )
    }
}

impl AgentLogFollower {
    fn lines(&mut self) -> Vec<SafeText> {
        let mut lines = Vec::new();
        while lines.len() < LINES_MAX {
            // An unreadable transcript must not end the watch of the run.
            let Ok(Some((part, event))) = self.feed.next(Duration::ZERO) else { break };
            let MultiJobFeedEvent::Row(record) = event else { continue };
            if let Some(row) = part.formatter.next_row(record.text.as_bytes()) {
                let name = format!("{} │ ", part.name);
                let name = SafeText::styled(anstyle::Style::new().dimmed(), &name);
                lines.push(name.append(row.show(&self.zone)));
            }
        }
        lines
    }
}
