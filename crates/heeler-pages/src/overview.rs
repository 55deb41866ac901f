//! Overview page: running jobs, upcoming schedules, failures, pending approvals, costs.

use heeler_config::reveal_hidden;
use heeler_model::Approval;
use heeler_query::charts::FleetCharts;
use heeler_query::chat_links::ChatLinkSummary;
use heeler_query::config_change::ConfigChangeSummary;
use heeler_query::jobs::JobSummary;
use heeler_query::overview::{
    FleetOverview, RunningJobSummary, UpcomingSchedule, WaitingJobSummary,
};
use maud::{Markup, html};

use crate::components::{
    agent_link, clamp_line, elapsed_time, encode_path, format_clock_duration, format_grouped,
    format_usd, isolated_text, job_link, job_status_badge, relative_time, status_badge,
    url_with_params,
};
use crate::transcript::row_summary;
use crate::{DashboardSection, PageFrame, approvals, charts};

/// Interval at which the last rows of running jobs are refreshed.
const POLL_MS: u32 = 2_000;

pub fn page(
    frame: &PageFrame,
    now: &FleetOverview,
    figures: &FleetCharts,
    change: Option<&ConfigChangeSummary>,
    chats: &[ChatLinkSummary],
) -> Markup {
    let content = html! {
        div.head { h1 { "Overview" } }
        div #needs-you data-live { (needs_you(now)) }
        div #config-change data-live { @if let Some(change) = change { (change_card(frame, change)) } }
        div.stats #stats data-live { (stats(now)) }
        @if now.agents == 0 { (empty_fleet(frame)) }
        div.wide-3 {
            div.split {
                div.stack #work data-live { (running_card(frame, now)) (upcoming(frame, now)) }
                div.stack #attention data-live { (approvals_card(frame, now)) (failed_card(frame, &now.failed)) }
            }
            div.grid #charts data-live { (charts_card(frame, figures)) }
            div #recent data-live { (recent_card(frame, &now.recent)) }
            div #chats data-live { @if !chats.is_empty() { (chats_card(frame, chats)) } }
        }
    };
    // Transcript rows are not commits, so the live stream does not announce them.
    let poll = (!now.running.is_empty()).then_some(POLL_MS);
    frame.polled_page(DashboardSection::Overview, "Overview", poll, content)
}

/// Leads to the questions that wait, before everything else.
fn needs_you(now: &FleetOverview) -> Markup {
    let count = now.activity.approvals;
    html! {
        @if count > 0 {
            a.banner.warn.needs href="/approvals" {
                strong {
                    @if count == 1 { "1 question waits for you" }
                    @else { (format_grouped(count)) " questions wait for you" }
                }
                @if let Some(first) = now.approvals.first() {
                    span.clamp { (clamp_line(&first.summary)) }
                }
            }
        }
    }
}

