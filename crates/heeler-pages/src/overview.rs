//! The first page: what runs, what is next, what failed, who is asked, what it costs.

use heeler_model::Approval;
use heeler_query::charts::Charts;
use heeler_query::jobs::JobItem;
use heeler_query::overview::{Due, Overview, Running, Waiting};
use maud::{Markup, html};

use crate::parts::{
    agent_link, ago, clamped, dollars, duration, grouped, job_link, job_status, path, query, said,
    since, status,
};
use crate::transcript::gist_of_row;
use crate::{Frame, Section, approvals, charts};

/// How often the lines of running agents are looked at again.
const POLL_MS: u32 = 2_000;

/// Returns the page.
pub fn page(frame: &Frame, now: &Overview, figures: &Charts) -> Markup {
    let content = html! {
        div.head { h1 { "Overview" } }
        div.stats #stats data-live { (stats(now)) }
        @if now.agents == 0 { (empty_fleet()) }
        div.wide-3 {
            div.split {
                div.stack #work data-live { (running(frame, now)) (upcoming(frame, now)) }
                div.stack #attention data-live { (asked(frame, now)) (failed(frame, &now.failed)) }
            }
            div.grid #charts data-live { (figures_of(frame, figures)) }
            div #recent data-live { (recent(frame, &now.recent)) }
        }
    };
    // Rows of a transcript are no commits: nothing tells of them.
    let poll = (!now.running.is_empty()).then_some(POLL_MS);
    frame.polled_page(Section::Overview, "Overview", poll, content)
}

fn stats(now: &Overview) -> Markup {
    let pulse = &now.pulse;
    html! {
        (stat("/jobs?status=running", "Running", &grouped(pulse.running), "", pulse.running > 0))
        (stat("/jobs?status=pending", "Waiting", &grouped(pulse.waiting), "", false))
        (stat("/approvals", "To answer", &grouped(pulse.approvals), "", pulse.approvals > 0))
        a.stat href="/jobs?status=failed" {
            span.name { "Failed within a day" }
            span.value.bad[pulse.failed24h > 0] { (grouped(pulse.failed24h)) }
        }
        (stat("/settings#costs", "Cost today", &dollars(now.cost_today_usd), "", false))
        (stat("/jobs", "Jobs in all", &grouped(now.jobs), "", false))
    }
}

fn stat(href: &str, name: &str, value: &str, note: &str, hot: bool) -> Markup {
    html! {
        a.stat href=(href) {
            span.name { (name) }
            span.value.hot[hot] { (value) }
            @if !note.is_empty() { span.note { (note) } }
        }
    }
}

fn empty_fleet() -> Markup {
    html! {
        section.card {
            header { h2 { "No agents yet" } }
            div.pad.stack-s {
                p { "This fleet's config names no agent. In the folder of the fleet:" }
                pre.code { "heeler init        # writes a first agent\nheeler config validate\nheeler reload" }
                p.note { "Agents are files that " code { "heeler.yaml" } " names under " code { "agents" } ". This page shows them as soon as the config is loaded." }
            }
        }
    }
}

fn running(frame: &Frame, now: &Overview) -> Markup {
    html! {
        section.card aria-labelledby="h-running" {
            header {
                h2 #h-running { "Running now" }
                @if now.pulse.running > now.running.len() as i64 {
                    a.more href="/jobs?status=running" { "all " (grouped(now.pulse.running)) }
                }
            }
            @if now.running.is_empty() {
                p.empty.small { "Nothing runs." }
            } @else {
                ul.list role="list" { @for one in &now.running { (running_item(frame, one)) } }
            }
        }
    }
}

fn running_item(frame: &Frame, one: &Running) -> Markup {
    let job = &one.job;
    let line =
        one.last_rows.iter().rev().map(|row| gist_of_row(row.as_bytes())).find(|it| !it.is_empty());
    let began = job.started_at.unwrap_or(job.asked_at);
    html! {
        li data-row {
            div.line {
                (job_status(job.status.as_str(), job.dead))
                a href=(path("/jobs", &[&job.id])) { strong { (said(&job.agent)) } }
                @if let Some(schedule) = &job.schedule { span.muted { (said(schedule)) } }
                span.end.muted.num { (since(frame, began)) }
            }
            p.said { (line.unwrap_or_else(|| "…".to_owned())) }
        }
    }
}

