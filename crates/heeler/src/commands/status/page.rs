//! Formats the output of `heeler status`. Start at [`page`].

use anstyle::Style;
use heeler_engine::{BudgetStatus, DaemonMode};
use heeler_model::config_change::HeldConfigChange;
use heeler_model::{JobStatus, ScheduleStatus, format_micros};
use heeler_query::fleet::{FleetAgentSummary, OpenWorkflowRun, QueuedJobSummary};
use heeler_query::jobs::JobSummary;
use jiff::Timestamp;

use super::snapshot::StatusSnapshot;
use crate::commands::job_text::{job_summary, marked_status_text, start_text, status_text};
use crate::commands::workflow::outcome;
use crate::config_changes;
use crate::context::CommandContext;
use crate::output::{self, OutputTable, SafeText};
use crate::text_file::parent_dir;
use crate::trust::visible;
use crate::wrap;

/// Queued jobs that are shown.
const WAITING_MAX: usize = 10;
/// Workflow runs that are shown.
const WORKFLOWS_MAX: usize = 10;
/// Lines of a change of the config that are shown.
const CHANGE_LINES_MAX: usize = 40;
/// Upcoming schedules that are shown.
const NEXT_MAX: usize = 5;
/// Characters of a job's summary that are shown.
const ACCOUNT_CHARS_MAX: usize = 60;
/// A budget is shown when more than this percentage of it is spent.
const BUDGET_SHOWN_PERCENT: i64 = 80;

/// Lines of the output, and notes that go to stderr.
#[derive(Default)]
pub(super) struct StatusPage {
    pub(super) lines: Vec<SafeText>,
    pub(super) notes: Vec<String>,
}

impl StatusPage {
    fn line(&mut self, text: impl Into<SafeText>) {
        self.lines.push(text.into());
    }

    /// Returns all lines, followed by the notes.
    pub(super) fn into_lines(self) -> Vec<SafeText> {
        let mut lines = self.lines;
        let dimmed = |note: &String| SafeText::styled(Style::new().dimmed(), note);
        lines.extend(self.notes.iter().map(dimmed));
        lines
    }
}

/// Sections of a page with common column widths.
struct StatusSections {
    lines: OutputTable,
    /// Each title with its number of rows.
    titles: Vec<(String, usize)>,
}

impl StatusSections {
    fn begin(&mut self, title: impl Into<String>) {
        self.titles.push((title.into(), 0));
    }

    fn row(&mut self, cells: [SafeText; 5]) {
        let [first, rest @ ..] = cells;
        let mut row = vec![SafeText::from("  ").append(first)];
        row.extend(rest);
        self.lines.push(row);
        self.titles.last_mut().expect("a part was begun").1 += 1;
    }

    fn add_to(self, page: &mut StatusPage) {
        let mut lines = self.lines.lines().into_iter();
        // A title without rows is not printed, so callers may begin every section.
        for (title, rows) in self.titles.into_iter().filter(|(_, rows)| *rows > 0) {
            page.line("");
            page.line(title);
            page.lines.extend(lines.by_ref().take(rows));
        }
    }
}

/// Formats the beginning of a page: the daemon, faults, a held change and budgets.
fn page_start(snapshot: &StatusSnapshot, context: &CommandContext, now: Timestamp) -> StatusPage {
    let mut page = StatusPage::default();
    // First, because everything below would otherwise be misread.
    if let Some(warning) = snapshot.writer.warning() {
        page.line(SafeText::styled(output::status_style(JobStatus::Cancelled), warning));
    }
    let name = snapshot.fleet.fleet.name.as_deref().unwrap_or("fleet");
    let jobs = output::pluralize(snapshot.fleet.jobs_total.unsigned_abs(), "job");
    let daemon = daemon_text(snapshot, now);
    page.line(format!("{name} in {}: {daemon}, {jobs}", context.state_dir));
    let daemon = snapshot.fleet.daemon.as_ref();
    if let Some(url) = daemon.and_then(|daemon| daemon.url.as_ref()) {
        page.line(format!("dashboard: {url} (heeler open logs you in)"));
    }
    if daemon.is_some_and(|daemon| daemon.stopping) {
        let jobs = output::pluralize(snapshot.fleet.running.len() as u64, "job");
        page.line(format!("stopping, waiting for {jobs}; to end it now and keep them running: heeler stop --keep-jobs"));
    }
    if let Some(faults) = &snapshot.config_faults {
        page.notes.push(format!("{faults}; see: heeler config validate"));
    }
    let base = context.config.as_deref().map_or(context.working_dir.as_path(), parent_dir);
    let faulty = snapshot.faulty_workflows.iter().map(|it| it.describe(base));
    let faults = daemon.iter().flat_map(|daemon| &daemon.faults).cloned();
    for fault in faults.chain(faulty) {
        let red = output::status_style(JobStatus::Failed);
        page.line(SafeText::styled(red, "fault").append(format!(" {fault}")));
    }
    if !snapshot.faulty_workflows.is_empty() {
        page.notes.push("invalid workflow files; for details: heeler workflow validate".to_owned());
    }
    if let Some(change) = &snapshot.held_change {
        add_held_change(&mut page, change);
    }
    let budgets = snapshot.budgets.iter().flat_map(budget_lines);
    page.lines.extend(budgets.map(SafeText::from));
    page
}

