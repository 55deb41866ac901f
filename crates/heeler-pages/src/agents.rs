//! Agent pages: the list, and one agent with its schedules, jobs, sessions and costs.

use heeler_query::agents::{AgentPage, AgentSummary};
use heeler_query::charts::DailyCost;
use heeler_query::jobs::JobPage;
use heeler_query::schedules::ScheduleSummary;
use heeler_query::sessions::SessionPage;
use maud::{Markup, html};

use crate::components::{
    agent_link, empty_notice, encode_path, format_grouped, format_usd, isolated_text, job_link,
    meter, optional_relative_time, relative_time, session_link, status_badge, url_with_params,
    visible_line,
};
use crate::schedules::{run_now_button, toggle_button};
use crate::{DashboardSection, PageFrame, charts, jobs};

/// Returns the page of all agents.
///
/// `past` are former agents: they have jobs but are no longer in the config.
pub fn page(frame: &PageFrame, agents: &AgentPage, past: &[String]) -> Markup {
    let content = html! {
        div.head {
            h1 { "Agents" }
            span.muted { (agents.total) @if agents.total == 1 { " agent" } @else { " agents" } }
            @if frame.can_administer() { div.tools { a.button href="/config?new=1" { "New agent" } } }
        }
        section.card #agents data-live aria-label="Agents" {
            @if agents.agents.is_empty() {
                (empty_notice("No agents yet", html! { code { "heeler init agent NAME" } " writes a first one; " code { "heeler reload" } " loads the config again." }))
            } @else { (table(frame, &agents.agents)) }
        }
        @if !past.is_empty() {
            section.card #past data-live aria-labelledby="h-past" {
                header { h2 #h-past { "No longer in the config" } }
                ul.pad.row role="list" { @for name in past { li { (agent_link(name)) } } }
            }
        }
    };
    frame.page(DashboardSection::Agents, "Agents", content)
}

/// Returns the page of a former agent, which is no longer in the config. Its history stays.
pub fn past_page(frame: &PageFrame, name: &str, jobs: &JobPage, found: &SessionPage) -> Markup {
    let content = html! {
        nav.crumbs aria-label="Breadcrumb" { a href="/agents" { "Agents" } }
        div.head { h1 { (isolated_text(name)) } }
        p.banner role="note" {
            span { "This agent is no longer in the config. Its history is kept; it gets no new jobs." }
        }
        (agent_history(frame, name, jobs, found))
    };
    frame.page(DashboardSection::Agents, &visible_line(name), content)
}

/// Renders the jobs and sessions of an agent.
fn agent_history(
    frame: &PageFrame,
    name: &str,
    found: &JobPage,
    in_sessions: &SessionPage,
) -> Markup {
    html! {
        section.card #jobs data-live aria-labelledby="h-jobs" {
            header {
                h2 #h-jobs { "Jobs" }
                a.more href=(url_with_params("/jobs", &[("agent", name)])) { "all " (format_grouped(found.total)) }
            }
            @if found.jobs.is_empty() { p.empty.small { "It has had no jobs yet." } }
            @else { (jobs::table(frame, &found.jobs)) }
        }
        section.card #sessions data-live aria-labelledby="h-sessions" {
            header {
                h2 #h-sessions { "Sessions" }
                a.more href=(url_with_params("/sessions", &[("agent", name)])) { "all " (format_grouped(in_sessions.total)) }
            }
            (sessions(frame, in_sessions))
        }
    }
}

fn table(frame: &PageFrame, agents: &[AgentSummary]) -> Markup {
    html! {
        div.scroll {
            table {
                thead {
                    tr {
                        th.fit scope="col" { "State" }
                        th scope="col" { "Agent" }
                        th.opt2 scope="col" { "Description" }
                        th.opt scope="col" { "Runs on" }
                        th.num scope="col" { "Next" }
                        th.num.opt2 scope="col" { "Today" }
                        th.fit scope="col" { span.visually-hidden { "Actions" } }
                    }
                }
                tbody { @for agent in agents { (row(frame, agent)) } }
            }
        }
    }
}

