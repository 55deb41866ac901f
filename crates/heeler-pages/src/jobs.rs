//! Job list, with filters by agent, status and age.

use heeler_model::JobStatus;
use heeler_query::jobs::{JobPage, JobSummary};
use maud::{Markup, html};

use crate::components::{
    agent_field, agent_link, clamp_line, empty_notice, format_grouped, host_field, isolated_text,
    job_status_badge, relative_time, state_field, url_with_params, visible_line,
};
use crate::markdown::markdown_line;
use crate::overview::{job_cost, job_duration, short_link};
use crate::{DashboardSection, PageFrame};

/// Filters of the list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobsView {
    /// Only jobs of this agent.
    pub agent: String,
    /// Only jobs with this status.
    pub status: Option<JobStatus>,
    /// Only jobs created within this time: `1h`, `24h`, `7d`.
    pub since: String,
    /// Only jobs with their last run on this host.
    pub host: String,
    /// Only jobs older than this one.
    pub before: String,
    /// All agents, for the selection.
    pub agents: Vec<String>,
    /// All hosts; a fleet with one machine has none.
    pub hosts: Vec<String>,
}

impl JobsView {
    fn is_filtered(&self) -> bool {
        let texts = [&self.agent, &self.since, &self.host];
        self.status.is_some() || texts.iter().any(|text| !text.is_empty())
    }
}

/// Choices of the age filter: value and label.
const AGE_CHOICES: [(&str, &str); 5] = [
    ("", "Any time"),
    ("1h", "Last hour"),
    ("24h", "Last day"),
    ("7d", "Last week"),
    ("30d", "Last month"),
];

pub fn page(frame: &PageFrame, view: &JobsView, jobs: &JobPage) -> Markup {
    let content = html! {
        div.head {
            h1 { "Jobs" }
            span.muted { (format_grouped(jobs.total)) @if jobs.total == 1 { " job" } @else { " jobs" } }
        }
        (filters(view))
        section.card #list data-live aria-label="Jobs" {
            @if jobs.jobs.is_empty() { (empty_list(view)) } @else { (table(frame, &jobs.jobs)) }
        }
        (pager(view, jobs))
    };
    frame.page(DashboardSection::Jobs, "Jobs", content)
}

fn filters(view: &JobsView) -> Markup {
    let status = view.status.map_or("", JobStatus::as_str);
    html! {
        form.filters data-auto role="search" aria-label="Filter jobs" {
            (agent_field(&view.agents, &view.agent))
            (state_field(JobStatus::ALL.iter().map(|one| one.as_str()), status))
            div.field {
                label for="f-since" { "Created" }
                select #f-since name="since" {
                    @for (value, name) in AGE_CHOICES { option value=(value) selected[value == view.since] { (name) } }
                }
            }
            @if !view.hosts.is_empty() || !view.host.is_empty() { (host_field(&view.hosts, &view.host)) }
            button.button { "Show" }
            @if view.is_filtered() {
                a.button.quiet href="/jobs" { "Show all" }
            }
        }
    }
}

fn empty_list(view: &JobsView) -> Markup {
    if view.is_filtered() {
        return empty_notice("No matching jobs", html! { a href="/jobs" { "Show all jobs" } });
    }
    empty_notice(
        "No jobs yet",
        html! { "Run one from an " a href="/agents" { "agent's page" } ", or with " code { "heeler trigger AGENT" } "." },
    )
}

fn pager(view: &JobsView, jobs: &JobPage) -> Markup {
    let status = view.status.map_or("", JobStatus::as_str);
    let with = |before: &str| {
        let params = [
            ("agent", view.agent.as_str()),
            ("status", status),
            ("since", &view.since),
            ("host", &view.host),
            ("before", before),
        ];
        url_with_params("/jobs", &params)
    };
    html! {
        @if !view.before.is_empty() || jobs.next.is_some() {
            nav.pager aria-label="Pages" {
                @if view.before.is_empty() { span {} } @else { a.button href=(with("")) { "Newest" } }
                @if let Some(next) = &jobs.next { a.button rel="next" href=(with(next)) { "Older" } }
            }
        }
    }
}

/// Returns jobs as a table. Only a fleet with several hosts has a column for them.
pub fn table(frame: &PageFrame, jobs: &[JobSummary]) -> Markup {
    let has_hosts = jobs.iter().any(|job| job.host.is_some());
    html! {
        div.scroll {
            table.lines {
                thead {
                    tr {
                        th.fit scope="col" { "State" }
                        th scope="col" { "Agent" }
                        @if has_hosts { th.opt scope="col" { "Host" } }
                        th.opt scope="col" { "Started by" }
                        th scope="col" { "Prompt and result" }
                        th.num scope="col" { "Created" }
                        th.num scope="col" { "Took" }
                        th.num.opt scope="col" { "Cost" }
                        th.fit scope="col" { "Job" }
                    }
                }
                tbody { @for job in jobs { (table_row(frame, job, has_hosts)) } }
            }
        }
    }
}

/// Renders the mark of a job whose agent was denied tools.
fn denied_badge(job: &JobSummary) -> Markup {
    html! {
        @if let Some(tools) = &job.denied {
            " " span.badge.denied title={ "Not allowed: " (visible_line(tools)) } { "denied" }
        }
    }
}

fn table_row(frame: &PageFrame, job: &JobSummary, has_hosts: bool) -> Markup {
    let summary = || clamp_line(&markdown_line(job.summary.as_deref().unwrap_or_default()));
    let result = job.error.as_deref().map_or_else(summary, clamp_line);
    html! {
        tr data-row {
            td.fit { (job_status_badge(job.status.as_str(), job.dead)) @if job.pulling { span.muted { " pulling" } } (denied_badge(job)) }
            td { (agent_link(&job.agent)) }
            @if has_hosts { td.opt.muted { @if let Some(host) = &job.host { (isolated_text(host)) } } }
            td.opt.muted { (isolated_text(job.schedule.as_deref().unwrap_or(&job.trigger_type))) }
            td.wide.did {
                @if let Some(title) = &job.title { div.clamp.title { (clamp_line(title)) } }
                div.clamp { (result) }
            }
            td.num { (relative_time(frame, job.asked_at)) }
            td.num.took { (job_duration(frame, job)) }
            td.num.opt { (job_cost(job)) }
            td.fit.id { (short_link(job)) }
        }
    }
}