/// Returns the beginning of a page as lines of a screen.
pub(super) fn heading(
    snapshot: &StatusSnapshot,
    context: &CommandContext,
    now: Timestamp,
    columns: usize,
) -> Vec<SafeText> {
    let lines = page_start(snapshot, context, now).into_lines();
    // The terminal would wrap a long line, and the page would need more rows than it counts.
    let shorten = |line: SafeText| match wrap::text_width(&line.plain()) > columns {
        true => SafeText::from(wrap::truncate_with_ellipsis(&line.plain(), columns)),
        false => line,
    };
    lines.into_iter().map(shorten).collect()
}

/// Formats a snapshot.
pub(super) fn page(
    snapshot: &StatusSnapshot,
    context: &CommandContext,
    now: Timestamp,
) -> StatusPage {
    let mut page = page_start(snapshot, context, now);
    // With an invalid config the agents are unknown, not missing.
    if snapshot.fleet.agents.is_empty() && snapshot.config_faults.is_none() {
        page.line("no agents yet; add one with: heeler init agent NAME");
    } else if !snapshot.fleet.agents.is_empty() {
        page.line("");
        page.lines.extend(agents(snapshot, now));
    }
    // The last column, the summary, shrinks on a narrow terminal.
    let mut parts =
        StatusSections { lines: OutputTable::without_headings(5, 4), titles: Vec::new() };
    add_work(&mut parts, &mut page, snapshot, now);
    add_workflows(&mut parts, &mut page, snapshot, now);
    add_next(&mut parts, snapshot, now);
    add_failed(&mut parts, &mut page, snapshot, now);
    parts.add_to(&mut page);
    add_parked(&mut page, snapshot, now);
    add_chats(&mut page, snapshot, now);
    let open_questions = snapshot.fleet.approvals_waiting;
    if open_questions > 0 {
        let open_questions = match open_questions {
            1 => "1 open question".to_owned(),
            many => format!("{many} open questions"),
        };
        page.notes.push(format!("{open_questions}: heeler approvals list"));
    }
    page
}

/// Adds a change of the config that waits for a person.
fn add_held_change(page: &mut StatusPage, change: &HeldConfigChange) {
    let red = output::status_style(JobStatus::Failed);
    let summary = visible(&change.summary());
    page.line(SafeText::styled(red, "config").append(format!(" {summary}")));
    let lines: Vec<String> = change.files.iter().flat_map(config_changes::file_lines).collect();
    let more = lines.len().saturating_sub(CHANGE_LINES_MAX);
    for line in lines.into_iter().take(CHANGE_LINES_MAX) {
        page.line(format!("  {line}"));
    }
    if more > 0 {
        page.line(format!("  and {more} more lines"));
    }
    page.line("  to load it: heeler reload --accept; or undo the change");
}

fn daemon_text(snapshot: &StatusSnapshot, now: Timestamp) -> String {
    let Some(daemon) = &snapshot.writer.daemon else {
        return match &snapshot.writer.writer {
            Some(holder) => format!("in use by {holder}"),
            None => "no daemon".to_owned(),
        };
    };
    let mode = match daemon.mode {
        DaemonMode::Permanent => "daemon",
        DaemonMode::UntilIdle => "temporary daemon",
    };
    // The clock may have been set back since the daemon started.
    let up = output::format_short_duration(now.duration_since(daemon.since).abs());
    let other = match daemon.version == env!("CARGO_PKG_VERSION") {
        true => String::new(),
        false => format!(" (version {}: heeler restart)", daemon.version),
    };
    format!("{mode} {} up {up}{other}", daemon.pid)
}