fn row(frame: &PageFrame, agent: &AgentSummary) -> Markup {
    let error = agent.error_message.as_deref();
    html! {
        tr data-row {
            td.fit { (agent_status(agent)) }
            td { (agent_link(&agent.name)) }
            td.wide.opt2 {
                div.clamp { (visible_line(agent.description.as_deref().unwrap_or_default())) }
                @if let Some(error) = error { div.clamp.small.failed { (visible_line(error)) } }
            }
            td.opt.muted { (isolated_text(agent.model.as_deref().unwrap_or(&agent.runtime))) }
            td.num { (optional_relative_time(frame, agent.next_trigger_at)) }
            td.num.opt2 { (format_usd(agent.spent_today_usd)) }
            td.fit { @if frame.can_operate() { (run_button(agent)) } }
        }
    }
}

fn agent_status(agent: &AgentSummary) -> Markup {
    // A disabled agent starts nothing, whatever its last status was.
    status_badge(if agent.enabled { agent.status.as_str() } else { "disabled" })
}

fn job_body(agent: &AgentSummary) -> String {
    // Encoded as JSON, because a name may contain quotes.
    serde_json::json!({ "agent": agent.name }).to_string()
}

fn run_button(agent: &AgentSummary) -> Markup {
    html! {
        button.button.small.icon.i-play type="button" data-action="POST /api/v1/jobs"
            data-body=(job_body(agent)) data-go="/jobs/{id}"
            aria-label={ "Run " (visible_line(&agent.name)) } { "Run" }
    }
}

/// Data of the page of one agent.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentView {
    pub agent: AgentSummary,
    pub schedules: Vec<ScheduleSummary>,
    /// Newest jobs.
    pub jobs: JobPage,
    /// Newest sessions.
    pub sessions: SessionPage,
    /// Cost per day.
    pub days: Vec<DailyCost>,
}

/// Returns the page of one agent.
pub fn agent_page(frame: &PageFrame, view: &AgentView) -> Markup {
    let agent = &view.agent;
    let content = html! {
        nav.crumbs aria-label="Breadcrumb" { a href="/agents" { "Agents" } }
        div.head #head data-live {
            h1 { (isolated_text(&agent.name)) }
            (agent_status(agent))
            @if frame.can_operate() { (agent_actions(frame, agent)) }
        }
        @if let Some(about) = &agent.description { p { (visible_line(about)) } }
        @if let Some(error) = &agent.error_message {
            p.banner.bad { strong { "Its last job failed: " } (visible_line(error)) }
        }
        div.split {
            div.stack {
                @if frame.can_operate() { (prompt_form(agent)) }
                section.card #schedules data-live aria-labelledby="h-schedules" {
                    header { h2 #h-schedules { "Schedules" } a.more href="/schedules" { "calendar" } }
                    (schedules(frame, &view.schedules))
                }
            }
            div.stack {
                section.card #facts data-live aria-labelledby="h-facts" {
                    header { h2 #h-facts { "About" } }
                    div.pad { (facts_card(frame, agent)) }
                }
                section.card #money data-live aria-labelledby="h-money" {
                    header { h2 #h-money { "Cost" } }
                    div.pad.stack-s { (budget_meter(agent)) (charts::cost_chart(&view.days)) }
                }
            }
        }
        (agent_history(frame, &agent.name, &view.jobs, &view.sessions))
    };
    frame.page(DashboardSection::Agents, &visible_line(&agent.name), content)
}

fn agent_actions(frame: &PageFrame, agent: &AgentSummary) -> Markup {
    let api = encode_path("/api/v1/agents", &[&agent.name]);
    html! {
        div.tools {
            @if frame.can_administer() {
                a.button href=(url_with_params("/config", &[("agent", &agent.name)])) { "Edit" }
            }
            @if agent.enabled {
                button.button.danger type="button" data-action={ "POST " (api) "/disable" } data-danger
                    data-confirm={ "Disable " (visible_line(&agent.name)) "? Its jobs do not start until it is enabled again. Running jobs continue." }
                    data-answer="Disable it" { "Disable" }
            } @else {
                button.button type="button" data-action={ "POST " (api) "/enable" } { "Enable" }
            }
        }
    }
}