/// A change of the config that waits for a person.
fn change_card(frame: &PageFrame, change: &ConfigChangeSummary) -> Markup {
    let body = serde_json::json!({ "fingerprint": change.fingerprint }).to_string();
    html! {
        section.card aria-labelledby="h-change" {
            header { h2 #h-change { "A change of the config waits for you" } }
            div.pad.stack-s {
                p {
                    "It happened while these jobs ran, so an agent may have made it:"
                    @for job in &change.jobs { " " (job_link(job)) }
                    ". The fleet keeps its config until you load the change or undo it."
                }
                @for file in &change.files {
                    p { strong { (isolated_text(&file.path)) } " " (file.change) }
                    @if file.lines.is_empty() {
                        p.note { "The content is not shown." }
                    } @else {
                        pre.code { @for line in &file.lines { (reveal_hidden(line)) "\n" } }
                    }
                }
                @if frame.can_administer() {
                    button.button.danger type="button" data-action="POST /api/v1/daemon/accept-config"
                        data-body=(body) data-danger
                        data-confirm="Load this change? The fleet then runs what it says."
                        data-answer="Load the change" data-done="The change was loaded." { "Load the change" }
                } @else {
                    p.note { "A person with the scope admin can load it." }
                }
            }
        }
    }
}

/// The connections to chat platforms.
fn chats_card(frame: &PageFrame, chats: &[ChatLinkSummary]) -> Markup {
    html! {
        section.card aria-labelledby="h-chats" {
            header { h2 #h-chats { "Chat platforms" } }
            ul.list role="list" { @for link in chats { (chat_item(frame, link)) } }
        }
    }
}

fn chat_item(frame: &PageFrame, link: &ChatLinkSummary) -> Markup {
    html! {
        li data-row {
            div.line {
                (status_badge(&link.state))
                strong { (isolated_text(&link.platform)) }
                span.muted { (isolated_text(&link.account)) }
                span.end.muted.nowrap { "since " (relative_time(frame, link.since)) }
            }
            p.small.muted {
                @match link.last_event_at {
                    Some(at) => { "Last event " (relative_time(frame, at)) }
                    None => { "No event yet" }
                }
                @if let Some(ms) = link.record_ms { ", recorded in " (format_grouped(i64::try_from(ms).unwrap_or(i64::MAX))) " ms" }
                @if link.rate_limits > 0 {
                    ". Calls refused by limits: " (format_grouped(i64::try_from(link.rate_limits).unwrap_or(i64::MAX)))
                }
                "."
            }
            @if let Some(problem) = &link.problem { p.small.clamp { (clamp_line(problem)) } }
        }
    }
}

fn stats(now: &FleetOverview) -> Markup {
    let activity = &now.activity;
    html! {
        (stat_tile("/jobs?status=running", "Running", &format_grouped(activity.running), "", activity.running > 0))
        (stat_tile("/jobs?status=pending", "Waiting", &format_grouped(activity.waiting), "", false))
        (stat_tile("/approvals", "To answer", &format_grouped(activity.approvals), "", activity.approvals > 0))
        a.stat href="/jobs?status=failed" {
            span.name { "Failed within a day" }
            span.value.bad[activity.failed24h > 0] { (format_grouped(activity.failed24h)) }
        }
        (stat_tile("/costs", "Cost today", &format_usd(now.cost_today_usd), "", false))
        (stat_tile("/jobs", "Jobs in total", &format_grouped(now.jobs), "", false))
    }
}

fn stat_tile(href: &str, name: &str, value: &str, note: &str, hot: bool) -> Markup {
    html! {
        a.stat href=(href) {
            span.name { (name) }
            span.value.hot[hot] { (value) }
            @if !note.is_empty() { span.note { (note) } }
        }
    }
}

fn empty_fleet(frame: &PageFrame) -> Markup {
    html! {
        section.card {
            header { h2 { "No agents yet" } }
            div.pad.stack-s {
                @if frame.can_administer() { p { a.button.primary href="/config?new=1" { "New agent" } } }
                p { "This fleet's config has no agents. In the fleet's directory, run:" }
                pre.code { "heeler init agent NAME   # writes a first agent\nheeler config validate\nheeler reload" }
                p.note { "Agents are files that " code { "heeler.yaml" } " lists under " code { "agents" } ". This page shows them as soon as the config is loaded." }
            }
        }
    }
}

fn running_card(frame: &PageFrame, now: &FleetOverview) -> Markup {
    html! {
        section.card aria-labelledby="h-running" {
            header {
                h2 #h-running { "Running now" }
                @if now.activity.running > now.running.len() as i64 {
                    a.more href="/jobs?status=running" { "all " (format_grouped(now.activity.running)) }
                }
            }
            @if now.running.is_empty() {
                p.empty.small { "No running jobs." }
            } @else {
                ul.list role="list" { @for one in &now.running { (running_item(frame, one)) } }
            }
        }
    }
}

fn running_item(frame: &PageFrame, one: &RunningJobSummary) -> Markup {
    let job = &one.job;
    let line =
        // The last row may have no text, such as the end of a turn.
        one.last_rows.iter().rev().map(|row| row_summary(row.as_bytes())).find(|it| !it.is_empty());
    let started_at = job.started_at.unwrap_or(job.asked_at);
    html! {
        li data-row {
            div.line {
                (job_status_badge(job.status.as_str(), job.dead))
                a href=(encode_path("/jobs", &[&job.id])) { strong { (isolated_text(&job.agent)) } }
                @if let Some(schedule) = &job.schedule { span.muted { (isolated_text(schedule)) } }
                span.end.muted.num { (elapsed_time(frame, started_at)) }
            }
            p.said { (line.unwrap_or_else(|| "…".to_owned())) }
        }
    }
}

fn upcoming(frame: &PageFrame, now: &FleetOverview) -> Markup {
    html! {
        section.card aria-labelledby="h-next" {
            header { h2 #h-next { "Next" } a.more href="/schedules" { "calendar" } }
            @if now.next.is_empty() && now.waiting.is_empty() {
                p.empty.small { "No waiting jobs, and no schedule is due." }
            } @else {
                ul.list role="list" {
                    @for one in &now.waiting { (waiting_item(frame, one)) }
                    @for one in &now.next { (due_item(frame, one)) }
                }
            }
        }
    }
}

fn waiting_item(frame: &PageFrame, one: &WaitingJobSummary) -> Markup {
    html! {
        li data-row {
            div.line {
                (status_badge("pending"))
                a href=(encode_path("/jobs", &[&one.id])) { (isolated_text(&one.agent)) }
                span.end.muted.nowrap { (relative_time(frame, one.since)) }
            }
            p.small.muted.clamp { (clamp_line(&one.reason)) }
        }
    }
}

fn due_item(frame: &PageFrame, one: &UpcomingSchedule) -> Markup {
    html! {
        li data-row {
            div.line {
                (agent_link(&one.agent))
                span.muted { (isolated_text(&one.schedule)) }
                span.end.muted.nowrap { (relative_time(frame, one.at)) }
            }
        }
    }
}

fn approvals_card(frame: &PageFrame, now: &FleetOverview) -> Markup {
    html! {
        section.card aria-labelledby="h-asked" {
            header { h2 #h-asked { "Waiting for you" } a.more href="/approvals" { "inbox" } }
            @if now.approvals.is_empty() {
                p.empty.small { "No open questions." }
            } @else {
                ul.list role="list" { @for one in &now.approvals { (approval_item(frame, one)) } }
            }
        }
    }
}

fn approval_item(frame: &PageFrame, one: &Approval) -> Markup {
    let id = one.id.to_string();
    html! {
        li data-row {
            div.line {
                a href={ "/approvals#" (id) } { (approvals::approval_title(one.kind, &one.gate)) }
                @if let Some(who) = &one.requested_by { span.muted { (isolated_text(who)) } }
                span.end.muted.nowrap { (relative_time(frame, one.created_at)) }
            }
            p.clamp.small { (clamp_line(&one.summary)) }
        }
    }
}

fn failed_card(frame: &PageFrame, jobs: &[JobSummary]) -> Markup {
    let all = url_with_params("/jobs", &[("status", "failed")]);
    html! {
        section.card aria-labelledby="h-failed" {
            header { h2 #h-failed { "Failed within a day" } a.more href=(all) { "all" } }
            @if jobs.is_empty() {
                p.empty.small { "No failed jobs." }
            } @else {
                ul.list role="list" {
                    @for job in jobs {
                        li data-row {
                            div.line {
                                (status_badge("failed"))
                                a href=(encode_path("/jobs", &[&job.id])) { (isolated_text(&job.agent)) }
                                @if let Some(schedule) = &job.schedule { span.muted { (isolated_text(schedule)) } }
                                // A job that failed before it started has no end time.
                                span.end.muted.nowrap { (relative_time(frame, job.finished_at.unwrap_or(job.asked_at))) }
                            }
                            @if let Some(error) = &job.error { p.clamp.small { (clamp_line(error)) } }
                        }
                    }
                }
            }
        }
    }
}

fn charts_card(frame: &PageFrame, figures: &FleetCharts) -> Markup {
    html! {
        section.card aria-labelledby="h-runs" {
            header {
                h2 #h-runs { "Jobs by hour" }
                span.legend.end {
                    span.key { "completed" } span.key.bad { "failed" } span.key.rest { "others" }
                }
            }
            div.pad { (charts::runs_chart(&figures.hours, &frame.zone)) }
        }
        section.card aria-labelledby="h-money" {
            header { h2 #h-money { "Cost by day" } }
            div.pad { (charts::cost_chart(&figures.days)) }
        }
        section.card aria-labelledby="h-durations" {
            header {
                h2 #h-durations { "Duration of jobs" }
                span.legend.end { span.key.bad { "failed" } }
            }
            div.pad {
                @if figures.durations.is_empty() { p.empty.small { "No job has ended yet." } }
                @else { (charts::durations_chart(&figures.durations)) }
            }
        }
    }
}

fn recent_card(frame: &PageFrame, jobs: &[JobSummary]) -> Markup {
    html! {
        section.card aria-labelledby="h-recent" {
            header { h2 #h-recent { "Newest jobs" } a.more href="/jobs" { "all" } }
            @if jobs.is_empty() { p.empty.small { "No job yet. " code { "heeler trigger AGENT" } " starts one." } }
            @else { (crate::jobs::table(frame, jobs)) }
        }
    }
}

/// Renders the duration of a job, or the time elapsed so far.
pub(crate) fn job_duration(frame: &PageFrame, job: &JobSummary) -> Markup {
    match (job.duration_seconds, job.started_at) {
        (Some(seconds), _) => html! { (format_clock_duration(seconds)) },
        (None, Some(at)) if !job.status.is_final() => elapsed_time(frame, at),
        _ => html! { span.muted { "–" } },
    }
}

pub(crate) fn job_cost(job: &JobSummary) -> Markup {
    html! { @match job.cost_usd { Some(usd) => { (format_usd(usd)) } None => { span.muted { "–" } } } }
}

/// Links a job.
pub(crate) fn short_link(job: &JobSummary) -> Markup {
    job_link(&job.id)
}