/// Returns lines for a budget that is nearly spent.
fn budget_lines(budget: &BudgetStatus) -> Vec<String> {
    let line = |spent: i64, limit: Option<i64>, when: &str, then: &str| {
        let limit = limit?;
        // Integers in millionths of a dollar: no rounding decides whether a warning appears.
        let is_shown = spent.saturating_mul(100) > limit.saturating_mul(BUDGET_SHOWN_PERCENT);
        let whose = match budget.whose.as_str() {
            "fleet" => String::new(),
            agent => format!(" of {}", output::one_line(agent)),
        };
        let state = if spent >= limit { format!(", spent; {then}") } else { String::new() };
        let (spent_text, limit_text) = (format_micros(spent), format_micros(limit));
        let text = format!("Budget{whose}: {spent_text} of {limit_text} {when}{state}");
        // A limit of zero is spent from the start, even if nothing was spent yet.
        (is_shown || spent >= limit).then_some(text)
    };
    let day = line(budget.day_spent, budget.day_limit, "today", "no job starts until tomorrow");
    let raise = "raise `budget.total` to continue";
    let total = line(budget.total_spent, budget.total_limit, "in total", raise);
    day.into_iter().chain(total).collect()
}

/// Adds running and queued jobs.
fn add_work(
    parts: &mut StatusSections,
    page: &mut StatusPage,
    snapshot: &StatusSnapshot,
    now: Timestamp,
) {
    // All sections share one table, so that their columns line up.
    parts.begin("Running");
    for job in &snapshot.fleet.running {
        parts.row(job_row(job, 1, now));
    }
    match snapshot.writer.writer {
        Some(_) => parts.begin("Waiting"),
        None => parts.begin("Waiting; no daemon is running to start them: heeler start -d"),
    }
    for QueuedJobSummary { job, not_before, waits, .. } in
        snapshot.fleet.waiting.iter().take(WAITING_MAX)
    {
        // A time that has passed no longer holds the job back.
        let not_before = not_before.filter(|at| *at > now);
        let not_before = not_before.map(|at| format!(", {}", output::due_text(at, now)));
        let why = output::one_line(waits);
        parts.row([
            job.id.as_str().into(),
            output::one_line(&job.agent).into(),
            status_text(job.status, false),
            output::relative_time(job.asked_at, now).into(),
            format!("{why}{}", not_before.unwrap_or_default()).into(),
        ]);
    }
    let more = snapshot.fleet.waiting.len().saturating_sub(WAITING_MAX);
    if more > 0 {
        page.notes.push(format!("and {more} more waiting: heeler jobs --status pending"));
    }
}

/// Adds active workflow runs, those that wait for an approval first.
fn add_workflows(
    parts: &mut StatusSections,
    page: &mut StatusPage,
    snapshot: &StatusSnapshot,
    now: Timestamp,
) {
    parts.begin("Workflows");
    for OpenWorkflowRun { run, asks } in snapshot.fleet.workflow_runs.iter().take(WORKFLOWS_MAX) {
        let status = outcome(run.status, run.mode.as_deref());
        let status = if *asks { status.append(", waiting for you") } else { status };
        parts.row([
            run.id.as_str().into(),
            output::one_line(&run.workflow).into(),
            status,
            output::relative_time(run.started_at, now).into(),
            output::one_line(&run.current_phase).into(),
        ]);
    }
    let more = snapshot.fleet.workflow_runs.len().saturating_sub(WORKFLOWS_MAX);
    if more > 0 {
        page.notes.push(format!("and {more} more: heeler workflow runs"));
    }
}

/// Adds the next due times.
fn add_next(parts: &mut StatusSections, snapshot: &StatusSnapshot, now: Timestamp) {
    let mut next: Vec<(Timestamp, &str, &str)> = Vec::new();
    for agent in &snapshot.fleet.agents {
        let due = agent.schedules.iter().filter_map(|it| Some((it.next_run_at?, &it.name)));
        next.extend(due.map(|(at, name)| (at, agent.name.as_str(), name.as_str())));
    }
    // By time, then by name, so that the order is stable between two frames.
    next.sort();
    parts.begin("Next");
    for (at, agent, schedule) in next.into_iter().take(NEXT_MAX) {
        parts.row([
            output::due_text(at, now).into(),
            output::one_line(agent).into(),
            output::one_line(schedule).into(),
            SafeText::default(),
            SafeText::default(),
        ]);
    }
}

/// Adds connections to chat platforms.
fn add_chats(page: &mut StatusPage, snapshot: &StatusSnapshot, now: Timestamp) {
    if !snapshot.fleet.chats.is_empty() {
        page.line("");
        page.line("Chat platforms");
    }
    for link in &snapshot.fleet.chats {
        let since = output::relative_time(link.since, now);
        let problem = link.problem.as_deref().map(output::one_line);
        let rest = match (&problem, link.last_event_at) {
            (Some(problem), _) => format!("  {problem}"),
            (None, Some(at)) => format!("  last message {}", output::relative_time(at, now)),
            (None, None) => String::new(),
        };
        let (platform, account, state) = (&link.platform, &link.account, &link.state);
        page.line(format!("  {platform} {account}  {state} since {since}{rest}"));
    }
}