/// Renders the form that starts a job with a prompt.
fn prompt_form(agent: &AgentSummary) -> Markup {
    html! {
        section.card aria-labelledby="h-ask" {
            header { h2 #h-ask { "Start a job" } }
            form.pad.stack-s data-action="POST /api/v1/jobs" data-body=(job_body(agent)) data-go="/jobs/{id}" {
                label.visually-hidden for="prompt" { "Prompt" }
                textarea #prompt name="prompt" rows="3" placeholder="Prompt. If empty, the agent's default prompt is used." {}
                div.row { button.button.primary.icon.i-play { "Run" } }
            }
        }
    }
}

fn schedules(frame: &PageFrame, schedules: &[ScheduleSummary]) -> Markup {
    html! {
        @if schedules.is_empty() { p.empty.small { "It has no schedules." } }
        @else {
            ul.list role="list" { @for one in schedules { (schedule_item(frame, one)) } }
        }
    }
}

fn schedule_item(frame: &PageFrame, one: &ScheduleSummary) -> Markup {
    let api = encode_path("/api/v1/schedules", &[&one.agent, &one.name]);
    html! {
        li data-row {
            div.line {
                strong { (isolated_text(&one.name)) }
                span.muted { (visible_line(&one.when)) }
                @if let Some(workflow) = &one.workflow { span.badge { "workflow " (isolated_text(workflow)) } }
                span.end.row {
                    @if frame.can_operate() { (toggle_button(&api, one.enabled, &one.name)) (run_now_button(&api, &one.name)) }
                    @else { (status_badge(if one.enabled { "enabled" } else { "disabled" })) }
                }
            }
            p.small.muted {
                "next " (optional_relative_time(frame, one.next_run_at)) " · last " (optional_relative_time(frame, one.last_run_at))
                @if let Some(changed) = &one.changed {
                    " · changed by " (isolated_text(&changed.by)) " " (relative_time(frame, changed.at))
                    @if frame.can_operate() {
                        " " button.button.quiet.small type="button" data-action={ "POST " (api) "/reset" } { "Reset to the config" }
                    }
                }
            }
            @if let Some(error) = &one.last_error { p.clamp.small.failed { (visible_line(error)) } }
        }
    }
}

fn facts_card(frame: &PageFrame, agent: &AgentSummary) -> Markup {
    html! {
        dl.facts {
            dt { "Runs on" } dd { (visible_line(&agent.runtime)) @if let Some(model) = &agent.model { ", " (visible_line(model)) } }
            dt { "Working directory" } dd { code { (visible_line(&agent.working_directory)) } }
            dt { "Concurrency" } dd { (agent.max_concurrent) @if agent.max_concurrent == 1 { " job" } @else { " jobs" } }
            @if let Some(job) = &agent.current_job { dt { "Current job" } dd { (job_link(job)) } }
            @if let Some(job) = &agent.last_job { dt { "Last job" } dd { (job_link(job)) } }
            @if let (Some(name), at) = (&agent.next_schedule, agent.next_trigger_at) {
                dt { "Next" } dd { (isolated_text(name)) " " (optional_relative_time(frame, at)) }
            }
            dt { "Config" } dd { code { (visible_line(&agent.file)) } }
        }
    }
}

fn budget_meter(agent: &AgentSummary) -> Markup {
    let line = |name: &str, spent: f64, limit: Option<f64>| {
        html! {
            div.row.small {
                span { (name) }
                span.end.num { (format_usd(spent)) @if let Some(limit) = limit { " of " (format_usd(limit)) } }
            }
            // Without a limit there is no share to draw.
            @if let Some(limit) = limit {
                (meter(spent, limit, &format!("{name}: {} of {}", format_usd(spent), format_usd(limit))))
            }
        }
    };
    html! {
        (line("Today", agent.spent_today_usd, agent.budget.day_usd))
        (line("Total", agent.spent_usd, agent.budget.total_usd))
        @if let Some(limit) = agent.budget.job_usd { p.small.muted { "Limit per job: " (format_usd(limit)) } }
    }
}

fn sessions(frame: &PageFrame, sessions: &SessionPage) -> Markup {
    html! {
        @if sessions.sessions.is_empty() { p.empty.small { "It has no sessions yet." } }
        @else {
            div.scroll {
                table {
                    thead {
                        tr {
                            th.fit scope="col" { "State" }
                            th scope="col" { "Session" }
                            th.num scope="col" { "Messages" }
                            th.num.opt2 scope="col" { "Jobs" }
                            th.num scope="col" { "Last used" }
                        }
                    }
                    tbody {
                        @for one in &sessions.sessions {
                            tr data-row {
                                td.fit { (status_badge(one.status.as_str())) }
                                td { (session_link(&one.id)) }
                                td.num { (format_grouped(one.message_count)) }
                                td.num.opt2 { (format_grouped(one.job_count)) }
                                td.num { (relative_time(frame, one.last_active_at)) }
                            }
                        }
                    }
                }
            }
        }
    }
}
