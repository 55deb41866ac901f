//! The status that fits a screen: what needs a person first, then failures with their causes, then
//! what each agent does now.
//!
//! `--watch` shows it on any terminal, and `heeler status` on a narrow one. Each entry has one line,
//! or two where both parts do not fit side by side. Start at [`StatusOverview`].

use anstyle::Style;
use heeler_model::JobStatus;
use heeler_query::fleet::{FleetStatus, OpenWorkflowRun};
use heeler_query::jobs::JobSummary;
use jiff::Timestamp;

use crate::commands::job_text::{job_summary, title_text};
use crate::output::{self, SafeText};
use crate::wrap;

/// Width from which both parts of an entry are side by side.
const WIDE_COLUMNS: usize = 70;

/// Widest first part of an entry.
const HEAD_COLUMNS_MAX: usize = 34;

/// Upcoming schedules that are shown.
const NEXT_MAX: usize = 5;

/// Sections in the order of their importance.
pub(super) struct StatusOverview {
    sections: Vec<OverviewSection>,
}

struct OverviewSection {
    title: &'static str,
    entries: Vec<OverviewEntry>,
    /// Entries that exist, if not all are listed here.
    total: usize,
}

/// An entry: an agent with a time, and what is to be said about it.
struct OverviewEntry {
    sign: &'static str,
    style: Style,
    head: String,
    detail: String,
}

impl StatusOverview {
    /// Collects the entries. `activity` returns the last line of a running job.
    pub(super) fn new(
        fleet: &FleetStatus,
        now: Timestamp,
        activity: impl Fn(&JobSummary) -> String,
    ) -> StatusOverview {
        let sections = vec![
            waiting_for_people(fleet, now),
            failures(fleet, now),
            running(fleet, now, activity),
            queued(fleet, now),
            upcoming(fleet, now),
            idle_agents(fleet),
        ];
        let sections = sections.into_iter().filter(|section| !section.entries.is_empty());
        StatusOverview { sections: sections.collect() }
    }

    /// Lays the sections out. Beyond `rows`, every section is shortened before one is left out.
    pub(super) fn lines(&self, columns: usize, rows: Option<usize>) -> Vec<SafeText> {
        let laid: Vec<Vec<Vec<SafeText>>> = self
            .sections
            .iter()
            .map(|section| section.entries.iter().map(|it| it.lines(columns)).collect())
            .collect();
        let shown = shown_counts(&laid, rows);
        let mut lines = Vec::new();
        for ((section, laid), count) in self.sections.iter().zip(laid).zip(shown) {
            if count == 0 {
                continue;
            }
            let title = match section.total > count {
                true => format!("{} ({count} of {})", section.title, section.total),
                false => section.title.to_owned(),
            };
            let title = wrap::truncate_with_ellipsis(&title, columns);
            lines.push(SafeText::styled(Style::new().bold(), &title));
            lines.extend(laid.into_iter().take(count).flatten());
        }
        lines
    }
}

/// Returns the number of entries of each section that fit: one of each section in turn.
fn shown_counts(laid: &[Vec<Vec<SafeText>>], rows: Option<usize>) -> Vec<usize> {
    let Some(rows) = rows else { return laid.iter().map(Vec::len).collect() };
    let mut counts = vec![0; laid.len()];
    let mut left = rows;
    loop {
        let mut has_grown = false;
        for (count, entries) in counts.iter_mut().zip(laid) {
            let Some(next) = entries.get(*count) else { continue };
            // The first entry of a section brings its title.
            let needed = next.len() + usize::from(*count == 0);
            if needed > left {
                continue;
            }
            left -= needed;
            *count += 1;
            has_grown = true;
        }
        if !has_grown {
            return counts;
        }
    }
}