/// Adds parked credentials.
fn add_parked(page: &mut StatusPage, snapshot: &StatusSnapshot, now: Timestamp) {
    // A limit that has reset may still be recorded.
    let mut parked = snapshot.fleet.parked.iter().filter(|parked| parked.until > now).peekable();
    if parked.peek().is_some() {
        page.line("");
        page.line("Parked until a usage limit resets");
    }
    for parked in parked {
        let (until, since) =
            (output::due_text(parked.until, now), output::relative_time(parked.since, now));
        let reason = output::one_line(&parked.reason);
        page.line(format!("  resumes {until}  {reason} (since {since}, {})", parked.job));
    }
}

/// Adds failed jobs, one row for each agent.
fn add_failed(
    parts: &mut StatusSections,
    page: &mut StatusPage,
    snapshot: &StatusSnapshot,
    now: Timestamp,
) {
    parts.begin("Failed in the last 24 hours");
    let mut shown_count = 0;
    for (newest, count) in &snapshot.fleet.failing {
        parts.row(job_row(newest, *count, now));
        shown_count += *count as i64;
    }
    let all = "heeler jobs --status failed --since 24h";
    match snapshot.fleet.failed_total - shown_count {
        more if more > 0 => page.notes.push(format!("and {more} more: {all}")),
        // Several failures of one agent share a row, so the others are not visible.
        _ if shown_count > snapshot.fleet.failing.len() as i64 => {
            page.notes.push(format!("all of them: {all}"));
        }
        _ => {}
    }
}

fn job_row(job: &JobSummary, count: usize, now: Timestamp) -> [SafeText; 5] {
    let status = match (&job.host, job.status) {
        (Some(host), JobStatus::Running) => {
            marked_status_text(job).append(format!(" on {}", output::one_line(host)))
        }
        _ => marked_status_text(job),
    };
    let (status, since) = match count {
        1 => (status, start_text(job, now)),
        _ => (status.append(format!(" ×{count}")), format!("last {}", start_text(job, now))),
    };
    [
        job.id.as_str().into(),
        output::one_line(&job.agent).into(),
        status,
        since.into(),
        output::truncate_chars(&job_summary(job), ACCOUNT_CHARS_MAX).into(),
    ]
}

fn agents(snapshot: &StatusSnapshot, now: Timestamp) -> Vec<SafeText> {
    let mut lines =
        OutputTable::new(&["AGENT", "STATUS", "LAST JOB", "SCHEDULES", "NEXT"], &["SCHEDULES"]);
    for agent in &snapshot.fleet.agents {
        let next = agent
            .next_trigger_at
            .or_else(|| agent.schedules.iter().filter_map(|state| state.next_run_at).min());
        let current = agent.current_job.as_ref();
        let is_current = |job: &&JobSummary| Some(&job.id) == current;
        // The agent's own status is "running" until the run is settled, which would be misleading.
        let dead = snapshot.fleet.running.iter().find(is_current).is_some_and(|job| job.dead);
        let status = match dead {
            true => status_text(JobStatus::Running, dead),
            false if !agent.enabled => "disabled".into(),
            false => agent.status.as_str().into(),
        };
        lines.push(vec![
            output::one_line(&agent.name).into(),
            status,
            current.or(agent.last_job.as_ref()).map_or("", String::as_str).into(),
            schedules(agent).into(),
            next.map(|at| output::due_text(at, now)).unwrap_or_default().into(),
        ]);
    }
    lines.lines()
}

fn schedules(agent: &FleetAgentSummary) -> String {
    let named = agent.schedules.iter().map(|it| match it.status {
        ScheduleStatus::Idle => it.name.clone(),
        status => format!("{} ({status})", it.name),
    });
    output::one_line(&named.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_shown_when_little_of_it_is_left() {
        let mut budget = BudgetStatus {
            whose: "fleet".to_owned(),
            day_limit: Some(20_000_000),
            day_spent: 16_000_000,
            total_limit: None,
            total_spent: 900_000_000,
            reserved: 0,
        };
        assert_eq!(budget_lines(&budget), Vec::<String>::new(), "80 % is not more than 80 %");
        budget.day_spent += 10_000;
        assert_eq!(budget_lines(&budget), ["Budget: $16.01 of $20.00 today"]);
        budget.day_spent = 20_000_000;
        let spent = "Budget: $20.00 of $20.00 today, spent; no job starts until tomorrow";
        assert_eq!(budget_lines(&budget), [spent]);
        (budget.whose, budget.total_limit) = ("coder".to_owned(), Some(1_000_000_000));
        assert_eq!(budget_lines(&budget)[1], "Budget of coder: $900.00 of $1000.00 in total");
        budget.total_limit = Some(0);
        let spent =
            "Budget of coder: $900.00 of $0.00 in total, spent; raise `budget.total` to continue";
        assert_eq!(budget_lines(&budget)[1], spent);
    }
}