fn upcoming(frame: &Frame, now: &Overview) -> Markup {
    html! {
        section.card aria-labelledby="h-next" {
            header { h2 #h-next { "Next" } a.more href="/schedules" { "calendar" } }
            @if now.next.is_empty() && now.waiting.is_empty() {
                p.empty.small { "Nothing waits, and no schedule is due." }
            } @else {
                ul.list role="list" {
                    @for one in &now.waiting { (waiting_item(frame, one)) }
                    @for one in &now.next { (due_item(frame, one)) }
                }
            }
        }
    }
}

fn waiting_item(frame: &Frame, one: &Waiting) -> Markup {
    html! {
        li data-row {
            div.line {
                (status("pending"))
                a href=(path("/jobs", &[&one.id])) { (said(&one.agent)) }
                span.end.muted.nowrap { (ago(frame, one.since)) }
            }
            p.small.muted.clamp { (clamped(&one.reason)) }
        }
    }
}

fn due_item(frame: &Frame, one: &Due) -> Markup {
    html! {
        li data-row {
            div.line {
                (agent_link(&one.agent))
                span.muted { (said(&one.schedule)) }
                span.end.muted.nowrap { (ago(frame, one.at)) }
            }
        }
    }
}

fn asked(frame: &Frame, now: &Overview) -> Markup {
    html! {
        section.card aria-labelledby="h-asked" {
            header { h2 #h-asked { "Waiting for you" } a.more href="/approvals" { "inbox" } }
            @if now.approvals.is_empty() {
                p.empty.small { "Nobody asks for anything." }
            } @else {
                ul.list role="list" { @for one in &now.approvals { (asked_item(frame, one)) } }
            }
        }
    }
}

fn asked_item(frame: &Frame, one: &Approval) -> Markup {
    let id = one.id.to_string();
    html! {
        li data-row {
            div.line {
                a href={ "/approvals#" (id) } { (approvals::title(one.kind, &one.gate)) }
                @if let Some(who) = &one.requested_by { span.muted { (said(who)) } }
                span.end.muted.nowrap { (ago(frame, one.created_at)) }
            }
            p.clamp.small { (clamped(&one.summary)) }
        }
    }
}

fn failed(frame: &Frame, jobs: &[JobItem]) -> Markup {
    let all = query("/jobs", &[("status", "failed")]);
    html! {
        section.card aria-labelledby="h-failed" {
            header { h2 #h-failed { "Failed within a day" } a.more href=(all) { "all" } }
            @if jobs.is_empty() {
                p.empty.small { "Nothing failed." }
            } @else {
                ul.list role="list" {
                    @for job in jobs {
                        li data-row {
                            div.line {
                                (status("failed"))
                                a href=(path("/jobs", &[&job.id])) { (said(&job.agent)) }
                                @if let Some(schedule) = &job.schedule { span.muted { (said(schedule)) } }
                                span.end.muted.nowrap { (ago(frame, job.finished_at.unwrap_or(job.asked_at))) }
                            }
                            @if let Some(error) = &job.error { p.clamp.small { (clamped(error)) } }
                        }
                    }
                }
            }
        }
    }
}

fn figures_of(frame: &Frame, figures: &Charts) -> Markup {
    html! {
        section.card aria-labelledby="h-runs" {
            header {
                h2 #h-runs { "Jobs by hour" }
                span.legend.end {
                    span.key { "completed" } span.key.bad { "failed" } span.key.rest { "others" }
                }
            }
            div.pad { (charts::runs(&figures.hours, &frame.zone)) }
        }
        section.card aria-labelledby="h-money" {
            header { h2 #h-money { "Cost by day" } }
            div.pad { (charts::money(&figures.days)) }
        }
        section.card aria-labelledby="h-durations" {
            header {
                h2 #h-durations { "How long jobs took" }
                span.legend.end { span.key.bad { "failed" } }
            }
            div.pad {
                @if figures.durations.is_empty() { p.empty.small { "No job has ended yet." } }
                @else { (charts::durations(&figures.durations)) }
            }
        }
    }
}

fn recent(frame: &Frame, jobs: &[JobItem]) -> Markup {
    html! {
        section.card aria-labelledby="h-recent" {
            header { h2 #h-recent { "Newest jobs" } a.more href="/jobs" { "all" } }
            @if jobs.is_empty() { p.empty.small { "No job yet. " code { "heeler trigger AGENT" } " starts one." } }
            @else { (crate::jobs::table(frame, jobs)) }
        }
    }
}

/// Shows how long a job took, or takes already.
pub(crate) fn took(frame: &Frame, job: &JobItem) -> Markup {
    match (job.duration_seconds, job.started_at) {
        (Some(seconds), _) => html! { (duration(seconds)) },
        (None, Some(at)) if !job.status.is_final() => since(frame, at),
        _ => html! { span.muted { "–" } },
    }
}

/// Shows what a job cost.
pub(crate) fn cost(job: &JobItem) -> Markup {
    html! { @match job.cost_usd { Some(usd) => { (dollars(usd)) } None => { span.muted { "–" } } } }
}

/// Links a job by the end of its id, which is what tells it from others.
pub(crate) fn short_link(job: &JobItem) -> Markup {
    job_link(&job.id)
}