impl OverviewEntry {
    fn lines(&self, columns: usize) -> Vec<SafeText> {
        let sign = SafeText::styled(self.style, self.sign);
        let start = || SafeText::from("  ").append(sign.clone()).append(" ");
        let room = columns.saturating_sub(4).max(1);
        if self.detail.is_empty() {
            let head = wrap::truncate_with_ellipsis(&self.head, room);
            return vec![start().append(head)];
        }
        if columns >= WIDE_COLUMNS {
            let head = wrap::truncate_with_ellipsis(&self.head, HEAD_COLUMNS_MAX);
            let gap = " ".repeat(HEAD_COLUMNS_MAX - wrap::text_width(&head) + 2);
            let room = room.saturating_sub(HEAD_COLUMNS_MAX + 2).max(1);
            let detail = wrap::truncate_with_ellipsis(&self.detail, room);
            return vec![start().append(format!("{head}{gap}{detail}"))];
        }
        let head = wrap::truncate_with_ellipsis(&self.head, room);
        let detail = wrap::truncate_with_ellipsis(&self.detail, room.saturating_sub(2).max(1));
        vec![start().append(head), SafeText::from(format!("      {detail}"))]
    }
}

fn entry(sign: &'static str, status: JobStatus, head: String, detail: String) -> OverviewEntry {
    OverviewEntry { sign, style: output::status_style(status), head, detail }
}

fn section(title: &'static str, entries: Vec<OverviewEntry>) -> OverviewSection {
    let total = entries.len();
    OverviewSection { title, entries, total }
}

/// Returns the end of a job's ID, which is enough to name it.
fn short_id(job: &JobSummary) -> &str {
    job.id.rsplit('-').next().unwrap_or(&job.id)
}

fn head(job: &JobSummary, time: &str) -> String {
    format!("{} {} {time}", output::one_line(&job.agent), short_id(job))
}

fn waiting_for_people(fleet: &FleetStatus, now: Timestamp) -> OverviewSection {
    let mut entries = Vec::new();
    if fleet.approvals_waiting > 0 {
        let questions = match fleet.approvals_waiting {
            1 => "1 open question".to_owned(),
            many => format!("{many} open questions"),
        };
        entries.push(entry(
            "?",
            JobStatus::Cancelled,
            questions,
            "heeler approvals list".to_owned(),
        ));
    }
    for OpenWorkflowRun { run, .. } in fleet.workflow_runs.iter().filter(|run| run.asks) {
        let since = output::relative_time(run.started_at, now);
        entries.push(entry(
            "?",
            JobStatus::Cancelled,
            format!("{} {since}", output::one_line(&run.workflow)),
            format!("waits in {}", output::one_line(&run.current_phase)),
        ));
    }
    section("Waiting for you", entries)
}

fn failures(fleet: &FleetStatus, now: Timestamp) -> OverviewSection {
    let entries = fleet.failing.iter().map(|(job, count)| {
        let at = output::relative_time(job.finished_at.unwrap_or(job.asked_at), now);
        let times = if *count > 1 { format!(", {count} times") } else { String::new() };
        let cause = match job_summary(job) {
            cause if cause.is_empty() => format!("heeler jobs show {}", short_id(job)),
            cause => cause,
        };
        entry("✗", JobStatus::Failed, format!("{}{times}", head(job, &at)), cause)
    });
    let entries: Vec<OverviewEntry> = entries.collect();
    // One entry stands for all failures of an agent.
    section("Failed in the last 24 hours", entries)
}

fn running(
    fleet: &FleetStatus,
    now: Timestamp,
    activity: impl Fn(&JobSummary) -> String,
) -> OverviewSection {
    let entries = fleet.running.iter().map(|job| {
        let took = now.duration_since(job.started_at.unwrap_or(job.asked_at)).abs();
        let took = output::format_short_duration(took);
        if job.dead {
            let what = "no process runs it: heeler doctor --fix".to_owned();
            return entry("✗", JobStatus::Failed, head(job, &took), what);
        }
        let now = match activity(job) {
            text if text.is_empty() => title_text(job),
            text => text,
        };
        entry("▶", JobStatus::Running, head(job, &took), now)
    });
    section("Running", entries.collect())
}

fn queued(fleet: &FleetStatus, now: Timestamp) -> OverviewSection {
    let entries = fleet.waiting.iter().map(|queued| {
        let since = output::relative_time(queued.job.asked_at, now);
        let why = output::one_line(&queued.waits);
        entry("…", JobStatus::Pending, head(&queued.job, &since), why)
    });
    section("Waiting to start", entries.collect())
}

fn upcoming(fleet: &FleetStatus, now: Timestamp) -> OverviewSection {
    let mut next: Vec<(Timestamp, String)> = Vec::new();
    for agent in &fleet.agents {
        let due = agent.schedules.iter().filter_map(|it| Some((it.next_run_at?, &it.name)));
        next.extend(due.map(|(at, name)| {
            (at, format!("{} {}", output::one_line(&agent.name), output::one_line(name)))
        }));
    }
    // By time, then by name, so that the order is stable between two frames.
    next.sort();
    let total = next.len();
    let entries = next.into_iter().take(NEXT_MAX).map(|(at, name)| {
        entry(
            "·",
            JobStatus::Pending,
            format!("{} {name}", output::due_text(at, now)),
            String::new(),
        )
    });
    OverviewSection { title: "Next", entries: entries.collect(), total }
}

/// Agents without a running job, on one line.
fn idle_agents(fleet: &FleetStatus) -> OverviewSection {
    let is_idle = |name: &str| fleet.running.iter().all(|job| job.agent != name);
    let idle = fleet.agents.iter().filter(|agent| is_idle(&agent.name));
    let names: Vec<String> = idle
        .map(|agent| match agent.enabled {
            true => output::one_line(&agent.name),
            false => format!("{} (disabled)", output::one_line(&agent.name)),
        })
        .collect();
    let entries = match names.is_empty() {
        true => Vec::new(),
        false => vec![entry("·", JobStatus::Completed, names.join(", "), String::new())],
    };
    section("Idle agents", entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overview(sections: &[(&'static str, usize)]) -> StatusOverview {
        let made = sections.iter().map(|(title, count)| {
            let entries = (0..*count).map(|number| {
                let detail = "the cause of it, which is long enough to be cut somewhere";
                let head = format!("agent-{number} k3v9q1 3m ago");
                entry("✗", JobStatus::Failed, head, detail.to_owned())
            });
            section(title, entries.collect())
        });
        StatusOverview { sections: made.collect() }
    }

    fn drawn(overview: &StatusOverview, columns: usize, rows: usize) -> Vec<String> {
        let lines = overview.lines(columns, Some(rows));
        lines.iter().map(SafeText::plain).collect()
    }

    #[test]
    fn every_section_is_shortened_before_one_is_left_out() {
        let overview = overview(&[("Failed", 9), ("Running", 9), ("Next", 1)]);
        let lines = drawn(&overview, 80, 9);
        assert_eq!(lines.len(), 9, "{lines:?}");
        assert_eq!(lines[0], "Failed (3 of 9)");
        assert_eq!(lines[4], "Running (2 of 9)");
        assert_eq!(lines[7], "Next");
        assert!(lines[1].contains("the cause of it"), "{lines:?}");
        assert!(lines.iter().all(|line| wrap::text_width(line) <= 80), "{lines:?}");
    }

    #[test]
    fn a_narrow_screen_has_the_cause_below() {
        let lines = drawn(&overview(&[("Failed", 2)]), 45, 20);
        assert_eq!(lines.len(), 5);
        assert_eq!(lines[1], "  ✗ agent-0 k3v9q1 3m ago");
        assert!(lines[2].starts_with("      the cause of it"), "{lines:?}");
        assert!(lines.iter().all(|line| wrap::text_width(line) <= 45), "{lines:?}");
    }

    #[test]
    fn a_tiny_screen_is_no_reason_to_fail() {
        for (columns, rows) in [(1, 1), (5, 2), (20, 0)] {
            assert!(drawn(&overview(&[("Failed", 2)]), columns, rows).len() <= rows);
        }
    }
}
